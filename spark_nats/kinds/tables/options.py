"""The options of tables of the account's inventory."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from difflib import get_close_matches

from spark_nats.errors import OptionError
from spark_nats.kinds.streams.options import STREAM, STREAM_PATTERN, SUBJECT
from spark_nats.kinds.tables.conditions import SUBJECT_NEEDS_SUBJECTS
from spark_nats.options import values
from spark_nats.options.option import option
from spark_nats.options.query import WHAT, JetStreamQuery

STREAMS, CONSUMERS, BUCKETS, SUBJECTS = "streams", "consumers", "buckets", "subjects"
TABLE_NAMES = (STREAMS, CONSUMERS, BUCKETS, SUBJECTS)
"""The tables of the account's inventory."""


def read_table(text: str) -> str:
    """Read the name of one of :data:`TABLE_NAMES`."""
    try:
        return values.read_word(text, *TABLE_NAMES)
    except ValueError as error:
        near = get_close_matches(text.lower(), TABLE_NAMES, n=1)
        raise ValueError(f"{error}; did you mean {near[0]!r}?" if near else str(error)) from None


@dataclass(frozen=True, kw_only=True)
class TableReadOptions(JetStreamQuery, section=WHAT):
    """Which table of the account's inventory a batch reads.

    The table covers the ``streams``, or those that match the ``pattern``, or all; ``filters`` choose subjects.
    """

    table: str = option(
        read_table,
        "batch: what the account holds, as a table: `streams`, `consumers`, `buckets` or `subjects`",
        required=True,
    )
    streams: tuple[str, ...] = option(values.read_names, STREAM, name="stream", absent=())
    pattern: re.Pattern[str] | None = option(
        values.read_pattern, STREAM_PATTERN, name="streamPattern", excludes=("stream",)
    )
    filters: tuple[str, ...] = option(values.read_text, SUBJECT, name="subject", use=values.read_filters, absent=())

    def checked(self, given: Collection[str]) -> TableReadOptions:
        """Check that filters suit the table, and return the options unchanged."""
        if self.filters and self.table != SUBJECTS:
            raise OptionError(SUBJECT_NEEDS_SUBJECTS(table=self.table))
        return self
