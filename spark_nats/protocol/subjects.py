"""What a subject may be, and which subjects a filter matches.

The rules are those of the protocol's conventions: tokens separated by ``.``, none empty, no white space; ``*`` stands
for one token and ``>`` for one or more at the end, each alone in its token. Subjects may be any UTF-8. Control
characters are refused too: a CR or LF would end the line and begin another command.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from spark_nats.protocol.bytecolumns import Positions, packed

_NOT_LITERAL = re.compile(r"[\x00-\x20\x7f*>]")
_NOT_FILTER = re.compile(r"[\x00-\x20\x7f]")
_NOT_NAME = re.compile(r"[\x00-\x20\x7f.*>/\\]")

_FORBIDDEN = np.zeros(256, np.bool_)
_FORBIDDEN[:0x21] = True
_FORBIDDEN[[0x7F, ord("*"), ord(">")]] = True
_DOT = ord(".")


class Violation(NamedTuple):
    """The first row of a column that breaks a rule."""

    row: int
    rule: str


def subject_violation(subject: str) -> str | None:
    """Say why a message cannot be published to ``subject``; None when it can."""
    if not subject:
        return "is empty"
    if _NOT_LITERAL.search(subject):
        return "contains white space, a control character or a wildcard (* or >)"
    if "" in subject.split("."):
        return "has an empty token (a dot at its beginning or end, or two in a row)"
    return None


def filter_violation(subject: str) -> str | None:
    """Say why ``subject`` cannot be subscribed to or used as a filter; None when it can."""
    if not subject:
        return "is empty"
    if _NOT_FILTER.search(subject):
        return "contains white space or a control character"
    tokens = subject.split(".")
    if "" in tokens:
        return "has an empty token (a dot at its beginning or end, or two in a row)"
    for i, token in enumerate(tokens):
        if token == ">" and i < len(tokens) - 1:
            return "has the wildcard > before its last token"
        if len(token) > 1 and ("*" in token or ">" in token):
            return f"has a wildcard inside the token {token!r}; a wildcard must be a token of its own"
    return None


def name_violation(name: str) -> str | None:
    """Say why ``name`` cannot name a stream or a consumer (ADR-6: no dot, wildcard, slash or white space)."""
    if not name:
        return "is empty"
    if _NOT_NAME.search(name):
        return "contains white space, a control character or one of . * > / \\"
    return None


def queue_violation(queue: str) -> str | None:
    """Say why ``queue`` cannot name a queue group; None when it can."""
    if not queue:
        return "is empty"
    if _NOT_FILTER.search(queue):
        return "contains white space or a control character"
    return None


def matches(subject_filter: str, subject: str) -> bool:
    """Tell whether a valid filter matches a literal subject."""
    wanted, tokens = subject_filter.split("."), subject.split(".")
    for i, token in enumerate(wanted):
        if token == ">":
            return len(tokens) > i
        if i >= len(tokens) or token not in ("*", tokens[i]):
            return False
    return len(wanted) == len(tokens)


def overlap(one: str, other: str) -> bool:
    """Tell whether some subject is matched by both of two valid filters."""
    first, second = one.split("."), other.split(".")
    for a, b in zip(first, second, strict=False):
        if ">" in (a, b):
            return True
        if a != b and "*" not in (a, b):
            return False
    return len(first) == len(second)


def find_subject_violation(subjects: pa.Array) -> Violation | None:
    """Find the first row of a string column that is no literal subject, and say why.

    A null is not judged: whether it may stand there is not a rule of subjects.
    """
    data, offsets = packed(subjects)
    starts, ends = offsets[:-1], offsets[1:]

    def row_of(position: Positions) -> Positions:
        return np.searchsorted(ends, position, "right")

    wrong = starts == ends
    wrong[row_of(np.flatnonzero(_FORBIDDEN[data]))] = True
    dots = np.flatnonzero(data == _DOT)
    is_edge = np.zeros(len(data) + 1, np.bool_)
    is_edge[offsets] = True
    doubled = dots[1:][np.diff(dots) == 1]
    wrong[row_of(dots[is_edge[dots] | is_edge[dots + 1]])] = True
    wrong[row_of(doubled)] = True
    if subjects.null_count:
        wrong &= np.asarray(subjects.is_valid())
    if not wrong.any():
        return None
    row = int(wrong.argmax())
    return Violation(row, subject_violation(subjects[row].as_py()) or "")
