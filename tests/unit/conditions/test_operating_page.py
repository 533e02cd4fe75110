"""Conditions: each is used, is given what it needs, and stands in docs/operating.md; each error and line of the log has
one."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from string import Formatter

import pytest

from scripts.conditions_page import PAGE, conditions, with_tables
from spark_nats import conditions as package
from spark_nats import embedded, errors
from spark_nats.conditions import Condition

SPARK_NATS = Path(package.__file__).parents[1]
MODULES = sorted(path.stem for path in Path(package.__file__).parent.glob("[!_]*.py"))
CODES = Counter(each.code for module in MODULES for each in conditions(module))
# What the protocol's parts find wrong is told by who uses them, as a part of another sentence.
PARTS = {"protocol/control.py", "protocol/decoder.py", "client/subscriptions.py"}
OURS = {name for module in (errors, embedded) for name in vars(module) if name.endswith("Error")}


def calls() -> Iterator[tuple[str, str, ast.Call]]:
    """The calls of the package: the file, the name, and the call."""
    for path in sorted(SPARK_NATS.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                name = str(getattr(node.func, "id", getattr(node.func, "attr", "")))
                yield path.relative_to(SPARK_NATS).as_posix(), name, node


def imported() -> Iterator[tuple[str, str, Condition]]:
    """The conditions that the files of the package import: the file, the name, and the condition."""
    for path in sorted(SPARK_NATS.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("spark_nats.conditions."):
                for alias in node.names:
                    found = getattr(import_module(str(node.module)), alias.name)
                    yield path.relative_to(SPARK_NATS).as_posix(), alias.name, found


CALLS = list(calls())
IMPORTED = {(file, name): condition for file, name, condition in imported()}


@pytest.mark.parametrize("module", MODULES)
def test_a_condition_has_the_code_that_its_name_says(module: str) -> None:
    names = vars(import_module(f"spark_nats.conditions.{module}")).items()
    found = {f"NATS_{name}": each.code for name, each in names if isinstance(each, Condition)}
    assert list(found) == list(found.values())
    assert not [code for code in found if CODES[code] > 1]
    assert conditions(module)[0].advice  # there is no row above it


def test_the_page_has_every_condition_as_the_code_has_it() -> None:
    page = PAGE.read_text()
    assert page == with_tables(page), "make docs writes the tables"
    assert not [code for code in CODES if f"`[{code}] " not in page]


def test_every_condition_is_used() -> None:
    assert set(CODES) == {condition.code for condition in IMPORTED.values()}


def test_a_condition_is_given_what_its_sentence_names() -> None:
    for file, name, call in CALLS:
        if condition := IMPORTED.get((file, name)):
            fields = {field for _, field, *_ in Formatter().parse(condition.template) if field is not None}
            assert not call.args
            assert {each.arg for each in call.keywords} == fields, f"{file}:{call.lineno}"


def test_every_error_and_every_line_of_the_log_is_of_a_condition() -> None:
    for file, name, call in CALLS:
        if (name in OURS or name in ("warning", "info")) and file not in PARTS:
            assert not isinstance(call.args[0], ast.Constant | ast.JoinedStr), f"{file}:{call.lineno}"
