"""The table of docs/protocol.md that says of each answer who speaks names a test for each, which exists."""

from __future__ import annotations

import re

import pytest

from tests.pages import ROOT

TABLE = (ROOT / "docs" / "protocol.md").read_text().partition("\n## Who speaks\n")[2].partition("\n## ")[0]
ROWS = [line for line in TABLE.splitlines() if line.startswith("| ")][1:]


def test_there_are_rows() -> None:
    assert len(ROWS) > 20


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.split("|")[1].strip())
def test_a_row_names_a_test_that_exists(row: str) -> None:
    found = re.fullmatch(r"`((?:unit|integration)/[a-z_/]+\.py)::(test_[a-z_]+)`", row.split("|")[-2].strip())
    assert found, "its last column names no test"
    assert f"def {found[2]}(" in (ROOT / "tests" / found[1]).read_text()
