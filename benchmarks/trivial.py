"""A data source that does nothing, in pure Python: what Spark itself costs, whatever a source does.

It imports nothing that Spark's own Python processes do not have already.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
    WriterCommitMessage,
)

ROWS = 10


class Trivial(DataSource):
    """Reads ten constant rows, or a stream of as many rows as a file has bytes; drops what is written.

    Options: ``rows``, the file, for a stream.
    """

    @classmethod
    def name(cls) -> str:
        return "bench_trivial"

    def schema(self) -> str:
        return "subject STRING, payload BINARY"

    def reader(self, schema: Any) -> DataSourceReader:
        return _Reader()

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        return _StreamReader(Path(self.options["rows"]))

    def writer(self, schema: Any, overwrite: bool) -> DataSourceWriter:
        return _Writer()

    def streamWriter(self, schema: Any, overwrite: bool) -> DataSourceStreamWriter:
        return _StreamWriter()


def _rows(count: int) -> Iterator[tuple[str, bytes]]:
    return (("any.subject", b"x") for _ in range(count))


class _Reader(DataSourceReader):
    def partitions(self) -> list[InputPartition]:
        return [InputPartition(ROWS)]

    def read(self, partition: InputPartition) -> Iterator[tuple[str, bytes]]:
        return _rows(partition.value)


class _StreamReader(DataSourceStreamReader):
    def __init__(self, file: Path) -> None:
        self._file = file

    def initialOffset(self) -> dict[str, Any]:
        return {"rows": 0}

    def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:
        return {"rows": self._file.stat().st_size}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        return [InputPartition(end["rows"] - start["rows"])]

    def read(self, partition: InputPartition) -> Iterator[tuple[str, bytes]]:
        return _rows(partition.value)


def _drop(rows: Iterator[Any]) -> WriterCommitMessage:
    for _ in rows:
        pass
    return WriterCommitMessage()


class _Writer(DataSourceWriter):
    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return _drop(iterator)


class _StreamWriter(DataSourceStreamWriter):
    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return _drop(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        pass
