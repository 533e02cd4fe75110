"""The last line of a run: that all is well, how long it took, and what was left out."""

from __future__ import annotations

import time

import pytest

BEGAN = pytest.StashKey[float]()
ENDED_WITH = pytest.StashKey[int]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[BEGAN] = time.monotonic()


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(exitstatus: int, config: pytest.Config) -> None:
    config.stash[ENDED_WITH] = exitstatus


@pytest.hookimpl(tryfirst=True)  # while the terminal is still there
def pytest_unconfigure(config: pytest.Config) -> None:
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None and config.stash.get(ENDED_WITH, None) == pytest.ExitCode.OK:
        seconds = round(time.monotonic() - config.stash[BEGAN])
        skipped = len(reporter.stats.get("skipped", []))
        passed = len(reporter.stats.get("passed", []))
        if not passed:
            return
        left_out = f"; {skipped} were skipped, the lines SKIPPED above say what each needs" if skipped else ""
        reporter.write_line(f"all is well: {passed:,} tests in {seconds // 60} min {seconds % 60} s{left_out}")
