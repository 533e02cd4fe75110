"""The options of streams, and of what is read or written through a stream."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from dataclasses import field, replace
from datetime import datetime
from typing import Any, Self

from spark_nats.errors import OptionError
from spark_nats.kinds.streams import conditions
from spark_nats.kinds.streams.atomic.options import Atomic
from spark_nats.kinds.streams.dead_letters.options import BadRows
from spark_nats.options import values
from spark_nats.options.option import Group, option
from spark_nats.options.query import EXACTNESS, RANGE, WHAT, DataLoss, JetStreamQuery, RowQuery, StreamScan
from spark_nats.options.values import EARLIEST, FAIL, LATEST, Offsets, StreamOffset
from spark_nats.protocol.stream_configs import RequestedConfig, convert_config
from spark_nats.protocol.subjects import subject_violation

STREAM = (
    "stream to read or to write to; several: comma-separated, and each row is written to the one that listens on its "
    "subject; without `stream`, `streamPattern`, `bucket`, `table` and `objectStore`, core NATS is read or written; "
    "with `table`: only these streams"
)
STREAM_PATTERN = (
    "regular expression for whole names: each stream that matches is read, also one that is created while the query "
    "runs; writing: each row goes to the one of them that listens on its subject; names that begin with `KV_`, `OBJ_` "
    "or `$MQTT_` match only an expression that has `KV_`, `OBJ_` or `MQTT_` in it; with `table`: only these streams"
)
SUBJECT = (
    "reading, also of the table `subjects`: only these subjects, comma-separated, with wildcards; writing: the subject "
    "of every row"
)

_HAS_COMMA = "has a comma, as a list has"


def read_create_stream(text: str) -> bool | RequestedConfig:
    """Read ``true``, ``false`` or a stream's configuration in JSON, whose durations become nanoseconds."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    config = values.parse_object_or_none(text)
    if config is None:
        raise ValueError(
            "must be true, false or a stream configuration in JSON, such as "
            '{"subjects": ["orders.>"], "max_age": "48h"}'
        )
    requested = convert_config(config)
    for subject in requested.get("subjects") or ():
        if "," in subject:
            apart = json.dumps([each.strip() for each in subject.split(",")])
            raise ValueError(f"has the subject {subject!r}, which {_HAS_COMMA}: write {apart}")
    return requested


class StreamsNamed(Group, section=WHAT):
    """The streams that are read or written."""

    streams: tuple[str, ...] = option(values.read_names, STREAM, name="stream", absent=())
    create: bool | RequestedConfig = option(
        read_create_stream,
        "create the stream if it does not exist: `true` (for the subjects in `subject`) or its configuration in JSON, "
        'such as `{"subjects": ["orders.>"], "max_age": "48h", "replicas": 3}`',
        default="false",
        name="createStream",
    )

    def _config_to_create(self, subjects: tuple[str, ...]) -> dict[str, Any] | None:
        """Return the configuration with which to create a missing stream.

        Args:
            subjects: the subjects of the stream if ``createStream`` is ``true``.

        Returns:
            None when the stream must exist.

        Raises:
            OptionError: the configuration is for another stream, several streams are named, or no subjects are known.
        """
        requested, streams = self.create, self.streams
        if requested is False:
            return None
        if len(streams) > 1:
            raise OptionError(conditions.ONE_STREAM_TO_CREATE(streams=", ".join(streams)))
        if requested is True:
            if not subjects:
                raise OptionError(conditions.NO_SUBJECTS_TO_CREATE())
            return {"name": streams[0], "subjects": list(subjects)}
        if requested.get("name", streams[0]) != streams[0]:
            raise OptionError(conditions.OTHER_STREAM_TO_CREATE(name=requested["name"], stream=streams[0]))
        return RequestedConfig.of({**requested, "name": streams[0]}, requested.named)


class ReadOptions(StreamScan, StreamsNamed, section="Work queues and interest streams"):
    """Which messages of streams to read, and how."""

    pattern: re.Pattern[str] | None = option(
        values.read_pattern, STREAM_PATTERN, name="streamPattern", excludes=("stream",), section=WHAT
    )
    filters: tuple[str, ...] = option(
        values.read_text, SUBJECT, name="subject", use=values.read_filters, absent=(), section=WHAT
    )
    ending_offsets: Offsets = option(
        values.read_offsets,
        "batch: where to end: `latest` or, for each stream in JSON, the sequence before which to stop, a consumer "
        "(`consumer:billing`: all that it has acknowledged), or an offset copied from a checkpoint",
        default="latest",
        streaming=False,
        section=RANGE,
    )
    ending_timestamp: datetime | None = option(
        values.read_timestamp,
        "batch: end before the first message stored at or after this time",
        excludes=("endingOffsets",),
        streaming=False,
        section=RANGE,
    )
    limit: int | None = option(
        values.read_whole_number,
        "batch: read at most this many messages, the first ones, in one task; with several streams, those of the first "
        "stream come first",
        streaming=False,
        section=RANGE,
    )
    limit_pushdown: bool = option(
        values.read_boolean,
        "batch: only `false`, because Spark would apply the limit of one scan to every scan of the DataFrame; set "
        "`limit`",
        default="false",
        streaming=False,
        section=RANGE,
    )
    filter_pushdown: bool = option(
        values.read_boolean,
        "batch: only `false`, because Spark would apply the filters of one scan to every scan of the DataFrame; set "
        "`subject`, `startingOffsets` or `startingTimestamp`",
        default="false",
        streaming=False,
        section=RANGE,
    )
    consume: bool = option(
        values.read_boolean,
        "streaming: acknowledge what is processed: the server then deletes it from a work queue, and from an interest "
        "stream when all other consumers have acknowledged it too",
        default="false",
        streaming=True,
    )
    consumer: str | None = option(
        values.read_name,
        "streaming, with `consume`: name of the durable consumer that keeps what is not processed yet; when not set, a "
        "name made of the stream and the subjects",
        streaming=True,
    )
    peek: bool = option(
        values.read_boolean,
        "batch: read a work queue or an interest stream without deleting anything",
        default="false",
        streaming=False,
    )

    @property
    def ending(self) -> Offsets | datetime | None:
        """Where the read ends; None in streaming, which has no end."""
        return None if self.streaming else self.ending_timestamp or self.ending_offsets

    @property
    def requested_config(self) -> dict[str, Any] | None:
        """Configuration of a stream that is created if it does not exist; None when it must exist."""
        return self._config_to_create(self.filters)

    def check_and_make_query(self, given: Collection[str]) -> Self:
        """Return the checked options; a query that consumes begins at the earliest message by default."""
        self.check_trigger_limits()
        if self.pattern and self.create:
            raise OptionError(conditions.PATTERN_CANNOT_CREATE())
        self._config_to_create(self.filters)  # raises if this contradicts other options
        if self.pattern and self.consume:
            raise OptionError(conditions.PATTERN_CANNOT_CONSUME())
        for name, chosen in (("filterPushdown", self.filter_pushdown), ("limitPushdown", self.limit_pushdown)):
            if chosen:
                raise OptionError(conditions.PUSHDOWN_OF_OTHER_SCANS(option=name))
        if self.consumer and not self.consume:
            raise OptionError(conditions.CONSUMER_NEEDS_CONSUME())
        _check_range(self.starting, self.ending)
        if not self.pattern:  # the streams that match a pattern are known later
            self.check_offset_streams("startingOffsets", self.starting, self.streams)
            self.check_offset_streams("endingOffsets", self.ending, self.streams)
        if self.consume and not {"startingOffsets", "startingTimestamp"} & set(given):
            return replace(self, starting_offsets=EARLIEST)  # else existing messages would be released unread
        return self


def _mentions(offsets: Offsets | datetime, word: str) -> bool:
    return offsets == word or (isinstance(offsets, dict) and word in offsets.values())


def _check_range(starting: Offsets | datetime, ending: Offsets | datetime | None) -> None:
    """Check, as far as options show, that no batch begins at ``latest``, ends at ``earliest`` or before it begins."""
    if ending is None:
        return
    if _mentions(starting, LATEST):
        raise OptionError(conditions.NOTHING_AFTER_LATEST())
    if _mentions(ending, EARLIEST):
        raise OptionError(conditions.NOTHING_BEFORE_EARLIEST())
    if isinstance(starting, datetime) and isinstance(ending, datetime) and ending < starting:
        raise OptionError(conditions.ENDS_BEFORE_TIME(end=ending.isoformat(), start=starting.isoformat()))
    if isinstance(starting, dict) and isinstance(ending, dict):
        for name, end in ending.items():
            start = starting.get(name)
            if isinstance(start, StreamOffset) and isinstance(end, StreamOffset) and end.next < start.next:
                raise OptionError(conditions.ENDS_BEFORE_OFFSET(end=end.next, stream=name, start=start.next))


class RowOptions(BadRows, RowQuery, section="Writing"):
    """Options of a query that writes rows as messages."""

    control_headers: bool = option(
        values.read_boolean,
        "also send headers whose names begin with `Nats-`, on which servers act, except those that tell how a row "
        "came to its former stream; `false`: leave them out",
        default="false",
    )


class AcknowledgedRows(RowOptions, JetStreamQuery, section="Writing"):
    """Options of a query that writes rows which a stream acknowledges."""

    max_in_flight: int = option(
        values.read_whole_number,
        "at most this many rows of a task wait for acknowledgement; fewer after the server refused some as too many",
        default="8192",
    )
    ack_timeout: float = option(
        values.read_duration,
        "fail the task when no row was stored for this long, although the connection works",
        default="30s",
    )


EXACT, WINDOW, NEVER = "exact", "window", "false"
"""How rows that are written again are kept from being stored twice."""


def read_deduplicate(text: str) -> str:
    """Read ``exact``, ``window`` or ``false``; ``true`` is ``exact``."""
    return EXACT if text.lower() == "true" else values.read_word(text, EXACT, WINDOW, NEVER)


# What stores the rows of a task if an option is set, as ``module:name`` in ``kinds``.
_ROW_WRITERS = {
    "atomic": "streams.atomic.together:Together",
    "bad_rows": "streams.dead_letters.letters:DeadLetters",
}
DEDUPLICATE = (
    "do not store a row twice when it is written again: `exact` however late, `window` within the stream's "
    "`duplicate_window`; `false`: store it again"
)


class WriteOptions(Atomic, DataLoss, AcknowledgedRows, StreamsNamed, section=EXACTNESS):
    """Where and how to write; without a ``stream`` or a pattern of their names, rows go to core NATS."""

    # Whether a stream without a `duplicate_window` is refused: only where somebody has asked for one.
    needs_window: bool = field(default=False, compare=False)
    pattern: re.Pattern[str] | None = option(
        values.read_pattern, STREAM_PATTERN, name="streamPattern", excludes=("stream",), section=WHAT
    )
    subject: str | None = option(values.read_text, SUBJECT, section=WHAT)
    deduplicate: str = option(read_deduplicate, DEDUPLICATE, default=EXACT, batch_default=WINDOW)
    state_bucket: str = option(
        values.read_bucket_name,
        "streaming: KV bucket in which `deduplicate=exact` notes where each micro-batch begins; created if it "
        "does not exist",
        default="SPARK_NATS",
        streaming=True,
    )

    @property
    def stream(self) -> str | None:
        """The target stream; None for core NATS. Of several, use :meth:`for_stream`."""
        return self.streams[0] if self.streams else None

    @property
    def is_core(self) -> bool:
        """Whether rows go to core NATS."""
        return not self.streams and self.pattern is None

    @property
    def may_have_several_targets(self) -> bool:
        """Whether there are several, or may be."""
        return len(self.streams) > 1 or self.pattern is not None

    @property
    def target(self) -> str:
        """The target streams in words; empty for core NATS."""
        return ", ".join(self.streams) if self.pattern is None else f"streams that match {self.pattern.pattern!r}"

    def is_target(self, stream: str) -> bool:
        """Tell whether rows may go to a stream."""
        return stream in self.streams if self.pattern is None else self.pattern.fullmatch(stream) is not None

    def for_stream(self, name: str) -> Self:
        """Return the options of what goes to one of several streams."""
        return replace(self, streams=(name,), pattern=None) if self.may_have_several_targets else self

    @property
    def chosen_row_writers(self) -> list[str]:
        """What options name to store the rows of a task otherwise than each by itself; one of them at most may."""
        return [where for name, where in _ROW_WRITERS.items() if getattr(self, name) not in (False, FAIL)]

    @property
    def row_writer(self) -> str:
        """What stores the rows of a task, as ``module:name`` in ``kinds``."""
        return next(iter(self.chosen_row_writers), "streams.write.partitions:RowWriter")

    @property
    def gives_ids(self) -> bool:
        """Whether each row gets a message id, unless it has one."""
        return self.deduplicate != NEVER

    @property
    def is_exact(self) -> bool:
        """Whether a row is never stored twice, however late it is written again."""
        return self.deduplicate == EXACT

    @property
    def requested_config(self) -> dict[str, Any] | None:
        """Configuration of a stream that is created if it does not exist; None when it must exist."""
        return self._config_to_create((self.subject,) if self.subject else ())

    def check_and_make_query(self, given: Collection[str]) -> Self:
        """Return the options after checking them."""
        if self.pattern and self.create:
            raise OptionError(conditions.PATTERN_CANNOT_CREATE())
        if self.subject and (violation := subject_violation(self.subject) or ("," in self.subject and _HAS_COMMA)):
            raise OptionError(conditions.ONE_SUBJECT_TO_WRITE(subject=self.subject, violation=violation))
        self._config_to_create((self.subject,) if self.subject else ())  # raises if this contradicts other options
        super().check_and_make_query(given)
        return replace(self, needs_window=self.deduplicate == WINDOW and (self.streaming or "deduplicate" in given))
