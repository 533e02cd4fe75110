"""`spark-nats lag --prometheus`: what Prometheus reads of it."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from spark_nats.cli import main
from spark_nats.commands.checkpoints import Checkpoint
from spark_nats.commands.lag import Found, prometheus_text
from spark_nats.lag import LagSample, QueryLag, StreamLag
from tests.integration.commands.test_lag import position, write_checkpoint
from tests.nats_py import NatsPy
from tests.servers import Server

pytestmark = pytest.mark.usefixtures("in_a_hurry")

QUERY_ID = "86cc2d8b-88d3-48b9-9936-f6a0f4dd2f5e"
Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def samples_in(text: str) -> Samples:
    """What an independent reader of the format finds, each sample once."""
    families = list(text_string_to_metric_families(text))
    assert all(family.type == "gauge" and family.documentation for family in families)
    samples = [sample for family in families for sample in family.samples]
    found = {(sample.name, tuple(sorted(sample.labels.items()))): sample.value for sample in samples}
    assert len(found) == len(samples)
    return found


def checked_by_promtool(text: str) -> None:
    """Where there is a promtool, it has nothing to say against names, units and comments."""
    if promtool := shutil.which("promtool"):
        ran = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, text=True, timeout=60)
        assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")


def test_the_lag_of_a_checkpoint_is_read_by_prometheus(
    nats_server: Server, nats_py: NatsPy, unique: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nats_py.create_stream(unique, max_age=3600 * 10**9)
    nats_py.store(f"{unique}.x", [b"x"] * 20)
    checkpoint = write_checkpoint(tmp_path / "c", position(nats_py, unique, 3), position(nats_py, unique, 6))
    arguments = ["lag", "--checkpoint", str(checkpoint), "--servers", nats_server.url, "--prometheus"]
    before = datetime.now(UTC).timestamp()
    assert main(arguments) == 0
    shown = capsys.readouterr().out
    found = samples_in(shown)
    of_query = (("query", QUERY_ID),)
    of_stream = (("query", QUERY_ID), ("source", "0"), ("stream", unique))
    assert found["spark_nats_lag_messages", of_stream] == 15
    assert found["spark_nats_lag_next_sequence", of_stream] == 6
    assert found["spark_nats_lag_end_sequence", of_stream] == 21
    assert found["spark_nats_lag_max_age_seconds", of_stream] == 3600
    assert found["spark_nats_lag_blocked", of_stream] == 0
    assert found["spark_nats_batch_number", of_query] == 1
    ended = (checkpoint / "commits/1").stat().st_mtime
    assert found["spark_nats_batch_timestamp_seconds", of_query] == pytest.approx(ended, abs=1e-6)
    asked = found["spark_nats_lag_timestamp_seconds", of_query]
    assert before < asked
    assert found["spark_nats_lag_oldest_message_timestamp_seconds", of_stream] < asked
    checked_by_promtool(shown)


def test_what_is_not_known_has_no_line(
    nats_server: Server, nats_py: NatsPy, unique: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nats_py.create_stream(unique)
    checkpoint = write_checkpoint(tmp_path / "c", position(nats_py, unique, 1), ended=0)
    assert main(["lag", "--checkpoint", str(checkpoint), "--servers", nats_server.url, "--prometheus"]) == 0
    shown = capsys.readouterr().out
    names = {name for name, _ in samples_in(shown)}
    assert "spark_nats_lag_messages" in names
    for name in ("lag_oldest_message_timestamp_seconds", "lag_max_age_seconds", "batch_timestamp_seconds"):
        assert f"spark_nats_{name}" not in shown
    checked_by_promtool(shown)


def test_a_query_that_cannot_go_on_is_told_and_the_status_is_1(
    nats_server: Server, nats_py: NatsPy, unique: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nats_py.create_stream(unique)
    nats_py.store(f"{unique}.x", [b"x"] * 20)
    checkpoint = write_checkpoint(tmp_path / "c", position(nats_py, unique, 6))
    nats_py.purge_stream(unique, seq=11)
    assert main(["lag", "--checkpoint", str(checkpoint), "--servers", nats_server.url, "--prometheus"]) == 1
    found = samples_in(capsys.readouterr().out)
    assert found["spark_nats_lag_blocked", (("query", QUERY_ID), ("source", "0"), ("stream", unique))] == 1


def test_without_an_answer_nothing_is_printed(
    nats_py: NatsPy, unique: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Or it would take the place of what a file had before."""
    nats_py.create_stream(unique)
    checkpoint = write_checkpoint(tmp_path / "c", position(nats_py, unique, 1))
    assert main(["lag", "--checkpoint", str(checkpoint), "--servers", "nats://127.0.0.1:1", "--prometheus"]) == 3
    assert capsys.readouterr().out == ""


def test_two_sources_of_a_query_may_read_one_stream_and_names_may_have_any_character() -> None:
    at = datetime.now(UTC)
    names = ["ORDERS", 'a"b\\c\nd\\n', "größe"]
    streams = [StreamLag(name, 1, 2, 1) for name in names]
    lag = QueryLag("q", -1, at, (*streams, replace(streams[0], source=1)))
    look = LagSample(0.0, 0.0, {})
    text = prometheus_text(Found(Checkpoint("q", (look,), -1, None), lag))
    found = {labels for name, labels in samples_in(text) if name == "spark_nats_lag_messages"}
    expected = [("0", name) for name in names] + [("1", "ORDERS")]
    assert found == {(("query", "q"), ("source", source), ("stream", name)) for source, name in expected}
    checked_by_promtool(text)


def test_a_form_is_chosen_once(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["lag", "--checkpoint", "c", "--json", "--prometheus"])
    assert "not allowed with argument" in capsys.readouterr().err
