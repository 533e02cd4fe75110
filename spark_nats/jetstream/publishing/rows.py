"""Holds rows on their way to a stream, as columns, in parts; a queue is a list of parts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter, methodcaller
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_nats.client.publishing import cut_into_parts
from spark_nats.protocol.bytecolumns import Mask, Positions, booleans, byte_strings


class Rows(NamedTuple):
    """A part of the rows on their way, in the order they were given."""

    numbers: Positions  # of the rows, in the order they were given
    subjects: pa.Array  # string column without null
    payloads: pa.Array  # string or binary column without null
    headers: pa.Array | None  # binary column of header blocks, null where a row has none; None when no row has one
    ids: pa.Array | None  # their message ids; None unless every row has one
    since: float = 0.0  # when they were first sent, by :func:`clock.monotonic`; 0 before
    after: int = 0  # a sequence that the stream had given before they were first sent
    again: bool = False  # whether an earlier send may have stored them already
    conditional: bool = False  # whether they name the last message that their subject must have

    @property
    def size(self) -> int:
        """How many rows there are."""
        return len(self.numbers)

    def take(self, chosen: slice | Mask) -> Rows:
        """Return the chosen rows."""
        pick = itemgetter(chosen) if isinstance(chosen, slice) else methodcaller("filter", booleans(chosen))
        subjects, payloads, headers, ids = (None if column is None else pick(column) for column in self[1:5])
        return Rows(self.numbers[chosen], subjects, payloads, headers, ids, *self[5:])

    @classmethod
    def together(cls, parts: Sequence[Rows]) -> Rows:
        """Return parts as one, of rows that are to be sent for the first time."""
        subjects, payloads, _, ids = zip(*(part[1:5] for part in parts), strict=True)
        blocks = [pa.nulls(part.size, pa.binary()) if part.headers is None else part.headers for part in parts]
        numbers = np.concatenate([part.numbers for part in parts])
        all_ids = None if any(each is None for each in ids) else pa.concat_arrays(ids)
        return cls(numbers, pa.concat_arrays(subjects), pa.concat_arrays(payloads), pa.concat_arrays(blocks), all_ids)

    def header(self, i: int) -> bytes:
        """Return the header block of one row; empty when it has none."""
        return b"" if self.headers is None else self.headers[i].as_py() or b""

    def with_headers(self, headers: Mapping[int, bytes]) -> Rows:
        """Return the rows with the header blocks of some replaced, by their numbers."""
        others = [headers[number] for number in self.numbers.tolist() if number in headers] if headers else []
        if not others:
            return self
        changed = booleans(np.isin(self.numbers, list(headers)))
        return self._replace(headers=pc.replace_with_mask(self.headers, changed, byte_strings(others)))


def count_of(parts: Iterable[Rows]) -> int:
    """Return how many rows the parts have."""
    return sum(rows.size for rows in parts)


def cut(queue: list[Rows], most: int) -> Rows:
    """Take the next rows to send out of a queue: at most ``most`` rows and about a MiB, at least one row."""
    rows = queue[0]
    part = rows.take(slice(most))
    part = part.take(next(cut_into_parts(part.payloads, part.headers, most)))
    queue[:1] = [rows.take(slice(part.size, None))] if part.size < rows.size else []
    return part
