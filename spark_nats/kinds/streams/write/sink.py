"""The target of rows as a value, with the columns that a DataFrame may have if it is to be written there.

The target is a stream or core NATS, or what differs from these in some fields of a :class:`Sink`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import StructType

from spark_nats.conditions import ConditionText
from spark_nats.conditions.queries import COLUMN_MISSING, COLUMN_OF_SOURCE, COLUMN_TYPE, COLUMN_UNKNOWN
from spark_nats.errors import SchemaError
from spark_nats.kinds.kind import import_by_name
from spark_nats.kinds.streams.options import WriteOptions
from spark_nats.kinds.streams.write.conditions import COLUMN_FOR_STREAMS, COLUMN_NOT_FOR_CORE, NO_SUBJECT
from spark_nats.options.query import Query

if TYPE_CHECKING:
    import pyarrow as pa

    from spark_nats.jetstream.api import JetStream
    from spark_nats.jetstream.publishing.conflicts import ConflictResolver
    from spark_nats.kinds.streams.write.tasks import Written


Refuse = Callable[..., None]
"""Takes a column's name and its rows that break a rule; raises if there are any. The error may show ``values``."""
Convert = Callable[[dict[str, "pa.Array"], int, Refuse], dict[str, "pa.Array"]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """The columns that rows may have.

    Attributes:
        where: the target, in words.
        types: the types that each column may have.
        own: columns that the source adds, with their types; ignored, so that rows which were read can be written.
        required: each column that must exist, its type in words, and the column that may replace it, or an empty name.
        into: the column that an unknown column may be put into, as errors advise.
        elsewhere: advice on columns that users know from other sinks, by name.
        place: the column that names where a row was read, and the column of its position there. The first column alone
            may be meant to name the row's target. Empty names for a target that rows need not name.
        target: the target's name in the first of these columns; None for the stream's name.
        convert: returns the columns of messages, from these columns, the number of rows and a :data:`Refuse`; None if
            these columns are those of messages.
        names: by column of messages, the name that this target gives the column.
        controls: columns that ``convert`` returns; the column ``headers`` cannot set their headers.
    """

    where: str
    types: Mapping[str, tuple[str, ...]]
    own: Mapping[str, str]
    required: tuple[tuple[str, str, str], ...]
    into: str
    elsewhere: Mapping[str, str] = field(default_factory=dict)
    place: tuple[str, str] = ("", "")
    target: str | None = None
    convert: Convert | None = None
    names: Mapping[str, str] = field(default_factory=dict)
    controls: tuple[str, ...] = ()

    def target_column(self, names: Iterable[str]) -> str | None:
        """Return the column whose values must name the target; None when no column must."""
        place, position = self.place
        return place if place in names and position not in names else None


MESSAGES = Columns(
    where="NATS",
    types={
        "payload": ("binary", "string"),
        "subject": ("string",),
        "reply": ("string",),
        "headers": ("map<string,array<string>>", "map<string,string>"),
        "msg_id": ("string",),
        "ttl": ("string", "int", "bigint"),
        "expected_last_subject_sequence": ("bigint",),
        "increment": ("bigint", "int", "string"),
    },
    own={"stream": "string", "sequence": "bigint", "timestamp": "timestamp"},
    required=(("payload", "BINARY or STRING", "increment"),),
    into="payload",
    elsewhere={  # in Kafka
        "value": "rename it to 'payload'",
        "key": "messages have no key; make it a part of 'subject', or a header",
        "topic": "rename it to 'subject'",
        "partition": "streams have no partitions; drop it",
    },
    place=("stream", "sequence"),
)
_OF_STREAMS = ("ttl", "expected_last_subject_sequence", "increment")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sink:
    """The target of rows; a field that is not given is as for streams and core NATS.

    Attributes:
        words: the target in words; None for a stream or core NATS.
        prepare: does on the driver what would fail in every task; None for what messages need.
        write: writes one partition; None to write it as messages.
        columns: the columns that rows may have.
        naming: returns a context that reports a missing stream as what it would be, and suggests a similar name.
        no_lifetimes: the error when the target does not allow lifetimes of single rows.
        conflicts: returns the resolver for a task's rows whose subjects have another last message than expected; its
            argument tells whether such rows are set aside.
        skipped: returns the warning about skipped rows, from their number, ``skipped``, and that of all, ``rows``.
    """

    words: str | None = None
    prepare: Callable[[Any], None] | None = None
    write: Callable[..., Written] | None = None
    columns: Columns = MESSAGES
    naming: Callable[[JetStream], AbstractContextManager[None]] | None = None
    no_lifetimes: ConditionText | None = None
    conflicts: Callable[[bool], ConflictResolver] | None = None
    skipped: Callable[..., ConditionText] | None = None

    def target(self, options: Query) -> str:
        """Return the name of the target, as the log and errors use it."""
        return self.words or (isinstance(options, WriteOptions) and options.target) or "core NATS"


PLAIN = Sink()  # streams and core NATS


def sink_of(options: Query) -> Sink:
    """Return the target of the rows of a query."""
    return import_by_name(options.sink)(options) if options.sink else PLAIN


def check_columns(schema: StructType, columns: Columns) -> None:
    """Check a DataFrame's schema against the columns that it may have.

    Raises:
        SchemaError: a column is missing, unknown or of the wrong type.
    """
    for column in schema.fields:
        actual = _TEXT.sub("string", column.dataType.simpleString())
        if own := columns.own.get(column.name):
            if actual != own:
                name, into = column.name, columns.into
                raise SchemaError(COLUMN_OF_SOURCE(column=name, type=actual.upper(), expected=own.upper(), into=into))
        elif column.name not in columns.types:
            hint = _advise_on_column(column.name, columns)
            there = ", ".join(columns.types)
            raise SchemaError(COLUMN_UNKNOWN(column=column.name, where=columns.where, hint=hint, columns=there))
        elif actual not in columns.types[column.name]:
            allowed = " or ".join(name.upper() for name in columns.types[column.name])
            said = COLUMN_TYPE(column=column.name, expected=allowed, type=actual.upper())
            raise SchemaError(said.with_text(f"{said}{_advise_on_type(column.name, actual, columns.into)}"))
    names = schema.fieldNames()
    for name, kind, instead in columns.required:
        if name not in names and instead not in names:
            raise SchemaError(COLUMN_MISSING(column=name, type=kind, columns=", ".join(names) or "none"))


def _advise_on_type(name: str, actual: str, into: str) -> str:
    """Return what to do, after a semicolon, about a column of the wrong type; empty if nothing simple helps."""
    if name == into:
        return f"; use {'to_json' if '<' in actual else 'string'}({name})"
    if name == "headers" and actual.startswith("array<struct<key:"):  # as Kafka's sink has them
        return "; use map_from_entries(transform(headers, h -> struct(h.key, array(string(h.value)))))"
    return ""


def _advise_on_column(name: str, columns: Columns) -> str:
    """Return what to do about an unknown column; names of columns are in lower case, while Spark ignores it in SQL."""
    if name.lower() in {*columns.types, *columns.own}:
        return f"rename it to '{name.lower()}'"
    return columns.elsewhere.get(name.lower(), f"drop it, or put it into '{columns.into}' or 'headers'")


# Text is STRING, whatever its collation or its declared length.
_TEXT = re.compile(r"string collate \w+|(?:var)?char\(\d+\)")


def check_schema(schema: StructType, options: Query, columns: Columns = MESSAGES) -> None:
    """Check the schema of a DataFrame that is to be written.

    Raises:
        SchemaError: a column is missing, unknown or of the wrong type, core NATS does not take a column, or neither a
            column nor an option has the subject.
    """
    check_columns(schema, columns)
    if not isinstance(options, WriteOptions):
        return
    names = schema.fieldNames()
    if options.is_core:
        for name in names:
            if name == columns.target_column(names):
                raise SchemaError(COLUMN_NOT_FOR_CORE(column=name))
            if name in _OF_STREAMS:
                raise SchemaError(COLUMN_FOR_STREAMS(column=name))
    if "subject" in columns.types and "subject" not in names and options.subject is None:
        raise SchemaError(NO_SUBJECT())


def may_have_ids(names: Sequence[str], options: Query) -> bool:
    """Tell whether rows may have message ids of their own, in a column, or in headers if control headers are sent."""
    sends_headers = isinstance(options, WriteOptions) and options.control_headers
    return "msg_id" in names or (sends_headers and "headers" in names)
