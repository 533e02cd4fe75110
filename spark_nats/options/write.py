"""What a query writes to: a stream when the option ``stream`` is set, a KV bucket with ``bucket``, else core NATS."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from spark_nats.client.options import ConnectionOptions, RetryOptions
from spark_nats.errors import OptionError
from spark_nats.options.settings import Settings, parse, retry_options
from spark_nats.options.streams import stream_to_create
from spark_nats.options.table import BATCH, BUCKET, CORE, STREAM, STREAMING, WRITE
from spark_nats.options.values import EXACT
from spark_nats.protocol.keyvalue import bucket_config, stream_of
from spark_nats.protocol.subjects import subject_violation


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Where to write and how. See :data:`~spark_nats.options.table.OPTIONS` for the meaning of each.

    What applies to streams only is None for core NATS. A KV bucket is written to as its stream is, and ``bucket`` names
    it then.
    """

    connection: ConnectionOptions
    api_prefix: str
    stream: str | None
    subject: str | None
    max_in_flight: int
    ack_timeout: float
    deduplicate: str
    state_bucket: str | None
    fail_on_data_loss: bool
    control_headers: bool
    atomic: bool
    create_stream: dict[str, Any] | None
    retries: RetryOptions
    bucket: str | None = None
    on_conflict: str | None = None


def parse_write(options: Mapping[str, str] | Settings, streaming: bool) -> WriteOptions:
    """Return the options of a write.

    Raises:
        OptionError: one of them is invalid or does not apply, or two contradict each other.
    """
    settings = parse(options)
    bucket = settings.given.get("bucket")
    streams = (stream_of(bucket),) if bucket else settings.given.get("stream", ())
    if len(streams) > 1:
        raise OptionError(f"option 'stream' names {len(streams)} streams; a query writes to one")
    kind = BUCKET if bucket else STREAM if streams else CORE
    values = settings.values(WRITE & kind & (STREAMING if streaming else BATCH))
    subject = values["subject"]
    if subject is not None and (violation := subject_violation(subject)):
        raise OptionError(f"option 'subject' is {subject!r}; for writing it must be one subject, but it {violation}")
    return WriteOptions(
        connection=settings.connection,
        api_prefix=settings.api_prefix,
        stream=streams[0] if streams else None,
        subject=subject,
        max_in_flight=values["maxInFlight"],
        ack_timeout=values["ackTimeout"],
        deduplicate=_deduplicate(values, bucket),
        state_bucket=values["stateBucket"],
        fail_on_data_loss=values["failOnDataLoss"],
        control_headers=values["controlHeaders"],
        atomic=bool(values["atomic"]),
        create_stream=_to_create(values, bucket, streams),
        retries=retry_options(values, settings.connection),
        bucket=bucket,
        on_conflict=values["onConflict"],
    )


def _deduplicate(values: Mapping[str, Any], bucket: str | None) -> str:
    """Return how; what a bucket held cannot be read back, since later revisions have taken its place."""
    wish: str = values["deduplicate"]
    if bucket is not None and wish == EXACT:
        raise OptionError(
            "option 'deduplicate' is exact, which is not possible for a KV bucket, where later revisions take the "
            "place of what was stored; set it to window"
        )
    return wish


def _to_create(values: Mapping[str, Any], bucket: str | None, streams: tuple[str, ...]) -> dict[str, Any] | None:
    if bucket is None:
        return stream_to_create(values, streams, (values["subject"],) if values["subject"] else ())
    wish = values["createBucket"]
    return None if wish is None else bucket_config(bucket, wish)
