"""What a bucket held at one moment, as rows: kept until it is known which entries those are.

All entries that were read wait in a temporary file, as Arrow batches. Memory has the subject and the revision of each.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Set
from types import TracebackType
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StructType

from spark_nats.jetstream.reading.delivering import Delivered
from spark_nats.kinds.buckets.as_of import held_at
from spark_nats.kinds.buckets.key_columns import operations_of
from spark_nats.kinds.streams.read.columns import EntryBuilder
from spark_nats.protocol.bytecolumns import Mask, Positions, booleans, flags_of, strings
from spark_nats.sparkapi import arrow_schema

IN_MEMORY = 32 << 20  # bytes of rows up to which there is no file


class HeldEntries:
    """Entries of a bucket, of which some become rows.

    Args:
        schema: the columns.
        bucket: which bucket.
        ignore_deletes: whether deletions become no rows.
    """

    def __init__(self, schema: StructType, bucket: str, ignore_deletes: bool) -> None:
        self._rows = EntryBuilder(schema, bucket, ignore_deletes=False)
        self._bucket = bucket
        self._ignore_deletes = ignore_deletes
        self._file: Any = tempfile.SpooledTemporaryFile(IN_MEMORY)  # noqa: SIM115 - closed by __exit__
        self._writer = pa.ipc.new_stream(self._file, arrow_schema(schema))
        self._subjects: list[pa.BinaryArray] = [pa.array([], pa.binary())]
        self._sequences: list[Positions] = [np.empty(0, np.int64)]
        self._deletions: list[Mask] = [np.empty(0, np.bool_)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._file.close()

    def add(self, delivered: Delivered) -> None:
        """Keep entries."""
        messages, deliveries = delivered
        self._writer.write_batch(self._rows.build(delivered, self._bucket))
        self._subjects.append(messages.gather(messages.subject))
        self._sequences.append(deliveries.stream_sequences())
        if self._ignore_deletes:
            self._deletions.append(operations_of(messages).deletions)

    def rows_at(self, revision: int, without: Set[bytes] = frozenset()) -> Iterator[pa.RecordBatch]:
        """Yield what the bucket held at a revision, without the keys of some subjects."""
        self._writer.close()
        subjects = pa.chunked_array(self._subjects, pa.binary())
        chosen = held_at(revision, subjects, np.concatenate(self._sequences))
        if self._ignore_deletes:
            chosen &= ~np.concatenate(self._deletions)
        if without:
            others = strings(sorted(without))
            chosen &= ~np.concatenate([flags_of(pc.is_in(each, others)) for each in self._subjects])
        self._file.seek(0)
        start = 0
        for batch in pa.ipc.open_stream(self._file):
            some = chosen[start : start + batch.num_rows]
            start += batch.num_rows
            if some.any():
                yield batch.filter(booleans(some))
