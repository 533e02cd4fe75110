"""What differs between the versions of PySpark. Nothing else knows that there are several.

=====  ==============================================================================================================
since  what is new
=====  ==============================================================================================================
4.0    Python data sources; Arrow batches for writers of batches
4.1    Arrow batches for writers of streaming queries
4.2    a streaming reader is told where the query is and how much it may take, and reads what there is in several
       micro-batches with ``Trigger.AvailableNow``
=====  ==============================================================================================================
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyspark
from pyspark import TaskContext
from pyspark.sql import datasource
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from spark_nats.conditions.kinds import ENDS_AFTER_LIMIT

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
        """How much a micro-batch may have."""

    class ReadAllAvailable(ReadLimit):  # type: ignore[no-redef]
        """Whatever there is."""

    @dataclass
    class ReadMaxRows(ReadLimit):  # type: ignore[no-redef]
        """At most so many rows."""

        max_rows: int

    @dataclass
    class ReadMaxBytes(ReadLimit):  # type: ignore[no-redef]
        """At most so many bytes."""

        max_bytes: int

    @dataclass
    class ReadMinRows(ReadLimit):  # type: ignore[no-redef]
        """At least so many rows."""

        min_rows: int

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """What Spark does not look for."""


try:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
except ImportError:
    # PySpark 4.0 looks at one class only to tell who takes Arrow batches, also where it writes a streaming query.
    class DataSourceStreamArrowWriter(  # type: ignore[no-redef,misc]
        datasource.DataSourceStreamWriter, DataSourceArrowWriter
    ):
        """Takes Arrow batches of a streaming query."""


VERSION: str = pyspark.__version__

__all__ = [  # of PySpark's own
    "DataSourceStreamArrowWriter",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxBytes",
    "ReadMaxRows",
    "ReadMinRows",
    "SupportsTriggerAvailableNow",
]

logger = logging.getLogger(__name__)


def ends_a_micro_batch() -> bool:
    """Tell whether Spark has begun this process to commit or to abort what tasks have written already."""
    return "pyspark.sql.worker.python_streaming_sink_runner" in sys.modules


def makes_a_table(context: TaskContext) -> bool:
    """Tell whether a task of a batch write belongs to a statement that makes a table, such as ``saveAsTable``.

    Spark tells a data source nothing of the table. But it runs such a write as an execution within another one, and no
    other write, except within ``foreachBatch``.
    """
    execution, root = (context.getLocalProperty(f"spark.sql.execution.{name}") for name in ("id", "root.id"))
    streams = context.getLocalProperty("sql.streaming.queryId")
    return execution is not None and root not in (None, execution) and not streams


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema in which Spark takes rows; timestamps are in UTC."""
    from pyspark.sql.pandas.types import to_arrow_schema

    converted: pa.Schema = to_arrow_schema(schema, timezone="UTC") if HAS_READ_LIMITS else to_arrow_schema(schema)
    return converted


def stream_reader(reader: DataSourceStreamReader) -> DataSourceStreamReader:
    """Return a streaming reader, written for PySpark 4.2 and newer, as this PySpark wants it."""
    return reader if HAS_READ_LIMITS else RememberingReader(reader)


class RememberingReader(DataSourceStreamReader):
    """A streaming reader as PySpark before 4.2 wants it: it is not told where the query is, and remembers it.

    A query begins at the initial offset, which Spark asks for when it has asked for the latest one. One that is started
    again begins at the end of the last micro-batch that was planned, whether it was processed or not: before anything
    else Spark asks for the partitions of an empty range there. From then on each micro-batch begins where the one
    before it ends.

    Args:
        reader: one that has to be told.
    """

    def __init__(self, reader: DataSourceStreamReader) -> None:
        self._reader = reader
        self._initial: dict[str, Any] | None = None
        self._planned: dict[str, Any] | None = None  # where the last micro-batch ends
        self._warned = False

    def initialOffset(self) -> dict[str, Any]:
        """Return where a new query begins, the same each time."""
        if self._initial is None:
            self._initial = self._reader.initialOffset()
        return self._initial

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]
        """Return how far the next micro-batch goes."""
        limit = self._reader.getDefaultReadLimit()
        if isinstance(limit, ReadMaxRows | ReadMaxBytes) and not self._warned:
            self._warned = True
            if isinstance(limit, ReadMaxRows):
                option, most = "maxOffsetsPerTrigger", limit.max_rows
            else:
                option, most = "maxBytesPerTrigger", limit.max_bytes
            logger.warning(ENDS_AFTER_LIMIT(option=option, limit=most, version=VERSION).with_code)
        start = self._planned if self._planned is not None else self.initialOffset()
        self._planned = self._reader.latestOffset(start, limit)
        return self._planned

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Plan a micro-batch."""
        if self._planned is None:
            self._planned = end
        # An empty range is no micro-batch, and the query may yet have to go back before it.
        return self._reader.partitions(start, end) if start != end else []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one partition."""
        return self._reader.read(partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Take note that a micro-batch was processed."""
        self._reader.commit(end)

    def stop(self) -> None:
        """Let go of what is open."""
        self._reader.stop()
