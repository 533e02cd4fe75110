import os
import pty
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyspark
import pytest
from pyspark.sql import SparkSession

from spark_nats import __version__
from spark_nats.cli import main
from spark_nats.client.pool import borrow
from spark_nats.demo.orders import Orders, Revenue
from spark_nats.demo.run import Streams, _raising_on_signals, publish
from spark_nats.demo.spark import describe_differing_orders, describe_differing_results
from spark_nats.demo.voice import Voice
from spark_nats.embedded import EmbeddedServerError
from tests.integration.jobs import tracebacks_in
from tests.nats_py import NatsPy
from tests.pages import ROOT
from tests.servers import Server

COMMAND = [sys.executable, "-m", "spark_nats.cli", "demo"]
CLAIMS = 4


def run(*arguments: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=240, env=environment)


@contextmanager
def started(environment: dict[str, str], *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Start the command as a terminal does: in the foreground, in a process group of its own."""
    process = subprocess.Popen(
        [*COMMAND, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # type: ignore[arg-type,return-value]
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def read_until(process: subprocess.Popen[str], words: str) -> str:
    assert process.stdout is not None
    text = ""
    for line in process.stdout:
        text += line
        if words in line:
            return text
    raise AssertionError(f"{words!r} never came after:\n{text}")


def url_in(text: str) -> str:
    found = re.search(r"nats://127\.0\.0\.1:[0-9]+", text)
    assert found, text
    return found[0]


def is_gone(url: str) -> bool:
    try:
        socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=1).close()
    except OSError:
        return True
    return False


def number(output: str, label: str) -> int:
    found = re.search(rf"^ +{re.escape(label)} +([0-9,]+)$", output, re.MULTILINE)
    assert found, output
    return int(found[1].replace(",", ""))


# The whole demonstration


@pytest.mark.long("spark_nats/demo/*")
def test_every_order_goes_through_and_a_kept_server_answers_until_it_is_interrupted(
    spark_environment: dict[str, str],
) -> None:
    with started(spark_environment, "--messages", "5000", "--keep") as process:
        text = read_until(process, "until Ctrl-C")
        assert number(text, "messages in ORDERS") == 5000
        assert number(text, "rows in") == 5000
        written = number(text, "messages in REVENUE")
        assert written == number(text, "rows out") > 240
        batches = re.findall(r"^ +([0-9]+) +625 .* ([0-9,]+)$", text, re.MULTILINE)
        assert batches == [(str(i), f"{4375 - 625 * i:,}") for i in range(8)]
        assert number(text, "rows per second, last 4 batches") > 0
        assert len(re.findall("^  ok ", text, re.MULTILINE)) == CLAIMS
        assert "FAILED" not in text
        url = url_in(text)
        assert f"nats stream ls --server {url}" in text
        with NatsPy(url) as client:
            assert client.held("ORDERS") == 5000
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
        assert not tracebacks_in(errors)
        assert is_gone(url)


@pytest.mark.long("spark_nats/demo/*")
def test_a_server_of_ones_own_is_left_as_it_was(
    spark_environment: dict[str, str], nats_server: Server, nats_py: NatsPy
) -> None:
    def streams() -> list[str]:
        return sorted(
            {*(nats_py.api("STREAM.NAMES")["streams"] or []), "KV_SPARK_NATS"}
        )  # what all queries share stays

    before = streams()
    ended = run("--messages", "100", "--servers", nats_server.url, environment=spark_environment)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert re.search(r"messages in ORDERS_DEMO_[0-9A-F]{6} +100$", ended.stdout, re.MULTILINE)
    assert streams() == before


@pytest.mark.long("spark_nats/demo/*", "scripts/setup", "Makefile")
@pytest.mark.skipif(Path(sys.prefix) != ROOT / ".venv", reason="make uses .venv")
def test_make_says_at_its_end_that_all_is_well(spark_environment: dict[str, str]) -> None:
    command = ["make", "demo", "ARGS=--messages 100"]
    # without what a make that runs the tests hands on
    environment = {name: value for name, value in spark_environment.items() if not name.startswith(("MAKE", "MFLAGS"))}
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, env=environment)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert re.fullmatch("  all is well: make demo took [0-9]+ s, .*", ended.stdout.splitlines()[-1])


WHERE = """
import sys
from pathlib import Path
from spark_nats.demo.spark import spark_session

def origin(_):
    import pyspark
    return pyspark.__cached__

with spark_session(Path(sys.argv[1])) as spark:
    print(*spark.sparkContext.parallelize([1]).map(origin).collect())
"""


@pytest.mark.long("spark_nats/demo/*")
def test_sparks_processes_import_pyspark_with_its_bytecode(spark_environment: dict[str, str], tmp_path: Path) -> None:
    environment = {name: value for name, value in spark_environment.items() if name != "SPARK_HOME"}
    command = [sys.executable, "-c", WHERE, str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment)
    assert ended.stdout.strip() == pyspark.__cached__, ended.stderr


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_an_interrupted_demonstration_leaves_no_server(
    spark_environment: dict[str, str], number: signal.Signals, status: int
) -> None:
    with started(spark_environment) as process:
        url = url_in(read_until(process, "server"))
        os.killpg(process.pid, number)
        _, errors = process.communicate(timeout=60)
        # CPython itself ends by SIGINT where that came while it ran generated code, as of a dataclass that is being
        # imported, whoever caught the KeyboardInterrupt. For a shell both are status 130.
        assert process.returncode in (status, -number), errors
        assert "Traceback" not in errors
        assert is_gone(url)


@pytest.mark.parametrize("interruption", [KeyboardInterrupt(), SystemExit(143)])
def test_a_program_goes_on_to_nothing_new_after_an_interrupt_that_was_swallowed(interruption: BaseException) -> None:
    with Voice() as voice:
        voice.note_step("something")
        voice.interruption = interruption
        with pytest.raises(type(interruption)):
            voice.note_step("something else")
        with pytest.raises(type(interruption)):
            voice.note_progress(1, 2, "read")
        voice.note_step(None)


class Interrupting:
    """Interrupts the program where Python swallows exceptions."""

    def __del__(self) -> None:
        signal.raise_signal(signal.SIGINT)


def test_an_interrupt_that_was_swallowed_prints_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    printed: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", printed.append)
    with Voice() as voice, _raising_on_signals(voice):
        Interrupting()
        assert isinstance(voice.interruption, KeyboardInterrupt)
    assert printed == []


def test_a_password_in_the_servers_url_reaches_spark_as_an_option() -> None:
    streams = Streams("tls://ann:t0ps3cret@one,two:5")
    assert streams.spark_options == {"servers": "tls://one:4222,tls://two:5", "user": "ann", "password": "t0ps3cret"}
    assert Streams("nats://t0ken@one").spark_options == {"servers": "nats://one:4222", "token": "t0ken"}
    assert "t0ps3cret" not in repr(streams)


# What can be missing


def the_only_line(ended: subprocess.CompletedProcess[str]) -> str:
    assert ended.returncode == 1, ended.stdout + ended.stderr
    (line,) = ended.stderr.splitlines()
    return line


def test_a_server_that_is_not_there_is_said_in_a_line() -> None:
    line = the_only_line(run("--servers", "nats://ann:secret@127.0.0.1:1"))
    said = "[NATS_NO_SERVER] no NATS server could be reached (nats://127.0.0.1:1: Connection refused)"
    assert line.startswith(f"spark-nats: {said}")


@pytest.mark.parametrize("home", [None, "/nowhere"])
def test_a_missing_java_is_said_in_a_line(home: str | None, tmp_path: Path) -> None:
    environment = {"PATH": str(tmp_path)} | ({"JAVA_HOME": home} if home else {})
    line = the_only_line(run(environment=environment))
    assert line.startswith("spark-nats: [NATS_JAVA_MISSING] Spark needs Java 17 or newer, and there is none")
    assert (home or "on PATH") in line


def test_an_old_java_is_said_in_a_line(tmp_path: Path) -> None:
    java = tmp_path / "java"
    java.write_text("#!/bin/sh\necho 'java version \"1.8.0_392\"' >&2\n")
    java.chmod(0o755)
    line = the_only_line(run(environment={"PATH": str(tmp_path)}))
    said = f"Spark needs Java 17 or newer, and {java} is 1.8.0_392: install it, or set JAVA_HOME"
    assert line == f"spark-nats: [NATS_JAVA_TOO_OLD] {said}"


def without(module: str, script: str) -> subprocess.CompletedProcess[str]:
    """Run a script where a module is missing."""
    script = f"import sys; sys.modules[{module!r}] = None; {script}"
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)


def test_a_missing_pyspark_is_said_in_a_line() -> None:
    ended = without("pyspark", "from spark_nats.cli import main; sys.exit(main(['demo']))")
    assert ended.returncode == 1
    assert "the extra 'spark' of spark-nats; see Installing" in ended.stderr
    assert ended.stdout.startswith(f"spark-nats {__version__}: 400,000 orders")  # before there was anything to wait for


def test_a_pyspark_without_python_data_sources_is_said() -> None:
    ended = without("pyspark.sql.datasource", "from spark_nats import NatsDataSource")
    said = "[NATS_PYSPARK_NEEDED] PySpark 4.0 or newer is needed ("
    assert ended.stderr.splitlines()[-1].startswith(f"ImportError: {said}")


def test_a_missing_nats_server_is_said_in_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def find_none() -> Path:
        raise EmbeddedServerError("there is no nats-server")

    monkeypatch.setattr("spark_nats.embedded.find_binary", find_none)
    assert main(["demo"]) == 1
    assert capsys.readouterr().err == "spark-nats: there is no nats-server\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--messages", "0"], "'0' is not a whole number of at least 1"),
        (["--messages", "many"], "'many' is not a whole number"),
        (["--servers", "http://ann:secret@x"], "argument --servers: has the unsupported scheme 'http'"),
    ],
)
def test_a_bad_argument_is_refused(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["demo", *arguments])
    error = capsys.readouterr().err
    assert words in error
    assert "secret" not in error


def test_the_version_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out == f"spark-nats {__version__}\n"


# Signs of life


SPEAK = """
import threading
from spark_nats.demo import voice

voice.SILENCE = 0.05
with voice.Voice() as speaker:
    speaker.say("begins")
    speaker.note_step("Spark is starting")
    input()  # until the reader has heard enough
    speaker.say("ends")
    speaker.note_step(None)
"""


def test_what_is_under_way_is_said_as_long_as_nothing_else_is() -> None:
    command = [sys.executable, "-c", SPEAK]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        read_until(process, "begins")
        for _ in range(3):
            assert re.search(r"^  \.\.\. +Spark is starting \([0-9]+ s\)$", read_until(process, "Spark"), re.MULTILINE)
        output, _ = process.communicate("\n", timeout=60)
    assert process.returncode == 0
    assert output.splitlines()[-1] == "ends"


def test_in_a_terminal_it_is_one_line_that_goes_again() -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen([sys.executable, "-c", SPEAK], stdin=subprocess.PIPE, stdout=theirs)
    os.close(theirs)
    shown = b""
    while shown.count(b"Spark is starting") < 3:
        shown += os.read(ours, 1000)
    process.communicate(b"\n", timeout=60)
    with suppress(OSError):  # the other end is closed
        while part := os.read(ours, 1000):
            shown += part
    os.close(ours)
    lines = shown.decode().split("\r\n")
    assert (lines[0], len(lines)) == ("begins", 3)
    assert re.fullmatch(r"(  \.\.\. +Spark is starting \([0-9]+ s\)\r\x1b\[K){3,}ends", lines[1])


MOVE = """
import os
from spark_nats.demo import voice

voice.SILENCE = 0.05
with voice.Voice() as speaker:
    speaker.note_step("publishing orders")
    speaker.note_progress(50_000, 200_000, "stored")
    input()
    speaker.note_progress(200_000, 200_000, "stored")
    input()
    speaker.note_step(None)
"""


def test_what_is_left_is_shown_as_a_bar_in_a_terminal() -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", MOVE], stdin=subprocess.PIPE, stdout=theirs, env={**os.environ, "COLUMNS": "80"}
    )
    os.close(theirs)
    shown = b""
    for bar in ("███░░░░░░░░░░░ 50,000 stored, 150,000 left", "███████████████████ 200,000 stored, 0 left"):
        while bar.encode() not in shown:
            shown += os.read(ours, 1000)
        assert process.stdin is not None
        process.stdin.write(b"\n")
        process.stdin.flush()
    process.communicate(timeout=60)
    os.close(ours)
    assert process.returncode == 0
    assert all(len(line) < 80 for line in shown.decode(errors="replace").split("\r\x1b[K"))


def test_what_is_left_is_said_in_lines_elsewhere() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", MOVE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        line = read_until(process, "50,000 stored")
        assert re.search(r"^  \.\.\. +publishing orders: 50,000 stored, 150,000 left \([0-9]+ s\)$", line, re.MULTILINE)
        process.communicate("\n\n", timeout=60)
    assert process.returncode == 0


def test_whoever_reads_may_stop_reading_the_demonstration(spark_environment: dict[str, str]) -> None:
    with started(spark_environment) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()
        assert process.wait(timeout=60) == 1


# The check


def test_orders_are_the_same_for_the_same_seed() -> None:
    one, same, other = Orders(60_000, "orders"), Orders(60_000, "orders"), Orders(60_000, "orders", 1)
    made = pa.Table.from_batches(one.generate_batches())
    assert made.num_rows == 60_000
    assert made.equals(pa.Table.from_batches(same.generate_batches()))
    assert not made.equals(pa.Table.from_batches(other.generate_batches()))
    assert one.revenue() == same.revenue() != other.revenue()
    assert sum(revenue.orders for revenue in one.revenue().values()) == 60_000


@pytest.mark.long("spark_nats/demo/*")
def test_what_is_lost_doubled_changed_or_added_is_found(
    spark: SparkSession, nats_server: Server, nats_py: NatsPy, unique: str, tmp_path: Path
) -> None:
    streams = Streams(nats_server.url, unique)
    nats_py.create_stream(unique, [f"{unique.lower()}.>"])
    copy = tmp_path / "orders.parquet"
    with borrow(streams.client_options) as connection:
        publish(connection, Orders(20, unique.lower()), unique, copy)
    sent = spark.read.parquet(str(copy))
    read = streams.load(spark.read, unique).cache()

    damaged = (
        read.unionAll(read.where("sequence IN (5, 11)"))
        .where("sequence NOT IN (3, 7)")
        .selectExpr(
            "sequence",
            "if(sequence = 4, 'x', subject) AS subject",
            "if(sequence = 6, cast('x' AS BINARY), payload) AS payload",
            "if(sequence = 8, map('Priority', array('x')), headers) AS headers",
        )
    )

    assert describe_differing_orders(sent, read) == []
    assert describe_differing_orders(sent.where("sequence <> 9"), damaged) == [
        "2 lost, the first at sequence 3",
        "1 never sent, the first at sequence 9",
        "2 read more than once, the first at sequence 5",
        "3 changed, the first at sequence 4",
    ]


def test_a_wrong_or_missing_result_is_found() -> None:
    right = {("eu", "08:00"): Revenue(2, 1, 1250), ("na", "08:00"): Revenue(1, 0, -5)}
    assert describe_differing_results(right, dict(right)) == []
    assert describe_differing_results(right, {**right, ("eu", "08:00"): Revenue(2, 1, 1251)}) == [
        "1 of 2 results differ; the first is eu at 08:00: 2 orders, 1 express, revenue 12.51 "
        "instead of 2 orders, 1 express, revenue 12.50"
    ]
    assert describe_differing_results(right, {}) == [
        "2 of 2 results differ; the first is eu at 08:00: nothing instead of 2 orders, 1 express, revenue 12.50"
    ]
