"""What the figures must reach: all of it, in one table.

A target belongs to one row of one table. It is a rate, a ratio to another row of the same table, or, in a table of
facts, a value that must not be reached.
"""

from __future__ import annotations

from typing import NamedTuple


class Target(NamedTuple):
    """One demand.

    Attributes:
        table: title of the table.
        row: name of the row.
        at_least: the rate in messages per second, or the ratio; for a fact, the value it must stay below.
        times: the row that a ratio is to; None for a rate or a fact.
        text: as it is shown.
    """

    table: str
    row: str
    at_least: float
    times: str | None
    text: str


def _rate(table: str, row: str, millions: float) -> Target:
    return Target(table, row, millions * 1e6, None, f"{millions:g} M")


def _ratio(table: str, row: str, factor: float, times: str) -> Target:
    return Target(table, row, factor, times, f"{factor:g}x {times}")


def _below(table: str, row: str, value: float, unit: str) -> Target:
    return Target(table, row, value, None, f"{value:g} {unit}")


OURS = "spark-nats"

DECODE_DELIVERIES = "codec: decode JetStream deliveries, 128 bytes, all seven columns"
DECODE_HEADERS = "codec: decode HMSG with two headers, 128 bytes, all columns"
DECODE_HOSTILE = "codec: decode payloads full of CRLF and fake frames, 128 bytes, all seven columns"
DECODE_DIRECT = "codec: decode direct gets to seven columns, 128 bytes"
ENCODE_PUB = "codec: encode PUB, 128 bytes"
ENCODE_HPUB = "codec: encode HPUB with two headers, 128 bytes"
MATCH = "codec: subject filters, matched here"
READ_STREAM = "client: JetStream stream to Arrow, all columns, one connection"
SUBSCRIBE = "client: core subscribe to Arrow"
PUBLISH = "client: Arrow to core publish, flushed"
PUBLISH_STREAM = "client: Arrow to acknowledged JetStream publish"
FILTERS = {share: f"filters: {share}% of a stream to Arrow" for share in (1, 10, 50, 100)}
SPARK_READ = "spark: stream to DataFrame (noop sink)"
SPARK_WRITE = "spark: DataFrame to stream, acknowledged"
SPARK_TRIGGER = "spark: a trigger with one message"
MEMORY = "cost: memory of a Python worker while it reads a stream"

TARGETS = [
    _rate(DECODE_DELIVERIES, OURS, 2.5),
    _ratio(DECODE_DELIVERIES, OURS, 40, "nats-py's parser"),
    _ratio(DECODE_HEADERS, OURS, 10, "nats-py, same values"),
    _ratio(DECODE_HOSTILE, OURS, 0.4, "spark-nats, plain payloads"),
    _rate(ENCODE_PUB, OURS, 8),
    _ratio(ENCODE_PUB, OURS, 15, "nats-py"),
    _rate(ENCODE_HPUB, OURS, 2.5),
    _ratio(ENCODE_HPUB, OURS, 15, "nats-py"),
    _rate(MATCH, "1 beginning", 10),
    _rate(MATCH, "50 wildcards", 3),
    _ratio(READ_STREAM, OURS, 0.85, "raw drain"),
    _ratio(READ_STREAM, OURS, 1.2, "nats.c, ordered consumer"),
    _ratio(READ_STREAM, OURS, 15, "nats-py"),
    _ratio(PUBLISH_STREAM, OURS, 1.1, "nats.c"),
    _ratio(PUBLISH_STREAM, OURS, 4, "nats-py"),
    _ratio(SUBSCRIBE, OURS, 1.2, "nats.c"),
    _ratio(SUBSCRIBE, OURS, 5, "nats-py"),
    _ratio(PUBLISH, OURS, 1.0, "nats.c"),
    _ratio(SPARK_READ, "spark-nats, 2 partitions", 0.75, "raw drain, 2 connections"),
    _ratio(SPARK_WRITE, "spark-nats, 2 partitions", 0.85, "Arrow to JetStream, 1 connection"),
    _below(SPARK_TRIGGER, "ours, p50", 40, "ms"),
    _below(MEMORY, "growth over the first batch", 64, "MB"),
]
