"""`make bench` works. What it measures is no test: figures are judged by who reads them."""

from __future__ import annotations

import json
import os
import re
import shlex
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import __main__ as command
from benchmarks import committed, large, many, scale, startup
from benchmarks.distance import Distance
from benchmarks.environment import Server as MeasuredServer
from benchmarks.measure import Grid
from benchmarks.peers import kafka
from benchmarks.settings import Settings
from tests.pages import PAGES, ROOT, blocks_of
from tests.servers import Server


@pytest.mark.long("benchmarks/*")
def test_the_codec_is_measured_and_written_down(tmp_path: Path):
    result = tmp_path / "deep" / "result.json"
    command = [sys.executable, "-m", "benchmarks", "--quick", "--only", "codec", "--rounds", "1", "--json", str(result)]

    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)

    assert done.returncode == 0, done.stderr
    assert "codec: decode JetStream deliveries" in done.stdout
    document = json.loads(result.read_text())
    assert document["machine"]["cores"] >= 1
    assert document["versions"]["pyarrow"] != "not installed"
    assert len(document["tables"]) == 11
    for table in document["tables"]:
        for row in table["rows"]:
            assert len(row["rounds"]) == 1
            assert row["messages_per_second"]["median"] > 0, (table["title"], row["name"])


def test_an_unknown_suite_is_refused():
    command = [sys.executable, "-m", "benchmarks", "--only", "codec,kodek"]

    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)

    assert done.returncode == 2
    suites = "codec, client, filters, spark, queues, startup, cost, "
    on_request = "reads, writes, publishing, small, many, queries, sizing, cluster, near, scale, large, "
    assert f"kodek: choose from {suites}{on_request}websocket, far, kafka" in done.stderr


def test_a_ground_that_there_is_not_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--only", "large", "--grounds", "keys,stones"])

    with pytest.raises(SystemExit):
        command.main()

    assert "stones: choose from keys, streams, consumers, bytes, copying" in capsys.readouterr().err
    assert tuple(large.MEASURES) == command.GROUNDS


@pytest.mark.long("benchmarks/*")
@pytest.mark.parametrize("ground", command.GROUNDS)
def test_what_is_much_more_than_usual_is_measured(ground: str, tmp_path: Path):
    result = tmp_path / "result.json"
    command = [sys.executable, "-m", "benchmarks", "--quick", "--only", "large", "--grounds", ground]

    done = subprocess.run(
        [*command, "--json", str(result)], cwd=ROOT, capture_output=True, text=True, timeout=500, check=False
    )

    assert done.returncode == 0, done.stderr
    tables = json.loads(result.read_text())["tables"]
    assert len(tables) == (1 if ground == "copying" else 3)
    for table in tables:
        assert table["title"].startswith("large: "), table
        assert table.get("figures") or table.get("facts"), table


@pytest.mark.long("benchmarks/*")
def test_two_commits_are_measured_in_turns():
    command = [sys.executable, "-m", "benchmarks.turns", str(ROOT), "--rounds", "1", "--only", "core,small"]

    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)

    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()[1:]] == ["core", "small"]


def test_a_folder_without_another_commit_is_refused(tmp_path: Path):
    command = [sys.executable, "-m", "benchmarks.turns", str(tmp_path)]

    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)

    assert done.returncode == 2
    assert f"{tmp_path} has no checkout of this project" in done.stderr


def _run(*rows: tuple[str, list[float]], reference: str = "raw drain", quick: bool = True) -> dict[str, Any]:
    """The results of a run with one table, which has these rates round by round."""
    named = [
        {"name": name, "rounds": [{"messages": rate, "seconds": 1.0} for rate in rates]}
        for name, rates in [(reference, [100.0, 200.0]), *rows]
    ]
    tables = [{"title": "read", "reference": reference, "rows": named}, {"title": "sizes", "figures": {}}]
    return {"quick": quick, "tables": tables}


_NOTHING = ["nothing is slower than the committed results by more than their spread"]


def test_what_is_slower_than_the_committed_results_is_named():
    known = committed.merged({}, _run(("spark-nats", [95.0, 204.0]), ("spark-nats, ids", [50.0, 100.0])))

    lines = committed.comparison(known, _run(("spark-nats", [81.0, 164.0]), ("spark-nats, ids", [50.0, 100.0])))

    assert lines == ["slower than committed: read, spark-nats x raw drain: ratio 0.81, was 0.95 - 1.02"]


@pytest.mark.parametrize("rates", [[95.0, 204.0], [94.0, 180.0], [90.5, 181.0], [300.0, 600.0]])
def test_what_is_as_fast_or_faster_or_within_the_spread_is_not_named(rates: list[float]):
    known = committed.merged({}, _run(("spark-nats", [95.0, 204.0])))

    assert committed.comparison(known, _run(("spark-nats", rates))) == _NOTHING


def test_a_slower_peer_is_not_named_but_what_became_slower_beside_it():
    known = committed.merged({}, _run(("nats.c", [50.0, 100.0]), reference="spark-nats"))

    assert committed.comparison(known, _run(("nats.c", [20.0, 40.0]), reference="spark-nats")) == _NOTHING
    lines = committed.comparison(known, _run(("nats.c", [80.0, 160.0]), reference="spark-nats"))
    assert lines == ["slower than committed: read, spark-nats x nats.c: ratio 1.25, was 2.00 - 2.00"]


def test_where_no_row_says_that_it_is_ours_all_are():
    known = committed.merged({}, _run(("10 filters", [50.0, 100.0]), reference="1 filter"))

    lines = committed.comparison(known, _run(("10 filters", [20.0, 40.0]), reference="1 filter"))

    assert lines == ["slower than committed: read, 10 filters x 1 filter: ratio 0.20, was 0.50 - 0.50"]


def test_nothing_is_said_of_what_is_not_committed():
    run = _run(("spark-nats", [50.0, 100.0]))

    assert committed.comparison({}, run) == []
    assert committed.comparison(committed.merged({}, _run(("spark-nats", [95.0, 204.0]), quick=False)), run) == []
    assert committed.comparison(committed.merged({}, _run(("spark-nats, ids", [95.0, 204.0]))), run) == []


def test_a_table_replaces_its_committed_results_and_leaves_the_others():
    known = {"quick": {"read": {"gone": {}}, "write": {"kept": {"median": 1.0}}}, "whole": {"read": {}}}

    merged = committed.merged(known, _run(("spark-nats", [95.0, 204.0])))

    ratio = {"median": 0.985, "min": 0.95, "max": 1.02}
    assert merged == {
        "quick": {"read": {"spark-nats x raw drain": ratio}, "write": {"kept": {"median": 1.0}}},
        "whole": {"read": {}},
    }


def test_results_of_other_servers_are_not_committed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--commit", "--servers", "nats://host:4222"])

    with pytest.raises(SystemExit):
        command.main()

    assert "--commit: results of other servers are not for comparison" in capsys.readouterr().err


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_the_page_names_benchmarks_that_exist(page: Path, monkeypatch: pytest.MonkeyPatch):
    text = page.read_text()
    for arguments in re.findall(r'make bench ARGS="([^"]*)"', text):
        monkeypatch.setattr(sys, "argv", ["benchmarks", *shlex.split(arguments)])
        command._parse()
    suites = {suite for named in re.findall(r"--only ([a-z,]+)", text) for suite in named.split(",")}
    assert suites <= {*command.SUITES, *command.ON_REQUEST}


def test_the_page_of_the_benchmark_shows_every_suite_that_runs_on_request():
    (page,) = [page for page in PAGES if page.parent.name == "benchmarks"]
    shown = "".join(block.code for block in blocks_of(page))
    assert not [suite for suite in command.ON_REQUEST if not re.search(rf"--only .*\b{suite}\b", shown)]


def test_kafka_is_left_out_where_there_is_no_maven(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    result = tmp_path / "result.json"
    monkeypatch.setattr(kafka, "_JARS", tmp_path / "jars")
    monkeypatch.setattr(kafka, "shutil", SimpleNamespace(which=lambda _: None))
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--quick", "--only", "kafka", "--json", str(result)])

    assert command.main() == 0

    assert "kafka: left out, since there is no Maven: apt-get install maven\n" in capsys.readouterr().out
    assert [table["title"] for table in json.loads(result.read_text())["tables"]] == ["kafka"]


def test_what_maven_cannot_get_is_said_in_a_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    maven = tmp_path / "mvn"
    maven.write_text("#!/bin/sh\necho '[ERROR] Unknown host'\necho '[ERROR] help'\nexit 1\n")
    maven.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(kafka, "_JARS", tmp_path / "jars")

    with pytest.raises(kafka.KafkaMissingError, match="Maven did not get the connector: .ERROR. Unknown host$"):
        kafka.connector()
    assert list((tmp_path / "jars").iterdir()) == []


@pytest.mark.long("benchmarks/*")
def test_what_a_process_imports_is_measured(nats_server: Server):
    server = MeasuredServer(nats_server.url, None)
    with server.stream("plan.>") as stream:
        facts = startup._imports(Settings(quick=True, rounds=1, servers=nats_server.url), server, stream).facts

    values = {fact.name: fact.value for fact in facts}
    assert 0 < values["Python alone"] < values["with spark_nats.datasource too"]
    assert values["imports: spark_nats"] > 0


@pytest.mark.long("benchmarks/*")
def test_what_a_query_over_many_streams_asks_is_measured(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(many, "_IDLE", 0.5)
    monkeypatch.setattr(many, "_SETTLES", 0.5)

    table = many._without_spark((1, 20), clustered=False)

    assert list(table.rows) == ["1 stream", "20 streams"]
    figures = {name: dict(zip(table.columns, values, strict=True)) for name, values in table.rows.items()}
    assert [figures[name]["partitions"] for name in figures] == [1, 4]
    assert all(value is not None and value >= 0 for values in table.rows.values() for value in values)


def test_a_row_for_which_there_is_no_time_is_left_out_and_named():
    table = Grid("scale: one server, read", ["k rows/s"])

    assert scale._Budget(None).allows(table, "1 stream, 1 task")
    assert not scale._Budget(0.0).allows(table, "1 stream, 2 tasks")

    assert table.remarks == ["1 stream, 2 tasks: left out, since the budget is spent"]


def test_what_passes_from_a_distance_stays_whole_and_in_order():
    sent = bytes(range(256)) * 4096
    with socket.create_server(("127.0.0.1", 0)) as echo, Distance(echo.getsockname()[1]) as distance:
        distance.round_trip = 0.02
        with socket.create_connection(("127.0.0.1", distance.port), timeout=30) as client:
            server, _ = echo.accept()
            with server:
                client.sendall(sent[:100])
                assert _receive(server, 100) == sent[:100]
                distance.round_trip = 0.0  # what comes later must not overtake what is on its way
                client.sendall(sent[100:])
                client.shutdown(socket.SHUT_WR)
                assert _receive(server, len(sent)) == sent[100:]
                server.sendall(sent)
            assert _receive(client, len(sent) + 1) == sent


def _receive(connection: socket.socket, most: int) -> bytes:
    """What arrives until the end, or until that is so much."""
    connection.settimeout(30)
    received = b""
    while len(received) < most and (chunk := connection.recv(most - len(received))):
        received += chunk
    return received


def test_every_target_belongs_to_a_row_that_exists():
    """A renamed table or row would lose its target without a word."""
    source = "".join(path.read_text() for path in (ROOT / "benchmarks").glob("*.py") if path.name != "targets.py")
    targets = pytest.importorskip("benchmarks.targets")
    names = {name for name, value in vars(targets).items() if isinstance(value, str) and name.isupper()}
    for name in names:
        assert f"targets.{name}" in source or f"import {name}" in source, name
    for target in targets.TARGETS:
        for row in filter(None, (target.row, target.times)):
            assert row == targets.OURS or f'"{row}"' in source, row
