"""The rules of :mod:`.subjects` for columns: which rows break one, and which a filter matches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_nats.protocol.bytecolumns import (
    Bytes,
    Fields,
    Mask,
    Positions,
    flags_of,
    gather,
    packed,
    rows_with,
    split,
    strings,
)
from spark_nats.protocol.subjects import subject_violation

_FORBIDDEN = np.zeros(256, np.bool_)
_FORBIDDEN[:0x21] = True
_FORBIDDEN[[0x7F, ord("*"), ord(">")]] = True
_DOT = ord(".")
_POINT = strings([b"."])[0]


@dataclass(frozen=True)
class Violation:
    """Rows of a column that break a rule.

    Attributes:
        wrong: which rows do, at least one.
        say: says which rule a row breaks.
    """

    wrong: Mask
    say: Callable[[int], str]

    @property
    def row(self) -> int:
        """The first one."""
        return int(self.wrong.argmax())

    @property
    def rule(self) -> str:
        """What the first one breaks."""
        return self.say(self.row)


class _Shape(NamedTuple):
    """What filters have in common whose wildcards stand in the same places."""

    tokens: int  # how many there are before a last ``>``
    is_open: bool  # whether ``>`` is the last token
    stars: tuple[int, ...]  # the numbers of the tokens that are ``*``

    def runs(self) -> Iterator[tuple[int, int]]:
        """Return the number of the first token and of that behind the last, for each run of literal tokens."""
        for before, star in pairwise((-1, *self.stars, self.tokens)):
            if before + 1 < star:
                yield before + 1, star


_FEW = 8  # so many comparisons of beginnings take less time than it takes to find the tokens of a subject


class SubjectMatcher:
    """Tells of every subject in a column whether one of several filters matches it: :func:`matches` for columns.

    Filters whose wildcards stand in the same places are looked up together, in one hash table of their literal tokens.
    So the cost depends on how many such shapes there are, and hardly on the number of filters. Filters that are a
    literal beginning, such as ``orders.>``, are compared one by one while they are few: that needs no look at tokens.
    The benchmark's row "codec: subject filters, matched here" guards the cost.

    Args:
        filters: valid ones. They may overlap.
    """

    def __init__(self, filters: Iterable[str]) -> None:
        literals: list[bytes] = []
        shaped: dict[_Shape, list[bytes]] = {}
        for each in filters:
            tokens = each.split(".")
            is_open = tokens[-1] == ">"
            if is_open:
                tokens.pop()
            stars = tuple(i for i, token in enumerate(tokens) if token == "*")
            key = ".".join(token for token in tokens if token != "*").encode()
            if is_open or stars:
                shaped.setdefault(_Shape(len(tokens), is_open, stars), []).append(key)
            else:
                literals.append(key)
        self._literals = strings(literals)
        self._beginnings: list[bytes] = []
        self._shaped: list[tuple[_Shape, pa.BinaryArray]] = []
        for shape, keys in shaped.items():
            if shape.is_open and not shape.stars and len(keys) <= _FEW:
                self._beginnings += [key + b"." if key else b"" for key in keys]
            else:
                self._shaped.append((shape, strings(keys)))

    def match(self, subjects: pa.BinaryArray) -> Mask:
        """Return for each subject whether a filter matches it.

        Args:
            subjects: literal subjects as they were received: any bytes, UTF-8 or not, and no nulls.
        """
        matched: Mask = np.zeros(len(subjects), np.bool_)
        if len(self._literals):
            matched |= flags_of(pc.is_in(subjects, self._literals))
        for beginning in self._beginnings:
            matched |= flags_of(pc.starts_with(subjects, beginning))
        if self._shaped:
            data, offsets = packed(subjects)
            dots = split(data == _DOT, offsets)
            for shape, keys in self._shaped:
                matched |= _match_shape(shape, keys, data, offsets, dots)
        return matched


def _match_shape(shape: _Shape, keys: pa.BinaryArray, data: Bytes, offsets: Positions, dots: Fields) -> Mask:
    """Return for each subject whether it has so many tokens, and those of them that are literal are in ``keys``."""
    matched: Mask = dots.per_row >= shape.tokens if shape.is_open else dots.per_row == shape.tokens - 1
    parts = []
    for first, behind in shape.runs():
        start = dots.at(first - 1) + 1 if first else offsets[:-1]
        end = dots.at(behind - 1) if shape.is_open or behind < shape.tokens else offsets[1:]
        parts.append(gather(data, start[matched], end[matched]))
    if parts:
        found = pc.is_in(parts[0] if len(parts) == 1 else pc.binary_join_element_wise(*parts, _POINT), keys)
        matched[matched] = flags_of(found)
    return matched


def find_subject_violation(subjects: pa.Array) -> Violation | None:
    """Find the rows of a string column that are not a literal subject, and say why.

    A null is not judged: whether it may stand there is not a rule of subjects.
    """
    return find_violation(subjects, have_wrong_tokens(subjects, _FORBIDDEN), subject_violation)


def have_wrong_tokens(values: pa.Array, forbidden: Mask) -> Mask:
    """Tell which rows of a string column are empty, or have an empty token or a byte that ``forbidden`` marks."""
    data, offsets = packed(values)
    dots = np.flatnonzero(data == _DOT)
    is_edge = np.zeros(len(data) + 1, np.bool_)
    is_edge[offsets] = True
    marked = (np.flatnonzero(forbidden[data]), dots[is_edge[dots] | is_edge[dots + 1]], dots[1:][np.diff(dots) == 1])
    wrong: Mask = rows_with(np.concatenate(marked), offsets) | (offsets[:-1] == offsets[1:])
    return wrong


def find_violation(values: pa.Array, wrong: Mask, say: Callable[[str], str | None]) -> Violation | None:
    """Return the rows of a string column that are wrong, and what is said of their values. Nulls are not judged."""
    if values.null_count:
        wrong = wrong & flags_of(values.is_valid())
    return Violation(wrong, lambda row: say(values[row].as_py()) or "") if wrong.any() else None
