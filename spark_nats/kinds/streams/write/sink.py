"""What rows are written to: a stream or core NATS, or something else that differs from these in some values."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spark_nats.conditions import ConditionText
from spark_nats.kinds.streams.options import WriteOptions
from spark_nats.kinds.streams.write.schema import MESSAGES, Columns
from spark_nats.options.query import Query
from spark_nats.options.values import FAIL

if TYPE_CHECKING:
    from spark_nats.jetstream.api import JetStream
    from spark_nats.jetstream.publishing.conflicts import ConflictResolver
    from spark_nats.kinds.streams.write.dead_letters import DeadLetters
    from spark_nats.kinds.streams.write.tasks import Written

    Aside = DeadLetters


def _dead_letters(options: WriteOptions, columns: Columns) -> Aside | None:
    from spark_nats.kinds.streams.write.dead_letters import DeadLetters

    return DeadLetters(options, columns) if options.bad_rows != FAIL else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sink:
    """What rows are written to; what it leaves out is as it is for streams and core NATS.

    Attributes:
        words: what is written to, in words, where that is not the stream.
        write: writes one partition.
        columns: which columns rows may have.
        naming: says of a stream that does not exist what it would be, and which others have similar names.
        no_lifetimes: what is wrong if it does not allow lifetimes of single rows.
        conflicts: returns what decides about rows of a task whose subjects have other last messages than they name, and
            which it may have set aside.
        skipped: says how many rows it has left out, of how many.
        set_aside: returns what takes rows of a task that cannot be sent; None where such a row is an error.
    """

    words: str | None = None
    write: Callable[..., Written] | None = None
    columns: Columns = MESSAGES
    naming: Callable[[JetStream], AbstractContextManager[None]] | None = None
    no_lifetimes: ConditionText | None = None
    conflicts: Callable[[bool], ConflictResolver] | None = None
    skipped: Callable[[int, int], ConditionText] | None = None
    dead_letters: Callable[[WriteOptions, Columns], Aside | None] = _dead_letters

    def target(self, options: Query) -> str:
        """Return what is written to, as the log and errors name it."""
        return self.words or (isinstance(options, WriteOptions) and options.stream) or "core NATS"


STREAM = Sink()
