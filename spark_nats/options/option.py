"""An option is a field of a dataclass, with how its value is read, its meaning and its default.

``max_in_flight: int = option(...)`` is the option ``maxInFlight``: another one is another such field. A query accepts
what the dataclass of its kind has as fields; one for both batches and streaming says which fields are only for one.
What :func:`option` returns is typed as what is read, so types are checked from the text to the use.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from inspect import get_annotations
from typing import Any, Literal, TypedDict, TypeVar, Unpack, cast, overload

from spark_nats.conditions.options import INVALID_OPTION
from spark_nats.errors import OptionError

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """What is known of an option."""

    read: Callable[[str], object]  # reads a value; raises ValueError
    meaning: str  # what it does, for the documentation
    default: str | None = None  # what it is when it is not set, as a user would write it
    absent: object = None  # what a query has when it is not set and has no default
    required: bool = False  # whether a query only has it that has it set
    batch_default: str | None = None  # what it is then in a batch, where that differs
    streaming: bool | None = None  # whether it is only for streaming, or only for batches; None for both
    use: Callable[[Any], object] | None = None  # makes what a query has of what was read; raises ValueError
    needs: tuple[str, ...] = ()  # options without any of which it means nothing
    excludes: tuple[str, ...] = ()  # options that cannot be set beside it
    name: str = ""  # as documented; made of the field's name unless it is given
    section: str = ""  # the heading below which it is documented; that of the class unless it is given

    def default_in(self, streaming: bool) -> str | None:
        """Return what it is in such a query when it is not set, as a user would write it."""
        return self.default if streaming or self.batch_default is None else self.batch_default

    def value(self, given: Mapping[str, Any], streaming: bool) -> object:
        """Return the value that a query has: what was set, else the default.

        Raises:
            OptionError: what was set is no value for such a query.
        """
        if self.name in given:
            return value_of(self.name, given[self.name], self.use) if self.use else given[self.name]
        text = self.default_in(streaming)
        return self.absent if text is None else self.read(text)


class Group:
    """A group of options: a dataclass whose fields they are, or a base class of one.

    Attributes:
        section: the heading below which the options are documented that the class itself has.
    """

    section = ""

    def __init_subclass__(cls, section: str = "") -> None:
        cls.section = section or cls.section


class _Others(TypedDict, total=False):
    batch_default: str
    streaming: bool
    needs: tuple[str, ...]
    excludes: tuple[str, ...]
    name: str
    section: str


@overload
def option(read: Callable[[str], T], meaning: str, *, default: str, **others: Unpack[_Others]) -> T: ...
@overload
def option(read: Callable[[str], T], meaning: str, *, required: Literal[True], **others: Unpack[_Others]) -> T: ...
@overload
def option(read: Callable[[str], T], meaning: str, *, absent: T, **others: Unpack[_Others]) -> T: ...
@overload
def option(
    read: Callable[[str], str], meaning: str, *, use: Callable[[str], T], absent: T, **others: Unpack[_Others]
) -> T: ...
@overload
def option(read: Callable[[str], T], meaning: str, **others: Unpack[_Others]) -> T | None: ...
def option(read: Callable[[str], Any], meaning: str, **others: Any) -> Any:
    """Return the field of a dataclass that has an option's value; the arguments are those of :class:`Option`."""
    return field(metadata={_OPTION: Option(read=read, meaning=meaning, **others)})


_OPTION = "option"


def options_of(group: type[Any]) -> dict[str, Option]:
    """Return the options that a dataclass has, by the names of its fields."""
    return _options_of(cast(Hashable, group))


@cache
def _options_of(group: Any) -> dict[str, Option]:
    found = {}
    for each in fields(group):
        if _OPTION in each.metadata:
            row: Option = each.metadata[_OPTION]
            declares = next(base for base in group.__mro__ if each.name in get_annotations(base))
            section = row.section or declares.section
            found[each.name] = replace(row, name=row.name or _camel_case(each.name), section=section)
    return found


def values_of(group: type[Any], given: Mapping[str, Any], streaming: bool = True) -> dict[str, Any]:
    """Return the values of a dataclass's options, by the names of its fields.

    Args:
        group: the dataclass.
        given: values that were set, by the names of options.
        streaming: whether they are for streaming; defaults depend on it.
    """
    return {field: row.value(given, streaming) for field, row in options_of(group).items()}


def names_of(group: type[Any], streaming: bool) -> set[str]:
    """Return the names of the options that a dataclass has for streaming, or for batches."""
    return {row.name for row in options_of(group).values() if row.streaming in (None, streaming)}


def _camel_case(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))


def value_of(name: str, text: Any, read: Callable[[Any], T]) -> T:
    """Return the value of an option.

    Raises:
        OptionError: it is invalid.
    """
    try:
        return read(text)
    except ValueError as error:
        raise OptionError(INVALID_OPTION(option=name, problem=error)) from None
