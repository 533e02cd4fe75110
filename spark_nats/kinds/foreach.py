"""Writing row by row, for streaming queries that cannot have a sink but only ``foreach``."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from queue import Empty, Full, Queue
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import Row

from spark_nats.conditions.queries import COLUMN_TYPE
from spark_nats.errors import NatsError, OptionError, SchemaError
from spark_nats.kinds.queries import check_any_option_set, kind_of, parse_options, parse_write_options
from spark_nats.kinds.streams.options import WINDOW, WriteOptions
from spark_nats.kinds.streams.write.conditions import BATCH_UNKNOWN, FOREACH_IS_NOT_EXACT
from spark_nats.kinds.streams.write.partitions import write_partition
from spark_nats.kinds.streams.write.sink import Sink, check_schema, sink_of
from spark_nats.kinds.streams.write.tasks import WriteTask
from spark_nats.options.hints import errors_for_spark

_MAX_ROWS = 4096  # rows that are sent together
_MAX_WAITING = 4 * _MAX_ROWS  # rows that wait to be sent
_LOOK = 0.1  # seconds between two checks whether the sending thread has failed
_QUIET = 5.0  # seconds without a row after which the thread serves the connection, so that the server keeps it

_TYPES = {
    **dict.fromkeys(("payload", "value"), pa.binary()),
    **dict.fromkeys(("expected_last_subject_sequence", "expected_revision", "sequence", "revision"), pa.int64()),
    **dict.fromkeys(("timestamp", "created"), pa.timestamp("us", "UTC")),
}
"""Arrow types of the columns that are not text and always have one type."""


class NatsForeachWriter:
    """Writes the rows of a streaming query by ``foreach``, where a sink is not possible.

    One writer serves one query::

        writer = NatsForeachWriter(servers="nats://localhost:4222", stream="ORDERS")
        query = rows.writeStream.foreach(writer).option("checkpointLocation", ...).start()

    Rows have the columns of the sink. A thread sends them while Spark hands over others. A task ends when the stream
    has acknowledged all of its rows. They get message ids, unless ``deduplicate`` is ``false``, so that a replay within
    the duplicate window stores none twice. Spark calls Python for each row, so this is far slower than the sink.

    Args:
        options: the options of a streaming write, such as ``stream``, with their values; the default of
            ``deduplicate`` is ``window``, and ``exact`` is an error.

    Raises:
        OptionError: an option is unknown, invalid or not for this writer.
    """

    def __init__(self, **options: str | float | bool) -> None:
        texts = {name: str(each).lower() if isinstance(each, bool) else str(each) for name, each in options.items()}
        with errors_for_spark():
            settings = parse_options(texts)
            check_any_option_set(settings)
            if refused := kind_of(settings, writing=True).not_by_foreach:
                raise OptionError(refused())
            if "deduplicate" not in settings.given and {"stream", "streamPattern", "bucket"} & set(settings.given):
                settings = parse_options({**texts, "deduplicate": WINDOW})
            self._options = parse_write_options(settings, streaming=True)
            if self._options.is_exact:
                raise OptionError(FOREACH_IS_NOT_EXACT())

    def open(self, partition_id: int, epoch_id: int) -> bool:
        """Begin a task; Spark calls this.

        Raises:
            NatsError: no streaming query calls this, and ``deduplicate`` is ``window``.
        """
        context = TaskContext.get()
        query = context.getLocalProperty("sql.streaming.queryId") if context else None
        if not query and self._options.gives_ids:
            with errors_for_spark():
                raise NatsError(BATCH_UNKNOWN())
        self._task = WriteTask(query or "", str(epoch_id), partition_id, context.attemptNumber() if context else 0)
        self._sending: _Sending | None = None
        return True

    def process(self, row: Row) -> None:
        """Take a row, which is sent as soon as those before it are; Spark calls this.

        Raises:
            NatsError: this row, or one before it, could not be written.
        """
        if self._sending is None:
            self._sending = self._start_sending(row)
        self._sending.put_or_raise(row)

    def close(self, error: Exception | None) -> None:
        """End a task: wait until the stream has acknowledged its rows, unless there is an error; Spark calls this.

        Raises:
            NatsError: a row could not be written, and ``error`` is None.
        """
        if self._sending is not None:
            self._sending.finish_or_give_up(error)

    @errors_for_spark()
    def _start_sending(self, row: Row) -> _Sending:
        """Check the columns by the first row, and begin to send."""
        sink = sink_of(self._options)
        check_schema(from_arrow_schema(_batch_of([row]).schema), self._options, sink.columns)
        return _Sending(self._options, sink, self._task)


class _Sending:
    """A thread that writes a partition: whenever it has nothing to do, it takes the rows that are there.

    It ends with the process at the latest. Its waits for a server have the timeouts of the sink.
    """

    def __init__(self, options: WriteOptions, sink: Sink, task: WriteTask) -> None:
        self._options = options
        self._sink = sink
        self._task = task
        self._rows: Queue[Row | None] = Queue(_MAX_WAITING)  # the rows that wait; None after the last one
        self._given_up = False
        self._failed: Exception | None = None
        self._thread = threading.Thread(target=self._write_rows_until_end, name=f"spark-nats {task.name}", daemon=True)
        self._thread.start()

    def put_or_raise(self, row: Row) -> None:
        """Hand over a row, or raise the error that ended the thread."""
        self._queue_while_alive(row)
        if self._failed is not None:
            raise self._failed

    def finish_or_give_up(self, error: Exception | None) -> None:
        """Wait until all rows are written; if an ``error`` ended the task, only until nothing more is sent."""
        self._given_up = error is not None
        self._queue_while_alive(None)
        self._thread.join()
        if self._failed is not None and error is None:
            raise self._failed

    def _queue_while_alive(self, row: Row | None) -> None:
        while self._thread.is_alive():
            with suppress(Full):
                self._rows.put(row, timeout=_LOOK)
                return

    def _write_rows_until_end(self) -> None:
        try:
            with errors_for_spark():
                write_partition(self._options, self._task, self._wait_for_batches(), self._sink)
        except _GivenUpError:
            pass
        except Exception as error:  # put() or end() raises it, where Spark waits
            self._failed = error

    def _wait_for_batches(self) -> Iterator[pa.RecordBatch]:
        nothing: pa.RecordBatch | None = None
        rows: list[Row | None] = []
        while rows[-1:] != [None]:
            rows = self._wait_and_take_rows()
            if self._given_up:
                raise _GivenUpError
            if portion := [row for row in rows if row is not None]:
                yield (batch := _batch_of(portion))
                nothing = batch.slice(0, 0)
            elif not rows and nothing is not None:
                yield nothing

    def _wait_and_take_rows(self) -> list[Row | None]:
        """Wait up to :data:`_QUIET` seconds for rows; return those to send together, with None after the last row."""
        rows: list[Row | None] = []
        with suppress(Empty):
            rows.append(self._rows.get(timeout=_QUIET))
            while len(rows) < _MAX_ROWS:
                rows.append(self._rows.get_nowait())
        return rows


class _GivenUpError(Exception):
    """The task has failed elsewhere."""


def _batch_of(rows: Sequence[Row]) -> pa.RecordBatch:
    """Return rows as columns of the types that the sink accepts.

    Raises:
        SchemaError: a value is of another type.
    """
    names = rows[0].__fields__
    columns = {name: _column(name, list(values)) for name, values in zip(names, zip(*rows, strict=True), strict=True)}
    return pa.RecordBatch.from_pydict(columns)


def _column(name: str, values: list[Any]) -> pa.Array:
    first = next((value for value in values if value is not None), None)
    wanted = _TYPES.get(name, pa.string())
    if name in ("ttl", "increment") and not isinstance(first, str):
        wanted = pa.int64()
    try:
        if name == "headers":
            wanted = pa.map_(pa.string(), pa.string())
            inner = next((each for value in values if value for each in value.values() if each is not None), "")
            wanted = pa.map_(pa.string(), pa.list_(pa.string()) if isinstance(inner, list) else pa.string())
            values = [value if value is None else list(value.items()) for value in values]
        return pa.array(values, wanted)
    except (pa.ArrowInvalid, pa.ArrowTypeError, AttributeError):
        raise SchemaError(COLUMN_TYPE(column=name, expected=str(wanted).upper(), type=type(first).__name__)) from None
