"""What every partition carries to its task, and how a batch plans its partitions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from pyspark.sql.datasource import InputPartition

from spark_nats.client import Connection
from spark_nats.client.auth import Credentials, keep_newest, newest
from spark_nats.client.choosing import add_announced, announced_text
from spark_nats.client.options import ConnectionOptions
from spark_nats.client.pool import borrow
from spark_nats.kinds.preparing import wait_for_leaders
from spark_nats.options.query import Query


@dataclass(frozen=True)
class Partition(InputPartition):
    """What one task reads, and which servers the driver knows.

    Spark gives tasks the reader as it was before it first connected, so each partition brings these servers.

    Attributes:
        announced: the servers announced to the driver, see :func:`~spark_nats.client.choosing.announced_text`.
        login: the driver's credentials, if their file was renewed since it was first read; else None.
    """

    announced: str = field(default="", kw_only=True, repr=False)
    login: Credentials | None = field(default=None, kw_only=True, repr=False)

    def add_servers(self, options: ConnectionOptions) -> None:
        """Add the servers that the driver knows to those that this process knows, and the login that it has now."""
        add_announced(options, self.announced)
        if self.login is not None:
            keep_newest(options.credentials, self.login)


def with_servers(partitions: Iterable[Partition], options: ConnectionOptions) -> list[InputPartition]:
    """Return partitions with the announced servers that this process knows, and with its login if that was renewed."""
    known, login = announced_text(options), newest(options.credentials)
    renewed = login if login != options.credentials else None
    if not known and renewed is None:
        return list(partitions)
    return [replace(each, announced=known, login=renewed) for each in partitions]


def plan_batch(options: Query, plan: Callable[[Connection], Iterable[Partition]]) -> list[InputPartition]:
    """Return the partitions of a batch that a plan finds on the driver; wait while a leader is elected.

    A server that cannot be reached is an error at once, because its URL may be wrong.

    Raises:
        NatsError: the plan failed.
    """
    with borrow(options.connection) as connection:
        found = wait_for_leaders(lambda: plan(connection), options.retries, "planning a batch")
    return with_servers(found, options.connection)
