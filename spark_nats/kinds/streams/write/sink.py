"""The target of rows as a value: a stream or core NATS, or another target that differs from these in some fields."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spark_nats.conditions import ConditionText
from spark_nats.kinds.streams.options import WriteOptions
from spark_nats.kinds.streams.write.schema import MESSAGES, Columns
from spark_nats.options.query import Query

if TYPE_CHECKING:
    from spark_nats.jetstream.api import JetStream
    from spark_nats.jetstream.publishing.conflicts import ConflictResolver
    from spark_nats.kinds.streams.write.tasks import Written


@dataclass(frozen=True, slots=True, kw_only=True)
class Sink:
    """The target of rows; a field that is not given is as for streams and core NATS.

    Attributes:
        words: the target in words; None for a stream or core NATS.
        write: writes one partition; None to write it as messages.
        columns: the columns that rows may have.
        naming: returns a context that reports a missing stream as what it would be, and suggests a similar name.
        no_lifetimes: the error when the target does not allow lifetimes of single rows.
        conflicts: returns the resolver for a task's rows whose subjects have another last message than expected; its
            argument tells whether such rows are set aside.
        skipped: returns the warning about skipped rows, from their number, ``skipped``, and that of all, ``rows``.
    """

    words: str | None = None
    write: Callable[..., Written] | None = None
    columns: Columns = MESSAGES
    naming: Callable[[JetStream], AbstractContextManager[None]] | None = None
    no_lifetimes: ConditionText | None = None
    conflicts: Callable[[bool], ConflictResolver] | None = None
    skipped: Callable[..., ConditionText] | None = None

    def target(self, options: Query) -> str:
        """Return the name of the target, as the log and errors use it."""
        return self.words or (isinstance(options, WriteOptions) and options.stream) or "core NATS"


PLAIN = Sink()  # streams and core NATS
