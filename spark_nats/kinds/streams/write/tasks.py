"""What the driver and the tasks of a write tell each other. It imports next to nothing, see :mod:`.writers`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import astuple, dataclass
from operator import add
from typing import TYPE_CHECKING

from pyspark.sql.datasource import WriterCommitMessage

if TYPE_CHECKING:
    from spark_nats.jetstream.positions import Position


@dataclass(frozen=True, slots=True)
class Counts:
    """What a task has done, or several together.

    Attributes:
        rows: how many rows are safe: the stream has them, or the server of core NATS has processed them.
        bytes: how many bytes of headers and payloads were sent; each row is counted once, and not those that an earlier
            attempt had stored and that were left out.
        duplicates: how many of ``rows`` the stream had already: an earlier attempt had stored them, or it knew their
            message ids.
        skipped: how many further rows were left out, since their subjects had other last messages than they named.
        bad: how many further rows could not be sent, and were left out or stored in the stream for such rows.
        reconnects: how often a task had lost its connection, or could make none at once, and went on over another one.
    """

    rows: int = 0
    bytes: int = 0
    duplicates: int = 0
    skipped: int = 0
    reconnects: int = 0
    bad: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(*map(add, astuple(self), astuple(other)))

    def __str__(self) -> str:
        said = f"{self.rows:,} rows, {self.bytes:,} bytes"
        seldom = (
            ("stored before", self.duplicates),
            ("skipped", self.skipped),
            ("bad", self.bad),
            ("reconnects", self.reconnects),
        )
        return said + "".join(f", {count:,} {what}" for what, count in seldom if count)


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """What a task reports when all its rows are safe.

    Attributes:
        counts: what it has done. Attempts at the same task that have failed report nothing.
        unsure: id of the query, if its micro-batch may have been begun before, as far as the task knows.
        run: id of the run of the query to which the task belongs, also within ``foreachBatch``; empty for no query.
    """

    counts: Counts
    unsure: str | None = None
    run: str = ""


def total(messages: Iterable[WriterCommitMessage | None]) -> Counts:
    """Return what the tasks have done together of which these are the messages."""
    return sum((message.counts for message in messages if isinstance(message, Written)), Counts())


@dataclass(frozen=True, slots=True)
class Began:
    """Where a stream ended when a task, or a batch write, began.

    Attributes:
        stream: its name.
        end: the place behind its last message then.
        time: when that was, in nanoseconds since 1970 by the server's clock.
    """

    stream: str
    end: Position
    time: int


@dataclass(frozen=True, slots=True)
class WriteTask:
    """A task of the sink.

    Attributes:
        query: id of the query, or of the write.
        batch: the micro-batch; None in a batch write.
        partition: number of its partition.
        attempt: how often it was tried before, as far as Spark says.
        began: where the stream ended when a batch write began, if that was noted.
        own_ids: whether rows may have message ids of their own.
        run: id of the query's run, which is another one each time that it is started; that of a write in
            ``foreachBatch`` too.
        planned: when the driver has planned the micro-batch, in nanoseconds since 1970 by its clock; 0 if that is not
            known.
    """

    query: str
    batch: str | None
    partition: int
    attempt: int = 0
    began: Began | None = None
    own_ids: bool = False
    run: str = ""
    planned: int = 0

    @property
    def key(self) -> str:
        """Where its state is kept."""
        return f"{self.query}.{self.partition}"

    @property
    def name(self) -> str:
        """How messages name it."""
        what = "this write" if self.batch is None else f"micro-batch {self.batch}"
        return f"partition {self.partition} of {what}"
