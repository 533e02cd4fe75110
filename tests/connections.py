"""Connections and publishers with the defaults that a query has, and what a test wants otherwise."""

from __future__ import annotations

import dataclasses
from typing import Any

from spark_nats.client import Connection, ConnectionOptions, parse_servers
from spark_nats.client.options import RetryOptions
from spark_nats.client.retrying import Retries
from spark_nats.jetstream import JetStream, Publisher, StreamInfo
from spark_nats.jetstream.views import ask_stream_info
from spark_nats.kinds.queries import parse_read_options, parse_write_options
from spark_nats.kinds.streams.options import WriteOptions
from spark_nats.options import connection_options


def options_for(urls: str, **changes: Any) -> ConnectionOptions:
    """How to connect to these servers, whose URLs may log in."""
    return dataclasses.replace(connection_options(), servers=parse_servers(urls), **changes)


def write_options(servers: str, streaming: bool = True, **options: Any) -> WriteOptions:
    """The options of a write as Spark hands them on: as text."""
    return parse_write_options({"servers": servers, **{name: str(value) for name, value in options.items()}}, streaming)


def retries_for(**changes: Any) -> RetryOptions:
    """How long and how often to try again."""
    return dataclasses.replace(parse_read_options({"subject": "a"}, streaming=True).retries, **changes)


def publisher_for(
    connection: Connection,
    stream: str | StreamInfo,
    max_in_flight: int | None = None,
    ack_timeout: float | None = None,
    **settling: Any,
) -> Publisher:
    """Publish to a stream, whose state is requested unless it is given."""
    info = ask_stream_info(JetStream(connection), stream) if isinstance(stream, str) else stream
    defaults = parse_write_options({"stream": info.name}, streaming=False)
    in_flight = max_in_flight or defaults.max_in_flight
    return Publisher(connection, info, in_flight, ack_timeout or defaults.ack_timeout, **settling)


def patience(timeout: float = 60.0) -> Retries:
    """Try again for so many seconds, without pauses."""
    return Retries(RetryOptions(timeout, 0.0, 0.0, None), "the test", established=True, sleep=lambda _: None)
