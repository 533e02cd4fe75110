"""The defects that the simulation has to find are kept as patches, and each still fits the code."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PATCHES = sorted((ROOT / "tests" / "simulation" / "mutants").glob("*.patch"))


def says(patch: Path) -> str:
    """The sentences at its beginning."""
    lines = patch.read_text().splitlines()
    comment = lines[: next(i for i, line in enumerate(lines) if not line.startswith("# "))]
    return " ".join(line.removeprefix("# ") for line in comment)


def hunks(patch: Path) -> Iterator[tuple[str, list[str], list[str]]]:
    """Of each place that is changed the file, its lines as they are, and as the defect has them."""
    path, old, new = "", 0, 0  # how many lines of a hunk are still to come
    before: list[str] = []
    after: list[str] = []
    for line in patch.read_text().splitlines():
        if found := re.match(r"@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@", line):
            old, new = (int(each or 1) for each in found.groups())
            before, after = [], []
        elif old or new:
            assert line[:1] in ("-", "+", " "), line
            if line[0] in "- ":
                before.append(line[1:])
                old -= 1
            if line[0] in "+ ":
                after.append(line[1:])
                new -= 1
            if not old and not new:
                yield path, before, after
        elif line.startswith("+++ "):
            path = line.removeprefix("+++ b/").partition("\t")[0]
    assert (old, new) == (0, 0), "a hunk is cut off"


def test_there_are_enough_defects_to_be_found() -> None:
    assert len(PATCHES) >= 36


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.stem)
def test_a_defect_is_described_and_fits_the_code(patch: Path) -> None:
    sentence = says(patch)
    assert sentence[:1].isupper()
    assert sentence.endswith(".")
    changed = 0
    found = list(hunks(patch))
    assert found
    for path, before, after in found:
        assert re.fullmatch(r"spark_nats/[a-z_/]+\.py", path), path
        text = f"\n{(ROOT / path).read_text()}"
        assert text.count("\n".join(["", *before, ""])) == 1, f"{path} is not as the patch expects it"
        compile(text.replace("\n".join(["", *before, ""]), "\n".join(["", *after, ""])), path, "exec")
        changed += max(len(set(before) - set(after)), len(set(after) - set(before)))
    assert 1 <= changed <= 5
