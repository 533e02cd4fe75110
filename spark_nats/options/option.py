"""Options as fields of dataclasses, each with the function that reads its value, its meaning and its default.

``max_in_flight: int = option(...)`` declares the option ``maxInFlight``; a new option is one more such field. A query
accepts the fields of its kind's dataclass, which marks the fields for only batches or only streaming.
A call of :func:`option` has the type of the value in a query, so types are checked from the text to the use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import Field, dataclass, field, replace
from typing import Any, ClassVar, Literal, Self, TypedDict, TypeVar, Unpack, dataclass_transform, overload

from spark_nats.conditions.queries import INVALID_OPTION
from spark_nats.errors import OptionError

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """The declaration of an option."""

    read: Callable[[str], object]  # reads a value; raises ValueError
    meaning: str  # what the option does, for the documentation
    default: str | None = None  # the value when the option is not set, as a user would write it
    absent: object = None  # the value in a query when the option is not set and has no default
    required: bool = False  # whether the option is set in every query of this class
    batch_default: str | None = None  # the default in a batch, where it differs
    streaming: bool | None = None  # True for only streaming, False for only batches, None for both
    use: Callable[[Any], object] | None = None  # makes the value in a query from the one read; raises ValueError
    needs: tuple[str, ...] = ()  # other options; at least one must be set too
    excludes: tuple[str, ...] = ()  # other options that must not be set too
    name: str = ""  # as documented; made from the name of the field unless given
    section: str = ""  # the heading of the option in the documentation; that of the class unless given

    def default_in(self, streaming: bool) -> str | None:
        """Return the default in a streaming or a batch query, as a user would write it."""
        return self.default if streaming or self.batch_default is None else self.batch_default

    def value(self, given: Mapping[str, Any], streaming: bool) -> object:
        """Return the value in a query: the one that was set, else the default, else ``absent``.

        Raises:
            OptionError: the value is invalid in such a query.
        """
        if self.name in given:
            return read_option_value(self.name, given[self.name], self.use) if self.use else given[self.name]
        text = self.default_in(streaming)
        return self.absent if text is None else self.read(text)


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
    """Return the dataclass field of an option; the arguments are those of :class:`Option`."""
    return field(metadata={_OPTION: Option(read=read, meaning=meaning, **others)})


_OPTION = "option"


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(option,))
class Group:
    """A group of options: its subclasses are dataclasses that have them as fields.

    They share one constructor: to make one for each class takes time in every process that reads options.

    Attributes:
        section: the heading in the documentation for the options that the class itself declares.
        options: the options of the class and of its base classes, by the names of their fields.
    """

    section = ""
    options: ClassVar[Mapping[str, Option]] = {}
    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    def __init__(self, **values: Any) -> None:
        vars(self).update(values)

    @classmethod
    def of(cls, given: Mapping[str, Any], streaming: bool = True, /, **others: Any) -> Self:
        """Return the group with the values that were set, by the names of options, and with defaults for the rest.

        Args:
            given: values that were set.
            streaming: whether the query is a streaming query; defaults depend on it.
            others: values of fields that are no options, or that count where an option is not set.
        """
        return cls(**others | {field: row.value(given, streaming) for field, row in cls.options.items()})

    def __init_subclass__(cls, section: str = "") -> None:
        cls.section = section or cls.section
        found: dict[str, Option] = {}
        for base in reversed(cls.__mro__[1:]):  # the order of a dataclass's fields
            found |= getattr(base, "options", {})
        for name, each in vars(cls).items():
            if isinstance(each, Field) and _OPTION in each.metadata:
                row: Option = each.metadata[_OPTION]
                found[name] = replace(row, name=row.name or _camel_case(name), section=row.section or cls.section)
        cls.options = found
        dataclass(init=False, repr=False, frozen=True, kw_only=True)(cls)


def names_of(groups: Iterable[type[Group]], streaming: bool) -> set[str]:
    """Return the names of the options of some groups for streaming, or for batches."""
    return {row.name for group in groups for row in group.options.values() if row.streaming in (None, streaming)}


def _camel_case(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))


def read_option_value(name: str, text: Any, read: Callable[[Any], T]) -> T:
    """Read the value of an option.

    Raises:
        OptionError: the value is invalid.
    """
    try:
        return read(text)
    except ValueError as error:
        raise OptionError(INVALID_OPTION(option=name, problem=error)) from None
