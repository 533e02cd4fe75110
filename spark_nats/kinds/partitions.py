"""What every partition carries to its task."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from pyspark.sql.datasource import InputPartition

from spark_nats.client.choosing import add_announced, announced_text
from spark_nats.client.options import ConnectionOptions


@dataclass(frozen=True)
class Partition(InputPartition):
    """What one task reads, and which servers the driver knows.

    Spark gives tasks the reader as it was before it first connected, so each partition brings these servers.

    Attributes:
        announced: the servers announced to the driver, see :func:`~spark_nats.client.choosing.announced_text`.
    """

    announced: str = field(default="", kw_only=True, repr=False)

    def add_servers(self, options: ConnectionOptions) -> None:
        """Add the servers that the driver knows to those that this process knows."""
        add_announced(options, self.announced)


def with_servers(partitions: Iterable[Partition], options: ConnectionOptions) -> list[InputPartition]:
    """Return partitions with the announced servers that this process knows."""
    known = announced_text(options)
    return [replace(each, announced=known) if known else each for each in partitions]
