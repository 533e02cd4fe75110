"""The variable that has the log of every Python process of Spark written to standard error."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import logging
import spark_nats
logging.basicConfig(format="of the program: %(message)s")
logging.getLogger("spark_nats.client").info("something is said")
logging.getLogger("other").info("something else is said")
"""


def standard_error(**environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stderr


@pytest.mark.parametrize("level", ["INFO", "debug"])
def test_what_is_said_at_info_is_written_once_with_time_and_name(level: str) -> None:
    (line,) = standard_error(SPARK_NATS_LOG=level).splitlines()
    assert line.endswith(" INFO spark_nats.client: something is said")


@pytest.mark.parametrize("level", ["", "WARNING"])
def test_without_it_or_above_info_nothing_of_that_is_written(level: str) -> None:
    assert standard_error(SPARK_NATS_LOG=level) == ""


def test_a_word_that_is_no_level_is_warned_of_with_those_that_are() -> None:
    said = standard_error(SPARK_NATS_LOG="loud")
    assert "[NATS_LOG_LEVEL_UNKNOWN] the environment variable SPARK_NATS_LOG is 'loud'" in said
    assert "use one of DEBUG, INFO, WARNING, ERROR" in said
