"""How batches are planned, when micro-batches are due, and how tasks read: what is the same for all kinds."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from spark_nats import clock
from spark_nats.client.auth import Credentials, note_renewed_credentials, read_newest_credentials
from spark_nats.client.choosing import add_announced, encode_announced_servers
from spark_nats.client.options import ConnectionOptions
from spark_nats.client.pool import borrow, leased
from spark_nats.jetstream.api import JetStream, JetStreamLease
from spark_nats.jetstream.consuming.placing import peers_in_connected_cluster
from spark_nats.jetstream.streams import StreamInfo
from spark_nats.kinds.preparing import retry_during_election
from spark_nats.options.hints import errors_for_spark
from spark_nats.options.query import Query, Triggers
from spark_nats.sparkapi import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows, ReadMinRows

if TYPE_CHECKING:
    import pyarrow as pa

MANY_ROWS, MANY_BYTES = 1000, 1 << 20
"""Minimum size of a first batch of rows, in rows or in bytes, for which a writer connects to its stream's leader."""


@dataclass(frozen=True)
class Partition(InputPartition):
    """What one task reads, and which servers the driver knows.

    Spark gives tasks the reader as it was before it first connected, so each partition brings these servers.

    Attributes:
        announced: the servers announced to the driver, see
            :func:`~spark_nats.client.choosing.encode_announced_servers`.
        login: the driver's credentials, if their file was renewed since it was first read; else None.
        server: name of the server from which the task reads if it can; empty for any. Rows do not depend on it.
    """

    announced: str = field(default="", kw_only=True, repr=False)
    login: Credentials | None = field(default=None, kw_only=True, repr=False)
    server: str = field(default="", kw_only=True)

    def note_servers_and_login(self, options: ConnectionOptions) -> None:
        """Add the servers that the driver knows to those that this process knows, and the login that it has now."""
        add_announced(options, self.announced)
        if self.login is not None:
            note_renewed_credentials(options.credentials, self.login)


def with_servers_and_login(partitions: Iterable[Partition], options: ConnectionOptions) -> list[InputPartition]:
    """Return partitions with the announced servers that this process knows, and with its login if that was renewed."""
    known, login = encode_announced_servers(options), read_newest_credentials(options.credentials)
    renewed = login if login != options.credentials else None
    if not known and renewed is None:
        return list(partitions)
    return [replace(each, announced=known, login=renewed) for each in partitions]


@contextlib.contextmanager
def leased_jetstream(options: Query, what: str, waits: bool = False) -> Iterator[JetStreamLease]:
    """Lease JetStream to a task; ``what`` names it in the log, ``waits`` is that of :func:`.pool.borrow`."""
    with leased(options.connection, options.retries, what, waits) as lease:
        yield JetStreamLease(lease, options.api_prefix)


def try_move_to_leader(lease: JetStreamLease, stream: StreamInfo, rows: int, size: int) -> None:
    """Go on over a connection to a stream's leader, if one can be had and there are many rows, or bytes, to write.

    What another server takes for the stream it hands on to the leader. Small writes stay where they are.
    """
    if (rows >= MANY_ROWS or size >= MANY_BYTES) and peers_in_connected_cluster(stream, lease.js.connection.info):
        lease.lease.try_move_to_server(stream.leader)


Q = TypeVar("Q", bound=Query)
P = TypeVar("P", bound=Partition)


class TaskReader(Generic[Q, P]):
    """Reads partitions of type ``P`` for a query with options ``Q``, on executors."""

    def __init__(self, options: Q, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        """Read one partition, on an executor.

        After a lost connection, the task connects again and continues with what it has not handed on. Servers restart,
        and cut off clients that take messages too slowly; the task must finish all the same.

        Raises:
            NatsError: it cannot, or not within ``retryTimeout``.
        """
        if isinstance(partition, Partition):  # else it is Spark's placeholder in a plan without partitions
            partition.note_servers_and_login(self._options.connection)
            with errors_for_spark():
                yield from self._read_rows(partition)  # type: ignore[arg-type]

    def _read_rows(self, partition: P) -> Iterator[pa.RecordBatch]:
        """Read one partition."""
        raise NotImplementedError


class BatchReader(TaskReader[Q, P], DataSourceReader):
    """Reads a batch from JetStream."""

    @errors_for_spark()
    def partitions(self) -> list[InputPartition]:
        """Plan the read; wait while a leader is elected.

        A server that cannot be reached is an error at once, because its URL may be wrong.

        Raises:
            NatsError: the plan failed.
        """
        options = self._options
        with borrow(options.connection) as connection:
            js = JetStream(connection, options.api_prefix)
            found = retry_during_election(lambda: self._plan(js), options.retries, "planning a batch")
        return with_servers_and_login(found, options.connection)

    def _plan(self, js: JetStream) -> Iterable[P]:
        """Return the partitions."""
        raise NotImplementedError


class TriggerPacing:
    """Decides when the micro-batches of one run of a query are due.

    The first micro-batch waits for nothing, as in Spark's Kafka source. It is also the only one of
    ``Trigger.AvailableNow`` in PySpark before 4.2, which does not report that trigger.
    """

    def __init__(self, limits: Triggers) -> None:
        self._limits = limits
        self._since: float | None = None  # when the last micro-batch was planned

    @property
    def read_limit(self) -> ReadLimit:
        """The limit that Spark is given, and hands back unless everything is to be read, as with ``Trigger.Once``.

        A Spark limit holds one number, and ``ReadMinRows`` no maximum delay; so it only marks that the options count.
        """
        if self._limits.max_offsets:
            return ReadMaxRows(self._limits.max_offsets)
        if self._limits.max_bytes:
            return ReadMaxBytes(self._limits.max_bytes)
        return ReadMinRows(self._limits.min_offsets) if self._limits.min_offsets else ReadAllAvailable()

    @property
    def min_new_now(self) -> int:
        """The fewest new sequences or messages that make a micro-batch now; 0 when the query does not wait."""
        waits = self._since is not None and clock.monotonic() - self._since < self._limits.max_delay
        return (self._limits.min_offsets or 0) if waits else 0

    @property
    def wait_ends_at(self) -> float:
        """When the wait for the minimum ends, by the monotonic clock; infinity without a wait."""
        if self._since is None or not self._limits.min_offsets:
            return math.inf
        return self._since + self._limits.max_delay

    def note_planned(self) -> None:
        """Note that a micro-batch was planned."""
        self._since = clock.monotonic()
