"""Spark in the demonstration: its requirements, its session, the query, what came back, and its errors in one line."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spark_nats import clock
from spark_nats.conditions.others import DEMO_NEEDS_PYSPARK, JAVA_MISSING, JAVA_TOO_OLD, PYSPARK_NEEDED, SPARK_FAILED
from spark_nats.demo.orders import Results, Revenue
from spark_nats.errors import NatsError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.listener import StreamingQueryProgress
    from pyspark.sql.streaming.query import StreamingQuery

_MIN_JAVA = 17
# Unless its logging is configured, Spark prints a dozen warnings before a log level can be set, and pages about an
# error that it raises anyway. The logger of its shell has its own level.
_LOG_SETTINGS = """\
rootLogger.level = fatal
logger.shell.name = org.apache.spark.api.python.PythonGatewayServer
logger.shell.level = fatal
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %p %c{1}: %m%n
"""
_CHECKPOINT_FILES = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"


def check_requirements() -> None:
    """Check that what the demonstration and Spark need is installed, because Spark's own errors are long.

    Raises:
        NatsError: PySpark or Java is missing or too old.
    """
    try:
        from spark_nats import sparkapi
    except ImportError as error:
        raise NatsError(PYSPARK_NEEDED(reason=error)) from None
    if not sparkapi.HAS_READ_LIMITS:
        raise NatsError(DEMO_NEEDS_PYSPARK(version=sparkapi.VERSION))
    home = os.environ.get("JAVA_HOME")
    java = shutil.which(str(Path(home, "bin", "java")) if home else "java")
    if java is None:
        raise NatsError(JAVA_MISSING(oldest=_MIN_JAVA, where=f"in JAVA_HOME ({home})" if home else "on PATH"))
    said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    version = re.search(r'version "([0-9]+)[^"]*"', said)
    if version is None or int(version[1]) < _MIN_JAVA:
        found = version[0].removeprefix("version ").strip('"') if version else "of an unknown version"
        raise NatsError(JAVA_TOO_OLD(oldest=_MIN_JAVA, java=java, version=found))


@contextlib.contextmanager
def shortening_spark_errors() -> Iterator[None]:
    """Shorten an error, which Spark prints as a page, to one line, whether it is ours or Spark's own.

    Raises:
        NatsError: Spark failed.
    """
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    # Py4J logs an interrupted call as an error, on the root logger.
    nothing = logging.Filter("of no name")
    logging.getLogger().addFilter(nothing)
    try:
        yield
    except (PySparkException, Py4JError) as error:
        # An executor's error is the last line of a Python traceback in the middle of Spark's own text.
        ours = re.findall(r"spark_nats\.errors\.\w+: (.+)", str(error))
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise NatsError(SPARK_FAILED(reason=ours[-1] if ours else lines[0])) from None
    finally:
        logging.getLogger().removeFilter(nothing)


@contextlib.contextmanager
def spark_session(directory: Path) -> Iterator[SparkSession]:
    """Start a quiet local Spark session, with all its files in a directory, and stop it afterwards."""
    from pyspark.sql import SparkSession

    # Spark would start whichever python3 is first on PATH.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    if "SPARK_HOME" not in os.environ:
        _make_and_set_spark_home(directory / "home")
    log_settings = directory / "log4j2.properties"
    log_settings.write_text(_LOG_SETTINGS, encoding="utf-8")
    settings: dict[str, bool | float | int | str | None] = {
        # For a program that runs so briefly, Java's second compiler costs more than it gains: 7 s of processor time by
        # the end of the first micro-batch. So do the threads of its default garbage collector: half a second.
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC "
        f"-Dlog4j2.configurationFile={log_settings.as_uri()}",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.local.dir": str(directory),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "1",
        # Spark's default class starts 27 processes, each a readlink, in every micro-batch.
        "spark.sql.streaming.checkpointFileManagerClass": _CHECKPOINT_FILES,
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
    }
    builder = SparkSession.builder.master("local[*]").appName("spark-nats demo").config(map=settings)
    interrupt = signal.getsignal(signal.SIGINT)
    spark = builder.getOrCreate()
    signal.signal(signal.SIGINT, interrupt)  # Spark's own handler calls the JVM while another call is open
    try:
        yield spark
    finally:
        spark.stop()


def _make_and_set_spark_home(home: Path) -> None:
    """Make a SPARK_HOME without the archive of PySpark's sources, so that processes import the installed PySpark.

    Spark starts a dozen Python processes. Each would compile what it imports from the archive.
    """
    import pyspark

    spark = Path(pyspark.__path__[0])
    if not (spark / "jars").is_dir():  # this PySpark was not installed by pip, and finds its own home
        return
    home.mkdir()
    for name in ("bin", "jars"):
        (home / name).symlink_to(spark / name)
    os.environ["SPARK_HOME"] = str(home)


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


def follow_until_end(query: StreamingQuery) -> Iterator[StreamingQueryProgress]:
    """Yield the progress of each micro-batch that has read rows, as it ends; then raise the query's error, if any."""
    shown, active = -1, True
    while active:
        clock.sleep(0.2)
        active = query.isActive
        for progress in query.recentProgress:
            if progress.batchId > shown and progress.numInputRows:
                shown = progress.batchId
                yield progress
    query.awaitTermination()  # raises the error of the query


# What came back, compared with what was sent


def describe_differing_orders(sent: DataFrame, read: DataFrame) -> list[str]:
    """Compare messages one by one, by their sequence.

    Args:
        sent: the published messages: columns ``sequence``, ``subject``, ``payload``, ``priority``.
        read: the messages that were read, with the columns of the source.

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


def last_results(messages: DataFrame) -> Results:
    """Return the last result of each region and minute; ``messages`` are from the stream of results."""
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


def describe_differing_results(expected: Results, found: Results) -> list[str]:
    """Return what differs between two sets of results; empty when they are equal."""
    differing = sorted(key for key in expected | found if expected.get(key) != found.get(key))
    if not differing:
        return []
    region, minute = differing[0]
    return [
        f"{len(differing):,} of {len(expected | found):,} results differ; the first is {region} at {minute}: "
        f"{found.get((region, minute), 'nothing')} instead of {expected.get((region, minute), 'nothing')}"
    ]
