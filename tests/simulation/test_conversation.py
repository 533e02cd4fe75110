"""Two servers that are told the same say the same: see :mod:`tests.simulation.conversation`.

Real servers prove the conversations: where two of them differ, a conversation asks for what is left to chance. What
stands in for a server, the model of the simulation, is then held to the same words.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from spark_nats.embedded import NatsServer
from tests.servers import OLDER_BINARY
from tests.simulation.conversation import (
    NEWEST,
    OLDEST,
    Line,
    SocketLine,
    Step,
    Transcript,
    Version,
    steps,
    steps_with_mirror,
    transcript,
)
from tests.simulation.line import ModelLine, ModelSite

SEEDS = range(30)
QUICK = (1, 2, 3, 4, 7, 11, 14, 22)
"""Conversations in which everything in FACTS is heard."""
FACTS = (
    *("duplicate", "10003", "10014", "10037", "10043", "10057", "10058", "10059", "10060", "10065", "10070", "10071"),
    *("10077", "10084", "10100", "10111", "10148", "10149", "10176", "10201", "10204", "100 Idle Heartbeat", "204 EOB"),
    *("404 No Messages", "404 Message Not Found", "408 Request Timeout", "408 Empty Request", "409 Batch Completed"),
    *("409 Message Size Exceeds MaxBytes", "409 Consumer Deleted", "503", '"batch": ', "consumer_reset", "stream_list"),
)
"""What is heard in some of the conversations, or they are not about what they should be."""

Partner = Callable[[], Line]


@pytest.fixture(scope="module")
def real() -> Iterator[Callable[[str], Partner]]:
    """Return ways to reach real servers by their names; those of another name are other servers."""
    with ExitStack() as stack:
        servers: dict[str, NatsServer] = {}

        def partner(name: str) -> Partner:
            if name.startswith("model "):
                return ModelSite(name.removeprefix("model ")).line
            if "2.11" in name and not OLDER_BINARY.exists():
                pytest.skip("needs nats-server 2.11")
            if name not in servers:
                binary = OLDER_BINARY if "2.11" in name else None
                servers[name] = stack.enter_context(NatsServer(binary=binary))
            return lambda: SocketLine(servers[name].port)

        yield partner


PARTNERS: list[tuple[str, Version]] = [
    ("another nats-server 2.15", NEWEST),
    ("nats-server 2.11", OLDEST),
    ("model 2.15.1", NEWEST),
    ("model 2.11.11", OLDEST),
]
"""Who is talked to beside a nats-server 2.15 (a model of 2.11: beside a 2.11), and what version it is taken for."""


def hold(
    partner: Partner, seed: int, version: Version, made: Callable[[int, Version], list[Step]] = steps
) -> Transcript:
    """Hold a conversation, which is expected to bring what the model says."""
    said = made(seed, version)
    model, line = ModelSite("2.15.1" if version == NEWEST else "2.11.11").line(), partner()
    try:
        return transcript(line, seed, said, None if isinstance(line, ModelLine) else transcript(model, seed, said))
    finally:
        line.close()


@pytest.fixture(scope="module")
def said(real: Callable[[str], Partner]) -> Callable[[str, int, Version], Transcript]:
    """Return what a real server says in a conversation, which is held with it once."""
    return functools.cache(lambda name, seed, version: hold(real(name), seed, version))


def conversation(name: str, version: Version, seed: int) -> Any:
    """Parameters of a test; real servers with each other, and most seeds, are for when this folder changes."""
    quick = seed in QUICK and name.startswith("model ")
    rest = pytest.mark.long("tests/simulation/*", races="pull requests that end, with what there is for them")
    return pytest.param(name, version, seed, id=f"{name.replace(' ', '-')}-{seed}", marks=() if quick else (rest,))


@pytest.mark.parametrize(
    ("name", "version", "seed"), [conversation(*partner, seed) for partner in PARTNERS for seed in SEEDS]
)
def test_the_same_conversation_is_answered_alike(
    said: Callable[[str, int, Version], Transcript],
    real: Callable[[str], Partner],
    name: str,
    version: Version,
    seed: int,
) -> None:
    expected = said("nats-server 2.11" if name == "model 2.11.11" else "nats-server 2.15", seed, version)
    for one, other in zip(expected, hold(real(name), seed, version), strict=True):
        assert one == other
        assert "and that was not all that is due" not in one[1]
    assert expected[-1] == ("errors", ())


MIRRORED = range(10)
"""Conversations about a stream and its mirror."""


@pytest.mark.parametrize("seed", MIRRORED)
@pytest.mark.parametrize(
    ("model", "server", "version"),
    [
        ("model 2.15.1", "nats-server 2.15", NEWEST),
        pytest.param(
            *("model 2.11.11", "nats-server 2.11", OLDEST),
            marks=pytest.mark.long("tests/simulation/*", races="when a mirror has what was stored"),
        ),
    ],
    ids=["2.15", "2.11"],
)
def test_a_mirror_answers_for_its_origin_as_a_real_one_does(
    real: Callable[[str], Partner], model: str, server: str, version: Version, seed: int
) -> None:
    expected = hold(real(model), seed, version, steps_with_mirror)
    for one, other in zip(expected, hold(real(server), seed, version, steps_with_mirror), strict=True):
        assert one == other
        assert "and that was not all that is due" not in one[1]
    assert expected[-1] == ("errors", ())


def test_a_mirror_and_its_origin_differ_in_the_conversations(real: Callable[[str], Partner]) -> None:
    heard = ""
    for seed in MIRRORED:
        several = {f"{each.number} {each.what}" for each in steps_with_mirror(seed) if each.several}
        held = hold(real("model 2.15.1"), seed, NEWEST, steps_with_mirror)
        heard += "\n".join(each for what, answers in held if what in several and len(answers) == 2 for each in answers)
    for fact in ("_MIRROR'", "404 Message Not Found", "204 EOB", "_OTHER.a'"):
        assert fact in heard


def test_a_seed_gives_the_same_conversation_each_time() -> None:
    assert steps(1) == steps(1)
    assert steps(1) != steps(2)
    assert steps(1, OLDEST) != steps(1, NEWEST)


def test_the_conversations_are_about_all_that_a_server_may_say(
    said: Callable[[str, int, Version], Transcript],
) -> None:
    held = [said("nats-server 2.15", seed, NEWEST) for seed in QUICK]
    heard = "\n".join(answer for each in held for _, answers in each for answer in answers)
    assert [fact for fact in FACTS if fact not in heard] == []
