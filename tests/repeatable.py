"""What makes a run of the tests a function of the commit; `make explore` is where luck belongs.

Hypothesis takes the same examples each time and keeps no database. Ports come from a block that this process has for
itself (`tests/servers.py`), names that differ in each run only keep tests apart, and what the processes of a machine
tell each other is told within this run. Modules run in the order of their names, or by `--reverse-modules` the other
way round: no test depends on what ran before.
"""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Iterator
from itertools import groupby

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "repeatable", derandomize=True, database=None, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("explore", settings.get_profile("repeatable"), derandomize=False)
settings.load_profile("repeatable")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--reverse-modules", action="store_true", help="run the last module of tests first")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("reverse_modules"):
        modules = [list(tests) for _, tests in groupby(items, lambda item: item.path)]
        items[:] = [item for tests in reversed(modules) for item in tests]


@pytest.fixture
def caplog(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """Our own log. What others say, as when they are collected as garbage, may come at any time."""
    ours = logging.Filter("spark_nats")
    caplog.handler.addFilter(ours)
    yield caplog
    caplog.handler.removeFilter(ours)


@pytest.fixture(scope="session", autouse=True)
def _own_temporary_directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What an earlier run has noted about a server does not hold for the one that has its port now."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(tmp_path_factory.mktemp("tmp")))
        patch.setattr(tempfile, "tempdir", None)
        assert tempfile.gettempdir() == os.environ["TMPDIR"]
        yield


@pytest.fixture(autouse=True)
def _no_way_refused_before() -> None:
    """What a process remembers of a stream does not hold for that of another test, whose server may have the port."""
    from spark_nats.jetstream.consuming import consumers
    from spark_nats.jetstream.reading import direct

    consumers._refused._until.clear()
    direct._refused._until.clear()
