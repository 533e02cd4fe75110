"""What luck finds is printed so that it can be put into the code as it is."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from hypothesis import example

from tests.pages import ROOT

PROPERTIES = """
    from hypothesis import given, settings, strategies as st

    @settings(max_examples=250)
    @given(st.lists(st.tuples(st.sampled_from("ab"), st.integers()), max_size=5), st.binary())
    def test_no_number_is_large(pairs, data):
        assert all(number < 100_000 for _, number in pairs)

    @given(st.integers())
    def test_a_number_is_itself(number):
        assert number == number
"""


@pytest.mark.long("tests/explore.py")
def test_a_find_is_printed_as_an_example_which_the_property_takes(tmp_path: Path) -> None:
    path = tmp_path / "test_numbers.py"
    path.write_text(textwrap.dedent(PROPERTIES))
    script = f"from tests.explore import explore_properties as run; run([{str(path)!r}], 7, {time.time() + 600})"
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=120)
    found, _, counted = done.stdout.partition("\nplayed: ")
    assert int(counted) == 2
    first, _, printed = found.strip().partition("\n")
    assert first.startswith("found: ")
    assert first.endswith("test_numbers.py::test_no_number_is_large, with --hypothesis-seed=7")

    names: dict[str, object] = {"example": lambda **arguments: arguments}
    arguments = eval(printed.removeprefix("@"), names)
    assert [number >= 100_000 for _, number in arguments["pairs"]] == [True]
    assert callable(example(**arguments))
