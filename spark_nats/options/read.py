"""What a query reads, and how."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from spark_nats.options import values
from spark_nats.options.query import Query
from spark_nats.options.rows import BATCH, BUCKET, CORE, READ, STREAM, STREAMING, option
from spark_nats.options.values import LATEST, Offsets


@dataclass(frozen=True, slots=True, kw_only=True)
class TriggerLimits:
    """How much a micro-batch has."""

    max_offsets: int | None = option(
        READ & STREAMING,
        values.read_whole_number,
        "most sequences, or messages of core NATS, in one micro-batch, which has one of each stream with something new "
        "at least",
        name="maxOffsetsPerTrigger",
    )
    max_bytes: int | None = option(
        READ & STREAMING,
        values.read_whole_number,
        "most bytes of subjects, headers and payloads in one micro-batch, which has one message of each stream at "
        "least; measured for the first 8,192 sequences of each, and estimated from them for more",
        name="maxBytesPerTrigger",
    )
    min_offsets: int | None = option(
        READ & STREAMING,
        values.read_whole_number,
        "fewest new sequences, or messages of core NATS, for which there is a micro-batch; the first one after a start "
        "waits for nothing, and with `Trigger.AvailableNow` none does",
        name="minOffsetsPerTrigger",
    )
    max_delay: float = option(
        READ & STREAMING,
        values.read_duration,
        "with `minOffsetsPerTrigger`: time since the last micro-batch was planned after which fewer are enough",
        default="15m",
        name="maxTriggerDelay",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Read(Query):
    """What queries have that read, of more than one kind."""

    min_partitions: int = option(
        READ & (STREAM | CORE | STREAMING),
        values.read_whole_number,
        "least number of partitions, if there is enough to read",
        default="1",
    )
    ignore_deletes: bool = option(
        READ & BUCKET,
        values.read_boolean,
        "leave out that a key was deleted, purged or has expired",
        default="false",
        batch_default="true",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions(_Read):
    """What to read of streams and how.

    ``ending`` is None in streaming, which has no end. The changes of a KV bucket are read as those of its stream, and
    ``bucket`` names it then. With a ``pattern``, which says what is read, ``streams`` is empty.
    """

    streams: tuple[str, ...]
    pattern: re.Pattern[str] | None
    bucket: str | None
    filters: tuple[str, ...]
    starting: Offsets | datetime
    ending: Offsets | datetime | None
    limits: TriggerLimits
    create_stream: dict[str, Any] | None
    starting_must_exist: bool = option(
        READ & STREAM | READ & BUCKET & STREAMING,
        values.read_strategy,
        "with `startingTimestamp`: `error` to fail, before anything is read, where a stream has nothing for the query "
        "since then",
        default=LATEST,
        name="startingOffsetsByTimestampStrategy",
    )
    consume: bool = option(
        READ & STREAM & STREAMING,
        values.read_boolean,
        "streaming: release what is processed: it leaves a work queue, or an interest stream when all others have it",
        default="false",
    )
    consumer: str | None = option(
        READ & STREAM & STREAMING,
        values.read_name,
        "streaming, with `consume`: name of the durable consumer that holds what is not processed; when it is not set, "
        "one made of the stream and the subjects",
    )
    peek: bool = option(
        READ & STREAM & BATCH,
        values.read_boolean,
        "batch: read a work queue or an interest stream, and remove nothing",
        default="false",
    )
    max_records_per_partition: int = option(
        READ & STREAM | READ & BUCKET & STREAMING,
        values.read_whole_number,
        "most sequences in one partition",
        default="500000",
    )
    limit: int | None = option(
        READ & STREAM & BATCH,
        values.read_whole_number,
        "batch: read the first messages only, so many at most, in one task; of several streams those of the first one "
        "come first",
    )
    limit_pushdown: bool = option(
        READ & STREAM & BATCH,
        values.read_boolean,
        "batch: let `limit()` do what `limit` does, up to `maxRecordsPerPartition`; "
        "needs PySpark 4.4 and `spark.sql.python.limitPushdown.enabled`",
        default="false",
    )
    filter_pushdown: bool = option(
        READ & STREAM & BATCH,
        values.read_boolean,
        "batch: let filters on subject, sequence and timestamp narrow what is read; "
        "needs PySpark 4.1 and `spark.sql.python.filterPushdown.enabled`",
        default="false",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketReadOptions(_Read):
    """What a batch reads of a KV bucket."""

    bucket: str
    keys: tuple[str, ...]
    create_bucket: dict[str, Any] | None
    history: bool = option(
        READ & BUCKET & BATCH,
        values.read_boolean,
        "batch: every revision that is kept, and not the last one of each key alone",
        default="false",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TableReadOptions(Query):
    """Which table of what an account holds a batch reads.

    It is about the ``streams``, or those that match the ``pattern``, or all; ``filters`` are of subjects.
    """

    table: str
    streams: tuple[str, ...]
    pattern: re.Pattern[str] | None
    filters: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreReadOptions(_Read):
    """What to read of core NATS and how."""

    subjects: tuple[str, ...]
    limits: TriggerLimits
    queue_group: str | None = option(
        READ & CORE, values.read_queue_group, "core NATS: share the messages with all that subscribe in this group"
    )
    read_timeout: float = option(
        READ & CORE & BATCH, values.read_duration, "core NATS, batch: time for which to read", default="10s"
    )
    max_messages: int | None = option(
        READ & CORE & BATCH, values.read_whole_number, "core NATS, batch: end after so many messages"
    )
    max_buffered_bytes: int = option(
        READ & CORE & STREAMING,
        values.read_whole_number,
        "core NATS, streaming: most bytes that wait for a micro-batch; beyond it the newest messages are dropped",
        default="268435456",
    )
    receivers: int = option(
        READ & CORE & STREAMING,
        values.read_whole_number,
        "core NATS, streaming: connections that share the messages",
        default="1",
    )
    spool_location: str | None = option(
        READ & CORE & STREAMING,
        values.read_location,
        "core NATS, streaming: directory or URI where micro-batches are kept until they are processed",
    )
