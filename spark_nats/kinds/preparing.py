"""What a sink does on the driver, before there are tasks: what would fail in every task and each of its attempts."""

from __future__ import annotations

from collections.abc import Callable

from spark_nats import sparkapi
from spark_nats.client.host_cache import PREPARED_FOR, at_most_every, prepared
from spark_nats.client.options import RetryOptions


def prepare_once(query: str, what: str, retries: RetryOptions, prepare: Callable[[], object]) -> None:
    """Prepare a micro-batch, unless its query has done so of late, and wait for servers that are away.

    Spark asks for a writer for each micro-batch, in a process of its own, and for another one when the tasks are done.
    What fails there, because a server is away, would take the place of what has failed in a task.

    Args:
        query: what tells the query from others of this program.
        what: what it does, for the log.
        retries: how long to wait.
        prepare: what to do.

    Raises:
        NatsError: it cannot be done.
    """
    if sparkapi.ends_a_micro_batch():
        return

    def waiting(known: bool) -> None:
        from spark_nats.client.retrying import retrying

        retrying(prepare, retries, what, established=known)

    at_most_every(prepared(query), waiting, PREPARED_FOR)
