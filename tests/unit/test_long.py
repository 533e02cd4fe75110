"""Which long tests run in a turn, and for what has changed."""

from __future__ import annotations

import ast
from fnmatch import fnmatch

from tests.long import chosen
from tests.pages import ROOT

NAMES = [f"tests/test_{i}.py::test" for i in range(600)]


def test_each_test_has_one_turn_and_they_are_much_alike() -> None:
    turns = [{name for name in NAMES if chosen(name, [], f"{part}/6", [])} for part in range(1, 7)]
    assert set.union(*turns) == set(NAMES)
    assert sum(map(len, turns)) == len(NAMES)
    assert all(60 < len(turn) < 140 for turn in turns)


def test_what_is_about_a_changed_file_runs_in_any_turn() -> None:
    about = ["tests/test_x.py", "notebooks/*"]
    for turn in ("1/1000000", ""):
        assert chosen("x", about, turn, ["docs/core.md", "notebooks/01.ipynb"])
        assert not chosen("x", about, turn, ["docs/core.md"])


def test_what_a_test_is_about_is_there() -> None:
    patterns = {
        ast.literal_eval(argument)
        for path in (ROOT / "tests").rglob("test_*.py")
        if "mark.long(" in (text := path.read_text())
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.long"
        for argument in node.args
        if isinstance(argument, ast.Constant)
    }
    assert patterns
    for pattern in patterns:
        folder = ROOT / pattern.partition("*")[0].rpartition("/")[0]
        assert any(fnmatch(path.relative_to(ROOT).as_posix(), pattern) for path in folder.iterdir()), pattern
