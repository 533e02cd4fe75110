"""The dashboard and the alerts, asked of a real Prometheus that scrapes a program with queries.

They need `prometheus` and `promtool` on the PATH (Debian: `apt-get install prometheus`), and are skipped without.
"""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest
import yaml
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from prometheus_client import start_http_server
from pyspark.sql import SparkSession

import spark_nats
from spark_nats import metrics
from spark_nats.metrics import Measure
from tests.integration.support import nats, running
from tests.nats_py import NatsPy, wait_until
from tests.pages import ROOT
from tests.servers import Server, free_ports

DASHBOARD = ROOT / "docs" / "dashboards" / "spark-nats.json"
ALERTS = ROOT / "docs" / "dashboards" / "alerts.yaml"
HISTOGRAM = ("_bucket", "_sum", "_count")


def panels() -> dict[str, list[str]]:
    """The expressions of each panel, by its title."""
    shown = json.loads(DASHBOARD.read_text())["panels"]
    return {panel["title"]: [each["expr"] for each in panel["targets"]] for panel in shown if panel["type"] != "row"}


def alerts() -> dict[str, str]:
    (group,) = yaml.safe_load(ALERTS.read_text())["groups"]
    return {rule["alert"]: rule["expr"] for rule in group["rules"]}


def names() -> set[str]:
    """The names that a series may have."""
    found = {each.prometheus_name for each in vars(metrics).values() if isinstance(each, Measure)}
    found |= {measure.prometheus_name for measure, _ in metrics.OF_STREAMS}
    counters = (metrics.FAILURES, metrics.READ_ROWS, metrics.OUTPUT_ROWS, *metrics.OF_COUNTS.values())
    found |= {f"{measure.prometheus_name}_total" for measure in counters}
    return found | {f"{metrics.DURATION.prometheus_name}{each}" for each in HISTOGRAM}


def test_dashboard_and_alerts_know_only_metrics_that_there_are() -> None:
    for expression in [*(each for panel in panels().values() for each in panel), *alerts().values()]:
        assert set(re.findall(r"\bspark_nats_\w+", expression)) <= names(), expression


def test_the_page_names_every_metric_and_no_other() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text()
    counters = {name.removesuffix("_total") for name in names() if name.endswith("_total")}
    parts = {f"{metrics.DURATION.prometheus_name}{each}" for each in HISTOGRAM}
    known = names() - counters - parts
    told = set(re.findall(r"\bspark_nats_\w*[a-z]\b", page))
    assert told - {"spark_nats_written_"} == known


def test_panels_do_not_overlap_and_have_numbers_of_their_own() -> None:
    shown = json.loads(DASHBOARD.read_text())["panels"]
    assert len({panel["id"] for panel in shown}) == len(shown)
    places = [panel["gridPos"] for panel in shown]
    cells = [(x, y) for p in places for x in range(p["x"], p["x"] + p["w"]) for y in range(p["y"], p["y"] + p["h"])]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24


# Of each alert: series as promtool writes them, a sample a minute, when to ask, and whether it fires then.
STREAM = '{query="q", source="0", stream="S"}'
CASES = [
    ("SparkNatsQueryFailed", {'spark_nats_query_failures_total{query="q", condition="c"}': "_x5 1x20"}, "6m", True),
    ("SparkNatsQueryFailed", {'spark_nats_query_failures_total{query="q", condition="c"}': "1x10 2x10"}, "12m", True),
    ("SparkNatsQueryFailed", {'spark_nats_query_failures_total{query="q", condition="c"}': "1x40"}, "30m", False),
    ("SparkNatsQueryEnded", {'spark_nats_query_running{query="q"}': "1x5 0x40"}, "30m", True),
    ("SparkNatsQueryEnded", {'spark_nats_query_running{query="q"}': "1x5 0x5 1x40"}, "30m", False),
    ("SparkNatsQueryBlocked", {f"spark_nats_lag_blocked{STREAM}": "0x5 1x5"}, "8m", True),
    ("SparkNatsQueryBlocked", {f"spark_nats_lag_blocked{STREAM}": "0x10"}, "8m", False),
    (
        "SparkNatsWillLoseMessages",
        {
            f"spark_nats_lag_oldest_message_timestamp_seconds{STREAM}": "0x60",
            f"spark_nats_lag_max_age_seconds{STREAM}": "3600x60",
        },
        "31m",
        True,
    ),
    (
        "SparkNatsWillLoseMessages",
        {
            f"spark_nats_lag_oldest_message_timestamp_seconds{STREAM}": "0x60",
            f"spark_nats_lag_max_age_seconds{STREAM}": "3600x60",
        },
        "29m",
        False,
    ),
    ("SparkNatsFallsBehind", {f"spark_nats_lag_messages{STREAM}": "0+10x60"}, "40m", True),
    ("SparkNatsFallsBehind", {f"spark_nats_lag_messages{STREAM}": "900-10x60"}, "40m", False),
    (
        "SparkNatsFallsBehind",
        {f"spark_nats_lag_messages{STREAM}": "0+10x60", f"spark_nats_lag_catch_up_seconds{STREAM}": "10x60"},
        "40m",
        False,
    ),
    (
        "SparkNatsStandsStill",
        {'spark_nats_batch_timestamp_seconds{query="q"}': "0x60", f"spark_nats_lag_messages{STREAM}": "5x60"},
        "20m",
        True,
    ),
    (
        "SparkNatsStandsStill",
        {'spark_nats_batch_timestamp_seconds{query="q"}': "0x60", f"spark_nats_lag_messages{STREAM}": "0x60"},
        "20m",
        False,
    ),
    ("SparkNatsLagUnknown", {'spark_nats_lag_timestamp_seconds{query="q"}': "0x60"}, "16m", True),
    (
        "SparkNatsLagUnknown",
        {'spark_nats_lag_timestamp_seconds{query="q"}': "0x60", 'spark_nats_query_running{query="q"}': "1x60"},
        "16m",
        False,
    ),
]


def test_every_alert_is_shown_to_fire_and_not_to_fire() -> None:
    assert {(name, fires) for name, _, _, fires in CASES} == {
        (name, fires) for name in alerts() for fires in (True, False)
    }


@pytest.mark.parametrize(("alert", "series", "at", "fires"), CASES)
def test_an_alert_fires_when_it_should(
    alert: str, series: dict[str, str], at: str, fires: bool, tmp_path: Path
) -> None:
    promtool = needed("promtool")
    case = {
        "rule_files": [str(ALERTS)],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [{"series": name, "values": values} for name, values in series.items()],
                "promql_expr_test": [
                    {
                        "expr": f'count(ALERTS{{alertname="{alert}", alertstate="firing"}})',
                        "eval_time": at,
                        "exp_samples": [{"labels": "{}", "value": 1}] if fires else [],
                    }
                ],
            }
        ],
    }
    (tmp_path / "case.yaml").write_text(yaml.safe_dump(case))
    ran = subprocess.run(
        [promtool, "test", "rules", tmp_path / "case.yaml"], capture_output=True, text=True, timeout=60
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


def needed(program: str) -> str:
    found = shutil.which(program)
    if found is None:
        pytest.skip(f"needs {program}: apt-get install prometheus")
    return found


class Prometheus:
    """A Prometheus that scrapes a port of this machine, each second."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}"

    def get(self, path: str, **parameters: str) -> Any:
        with urlopen(f"{self._url}{path}?{urlencode(parameters)}", timeout=30) as answer:
            return json.load(answer)["data"]

    def values(self, expression: str) -> list[float]:
        """What an expression of a panel or an alert yields now."""
        asked = expression.replace("$__rate_interval", "10s").replace("$query", ".*")
        found = [float(each["value"][1]) for each in self.get("/api/v1/query", query=asked)["result"]]
        return [value for value in found if not math.isnan(value)]

    def is_ready(self) -> bool:
        try:
            return bool(urlopen(f"{self._url}/-/ready", timeout=30).status == 200)
        except URLError:
            return False


@contextmanager
def prometheus(scraped: int, folder: Path) -> Iterator[Prometheus]:
    program = needed("prometheus")
    (port,) = free_ports(1)
    configuration = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(ALERTS)],
        "scrape_configs": [{"job_name": "queries", "static_configs": [{"targets": [f"127.0.0.1:{scraped}"]}]}],
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(configuration))
    arguments = [f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
    with (folder / "prometheus.log").open("w") as log:
        process = subprocess.Popen(
            [program, *arguments, f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=subprocess.STDOUT
        )
        try:
            found = Prometheus(port)
            wait_until(found.is_ready)
            yield found
        finally:
            process.terminate()
            process.wait(timeout=60)


@pytest.mark.long("docs/dashboards/*", "spark_nats/metrics.py", "spark_nats/otel.py")
def test_every_panel_has_data_and_an_alert_fires_while_queries_run(
    spark: SparkSession, nats_server: Server, nats_py: NatsPy, unique: str, tmp_path: Path
) -> None:
    source, target = f"{unique}A", f"{unique}B"
    nats_py.create_stream(source, max_age=3600 * 10**9)
    nats_py.create_stream(target)
    nats_py.store(f"{source}.x", [b"12345678"] * 4000)
    provider = MeterProvider([PrometheusMetricReader()])
    endpoint, thread = start_http_server(0, "127.0.0.1")
    listener = spark_nats.MetricsListener({"servers": nats_server.url}, provider)
    spark.streams.addListener(listener)
    try:
        with prometheus(endpoint.server_port, tmp_path) as asked:
            rows = nats(
                spark.readStream, nats_server, stream=source, startingOffsets="earliest", maxOffsetsPerTrigger=20
            ).load()

            def start(name: str, subject: str) -> Any:
                columns = rows.selectExpr(f"'{subject}' AS subject", "payload")
                writer = nats(columns.writeStream, nats_server, stream=target).queryName(name)
                return writer.option("checkpointLocation", str(tmp_path / name)).start()

            refused = start(f"{unique} refused", "nobody.listens")
            wait_until(lambda: not refused.isActive)
            with running(start(unique, f"{target}.x")):
                for title, expressions in panels().items():
                    for expression in expressions:
                        assert wait_until(lambda e=expression: asked.values(e), timeout=60), title  # type: ignore[misc]
                failed = alerts()["SparkNatsQueryFailed"]
                assert asked.values(failed) == [1]

                def firing() -> set[str]:
                    active = asked.get("/api/v1/alerts")["alerts"]
                    return {each["labels"]["alertname"] for each in active if each["state"] == "firing"}

                wait_until(lambda: "SparkNatsQueryFailed" in firing())
                (group,) = asked.get("/api/v1/rules")["groups"]
                assert {rule["health"] for rule in group["rules"]} == {"ok"}
    finally:
        spark.streams.removeListener(listener)
        provider.shutdown()
        endpoint.shutdown()
        thread.join()
