"""What a query writes to, and how."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from spark_nats.options import values
from spark_nats.options.query import Query
from spark_nats.options.rows import BUCKET, KEPT, STREAM, WRITE, option
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
        WRITE & KEPT,
        values.read_whole_number,
        "most rows sent and not yet acknowledged, per task; fewer while the stream is given too much",
        default="8192",
    )
    ack_timeout: float = option(
        WRITE & KEPT,
        values.read_duration,
        "time without any row being stored, over a connection that works, after which a task fails",
        default="30s",
    )
    deduplicate: str = option(
        WRITE & KEPT,
        values.read_deduplicate,
        "keep rows that are written again from being stored twice: `exact` however late, `window` within the stream's "
        "`duplicate_window`, `false` not at all",
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
        "what becomes of a row whose key has another revision than `expected_revision`: `fail` the task or `skip` it",
        default=FAIL,
    )
    control_headers: bool = option(
        WRITE,
        values.read_boolean,
        "send headers whose names begin with `Nats-` too, on which servers act; else they are left out",
        default="false",
    )
