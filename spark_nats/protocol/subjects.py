"""The rules of subjects and filters, and which subjects a filter matches.

The rules are those of the protocol's conventions: tokens separated by ``.``, none empty, no white space; ``*`` stands
for one token and ``>`` for one or more at the end, each alone in its token. Subjects may be any UTF-8. Control
characters are refused too, because a CR or LF would end the line and begin another command. The same rules for whole
columns are in :mod:`.subject_columns`, which costs more to import.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

INBOX_PREFIX = "_INBOX"  # default prefix of the subjects on which clients await answers
EMPTY_TOKEN = "has an empty token (a dot at its beginning or end, or two in a row)"
_NOT_LITERAL = re.compile(r"[\x00-\x20\x7f*>]")
_NOT_FILTER = re.compile(r"[\x00-\x20\x7f]")
_NOT_NAME = re.compile(r"[\x00-\x20\x7f.*>/\\]")


def subject_violation(subject: str) -> str | None:
    """Return why a message cannot be published to ``subject``; None when it can."""
    if violation := _violation(subject, _NOT_LITERAL, "white space, a control character or a wildcard (* or >)"):
        return violation
    return EMPTY_TOKEN if "" in subject.split(".") else None


def filter_violation(subject: str) -> str | None:
    """Return why ``subject`` cannot be subscribed to or used as a filter; None when it can."""
    if violation := _violation(subject, _NOT_FILTER, "white space or a control character"):
        return violation
    tokens = subject.split(".")
    if "" in tokens:
        return EMPTY_TOKEN
    for i, token in enumerate(tokens):
        if token == ">" and i < len(tokens) - 1:
            return "has the wildcard > before its last token"
        if len(token) > 1 and ("*" in token or ">" in token):
            return f"has a wildcard inside the token {token!r}; a wildcard must be a token of its own"
    return None


def name_violation(name: str) -> str | None:
    """Return why ``name`` cannot name a stream or consumer (ADR-6: no . * > slash or white space); None when it can."""
    return _violation(name, _NOT_NAME, "white space, a control character or one of . * > / \\")


def queue_violation(queue: str) -> str | None:
    """Return why ``queue`` cannot name a queue group; None when it can."""
    return _violation(queue, _NOT_FILTER, "white space or a control character")


def _violation(text: str, forbidden: re.Pattern[str], what: str) -> str | None:
    if not text:
        return "is empty"
    return f"contains {what}" if forbidden.search(text) else None


def overlap(one: str, other: str) -> bool:
    """Return whether some subject matches both of two valid filters."""
    first, second = one.split("."), other.split(".")
    for a, b in zip(first, second, strict=False):
        if ">" in (a, b):
            return True
        if a != b and "*" not in (a, b):
            return False
    return len(first) == len(second)


def first_overlap(filters: Iterable[str]) -> tuple[str, str] | None:
    """Return two valid filters that overlap; None when all are disjoint.

    A tree of tokens holds the filters, so each one is compared only with those that begin like it.
    """
    root = _Node()
    for each in filters:
        tokens = each.split(".")
        if (other := _overlapping(root, tokens)) is not None:
            return other, each
        node = root
        for token in tokens:
            node = node.below.setdefault(token, _Node())
        node.ends = each
    return None


class _Node:
    """The filters that agree in their tokens so far."""

    __slots__ = ("below", "ends")

    def __init__(self) -> None:
        self.below: dict[str, _Node] = {}
        self.ends: str | None = None  # the filter that has no more tokens


def _overlapping(root: _Node, tokens: list[str]) -> str | None:
    """Return a filter in a tree that overlaps the filter of these tokens; None when none does."""
    to_look_at = [(root, 0)]
    while to_look_at:
        node, i = to_look_at.pop()
        if i == len(tokens):
            if node.ends is not None:
                return node.ends
        elif ">" in node.below:
            return node.below[">"].ends
        elif tokens[i] == ">" and node.below:
            while node.below:
                node = next(iter(node.below.values()))
            return node.ends
        else:
            below = node.below if tokens[i] == "*" else {tokens[i], "*"} & node.below.keys()
            to_look_at += [(node.below[token], i + 1) for token in below]
    return None


def covers(one: str, other: str) -> bool:
    """Return whether a valid filter matches every subject that another one matches."""
    wider, narrower = one.split("."), other.split(".")
    for i, token in enumerate(wider):
        if token == ">":
            return len(narrower) > i
        if i >= len(narrower) or narrower[i] == ">" or token not in ("*", narrower[i]):
            return False
    return len(wider) == len(narrower)
