"""The Spark session that tests share."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


SPARK_ENVIRONMENT = {
    # Spark would start whichever python3 is first on PATH.
    "PYSPARK_PYTHON": sys.executable,
    "PYSPARK_DRIVER_PYTHON": sys.executable,
    # Spark would look its own host name up, which not every machine can resolve.
    "SPARK_LOCAL_HOSTNAME": "localhost",
    "SPARK_LOCAL_IP": "127.0.0.1",
}


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """`local[2]` in UTC. The data source "nats" needs no registration."""
    from pyspark.sql import SparkSession

    os.environ.update(SPARK_ENVIRONMENT)
    session = (
        SparkSession.builder.master("local[2]")
        .appName("spark-nats tests")
        .config("spark.ui.enabled", False)
        .config("spark.sql.shuffle.partitions", 2)
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()
