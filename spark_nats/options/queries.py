"""What a query is about, and what it has of options, with what contradicts.

It reads or writes streams when the option ``stream`` is set, a KV bucket with ``bucket``, else core NATS. It reads what
an account holds with ``table``, and the objects of an object store with ``objectStore``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Literal, overload

from spark_nats.conditions.options import (
    BAD_ROWS_GO_NOWHERE,
    BAD_ROWS_NEED_STREAM,
    BAD_ROWS_STREAM_IS_TARGET,
    BAD_ROWS_WITH_ATOMIC,
    CONSUMER_NEEDS_CONSUME,
    ENDS_BEFORE_OFFSET,
    ENDS_BEFORE_TIME,
    EXACT_NEEDS_STREAM,
    FOREACH_WRITES_NO_OBJECTS,
    MORE_THAN_MOST,
    NOTHING_AFTER_LATEST,
    NOTHING_BEFORE_EARLIEST,
    NOTHING_TO_READ,
    OFFSETS_FOR_OTHERS,
    ONE_STREAM_TO_WRITE,
    ONE_SUBJECT_TO_WRITE,
    PATTERN_CANNOT_CONSUME,
    PATTERN_CANNOT_CREATE,
    PROGRESS_WITH_CONSUME,
    PUSHDOWN_OF_OTHER_SCANS,
    SUBJECT_NEEDS_SUBJECTS,
    TABLE_IS_FOR_BATCHES,
)
from spark_nats.errors import OptionError
from spark_nats.kinds.objects.wire import descriptions, store_config, stream_of_store
from spark_nats.options.nearest import VIEW
from spark_nats.options.query import Target
from spark_nats.options.read import (
    BucketReadOptions,
    CoreReadOptions,
    ObjectReadOptions,
    ReadOptions,
    TableReadOptions,
    TriggerLimits,
)
from spark_nats.options.rows import BATCH, BUCKET, CORE, OBJECTS, READ, STREAM, STREAMING, WRITE, Use
from spark_nats.options.settings import Settings, parse
from spark_nats.options.values import EARLIEST, EXACT, FAIL, LATEST, NEVER, SUBJECTS, TO_STREAM, Offsets, Place
from spark_nats.options.write import ObjectWriteOptions, WriteOptions
from spark_nats.protocol.keyvalue import stream_of
from spark_nats.protocol.subjects import subject_violation

Given = Mapping[str, str] | Settings
BatchOptions = ReadOptions | BucketReadOptions | TableReadOptions | ObjectReadOptions | CoreReadOptions


@overload
def parse_read(options: Given, streaming: Literal[True]) -> ReadOptions | CoreReadOptions: ...
@overload
def parse_read(options: Given, streaming: bool) -> BatchOptions: ...
def parse_read(options: Given, streaming: bool) -> BatchOptions:
    """Return the options of a read.

    Raises:
        OptionError: one of them is invalid or does not apply, or two contradict each other.
    """
    settings = parse(options)
    target = settings.of(Target)
    if target.table:
        return _read_table(settings, target.table, target, streaming)
    if target.object_store:
        return _read_objects(settings, target.object_store, streaming)
    kind = BUCKET if target.bucket else STREAM if target.stream or target.stream_pattern else CORE
    if kind is CORE and target.subject is None:
        hint = "" if settings.given else f"; if this is a table, Spark has not passed on its options: {VIEW}"
        raise OptionError(NOTHING_TO_READ(hint=hint))
    use = READ & kind & (STREAMING if streaming else BATCH)
    settings.check(use)
    if kind is CORE:
        values = settings.values(CoreReadOptions, use)
        return CoreReadOptions(**values, subjects=target.subjects, limits=_limits(settings, use))
    if target.bucket and not streaming:
        values, create = settings.values(BucketReadOptions, use), target.to_create(())
        return BucketReadOptions(**values, bucket=target.bucket, keys=target.keys or (), create_bucket=create)
    return _read(settings, settings.of(Target, use), use)


def _read_table(settings: Settings, table: str, target: Target, streaming: bool) -> TableReadOptions:
    """Return the options of a read of what an account holds."""
    if streaming:
        raise OptionError(TABLE_IS_FOR_BATCHES(table=table))
    settings.check(Use.READ_TABLE_IN_BATCH)
    if target.subject is not None and table != SUBJECTS:
        raise OptionError(SUBJECT_NEEDS_SUBJECTS(table=table))
    return TableReadOptions(
        **settings.values(TableReadOptions, Use.READ_TABLE_IN_BATCH),
        table=table,
        streams=target.stream or (),
        pattern=target.stream_pattern,
        filters=target.filters,
    )


def _read_objects(settings: Settings, store: str, streaming: bool) -> ObjectReadOptions | ReadOptions:
    """Return the options of a read of an object store: of its objects, or of its stream in which they change."""
    use = Use.READ_OBJECTS_IN_STREAMING if streaming else Use.READ_OBJECTS_IN_BATCH
    settings.check(use)
    target = settings.of(Target, use)
    values = settings.values(ObjectReadOptions, use)
    objects = ObjectReadOptions(**values, store=store, pattern=target.object_pattern)
    return _read(settings, target, use, objects) if streaming else objects


def _read(settings: Settings, target: Target, use: Use, objects: ObjectReadOptions | None = None) -> ReadOptions:
    """Return the options of a read of streams, one of which may be what a bucket is, or an object store."""
    if target.stream_pattern and target.create_stream:
        raise OptionError(PATTERN_CANNOT_CREATE())
    bucket, streams = target.bucket, target.stream or ()
    filters = target.key_filters if bucket else target.filters
    kept = {bucket: stream_of(bucket)} if bucket else {}  # by its name the stream that it is
    if objects is not None:
        kept, filters = {objects.store: stream_of_store(objects.store)}, (descriptions(objects.store),)
    parsed = ReadOptions(
        **settings.values(ReadOptions, use),
        streams=tuple(kept.values()) or streams,
        pattern=target.stream_pattern,
        bucket=bucket,
        objects=objects,
        filters=filters,
        starting=target.starting_timestamp or target.starting_offsets,
        ending=target.ending_timestamp or target.ending_offsets if use in BATCH else None,
        limits=_limits(settings, use),
        create_stream=target.to_create(filters),
    )
    if parsed.pattern and parsed.consume:
        raise OptionError(PATTERN_CANNOT_CONSUME())
    for name, chosen in (("filterPushdown", parsed.filter_pushdown), ("limitPushdown", parsed.limit_pushdown)):
        if chosen:
            raise OptionError(PUSHDOWN_OF_OTHER_SCANS(option=name))
    if parsed.progress_consumer and parsed.consume:
        raise OptionError(PROGRESS_WITH_CONSUME())
    if parsed.consumer and not parsed.consume:
        raise OptionError(CONSUMER_NEEDS_CONSUME())
    _check_range(parsed.starting, parsed.ending)
    if not parsed.pattern:  # or it is known later which streams there are
        _check_streams("startingOffsets", parsed.starting, tuple(kept) or streams)
        _check_streams("endingOffsets", parsed.ending, streams)
    if kept and isinstance(parsed.starting, dict):
        return replace(parsed, starting={kept[name]: place for name, place in parsed.starting.items()})
    if parsed.consume and not {"startingOffsets", "startingTimestamp"} & set(settings.given):
        return replace(parsed, starting=EARLIEST)  # or what is there already would be released unread
    return parsed


def parse_write(options: Given, streaming: bool) -> WriteOptions:
    """Return the options of a write.

    Raises:
        OptionError: one of them is invalid or does not apply, or two contradict each other.
    """
    settings = parse(options)
    target = settings.of(Target)
    if target.object_store:
        raise OptionError(FOREACH_WRITES_NO_OBJECTS())
    bucket, subject = target.bucket, target.subject
    streams = (stream_of(bucket),) if bucket else target.stream or ()
    if len(streams) > 1:
        raise OptionError(ONE_STREAM_TO_WRITE(streams=len(streams)))
    use = WRITE & (BUCKET if bucket else STREAM if streams else CORE) & (STREAMING if streaming else BATCH)
    settings.check(use)
    if subject is not None and (violation := subject_violation(subject)):
        raise OptionError(ONE_SUBJECT_TO_WRITE(subject=subject, violation=violation))
    parsed = WriteOptions(
        **settings.values(WriteOptions, use),
        stream=streams[0] if streams else None,
        bucket=bucket,
        subject=subject,
        create_stream=target.to_create((subject,) if subject else ()),
        state_bucket=target.state_bucket,
    )
    _check_bad_rows(parsed)
    if not streams:
        return replace(parsed, deduplicate=NEVER)
    if bucket and parsed.deduplicate == EXACT:  # what it held cannot be read back
        raise OptionError(EXACT_NEEDS_STREAM())
    return parsed


def _check_bad_rows(options: WriteOptions) -> None:
    what, stream = options.bad_rows, options.bad_rows_stream
    if what == TO_STREAM and stream is None:
        raise OptionError(BAD_ROWS_NEED_STREAM())
    if what != TO_STREAM and stream is not None:
        raise OptionError(BAD_ROWS_GO_NOWHERE(stream=stream, what=what))
    if stream is not None and stream == options.stream:
        raise OptionError(BAD_ROWS_STREAM_IS_TARGET(stream=stream))
    if what != FAIL and options.atomic:
        raise OptionError(BAD_ROWS_WITH_ATOMIC(what=what))


def parse_write_objects(options: Given, streaming: bool) -> ObjectWriteOptions:
    """Return the options of a write to an object store.

    Raises:
        OptionError: one of them is invalid or does not apply, or two contradict each other.
    """
    settings = parse(options)
    target = settings.of(Target)
    use = WRITE & OBJECTS & (STREAMING if streaming else BATCH)
    settings.check(use)
    store, create = target.object_store or "", target.create_object_store
    config = None if create is None else store_config(store, create)
    return ObjectWriteOptions(**settings.values(ObjectWriteOptions, use), store=store, create=config)


def _limits(settings: Settings, use: Use) -> TriggerLimits:
    limits = settings.of(TriggerLimits, use)
    most, least = limits.max_offsets, limits.min_offsets
    if most and least and least > most:
        raise OptionError(MORE_THAN_MOST(least=least, most=most))
    return limits


def _mentions(offsets: Offsets | datetime, word: str) -> bool:
    return offsets == word or (isinstance(offsets, dict) and word in offsets.values())


def _check_streams(name: str, offsets: Offsets | datetime | None, streams: tuple[str, ...]) -> None:
    if isinstance(offsets, dict) and set(offsets) != set(streams):
        found = ", ".join(sorted(offsets)) or "no stream"
        raise OptionError(OFFSETS_FOR_OTHERS(option=name, offsets=found, streams=", ".join(streams)))


def _check_range(starting: Offsets | datetime, ending: Offsets | datetime | None) -> None:
    """Check that a batch has something to read between its beginning and its end, as far as options can tell."""
    if ending is None:
        return
    if _mentions(starting, LATEST):
        raise OptionError(NOTHING_AFTER_LATEST())
    if _mentions(ending, EARLIEST):
        raise OptionError(NOTHING_BEFORE_EARLIEST())
    if isinstance(starting, datetime) and isinstance(ending, datetime) and ending < starting:
        raise OptionError(ENDS_BEFORE_TIME(end=ending.isoformat(), start=starting.isoformat()))
    if isinstance(starting, dict) and isinstance(ending, dict):
        for name, end in ending.items():
            start = starting.get(name)
            if isinstance(start, Place) and isinstance(end, Place) and end.next < start.next:
                raise OptionError(ENDS_BEFORE_OFFSET(end=end.next, stream=name, start=start.next))
