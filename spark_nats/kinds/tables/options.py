"""The options of tables of the account's inventory."""

from __future__ import annotations

import re
from collections.abc import Collection
from difflib import get_close_matches

from spark_nats.conditions.queries import SUBJECT_NEEDS_SUBJECTS
from spark_nats.errors import OptionError
from spark_nats.kinds.streams.options import STREAM, STREAM_PATTERN, SUBJECT
from spark_nats.options import values
from spark_nats.options.option import option
from spark_nats.options.query import WHAT, JetStreamQuery

STREAMS, CONSUMERS, BUCKETS, SUBJECTS = "streams", "consumers", "buckets", "subjects"
TABLE_SCHEMAS = {
    STREAMS: (
        "name STRING, created TIMESTAMP_LTZ, description STRING, subjects ARRAY<STRING>, retention STRING, "
        "storage STRING, replicas INT, compression STRING, discard STRING, max_msgs BIGINT, "
        "max_msgs_per_subject BIGINT, max_bytes BIGINT, max_msg_size BIGINT, max_consumers BIGINT, max_age DOUBLE, "
        "duplicate_window DOUBLE, "
        "allow_direct BOOLEAN, sealed BOOLEAN, mirror STRING, sources ARRAY<STRING>, metadata MAP<STRING, STRING>, "
        "messages BIGINT, bytes BIGINT, first_sequence BIGINT, last_sequence BIGINT, first_time TIMESTAMP_LTZ, "
        "last_time TIMESTAMP_LTZ, deleted BIGINT, subject_count BIGINT, consumer_count BIGINT, cluster STRING, "
        "leader STRING, problem STRING"
    ),
    CONSUMERS: (
        "stream STRING, name STRING, created TIMESTAMP_LTZ, description STRING, durable BOOLEAN, "
        "filter_subjects ARRAY<STRING>, deliver_policy STRING, deliver_subject STRING, ack_policy STRING, "
        "ack_wait DOUBLE, max_deliver BIGINT, max_ack_pending BIGINT, max_waiting BIGINT, inactive_threshold DOUBLE, "
        "replicas INT, metadata MAP<STRING, STRING>, delivered_sequence BIGINT, delivered_time TIMESTAMP_LTZ, "
        "ack_floor_sequence BIGINT, ack_floor_time TIMESTAMP_LTZ, pending BIGINT, ack_pending BIGINT, "
        "redelivered BIGINT, waiting BIGINT, paused BOOLEAN, paused_until TIMESTAMP_LTZ, cluster STRING, "
        "leader STRING, problem STRING"
    ),
    BUCKETS: (
        "bucket STRING, created TIMESTAMP_LTZ, description STRING, history BIGINT, max_age DOUBLE, max_bytes BIGINT, "
        "max_value_size BIGINT, limit_marker_ttl DOUBLE, storage STRING, replicas INT, compression BOOLEAN, "
        "mirror STRING, metadata MAP<STRING, STRING>, keys BIGINT, entries BIGINT, bytes BIGINT, revision BIGINT, "
        "last_time TIMESTAMP_LTZ, cluster STRING, leader STRING, problem STRING"
    ),
    SUBJECTS: "stream STRING, subject STRING, messages BIGINT, problem STRING",
}
"""The tables of the account's inventory by their names, with all columns of each as DDL."""


def read_inventory_table(text: str) -> str:
    """Read the name of one of :data:`TABLE_SCHEMAS`."""
    try:
        return values.read_word(text, *TABLE_SCHEMAS)
    except ValueError as error:
        near = get_close_matches(text.lower(), TABLE_SCHEMAS, n=1)
        raise ValueError(f"{error}; did you mean {near[0]!r}?" if near else str(error)) from None


class TableReadOptions(JetStreamQuery, section=WHAT):
    """Which table of the account's inventory a batch reads.

    The table covers the ``streams``, or those that match the ``pattern``, or all; ``filters`` choose subjects.
    """

    table: str = option(
        read_inventory_table,
        "batch: what the account holds, as a table: `streams`, `consumers`, `buckets` or `subjects`",
        required=True,
    )
    streams: tuple[str, ...] = option(values.read_names, STREAM, name="stream", absent=())
    pattern: re.Pattern[str] | None = option(
        values.read_pattern, STREAM_PATTERN, name="streamPattern", excludes=("stream",)
    )
    filters: tuple[str, ...] = option(values.read_text, SUBJECT, name="subject", use=values.read_filters, absent=())

    def check_and_make_query(self, given: Collection[str]) -> TableReadOptions:
        """Check that filters suit the table, and return the options unchanged."""
        if self.filters and self.table != SUBJECTS:
            raise OptionError(SUBJECT_NEEDS_SUBJECTS(table=self.table))
        return self
