"""What OpenTelemetry collects of queries."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from pyspark.sql import DataFrame, SparkSession

import spark_nats
from spark_nats import metrics
from spark_nats.errors import OptionError
from tests.integration.support import nats, running
from tests.nats_py import NatsPy, wait_until
from tests.servers import Server

pytestmark = pytest.mark.usefixtures("in_a_hurry")


class Collected:
    """Metrics of queries, collected whenever it is asked."""

    def __init__(self, reader: InMemoryMetricReader) -> None:
        self._reader = reader

    def of(self, query: str) -> dict[str, Any]:
        """What there is of a query: values by metric, and by the stream or the condition where there is one."""
        data = self._reader.get_metrics_data()
        found: dict[str, Any] = {}
        for resource in data.resource_metrics if data else []:
            for scope in resource.scope_metrics:
                assert scope.scope.name == "spark_nats"
                for metric in scope.metrics:
                    for point in metric.data.data_points:
                        labels = dict(point.attributes or {})
                        if labels.pop("query") == query:
                            labels.pop("source", None)
                            name = ":".join([metric.name.removeprefix("spark_nats."), *map(str, labels.values())])
                            found[name] = point.count if hasattr(point, "count") else point.value
        return found


@pytest.fixture
def listening(spark: SparkSession, nats_server: Server, request: pytest.FixtureRequest) -> Iterator[Collected]:
    """A session whose queries are measured, with the options that the test is marked with."""
    asks = getattr(request, "param", False)
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    options = {"servers": nats_server.url} if asks else None
    listener = spark_nats.MetricsListener(options, provider)
    spark.streams.addListener(listener)
    yield Collected(reader)
    spark.streams.removeListener(listener)
    provider.shutdown()


def copying(
    frame: DataFrame, server: Server, name: str, tmp_path: Path, stream: str, subject: str, **options: Any
) -> Any:
    rows = frame.selectExpr(f"'{subject}' AS subject", "payload")
    writer = nats(rows.writeStream, server, stream=stream, **options)
    return writer.queryName(name).option("checkpointLocation", str(tmp_path / name)).start()


@pytest.mark.long("spark_nats/otel.py")
@pytest.mark.parametrize("listening", [True], indirect=True, ids=["the server is asked"])
def test_a_query_between_streams_is_measured(
    spark: SparkSession, nats_server: Server, nats_py: NatsPy, unique: str, tmp_path: Path, listening: Collected
) -> None:
    source, target = f"{unique}A", f"{unique}B"
    nats_py.create_stream(source, max_age=3600 * 10**9)
    nats_py.create_stream(target)
    nats_py.publish_acked([(f"{source}.{i}", b"12345678") for i in range(100)])
    frame = nats(spark.readStream, nats_server, stream=source, startingOffsets="earliest").load()
    with running(copying(frame, nats_server, unique, tmp_path, target, f"{target}.x")) as query:
        query.processAllAvailable()
        found = wait_until(lambda: whole if "written.reconnects" in (whole := listening.of(unique)) else None, 60)
        assert found["written.rows"] == 100
        assert (found["read.rows"], found["output.rows"]) == (100, 100)
        assert 800 < found["written.size"] < nats_py.stream_info(target)["state"]["bytes"]
        assert (found["written.duplicates"], found["written.skipped"], found["written.reconnects"]) == (0, 0, 0)
        assert (found["batch.number"], found["batch.duration"], found["query.running"]) == (0, 1, 1)
        assert found["batch.timestamp"] > 0
        assert found[f"lag.next_sequence:{source}"] == found[f"lag.end_sequence:{source}"] == 101
        assert (found[f"lag.messages:{source}"], found[f"lag.blocked:{source}"]) == (0, 0)
        assert found[f"lag.max_age:{source}"] == 3600
        assert f"lag.oldest_message.timestamp:{source}" not in found
        nats_py.publish_acked([(f"{source}.{i}", b"12345678") for i in range(10)])
        query.processAllAvailable()
        wait_until(lambda: listening.of(unique)["written.rows"] == 110)
        assert listening.of(unique)["read.rows"] == 110
    wait_until(lambda: listening.of(unique)["query.running"] == 0)
    ended = listening.of(unique)
    assert (ended["written.rows"], ended["batch.number"]) == (110, 1)
    assert not [name for name in ended if name.startswith(("lag.", "query.failures"))]


@pytest.mark.long("spark_nats/otel.py")
def test_rows_that_are_replayed_are_counted_as_duplicates(
    spark: SparkSession, nats_server: Server, nats_py: NatsPy, unique: str, tmp_path: Path, listening: Collected
) -> None:
    """Spark has lost the commit of a micro-batch of which all rows were stored."""
    source, target = f"{unique}A", f"{unique}B"
    nats_py.create_stream(source)
    nats_py.create_stream(target)
    nats_py.publish_acked([(f"{source}.{i}", b"x") for i in range(20)])
    frame = nats(spark.readStream, nats_server, stream=source, startingOffsets="earliest").load()
    with running(copying(frame, nats_server, unique, tmp_path, target, f"{target}.x")) as query:
        query.processAllAvailable()
    wait_until(lambda: listening.of(unique).get("written.rows") == 20)
    for file in (tmp_path / unique / "commits").iterdir():
        file.unlink()
    with running(copying(frame, nats_server, unique, tmp_path, target, f"{target}.x")) as query:
        query.processAllAvailable()
        wait_until(lambda: listening.of(unique).get("written.duplicates") == 20)
    assert listening.of(unique)["written.rows"] == 40
    assert nats_py.stream_info(target)["state"]["messages"] == 20


@pytest.mark.long("spark_nats/otel.py")
def test_a_write_within_foreach_batch_belongs_to_its_query(
    spark: SparkSession, nats_server: Server, nats_py: NatsPy, unique: str, tmp_path: Path, listening: Collected
) -> None:
    source, target = f"{unique}A", f"{unique}B"
    nats_py.create_stream(source)
    nats_py.create_stream(target)
    nats_py.publish_acked([(f"{source}.{i}", b"x") for i in range(20)])

    def write(rows: DataFrame, batch: int) -> None:
        nats(rows.selectExpr(f"'{target}.x' AS subject", "payload").write, nats_server, stream=target).mode(
            "append"
        ).save()

    frame = nats(spark.readStream, nats_server, stream=source, startingOffsets="earliest").load()
    writer = frame.writeStream.foreachBatch(write).queryName(unique)
    with running(writer.option("checkpointLocation", str(tmp_path / "c")).start()) as query:
        query.processAllAvailable()
        wait_until(lambda: listening.of(unique).get("written.rows") == 20)
    assert listening.of(unique)["output.rows"] == 0  # Spark does not know


def test_what_was_written_before_a_query_failed_in_the_same_micro_batch_is_counted(
    spark: SparkSession, nats_server: Server, nats_py: NatsPy, unique: str, tmp_path: Path, listening: Collected
) -> None:
    """Spark says nothing of the progress of a micro-batch that fails; its writes are committed all the same."""
    source, target = f"{unique}A", f"{unique}B"
    nats_py.create_stream(source)
    nats_py.create_stream(target)
    nats_py.publish_acked([(f"{source}.{i}", b"x") for i in range(20)])

    def write_and_fail(rows: DataFrame, batch: int) -> None:
        columns = rows.selectExpr(f"'{target}.x' AS subject", "payload")
        nats(columns.write, nats_server, stream=target).mode("append").save()
        raise RuntimeError("after the commit")

    frame = nats(spark.readStream, nats_server, stream=source, startingOffsets="earliest").load()
    writer = frame.writeStream.foreachBatch(write_and_fail).queryName(unique)
    query = writer.option("checkpointLocation", str(tmp_path / "c")).start()
    wait_until(lambda: not query.isActive, timeout=120)
    wait_until(lambda: listening.of(unique).get("query.running") == 0)
    assert listening.of(unique)["written.rows"] == 20


def test_an_error_that_ends_a_query_is_counted_under_its_code(
    spark: SparkSession, nats_server: Server, nats_py: NatsPy, unique: str, tmp_path: Path, listening: Collected
) -> None:
    source, target = f"{unique}A", f"{unique}B"
    nats_py.create_stream(source)
    nats_py.create_stream(target)
    nats_py.publish_acked([(f"{source}.x", b"x")])
    frame = nats(spark.readStream, nats_server, stream=source, startingOffsets="earliest").load()
    query = copying(frame, nats_server, unique, tmp_path, target, "nobody.listens")
    wait_until(lambda: not query.isActive)
    wait_until(lambda: "query.failures:NATS_ROW_REFUSED" in listening.of(unique))
    found = listening.of(unique)
    assert (found["query.failures:NATS_ROW_REFUSED"], found["query.running"]) == (1, 0)


@pytest.mark.long("spark_nats/otel.py")
def test_rows_of_core_nats_are_counted_and_have_no_lag(
    spark: SparkSession, nats_server: Server, nats_py: NatsPy, unique: str, tmp_path: Path, listening: Collected
) -> None:
    frame = nats(spark.readStream, nats_server, subject=unique).load()
    writer = frame.writeStream.format("noop").queryName(unique).option("checkpointLocation", str(tmp_path / "c"))
    with running(writer.start()):

        def arrived() -> bool:
            nats_py.publish(unique, b"x")
            return bool(listening.of(unique).get("read.rows", 0) > 0)

        wait_until(arrived)
        found = listening.of(unique)
    assert not [name for name in found if name.startswith(("lag.", "written."))]


def test_the_names_in_prometheus_are_those_of_opentelemetry_s_exporter() -> None:
    assert metrics.OLDEST.prometheus_name == "spark_nats_lag_oldest_message_timestamp_seconds"
    assert metrics.BEHIND.prometheus_name == "spark_nats_lag_messages"


def test_a_listener_with_a_wrong_option_is_refused_at_once() -> None:
    with pytest.raises(OptionError, match="unknown option 'server'"):
        spark_nats.MetricsListener({"server": "x"})


def test_without_opentelemetry_the_error_names_the_extra() -> None:
    script = "import sys; sys.modules['opentelemetry.metrics'] = None; import spark_nats; spark_nats.MetricsListener"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    last = ran.stderr.splitlines()[-1]
    assert last.startswith("ImportError: [NATS_OTEL_NEEDED] MetricsListener needs OpenTelemetry (")
    assert last.endswith("install the extra 'otel' of spark-nats; see Installing in the documentation")
