"""Descriptions of the messages that a query cannot read any more."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import NamedTuple

from spark_nats.conditions import ConditionText
from spark_nats.jetstream.judgement import Judgement
from spark_nats.jetstream.positions import Position
from spark_nats.jetstream.streams import LIMITS, StreamInfo
from spark_nats.kinds.streams.options import ReadOptions
from spark_nats.kinds.streams.read import conditions
from spark_nats.options.data_loss import GO_ON, raise_or_log_loss
from spark_nats.protocol.documents import format_time

logger = logging.getLogger(__name__)


class Loss(NamedTuple):
    """Messages that are lost.

    Attributes:
        what: the sentence that reports the loss.
        rest: what the query continues with if the loss is no error.
        hint: the remedy in the error; empty for the usual one, the option ``failOnDataLoss``.
        expected: whether this counts as no loss, because the query was to begin with what there is.
    """

    what: ConditionText
    rest: str = "what there is"
    hint: str = ""
    expected: bool = False


def raise_or_warn(losses: Iterable[Loss], options: ReadOptions) -> None:
    """Fail or warn about losses.

    Raises:
        DataLossError: one of them was not expected, and ``failOnDataLoss`` is set.
    """
    for loss in losses:
        if loss.expected:
            logger.warning(loss.what.with_code)
        else:
            raise_or_log_loss(loss.what, options.fail_on_data_loss, loss.rest, loss.hint)


def removal_is_normal(retention: str | None, filters: tuple[str, ...], peek: bool, replaces: bool) -> bool:
    """Tell whether the removal of a message from a stream with this retention is never a loss.

    Without filters, the stream keeps all messages that the query's durable consumer holds. With filters, a removed
    message cannot be told from one that was for other consumers only. A query that peeks holds nothing. An unknown
    retention, None, counts as limits. In a kind that ``replaces`` messages by later ones, no removal is a loss.
    """
    return replaces or (retention not in (LIMITS, None) and (peek or bool(filters)))


def loss_of_stream(name: str, begin: Position | None, is_logged: bool, options: ReadOptions) -> list[Loss]:
    """Return the loss of a stream.

    Without ``failOnDataLoss``, the query keeps looking for a named stream, and reports its loss once: if the loss
    ``is_logged``, return nothing.
    """
    where = f" from sequence {begin.next} on" if begin else ""
    if is_logged and not options.fail_on_data_loss and options.pattern is None:
        return []
    return [Loss(conditions.STREAM_DELETED(stream=name, where=where))]


def loss_of_beginning(info: StreamInfo, start: int, end: int, expected: bool) -> tuple[Loss, ...]:
    """Return the loss, if any, of the sequences ``start`` to ``end - 1``, which the stream no longer has.

    ``expected`` tells that the query was to begin with what there is, so that nothing that it needed is lost.
    """
    if not (expected or start < end):
        return ()
    said = conditions.BEGINNING_REMOVED if expected else conditions.BEGINNING_LOST
    return (Loss(said(stream=info.name, first=info.first_sequence, start=start, end=end - 1), expected=expected),)


def loss_of_end(info: StreamInfo, wanted: int) -> Loss:
    """Return the loss of a stream's end, where only the query's next sequence is known."""
    return Loss(conditions.END_LOST(stream=info.name, last=info.last_sequence, next=wanted, more=""))


def loss_of_history(
    info: StreamInfo, begin: Position, judgement: Judgement, first: int, replayed: bool = False
) -> Loss:
    """Return the loss of a stream's end; messages from ``first`` on were stored after all that the query has read.

    ``replayed`` tells that the query was about to read the lost messages again, in a micro-batch that was begun before.
    """
    if (seen := begin.fingerprint) is None:
        return loss_of_end(info, begin.next)
    before = "a micro-batch that was begun reaches up to" if replayed else "the query had read it up to"
    there = f"and it has nothing that was stored later, its last sequence being {info.last_sequence}"
    if first <= info.last_sequence:
        there = f"and what it has from sequence {first} on was stored later"
    more = f"{before} sequence {seen.sequence}, stored at {format_time(seen.time)}, {there}"
    what = conditions.END_REWRITTEN(stream=info.name, more=more)
    if judgement is Judgement.TRUNCATED:
        what = conditions.END_LOST(stream=info.name, last=info.last_sequence, next=seen.sequence + 1, more=f": {more}")
    go_on = f"what was stored since, from sequence {first} on"
    return Loss(what, go_on, f"begin with a new checkpoint to read all that it has, or {GO_ON} {go_on}")
