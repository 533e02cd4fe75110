"""Some simulated histories, and that they can fail. ``make simulate`` plays many more."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from spark_nats.client.pool import borrow
from spark_nats.kinds.streams.write.notes import AlreadyStored
from spark_nats.protocol.bytecolumns import Mask
from tests.connections import options_for
from tests.servers import Server
from tests.simulation.__main__ import known_seeds
from tests.simulation.history import Outcome, plan, run
from tests.simulation.shrink import shrink

ROOT = Path(__file__).parent.parent.parent


def story_in_another_process(seed: int, hashes: int) -> str:
    """The story of a seed as a process tells it in which texts have these hashes."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": str(hashes)}
    script = f"from tests.simulation.history import plan, run; print(run(plan({seed})).lines())"
    command = [sys.executable, "-c", script]
    return subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True, text=True).stdout


def test_a_seed_gives_the_same_story_each_time() -> None:
    for seed in (1, 5, 9):
        assert run(plan(seed)).lines() == run(plan(seed)).lines()


def test_another_process_tells_the_same_story() -> None:
    assert story_in_another_process(3, hashes=1) == story_in_another_process(3, hashes=2)


@pytest.mark.parametrize("seed", known_seeds())
def test_what_was_found_before_is_not_there_any_more(seed: int) -> None:
    assert run(plan(seed)).violations == []


@pytest.mark.parametrize("seed", range(2001, 2021))
def test_a_history_breaks_no_promise(seed: int) -> None:
    assert run(plan(seed)).violations == []


def seeds_with(fault: str, count: int) -> list[int]:
    """The first seeds of which the histories have a fault."""
    found = (seed for seed in itertools.count(1) if any(each.name == fault for each in plan(seed).faults))
    return list(itertools.islice(found, count))


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param("power", marks=pytest.mark.promise("durability#power-of-one")),
        pytest.param("power-of-all", marks=pytest.mark.promise("durability#power-of-all")),
    ],
)
def test_when_power_goes_nothing_is_missing_but_what_the_disks_had_not(fault: str) -> None:
    for seed in seeds_with(fault, 5):
        assert run(plan(seed)).violations == [], seed


def take_all_for_missing(self: AlreadyStored, ids: pa.Array, subjects: pa.Array | None = None) -> Mask:
    """A defect: rows that an earlier attempt has stored are stored again."""
    return np.ones(len(ids), np.bool_)


def broken_by(defect: pytest.MonkeyPatch) -> Outcome:
    """The first history that breaks a promise because of a defect."""
    defect.setattr(AlreadyStored, "note_and_find_missing", take_all_for_missing)
    for seed in range(1, 200):
        outcome = run(plan(seed))
        if outcome.violations:
            assert not outcome.model
            return outcome
    raise AssertionError("the defect was not found")


@pytest.mark.long("tests/simulation/*", "spark_nats/kinds/streams/write/notes.py")
def test_a_defect_is_found_and_its_history_shrinks_to_one_that_still_shows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = broken_by(monkeypatch)
    smaller = shrink(outcome, most=10)
    assert smaller.violations
    assert not smaller.model
    assert len(smaller.plan.faults) < len(outcome.plan.faults)
    assert smaller.plan.rows <= outcome.plan.rows
    assert "VIOLATED: " in smaller.lines()[-1]
    monkeypatch.undo()
    assert run(smaller.plan).violations == []


def test_a_history_begins_without_the_idle_connections_of_its_process(nats_server: Server) -> None:
    """The thread that closes them would look at a clock that says seconds, where that of the machine says days."""
    with borrow(options_for(nats_server.url)) as connection:
        pass
    run(plan(1))
    assert connection.closed
