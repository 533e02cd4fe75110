"""What a look at a query's streams has found, and what a decision may ask beyond that: values."""

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
    """Asks a stream that lost its end for the first sequence stored after everything that the query has read."""

    stream: str


@dataclass(frozen=True, slots=True)
class IsAnother(Question[bool]):
    """Asks whether a stream is another one than that of a position."""

    stream: str
    position: Position


@dataclass(frozen=True, slots=True)
class GapOf(Question[ConditionText | None]):
    """Asks what may be lost because a durable consumer was missing; the answer is None if nothing may be lost."""

    stream: str


@dataclass(frozen=True, slots=True)
class SizesOf(Question[Sizes]):
    """Asks for the sizes of the messages from ``first`` to ``end`` (exclusive)."""

    stream: str
    first: int
    end: int


@dataclass(frozen=True, slots=True)
class NeedFacts:
    """The questions whose answers a decision lacks. They are asked together."""

    questions: Sequence[Question[Any]]


Answers = Mapping[Question[Any], Any]
"""What the caller sends to a decision: the answers to everything that it has asked so far."""

Deciding = Generator[NeedFacts, Answers, Result]
"""A decision, or a part of one: it yields the questions that are open, and returns its result."""


def together(parts: Mapping[str, Generator[NeedFacts | Result, Answers]]) -> Deciding[dict[str, Result]]:
    """Make decisions side by side, and ask their open questions together. Each decision yields its result last."""
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
        judgement: what has become of it since the query's position; intact where the query has no position.
        searched: the sequence before which earlier looks found nothing, and removals are no loss; 0 when unknown.
        clock: a time that none of its messages is later than, see :meth:`.StreamView.highest_clock`; 0 when unknown.
    """

    info: StreamInfo
    judgement: Judgement = Judgement.INTACT
    searched: int = 0
    clock: int = 0


@dataclass(frozen=True, slots=True)
class Facts:
    """What a look has found.

    Attributes:
        streams: by stream, what is known; None where the stream does not exist, or its state is unknown.
        begins: by stream, the query's position, where the query has one.
        absence_logged: streams whose absence was logged.
        early: answers to questions that were asked together with the states, and may be older than the states.
        errors: by stream, why nothing is known.
        removal_normal: streams where the removal of a message is never a loss: others may acknowledge it, or in a KV
            bucket or an object store a later message replaces it.
    """

    streams: Mapping[str, StreamFacts | None]
    begins: Mapping[str, Position] = field(default_factory=dict)
    absence_logged: Collection[str] = ()
    early: Answers = field(default_factory=dict)
    errors: Mapping[str, NatsError] = field(default_factory=dict)
    removal_normal: Collection[str] = ()

    @property
    def infos(self) -> dict[str, StreamInfo]:
        """The states of the streams that exist."""
        return {name: stream.info for name, stream in self.streams.items() if stream}

    @property
    def doubts(self) -> list[str]:
        """Streams that contradict what the query has read; this has to be confirmed before anything else counts."""
        some = ((name, stream) for name, stream in self.streams.items() if name in self.begins)
        return [name for name, stream in some if stream is None or stream.judgement.is_doubtful]
