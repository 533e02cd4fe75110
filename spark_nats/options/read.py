"""What a query reads, and how."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from spark_nats.options import values
from spark_nats.options.query import Query
from spark_nats.options.rows import BATCH, BUCKET, CORE, OBJECTS, READ, STREAM, STREAMING, option
from spark_nats.options.values import LATEST, Offsets


@dataclass(frozen=True, slots=True, kw_only=True)
class TriggerLimits:
    """How much a micro-batch has."""

    max_offsets: int | None = option(
        READ & STREAMING,
        values.read_whole_number,
        "most sequences, or messages of core NATS, in one micro-batch; each stream with something new contributes at "
        "least one",
        name="maxOffsetsPerTrigger",
    )
    max_bytes: int | None = option(
        READ & STREAMING,
        values.read_whole_number,
        "most bytes of subjects, headers and payloads in one micro-batch, which has at least one message of each "
        "stream; measured for the first 8,192 sequences of each stream, estimated from them for the others",
        name="maxBytesPerTrigger",
    )
    min_offsets: int | None = option(
        READ & STREAMING,
        values.read_whole_number,
        "wait until there are so many new sequences, or messages of core NATS; the first micro-batch after a start "
        "does not wait, and with `Trigger.AvailableNow` none does",
        name="minOffsetsPerTrigger",
    )
    max_delay: float = option(
        READ & STREAMING,
        values.read_duration,
        "with `minOffsetsPerTrigger`: wait no longer than this after the last micro-batch was planned",
        default="15m",
        name="maxTriggerDelay",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Read(Query):
    """What queries have that read, of more than one kind."""

    min_partitions: int = option(
        READ & (STREAM | CORE | STREAMING | OBJECTS),
        values.read_whole_number,
        "fewest partitions, if there is enough to read",
        default="1",
    )
    ignore_deletes: bool = option(
        READ & BUCKET,
        values.read_boolean,
        "leave out the rows that say that a key was deleted, purged or has expired",
        default="false",
        batch_default="true",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectReadOptions(_Read):
    """Which objects of an object store are read: those whose names match the ``pattern``, or all."""

    store: str
    pattern: re.Pattern[str] | None
    max_bytes: int = option(
        READ & OBJECTS,
        values.read_object_bytes,
        "fail when the content of an object that is to be read has more bytes than this; 2,000,000,000 at most",
        default="268435456",
        name="maxObjectBytes",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions(_Read):
    """What to read of streams and how.

    ``ending`` is None in streaming, which has no end. The changes of a KV bucket are read as those of its stream, and
    ``bucket`` names it then; so are those of an object store, and ``objects`` says which. With a ``pattern``, which
    says what is read, ``streams`` is empty.
    """

    streams: tuple[str, ...]
    pattern: re.Pattern[str] | None
    bucket: str | None
    objects: ObjectReadOptions | None
    filters: tuple[str, ...]
    starting: Offsets | datetime
    ending: Offsets | datetime | None
    limits: TriggerLimits
    create_stream: dict[str, Any] | None
    starting_must_exist: bool = option(
        READ & STREAM | READ & (BUCKET | OBJECTS) & STREAMING,
        values.read_strategy,
        "what to do when a stream has no message since `startingTimestamp` that the query reads: `latest` begins with "
        "the next one, `error` fails before anything is read",
        default=LATEST,
        name="startingOffsetsByTimestampStrategy",
    )
    consume: bool = option(
        READ & STREAM & STREAMING,
        values.read_boolean,
        "streaming: acknowledge what is processed: the server then deletes it from a work queue, and from an interest "
        "stream when all other consumers have it too",
        default="false",
    )
    consumer: str | None = option(
        READ & STREAM & STREAMING,
        values.read_name,
        "streaming, with `consume`: name of the durable consumer that keeps what is not processed yet; when not set, a "
        "name made of the stream and the subjects",
    )
    progress_consumer: str | None = option(
        READ & STREAM & STREAMING,
        values.read_name,
        "streaming: name of a durable consumer on each stream that shows how far the query is, for `nats consumer "
        "report` and for dashboards; the checkpoint is what counts. Needs nats-server 2.14",
    )
    peek: bool = option(
        READ & STREAM & BATCH,
        values.read_boolean,
        "batch: read a work queue or an interest stream without deleting anything",
        default="false",
    )
    max_records_per_partition: int = option(
        READ & STREAM | READ & (BUCKET | OBJECTS) & STREAMING,
        values.read_whole_number,
        "most sequences in one partition",
        default="500000",
    )
    limit: int | None = option(
        READ & STREAM & BATCH,
        values.read_whole_number,
        "batch: read at most so many messages, the first ones, in one task; with several streams, those of the first "
        "stream come first",
    )
    limit_pushdown: bool = option(
        READ & STREAM & BATCH,
        values.read_boolean,
        "batch: only `false`, because Spark would apply the limit of one scan of a DataFrame to all of them; set "
        "`limit`",
        default="false",
    )
    filter_pushdown: bool = option(
        READ & STREAM & BATCH,
        values.read_boolean,
        "batch: only `false`, because Spark would apply the filters of one scan of a DataFrame to all of them; set "
        "`subject`, `startingOffsets` or `startingTimestamp`",
        default="false",
    )

    @property
    def replaces(self) -> bool:
        """Whether a later message takes the place of one that is removed: nothing is lost by that."""
        return self.bucket is not None or self.objects is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketReadOptions(_Read):
    """What a batch reads of a KV bucket."""

    bucket: str
    keys: tuple[str, ...]
    create_bucket: dict[str, Any] | None
    history: bool = option(
        READ & BUCKET & BATCH,
        values.read_boolean,
        "batch: read every revision that the bucket keeps, and not only the last one of each key",
        default="false",
    )
    as_of: int | datetime | str | None = option(
        READ & BUCKET & BATCH,
        values.read_moment,
        "batch: read what the bucket held at one moment: at a revision, at a time in ISO 8601, or at `latest`, the "
        "last revision when the read ends; [what the bucket keeps](buckets.md#one-moment) limits it",
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
        READ & CORE,
        values.read_queue_group,
        "core NATS: share the messages with all other subscribers of this queue group",
    )
    read_timeout: float = option(
        READ & CORE & BATCH, values.read_duration, "core NATS, batch: how long to read", default="10s"
    )
    max_messages: int | None = option(
        READ & CORE & BATCH, values.read_whole_number, "core NATS, batch: stop after so many messages"
    )
    max_buffered_bytes: int = option(
        READ & CORE & STREAMING,
        values.read_whole_number,
        "core NATS, streaming: most bytes that wait for a micro-batch; when they are reached, new messages are dropped",
        default="268435456",
    )
    receivers: int = option(
        READ & CORE & STREAMING,
        values.read_whole_number,
        "core NATS, streaming: number of connections that share the messages",
        default="1",
    )
    spool_location: str | None = option(
        READ & CORE & STREAMING,
        values.read_location,
        "core NATS, streaming: directory or URI in which micro-batches are stored until they are processed",
    )
