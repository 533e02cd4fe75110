"""What the driver and the tasks of a write exchange. This module imports next to nothing, see :mod:`.writers`."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass
from operator import add
from typing import TYPE_CHECKING

from pyspark.sql.datasource import WriterCommitMessage

if TYPE_CHECKING:
    from spark_nats.jetstream.positions import Position


@dataclass(frozen=True, slots=True)
class Counts:
    """What one task or several tasks have done.

    Attributes:
        rows: number of rows that are safe: the stream has them, or the server of core NATS has processed them.
        bytes: bytes of headers and payloads, or of the contents of objects, that were sent. Each row counts once; rows
            that an earlier attempt has stored and that were left out do not count.
        duplicates: how many of ``rows`` the stream already had: an earlier attempt has stored them, or the stream
            recognized their message ids.
        skipped: number of further rows that were left out, because their subjects had another last message than
            expected.
        bad: number of further rows that could not be sent or that the server refused, and that were left out or stored
            in the dead-letter stream.
        reconnects: how often a task lost its connection, or could not connect at once, and continued over another one.
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
    """What a task reports when each of its rows is safe, skipped or bad.

    Attributes:
        counts: what the task has done. Failed attempts at the same task report nothing.
        unsure_query: id of the query, if its micro-batch may have been begun before, as far as the task knows.
        run: id of the query's run that the task belongs to, also within ``foreachBatch``: see
            :func:`.writers.job_group_of`.
        by_stream: what went to each of several streams.
    """

    counts: Counts
    unsure_query: str | None = None
    run: str = ""
    by_stream: tuple[tuple[str, Counts], ...] = ()


def sum_written(parts: Sequence[Written]) -> Written:
    """Return what a task has done, from what it has written to each target."""
    unsure = next((part.unsure_query for part in parts if part.unsure_query), None)
    by_stream = tuple(each for part in parts for each in part.by_stream)
    return Written(sum((part.counts for part in parts), Counts()), unsure, parts[0].run, by_stream)


def sum_counts(messages: Iterable[WriterCommitMessage | None]) -> Counts:
    """Return the sum of what tasks have done, from their commit messages."""
    return sum((message.counts for message in messages if isinstance(message, Written)), Counts())


@dataclass(frozen=True, slots=True)
class StartMark:
    """Where a stream ended when a task, or a batch write, began.

    Attributes:
        stream: name of the stream.
        end: the position after its last message then.
        time: when that was, in nanoseconds since 1970 by the server's clock; 0 if that is unknown.
        noted: the same by the clock of the machine that noted it; 0 if that is unknown.
        process: the server's process that held the stream's message ids, see
            :class:`~spark_nats.jetstream.id_memory.IdMemory`; empty if that is unknown, as in notes of older versions.
        id_lifetime: seconds for which message ids were relied on then.
        passed: a later micro-batch that was noted before, as where an older copy of the checkpoint went on; 0 if none.
    """

    stream: str
    end: Position
    time: int
    noted: int = 0
    process: str = ""
    id_lifetime: float = 0.0
    passed: int = 0


@dataclass(frozen=True, slots=True)
class WriteTask:
    """A task of the sink.

    Attributes:
        query: id of the query, or of the write; empty if Spark reports no query.
        batch: the micro-batch; None in a batch write.
        partition: number of its partition.
        attempt: number of earlier attempts, as far as Spark reports them.
        marks: where streams ended when a batch write began, if that was noted.
        own_ids: whether rows may have message ids of their own.
        run: id of the query's run, which is new each time that the query starts; also of a write in ``foreachBatch``.
        planned_at: when the driver planned the micro-batch, in nanoseconds since 1970 by its clock; 0 if unknown.
        stream: the one of several target streams that these of its rows go to; empty where there is one target.
    """

    query: str
    batch: str | None
    partition: int
    attempt: int = 0
    marks: tuple[StartMark, ...] = ()
    own_ids: bool = False
    run: str = ""
    planned_at: int = 0
    stream: str = ""

    @property
    def note_key(self) -> str:
        """Key of its note in the state bucket."""
        of_stream = f".{hashlib.blake2s(self.stream.encode(), digest_size=9).hexdigest()}" if self.stream else ""
        return f"{self.query}.{self.partition}{of_stream}"

    @property
    def name(self) -> str:
        """Name of the task in messages."""
        return f"partition {self.partition} of {self.write_in_words}"

    @property
    def write_in_words(self) -> str:
        """Name of the write or micro-batch that it is a part of."""
        return "this write" if self.batch is None else f"micro-batch {self.batch}"

    @property
    def other_writes_in_words(self) -> str:
        """Name of others of these."""
        return "other writes" if self.batch is None else "micro-batches before this one"
