"""What a look at the streams of a query has found, and what may be asked besides: values."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from spark_nats.conditions import Said
from spark_nats.jetstream.judgement import Judgement
from spark_nats.jetstream.messages import Question
from spark_nats.jetstream.reading.measuring import Sizes
from spark_nats.jetstream.streams import StreamInfo

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class RestAfter(Question[int]):
    """Asks for the first sequence that was stored after all that the query has read, of a stream that lost its end."""

    stream: str


@dataclass(frozen=True, slots=True)
class GapOf(Question[Said | None]):
    """Asks what may be lost because a durable consumer was not there, if anything may."""

    stream: str


@dataclass(frozen=True, slots=True)
class SizesOf(Question[Sizes]):
    """Asks how large the messages from ``first`` up to before ``end`` are."""

    stream: str
    first: int
    end: int


class LackingError(Exception):
    """A decision needs answers to more questions."""

    def __init__(self, questions: Sequence[Question[Any]]) -> None:
        self.questions = questions


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
        streams: of each stream what is known; None where it does not exist.
        said: streams of which the log was told that they do not.
        early: answers to some questions that were asked together with the states, and may be from before them.
        answers: to what a decision has asked besides.
    """

    streams: Mapping[str, StreamFacts | None]
    said: Collection[str] = ()
    early: Mapping[Question[Any], Any] = field(default_factory=dict)
    answers: Mapping[Question[Any], Any] = field(default_factory=dict)

    @property
    def infos(self) -> dict[str, StreamInfo]:
        """The states of those that exist."""
        return {name: stream.info for name, stream in self.streams.items() if stream}

    def answers_to(self, *questions: Question[Answer]) -> list[Answer]:
        """Return the answers to some questions.

        Raises:
            LackingError: some were not asked yet.
        """
        if lacks := [each for each in questions if each not in self.answers]:
            raise LackingError(lacks)
        return [self.answers[each] for each in questions]
