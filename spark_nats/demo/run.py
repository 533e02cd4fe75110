"""The demonstration: its streams, what it runs, and what it prints."""

from __future__ import annotations

import contextlib
import json
import secrets
import signal
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from spark_nats.client.connection import Connection
from spark_nats.client.options import ConnectionOptions
from spark_nats.client.pool import borrow
from spark_nats.client.servers import parse_servers
from spark_nats.demo.check import differing_orders, differing_results, last_results
from spark_nats.demo.orders import Orders, Revenue
from spark_nats.demo.spark import follow, revenue_of, spark_session
from spark_nats.demo.voice import Voice
from spark_nats.embedded import EmbeddedServerError, NatsServer
from spark_nats.errors import NatsError, StreamNotFoundError
from spark_nats.jetstream.api import JetStream
from spark_nats.jetstream.publishing import Publisher
from spark_nats.jetstream.streams import create_stream, delete_stream, stream_info
from spark_nats.options import connection_options, options_of_urls, parse, parse_write
from spark_nats.options.remedies import naming_options
from spark_nats.protocol.headers import HeaderLines, encode_blocks
from spark_nats.requirements import check_requirements
from spark_nats.spark_errors import spark_errors

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.listener import StreamingQueryProgress

_BATCHES = 8


@dataclass(frozen=True)
class Streams:
    """The two streams of the demonstration, and the server they are on.

    Attributes:
        servers: server URLs, which may contain a password.
        orders: stream of the orders, on the subjects ``<its name in lower case>.>``.
        revenue: stream of the results, likewise.
    """

    servers: str = field(repr=False)
    orders: str = "ORDERS"
    revenue: str = "REVENUE"

    @property
    def connection(self) -> ConnectionOptions:
        """How to reach the server."""
        return connection_options(**self.options, connectionName="spark-nats demo")

    @property
    def options(self) -> dict[str, str]:
        """How Spark reaches the server."""
        return options_of_urls(self.servers)

    def create(self) -> str:
        """Create both streams and return what server they are on."""
        with naming_options(), borrow(self.connection) as connection:
            for name in (self.orders, self.revenue):
                create_stream(JetStream(connection), {"name": name, "subjects": [f"{name.lower()}.>"]})
            return f"nats-server {connection.info.version} at {connection.server}"

    def delete(self) -> None:
        """Delete both streams, if they exist."""
        with borrow(self.connection) as connection:
            for name in (self.orders, self.revenue):
                with contextlib.suppress(StreamNotFoundError):
                    delete_stream(JetStream(connection), name)

    def count(self, stream: str) -> int:
        """Return how many messages a stream holds."""
        with borrow(self.connection) as connection:
            return stream_info(JetStream(connection), stream).messages

    def load(self, reader: Any, stream: str, **options: Any) -> DataFrame:
        """Load a stream with ``spark.read`` or ``spark.readStream``."""
        frame: DataFrame = (
            reader.format("nats").options(**self.options).option("stream", stream).options(**options).load()
        )
        return frame


def publish(connection: Connection, orders: Orders, stream: str, copy: Path) -> None:
    """Publish all orders with acknowledgements, and keep a copy of them in a Parquet file.

    Raises:
        NatsError: a message could not be stored.
    """
    options = parse_write(parse({"stream": stream}), streaming=False)
    publisher = Publisher(connection, stream, options.max_in_flight, options.ack_timeout)
    with contextlib.ExitStack() as stack:
        file: pq.ParquetWriter | None = None
        for batch in orders.batches():
            if file is None:
                file = stack.enter_context(pq.ParquetWriter(copy, batch.schema))
            file.write_batch(batch)
            priorities = batch["priority"]
            rows = np.flatnonzero(np.asarray(priorities.is_valid()))
            names = pa.repeat(pa.scalar("Priority"), len(rows))
            headers = encode_blocks(HeaderLines(rows, names, priorities.drop_null(), batch.num_rows))
            publisher.publish(batch["subject"], batch["payload"], headers)
        publisher.drain()
    publisher.close()


def run(voice: Voice, messages: int, servers: str | None = None, keep: bool = False) -> bool:
    """Run the demonstration and say what happens.

    Args:
        voice: says it.
        messages: how many orders to publish.
        servers: server URLs; None starts a server for the purpose.
        keep: leave the streams where they are, and a server that was started running until it is interrupted.

    Returns:
        Whether everything that came back is what was sent.

    Raises:
        NatsError: something that is needed is missing or failed.
    """
    voice.awaits("looking for PySpark and Java")
    check_requirements()
    voice.awaits("connecting to NATS" if servers is not None else "NATS is starting")
    with _ended_by_signals():
        if servers is not None:
            suffix = secrets.token_hex(3).upper()
            streams = Streams(servers, f"ORDERS_DEMO_{suffix}", f"REVENUE_DEMO_{suffix}")
            return _run_on(voice, streams, messages, keep)
        with NatsServer() as server:
            return _run_on(voice, Streams(server.url), messages, keep, server)


def _run_on(voice: Voice, streams: Streams, messages: int, keep: bool, own: NatsServer | None = None) -> bool:
    """Run the demonstration on a server, which is ``own`` where it was started for this."""
    try:
        voice.say(f"  server     {streams.create()}{', started for this' if own else ''}")
        ok = _publish_and_query(voice, streams, messages)
    except BaseException:
        if own is None and not keep:
            with contextlib.suppress(NatsError):  # which would hide what went wrong first
                streams.delete()
        raise
    if keep:
        _say_how_to_look(voice, streams, own is not None)
        if own:
            _wait_until_interrupted(voice, own)
    elif own is None:
        streams.delete()
        voice.say(f"  streams    {streams.orders} and {streams.revenue} are deleted again")
    return ok


def _publish_and_query(voice: Voice, streams: Streams, messages: int) -> bool:
    with tempfile.TemporaryDirectory(prefix="spark-nats-demo-", ignore_cleanup_errors=True) as name:
        directory = Path(name)
        orders = Orders(messages, streams.orders.lower())
        copy = directory / "orders.parquet"
        began = time.monotonic()
        voice.awaits(f"publishing {messages:,} orders")
        with borrow(streams.connection) as connection:
            publish(connection, orders, streams.orders, copy)
        seconds = time.monotonic() - began
        voice.say(
            f"  published  {messages:,} orders to {streams.orders} in {seconds:.1f} s ({messages / seconds:,.0f}/s)"
        )
        began = time.monotonic()
        voice.awaits("Spark is starting")
        with spark_errors(), spark_session(directory) as spark:
            seconds = time.monotonic() - began
            voice.say(
                f"  Spark      {spark.version} on {spark.sparkContext.defaultParallelism} cores, up in {seconds:.1f} s"
            )
            rows_in, rows_out = _query(voice, streams, spark, messages, directory / "checkpoint")
            voice.awaits("comparing what came back with what was sent")
            sent = spark.read.parquet(str(copy))
            ok = _check(voice, streams, spark, sent, orders.revenue(), rows_in, rows_out)
            voice.awaits("Spark is stopping")
            return ok


def _query(voice: Voice, streams: Streams, spark: SparkSession, published: int, checkpoint: Path) -> tuple[int, int]:
    """Run the query to its end, and return how many rows it read and wrote."""
    voice.say(f"  query      {streams.orders} -> revenue per region and minute -> {streams.revenue}")
    voice.say()
    voice.say(f"  {'batch':>5} {'rows':>12} {'rows/s':>12} {'results':>12} {'behind':>12}")
    began = time.monotonic()
    voice.awaits("Spark is at the query")
    orders = streams.load(
        spark.readStream, streams.orders, startingOffsets="earliest", maxOffsetsPerTrigger=-(-published // _BATCHES)
    )
    query = (
        revenue_of(orders, streams.revenue.lower())
        .writeStream.format("nats")
        .options(**streams.options)
        .option("stream", streams.revenue)
        .option("checkpointLocation", str(checkpoint))
        .outputMode("complete")
        .trigger(availableNow=True)
        .start()
    )
    rows_in = rows_out = 0
    for progress in follow(query):
        results = progress.stateOperators[0].numRowsTotal
        rows_in += progress.numInputRows
        rows_out += results
        voice.say(
            f"  {progress.batchId:>5} {progress.numInputRows:>12,} {progress.processedRowsPerSecond:>12,.0f} "
            f"{results:>12,} {_behind(progress, streams.orders):>12,}"
        )
    seconds = time.monotonic() - began
    voice.say()
    voice.say(f"  {'messages in ' + streams.orders:<36}{streams.count(streams.orders):>12,}")
    voice.say(f"  {'rows in':<36}{rows_in:>12,}")
    voice.say(f"  {'rows out':<36}{rows_out:>12,}")
    voice.say(f"  {'messages in ' + streams.revenue:<36}{streams.count(streams.revenue):>12,}")
    voice.say(f"  {'seconds':<36}{seconds:>12,.1f}")
    voice.say(f"  {'rows per second':<36}{rows_in / seconds:>12,.0f}")
    voice.say()
    return rows_in, rows_out


def _check(
    voice: Voice,
    streams: Streams,
    spark: SparkSession,
    sent: DataFrame,
    expected: dict[tuple[str, str], Revenue],
    rows_in: int,
    rows_out: int,
) -> bool:
    """Say what is as it should be and what is not, and return whether everything is."""
    published = sum(result.orders for result in expected.values())
    stored, written = streams.count(streams.orders), streams.count(streams.revenue)
    ok = _report(
        voice,
        f"{streams.orders} has every order that was published, once and unchanged",
        _unequal(f"{streams.orders} holds", stored, published)
        + differing_orders(sent, streams.load(spark.read, streams.orders)),
    )
    ok &= _report(
        voice, "the query read as many rows as were published", _unequal("the query read", rows_in, published)
    )
    ok &= _report(
        voice,
        f"{streams.revenue} has every row that the query wrote",
        _unequal(f"{streams.revenue} holds", written, rows_out),
    )
    ok &= _report(
        voice,
        f"the last of each of {len(expected):,} results is what the orders come to",
        differing_results(expected, last_results(streams.load(spark.read, streams.revenue))),
    )
    voice.say()
    return ok


def _unequal(what: str, found: int, expected: int) -> list[str]:
    return [] if found == expected else [f"{what} {found:,} instead of {expected:,}"]


def _report(voice: Voice, claim: str, differences: list[str]) -> bool:
    voice.say(f"  {'FAILED' if differences else 'ok':<8}{claim}{': ' * bool(differences)}{'; '.join(differences)}")
    return not differences


def _behind(progress: StreamingQueryProgress, stream: str) -> int:
    """Return how many messages the query has still to read."""
    source = progress.sources[0]
    latest, end = json.loads(source.latestOffset), json.loads(source.endOffset)
    return int(latest[stream]["next"]) - int(end[stream]["next"])


def _say_how_to_look(voice: Voice, streams: Streams, own_server: bool) -> None:
    url = ",".join(str(server) for server in parse_servers(streams.servers))  # without a password
    voice.say(f"  Kept at {url}: {streams.orders}, {streams.revenue}. To look at them:")
    voice.say()
    voice.say(f"    nats stream ls --server {url}")
    voice.say(f"    nats stream view {streams.revenue} --server {url}")
    voice.say()
    voice.say("    from pyspark.sql import SparkSession")
    voice.say("    spark = SparkSession.builder.getOrCreate()")
    options = f'.option("servers", "{url}").option("stream", "{streams.revenue}")'
    voice.say(f'    revenue = spark.read.format("nats"){options}.load()')
    voice.say('    revenue.selectExpr("sequence", "subject", "string(payload)").show(truncate=False)')
    voice.say()
    if not own_server:
        voice.say(f"  To delete them: nats stream rm {streams.orders} (and {streams.revenue})")


def _wait_until_interrupted(voice: Voice, server: NatsServer) -> None:
    voice.awaits(None)
    with contextlib.suppress(KeyboardInterrupt, SystemExit):
        voice.say("  The server runs until Ctrl-C.")
        while server.running:
            time.sleep(0.2)
        raise EmbeddedServerError("nats-server ended by itself")
    voice.say()
    voice.say("  stopping the server")


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end the program as Ctrl-C does: by an exception, so that everything is stopped."""

    def end(number: int, _: Any) -> NoReturn:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
