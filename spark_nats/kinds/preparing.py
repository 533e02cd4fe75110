"""What a sink does on the driver before there are tasks: in the tasks, a mistake would fail every attempt of each."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from spark_nats import sparkapi
from spark_nats.client.host_cache import PREPARED_FOR, prepared_fact, run_unless_succeeded_lately
from spark_nats.client.options import RetryOptions
from spark_nats.errors import JetStreamError, NatsError, NatsTimeoutError
from spark_nats.protocol.api import UNAVAILABLE

Result = TypeVar("Result")


def retry_during_election(action: Callable[[], Result], retries: RetryOptions, what: str) -> Result:
    """Return the result of what a batch does first on the driver, tried again while leaders are elected.

    During an election, servers may also answer nothing. A server that cannot be reached is an error at once, because
    its URL may be wrong.

    Args:
        action: what to do; it asks questions only, or what it does may be done twice.
        retries: how long and how often to retry.
        what: what the batch does, for the log.

    Raises:
        NatsError: the action failed.
    """
    from spark_nats.client.retrying import run_with_retries

    return run_with_retries(action, retries, what, established=False, retry_if=_may_be_election)


def _may_be_election(error: NatsError) -> bool:
    return isinstance(error, NatsTimeoutError) or (isinstance(error, JetStreamError) and error.code == UNAVAILABLE)


def prepare_if_due(query: str, what: str, retries: RetryOptions, prepare: Callable[[], object]) -> None:
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
    if sparkapi.is_commit_or_abort():
        return

    def waiting(known: bool) -> None:
        from spark_nats.client.retrying import run_with_retries

        run_with_retries(prepare, retries, what, established=known)

    run_unless_succeeded_lately(prepared_fact(query), waiting, PREPARED_FOR)
