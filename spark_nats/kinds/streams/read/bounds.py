"""Where a query begins, where a query with an end ends, and what a batch reads between the two.

A position is one sequence of the whole stream. Who reaches it under a filter has read nothing of other subjects before:
:func:`_ask_losses_of_added_subjects` tells when it says nothing of some that the query reads.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from datetime import datetime

from spark_nats.errors import DataLossError, OptionError
from spark_nats.jetstream.consuming.consumers import ask_consumer
from spark_nats.jetstream.judgement import Judgement, is_empty_and_unchanged
from spark_nats.jetstream.listing import subjects_to_read
from spark_nats.jetstream.messages import ask_first_message_from, ask_first_sequence_from, may_be_former_leader
from spark_nats.jetstream.positions import Position, end_position_of, latest_time_if_it_matters
from spark_nats.jetstream.streams import LIMITS, WORK_QUEUE, StreamInfo
from spark_nats.jetstream.times import ask_end_at, ask_first_at
from spark_nats.jetstream.views import ask_first_new, ask_stream_info
from spark_nats.kinds.streams.read import conditions
from spark_nats.kinds.streams.read.looks import Look
from spark_nats.kinds.streams.read.losses import Loss, loss_of_beginning, loss_of_end, loss_of_history, raise_or_warn
from spark_nats.kinds.streams.read.planning import StreamRange, adapt_to_retention
from spark_nats.kinds.streams.read.positions import QueryOffset
from spark_nats.options.values import EARLIEST, LATEST, ConsumerAckFloor, Offsets, StreamOffset
from spark_nats.protocol.documents import format_time
from spark_nats.protocol.subjects import covers

logger = logging.getLogger(__name__)

_SHOWN = 5  # subjects that an error names


def prepare_and_ask_start(look: Look) -> dict[str, Position]:
    """Return where a new query begins.

    Raises:
        OptionError: a work queue would be consumed from elsewhere than its beginning, a stream has nothing since the
            starting time though it must, or the starting offsets name a missing consumer or a stream not selected.
        DataLossError: a stream no longer has a given offset, and ``failOnDataLoss`` is set.
        NatsError: a request failed.
    """
    infos = look.check_streams_and_create_consumers(look.ask_facts(look.memory.selection.names), must_exist=True).infos
    found = _resolve_start_or_raise(look, infos)
    for name, hold in look.memory.holds.items():
        hold.update_durable_as_begun(look.js)
        first = infos[name].first_sequence
        if hold.retention == WORK_QUEUE and found[name].next > first:
            raise OptionError(conditions.WOULD_RELEASE_UNREAD(start=found[name].next, stream=name, first=first))
    return found


def prepare_and_ask_ends(look: Look) -> dict[str, Position]:
    """Return where every stream ends now. A missing stream is left out if ``failOnDataLoss`` permits it.

    Raises:
        StreamNotFoundError: a named stream does not exist, and ``failOnDataLoss`` is set.
        NatsError: a request failed.
    """
    facts = look.check_streams_and_create_consumers(look.ask_facts(look.memory.selection.names))
    for name, stream in facts.streams.items():
        if stream is None:
            look.require_gone_and_raise_or_warn(facts, name)
    return {name: end_position_of(info) for name, info in facts.infos.items()}


def plan_batch_and_report_losses(look: Look) -> list[StreamRange]:
    """Return what a batch reads, checked against what the streams hold.

    Raises:
        OptionError: it ends before it begins, or its start or end is refused as in :func:`prepare_and_ask_start`.
        DataLossError: some of it is lost, and ``failOnDataLoss`` is set.
        NatsError: a request failed.
    """
    options, found = look.options, list[StreamRange]()
    facts = look.check_streams_and_create_consumers(look.ask_facts(look.memory.selection.names), must_exist=True)
    infos = facts.infos
    start = _resolve_start_or_raise(look, infos)
    wanted = _resolve_offsets_and_report_losses(look, infos, options.ending or LATEST, LATEST)
    end = {name: min(wanted[name], end_position_of(info), key=lambda p: p.next) for name, info in infos.items()}
    for name, stop in end.items():
        begin, info = start[name], infos[name]
        first = begin.next
        if first > info.last_sequence + 1:
            raise_or_warn([loss_of_end(info, first)], options)
        elif first > stop.next and isinstance(options.starting, dict):
            raise OptionError(conditions.ENDS_BEFORE_IT_BEGINS(stream=name, end=stop.next, start=first))
        elif first < info.first_sequence:
            if name not in facts.removal_normal and not is_empty_and_unchanged(begin, info):
                raise_or_warn(loss_of_beginning(info, first, min(info.first_sequence, stop.next), False), options)
            first = info.first_sequence
        whole = StreamRange.until(stop, name, first, options.filters, begin.earliest)
        found += adapt_to_retention(whole, info.retention, True, look.memory.traits.replaces)
    return [r for r in found if r.size > 0]


def _resolve_start_or_raise(look: Look, infos: Mapping[str, StreamInfo]) -> dict[str, Position]:
    options = look.options
    found = _resolve_offsets_and_report_losses(look, infos, options.starting, EARLIEST)
    for name, place in found.items() if options.starting_must_exist else ():
        if ask_first_sequence_from(look.js, name, place.next, options.filters or (">",)) is None:
            what = look.memory.traits.words or f"stream {name!r}"
            raise OptionError(conditions.NOTHING_SINCE_TIME(what=what, time=options.starting))
    return found


def _resolve_offsets_and_report_losses(
    look: Look, infos: Mapping[str, StreamInfo], what: Offsets | datetime, otherwise: str
) -> dict[str, Position]:
    """Return positions in streams; ``otherwise`` is for those not in ``what``, and for recreated ones."""
    if isinstance(what, dict) and (missing := sorted(set(what) - set(look.memory.selection.names))):
        raise OptionError(conditions.PATTERN_MISSES_OFFSETS(streams=", ".join(missing)))
    found = {}
    for name, info in infos.items():
        place = what.get(name, otherwise) if isinstance(what, dict) else what
        earliest = place == EARLIEST
        if isinstance(place, StreamOffset):
            found[name] = _resolve_given_and_report_loss(look, info, place, otherwise)
            continue
        if isinstance(place, ConsumerAckFloor):
            found[name] = _ask_consumer_position(look, info, place.consumer)
            continue
        if isinstance(place, datetime):
            is_end = otherwise == LATEST
            sequence, astray = (ask_end_at if is_end else ask_first_at)(look.js, info, place)
            if astray is not None:
                said = conditions.ENDS_AFTER_TIME if is_end else conditions.BEGINS_BEFORE_TIME
                logger.warning(said(stream=name, sequence=astray.sequence, time=format_time(astray.time)).with_code)
            # The state is read again, because limits may have removed messages since the search began.
            earliest = sequence <= ask_stream_info(look.js, name).first_sequence
        else:
            sequence = info.first_sequence if earliest else info.last_sequence + 1
        found[name] = _request_position_at(look, info, sequence, earliest)
    return found


def _resolve_given_and_report_loss(look: Look, info: StreamInfo, place: StreamOffset, otherwise: str) -> Position:
    """Return a given position if the present stream has it; else where the stream's new messages begin.

    In a recreated stream, that is its beginning or its end, as ``otherwise`` says.
    """
    raise_or_warn(_ask_losses_of_added_subjects(look, info, place.next, place.subjects), look.options)
    given = Position(place.created or info.created, place.next, place.timestamp, latest=place.latest)
    if given.fingerprint is None and not place.created:
        if otherwise == EARLIEST and place.next > (end := info.last_sequence + 1) and look.options.fail_on_data_loss:
            look.memory.view.check_loss_before_confirmed(look.js, given, info, info.name)
            raise DataLossError(conditions.BEGINS_AFTER_END(stream=info.name, next=place.next, last=end - 1, end=end))
        return _request_position_at(look, info, place.next)
    found = look.ask_and_judge_one(info, given, True, {})
    if found is Judgement.RECREATED:
        new, old = info.created, place.created
        gone = conditions.OFFSET_OF_OLD_STREAM(stream=info.name, sequence=place.next, old=old, created=new)
        raise_or_warn([Loss(gone)], look.options)
        return end_position_of(info) if otherwise == LATEST else Position(new, info.first_sequence, earliest=True)
    if given.fingerprint is None:
        return _request_position_at(look, info, place.next)
    if found is Judgement.INTACT:
        return given._replace(created=info.created)
    look.memory.view.check_loss_before_confirmed(look.js, given, info, info.name)
    first = ask_first_new(look.js, given, info)
    raise_or_warn([loss_of_history(info, given, found, first)], look.options)
    return _request_position_at(look, info, first)


def _ask_consumer_position(look: Look, info: StreamInfo, name: str) -> Position:
    """Return the position up to which a consumer's messages are all acknowledged.

    If the stream's limits have removed later messages, a query that begins there finds them lost. With a filtered
    consumer, the removed messages may not have matched; work queues and interest streams remove what is acknowledged.
    In these cases, the position is not before the stream's first message.

    A filtered consumer has no position among messages of other subjects. If the query reads such messages, and the
    stream has any of them before the position, it raises :class:`OptionError`.
    """
    consumer = ask_consumer(look.js, info.name, name)
    if consumer is None:
        raise OptionError(conditions.CONSUMER_MISSING(stream=info.name, consumer=name))
    first = 1 if info.retention == LIMITS and not consumer.filters else info.first_sequence
    sequence = min(max(consumer.sequence_after_acknowledged, first), info.last_sequence + 1)
    if others := _ask_added_filters_before(look, info, sequence, consumer.filters):
        theirs, ours = _format_some(consumer.filters), _format_some(others)
        said = conditions.CONSUMER_OF_OTHER_SUBJECTS(
            consumer=name, stream=info.name, sequence=sequence, theirs=theirs, ours=ours
        )
        raise OptionError(said)
    return _request_position_at(look, info, sequence)


def _request_position_at(look: Look, info: StreamInfo, sequence: int, earliest: bool = False) -> Position:
    """Return the position before a sequence of a stream, with the time of the message before it if there is one."""
    time = info.last_time if sequence == info.last_sequence + 1 else 0
    if info.first_sequence < sequence <= info.last_sequence:
        before = ask_first_message_from(look.js, info.name, sequence - 1, (">",), with_headers=False)
        time = before.time if before and before.sequence == sequence - 1 else 0
    return Position(info.created, sequence, time or None, earliest, latest_time_if_it_matters(info))


def raise_or_warn_added_subjects(look: Look, start: QueryOffset, noted: Mapping[str, Sequence[str]]) -> None:
    """Report that a query reads more subjects than its checkpoint notes, if there is anything that it leaves out.

    Raises:
        DataLossError: there is, and ``failOnDataLoss`` is set.
        NatsError: a request failed.
    """
    names = [name for name in look.memory.selection.names if name in noted and name in start]
    for name, info in look.ask_facts(names).infos.items():
        raise_or_warn(_ask_losses_of_added_subjects(look, info, start[name].end.next, noted[name]), look.options)


def _ask_added_filters_before(look: Look, info: StreamInfo, sequence: int, read: Sequence[str]) -> tuple[str, ...]:
    """Return the query's subjects that are not among those ``read``, if there is such a message before a sequence.

    Raises:
        NatsError: the request failed. Nothing is asked if what was read covers what the query reads.
    """
    filters = look.options.filters
    others = tuple(
        each for each in subjects_to_read(info, filters) if read and not any(covers(wider, each) for wider in read)
    )
    if not others or sequence <= info.first_sequence:
        return ()
    is_doubtful = may_be_former_leader(look.js, info)
    found = ask_first_sequence_from(look.js, info.name, info.first_sequence, others, is_doubtful)
    return others if found is not None and found < sequence else ()


def _ask_losses_of_added_subjects(look: Look, info: StreamInfo, sequence: int, read: Sequence[str]) -> list[Loss]:
    """Return what a query leaves out that goes on at a sequence, which a query of the subjects ``read`` has reached.

    Raises:
        NatsError: as :func:`_ask_added_filters_before` does.
    """
    added = _ask_added_filters_before(look, info, sequence, read)
    last = sequence - 1
    said = conditions.SUBJECTS_ADDED(
        stream=info.name, sequence=last, read=_format_some(read), added=_format_some(added)
    )
    return [Loss(said, f"what comes after sequence {last}")] if added else []


def _format_some(subjects: Sequence[str]) -> str:
    """Return subjects as a text for people; only the first ones of many."""
    more = f" and {len(subjects) - _SHOWN} more" if len(subjects) > _SHOWN else ""
    return ", ".join(subjects[:_SHOWN]) + more
