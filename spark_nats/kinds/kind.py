"""A kind of thing that a query can name, as a value: its options, its columns, its readers and its writers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from spark_nats.conditions import Condition, ConditionText
from spark_nats.conditions.queries import OPTION_FOR_OTHER_MODE
from spark_nats.options.connecting import GROUPS
from spark_nats.options.option import names_of
from spark_nats.options.query import Query

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


def import_by_name(where: str) -> Any:
    """Return a function or a class, named as ``module:name`` in this package, that is imported when it is needed."""
    module, _, name = where.partition(":")
    return getattr(import_module(f"{__package__}.{module}"), name)


@dataclass(frozen=True, slots=True)
class Operation:
    """One thing that can be done with a kind, such as reading it in a batch.

    Attributes:
        options: the dataclass of its options.
        maker: the function or class that makes Spark's reader or writer from checked options and a schema, as
            :func:`import_by_name` takes it.
    """

    options: type[Query]
    maker: str

    def make_reader_or_writer(self, options: Query, schema: StructType) -> Any:
        """Return the reader or the writer of a query."""
        return import_by_name(self.maker)(options, schema)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of thing that a query can name.

    Attributes:
        precedence: a query is of the kind of the highest precedence that one of its options names and that it can read
            or write; else of the kind of the lowest, core NATS.
        named_by: the options that name it.
        called: what error texts call such things, with " of " before it; empty for streams and tables.
        columns: returns what a row is, and its possible columns as DDL, for the values of the options that are set.
        default_columns: the columns when no schema is given, as DDL; all of them when empty.
        read: how a batch reads it; None when it cannot. The other three are the same for their modes.
        needed: returns the error that an option needs this kind; its second argument is whether the query writes.
        unsuited: returns the error that an option is not for this kind, with the same arguments.
        not_streamed: returns why streaming does not read or write it, for the options that are set.
        not_by_foreach: why :class:`~spark_nats.NatsForeachWriter` does not write it; None if it does.
    """

    precedence: int
    named_by: tuple[str, ...]
    called: str
    columns: Callable[[Mapping[str, Any]], tuple[str, str]]
    default_columns: str = ""
    read: Operation | None = None
    read_stream: Operation | None = None
    write: Operation | None = None
    write_stream: Operation | None = None
    needed: Callable[[str, bool], ConditionText]
    unsuited: Callable[[str, bool], ConditionText]
    not_streamed: Callable[[Mapping[str, Any]], ConditionText] = lambda given: OPTION_FOR_OTHER_MODE(
        option=next(iter(given)), wanted="batches", found="streaming"
    )
    not_by_foreach: Condition | None = None

    def operation(self, writing: bool, streaming: bool) -> Operation | None:
        """Return how a mode reads or writes it; None when the mode cannot."""
        if writing:
            return self.write_stream if streaming else self.write
        return self.read_stream if streaming else self.read

    def option_names(self, writing: bool, streaming: bool) -> set[str]:
        """Return the names of the options that can be set; none when the mode cannot read or write it."""
        operation = self.operation(writing, streaming)
        return names_of((*GROUPS, operation.options), streaming) if operation else set()
