"""Finds the message ids that a stream holds, for a publisher that has to know what it stored before.

A stream remembers a message id for its ``duplicate_window`` only. To find older ids, this module reads the headers of
all messages that the stream has stored after a sequence.
"""

from __future__ import annotations

import contextlib
import logging
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_nats import clock
from spark_nats.client.connection import SECOND_ANSWER, Connection
from spark_nats.conditions.jetstream import IDS_NOT_SAID, IDS_NOT_SAID_NOW, IDS_READ_BACK
from spark_nats.errors import NatsTimeoutError, PermissionsError
from spark_nats.jetstream.api import JetStream
from spark_nats.jetstream.judgement import Judgement
from spark_nats.jetstream.messages import Answers, MessageAt, Questions, StoredMessage, ask_all
from spark_nats.jetstream.positions import Position, end_position_of
from spark_nats.jetstream.reading.direct import may_use_direct_gets
from spark_nats.jetstream.reading.judging import Removed
from spark_nats.jetstream.reading.ranges import Range, RangeReader, ReadMethod
from spark_nats.jetstream.streams import LIMITS, StreamInfo
from spark_nats.jetstream.views import ask_and_judge, ask_first_new
from spark_nats.protocol.bytecolumns import (
    Mask,
    Positions,
    booleans,
    byte_strings,
    flags_of,
    integers_of,
    repeat_text,
    texts,
)
from spark_nats.protocol.control import is_older
from spark_nats.protocol.headers import (
    EXPECTED_MSG_ID,
    EXPECTED_STREAM,
    MSG_ID,
    first_header_values,
    wrap_lines_into_blocks,
)
from spark_nats.protocol.messages import numbered_subjects
from spark_nats.protocol.publish_acks import PublishAcks, are_duplicates, is_wrong_last_id

logger = logging.getLogger(__name__)

_ASKED_AT_ONCE = 1000  # message ids


class StoredIds(NamedTuple):
    """The message ids that were found.

    Attributes:
        ids: binary column of message ids, in the order of their messages.
        removed: names lost messages, whose ids are then unknown; empty when there are none.
        subjects: string column of the subjects of these messages; None without ``max_msgs_per_subject``.
        full: the subjects with as many messages as ``max_msgs_per_subject`` allows, so that earlier ones may have been
            removed; None without that limit.
        sequences: the sequences of these messages; None without that limit.
        only_by_subject: whether nothing but that limit seems to have removed messages.
        are_ends: a mask of those that are the last messages of their subjects; None without that limit.
    """

    ids: pa.Array
    removed: str
    subjects: pa.Array | None = None
    full: pa.Array | None = None
    only_by_subject: bool = False
    sequences: Positions | None = None
    are_ends: Mask | None = None


def read_ids(js: JetStream, stream: StreamInfo, since: int, prefix: str = "") -> StoredIds:
    """Return the ids that begin with ``prefix`` among a stream's messages after ``since``, up to its given state.

    Only streams with limits retention allow any number of consumers. Others are read by direct gets, or not at all.
    """
    lost: list[str] = []
    way = ReadMethod.HEADERS
    if stream.retention != LIMITS:
        if since >= stream.last_sequence:
            return StoredIds(byte_strings([]).cast(pa.binary()), "")
        has_batches = stream.allows_direct_gets and not is_older(stream.server_version, 2, 11)
        if not (has_batches and may_use_direct_gets(js, stream.name)):
            return StoredIds(byte_strings([]).cast(pa.binary()), describe_why_not_readable(stream))
        way = ReadMethod.GETS
    end = end_position_of(stream)
    later = Range(stream.name, stream.created, since + 1, end.next, last=end.fingerprint, latest=end.latest)
    reader = RangeReader(later, way, lost=lost.append)
    limit = stream.max_messages_per_subject
    found = [byte_strings([]).cast(pa.binary())]
    subjects, all_subjects = [texts([])], [texts([])]
    sequences, are_chosen = [np.zeros(0, np.int64)], [np.zeros(0, np.bool_)]
    messages = last = 0
    for delivered in reader.read(js):
        messages += len(delivered.messages)
        last, _ = delivered.deliveries.last_sequence_and_time()
        ids = first_header_values(delivered.messages.gather(delivered.messages.header), MSG_ID, strip=False)
        chosen = pc.and_kleene(ids.is_valid(), pc.starts_with(ids, prefix))
        found.append(ids.filter(chosen))
        if limit is not None:
            all_subjects.append(delivered.messages.subjects())
            subjects.append(all_subjects[-1].filter(chosen))
            are_chosen.append(flags_of(chosen))
            sequences.append(delivered.deliveries.stream_sequences()[are_chosen[-1]])
    missing = stream.last_sequence - since - messages
    ids = pa.concat_arrays(found)
    logger.info(IDS_READ_BACK(stream=stream.name, messages=messages, sequence=since, ids=len(ids)).with_code)
    if missing > 0 and not lost:
        lost.append(
            f"messages that stream {stream.name!r} had stored after sequence {since} are lost ({missing} of them)"
        )
    if limit is None:
        return StoredIds(ids, "; ".join(lost))
    all_of_them = pa.concat_arrays(all_subjects)
    counts = pc.value_counts(all_of_them)
    full = counts.field("values").filter(booleans(integers_of(counts.field("counts")) >= limit))
    # The last message of a stream is never removed for that limit.
    only = last == stream.last_sequence and stream.removes_only_by_subject
    ends = _are_last_of_subject(all_of_them)[np.concatenate(are_chosen)]
    return StoredIds(ids, "; ".join(lost), pa.concat_arrays(subjects), full, only, np.concatenate(sequences), ends)


def _are_last_of_subject(subjects: pa.Array) -> Mask:
    """Return a mask of the messages, by their subjects, behind which none of their subject comes."""
    codes = subjects.dictionary_encode()
    of_subject, places = integers_of(codes.indices.cast(pa.int64())), np.arange(len(subjects))
    last = np.zeros(len(codes.dictionary), np.int64)
    np.maximum.at(last, of_subject, places)
    found: Mask = last[of_subject] == places
    return found


def describe_why_not_readable(stream: StreamInfo) -> str:
    """Return why a stream without limits retention does not tell what it has stored."""
    return f"stream {stream.name!r} has {stream.retention} retention, and cannot be read back"


def ask_and_judge_as_reader(js: JetStream, position: Position, info: StreamInfo) -> Judgement:
    """Return what has become of a stream since a position in it, with a reader's permissions alone.

    Where the message before the position was deleted, and the user may not request others, the stream counts as intact.
    """
    place = MessageAt(info.name, position.last)

    def read_or_ask(questions: Questions) -> Answers:
        return {place: _read_message_at(js, info, position.last)} if place in questions else ask_all(js, questions)

    with contextlib.suppress(PermissionsError):  # only streams with limits retention allow any number of consumers
        return ask_and_judge(js, position, info, read_or_ask if info.retention == LIMITS else None)
    return Judgement.INTACT


def ask_if_intact(js: JetStream, position: Position, info: StreamInfo) -> bool:
    """Tell whether a stream has what it had before a position, as :func:`ask_and_judge_as_reader` does."""
    return ask_and_judge_as_reader(js, position, info) is Judgement.INTACT


def _read_message_at(js: JetStream, info: StreamInfo, sequence: int) -> StoredMessage | None:
    """Return a message without its contents; None when it was deleted."""
    it = Range(info.name, info.created, sequence, sequence + 1, removed=Removed.NO_LOSS)
    for delivered in RangeReader(it, ReadMethod.HEADERS).read(js):
        return StoredMessage(sequence, int(delivered.deliveries.timestamps()[0]))
    return None


def ask_last_common_sequence(js: JetStream, initial: StreamInfo, info: StreamInfo) -> int:
    """Return the last sequence up to which a stream still has the history that it had in its ``initial`` state."""
    position = end_position_of(initial)
    if position.time is None or ask_if_intact(js, position, info):
        return position.last
    return ask_first_new(js, position, info) - 1


def ask_which_ids_are_known(
    connection: Connection, stream: str, domain: str, subjects: pa.Array, ids: pa.Array
) -> Mask:
    """Ask a stream with one replica which ids it knows, on subjects on which it listens; change nothing.

    For each id, the call sends a message that the stream cannot store: it expects the last one to have an id that no
    message has. The stream looks for the message's own id first. A stream with several replicas does so too, but
    remembers the id of the message that it then refuses. A refusal names no domain: where a stream in another one may
    answer too, all answers to a message count, as far as they come within :data:`SECOND_ANSWER`.

    Raises:
        NatsTimeoutError: not all was answered in time, or the stream refuses messages for another reason.
    """
    acks = PublishAcks(stream, domain)
    known = np.zeros(len(ids), np.bool_)
    refused, others = np.zeros((2, len(ids)), np.int64)  # how often each was refused, and acknowledged elsewhere
    here = connection.info.domain
    enough = 2 if here != domain and acks.other_domains_may_answer(here) else 1
    inbox = connection.new_inbox()
    answers = connection.subscribe(f"{inbox}.*")
    for start in range(0, len(ids), _ASKED_AT_ONCE):
        part = slice(start, min(start + _ASKED_AT_ONCE, len(ids)))
        rows = len(ids[part])
        lines = [(EXPECTED_STREAM, stream), (MSG_ID, ids[part]), (EXPECTED_MSG_ID, clock.token(16))]
        headers = wrap_lines_into_blocks(repeat_text("", rows), lines)
        connection.publish_columns(
            subjects[part], repeat_text("", rows), headers, numbered_subjects(inbox, start, rows)
        )
        while not (known | (refused > 0) & (refused + others >= enough))[part].all():
            are_answered = bool((known | (refused > 0))[part].all())
            messages = connection.next(answers, SECOND_ANSWER if are_answered else connection.options.request_timeout)
            if messages is None and are_answered:
                break
            if messages is None:
                raise NatsTimeoutError(IDS_NOT_SAID(server=connection.server, stream=stream))
            number, valid = messages.numbers_below_inbox(inbox)
            duplicates, elsewhere = are_duplicates(messages), acks.stored_in_other_domain(messages)
            if elsewhere.any():
                enough = 2
            duplicates[list(acks.refusals(messages))] = False
            for i in np.flatnonzero(~duplicates & ~elsewhere).tolist():
                if not is_wrong_last_id(messages.payload_at(i)):  # no leader at the moment, too many requests
                    raise NatsTimeoutError(IDS_NOT_SAID_NOW(stream=stream))
            valid &= number < len(ids)
            np.add.at(refused, number[valid & ~duplicates & ~elsewhere], 1)
            np.add.at(others, number[valid & elsewhere], 1)
            known[number[valid & duplicates]] = True
    connection.unsubscribe(answers)
    return known


def are_among(ids: pa.Array, stored: pa.Array) -> Mask:
    """Return a mask of the message ids, a string column, that are among stored ones, a binary column."""
    found: Mask = flags_of(pc.is_in(ids.cast(pa.binary()), stored))
    return found


def has_id_of(header: bytes, ids: pa.Array) -> bool:
    """Tell whether a header block contains one of the message ids, a string column, byte for byte."""
    return bool(are_among(ids, first_header_values(byte_strings([header]), MSG_ID, strip=False).drop_null()).any())
