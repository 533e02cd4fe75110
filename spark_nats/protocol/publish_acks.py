"""The answers to messages that were published to a stream, as columns: ``{"stream":"ORDERS","seq":17}``.

Nearly all answers are a plain success, which is recognised by its beginning, eight bytes at a time. Every other answer
is parsed by itself.
"""

from __future__ import annotations

import contextlib
from enum import Enum, auto
from typing import NamedTuple

import numpy as np
import pyarrow.compute as pc

from spark_nats.protocol.api import NOT_ENABLED, NOT_READY, ApiError, ErrCode, parse_answer
from spark_nats.protocol.bytecolumns import Mask, Positions, decimals, flags_of, gather, load_words, words_of
from spark_nats.protocol.documents import integer_at, is_object, parse_document, string_at
from spark_nats.protocol.messages import Messages
from spark_nats.protocol.statuses import NO_RESPONDERS, TOO_MANY_REQUESTS, parse_status

_DUPLICATE = '"duplicate": ?true'  # as the server writes it, or as a JSON library may


class Verdict(Enum):
    """What a refusal means for the message."""

    REJECTED = auto()
    """The stream will not store the message, and perhaps no other one either."""
    BAD_ROW = auto()
    """The stream refuses the message for its own properties, such as its size or a header, and may store others."""
    NO_SUCH_SUBJECT = auto()
    """The stream will not store the message, because the stream does not listen on the message's subject."""
    STRANGER = auto()
    """Another client answers on the message's subject; the stream may listen there too."""
    TOO_MANY = auto()
    """The message may be sent again later and slower: the stream is overloaded, or a cluster is still storing another
    message of its subject, so the subject's last message is not known yet."""
    INCOMPLETE = auto()
    """The server lacks earlier messages of the batch. It has dropped the batch, or it is not the leader that keeps them
    and may have stored the batch."""
    UNAVAILABLE = auto()
    """The message may be sent again later. The stream has no leader at the moment or is offline, JetStream is not ready
    or not enabled, or there is no stream."""
    IN_PROCESS = auto()
    """The message may be sent again later. A cluster is storing a message with its id, or has lost one with a leader;
    nats-server 2.15 may notice that loss only after the stream's ``duplicate_window``."""
    CONFLICT = auto()
    """The last message of the subject is not the expected one. A stream with one replica also answers this, from
    nats-server 2.12 on, to a message that it has stored already and whose id it knows."""
    RESOLVED = auto()
    """The message was a conflict, and the writer has decided what becomes of it."""
    REPEATED = auto()
    """The stream knows the id of a message of the batch, or an id occurs twice in the batch."""


class Refusal(NamedTuple):
    """Why a message was not stored."""

    reason: str  # for people
    verdict: Verdict


def mark_of(stream: str) -> bytes:
    """Return the bytes that each acknowledgement of a stream contains."""
    return f'"stream":"{stream}"'.encode()


def stored_by(payload: bytes, stream: str) -> int | ApiError:
    """Return the sequence at which an answer says that a stream has stored a message, or the error in the answer.

    0 when another client has answered: the answer does not name the stream, or is an error without an ``err_code``, as
    services describe theirs. ValueError when the JSON, an error in it or the stream's sequence is malformed.
    """
    if not is_object(payload):
        return 0
    answer = parse_answer(payload)
    if isinstance(answer, ApiError):
        return answer if answer.err_code else 0
    return integer_at(answer, "seq") if answer.get("stream") == stream else 0


class PublishAcks:
    """Reads the answers of one stream; an answer that does not name the stream is not an acknowledgement."""

    def __init__(self, stream: str) -> None:
        self._stream = stream
        self._beginning = f'{{"stream":"{stream}","seq":'.encode()
        self._words = words_of(self._beginning)

    def _begin_with(self, answers: Messages, words: list[tuple[int, np.uint64]]) -> Mask:
        """Return a mask of the answers that begin like the stream's acknowledgements, as far as ``words`` compare.

        The benchmark's row "client: Arrow to acknowledged JetStream publish" guards the cost.
        """
        start, end = answers.payload
        success: Mask = end - start >= len(self._beginning)
        for place, word in words:
            success &= load_words(answers.buffer, np.where(success, start + place, 0)) == word
        return success

    def refusal(self, answers: Messages, i: int) -> Refusal | None:
        """Return why an answer refuses its message; None when the message was stored."""
        status = parse_status(answers.header_at(i))
        if status is not None:
            if status.code == NO_RESPONDERS:
                return Refusal("no stream listens on it", Verdict.UNAVAILABLE)
            verdict = Verdict.TOO_MANY if status.code == TOO_MANY_REQUESTS else Verdict.REJECTED
            return Refusal(f"{status.description} ({status.code})", verdict)
        payload, verdict = answers.payload_at(i), Verdict.STRANGER
        with contextlib.suppress(ValueError):
            answer = parse_answer(payload)
            if isinstance(answer, ApiError):
                reason = f"{answer.description} ({answer.code}, {answer.err_code})"
                stream = parse_document(payload).get("stream")
                if not answer.err_code and stream is None:  # an error of a service looks the same
                    return Refusal(f"somebody else than the stream answers on it: {reason}", verdict)
                if answer.err_code == ErrCode.WRONG_STREAM or stream not in (None, self._stream):
                    reason = f"another stream listens on it ({answer.description}, {answer.err_code})"
                    verdict = Verdict.NO_SUCH_SUBJECT if answer.err_code == ErrCode.WRONG_STREAM else Verdict.REJECTED
                    return Refusal(reason, verdict)
                return Refusal(reason, _verdict(answer))
            if string_at(answer, "stream") == self._stream and integer_at(answer, "seq"):
                return None
            if integer_at(answer, "seq"):
                verdict = Verdict.REJECTED  # another stream has stored it
        return _of_somebody_else(payload, verdict)

    def batch_refusal(self, answers: Messages, i: int, batch: str, count: int) -> Refusal | None:
        """Return why an answer refuses a batch of ``count`` messages; None when it says that the batch was stored."""
        if (refusal := self.refusal(answers, i)) is not None:
            return refusal
        answer = parse_document(payload := answers.payload_at(i))
        stored = (answer.get("batch"), answer.get("count")) == (batch, count)
        return None if stored else _of_somebody_else(payload, Verdict.REJECTED)

    def refusals(self, answers: Messages) -> dict[int, Refusal]:
        """Return the refusals, by index of the answer; every other answer acknowledges its message."""
        found = {i: self.refusal(answers, i) for i in np.flatnonzero(~self._begin_with(answers, self._words)).tolist()}
        return {i: refusal for i, refusal in found.items() if refusal is not None}

    def sequence(self, answers: Messages, i: int) -> int:
        """Return the sequence in an answer, whatever stream it names; 0 if the answer has none."""
        payload = answers.payload_at(i)
        digits = payload[len(self._beginning) : -1]
        if digits.isdigit() and payload.startswith(self._beginning):
            return int(digits)
        with contextlib.suppress(ValueError):
            return integer_at(parse_answer(payload), "seq")
        return 0

    def sequences(self, answers: Messages) -> Positions:
        """Return the sequences in acknowledgements; undefined where an answer is not one."""
        if not len(answers):
            return np.empty(0, np.int64)
        # The text after the sequence, such as a domain, is usually the same as in the first answer.
        first = answers.payload_at(0)[len(self._beginning) :]
        suffix = first.lstrip(b"0123456789") or b"}"
        start = np.minimum(answers.payload.start + len(self._beginning), answers.payload.end)
        end = np.maximum(start, answers.payload.end - len(suffix))
        sequences, plain = decimals(answers.buffer, start, end)
        plain &= self._begin_with(answers, self._words[-1:])  # the last 8 bytes end with "seq": and suffice
        plain &= answers.buffer[end] == suffix[0]
        for i in np.flatnonzero(~plain).tolist():  # other text follows the sequence
            with contextlib.suppress(ValueError, OverflowError):
                sequences[i] = integer_at(parse_answer(answers.payload_at(i)), "seq")
        return sequences


def _of_somebody_else(payload: bytes, verdict: Verdict) -> Refusal:
    return Refusal(f"somebody else than the stream answers on it: {payload[:80]!r}", verdict)


_OF_ONE_MESSAGE = frozenset(
    {
        ErrCode.MESSAGE_TOO_LARGE,  # for the stream's max_msg_size
        ErrCode.HEADERS_TOO_LARGE,
        ErrCode.WRONG_LAST_ID,
        ErrCode.LAST_SEQUENCE_MISSING,
        ErrCode.ROLLUP_FAILED,
        ErrCode.TTL_INVALID,
        ErrCode.TTL_DISABLED,
        ErrCode.COUNTER_DISABLED,
        ErrCode.INCREMENT_MISSING,
        ErrCode.COUNTER_HAS_PAYLOAD,
        ErrCode.INCREMENT_INVALID,
        ErrCode.COUNTER_BROKEN,  # the subject's last message is no counter
        ErrCode.SCHEDULES_DISABLED,
        ErrCode.SCHEDULE_INVALID,
        ErrCode.SCHEDULE_TARGET_INVALID,
        ErrCode.SCHEDULE_TTL_INVALID,
        ErrCode.SCHEDULE_ROLLUP_INVALID,
        ErrCode.SCHEDULE_SOURCE_INVALID,
        ErrCode.SCHEDULER_INVALID,
        ErrCode.SCHEDULE_TIME_ZONE_INVALID,
        ErrCode.SOURCE_HEADER_NOT_ALLOWED,
    }
)
"""Errors about the headers, the size or the subject of one message; the server stores the next one.

tests/unit/protocol/test_publish_acks.py has a table of all codes of the server.
"""
# Errors about one message too. Only their texts show that, because a full stream has the same code.
_STORE_FAILED_FOR_ONE = frozenset({"maximum messages per subject exceeded", "message too large"})
_VERDICTS: dict[int, Verdict] = {
    **dict.fromkeys(_OF_ONE_MESSAGE, Verdict.BAD_ROW),
    **dict.fromkeys(NOT_READY | NOT_ENABLED, Verdict.UNAVAILABLE),
    ErrCode.DUPLICATE_IN_PROCESS: Verdict.IN_PROCESS,
    ErrCode.SUBJECT_IN_PROCESS: Verdict.TOO_MANY,
    ErrCode.BATCH_INCOMPLETE: Verdict.INCOMPLETE,
    ErrCode.BATCH_HAS_DUPLICATE: Verdict.REPEATED,
    ErrCode.WRONG_LAST_SEQUENCE: Verdict.CONFLICT,
}


def _verdict(error: ApiError) -> Verdict:
    if error.code == TOO_MANY_REQUESTS and error.err_code != ErrCode.DUPLICATE_IN_PROCESS:
        return Verdict.TOO_MANY
    if error.err_code == ErrCode.STORE_FAILED and error.description in _STORE_FAILED_FOR_ONE:
        return Verdict.BAD_ROW
    return _VERDICTS.get(error.err_code, Verdict.REJECTED)


def expecting(sequence: str, reason: str) -> str:
    """Return why a message was not stored (:attr:`Verdict.CONFLICT`), with the sequence that its header expects."""
    return f"it expects the subject's last message at sequence {sequence}, but: {reason}"


def is_other_last_id(payload: bytes) -> bool:
    """Return whether an answer refuses its message because the stream's last one has another id than expected."""
    with contextlib.suppress(ValueError):
        answer = parse_answer(payload)
        return isinstance(answer, ApiError) and answer.err_code == ErrCode.WRONG_LAST_ID
    return False


def are_duplicates(answers: Messages) -> Mask:
    """Return a mask of the answers with ``"duplicate": true`` after a sequence: the stream already had the message."""
    start, end = answers.payload
    last = answers.buffer[np.maximum(end - 2, start)]
    found: Mask = (last < ord("0")) | (last > ord("9"))  # a plain acknowledgement ends with its sequence
    if found.any():
        payloads = gather(answers.buffer, start[found], end[found])
        found[found] = flags_of(pc.match_substring_regex(payloads, _DUPLICATE))
    return found
