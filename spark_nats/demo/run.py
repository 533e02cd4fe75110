"""The demonstration: its streams, its steps and its output."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from spark_nats import clock
from spark_nats.client.connection import Connection
from spark_nats.client.options import ConnectionOptions
from spark_nats.client.pool import borrow
from spark_nats.conditions.others import SERVER_ENDED
from spark_nats.demo import spark as spark_side
from spark_nats.demo.orders import SCHEMA, Orders, Results
from spark_nats.demo.voice import Voice
from spark_nats.embedded import EmbeddedServerError, NatsServer
from spark_nats.errors import NatsError, StreamNotFoundError
from spark_nats.jetstream.api import JetStream
from spark_nats.jetstream.creating import create_stream_if_missing
from spark_nats.jetstream.publishing.publisher import Publisher
from spark_nats.jetstream.views import ask_stream_info
from spark_nats.kinds.queries import parse_options, parse_write_options
from spark_nats.lag import lag_of_progress
from spark_nats.options import connection_options, options_of_urls
from spark_nats.options.hints import errors_for_spark
from spark_nats.protocol.api import Api
from spark_nats.protocol.headers import HeaderLines, encode_blocks

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_BATCHES = 8
_LAST = 4  # number of the last batches, whose rate is shown: by then Java has compiled what it runs


@dataclass(frozen=True)
class Streams:
    """The two streams of the demonstration, and the server they are on."""

    servers: str = field(repr=False)  # server URLs, which may contain a password
    orders: str = "ORDERS"  # stream of the orders, on the subjects `<its name in lower case>.>`
    revenue: str = "REVENUE"  # stream of the results, on subjects of the same form

    @property
    def client_options(self) -> ConnectionOptions:
        """How to reach the server."""
        return connection_options(**self.spark_options, connectionName="spark-nats demo")

    @property
    def spark_options(self) -> dict[str, str]:
        """How Spark reaches the server."""
        return options_of_urls(self.servers)

    def create(self) -> str:
        """Create both streams, and return a description of the server that they are on."""
        with errors_for_spark(), borrow(self.client_options) as connection:
            for name in (self.orders, self.revenue):
                create_stream_if_missing(JetStream(connection), {"name": name, "subjects": [f"{name.lower()}.>"]})
            return f"nats-server {connection.info.version} at {connection.server}"

    def delete(self) -> None:
        """Delete both streams, if they exist."""
        with borrow(self.client_options) as connection:
            for name in (self.orders, self.revenue):
                with contextlib.suppress(StreamNotFoundError):
                    JetStream(connection).request(Api.STREAM_DELETE, name)

    def count(self, stream: str) -> int:
        """Return how many messages a stream holds."""
        with borrow(self.client_options) as connection:
            return ask_stream_info(JetStream(connection), stream).messages

    def load(self, reader: Any, stream: str, **options: Any) -> DataFrame:
        """Load a stream with ``spark.read`` or ``spark.readStream``."""
        frame: DataFrame = reader.format("nats").options(**self.spark_options, stream=stream, **options).load()
        return frame


def publish(
    connection: Connection, orders: Orders, stream: str, copy: Path, stored: Callable[[int], object] = lambda _: None
) -> None:
    """Publish all orders with acknowledgements, and keep a copy of them in a Parquet file.

    Args:
        connection: connection to the server.
        orders: the orders to publish.
        stream: the stream that stores them.
        copy: path of the file.
        stored: called after each batch with the number of orders that the server has stored so far.

    Raises:
        NatsError: a message could not be stored.
    """
    options = parse_write_options(parse_options({"stream": stream}), streaming=False)
    began = ask_stream_info(JetStream(connection), stream)
    publisher = Publisher(connection, began, options.max_in_flight, options.ack_timeout)
    with pq.ParquetWriter(copy, SCHEMA) as file:
        for batch in orders.generate_batches():
            file.write_batch(batch)
            priorities = batch["priority"]
            rows = np.flatnonzero(np.asarray(priorities.is_valid()))
            names = pa.repeat(pa.scalar("Priority"), len(rows))
            headers = encode_blocks(HeaderLines(rows, names, priorities.drop_null(), batch.num_rows))
            publisher.publish(batch["subject"], batch["payload"], headers)
            stored(publisher.stored)
        publisher.wait_for_sent_rows()
    publisher.close()


def run(voice: Voice, messages: int, servers: str | None = None, keep: bool = False) -> bool:
    """Run the demonstration and print what happens.

    Args:
        voice: prints it.
        messages: how many orders to publish.
        servers: server URLs; None starts a server for the purpose.
        keep: keep the streams; a server that was started here then runs until Ctrl-C, SIGTERM or SIGHUP.

    Returns:
        Whether everything that came back is what was sent.

    Raises:
        NatsError: something that is needed is missing or failed.
    """
    voice.note_step("looking for PySpark and Java")
    spark_side.check_requirements()
    voice.note_step("connecting to NATS" if servers is not None else "NATS is starting")
    with _raising_on_signals(voice), contextlib.ExitStack() as stack:
        own: NatsServer | None = None
        if servers is None:
            own = stack.enter_context(NatsServer())
            streams = Streams(own.url)
        else:
            suffix = clock.token(3).upper()
            streams = Streams(servers, f"ORDERS_DEMO_{suffix}", f"REVENUE_DEMO_{suffix}")
        try:
            voice.say(f"  server     {streams.create()}{', started for this' if own else ''}")
            ok = _publish_and_query(voice, streams, messages)
        except BaseException:
            if own is None and not keep:
                with contextlib.suppress(NatsError):  # which would hide the first error
                    streams.delete()
            raise
        if keep:
            _print_how_to_look(voice, streams)
            if own is None:
                voice.say(f"  To delete them: nats stream rm {streams.orders} (and {streams.revenue})")
            else:
                _serve_until_signal(voice, own)
        elif own is None:
            streams.delete()
            voice.say(f"  streams    {streams.orders} and {streams.revenue} are deleted again")
        return ok


def _publish_and_query(voice: Voice, streams: Streams, messages: int) -> bool:
    with tempfile.TemporaryDirectory(prefix="spark-nats-demo-", ignore_cleanup_errors=True) as name:
        directory = Path(name)
        orders = Orders(messages, streams.orders.lower())
        copy = directory / "orders.parquet"
        began = clock.monotonic()
        voice.note_step("publishing orders")
        with borrow(streams.client_options) as connection:
            publish(
                connection, orders, streams.orders, copy, lambda done: voice.note_progress(done, messages, "stored")
            )
        seconds = clock.monotonic() - began
        rate = messages / seconds
        voice.say(f"  published  {messages:,} orders to {streams.orders} in {seconds:.1f} s ({rate:,.0f}/s)")
        began = clock.monotonic()
        voice.note_step("Spark is starting")
        with spark_side.shortening_spark_errors(), spark_side.spark_session(directory) as spark:
            seconds = clock.monotonic() - began
            cores = spark.sparkContext.defaultParallelism
            voice.say(f"  Spark      {spark.version} on {cores} cores, up in {seconds:.1f} s")
            rows_in, rows_out = _run_query(voice, streams, spark, messages, directory / "checkpoint")
            voice.note_step("comparing what came back with what was sent")
            ok = True
            for claim, differences in _compare_claims(streams, spark, copy, orders.revenue(), rows_in, rows_out):
                ok &= not differences
                found = f": {'; '.join(differences)}" if differences else ""
                voice.say(f"  {'FAILED' if differences else 'ok':<8}{claim}{found}")
            voice.say()
            voice.note_step("Spark is stopping")
            return ok


def _run_query(voice: Voice, streams: Streams, spark: SparkSession, messages: int, checkpoint: Path) -> tuple[int, int]:
    """Run the query to its end, and return how many rows it read and wrote."""
    voice.say(f"  query      {streams.orders} -> revenue per region and minute -> {streams.revenue}")
    voice.say()
    voice.say(f"  {'batch':>5} {'rows':>12} {'rows/s':>12} {'results':>12} {'behind':>12}")
    began = clock.monotonic()
    voice.note_step("Spark is at the query")
    voice.note_progress(0, messages, "read")
    orders = streams.load(
        spark.readStream, streams.orders, startingOffsets="earliest", maxOffsetsPerTrigger=-(-messages // _BATCHES)
    )
    query = (
        spark_side.revenue_of(orders, streams.revenue.lower())
        .writeStream.format("nats")
        .options(**streams.spark_options, stream=streams.revenue, checkpointLocation=str(checkpoint))
        .outputMode("complete")
        .trigger(availableNow=True)
        .start()
    )
    rows_in = rows_out = 0
    batches: list[tuple[int, int]] = []  # rows and milliseconds
    for progress in spark_side.follow_until_end(query):
        results = progress.stateOperators[0].numRowsTotal
        lag = lag_of_progress([json.loads(progress.json)])
        rows_in += progress.numInputRows
        rows_out += results
        batches.append((progress.numInputRows, progress.durationMs["triggerExecution"]))
        voice.say(
            f"  {progress.batchId:>5} {progress.numInputRows:>12,} {progress.processedRowsPerSecond:>12,.0f} "
            f"{results:>12,} {lag.behind if lag else 0:>12,}"
        )
        voice.note_progress(rows_in, messages, "read")
    seconds = clock.monotonic() - began
    last_rows, last_milliseconds = map(sum, zip(*batches[-_LAST:], strict=True))
    figures = {
        f"messages in {streams.orders}": f"{streams.count(streams.orders):,}",
        "rows in": f"{rows_in:,}",
        "rows out": f"{rows_out:,}",
        f"messages in {streams.revenue}": f"{streams.count(streams.revenue):,}",
        "seconds": f"{seconds:,.1f}",
        f"rows per second, last {_LAST} batches": f"{1000 * last_rows / last_milliseconds:,.0f}",
    }
    voice.say()
    for what, figure in figures.items():
        voice.say(f"  {what:<36}{figure:>12}")
    voice.say()
    return rows_in, rows_out


def _compare_claims(
    streams: Streams, spark: SparkSession, copy: Path, expected: Results, rows_in: int, rows_out: int
) -> Iterator[tuple[str, list[str]]]:
    """Yield each claim with the differences that contradict it, none when the claim is true."""
    published = sum(result.orders for result in expected.values())
    stored, written = streams.count(streams.orders), streams.count(streams.revenue)
    yield (
        f"{streams.orders} has every order that was published, once and unchanged",
        _describe_unequal(f"{streams.orders} holds", stored, published)
        + spark_side.describe_differing_orders(spark.read.parquet(str(copy)), streams.load(spark.read, streams.orders)),
    )
    yield "the query read as many rows as were published", _describe_unequal("the query read", rows_in, published)
    yield (
        f"{streams.revenue} has every row that the query wrote",
        _describe_unequal(f"{streams.revenue} holds", written, rows_out),
    )
    yield (
        f"the last of each of {len(expected):,} results is what the orders come to",
        spark_side.describe_differing_results(
            expected, spark_side.last_results(streams.load(spark.read, streams.revenue))
        ),
    )


def _describe_unequal(what: str, found: int, expected: int) -> list[str]:
    return [] if found == expected else [f"{what} {found:,} instead of {expected:,}"]


def _print_how_to_look(voice: Voice, streams: Streams) -> None:
    """Print how to look at what is kept."""
    url = streams.spark_options["servers"]  # without a password
    voice.say(f"""\
  Kept at {url}: {streams.orders}, {streams.revenue}. To look at them:

    nats stream ls --server {url}
    nats stream view {streams.revenue} --server {url}

    from pyspark.sql import SparkSession
    spark = SparkSession.builder.getOrCreate()
    revenue = spark.read.format("nats").option("servers", "{url}").option("stream", "{streams.revenue}").load()
    revenue.selectExpr("sequence", "subject", "string(payload)").show(truncate=False)
""")


def _serve_until_signal(voice: Voice, own: NatsServer) -> None:
    """Keep a server that was started here until a signal arrives; raise if it ends by itself."""
    voice.note_step(None)
    with contextlib.suppress(KeyboardInterrupt, SystemExit):
        voice.say("  The server runs until Ctrl-C.")
        while own.running:
            clock.sleep(0.2)
        raise EmbeddedServerError(SERVER_ENDED())
    voice.say()
    voice.say("  stopping the server")


@contextlib.contextmanager
def _raising_on_signals(voice: Voice) -> Iterator[None]:
    """Let SIGTERM and SIGHUP end the program as Ctrl-C does: by an exception, so that everything is stopped.

    If the exception is swallowed, the next :meth:`.Voice.note_step` or :meth:`.Voice.note_progress` raises it again.
    Python does that in a callback, as while a module is imported, and would print a traceback.
    """

    def end(number: int, _: Any) -> NoReturn:
        voice.interruption = KeyboardInterrupt() if number == signal.SIGINT else SystemExit(128 + number)
        raise voice.interruption

    def show_others(swallowed: Any) -> None:
        if swallowed.exc_value is not voice.interruption:
            show(swallowed)

    show, sys.unraisablehook = sys.unraisablehook, show_others
    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)}
    try:
        yield
    finally:
        sys.unraisablehook = show
        for number, handler in before.items():
            signal.signal(number, handler)
