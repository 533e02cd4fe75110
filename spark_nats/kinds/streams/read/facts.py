"""What a look at the streams of a query has found, and what may be asked besides: values."""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from spark_nats.conditions import ConditionText
from spark_nats.errors import NatsError
from spark_nats.jetstream.judgement import Judgement
from spark_nats.jetstream.messages import Question
from spark_nats.jetstream.positions import Position
from spark_nats.jetstream.reading.sizes import Sizes
from spark_nats.jetstream.streams import StreamInfo

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class RestAfter(Question[int]):
    """Asks for the first sequence that was stored after all that the query has read, of a stream that lost its end."""

    stream: str


@dataclass(frozen=True, slots=True)
class GapOf(Question[ConditionText | None]):
    """Asks what may be lost because a durable consumer was not there, if anything may."""

    stream: str


@dataclass(frozen=True, slots=True)
class SizesOf(Question[Sizes]):
    """Asks how large the messages from ``first`` up to before ``end`` are."""

    stream: str
    first: int
    end: int


@dataclass(frozen=True, slots=True)
class NeedFacts:
    """The questions that a decision lacks the answers to. All of them can be asked in one round trip."""

    questions: Sequence[Question[Any]]


Answers = Mapping[Question[Any], Any]
"""What a decision is sent for what it lacks: the answers to all that it has asked so far."""

Deciding = Generator[NeedFacts, Answers, Result]
"""A decision, or a part of one: it yields what it lacks, and returns its result."""


def together(parts: Mapping[str, Generator[NeedFacts | Result, Answers]]) -> Deciding[dict[str, Result]]:
    """Decide several things side by side, each of which yields its result last. What they lack goes together."""
    said = {name: next(part) for name, part in parts.items()}
    while missing := {name: each.questions for name, each in said.items() if isinstance(each, NeedFacts)}:
        answers = yield NeedFacts([question for questions in missing.values() for question in questions])
        said |= {name: parts[name].send(answers) for name in missing}
    return {name: each for name, each in said.items() if not isinstance(each, NeedFacts)}


@dataclass(frozen=True, slots=True)
class StreamFacts:
    """What is known of a stream that exists.

    Attributes:
        info: its state.
        judgement: what has become of it since the query was there; intact where the query was not.
        searched: up to where earlier looks have searched it in vain: what is removed there is not a loss.
    """

    info: StreamInfo
    judgement: Judgement = Judgement.INTACT
    searched: int = 0


@dataclass(frozen=True, slots=True)
class Facts:
    """What a look has found.

    Attributes:
        streams: of each stream what is known; None where it does not exist, or its state is not known.
        begins: to where the query has come in those where it is already.
        said: streams of which the log was told that they do not exist.
        early: answers to some questions that were asked together with the states, and may be from before them.
        errors: why nothing is known of a stream.
        spared: streams of which no message that is removed is a loss: others may acknowledge them, or in a KV bucket a
            later one takes their place.
    """

    streams: Mapping[str, StreamFacts | None]
    begins: Mapping[str, Position] = field(default_factory=dict)
    said: Collection[str] = ()
    early: Answers = field(default_factory=dict)
    errors: Mapping[str, NatsError] = field(default_factory=dict)
    removal_normal: Collection[str] = ()

    @property
    def infos(self) -> dict[str, StreamInfo]:
        """The states of those that exist."""
        return {name: stream.info for name, stream in self.streams.items() if stream}

    @property
    def doubts(self) -> list[str]:
        """Streams that contradict what the query has read: to be confirmed before anything else counts."""
        some = ((name, stream) for name, stream in self.streams.items() if name in self.begins)
        return [name for name, stream in some if stream is None or stream.judgement.is_doubtful]
