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
from spark_nats.jetstream.messages import StoredMessage
from spark_nats.jetstream.positions import Position, end_of
from spark_nats.jetstream.reading.judging import Removed
from spark_nats.jetstream.reading.ranges import Range, RangeReader, ReadMethod
from spark_nats.jetstream.streams import StreamInfo
from spark_nats.jetstream.views import first_new, judged
from spark_nats.protocol.bytecolumns import Mask, byte_strings, flags_of, repeated
from spark_nats.protocol.headers import EXPECTED_MSG_ID, EXPECTED_STREAM, MSG_ID, header_values, wrap_lines
from spark_nats.protocol.messages import numbered
from spark_nats.protocol.publish_acks import PublishAcks, are_duplicates, is_other_last_id

logger = logging.getLogger(__name__)

_ASKED_AT_ONCE = 1000  # message ids


class StoredIds(NamedTuple):
    """The message ids that were found."""

    ids: pa.Array  # binary column of message ids, in the order of their messages
    removed: str  # names lost messages, whose ids are then unknown; empty when there are none


def stored_ids(js: JetStream, stream: StreamInfo, since: int, prefix: str = "") -> StoredIds:
    """Return the ids that begin with ``prefix`` among a stream's messages after ``since``, up to its given state."""
    lost: list[str] = []
    end = end_of(stream)
    later = Range(stream.name, stream.created, since + 1, end.next, last=end.fingerprint, latest=end.latest)
    reader = RangeReader(later, ReadMethod.HEADERS, lost=lost.append)
    found = []
    messages = 0
    for delivered in reader.read(js):
        messages += len(delivered.messages)
        ids = header_values(delivered.messages.gather(delivered.messages.header), MSG_ID, strip=False).drop_null()
        found.append(ids.filter(pc.starts_with(ids, prefix)) if prefix else ids)
    missing = stream.last_sequence - since - messages
    logger.info(
        IDS_READ_BACK(stream=stream.name, messages=messages, sequence=since, ids=sum(map(len, found))).with_code
    )
    if missing > 0 and not lost:
        lost.append(
            f"messages that stream {stream.name!r} had stored after sequence {since} are lost ({missing} of them)"
        )
    ids = pa.concat_arrays(found) if found else byte_strings([]).cast(pa.binary())
    return StoredIds(ids, "; ".join(lost))


def is_intact(js: JetStream, position: Position, info: StreamInfo) -> bool:
    """Tell whether a stream has what it had before a position, with a reader's permissions alone.

    Where the message before the position was deleted, and the user may not request others, the stream counts as intact.
    """
    with contextlib.suppress(PermissionsError):
        found = judged(js, position, info, look=lambda: _message_at(js, info, position.last))
        return found is Judgement.INTACT
    return True


def _message_at(js: JetStream, info: StreamInfo, sequence: int) -> StoredMessage | None:
    """Return a message without its contents; None when it was deleted."""
    it = Range(info.name, info.created, sequence, sequence + 1, removed=Removed.NO_LOSS)
    for delivered in RangeReader(it, ReadMethod.HEADERS).read(js):
        return StoredMessage(sequence, int(delivered.deliveries.timestamps()[0]))
    return None


def kept_until(js: JetStream, initial: StreamInfo, info: StreamInfo) -> int:
    """Return the last sequence up to which a stream still has the history that it had in its ``initial`` state."""
    position = end_of(initial)
    if position.time is None or is_intact(js, position, info):
        return position.last
    return first_new(js, position, info) - 1


def known_ids(connection: Connection, stream: str, domain: str, subjects: pa.Array, ids: pa.Array) -> Mask:
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
    enough = 2 if here != domain and acks.crosses(here) else 1
    inbox = connection.new_inbox()
    answers = connection.subscribe(f"{inbox}.*")
    for start in range(0, len(ids), _ASKED_AT_ONCE):
        part = slice(start, min(start + _ASKED_AT_ONCE, len(ids)))
        rows = len(ids[part])
        headers = wrap_lines(
            repeated("", rows), [(EXPECTED_STREAM, stream), (MSG_ID, ids[part]), (EXPECTED_MSG_ID, clock.token(16))]
        )
        replies = numbered(inbox, start, rows)
        connection.publish_columns(subjects[part], repeated("", rows), headers, replies)
        while not (known | (refused > 0) & (refused + others >= enough))[part].all():
            are_answered = bool((known | (refused > 0))[part].all())
            messages = connection.next(answers, SECOND_ANSWER if are_answered else connection.options.request_timeout)
            if messages is None and are_answered:
                break
            if messages is None:
                raise NatsTimeoutError(IDS_NOT_SAID(server=connection.server, stream=stream))
            number, valid = messages.numbers(inbox)
            duplicates, elsewhere = are_duplicates(messages), acks.elsewhere(messages)
            if elsewhere.any():
                enough = 2
            duplicates[list(acks.refusals(messages))] = False
            for i in np.flatnonzero(~duplicates & ~elsewhere).tolist():
                if not is_other_last_id(messages.payload_at(i)):  # no leader at the moment, too many requests
                    raise NatsTimeoutError(IDS_NOT_SAID_NOW(stream=stream))
            valid &= number < len(ids)
            np.add.at(refused, number[valid & ~duplicates & ~elsewhere], 1)
            np.add.at(others, number[valid & elsewhere], 1)
            known[number[valid]] |= duplicates[valid]
    connection.unsubscribe(answers)
    return known


def is_among(ids: pa.Array, stored: pa.Array) -> Mask:
    """Return a mask of the message ids, a string column, that are among stored ones, a binary column."""
    found: Mask = flags_of(pc.is_in(ids.cast(pa.binary()), stored))
    return found


def has_id_of(header: bytes, ids: pa.Array) -> bool:
    """Tell whether a header block contains one of the message ids, a string column, byte for byte."""
    return bool(is_among(ids, header_values(byte_strings([header]), MSG_ID, strip=False).drop_null()).any())
