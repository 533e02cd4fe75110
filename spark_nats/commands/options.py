"""``spark-nats options``: the table of options, from the code."""

from __future__ import annotations

from dataclasses import dataclass

from spark_nats.commands.console import Console
from spark_nats.options.table import OPTIONS


@dataclass(frozen=True, slots=True)
class OptionShown:
    """An option as people see it.

    Attributes:
        name: its name.
        scope: ``read``, ``write`` or ``both``.
        default: what it is when it is not set; empty when it is then absent.
        meaning: what it does.
    """

    name: str
    scope: str
    default: str
    meaning: str


def options_for(scope: str | None = None) -> list[OptionShown]:
    """Return all options, or those for ``read`` or ``write``, those for both included."""
    shown = [OptionShown(each.name, each.shown_scope, each.shown_default, each.meaning) for each in OPTIONS]
    return [option for option in shown if scope is None or option.scope in (scope, "both")]


def show(options: list[OptionShown], console: Console) -> None:
    """Print options."""
    console.table(
        ("option", "for", "default", "meaning"),
        [(option.name, option.scope, option.default, option.meaning.replace("`", "")) for option in options],
    )
