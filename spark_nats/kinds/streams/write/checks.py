"""What the driver checks: what would fail in each task, before there are any, and their number, when they are done."""

from __future__ import annotations

from collections.abc import Sequence

from spark_nats import clock
from spark_nats.client.connecting import connect
from spark_nats.client.connection import Connection
from spark_nats.errors import (
    JetStreamError,
    JetStreamUnavailableError,
    NatsError,
    PermissionsError,
    PublishError,
    SchemaError,
    StreamNotFoundError,
)
from spark_nats.jetstream.api import JetStream
from spark_nats.jetstream.consuming.consumers import try_to_read
from spark_nats.jetstream.creating import create_stream
from spark_nats.jetstream.keyvalue import Bucket, Entry, entry_of, make_bucket, naming_bucket, what_holds
from spark_nats.jetstream.listing import naming_the_nearest
from spark_nats.jetstream.messages import MessageAt, ask_each, next_message
from spark_nats.jetstream.streams import LIMITS, StreamInfo, in_words
from spark_nats.jetstream.views import StateOf, stream_info
from spark_nats.kinds.streams.options import WriteOptions
from spark_nats.kinds.streams.write.conditions import (
    BAD_ROWS_ARE_NO_INCREMENTS,
    BAD_ROWS_NEED_ROOM,
    BAD_ROWS_STREAM_MISSING,
    CANNOT_READ_BACK,
    COUNTERS_EXPECT_NOTHING,
    INCREMENTS_ONLY,
    MIRRORS_ANOTHER,
    NO_ACKNOWLEDGEMENTS,
    NO_COUNTERS,
    NO_LIFETIMES,
    NO_LIFETIMES_OF_KEYS,
    OTHER_PARTITIONS,
    SERVER_STORES_SINGLY,
    STATE_BUCKET_MIRRORS,
    STREAM_STORES_SINGLY,
)
from spark_nats.kinds.streams.write.dead_letters import LEAST_SIZE, largest_message, subject_of_bad_rows
from spark_nats.kinds.streams.write.notes import about_the_bucket, began_now, note_of
from spark_nats.kinds.streams.write.tasks import Began
from spark_nats.options.values import EXACT

_SPREADS_WITHIN = 3.0  # seconds in which all servers of a cluster know that a bucket listens
_ONCE_MORE = 0.1  # seconds before it is tried again
_PROBE = "probe"  # key by which the driver tells whether the bucket can be written to


def writable(connection: Connection, options: WriteOptions) -> StreamInfo:
    """Return the state of the stream that is written to: what is wrong with it is said before anything is sent.

    Raises:
        PublishError: it is a mirror, or does not acknowledge what it stores.
        NatsError: there is none, or the server does not say.
    """
    return writable_with(connection, options, None)[0]


def writable_with(
    connection: Connection, options: WriteOptions, key: str | None
) -> tuple[StreamInfo, Entry | NatsError | None]:
    """Return the same, and what a key of the state bucket holds: in one round trip, unless the stream is made.

    The second is an error if the key's answer is, and None if no key is named.
    """
    js, stream, entry = JetStream(connection, options.api_prefix), str(options.stream), None
    if options.create_stream is not None:
        found = create_stream(js, options.create_stream)
    else:
        asked: list[StateOf | MessageAt] = [StateOf(stream)]
        if key is not None:
            asked.append(what_holds(options.state_bucket, key))
        found, *others = ask_each(js, asked)
        if isinstance(found, NatsError):
            raise found
        if others:
            entry = others[0] if isinstance(others[0], NatsError) else entry_of(others[0])
    refuse_mirror(found)
    if found.config.get("no_ack"):
        raise PublishError(NO_ACKNOWLEDGEMENTS(stream=stream))
    return found, entry


def refuse_mirror(stream: StreamInfo) -> None:
    """Raise :class:`PublishError` if a stream is a mirror: it listens on nothing, and stores what its origin has."""
    if origin := stream.origin:
        raise PublishError(MIRRORS_ANOTHER(target=in_words(stream.name), origin=origin))


def prepare(options: WriteOptions, streaming: bool, columns: Sequence[str] = ()) -> Began | None:
    """Do once, on the driver, what would fail in every task: log in, look at the stream, see that tasks can settle.

    Returns:
        Where the stream ends, if the tasks of a batch write are to know.

    Raises:
        NatsError: something of that is not possible.
    """
    with connect(options.connection) as connection:
        js, bucket = JetStream(connection, options.api_prefix), options.bucket
        if options.bad_rows_stream is not None:
            _check_bad_rows_stream(js, options, options.bad_rows_stream)
        if options.stream is None:
            return None
        with naming_bucket(js, bucket) if bucket else naming_the_nearest(js, [options.stream], to_read=False):
            stream = writable(connection, options)
        _check_stream(stream, options, columns)
        if options.atomic and connection.info.is_older_than(2, 12):
            raise PublishError(SERVER_STORES_SINGLY(version=connection.info.version))
        if options.atomic and not stream.config.get("allow_atomic"):
            raise PublishError(STREAM_STORES_SINGLY(stream=stream.name))
        return _prepare_to_settle(js, options, stream, streaming)


def _check_bad_rows_stream(js: JetStream, options: WriteOptions, name: str) -> None:
    """Check that a stream can take rows that cannot be sent, and that tasks can read back what they store there."""
    try:
        with naming_the_nearest(js, [name], to_read=False):
            stream = stream_info(js, name)
    except StreamNotFoundError as error:
        raise error.with_context(BAD_ROWS_STREAM_MISSING(reason=error)) from None
    if stream.config.get("no_ack"):
        raise PublishError(NO_ACKNOWLEDGEMENTS(stream=name))
    if has_counters(stream):
        raise PublishError(BAD_ROWS_ARE_NO_INCREMENTS(stream=name))
    subject_of_bad_rows(stream, options)
    if (most := largest_message(stream)) < LEAST_SIZE:
        raise PublishError(BAD_ROWS_NEED_ROOM(stream=name, size=most, least=LEAST_SIZE))
    if options.deduplicate == EXACT:
        _try_to_read(js, stream, singly=True)


def _check_stream(stream: StreamInfo, options: WriteOptions, columns: Sequence[str]) -> None:
    """Check that a stream takes what the columns ask for."""
    if "ttl" in columns and not stream.config.get("allow_msg_ttl"):
        if options.bucket is not None:
            raise SchemaError(NO_LIFETIMES_OF_KEYS(bucket=options.bucket))
        raise SchemaError(NO_LIFETIMES(stream=stream.name))
    if "increment" in columns and not has_counters(stream):
        raise SchemaError(NO_COUNTERS(stream=stream.name))
    if not has_counters(stream):
        return
    if "increment" not in columns and not (options.control_headers and "headers" in columns):
        raise SchemaError(INCREMENTS_ONLY(stream=stream.name))
    if "expected_last_subject_sequence" in columns:
        raise SchemaError(COUNTERS_EXPECT_NOTHING(stream=stream.name))


def has_counters(stream: StreamInfo) -> bool:
    """Tell whether each subject of a stream is a counter (ADR-49)."""
    return bool(stream.config.get("allow_msg_counter"))


def check_partitions(connection: Connection, options: WriteOptions, query: str, batch: int, partitions: int) -> None:
    """Check that a micro-batch, if it was begun before, is not split into fewer partitions now.

    Raises:
        PublishError: it is, so that rows of the partitions that are gone were stored twice.
        NatsError: the state could not be read.
    """
    bucket = Bucket(JetStream(connection, options.api_prefix), options.state_bucket)
    with about_the_bucket(options):
        for key in bucket.keys(f"{query}.*"):
            partition = key.rpartition(".")[2]
            if partition.isdigit() and int(partition) >= partitions:
                state = note_of(bucket.get(key), key)
                if state is not None and state.batch == batch and state.began.stream == options.stream:
                    whose = f"partition {partition}, which it does not have now"
                    raise PublishError(OTHER_PARTITIONS(task=f"micro-batch {batch}", partition=whose))


def _prepare_to_settle(js: JetStream, options: WriteOptions, stream: StreamInfo, streaming: bool) -> Began | None:
    """Make sure that tasks can note what they begin, and read back what they have stored.

    Returns:
        For a batch write, where the stream ends now.

    Raises:
        NatsError: they cannot. The message says what to permit, or how to do without.
    """
    if options.deduplicate != EXACT:
        return None
    if streaming:
        with about_the_bucket(options):
            purpose = "where micro-batches that Spark writes to streams begin"
            state = make_bucket(js, options.state_bucket, replicas=stream.replicas, description=purpose)
            if state.origin:
                raise PublishError(STATE_BUCKET_MIRRORS(bucket=options.state_bucket, origin=state.origin))
            _put_probe(js, Bucket(js, options.state_bucket))
    _try_to_read(js, stream)
    return None if streaming else began_now(stream)


def _put_probe(js: JetStream, bucket: Bucket) -> None:
    """See whether a bucket can be written to. In a cluster not every server knows at once of one that was just made."""
    deadline = clock.monotonic() + _SPREADS_WITHIN
    while True:
        try:
            bucket.put(_PROBE, b"{}")
            return
        except JetStreamUnavailableError:
            if not js.connection.info.cluster or clock.monotonic() > deadline:
                raise
        js.connection.wait(_ONCE_MORE)


def _try_to_read(js: JetStream, stream: StreamInfo, singly: bool = False) -> None:
    """See whether tasks can read back what they store in a stream, where that takes messages from nobody.

    If ``singly``, also one message at a time, by which the first one since a time is found.
    """
    if stream.retention == LIMITS:
        try:
            try_to_read(js, stream.name, stream.last_sequence + 1)
            if singly:
                next_message(js, stream.name, stream.last_sequence + 1, (">",), whole=False)
        except (PermissionsError, JetStreamError) as error:
            raise error.with_context(CANNOT_READ_BACK(stream=stream.name, reason=error)) from None
