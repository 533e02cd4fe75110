"""Conditions: each is used, is given what it needs, and stands in docs/errors.md or docs/operating.md.

Each error and line of the log has one.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from functools import cache
from importlib import import_module
from string import Formatter

from scripts.conditions_page import CODE, PAGES, ROW, SPARK_NATS, conditions, with_conditions
from spark_nats import embedded, errors
from spark_nats.conditions import Condition

CODES = [condition.code for _, condition in conditions()]
# What the protocol's parts find wrong is told by who uses them, as a part of another sentence.
PARTS = {"protocol/control.py", "protocol/decoder.py", "client/subscriptions.py"}
OURS = {name for module in (errors, embedded) for name in vars(module) if name.endswith("Error")}


@cache
def calls() -> list[tuple[str, str, ast.Call]]:
    """The calls of the package: the file, the name, and the call."""
    found = []
    for path in sorted(SPARK_NATS.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                name = str(getattr(node.func, "id", getattr(node.func, "attr", "")))
                found.append((path.relative_to(SPARK_NATS).as_posix(), name, node))
    return found


@cache
def imported() -> dict[tuple[str, str], Condition]:
    """The conditions that the files of the package use, by the file and the name."""
    used = {}
    for path in sorted(SPARK_NATS.rglob("*.py")):
        file, modules, names = path.relative_to(SPARK_NATS).as_posix(), {}, []
        for node in ast.walk(tree := ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and "conditions" in f"{node.module}.{node.names[0].name}":
                for alias in node.names:
                    if re.search(r"\bconditions\b", str(node.module)) and alias.name.isupper():
                        names.append((alias.name, getattr(import_module(str(node.module)), alias.name)))
                    elif (alias.asname or alias.name) == "conditions":
                        modules["conditions"] = import_module(f"{node.module}.{alias.name}")
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and getattr(node.value, "id", "") in modules:
                names.append((node.attr, getattr(modules["conditions"], node.attr)))
        for name, found in names:
            if isinstance(found, Condition):
                used[file, name] = found
    return used


def test_a_condition_has_the_code_that_its_name_says() -> None:
    assert [f"NATS_{name}" for name, _ in conditions()] == CODES
    assert len(set(CODES)) == len(CODES)


def test_the_page_has_every_condition_once_and_as_the_code_has_it() -> None:
    pages = [page.read_text() for page in PAGES]
    assert pages == [with_conditions(page) for page in pages], "make docs writes the sentences"
    shown = Counter(code for page in pages for row in ROW.findall(page) for code in CODE.findall(row))
    assert shown == Counter(CODES), "a new condition needs a row, such as | `[NATS_STREAM_NOT_FOUND]` | |"


def test_every_condition_is_used() -> None:
    assert set(CODES) == {condition.code for condition in imported().values()}


def test_a_condition_is_given_what_its_sentence_names() -> None:
    for file, name, call in calls():
        if condition := imported().get((file, name)):
            fields = {field for _, field, *_ in Formatter().parse(condition.template) if field is not None}
            assert not call.args
            assert {each.arg for each in call.keywords} == fields, f"{file}:{call.lineno}"


def test_every_error_and_every_line_of_the_log_is_of_a_condition() -> None:
    for file, name, call in calls():
        if (name in OURS or name in ("warning", "info")) and file not in PARTS:
            assert not isinstance(call.args[0], ast.Constant | ast.JoinedStr), f"{file}:{call.lineno}"
