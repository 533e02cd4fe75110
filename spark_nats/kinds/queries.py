"""Options become a query: its kind, its values, and the errors of options that do not fit together.

The options ``stream`` and ``streamPattern`` select streams, ``bucket`` a KV bucket, ``objectStore`` an object store,
and ``table`` the account's inventory, which can only be read. A query with none of them is about core NATS.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, NamedTuple

from spark_nats.conditions import ConditionText
from spark_nats.conditions.queries import NOTHING_TO_READ, NOWHERE_TO_WRITE, OPTION_FOR_OTHER_MODE, OPTION_FOR_OTHERS
from spark_nats.errors import OptionError
from spark_nats.kinds import KINDS
from spark_nats.kinds.kind import Kind, Operation, import_by_name
from spark_nats.options import settings
from spark_nats.options.connecting import GROUPS
from spark_nats.options.nearest import VIEW
from spark_nats.options.option import Option
from spark_nats.options.query import Query
from spark_nats.options.settings import Settings

Given = Mapping[str, str] | Settings


@cache
def kinds() -> tuple[Kind, ...]:
    """Return all kinds, that of the lowest precedence first."""
    return tuple(sorted(map(import_by_name, KINDS.values()), key=lambda kind: kind.precedence))


class Documented(NamedTuple):
    """An option, as the documentation shows it."""

    option: Option
    scope: str  # whether it is for reading, writing or both
    default: str  # empty when it has none


@cache
def documented_options() -> dict[str, Documented]:
    """Return all options by their names in lower case: first those of the connection, last those of core NATS."""
    found: dict[str, list[tuple[Option, Kind | None, bool, bool]]] = defaultdict(list)
    for row in (row for group in GROUPS for row in group.options.values()):
        found[row.name] = [(row, None, writing, True) for writing in (False, True)]
    for kind in (*kinds()[1:], kinds()[0]):
        for writing, streaming in MODES:
            if use := kind.operation(writing, streaming):
                for row in use.options.options.values():
                    if row.streaming in (None, streaming):
                        found[row.name].append((row, kind, writing, streaming))
    return {name.lower(): _merge_documented(rows) for name, rows in found.items()}


MODES = ((False, False), (False, True), (True, False), (True, True))  # whether it writes, and whether it streams


def _merge_documented(rows: list[tuple[Option, Kind | None, bool, bool]]) -> Documented:
    scopes = {"write" if writing else "read" for _, _, writing, _ in rows}
    batch = {row.default_in(False) or "" for row, _, _, streaming in rows if not streaming}
    live = {row.default_in(True) or "": kind for row, kind, _, streaming in reversed(rows) if streaming}
    default, *others = reversed(live) if live else batch
    for other in others:
        kind = live[other]
        default += f" in streaming ({kind.called.removeprefix(' of ') if kind else ''}: {other})"
    of_kind = {(kind, writing): row.default_in(True) for row, kind, writing, streaming in rows if streaming}
    own = {
        row.default_in(False) or ""
        for row, kind, writing, streaming in rows
        if not streaming and of_kind.get((kind, writing)) not in (None, row.default_in(False))
    }
    if live and own:
        default += f"{'' if others else ' in streaming'}, {min(own)} in batch"
    return Documented(rows[0][0], scopes.pop() if len(scopes) == 1 else "both", default)


@cache
def options_by_section() -> dict[str, list[Documented]]:
    """Return all options in the sections in which docs/options.md and the command line show them."""
    found: dict[str, list[Documented]] = defaultdict(list)
    for each in documented_options().values():
        found[each.option.section].append(each)
    return dict(found)


def parse_options(options: Given) -> Settings:
    """Read the values, and the files that they name; values that were read already are returned unchanged.

    Raises:
        OptionError: an option is unknown, has an invalid value, lacks an option that it needs, or contradicts another,
            whatever the kind of the query.
    """
    if isinstance(options, Settings):
        return options
    return settings.parse_options(options, {name: each.option for name, each in documented_options().items()})


def kind_of(given: Settings, writing: bool) -> Kind:
    """Return the kind of a query."""
    named = [kind for kind in kinds() if kind.option_names(writing, False) & set(kind.named_by) & set(given.given)]
    return (kinds()[0], *named)[-1]


def check_and_choose_operation(given: Settings, writing: bool, streaming: bool) -> tuple[Operation, Query]:
    """Return how a query reads or writes, with its options.

    Raises:
        OptionError: an option does not apply or is missing, or two options contradict each other.
    """
    kind = kind_of(given, writing)
    if kind is kinds()[0] and not writing and "subject" not in given.given:
        hint = "" if given.given else f"; if this is a table, Spark has not passed on its options: {VIEW}"
        raise OptionError(NOTHING_TO_READ(hint=hint))
    use = kind.operation(writing, streaming)
    if use is None:
        raise OptionError(kind.not_streamed(given.given))
    check_options_apply(given, kind, writing, streaming, given.given)
    query = use.options.of(
        given.values,
        streaming,
        api_prefix=given.api_prefix,
        connection=given.connection,
        retries=given.retries,
        streaming=streaming,
    )
    return use, query.check_and_make_query(given.given)


def check_options_apply(given: Settings, kind: Kind, writing: bool, streaming: bool, names: Iterable[str]) -> None:
    """Check that each of some options, if it is set, applies to such a query.

    Raises:
        OptionError: an option does not apply.
    """
    for name in names:
        if name in given.given and (problem := describe_misplaced(name, kind, writing, streaming)):
            raise OptionError(problem)


def describe_misplaced(name: str, kind: Kind, writing: bool, streaming: bool) -> ConditionText | None:
    """Return why an option cannot be set in a query; None when it can."""
    if name in kind.option_names(writing, streaming):
        return None
    has = [each for each in kinds() if name in each.option_names(writing, True) | each.option_names(writing, False)]
    if not has:
        return OPTION_FOR_OTHERS(option=name, doing="reading" if writing else "writing")
    if kind in has:
        modes = _WRITES if writing else _READS
        said = OPTION_FOR_OTHER_MODE(option=name, wanted=modes[not streaming] + kind.called, found=modes[streaming])
        is_limit = name == "maxOffsetsPerTrigger" and "endingOffsets" in kind.option_names(writing, streaming)
        return said.with_text(f"{said}; use 'limit' or 'endingOffsets'") if is_limit else said
    if has[0].precedence > kind.precedence:
        return has[0].needed(name, writing)
    return kind.unsuited(name, writing)


_READS = ("batch reads (spark.read)", "streaming (spark.readStream)")
_WRITES = ("batch writes (df.write)", "streaming (df.writeStream)")


def parse_read_options(options: Given, streaming: bool) -> Any:
    """Return the options of a read.

    Raises:
        OptionError: an option is invalid or does not apply, or two options contradict each other.
    """
    return check_and_choose_operation(parse_options(options), False, streaming)[1]


def parse_write_options(options: Given, streaming: bool) -> Any:
    """Return the options of a write.

    Raises:
        OptionError: an option is invalid or does not apply, or two options contradict each other.
    """
    return check_and_choose_operation(parse_options(options), True, streaming)[1]


def check_any_option_set(given: Settings) -> None:
    """Check that some option is set: without any, rows would go to core NATS of this machine and vanish.

    Raises:
        OptionError: no option is set.
    """
    if not given.given:
        raise OptionError(NOWHERE_TO_WRITE(instead=VIEW))
