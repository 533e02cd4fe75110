"""docs/neighbours.md names each program that `tests/neighbours` runs, in the version that it runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.pages import ROOT

HERE = ROOT / "tests" / "neighbours"
SCRIPTS = [path for path in sorted(HERE.glob("*.sh")) if path.stem != "with"]
VERSION = re.compile(r"\b\d+\.\d+\.\d+\b")


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_the_page_has_the_versions_that_the_script_installs(script: Path) -> None:
    header, _, program = script.read_text().partition("\n. ")
    versions = VERSION.findall(header.partition("\n#\n")[0])
    page = (ROOT / "docs" / "neighbours.md").read_text()
    assert versions, "its first lines say which version it runs"
    assert [version for version in versions if version not in program or version not in page] == []


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_what_the_script_prints_is_kept(script: Path) -> None:
    assert (HERE / "seen" / f"{script.stem}.txt").read_text()


def test_nothing_is_kept_that_no_script_prints() -> None:
    assert {path.stem for path in (HERE / "seen").iterdir()} == {script.stem for script in SCRIPTS}
