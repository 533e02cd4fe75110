"""The differences between the versions of PySpark, in one place.

=====  ==============================================================================================================
since  change
=====  ==============================================================================================================
4.0    Python data sources; Arrow batches for writers of batch queries
4.1    Arrow batches for writers of streaming queries
4.2    Spark passes the query's offset and a read limit to a streaming reader, and runs several micro-batches with
       ``Trigger.AvailableNow``
=====  ==============================================================================================================
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyspark
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamReader, DataSourceStreamWriter, InputPartition
from pyspark.sql.types import StructType

from spark_nats.conditions import Once
from spark_nats.conditions.queries import ENDS_AFTER_LIMIT

if TYPE_CHECKING:
    import pyarrow as pa

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxRows,
        ReadMinRows,
        SupportsTriggerAvailableNow,
    )

    HAS_READ_LIMITS = True
except ImportError:
    HAS_READ_LIMITS = False

    class ReadLimit:  # type: ignore[no-redef]
        """The limit of a micro-batch."""

    class ReadAllAvailable(ReadLimit):  # type: ignore[no-redef]
        """All available rows."""

    @dataclass
    class ReadMaxRows(ReadLimit):  # type: ignore[no-redef]
        """At most ``max_rows`` rows."""

        max_rows: int

    @dataclass
    class ReadMaxBytes(ReadLimit):  # type: ignore[no-redef]
        """At most ``max_bytes`` bytes."""

        max_bytes: int

    @dataclass
    class ReadMinRows(ReadLimit):  # type: ignore[no-redef]
        """At least ``min_rows`` rows."""

        min_rows: int

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """A placeholder that this version of PySpark ignores."""


try:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
except ImportError:
    # PySpark 4.0 passes Arrow batches to subclasses of DataSourceArrowWriter only, also in a streaming query.
    class DataSourceStreamArrowWriter(DataSourceStreamWriter, DataSourceArrowWriter):  # type: ignore[no-redef,misc]
        """A writer that takes the Arrow batches of a streaming query."""


VERSION: str = pyspark.__version__

__all__ = [  # names of PySpark
    "DataSourceStreamArrowWriter",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxBytes",
    "ReadMaxRows",
    "ReadMinRows",
    "SupportsTriggerAvailableNow",
]

logger = logging.getLogger(__name__)


def is_commit_or_abort() -> bool:
    """Return whether Spark started this process to commit or abort a micro-batch that its tasks have written."""
    return "pyspark.sql.worker.python_streaming_sink_runner" in sys.modules


def is_table_creation(context: TaskContext) -> bool:
    """Return whether a task of a batch write belongs to a statement that creates a table, such as ``saveAsTable``.

    Spark does not report the table to a data source. But Spark nests the execution of such a write within another
    execution. It does so for no other write, except within ``foreachBatch``, where tasks have a streaming query's id.
    """
    execution, root = (context.getLocalProperty(f"spark.sql.execution.{name}") for name in ("id", "root.id"))
    streams = context.getLocalProperty("sql.streaming.queryId")
    return execution is not None and root not in (None, execution) and not streams


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema in which Spark takes rows; timestamps are in UTC, which PySpark 4.2 has to be told."""
    from pyspark.sql.pandas.types import to_arrow_schema

    converted: pa.Schema = to_arrow_schema(schema, timezone="UTC") if HAS_READ_LIMITS else to_arrow_schema(schema)
    return converted


def adapt_stream_reader(reader: DataSourceStreamReader) -> DataSourceStreamReader:
    """Adapt a streaming reader, written for PySpark 4.2 and newer, to this version of PySpark."""
    return reader if HAS_READ_LIMITS else RememberingReader(reader)


class RememberingReader(DataSourceStreamReader):
    """A streaming reader for PySpark before 4.2, which does not pass the query's offset: this class remembers it.

    A new query begins at the initial offset, which Spark requests after the latest offset. A restarted query begins at
    the end of the last planned micro-batch, whether it was processed or not: Spark first requests the partitions of an
    empty range there. From then on, each micro-batch begins where the previous one ends.

    Args:
        reader: a reader that takes the offset as an argument.
    """

    def __init__(self, reader: DataSourceStreamReader) -> None:
        self._reader = reader
        self._initial: dict[str, Any] | None = None
        self._last_end: dict[str, Any] | None = None  # the end of the last planned micro-batch
        self._said = Once()

    def initialOffset(self) -> dict[str, Any]:
        """Return the offset at which a new query begins; every call returns the same."""
        if self._initial is None:
            self._initial = self._reader.initialOffset()
        return self._initial

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]
        """Return the end of the next micro-batch."""
        limit = self._reader.getDefaultReadLimit()
        if isinstance(limit, ReadMaxRows | ReadMaxBytes) and self._said.add_if_new():
            if isinstance(limit, ReadMaxRows):
                option, most = "maxOffsetsPerTrigger", limit.max_rows
            else:
                option, most = "maxBytesPerTrigger", limit.max_bytes
            logger.warning(ENDS_AFTER_LIMIT(option=option, limit=most, version=VERSION).with_code)
        start = self._last_end if self._last_end is not None else self.initialOffset()
        self._last_end = self._reader.latestOffset(start, limit)
        return self._last_end

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the partitions of a micro-batch; none for an empty range."""
        if self._last_end is None:
            self._last_end = end
        # An empty range is no micro-batch; Spark may next repeat the micro-batch before it.
        return self._reader.partitions(start, end) if start != end else []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one partition."""
        return self._reader.read(partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Note that a micro-batch was processed."""
        self._reader.commit(end)

    def stop(self) -> None:
        """Release the resources of the reader."""
        self._reader.stop()


def install_sigterm_handler() -> None:
    """Have SIGTERM end this process, a stream reader's, by an exception, so that PySpark calls the reader's ``stop``.

    At the end of a query Spark sends SIGTERM, twice, and no longer reads what the process writes to standard error
    (seen in 4.3). So that the last lines of the log are seen, they go where those of Spark itself go, where the system
    has ``/proc``. A handler of somebody else stays.
    """
    in_main_thread = threading.current_thread() is threading.main_thread()
    if in_main_thread and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _end_process)


def _end_process(number: int, _: object) -> None:
    signal.signal(number, signal.SIG_IGN)  # the second one
    with contextlib.suppress(OSError):
        spark = os.open(f"/proc/{os.getppid()}/fd/2", os.O_WRONLY | os.O_APPEND)
        os.dup2(spark, 2)
        os.close(spark)
    sys.exit(128 + number)
