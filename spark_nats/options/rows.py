"""An option is a field of a dataclass, with where it applies, how its value is read, its meaning and its default.

``max_in_flight: int = option(...)`` is the option ``maxInFlight``: another one is another such field, and its name in
a section of ``table.py``.
What :func:`option` returns is typed as what the reader returns, so types are checked from the text to the use.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from enum import Flag, auto
from typing import Any, TypeVar, overload

from spark_nats.conditions import Said
from spark_nats.conditions.options import (
    INVALID_OPTION,
    OPTION_FOR_CORE,
    OPTION_FOR_OTHER_MODE,
    OPTION_FOR_OTHERS,
    OPTION_NEEDS_BUCKET,
    OPTION_NEEDS_OBJECT_STORE,
    OPTION_NEEDS_STREAM,
    OPTION_NOT_FOR_BUCKETS,
    OPTION_NOT_FOR_OBJECTS,
    OPTION_NOT_FOR_TABLES,
)
from spark_nats.errors import OptionError

T = TypeVar("T")


class Use(Flag):
    """What options are for: reading or writing a stream, a KV bucket or core NATS, in a batch or in streaming.

    And reading a table of what an account holds, in a batch; or reading and writing the objects of an object store.

    One query is one of these; where an option applies is several of them.
    """

    READ_STREAM_IN_BATCH = auto()
    READ_STREAM_IN_STREAMING = auto()
    READ_BUCKET_IN_BATCH = auto()
    READ_BUCKET_IN_STREAMING = auto()
    READ_CORE_IN_BATCH = auto()
    READ_CORE_IN_STREAMING = auto()
    READ_TABLE_IN_BATCH = auto()
    READ_OBJECTS_IN_BATCH = auto()
    READ_OBJECTS_IN_STREAMING = auto()
    WRITE_STREAM_IN_BATCH = auto()
    WRITE_STREAM_IN_STREAMING = auto()
    WRITE_BUCKET_IN_BATCH = auto()
    WRITE_BUCKET_IN_STREAMING = auto()
    WRITE_OBJECTS_IN_BATCH = auto()
    WRITE_OBJECTS_IN_STREAMING = auto()
    WRITE_CORE_IN_BATCH = auto()
    WRITE_CORE_IN_STREAMING = auto()


def _all(word: str) -> Use:
    uses = Use(0)
    for name, use in Use.__members__.items():
        if word in name.split("_"):
            uses |= use
    return uses


READ, WRITE = _all("READ"), _all("WRITE")
STREAM, BUCKET, CORE, TABLE = _all("STREAM"), _all("BUCKET"), _all("CORE"), _all("TABLE")
OBJECTS = _all("OBJECTS")
KEPT = STREAM | BUCKET | TABLE | OBJECTS  # what JetStream keeps, and tells
BATCH, STREAMING = _all("BATCH"), _all("STREAMING")
ANY = READ | WRITE


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One row of the table of options."""

    applies: Use  # what it is for
    read: Callable[[str], object]  # reads a value; raises ValueError
    meaning: str  # what it does, for the documentation
    default: str | None = None  # what it is when it is not set, as a user would write it; None when it is then absent
    batch_default: str | None = None  # what it is then in a batch, where that differs
    bucket_default: str | None = None  # what it is then in streaming for KV buckets, where that differs
    name: str = ""  # as documented; made of the field's name unless it is given

    def default_for(self, use: Use) -> object:
        """Return the value that it has in a query where it is not set; None when it has none."""
        text = self.default
        if use in BATCH and self.batch_default is not None:
            text = self.batch_default
        elif use in BUCKET and self.bucket_default is not None:
            text = self.bucket_default
        return None if text is None else self.read(text)

    @property
    def shown_scope(self) -> str:
        """Whether it is for reading, writing or both, for the documentation."""
        return "both" if self.applies & READ and self.applies & WRITE else "read" if self.applies & READ else "write"

    @property
    def shown_default(self) -> str:
        """Its default, for the documentation; empty when it has none."""
        if self.batch_default is not None:
            of_buckets = f" (KV buckets: {self.bucket_default})" if self.bucket_default is not None else ""
            return f"{self.default} in streaming{of_buckets}, {self.batch_default} in batch"
        return self.default or ""

    def misuse(self, use: Use) -> Said | None:
        """Say why it cannot be set in such a query; None when it can."""
        if use in self.applies:
            return None
        mine = READ if use in READ else WRITE
        if not self.applies & mine:
            return OPTION_FOR_OTHERS(option=self.name, doing="writing" if mine is READ else "reading")
        if use in TABLE:
            return OPTION_NOT_FOR_TABLES(option=self.name)
        if use in OBJECTS and not self.applies & mine & OBJECTS:
            return OPTION_NOT_FOR_OBJECTS(option=self.name)
        if not self.applies & mine & ~OBJECTS and use not in OBJECTS:
            return OPTION_NEEDS_OBJECT_STORE(option=self.name)
        kind = next(kind for kind in (STREAM, BUCKET, CORE, OBJECTS) if use in kind)
        if self.applies & mine & kind:
            modes = (
                ["streaming (spark.readStream)", "batch reads (spark.read)"]
                if mine is READ
                else ["streaming (df.writeStream)", "batch writes (df.write)"]
            )
            wanted, found = modes if use in BATCH else reversed(modes)
            return OPTION_FOR_OTHER_MODE(option=self.name, wanted=wanted + _OF[kind], found=found)
        if kind is BUCKET:
            return OPTION_NOT_FOR_BUCKETS(option=self.name)
        if not self.applies & mine & (STREAM | CORE):
            return OPTION_NEEDS_BUCKET(option=self.name)
        if kind is CORE:
            without = "the subjects of core NATS are read" if mine is READ else "rows go to core NATS"
            return OPTION_NEEDS_STREAM(option=self.name, otherwise=without)
        return OPTION_FOR_CORE(option=self.name, doing="reading" if mine is READ else "writing to")


_OF = {STREAM: "", BUCKET: " of KV buckets", CORE: " of core NATS", OBJECTS: " of object stores"}
_ROW = "option"


@overload
def option(
    applies: Use,
    read: Callable[[str], T],
    meaning: str,
    *,
    default: str,
    batch_default: str = ...,
    bucket_default: str = ...,
    name: str = ...,
) -> T: ...
@overload
def option(applies: Use, read: Callable[[str], T], meaning: str, *, name: str = ...) -> T | None: ...
def option(applies: Use, read: Callable[[str], Any], meaning: str, **others: str) -> Any:
    """Return the field of a dataclass that has an option's value; the arguments are those of :class:`Option`."""
    return field(metadata={_ROW: Option(applies=applies, read=read, meaning=meaning, **others)})


def rows_of(group: type[Any]) -> dict[str, Option]:
    """Return the options that a dataclass has, by the names of its fields."""
    rows = {each.name: each.metadata[_ROW] for each in fields(group) if _ROW in each.metadata}
    return {name: replace(row, name=row.name or _camel_case(name)) for name, row in rows.items()}


def _camel_case(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))


def value_of(name: str, text: str, read: Callable[[str], T]) -> T:
    """Return the value of an option.

    Raises:
        OptionError: it is invalid.
    """
    try:
        return read(text)
    except ValueError as error:
        raise OptionError(INVALID_OPTION(option=name, problem=error)) from None
