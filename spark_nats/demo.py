"""``spark-nats demo``: orders through NATS, Spark and NATS again, then proof that what arrived is what was sent.

Order events are made up from a seed and published to one stream. A streaming query reads them, keeps the revenue of
each region and minute, and writes every change to a second stream. Both streams are then read back: the first
is compared with a copy of the orders that never went through NATS, the second with sums that Spark had no part in.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spark_nats import __version__
from spark_nats.client.connection import Connection, ConnectionOptions
from spark_nats.client.pool import borrow
from spark_nats.client.servers import parse_servers
from spark_nats.embedded import EmbeddedServerError, NatsServer
from spark_nats.errors import NatsError, StreamNotFoundError
from spark_nats.jetstream.api import JetStream
from spark_nats.jetstream.publishing import Publisher
from spark_nats.jetstream.streams import create_stream, stream_info
from spark_nats.options import options_of_urls
from spark_nats.protocol.headers import HeaderLines, encode_blocks

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.listener import StreamingQueryProgress
    from pyspark.sql.streaming.query import StreamingQuery

_BATCHES = 8
_OLDEST_JAVA = 17
_SEED = 20
_ROWS_AT_ONCE = 50_000


class DemoError(NatsError):
    """The demonstration cannot run here, or Spark failed."""


# The orders

_COUNTRIES = {
    **dict.fromkeys(("DE", "ES", "FR", "IT", "NL", "PL"), "eu"),
    **dict.fromkeys(("CA", "MX", "US"), "na"),
    **dict.fromkeys(("AR", "BR", "CL"), "latam"),
    **dict.fromkeys(("AU", "IN", "JP", "KR"), "apac"),
}
_PRODUCTS = {  # prices in cents, so that sums are exact
    "coffee-beans": 1450,
    "teapot": 3295,
    "espresso-machine": 34900,
    "grinder": 8999,
    "mug": 1199,
    "filter-papers": 425,
    "kettle": 5950,
    "milk-frother": 2799,
}
_EVENTS = {"placed": 0.88, "cancelled": 0.08, "returned": 0.04}
_EXPRESS = 0.15  # share of orders with a header of their own
_OPENING = np.datetime64("2026-11-02T08:00", "ms")
_MINUTES = 60
_LATENESS = 5_000  # ms by which an event may stand behind one that happened after it

_REGIONS = sorted(set(_COUNTRIES.values()))


@dataclass(frozen=True)
class Revenue:
    """What the orders of one region and minute come to."""

    orders: int
    express: int
    cents: int

    def __str__(self) -> str:
        return f"{self.orders} orders, {self.express} express, revenue {Decimal(self.cents).scaleb(-2)}"


class Orders:
    """Makes up order events, the same ones for the same seed, and adds up what they come to.

    Args:
        count: how many.
        prefix: first token of their subjects, ``<prefix>.<region>.<event>``.
        seed: of the random numbers.
    """

    def __init__(self, count: int, prefix: str, seed: int = _SEED) -> None:
        self._count = count
        self._prefix = prefix
        self._random = np.random.default_rng(seed)
        self._sums = np.zeros((3, len(_REGIONS), _MINUTES + 1), np.int64)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Make the events: columns ``sequence`` (counted from 1), ``subject``, ``payload``, ``priority``."""
        for first in range(0, self._count, _ROWS_AT_ONCE):
            yield self._batch(np.arange(first, min(first + _ROWS_AT_ONCE, self._count)))

    def revenue(self) -> dict[tuple[str, str], Revenue]:
        """Return what the events made so far come to, by region and minute."""
        minutes = np.datetime_as_string(_OPENING + np.arange(_MINUTES + 1) * np.timedelta64(1, "m"), "m")
        orders, express, cents = self._sums
        return {
            (_REGIONS[r], str(minutes[m])): Revenue(int(orders[r, m]), int(express[r, m]), int(cents[r, m]))
            for r, m in zip(*np.nonzero(orders), strict=True)
        }

    def _batch(self, numbers: np.ndarray[Any, np.dtype[np.int64]]) -> pa.RecordBatch:
        random, rows = self._random, len(numbers)
        country = random.integers(0, len(_COUNTRIES), rows)
        region = np.array([_REGIONS.index(name) for name in _COUNTRIES.values()])[country]
        product = random.integers(0, len(_PRODUCTS), rows)
        price = np.array(list(_PRODUCTS.values()))[product]
        quantity = random.geometric(0.5, rows)
        event = random.choice(len(_EVENTS), rows, p=list(_EVENTS.values()))
        express = random.random(rows) < _EXPRESS
        elapsed = numbers * (_MINUTES * 60_000) // self._count + random.integers(0, _LATENESS, rows)
        amount = np.where(event == 0, price, -price) * quantity
        for sums, values in zip(self._sums, (np.ones_like(amount), express.astype(np.int64), amount), strict=True):
            np.add.at(sums, (region, elapsed // 60_000), values)
        fields: list[tuple[str, pa.Array | str]] = [
            ('{"order":"', _padded(numbers + 1)),
            ('","customer":"C', _padded(random.zipf(1.3, rows) % 100_000)),
            ('","country":"', _named(_COUNTRIES, country)),
            ('","product":"', _named(_PRODUCTS, product)),
            ('","quantity":', pa.array(quantity).cast(pa.string())),
            (',"unit_price":', _named([f"{cents / 100:.2f}" for cents in _PRODUCTS.values()], product)),
            (',"time":"', pc.strftime(pa.array(_OPENING + elapsed), "%Y-%m-%dT%H:%M:%S")),
            ('Z"}', ""),
        ]
        payloads = pc.binary_join_element_wise(*(piece for field in fields for piece in field), "")
        subjects = pc.binary_join_element_wise(self._prefix, _named(_REGIONS, region), _named(_EVENTS, event), ".")
        priorities = pc.if_else(pa.array(express), pa.scalar("express"), pa.scalar(None, pa.string()))
        return pa.record_batch(
            {"sequence": pa.array(numbers + 1), "subject": subjects, "payload": payloads, "priority": priorities}
        )


def _named(names: Mapping[str, Any] | Sequence[str], index: np.ndarray[Any, Any]) -> pa.Array:
    return pa.array(list(names)).take(pa.array(index))


def _padded(numbers: np.ndarray[Any, Any]) -> pa.Array:
    return pc.utf8_lpad(pa.array(numbers).cast(pa.string()), 6, "0")


# The streams


@dataclass(frozen=True)
class Place:
    """Where the demonstration happens.

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
        return ConnectionOptions(servers=parse_servers(self.servers), name="spark-nats demo")

    @property
    def options(self) -> dict[str, str]:
        """How Spark reaches the server."""
        return options_of_urls(self.servers)

    def create(self) -> str:
        """Make both streams and return what server they are on."""
        with borrow(self.connection) as connection:
            for name in (self.orders, self.revenue):
                create_stream(JetStream(connection), {"name": name, "subjects": [f"{name.lower()}.>"]})
            return f"nats-server {connection.info.version} at {connection.server}"

    def delete(self) -> None:
        """Delete both streams, if they exist."""
        with borrow(self.connection) as connection:
            for name in (self.orders, self.revenue):
                with contextlib.suppress(StreamNotFoundError):
                    JetStream(connection).request(f"STREAM.DELETE.{name}")

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
    publisher = Publisher(connection, stream)
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


# Spark


def check_requirements() -> None:
    """Check that there is what Spark needs, which itself would say it at length.

    Raises:
        DemoError: PySpark or Java is missing or too old.
    """
    try:
        import spark_nats.datasource  # noqa: F401
    except ImportError as error:
        raise DemoError(f'PySpark 4.2 or newer is needed ({error}): pip install "spark-nats[spark]"') from None
    home = os.environ.get("JAVA_HOME")
    java = shutil.which(str(Path(home, "bin", "java")) if home else "java")
    wanted = f"Spark needs Java {_OLDEST_JAVA} or newer"
    if java is None:
        raise DemoError(f"{wanted}, and there is none {f'in JAVA_HOME ({home})' if home else 'on PATH'}: install it")
    said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    version = re.search(r'version "([0-9]+)[^"]*"', said)
    if version is None or int(version[1]) < _OLDEST_JAVA:
        found = version[0].removeprefix("version ").strip('"') if version else "of an unknown version"
        raise DemoError(f"{wanted}, and {java} is {found}: install it, or set JAVA_HOME")


@contextlib.contextmanager
def spark_session(directory: Path) -> Iterator[SparkSession]:
    """Start a quiet local Spark session, with all its files in a directory, and stop it afterwards."""
    from pyspark.sql import SparkSession

    # Spark would start whichever python3 is first on PATH.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    # Spark greets with a dozen warnings before a log level can be set, and logs pages about an error that it raises
    # anyhow, unless its logging is configured. Its shell's logger has a level of its own.
    log_settings = directory / "log4j2.properties"
    log_settings.write_text(
        "rootLogger.level = fatal\n"
        "logger.shell.name = org.apache.spark.api.python.PythonGatewayServer\n"
        "logger.shell.level = fatal\n"
        "rootLogger.appenderRef.stderr.ref = stderr\n"
        "appender.stderr.type = Console\n"
        "appender.stderr.name = stderr\n"
        "appender.stderr.target = SYSTEM_ERR\n"
        "appender.stderr.layout.type = PatternLayout\n"
        "appender.stderr.layout.pattern = %p %c{1}: %m%n\n",
        encoding="utf-8",
    )
    settings = {
        # For a program that runs so briefly, Java's second compiler costs more than it gains: 47 s of processor time
        # with it, 18 s without.
        "spark.driver.extraJavaOptions": f"-XX:TieredStopAtLevel=1 -Dlog4j2.configurationFile={log_settings.as_uri()}",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.local.dir": str(directory),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
    }
    builder = SparkSession.builder.master("local[*]").appName("spark-nats demo")
    for name, value in settings.items():
        builder = builder.config(name, value)
    interrupt = signal.getsignal(signal.SIGINT)
    spark = builder.getOrCreate()
    signal.signal(signal.SIGINT, interrupt)  # Spark's own asks the JVM something while another question is open
    try:
        yield spark
    finally:
        spark.stop()


def revenue_of(orders: DataFrame, prefix: str) -> DataFrame:
    """Turn order messages into messages about revenue per region and minute, ``<prefix>.<region>.<minute>``."""
    from pyspark.sql import functions as sf

    parts = sf.split("subject", r"\.")
    order = sf.from_json(sf.col("payload").cast("string"), "quantity INT, unit_price DECIMAL(10, 2), time TIMESTAMP")
    amount = sf.col("quantity") * sf.col("unit_price")
    revenue = (
        orders.select(
            parts[1].alias("region"),
            parts[2].alias("event"),
            (sf.col("headers")["Priority"][0] == "express").alias("express"),
            order.alias("order"),
        )
        .select("region", "event", "express", "order.*")
        .groupBy("region", sf.date_trunc("minute", "time").alias("minute"))
        .agg(
            sf.count("*").alias("orders"),
            sf.count_if("express").alias("express"),
            sf.sum(sf.when(sf.col("event") == "placed", amount).otherwise(-amount)).alias("revenue"),
        )
        .withColumn("minute", sf.date_format("minute", "yyyy-MM-dd'T'HH:mm"))
    )
    return revenue.select(
        sf.concat_ws(".", sf.lit(prefix), "region", sf.regexp_replace(sf.substring("minute", 12, 5), ":", "")).alias(
            "subject"
        ),
        sf.to_json(sf.struct("region", "minute", "orders", "express", "revenue")).alias("payload"),
    )


def follow(query: StreamingQuery) -> Iterator[StreamingQueryProgress]:
    """Yield the progress of each micro-batch as it ends, until the query has ended."""
    shown = -1
    active = True
    while active:
        time.sleep(0.2)
        active = query.isActive
        for progress in query.recentProgress:
            if progress.batchId > shown and progress.numInputRows:
                shown = progress.batchId
                yield progress
    query.awaitTermination()  # raises what it failed of


# The check


def differing_orders(sent: DataFrame, read: DataFrame) -> list[str]:
    """Compare messages one by one, by their sequence.

    Args:
        sent: what was published: columns ``sequence``, ``subject``, ``payload``, ``priority``.
        read: what was read, with the columns of the source.

    Returns:
        What differs; empty when every message was read exactly once, in its place and unchanged.
    """
    from pyspark.sql import functions as sf

    def digest(frame: DataFrame, priority: Any, name: str) -> DataFrame:
        return frame.select("sequence", sf.xxhash64("subject", sf.col("payload").cast("binary"), priority).alias(name))

    copies = digest(read, sf.col("headers")["Priority"][0], "read").groupBy("sequence")
    both = digest(sent, sf.col("priority"), "sent").join(
        copies.agg(sf.count("*").alias("copies"), sf.min("read").alias("read")), "sequence", "full"
    )
    wrong = {
        "lost": sf.col("read").isNull(),
        "never sent": sf.col("sent").isNull(),
        "read more than once": sf.col("copies") > 1,
        "changed": sf.col("sent") != sf.col("read"),
    }
    columns = [f(sf.when(condition, sf.col("sequence"))) for condition in wrong.values() for f in (sf.count, sf.min)]
    (row,) = both.agg(*columns).collect()
    return [
        f"{row[2 * i]:,} {what}, the first at sequence {row[2 * i + 1]:,}" for i, what in enumerate(wrong) if row[2 * i]
    ]


def last_results(messages: DataFrame) -> dict[tuple[str, str], Revenue]:
    """Return the last result of each region and minute among the messages of the second stream."""
    from pyspark.sql import functions as sf

    schema = "region STRING, minute STRING, orders BIGINT, express BIGINT, revenue DECIMAL(20, 2)"
    result = sf.from_json(sf.col("payload").cast("string"), schema)
    rows = (
        messages.select("sequence", result.alias("result"))
        .groupBy("result.region", "result.minute")
        .agg(sf.max_by("result", "sequence").alias("result"))
        .select("result.*")
        .collect()
    )
    return {
        (row.region, row.minute): Revenue(row.orders, row.express, int(row.revenue.scaleb(2)) if row.revenue else 0)
        for row in rows
    }


def differing_results(expected: dict[tuple[str, str], Revenue], found: dict[tuple[str, str], Revenue]) -> list[str]:
    """Return what differs between two sets of results; empty when they are equal."""
    differing = sorted(key for key in expected.keys() | found.keys() if expected.get(key) != found.get(key))
    if not differing:
        return []
    region, minute = differing[0]
    return [
        f"{len(differing):,} of {len(expected):,} results differ; the first is {region} at {minute}: "
        f"{found.get((region, minute), 'nothing')} instead of {expected.get((region, minute), 'nothing')}"
    ]


# The demonstration


def run(messages: int, servers: str | None = None, keep: bool = False) -> bool:
    """Run the demonstration and print what happens.

    Args:
        messages: how many orders to publish.
        servers: server URLs; None starts a server for the purpose.
        keep: leave the streams where they are, and a server that was started running until it is interrupted.

    Returns:
        Whether everything that came back is what was sent.

    Raises:
        NatsError: something that is needed is missing or failed.
    """
    check_requirements()
    with _ended_by_signals(), contextlib.ExitStack() as stack:
        if servers is None:
            server = stack.enter_context(NatsServer())
            place = Place(server.url)
        else:
            suffix = secrets.token_hex(3).upper()
            place = Place(servers, f"ORDERS_DEMO_{suffix}", f"REVENUE_DEMO_{suffix}")
        _say(f"spark-nats {__version__}: {messages:,} orders through NATS, Spark and NATS again")
        _say()
        try:
            _say(f"  server     {place.create()}{', started for this' if servers is None else ''}")
            ok = _orders_to_revenue(place, messages)
        except BaseException:
            if servers is not None and not keep:
                with contextlib.suppress(NatsError):  # which would hide what went wrong first
                    place.delete()
            raise
        if keep:
            _say_how_to_look(place, own_server=servers is None)
            if servers is None:
                _wait_until_interrupted(server)
        elif servers is not None:
            place.delete()
            _say(f"  streams    {place.orders} and {place.revenue} are deleted again")
        return ok


def _orders_to_revenue(place: Place, messages: int) -> bool:
    with tempfile.TemporaryDirectory(prefix="spark-nats-demo-", ignore_cleanup_errors=True) as name:
        directory = Path(name)
        orders = Orders(messages, place.orders.lower())
        copy = directory / "orders.parquet"
        began = time.monotonic()
        with borrow(place.connection) as connection:
            publish(connection, orders, place.orders, copy)
        seconds = time.monotonic() - began
        _say(f"  published  {messages:,} orders to {place.orders} in {seconds:.1f} s ({messages / seconds:,.0f}/s)")
        began = time.monotonic()
        with _spark_errors(), spark_session(directory) as spark:
            seconds = time.monotonic() - began
            _say(
                f"  Spark      {spark.version} on {spark.sparkContext.defaultParallelism} cores, up in {seconds:.1f} s"
            )
            return _query_and_check(place, spark, directory, spark.read.parquet(str(copy)), orders.revenue())


def _query_and_check(
    place: Place, spark: SparkSession, directory: Path, sent: DataFrame, expected: dict[tuple[str, str], Revenue]
) -> bool:
    published = sum(result.orders for result in expected.values())
    _say(f"  query      {place.orders} -> revenue per region and minute -> {place.revenue}")
    _say()
    _say(f"  {'batch':>5} {'rows':>12} {'rows/s':>12} {'results':>12} {'behind':>12}")
    began = time.monotonic()
    orders = place.load(
        spark.readStream, place.orders, startingOffsets="earliest", maxOffsetsPerTrigger=-(-published // _BATCHES)
    )
    query = (
        revenue_of(orders, place.revenue.lower())
        .writeStream.format("nats")
        .options(**place.options)
        .option("stream", place.revenue)
        .option("checkpointLocation", str(directory / "checkpoint"))
        .outputMode("complete")
        .trigger(availableNow=True)
        .start()
    )
    rows_in = rows_out = 0
    for progress in follow(query):
        results = progress.stateOperators[0].numRowsTotal
        rows_in += progress.numInputRows
        rows_out += results
        _say(
            f"  {progress.batchId:>5} {progress.numInputRows:>12,} {progress.processedRowsPerSecond:>12,.0f} "
            f"{results:>12,} {_behind(progress, place.orders):>12,}"
        )
    seconds = time.monotonic() - began
    stored, written = place.count(place.orders), place.count(place.revenue)
    _say()
    _say(f"  {'messages in ' + place.orders:<36}{stored:>12,}")
    _say(f"  {'rows in':<36}{rows_in:>12,}")
    _say(f"  {'rows out':<36}{rows_out:>12,}")
    _say(f"  {'messages in ' + place.revenue:<36}{written:>12,}")
    _say(f"  {'seconds':<36}{seconds:>12,.1f}")
    _say(f"  {'rows per second':<36}{rows_in / seconds:>12,.0f}")
    _say()

    ok = _report(
        f"{place.orders} has every order that was published, once and unchanged",
        _unequal(f"{place.orders} holds", stored, published)
        + differing_orders(sent, place.load(spark.read, place.orders)),
    )
    ok &= _report("the query read as many rows as were published", _unequal("the query read", rows_in, published))
    ok &= _report(
        f"{place.revenue} has every row that the query wrote", _unequal(f"{place.revenue} holds", written, rows_out)
    )
    ok &= _report(
        f"the last of each of {len(expected):,} results is what the orders come to",
        differing_results(expected, last_results(place.load(spark.read, place.revenue))),
    )
    _say()
    return ok


def _unequal(what: str, found: int, expected: int) -> list[str]:
    return [] if found == expected else [f"{what} {found:,} instead of {expected:,}"]


def _report(claim: str, differences: list[str]) -> bool:
    _say(f"  {'FAILED' if differences else 'ok':<8}{claim}{': ' * bool(differences)}{'; '.join(differences)}")
    return not differences


def _behind(progress: StreamingQueryProgress, stream: str) -> int:
    """Return how many messages the query has still to read."""
    source = progress.sources[0]
    latest, end = json.loads(source.latestOffset), json.loads(source.endOffset)
    return int(latest[stream]["next"]) - int(end[stream]["next"])


def _say(line: str = "") -> None:
    print(line, flush=True)


def _say_how_to_look(place: Place, own_server: bool) -> None:
    url = ",".join(str(server) for server in parse_servers(place.servers))  # without a password
    _say(f"  Kept at {url}: {place.orders}, {place.revenue}. To look at them:")
    _say()
    _say(f"    nats stream ls --server {url}")
    _say(f"    nats stream view {place.revenue} --server {url}")
    _say()
    _say("    from pyspark.sql import SparkSession")
    _say("    spark = SparkSession.builder.getOrCreate()")
    _say(
        f'    revenue = spark.read.format("nats").option("servers", "{url}").option("stream", "{place.revenue}").load()'
    )
    _say('    revenue.selectExpr("sequence", "subject", "string(payload)").show(truncate=False)')
    _say()
    if not own_server:
        _say(f"  To delete them: nats stream rm {place.orders} (and {place.revenue})")


def _wait_until_interrupted(server: NatsServer) -> None:
    with contextlib.suppress(KeyboardInterrupt, SystemExit):
        _say("  The server runs until Ctrl-C.")
        while server.running:
            time.sleep(0.2)
        raise EmbeddedServerError("nats-server ended by itself")
    _say()
    _say("  stopping the server")


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


@contextlib.contextmanager
def _spark_errors() -> Iterator[None]:
    """Say in a line what Spark takes a page for."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    # Py4J logs an interrupted call as an error, on the root logger.
    logging.getLogger().addFilter(_nothing)
    try:
        yield
    except (PySparkException, Py4JError) as error:
        # An error on an executor ends a Python traceback that stands in the middle of Spark's own text.
        ours = re.findall(r"spark_nats\.errors\.\w+: (.+)", str(error))
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise DemoError(f"Spark failed: {ours[-1] if ours else lines[0]}") from None
    finally:
        logging.getLogger().removeFilter(_nothing)


def _nothing(_: logging.LogRecord) -> bool:
    return False
