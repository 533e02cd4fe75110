"""The rules of :mod:`.subjects` for columns: which rows break one, and which a filter matches."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_nats.protocol import bytecolumns
from spark_nats.protocol.subjects import Shape, shape_and_tokens, subject_violation

_FORBIDDEN = np.zeros(256, np.bool_)
_FORBIDDEN[:0x21] = True
_FORBIDDEN[[0x7F, ord("*"), ord(">")]] = True
_DOT = ord(".")
_DOT_BYTES = bytecolumns.byte_strings([b"."])[0]


@dataclass(frozen=True)
class Violation:
    """Rows of a column that break a rule.

    Attributes:
        wrong: a mask of these rows, at least one.
        say: returns the rule that a row breaks.
    """

    wrong: bytecolumns.Mask
    say: Callable[[int], str]

    @property
    def row(self) -> int:
        """The first of these rows."""
        return int(self.wrong.argmax())

    @property
    def rule(self) -> str:
        """The rule that the first of these rows breaks."""
        return self.say(self.row)


def violation_or_none(wrong: bytecolumns.Mask, rule: str) -> Violation | None:
    """Return the violation of a rule by the rows of a mask; None when the mask has no row."""
    return Violation(wrong, lambda _: rule) if wrong.any() else None


_FEW = 8  # comparisons of beginnings that take less time together than finding the tokens of a subject


class SubjectMatcher:
    """Finds the subjects in a column that one of several filters matches: :func:`.covers` for columns.

    Filters with the same number of tokens, and the same wildcards in the same places, share one hash table of their
    literal tokens. So the cost depends on the number of such shapes, and hardly on the number of filters. Filters that
    are a literal beginning, such as ``orders.>``, are compared one by one while they are few, which needs no tokens.
    The benchmark's row "codec: subject filters, matched here" guards the cost.

    Args:
        filters: valid filters, which may overlap.
    """

    def __init__(self, filters: Iterable[str]) -> None:
        literals: list[bytes] = []
        shaped: dict[Shape, list[bytes]] = {}
        for each in filters:
            shape, tokens = shape_and_tokens(each)
            key = ".".join(token for token in tokens if token != "*").encode()
            if shape.is_open or shape.stars:
                shaped.setdefault(shape, []).append(key)
            else:
                literals.append(key)
        self._literals = bytecolumns.byte_strings(literals)
        self._beginnings: list[bytes] = []
        self._shaped: list[tuple[Shape, pa.BinaryArray]] = []
        for shape, keys in shaped.items():
            if shape.is_open and not shape.stars and len(keys) <= _FEW:
                self._beginnings += [key + b"." if key else b"" for key in keys]
            else:
                self._shaped.append((shape, bytecolumns.byte_strings(keys)))

    def match(self, subjects: pa.BinaryArray) -> bytecolumns.Mask:
        """Return a mask of the subjects that a filter matches.

        Args:
            subjects: literal subjects as they were received: any bytes, UTF-8 or not, and no nulls.
        """
        matched: bytecolumns.Mask = np.zeros(len(subjects), np.bool_)
        if len(self._literals):
            matched |= bytecolumns.flags_of(pc.is_in(subjects, self._literals))
        for beginning in self._beginnings:
            matched |= bytecolumns.flags_of(pc.starts_with(subjects, beginning))
        if self._shaped:
            data, offsets = bytecolumns.bytes_and_offsets_of(subjects)
            dots = bytecolumns.find_separators(data == _DOT, offsets)
            for shape, keys in self._shaped:
                matched |= _match_shape(shape, keys, data, offsets, dots)
        return matched


def _match_shape(
    shape: Shape,
    keys: pa.BinaryArray,
    data: bytecolumns.Bytes,
    offsets: bytecolumns.Positions,
    dots: bytecolumns.Separators,
) -> bytecolumns.Mask:
    """Return a mask of the subjects of this shape whose tokens besides its wildcards, joined, are in ``keys``."""
    matched: bytecolumns.Mask = dots.per_row >= shape.tokens if shape.is_open else dots.per_row == shape.tokens - 1
    parts = []
    for first, stop in shape.literal_runs():
        start = dots.positions_of(first - 1) + 1 if first else offsets[:-1]
        end = dots.positions_of(stop - 1) if shape.is_open or stop < shape.tokens else offsets[1:]
        parts.append(bytecolumns.gather(data, start[matched], end[matched]))
    if parts:
        found = pc.is_in(parts[0] if len(parts) == 1 else pc.binary_join_element_wise(*parts, _DOT_BYTES), keys)
        matched[matched] = bytecolumns.flags_of(found)
    return matched


def find_subject_violation(subjects: pa.Array) -> Violation | None:
    """Return the rows of a string column that are not a literal subject, and the rule that they break.

    The result is None when there are no such rows. Nulls pass: whether a row may be null is not a rule of subjects.
    """
    return find_violation(subjects, have_wrong_tokens(subjects, _FORBIDDEN), subject_violation)


def have_wrong_tokens(values: pa.Array, forbidden: bytecolumns.Mask) -> bytecolumns.Mask:
    """Return a mask of the rows of a string column that are empty, or have an empty token or a ``forbidden`` byte."""
    data, offsets = bytecolumns.bytes_and_offsets_of(values)
    dots = np.flatnonzero(data == _DOT)
    is_edge = np.zeros(len(data) + 1, np.bool_)
    is_edge[offsets] = True
    marked = (np.flatnonzero(forbidden[data]), dots[is_edge[dots] | is_edge[dots + 1]], dots[1:][np.diff(dots) == 1])
    wrong: bytecolumns.Mask = bytecolumns.rows_with(np.concatenate(marked), offsets) | (offsets[:-1] == offsets[1:])
    return wrong


def find_violation(values: pa.Array, wrong: bytecolumns.Mask, say: Callable[[str], str | None]) -> Violation | None:
    """Return the wrong rows that are not null, with the rule that ``say`` returns; None without any."""
    if values.null_count:
        wrong = wrong & bytecolumns.flags_of(values.is_valid())
    return Violation(wrong, lambda row: say(values[row].as_py()) or "") if wrong.any() else None
