"""What the driver and the tasks of a write tell each other. It imports next to nothing, see :mod:`.writers`."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql.datasource import WriterCommitMessage


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """What a task reports when all its rows are safe.

    Attributes:
        rows: how many rows it wrote.
        duplicates: how many of them the stream had already, by their message ids.
        unsure: id of the query, if its micro-batch may have been begun before, as far as the task knows.
    """

    rows: int
    duplicates: int = 0
    unsure: str | None = None


@dataclass(frozen=True, slots=True)
class Position:
    """Where a stream ended when a task, or a batch write, began.

    Attributes:
        stream: its name.
        created: when it was made, which tells it from a later one of its name.
        sequence: of its last message.
        time: when that was, in nanoseconds since 1970 by the server's clock.
        timestamp: when that message was stored, likewise; 0 where it is not known.
    """

    stream: str
    created: str
    sequence: int
    time: int
    timestamp: int = 0


@dataclass(frozen=True, slots=True)
class Task:
    """A task of the sink.

    Attributes:
        query: id of the query, or of the write.
        batch: the micro-batch; None in a batch write.
        partition: number of its partition.
        attempt: how often it was tried before, as far as Spark says.
        position: where the stream ended when a batch write began, if that was noted.
        own_ids: whether rows may have message ids of their own.
        run: id of the query's run, which is another one each time that it is started.
        planned: when the driver has planned the micro-batch, in nanoseconds since 1970 by its clock; 0 if that is not
            known.
    """

    query: str
    batch: str | None
    partition: int
    attempt: int = 0
    position: Position | None = None
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
