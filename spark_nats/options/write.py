"""What a query writes to, and how."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from spark_nats.options import values
from spark_nats.options.query import Query
from spark_nats.options.rows import BUCKET, OBJECTS, STREAM, WRITE, option
from spark_nats.options.values import EXACT, FAIL, NEVER, WINDOW


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions(Query):
    """Where to write and how.

    Without a ``stream`` that is core NATS. A KV bucket is written to as its stream is, and ``bucket`` names it then.
    """

    stream: str | None
    bucket: str | None
    subject: str | None
    create_stream: dict[str, Any] | None
    state_bucket: str
    max_in_flight: int = option(
        WRITE & (STREAM | BUCKET),
        values.read_whole_number,
        "most rows of a task that are sent and not yet acknowledged; fewer while the server says that it is too much",
        default="8192",
    )
    ack_timeout: float = option(
        WRITE & (STREAM | BUCKET),
        values.read_duration,
        "fail the task when no row was stored for so long, although the connection works",
        default="30s",
    )
    deduplicate: str = option(
        WRITE & (STREAM | BUCKET),
        values.read_deduplicate,
        "do not store a row twice when it is written again: `exact` however late, `window` within the stream's "
        "`duplicate_window`; `false`: store it again",
        default=EXACT,
        batch_default=NEVER,
        bucket_default=WINDOW,
    )
    atomic: bool = option(
        WRITE & STREAM,
        values.read_boolean,
        "store the rows of each partition, 1,000 at most, together or not at all; needs a stream with `allow_atomic`",
        default="false",
    )
    on_conflict: str = option(
        WRITE & BUCKET,
        values.read_on_conflict,
        "what to do with a row whose key has another revision than `expected_revision`: `fail` the task or `skip` "
        "the row",
        default=FAIL,
    )
    bad_rows: str = option(
        WRITE & ~OBJECTS,
        values.read_bad_rows,
        "what to do with a row that cannot be sent or that the server refuses for itself: `fail` the task, `drop` the "
        "row, or store it in a `stream`, which `badRowsStream` names, with the reason in headers",
        default=FAIL,
    )
    bad_rows_stream: str | None = option(
        WRITE & ~OBJECTS,
        values.read_name,
        "with `badRows` = `stream`: the stream that gets such rows",
    )
    control_headers: bool = option(
        WRITE & ~OBJECTS,
        values.read_boolean,
        "also send headers whose names begin with `Nats-`, on which servers act; `false`: leave them out",
        default="false",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectWriteOptions(Query):
    """Into which object store rows are put; ``create`` is the configuration of a missing one, None to make none."""

    store: str
    create: dict[str, Any] | None
