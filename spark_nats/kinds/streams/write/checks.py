"""Checks on the driver. Before the tasks: what would fail in each of them. After the tasks: their number.

Each task also checks again that its target is :func:`prepare_target_and_ask_entry`.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Sequence

from spark_nats import clock
from spark_nats.client.connection import Connection, connect
from spark_nats.errors import (
    JetStreamUnavailableError,
    NatsError,
    PublishError,
    SchemaError,
    StreamNotFoundError,
    answer_or_raise,
)
from spark_nats.jetstream.api import JetStream
from spark_nats.jetstream.consuming.consumers import too_old_error
from spark_nats.jetstream.creating import create_stream_if_missing
from spark_nats.jetstream.keyvalue import Bucket, Entry, create_bucket_if_missing, entry_of, value_question
from spark_nats.jetstream.listing import ask_matching_names, ask_stream_names, suggesting_names
from spark_nats.jetstream.messages import MessageAt, try_asking
from spark_nats.jetstream.streams import StreamInfo, describe_stream
from spark_nats.jetstream.views import StateOf
from spark_nats.kinds.kind import import_by_name
from spark_nats.kinds.streams.options import WriteOptions
from spark_nats.kinds.streams.write import conditions
from spark_nats.kinds.streams.write.columns import has_counters
from spark_nats.kinds.streams.write.notes import (
    check_can_read_back,
    parse_note,
    reporting_unusable_bucket,
    start_mark_at_end,
)
from spark_nats.kinds.streams.write.sink import PLAIN, Sink
from spark_nats.kinds.streams.write.tasks import StartMark
from spark_nats.protocol.control import is_older
from spark_nats.protocol.keyvalue import bucket_of
from spark_nats.protocol.subjects import find_overlap

logger = logging.getLogger(__name__)

_SPREADS_WITHIN = 3.0  # seconds within which all servers of a cluster know a new bucket
_ONCE_MORE = 0.1  # seconds between two attempts
# Columns that become headers on which every stream that hears them acts.
_ACTED_ON = ("ttl", "expected_last_subject_sequence", "expected_revision", "operation", "increment")
_PROBE = "probe"  # key that the driver writes to see whether the bucket accepts writes


def prepare_target_and_ask_entry(
    js: JetStream, options: WriteOptions, key: str | None = None
) -> tuple[StreamInfo, Entry | NatsError | None]:
    """Return the state of the target stream, after checking that it accepts and acknowledges rows.

    The stream is created first if the options say how, and it does not exist. The same round trip returns the entry of
    ``key`` in the state bucket, or the error of that request. The entry is None if no key is given, or if the options
    say how to create the stream.

    Raises:
        PublishError: the stream is a mirror, does not acknowledge what it stores, or recognizes no message ids although
            nothing else keeps rows from being stored twice.
        NatsError: the stream does not exist, or cannot be created, or the server does not report its state.
    """
    stream, entry = str(options.stream), None
    if options.requested_config is not None:
        found = create_stream_if_missing(js, options.requested_config)
    else:
        asked: list[StateOf | MessageAt] = [StateOf(stream)]
        if key is not None:
            asked.append(value_question(options.state_bucket, key))
        found, *others = try_asking(js, asked)
        found = answer_or_raise(found)
        if others:
            entry = others[0] if isinstance(others[0], NatsError) else entry_of(others[0])
    check_no_mirror(found)
    if found.config.get("no_ack"):
        raise PublishError(conditions.NO_ACKNOWLEDGEMENTS(stream=stream))
    if options.needs_window and not found.duplicate_window:
        instead = "false" if bucket_of(found.name) else "exact, which needs none, or false"
        raise PublishError(conditions.NO_WINDOW(target=describe_stream(found.name), instead=instead))
    return found, entry


def check_no_mirror(stream: StreamInfo) -> None:
    """Raise :class:`PublishError` if a stream is a mirror: it has no subjects, and stores only what its origin has."""
    if origin := stream.mirror_origin:
        raise PublishError(conditions.MIRRORS_ANOTHER(target=describe_stream(stream.name), origin=origin))


def ask_target_streams(js: JetStream, options: WriteOptions) -> tuple[str, ...]:
    """Return the names of the streams that rows go to: the named ones, or those that match and have subjects.

    Raises:
        StreamNotFoundError: no stream matches the pattern.
        NatsError: the server does not report the streams, or one of them.
    """
    if options.pattern is None:
        return options.streams
    names = ask_matching_names(js, options.pattern)
    found = [answer_or_raise(each) for each in try_asking(js, [StateOf(name) for name in names])]
    if not any(each.subjects for each in found):
        raise StreamNotFoundError(conditions.PATTERN_WITHOUT_TARGET(pattern=options.pattern.pattern))
    return tuple(each.name for each in found if each.subjects)


def prepare_write_and_make_marks(
    options: WriteOptions, streaming: bool, columns: Sequence[str] = (), sink: Sink = PLAIN
) -> tuple[StartMark, ...]:
    """Do once, on the driver, what would fail in every task: log in, check streams, state bucket and reading back.

    Returns:
        Where the streams end, for a batch write whose tasks need to know that.

    Raises:
        NatsError: one of these steps fails.
    """
    with connect(options.connection) as connection:
        js = JetStream(connection, options.api_prefix)
        writer = import_by_name(options.row_writer)(options, sink)
        writer.check_dead_letter_stream(js)
        if options.is_core:
            return ()
        streams: list[StreamInfo] = []
        for name in ask_target_streams(js, options):
            with sink.naming(js) if sink.naming else suggesting_names(js, [name], to_read=False):
                stream, _ = prepare_target_and_ask_entry(js, options.for_stream(name))
            if "ttl" in columns and not stream.config.get("allow_msg_ttl"):
                _check_new_enough(stream, "ttl", 2, 11)
                raise SchemaError(sink.no_lifetimes or conditions.NO_LIFETIMES(stream=name))
            _check_counters(stream, options, columns)
            relies_on_ids = not options.is_exact and (options.gives_ids or "msg_id" in columns)
            if relies_on_ids and not stream.duplicate_window:
                logger.warning(conditions.IDS_NOT_RECOGNIZED(target=describe_stream(name)).with_code)
            writer.check_target_stream(stream)
            _warn_of_republished(js, stream, [*_describe_acting_headers(options, columns), *writer.acted_on])
            streams.append(stream)
        if options.may_have_several_targets:
            check_targets_disjoint(streams)
        return _prepare_exact_and_make_marks(js, options, streams, streaming)


def _check_new_enough(stream: StreamInfo, column: str, *wanted: int) -> None:
    """Raise :class:`UnsupportedStreamError` if the stream's server does not know what a column needs of the stream."""
    if is_older(stream.server_version, *wanted):
        raise too_old_error(stream.name, stream.server_version, ".".join(map(str, wanted)), f"the column {column!r}")


def _check_counters(stream: StreamInfo, options: WriteOptions, columns: Sequence[str]) -> None:
    """Check that a stream of counters gets only increments, which expect nothing, and any other stream gets none."""
    if "increment" in columns and not has_counters(stream):
        _check_new_enough(stream, "increment", 2, 12)
        raise SchemaError(conditions.NO_COUNTERS(stream=stream.name))
    if not has_counters(stream):
        return
    if "increment" not in columns and not (options.control_headers and "headers" in columns):
        raise SchemaError(conditions.INCREMENTS_ONLY(stream=stream.name))
    if "expected_last_subject_sequence" in columns:
        raise SchemaError(conditions.COUNTERS_EXPECT_NOTHING(stream=stream.name))
    # Servers from 2.14.2 on, or a little before, create no such stream.
    if stream.config.get("allow_msg_schedules") and options.control_headers and "headers" in columns:
        raise SchemaError(conditions.COUNTERS_FIRE_NOTHING(stream=stream.name))


def _describe_acting_headers(options: WriteOptions, columns: Sequence[str]) -> list[str]:
    """Return what gives rows headers on which a stream acts that hears what the target republishes."""
    found = [f"the column '{name}'" for name in columns if name in _ACTED_ON]
    return [*found, "control headers"] if options.control_headers and "headers" in columns else found


def _warn_of_republished(js: JetStream, stream: StreamInfo, acted_on: Sequence[str]) -> None:
    """Warn where rows have headers for which a stream that hears what the target republishes may drop them."""
    dest = (stream.config.get("republish") or {}).get("dest")
    if not dest or not acted_on:
        return
    heard = ".".join("*" if re.search(r"\$[0-9]|{{", token) else token for token in dest.split("."))
    with contextlib.suppress(NatsError):  # a user who may write may not be allowed to ask
        if others := ask_stream_names(js, heard):
            target, named = describe_stream(stream.name), ", ".join(map(describe_stream, others))
            what = " or ".join(acted_on)
            said = conditions.REPUBLISHED_ROWS_REFUSED(target=target, dest=dest, others=named, what=what)
            logger.warning(said.with_code)


def check_not_fewer_partitions(
    connection: Connection, options: WriteOptions, query: str, batch: int, partitions: int
) -> None:
    """Check that a micro-batch that was begun before is not split into fewer partitions now.

    Raises:
        PublishError: there are fewer, so that rows of the missing partitions are stored twice.
        NatsError: the state bucket could not be read.
    """
    bucket = Bucket(JetStream(connection, options.api_prefix), options.state_bucket)
    with reporting_unusable_bucket(options):
        for key in bucket.ask_keys_with_deleted(f"{query}.>"):
            partition = key.removeprefix(f"{query}.").partition(".")[0]
            if partition.isdigit() and int(partition) >= partitions:
                state = parse_note(bucket.get(key), key)
                if state is not None and state.batch == batch and options.is_target(state.mark.stream):
                    whose = f"that partition {partition}, which does not exist now, stored before"
                    raise PublishError(conditions.OTHER_PARTITIONS(task=f"micro-batch {batch}", which=whose))


def check_targets_disjoint(streams: Sequence[StreamInfo]) -> None:
    """Check that each row has one of several streams to go to, which stores no rows of the others.

    Raises:
        PublishError: a stream has no subjects, copies another one, or two listen on a subject.
    """
    owner = {subject: each.name for each in streams for subject in each.subjects}
    for each in streams:
        if not each.subjects:
            raise PublishError(conditions.TARGET_HEARS_NOTHING(stream=each.name))
        for source in each.config.get("sources") or ():
            if source.get("name") in owner.values():
                raise PublishError(conditions.TARGET_COPIES_TARGET(stream=each.name, source=source["name"]))
    if (both := find_overlap(subject for each in streams for subject in each.subjects)) is not None:
        one, other = (repr(owner[subject]) for subject in both)
        raise PublishError(conditions.TARGETS_SHARE_SUBJECT(one=one, other=other, subject=both[0], wider=both[1]))


def _prepare_exact_and_make_marks(
    js: JetStream, options: WriteOptions, streams: Sequence[StreamInfo], streaming: bool
) -> tuple[StartMark, ...]:
    """Check, if ``deduplicate`` is exact, that tasks can note where they begin and read back what they have stored.

    A streaming query gets its state bucket here; a batch write has none.

    Returns:
        For a batch write with ``deduplicate`` exact, where the streams end now.

    Raises:
        NatsError: they cannot. The message tells what to permit, or how to do without.
    """
    if not options.is_exact:
        return ()
    if streaming:
        with reporting_unusable_bucket(options):
            purpose = "where micro-batches that Spark writes to streams begin"
            replicas = max(stream.replicas for stream in streams)
            state = create_bucket_if_missing(js, options.state_bucket, replicas=replicas, description=purpose)
            if origin := state.mirror_origin:
                raise PublishError(conditions.STATE_BUCKET_MIRRORS(bucket=options.state_bucket, origin=origin))
            _put_probe_with_retries(js, Bucket(js, options.state_bucket))
    for stream in streams:
        check_can_read_back(js, stream)
    return () if streaming else tuple(start_mark_at_end(js, stream) for stream in streams)


def _put_probe_with_retries(js: JetStream, bucket: Bucket) -> None:
    """Write a probe to a bucket. In a cluster, wait until the server knows a bucket that was just created."""
    deadline = clock.monotonic() + _SPREADS_WITHIN
    while True:
        try:
            bucket.put(_PROBE, b"{}")
            return
        except JetStreamUnavailableError:
            if not js.may_be_clustered or clock.monotonic() > deadline:
                raise
        js.connection.wait_while_receiving(_ONCE_MORE)
