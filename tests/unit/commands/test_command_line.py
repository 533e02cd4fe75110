"""Arguments of ``spark-nats`` that are wrong: what is wrong comes first, and no pages of options before it."""

import os
import subprocess
import sys

import pytest

from spark_nats.cli import main


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> list[str]:
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    shown = capsys.readouterr()
    assert shown.out == ""
    return shown.err.splitlines()


@pytest.mark.parametrize(
    ("command", "wrong", "meant"),
    [
        ("check", "--server", "--servers"),
        ("lag", "--server", "--servers"),
        ("demo", "--server", "--servers"),
        ("options", "--jso", "--json"),
        ("demo", "--message", "--messages"),
        ("lag", "--chekpoint", "--checkpoint"),
        ("lag", "-checkpoint", "--checkpoint"),
        ("check", "--streampattern", "--streamPattern"),
    ],
)
def test_an_option_that_is_none_is_refused_and_the_likely_one_named(
    command: str, wrong: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments in ([wrong, "x"], [f"{wrong}=x"]):
        first, then = refused([command, *arguments], capsys)
        assert first == f"spark-nats {command}: there is no option {wrong}; did you mean {meant}?"
        assert then == f"spark-nats {command} --help lists what there is"


@pytest.mark.parametrize("command", ["check", "lag", "options", "demo"])
def test_an_option_like_no_other_is_refused_without_its_value(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    first, _ = refused([command, "--xyzzy=t0ps3cret"], capsys)
    assert first == f"spark-nats {command}: there is no option --xyzzy"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["lag"], "spark-nats lag: the following arguments are required: --checkpoint"),
        (["lag", "--checkpoint"], "spark-nats lag: argument --checkpoint: expected one argument"),
        (
            ["lag", "--checkpoint", "c", "more"],
            "spark-nats: an argument belongs to no option; quote a value that has spaces",
        ),
        ([], "spark-nats: the following arguments are required: COMMAND"),
        (["lagg"], "spark-nats: argument COMMAND: invalid choice: 'lagg'"),
        (["--verison"], "spark-nats: there is no option --verison; did you mean --version?"),
        (["options", "reading"], "spark-nats options: argument scope: invalid choice: 'reading'"),
        (["check", "--require", "fly"], "spark-nats check: argument --require: 'fly' is none of read, consume"),
    ],
)
def test_what_is_wrong_is_the_first_line(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    first, _ = refused(arguments, capsys)
    assert first.startswith(said)


def test_a_value_may_look_like_an_option_where_it_holds_a_blank(capsys: pytest.CaptureFixture[str]) -> None:
    first, _ = refused(["lag", "--password", "--not an option"], capsys)
    assert first.endswith("are required: --checkpoint")


def test_the_rest_of_a_value_without_quotes_is_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    first, then = refused(["check", "--password", "two", "t0ps3cret"], capsys)
    assert "t0ps3cret" not in first + then


@pytest.mark.parametrize("value", ["-x", "-t0ps3cret", "--t0ps3cret", "-t0p=s3cret"])
def test_a_value_that_begins_with_a_dash_is_not_shown(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    first, _ = refused(["check", "--json", "--password", value], capsys)
    said = "argument --password: expected one argument; if it begins with a dash, write --password=…"
    assert first == f"spark-nats check: {said}"


def test_a_value_that_begins_with_a_dash_is_taken_after_an_equals_sign(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--password=-t0ps3cret"]) == 2
    assert capsys.readouterr().err.endswith("option 'password' needs the option 'user'\n")


def test_what_comes_after_an_option_without_a_value_is_an_option(capsys: pytest.CaptureFixture[str]) -> None:
    first, _ = refused(["check", "--json", "-x"], capsys)
    assert first == "spark-nats check: there is no option -x"


@pytest.mark.parametrize(
    ("redirected", "status", "said"),
    [
        (">/dev/full", 1, "spark-nats: the output cannot be written: No space left on device"),
        ("| true", 0, ""),  # a pipe's status is that of its end
        (">&-", 0, ""),
    ],
)
def test_output_that_cannot_be_written_is_no_traceback(redirected: str, status: int, said: str) -> None:
    command = f"{sys.executable} -m spark_nats.cli options {redirected}"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr.strip()) == (status, said)


def test_what_a_terminal_cannot_show_is_escaped() -> None:
    command = [sys.executable, "-m", "spark_nats.cli", "options"]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, capture_output=True, env=environment, timeout=60)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"\\u2026" in done.stdout
