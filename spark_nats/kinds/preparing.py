"""What a sink does on the driver before there are tasks: in the tasks, a mistake would fail every attempt of each."""

from __future__ import annotations

from collections.abc import Callable

from spark_nats import sparkapi
from spark_nats.client.host_cache import PREPARED_FOR, at_most_every, prepared
from spark_nats.client.options import RetryOptions


def prepare_once(query: str, what: str, retries: RetryOptions, prepare: Callable[[], object]) -> None:
    """Prepare a micro-batch, unless that was done within :data:`PREPARED_FOR` seconds; wait for servers that are down.

    Spark asks for a writer for each micro-batch, in a new process, and for another writer when the tasks are done. The
    latter prepares nothing: an error because a server is down would hide the error of a task.

    Args:
        query: a text that no query with another preparation has.
        what: what the query does, for the log.
        retries: how long and how often to retry.
        prepare: what to do.

    Raises:
        NatsError: the preparation failed.
    """
    if sparkapi.ends_a_micro_batch():
        return

    def waiting(known: bool) -> None:
        from spark_nats.client.retrying import retrying

        retrying(prepare, retries, what, established=known)

    at_most_every(prepared(query), waiting, PREPARED_FOR)
