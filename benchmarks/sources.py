"""Data sources for the benchmarks: what Spark itself allows, and ours with probes in it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from benchmarks import data
from spark_nats.datasource import NatsDataSource
from spark_nats.kinds.queries import parse_read_options
from spark_nats.kinds.streams.read.readers import NatsReader, NatsStreamReader

PROBES = "SPARK_NATS_BENCH_PROBES"
"""Environment variable that names the directory to which probes are written."""
_PAGE = os.sysconf("SC_PAGE_SIZE")


# What the engine allows


class ReadyRows(DataSource):
    """Gives the same rows over and over. Options: ``rows`` in a partition, ``partitions``."""

    @classmethod
    def name(cls) -> str:
        return "bench_rows"

    def schema(self) -> str:
        return "subject STRING, payload BINARY, sequence BIGINT"

    def reader(self, schema: StructType) -> DataSourceReader:
        return _ReadyReader(int(self.options["rows"]), int(self.options["partitions"]))


class _ReadyReader(DataSourceReader):
    def __init__(self, rows: int, partitions: int) -> None:
        self._rows = rows
        self._partitions = partitions

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(i) for i in range(self._partitions)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        size = 10_000
        subjects, payloads = data.columns(size, 128)
        batch = pa.RecordBatch.from_pydict(
            {"subject": subjects, "payload": payloads, "sequence": pa.array(range(size))}
        )
        for rows in data.slices(self._rows, size):
            yield batch.slice(0, rows.stop - rows.start)


class BytesOfFile(DataSource):
    """Gives a row for each byte of a local file, and asks nobody: what any source in Python takes. Option: ``path``."""

    @classmethod
    def name(cls) -> str:
        return "bench_bytes"

    def schema(self) -> str:
        return "sequence BIGINT"

    def reader(self, schema: StructType) -> DataSourceReader:
        return _BytesReader(self.options["path"])

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return _BytesStreamReader(self.options["path"])


class _BytesReader(DataSourceReader):
    def __init__(self, path: str) -> None:
        self._path = path

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(Path(self._path).stat().st_size)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _numbers(partition)


class _BytesStreamReader(DataSourceStreamReader):
    def __init__(self, path: str) -> None:
        self._path = path

    def initialOffset(self) -> dict[str, Any]:
        return {"next": 0}

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]  # as before PySpark 4.2
        return {"next": Path(self._path).stat().st_size}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        return [InputPartition(end["next"] - start["next"])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _numbers(partition)


def _numbers(partition: InputPartition) -> Iterator[pa.RecordBatch]:
    yield pa.RecordBatch.from_pydict({"sequence": pa.array(range(partition.value))})


class ThrowAway(DataSource):
    """Takes rows as Arrow batches and drops them."""

    @classmethod
    def name(cls) -> str:
        return "bench_drop"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        return _DropWriter()


class _DropWriter(DataSourceArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()


# Ours, with probes


class ProbedNats(NatsDataSource):
    """The format ``nats``, writing down what its parts take. Each probe is a line of JSON in a file of the process."""

    @classmethod
    def name(cls) -> str:
        return "bench_nats"

    def reader(self, schema: StructType) -> DataSourceReader:
        return _ProbedReader(parse_read_options(self.options, streaming=False), schema)

    def streamReader(self, schema: StructType) -> NatsStreamReader:
        return _ProbedStreamReader(parse_read_options(self.options, streaming=True), schema)


class _ProbedReader(NatsReader):
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        first = peak = 0.0
        rows = 0
        for batch in super().read(partition):
            resident = _resident_megabytes()
            first = first or resident
            peak = max(peak, resident)
            rows += batch.num_rows
            yield batch
        _write("memory", first=first, peak=peak, last=_resident_megabytes(), rows=rows)


class _ProbedStreamReader(NatsStreamReader):
    def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:
        with _timing("latestOffset"):
            return super().latestOffset(start, limit)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        with _timing("partitions"):
            return super().partitions(start, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        with _timing("read"):
            yield from super().read(partition)


@contextmanager
def _timing(what: str) -> Iterator[None]:
    at, began = time.time(), time.perf_counter()
    try:
        yield
    finally:
        _write(what, at=at, ms=(time.perf_counter() - began) * 1000)


def _resident_megabytes() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE / 1e6


def _write(what: str, **values: float) -> None:
    path = Path(os.environ[PROBES], f"{os.getpid()}.jsonl")
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps({"what": what, **values}) + "\n")


def read_probes(directory: str) -> list[dict[str, Any]]:
    """Return all probes."""
    files = Path(directory).glob("*.jsonl")
    return [json.loads(line) for file in files for line in file.read_text(encoding="utf-8").splitlines()]
