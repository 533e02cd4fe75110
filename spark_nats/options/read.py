"""What a query reads: streams when the option ``stream`` is set, a KV bucket with ``bucket``, else core NATS."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, overload

from spark_nats.client.options import ConnectionOptions, RetryOptions
from spark_nats.errors import OptionError
from spark_nats.options.hints import VIEW
from spark_nats.options.settings import Settings, parse, retry_options, value_of
from spark_nats.options.streams import stream_to_create
from spark_nats.options.table import BATCH, BUCKET, CORE, READ, STREAM, STREAMING
from spark_nats.options.values import EARLIEST, ERROR, LATEST, Offsets, Place, read_filters, read_subjects
from spark_nats.protocol.keyvalue import bucket_config, key_filter, stream_of


@dataclass(frozen=True, slots=True)
class TriggerLimits:
    """How much a micro-batch has. See :data:`~spark_nats.options.table.OPTIONS` for the meaning of each.

    ``max_delay`` is None in a batch.
    """

    max_offsets: int | None
    max_bytes: int | None
    min_offsets: int | None
    max_delay: float | None


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What to read of streams and how. See :data:`~spark_nats.options.table.OPTIONS` for the meaning of each.

    ``ending`` is None in streaming, which has no end; ``consume`` and ``consumer`` are None in a batch, ``peek`` in
    streaming. The changes of a KV bucket are read as those of its stream, and ``bucket`` names it then. With a
    ``pattern``, which says what is read, ``streams`` is empty.
    """

    connection: ConnectionOptions
    api_prefix: str
    streams: tuple[str, ...]
    filters: tuple[str, ...]
    starting: Offsets | datetime
    starting_must_exist: bool
    ending: Offsets | datetime | None
    limits: TriggerLimits
    min_partitions: int
    max_records_per_partition: int
    fail_on_data_loss: bool
    filter_pushdown: bool | None
    create_stream: dict[str, Any] | None
    consume: bool | None
    consumer: str | None
    peek: bool | None
    retries: RetryOptions
    bucket: str | None = None
    ignore_deletes: bool = False
    pattern: re.Pattern[str] | None = None


@dataclass(frozen=True, slots=True)
class BucketReadOptions:
    """What a batch reads of a KV bucket. See :data:`~spark_nats.options.table.OPTIONS` for the meaning of each."""

    connection: ConnectionOptions
    api_prefix: str
    bucket: str
    keys: tuple[str, ...]
    history: bool
    ignore_deletes: bool
    create_bucket: dict[str, Any] | None
    retries: RetryOptions


@dataclass(frozen=True, slots=True)
class CoreReadOptions:
    """What to read of core NATS and how. See :data:`~spark_nats.options.table.OPTIONS` for the meaning of each.

    What applies to batches only is None in streaming, and the other way round.
    """

    connection: ConnectionOptions
    subjects: tuple[str, ...]
    queue_group: str | None
    min_partitions: int
    read_timeout: float
    max_messages: int | None
    limits: TriggerLimits
    max_buffered_bytes: int
    receivers: int
    spool_location: str | None
    fail_on_data_loss: bool
    retries: RetryOptions


@overload
def parse_read(options: Mapping[str, str] | Settings, streaming: Literal[True]) -> ReadOptions | CoreReadOptions: ...
@overload
def parse_read(
    options: Mapping[str, str] | Settings, streaming: bool
) -> ReadOptions | BucketReadOptions | CoreReadOptions: ...
def parse_read(
    options: Mapping[str, str] | Settings, streaming: bool
) -> ReadOptions | BucketReadOptions | CoreReadOptions:
    """Return the options of a read.

    Raises:
        OptionError: one of them is invalid or does not apply, or two contradict each other.
    """
    settings = parse(options)
    mode = STREAMING if streaming else BATCH
    if "bucket" in settings.given:
        return _bucket(settings, streaming)
    if not {"stream", "streamPattern"} & set(settings.given):
        if "subject" not in settings.given:
            raise OptionError(
                "nothing to read is named: set the option 'stream', 'streamPattern' or 'bucket', or 'subject' alone to "
                "read core NATS as it is published"
                + ("" if settings.given else f"; if this is a table, Spark has not handed on its options: {VIEW}")
            )
        return _core(settings, settings.values(READ & CORE & mode))
    values = settings.values(READ & STREAM & mode)
    streams, pattern = values["stream"] or (), values["streamPattern"]
    if pattern is not None:
        _check_pattern(values)
    if values["consumer"] and not values["consume"]:
        raise OptionError("option 'consumer' needs the option 'consume' to be true; without it there is no consumer")
    if values["consume"] and "startingOffsets" not in settings.given:
        values["startingOffsets"] = EARLIEST  # or what is there already would be released unread
    starting = values["startingTimestamp"] or values["startingOffsets"]
    ending = values["endingTimestamp"] or values["endingOffsets"]
    if not streaming:
        if _mentions(starting, LATEST):
            raise OptionError(
                "option 'startingOffsets' is latest, where a batch read has nothing to read; use earliest"
            )
        if _mentions(ending, EARLIEST):
            raise OptionError("option 'endingOffsets' is earliest, where a batch read has nothing to read; use latest")
    if pattern is None:  # or it is known later which streams there are
        _check_streams("startingOffsets", starting, streams)
        _check_streams("endingOffsets", ending, streams)
    _check_order(starting, ending)
    filters = value_of("subject", values["subject"], read_filters) if values["subject"] else ()
    return ReadOptions(
        connection=settings.connection,
        api_prefix=settings.api_prefix,
        streams=streams,
        filters=filters,
        starting=starting,
        starting_must_exist=values["startingOffsetsByTimestampStrategy"] == ERROR,
        ending=ending,
        limits=_limits(values),
        min_partitions=values["minPartitions"],
        max_records_per_partition=values["maxRecordsPerPartition"],
        fail_on_data_loss=values["failOnDataLoss"],
        filter_pushdown=values["filterPushdown"],
        create_stream=stream_to_create(values, streams, filters),
        consume=values["consume"],
        consumer=values["consumer"],
        peek=values["peek"],
        retries=retry_options(values, settings.connection),
        pattern=pattern,
    )


def _check_pattern(values: Mapping[str, Any]) -> None:
    """Check that nothing is asked for that has to know the streams before they are there."""
    if values["consume"]:
        raise OptionError(
            "options 'streamPattern' and 'consume' contradict each other: what a stream is given before it is found "
            "would be held by no durable consumer of the query; name the streams in the option 'stream'"
        )
    if values["createStream"]:
        raise OptionError(
            "options 'streamPattern' and 'createStream' contradict each other: a pattern does not say what to make; "
            "name the stream in the option 'stream'"
        )


def _bucket(settings: Settings, streaming: bool) -> ReadOptions | BucketReadOptions:
    values = settings.values(READ & BUCKET & (STREAMING if streaming else BATCH))
    bucket, keys, wish = values["bucket"], values["keys"] or (), values["createBucket"]
    if not streaming:
        return BucketReadOptions(
            connection=settings.connection,
            api_prefix=settings.api_prefix,
            bucket=bucket,
            keys=keys,
            history=values["history"],
            ignore_deletes=values["ignoreDeletes"],
            create_bucket=None if wish is None else bucket_config(bucket, wish),
            retries=retry_options(values, settings.connection),
        )
    starting = values["startingTimestamp"] or values["startingOffsets"]
    _check_streams("startingOffsets", starting, (bucket,))
    stream = stream_of(bucket)
    return ReadOptions(
        connection=settings.connection,
        api_prefix=settings.api_prefix,
        streams=(stream,),
        filters=tuple(key_filter(key) for key in keys),
        starting={stream: starting[bucket]} if isinstance(starting, dict) else starting,
        starting_must_exist=values["startingOffsetsByTimestampStrategy"] == ERROR,
        ending=None,
        limits=_limits(values),
        min_partitions=values["minPartitions"],
        max_records_per_partition=values["maxRecordsPerPartition"],
        fail_on_data_loss=values["failOnDataLoss"],
        filter_pushdown=None,
        create_stream=None if wish is None else bucket_config(bucket, wish),
        consume=False,
        consumer=None,
        peek=None,
        retries=retry_options(values, settings.connection),
        bucket=bucket,
        ignore_deletes=values["ignoreDeletes"],
    )


def _core(settings: Settings, values: Mapping[str, Any]) -> CoreReadOptions:
    return CoreReadOptions(
        connection=settings.connection,
        subjects=value_of("subject", values["subject"], read_subjects),
        queue_group=values["queueGroup"],
        min_partitions=values["minPartitions"],
        read_timeout=values["readTimeout"],
        max_messages=values["maxMessages"],
        limits=_limits(values),
        max_buffered_bytes=values["maxBufferedBytes"],
        receivers=values["receivers"],
        spool_location=values["spoolLocation"],
        fail_on_data_loss=values["failOnDataLoss"],
        retries=retry_options(values, settings.connection),
    )


def _limits(values: Mapping[str, Any]) -> TriggerLimits:
    most, least = values["maxOffsetsPerTrigger"], values["minOffsetsPerTrigger"]
    if most and least and least > most:
        raise OptionError(
            f"option 'minOffsetsPerTrigger' is {least}, which is more than 'maxOffsetsPerTrigger', {most}; no "
            "micro-batch can be both, so exchange or correct them"
        )
    return TriggerLimits(
        max_offsets=most,
        max_bytes=values["maxBytesPerTrigger"],
        min_offsets=least,
        max_delay=values["maxTriggerDelay"],
    )


def _mentions(offsets: Offsets | datetime | None, word: str) -> bool:
    return offsets == word or (isinstance(offsets, dict) and word in offsets.values())


def _check_streams(name: str, offsets: Offsets | datetime | None, streams: tuple[str, ...]) -> None:
    if isinstance(offsets, dict) and set(offsets) != set(streams):
        raise OptionError(
            f"option '{name}' has offsets for {', '.join(sorted(offsets)) or 'no stream'}, "
            f"but the streams to read are {', '.join(streams)}"
        )


def _check_order(starting: Offsets | datetime | None, ending: Offsets | datetime | None) -> None:
    if isinstance(starting, datetime) and isinstance(ending, datetime) and ending < starting:
        raise OptionError(
            f"option 'endingTimestamp' is {ending.isoformat()}, which is before 'startingTimestamp', "
            f"{starting.isoformat()}; nothing can be read, so exchange or correct them"
        )
    if isinstance(starting, dict) and isinstance(ending, dict):
        for name, end in ending.items():
            start = starting.get(name)
            if isinstance(start, Place) and isinstance(end, Place) and end.next < start.next:
                raise OptionError(
                    f"option 'endingOffsets' has {end.next} for the stream {name!r}, which is below its {start.next} "
                    "in 'startingOffsets'; nothing can be read, so exchange or correct them"
                )
