"""Finding the stream for each row, where a write has several."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from spark_nats.jetstream.streams import StreamInfo
from spark_nats.protocol import bytecolumns
from spark_nats.protocol.documents import printable
from spark_nats.protocol.subject_columns import SubjectMatcher


class Router:
    """Deals rows to the streams that listen on their subjects.

    Args:
        streams: the streams; no two of them listen on one subject.
        subject: the subject of all rows; None for that in their column.
    """

    def __init__(self, streams: Sequence[StreamInfo], subject: str | None) -> None:
        self._matchers = [SubjectMatcher(stream.subjects) for stream in streams]
        self._names = ", ".join(repr(stream.name) for stream in streams)
        self._subject = subject

    def stream_numbers(self, batch: pa.RecordBatch) -> bytecolumns.Positions:
        """Return for each row the number of its stream, -1 where none listens.

        A row without a subject has the number 0: the rules for a single row refuse it.
        """
        if self._subject is not None:
            subjects = bytecolumns.repeat_text(self._subject, batch.num_rows).cast(pa.binary())
        else:
            subjects = batch.column("subject").cast(pa.binary())
        places = np.full(batch.num_rows, -1)
        filled = subjects.fill_null(b"")
        for number, matcher in enumerate(self._matchers):
            places[matcher.match(filled)] = number
        places[bytecolumns.flags_of(subjects.is_null())] = 0
        return places

    def describe_unheard_subject(self, batch: pa.RecordBatch, row: int) -> str:
        """Return the rule that a row breaks whose subject no stream listens on."""
        subject = self._subject or batch.column("subject")[row].as_py()
        return f"is {printable(subject)!r}, on which none of the streams {self._names} listens"
