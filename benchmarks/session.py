"""The Spark session that is measured."""

from __future__ import annotations

import functools
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarks import sources

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Session(NamedTuple):
    """A session and its directories."""

    spark: SparkSession
    directory: str
    probes: str


@functools.cache
def _directory() -> tempfile.TemporaryDirectory[str]:
    # One for the whole process: the JVM stays when a session ends, and its workers keep the environment it began with.
    return tempfile.TemporaryDirectory(prefix="spark-nats-bench-", ignore_cleanup_errors=True)


@contextmanager
def start_spark(settings: Mapping[str, Any] | None = None, jars: Sequence[Path] = ()) -> Iterator[Session]:
    """Give a ``local[2]`` with Spark's defaults, without its user interface.

    Args:
        settings: of Spark, beside the defaults.
        jars: given to the JVM, which takes them only when it begins: it is then one of its own.
    """
    from pyspark.sql import SparkSession

    directory = _directory().name
    probes = Path(directory, "probes")
    probes.mkdir(exist_ok=True)
    # Python workers inherit these, by way of the JVM.
    os.environ[sources.PROBES] = str(probes)
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    here = Path(__file__).parent
    paths = [str(here / "spark_python"), str(here.parent), os.environ.get("PYTHONPATH")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    os.environ["SPARK_LOCAL_HOSTNAME"] = "localhost"
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    builder = (
        SparkSession.builder.master("local[2]")
        .appName("spark-nats benchmarks")
        .config("spark.ui.enabled", False)
        .config("spark.ui.showConsoleProgress", False)
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", f"{directory}/warehouse")
        .config("spark.driver.memory", "4g")
    )
    for name, value in (settings or {}).items():
        builder = builder.config(name, value)
    if jars:
        _end_jvm()
        builder = builder.config("spark.jars", ",".join(map(str, jars)))
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    for source in (sources.ReadyRows, sources.BytesOfFile, sources.ThrowAway, sources.ProbedNats):
        spark.dataSource.register(source)
    try:
        yield Session(spark, directory, str(probes))
    finally:
        spark.stop()
        if jars:
            _end_jvm()


def _end_jvm() -> None:
    from pyspark import SparkContext

    if gateway := SparkContext._gateway:
        SparkContext._gateway = SparkContext._jvm = None
        gateway.shutdown()
        gateway.proc.stdin.close()  # at whose end the JVM ends
        gateway.proc.wait(60)
