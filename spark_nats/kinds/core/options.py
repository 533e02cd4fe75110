"""The options of core NATS."""

from __future__ import annotations

from collections.abc import Collection

from spark_nats.kinds.streams.options import NEVER, SUBJECT, RowOptions, WriteOptions
from spark_nats.options import values
from spark_nats.options.connecting import Echo
from spark_nats.options.option import option
from spark_nats.options.query import EXACTNESS, FAIL_ON_DATA_LOSS, WHAT, Partitions, Query, Triggers

SECTION = "Core NATS"


class CoreReadOptions(Partitions, Triggers, Query, section=SECTION):
    """What a query reads of core NATS, and how."""

    subjects: tuple[str, ...] = option(
        values.read_text, SUBJECT, name="subject", use=values.read_subjects, absent=(), section=WHAT
    )
    queue_group: str | None = option(
        values.read_queue_group, "core NATS: share the messages with all other subscribers of this queue group"
    )
    read_timeout: float = option(
        values.read_duration, "core NATS, batch: how long to read", default="10s", streaming=False
    )
    max_messages: int | None = option(
        values.read_whole_number, "core NATS, batch: stop after this many messages", streaming=False
    )
    receivers: int = option(
        values.read_whole_number,
        "core NATS, streaming: number of connections that share the messages",
        default="1",
        streaming=True,
    )
    max_buffered_bytes: int = option(
        values.read_whole_number,
        "core NATS, streaming: maximum bytes that wait for a micro-batch; once reached, new messages are dropped",
        default="268435456",
        streaming=True,
    )
    spool_location: str | None = option(
        values.read_location,
        "core NATS, streaming: directory or URI in which micro-batches are stored until they are processed",
        streaming=True,
    )
    fail_on_data_loss: bool = option(
        values.read_boolean, FAIL_ON_DATA_LOSS, default="true", streaming=True, section=EXACTNESS
    )

    def check_and_make_query(self, given: Collection[str]) -> CoreReadOptions:
        """Check the triggers, and return the options unchanged."""
        self.check_trigger_limits()
        return self


class CoreWriteOptions(Echo, RowOptions, Query, section=SECTION):
    """How a query writes to core NATS."""

    subject: str | None = option(values.read_text, SUBJECT, section=WHAT)

    def check_and_make_query(self, given: Collection[str]) -> WriteOptions:
        """Return the options of the writer of streams, without a stream."""
        return self.converted_to(WriteOptions, deduplicate=NEVER).check_and_make_query(given)
