"""The rules of subjects and filters: what a filter matches, and what a stream's ``subject_transform`` makes of it.

The rules are those of the protocol's conventions: tokens separated by ``.``, none empty, no white space; ``*`` stands
for one token and ``>`` for one or more at the end, each alone in its token. Subjects may be any UTF-8. Control
characters are refused too, because a CR or LF would end the line and begin another command. The same rules for whole
columns are in :mod:`.subject_columns`, which costs more to import.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import NamedTuple

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


class Shape(NamedTuple):
    """The shape of filters with the same number of tokens, and the same wildcards in the same places."""

    tokens: int  # number of tokens, not counting a final ``>``
    is_open: bool  # whether ``>`` is the last token
    stars: tuple[int, ...]  # indexes of the tokens that are ``*``

    def literal_runs(self) -> Iterator[tuple[int, int]]:
        """Yield the index of the first token and of that after the last, for each run of literal tokens."""
        for before, star in pairwise((-1, *self.stars, self.tokens)):
            if before + 1 < star:
                yield before + 1, star

    def literal_places_shared_with(self, other: Shape) -> tuple[int, ...] | None:
        """Return which tokens are the same in two filters of these shapes if they overlap; None if they never do."""
        if self.is_open or other.is_open:
            fits = (self.is_open or self.tokens > other.tokens) and (other.is_open or other.tokens > self.tokens)
        else:
            fits = self.tokens == other.tokens
        stars = {*self.stars, *other.stars}
        return tuple(i for i in range(min(self.tokens, other.tokens)) if i not in stars) if fits else None


def shape_and_tokens(subject: str) -> tuple[Shape, list[str]]:
    """Return the shape of a valid filter, and its tokens without a final ``>``."""
    tokens = subject.split(".")
    is_open = tokens[-1] == ">"
    if is_open:
        tokens.pop()
    return Shape(len(tokens), is_open, tuple(i for i, token in enumerate(tokens) if token == "*")), tokens


def find_overlap(filters: Iterable[str]) -> tuple[str, str] | None:
    """Return two valid filters that overlap; None when all are disjoint.

    A filter is looked up among the filters of each shape, by the tokens that both must share. So the cost depends on
    the number of filters, times the number of their shapes.
    """
    groups: dict[Shape, _Group] = {}
    for each in filters:
        shape, tokens = shape_and_tokens(each)
        group = groups.setdefault(shape, _Group())
        for other, members in groups.items():
            if other not in group.shared:
                group.shared[other] = shape.literal_places_shared_with(other)
            shared = group.shared[other]
            if shared is not None and (found := members.find(shared, tokens)) is not None:
                return found, each
        group.add(each, tokens)
    return None


class _Group:
    """The filters of one shape.

    Attributes:
        shared: what :meth:`Shape.literal_places_shared_with` returns, by the other shape.
    """

    def __init__(self) -> None:
        self.shared: dict[Shape, tuple[int, ...] | None] = {}
        self._members: list[tuple[str, list[str]]] = []
        self._tables: dict[tuple[int, ...], dict[tuple[str, ...], str]] = {}  # a filter by some of its tokens

    def add(self, member: str, tokens: list[str]) -> None:
        self._members.append((member, tokens))
        for some, table in self._tables.items():
            table[_chosen(tokens, some)] = member

    def find(self, some: tuple[int, ...], tokens: list[str]) -> str | None:
        """Return a filter with the same tokens in some places; None when there is none."""
        if some not in self._tables:
            self._tables[some] = {_chosen(each, some): member for member, each in self._members}
        return self._tables[some].get(_chosen(tokens, some))


def _chosen(tokens: list[str], some: tuple[int, ...]) -> tuple[str, ...]:
    return tuple([tokens[i] for i in some])


def covers(one: str, other: str) -> bool:
    """Return whether a valid filter matches every subject that another one matches."""
    wider, narrower = one.split("."), other.split(".")
    for i, token in enumerate(wider):
        if token == ">":
            return len(narrower) > i
        if i >= len(narrower) or narrower[i] == ">" or token not in ("*", narrower[i]):
            return False
    return len(wider) == len(narrower)


_TOKEN = re.compile(r"\$([0-9]+)|\{\{\s*wildcard\(\s*([0-9]+)\s*\)\s*\}\}", re.IGNORECASE)


def transform_subject(subject: str, transform: Mapping[str, str]) -> str | None:
    """Return the subject under which a stream stores a message, given its transform with ``src`` and ``dest``.

    Return None where the transform has other functions than ``wildcard``. A subject that ``src`` does not match stays.
    """
    source, tokens = (transform.get("src") or ">").split("."), subject.split(".")
    destination = (transform.get("dest") or ">").split(".")
    is_open = source[-1] == ">"
    if is_open:
        source, tokens, rest = source[:-1], tokens[: len(source) - 1], tokens[len(source) - 1 :]
    else:
        rest = []
    fits = len(source) == len(tokens) and bool(rest) == is_open
    if not fits or any(one not in ("*", other) for one, other in zip(source, tokens, strict=True)):
        return subject
    moved = [token for pattern, token in zip(source, tokens, strict=True) if pattern == "*"]
    made, stars = [], iter(moved)
    for token in destination:
        found = _TOKEN.fullmatch(token)
        if found:
            place = int(found[1] or found[2])
            if not 1 <= place <= len(moved):
                return None
            made.append(moved[place - 1])
        elif token == "*":
            made.append(next(stars, token))
        elif "{{" in token or "$" in token:
            return None
        else:
            made += rest if token == ">" else [token]
    return ".".join(made)
