"""What a streaming query asks for its offsets, and does about them: each function is one call of Spark's.

A look gives facts first (:mod:`.looks`, :mod:`.facts`), is decided on (:mod:`.advance`), and then acted upon here.
"""

from __future__ import annotations

import logging
from typing import Any

from spark_nats.jetstream.matching import matches
from spark_nats.jetstream.messages import Question
from spark_nats.jetstream.positions import Position
from spark_nats.jetstream.views import first_new
from spark_nats.kinds.streams.read.advance import Advance, advance
from spark_nats.kinds.streams.read.conditions import CHECKPOINT_OF_OTHERS, STREAM_NOT_NAMED
from spark_nats.kinds.streams.read.facts import Facts, NeedFacts
from spark_nats.kinds.streams.read.limits import Limits
from spark_nats.kinds.streams.read.looks import Look, QueryMemory
from spark_nats.kinds.streams.read.losses import Loss, history_lost, report
from spark_nats.kinds.streams.read.positions import QueryOffset

logger = logging.getLogger(__name__)


def latest(look: Look, start: QueryOffset, limits: Limits) -> Advance:
    """Return how a query goes on; say what is lost, and release what is processed.

    With a filter that is behind the last message that matches it, so that messages of other subjects do not make
    empty micro-batches.

    Raises:
        DataLossError: some of what comes next is gone, and ``failOnDataLoss`` is set.
        JetStreamError: something else than a moment ago, which has to be said for a while (503).
        NatsError: a request failed.
    """
    pattern, memory = look.options.pattern, look.memory
    names = memory.selection.names
    if pattern is not None:  # that a stream was not listed may be the word of a server which is not up to date
        names = tuple(sorted({*names, *(name for name in start if matches(pattern, name))}))
    asked = look.ask(names, {name: batch.end for name, batch in start.items()}, ahead=True)
    facts = look.judged(look.prepare(asked, may_wait=True))
    if pattern is None:
        _warn_of_others(look, facts)
    for name in facts.doubts:
        look.confirm(facts, name)
    decision, answers = advance(start, facts, limits, look.options), dict[Question[Any], Any]()
    found = next(decision)
    while isinstance(found, NeedFacts):
        answers |= look.answers(facts, found.questions)
        found = decision.send(answers)
    report(found.losses, look.options)
    for name, stream in facts.streams.items():
        if stream is None:
            memory.view.mark_logged(name)
        elif hold := memory.holds.get(name):
            hold.begins(look.js)
            if name in found.releases:
                hold.release(look.js, stream.info, found.releases[name])
                hold.look(look.js)
            elif stream.judgement.is_doubtful:
                hold.rewind()
        elif memory.traits.passed and name in found.releases:
            memory.traits.passed(look.js, stream.info, found.releases[name])
    memory.states = facts.infos if all(facts.streams.values()) else {}
    memory.searched = {**(memory.searched if found.waits else {}), **found.searched}
    return found


def _warn_of_others(look: Look, facts: Facts) -> None:
    """Say once that the query does not read streams any more that it has read. Their places stay in the offset.

    If it reads none of them, the offset may be that of another source: Spark tells sources apart by their order.
    """
    begins = facts.begins
    left = begins.keys() - look.memory.selection.names - look.memory.view.said
    for name in sorted(left):
        look.memory.view.mark_logged(name)
        following = begins[name].next
        logger.warning(STREAM_NOT_NAMED(stream=name, last=following - 1, next=following).with_code)
    if left and left == begins.keys():
        others = ", ".join(map(repr, sorted(left)))
        for name, info in facts.infos.items():
            logger.warning(CHECKPOINT_OF_OTHERS(others=others, stream=name, first=info.first_sequence).with_code)


def hold(look: Look, start: QueryOffset) -> None:
    """See to it that the durable consumers of a query are there that goes on at ``start``."""
    asked = look.ask(tuple(look.memory.holds), {name: batch.end for name, batch in start.items()})
    facts = look.judged(look.prepare(asked))
    for name, stream in facts.streams.items():
        begin, held = facts.begins.get(name), look.memory.holds[name]
        if stream is None:
            look.believe_gone(facts, name)
            continue
        if begin is not None and begin.created == stream.info.created and (what := held.resumes(look.js, begin.next)):
            report([Loss(what)], look.options)
        held.begins(look.js)


def unreleased(memory: QueryMemory, end: QueryOffset) -> dict[str, Position]:
    """Return where streams have more to release before ``end`` than was released."""
    ends = {name: end[name].end for name in memory.holds if name in end}
    return {name: stop for name, stop in ends.items() if not memory.holds[name].released(stop.created, stop.next)}


def release(look: Look, end: QueryOffset) -> None:
    """Release all before ``end``, of streams that have it: what others have is not what the query has read."""
    due = unreleased(look.memory, end)
    facts = look.judged(look.prepare(look.ask(tuple(due), due)))
    for name, info in facts.infos.items():
        if info.created == due[name].created and not look.confirm(facts, name):  # else the next look will find it
            look.memory.holds[name].release(look.js, info, due[name].next)


def rewritten(look: Look, start: QueryOffset, end: QueryOffset) -> set[str]:
    """Return of which streams a micro-batch that is run again cannot be the same, since they have lost its end.

    Raises:
        DataLossError: there is one, and ``failOnDataLoss`` is set.
    """
    ends = {name: stop.end for name, stop in end.items() if stop != start.get(name) and stop.end.fingerprint}
    found = set()
    facts = look.judged(look.prepare(look.ask(tuple(ends), ends, compares=True)), compares=True)
    for name, stream in facts.streams.items():
        if stream is None:
            look.believe_gone(facts, name)
        elif look.confirm(facts, name):
            first = first_new(look.js, ends[name], stream.info)
            report([history_lost(stream.info, ends[name], stream.judgement, first, planned=True)], look.options)
            found.add(name)  # of one that was made again, its tasks will report it
    return found
