"""Which tests marked `long` run: none, all, or those whose turn it is or whose subject has changed.

`@pytest.mark.long("notebooks/*")` names, beside the test's own file, the files that a test is about; `races="…"` says
what a test races with that needs real clocks. `--turn=3/8` takes one in eight, others for every turn and the same ones
each time; `--changed=FILE` takes also what is about that file. What is left out is counted at the end.
`--within=SECONDS` skips those that would begin later than that, by their names. Write the equals sign: pytest reads its
command line before it knows these options, and takes a word after a space for a file of tests.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from fnmatch import fnmatch
from zlib import crc32

import pytest

LEFT = pytest.StashKey[dict[str, int]]()
"""How many long tests each process leaves out; all of them leave out the same ones."""

BEGAN = pytest.StashKey[float]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("long tests")
    group.addoption("--without-long", action="store_true", help="leave out all tests marked long")
    group.addoption("--turn", metavar="K/N", help="of the tests marked long, take part K of N only")
    group.addoption("--changed", metavar="FILE", action="append", default=[], help="and take those that are about FILE")
    group.addoption("--within", metavar="SECONDS", type=float, help="skip tests marked long that would begin later")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[LEFT] = {}
    config.stash[BEGAN] = time.monotonic()


def chosen(name: str, about: Iterable[str], turn: str, changed: Iterable[str]) -> bool:
    """Tell whether a test is in its turn, or about what has changed.

    Args:
        name: of the test.
        about: patterns of files.
        turn: such as `3/8`, or nothing where only changes count.
        changed: files.
    """
    part, _, of = turn.partition("/")
    return bool(of and crc32(name.encode()) % int(of) == int(part) % int(of)) or any(
        fnmatch(file, pattern) for file in changed for pattern in about
    )


@pytest.hookimpl(trylast=True)  # behind -m and -k
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    none, turn, changed = (config.getoption(name) for name in ("without_long", "turn", "changed"))
    if not (none or turn or changed):
        return
    left = []
    for item in items:
        if (mark := item.get_closest_marker("long")) is not None:
            file = item.path.relative_to(config.rootpath).as_posix()
            # The parameters of a test are alike, so they take their turns one by one.
            if none or not chosen(item.nodeid.partition("@")[0], [file, *mark.args], turn or "", changed):
                left.append(item)
    if left:
        out = set(left)
        items[:] = [item for item in items if item not in out]
        config.hook.pytest_deselected(items=left)
    config.stash[LEFT]["here"] = len(left)
    if hasattr(config, "workeroutput"):
        config.workeroutput["long_tests_left"] = len(left)


@pytest.hookimpl(tryfirst=True)  # before fixtures, which may take long to begin
def pytest_runtest_setup(item: pytest.Item) -> None:
    within = item.config.getoption("within")
    if within and item.get_closest_marker("long") and time.monotonic() - item.config.stash[BEGAN] > within:
        pytest.skip(f"{item.name} is long, and {within:g} s have passed; `make test-all` runs it")


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: object) -> None:
    """Take what a worker of pytest-xdist says."""
    output = getattr(node, "workeroutput", {})
    if "long_tests_left" in output:
        node.config.stash[LEFT]["workers"] = output["long_tests_left"]  # type: ignore[attr-defined]


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    left = max(config.stash[LEFT].values(), default=0)
    if left:
        terminalreporter.write_line(f"long tests left out: {left}; `make test-all` runs them too")
