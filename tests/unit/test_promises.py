"""Each row of the tables in docs/ that promise something names the tests that show it, and each such test a row."""

from __future__ import annotations

import re

import pytest

from scripts.promises_page import ANCHOR, PAGE, TABLES, UNTESTED, marks, names, page, rows
from tests.pages import ROOT

ROWS = list(rows())
MARKS = marks()
NAMES = names()


@pytest.mark.parametrize(("page", "row"), ROWS, ids=lambda value: str(value)[:40])
def test_each_row_has_a_name(page: str, row: str) -> None:
    assert ANCHOR.match(row, 2), 'begin the row with <a id="..."></a>'


def test_a_name_means_one_place_of_its_page() -> None:
    for each in TABLES:
        text = (ROOT / "docs" / f"{each}.md").read_text()
        headings = {
            re.sub(r"[^\w -]", "", line).strip().lower().replace(" ", "-")
            for line in re.findall(r"^#+ (.+)$", text, re.MULTILINE)
        }
        anchors = ANCHOR.findall(text)
        assert len(anchors) == len(set(anchors)), each
        assert not headings & set(anchors), each


@pytest.mark.parametrize("name", NAMES)
def test_each_row_has_a_test_or_a_reason_why_not(name: str) -> None:
    if name in UNTESTED:
        assert name not in MARKS, f"{MARKS[name]} shows it, so take it out of UNTESTED"
    else:
        assert name in MARKS, f"mark a test with @pytest.mark.promise({name!r})"


def test_each_mark_is_a_row() -> None:
    assert {name: where for name, where in MARKS.items() if name not in NAMES} == {}
    assert set(UNTESTED) <= set(NAMES)


def test_the_page_lists_them_as_they_are() -> None:
    assert PAGE.read_text() == page(), "make docs writes it"
