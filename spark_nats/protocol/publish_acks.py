"""The answers to messages that were published to a stream, as columns: ``{"stream":"ORDERS","seq":17}``.

Nearly all answers are a plain success, which is told by its beginning, eight bytes at a time. Only what is anything
else is parsed by itself.
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

_DUPLICATE = '"duplicate": ?true'  # as the server writes it, and as a JSON library might


class Verdict(Enum):
    """What a refusal means for the message."""

    REJECTED = auto()
    """It will not be stored, and maybe no other one either."""
    BAD_ROW = auto()
    """It will not be stored for what it is itself, as for its size or a header. Others may be."""
    NO_SUCH_SUBJECT = auto()
    """It will not be stored, since the stream does not listen on its subject."""
    STRANGER = auto()
    """Somebody else than a stream answers on its subject, and the stream may listen there too or not."""
    TOO_MANY = auto()
    """The stream was given too much at once: it may be sent again, later and slower. Or another message of its subject
    is still being stored in a cluster, so that it cannot be told yet whether the one is the last that it expects."""
    UNAVAILABLE = auto()
    """It may be sent again later. Nobody answered for the stream: it has no leader at the moment, or JetStream is not
    ready; or there is none."""
    IN_PROCESS = auto()
    """It may be sent again later. A message with its id is being stored in a cluster; or it was, and got lost with the
    leadership, which nats-server 2.15 may notice only after the stream's ``duplicate_window``."""
    CONFLICT = auto()
    """The last message of its subject is not the one that it expects. A stream with one replica says so too, from
    nats-server 2.12 on, of a message that it has stored already and whose id it knows."""
    RESOLVED = auto()
    """It was a conflict, and it is decided what becomes of the message."""
    REPEATED = auto()
    """The stream knows the id of a message of its batch, or it occurs twice in it."""


class Refusal(NamedTuple):
    """Why a message was not stored."""

    reason: str  # to be shown
    verdict: Verdict


def mark_of(stream: str) -> bytes:
    """Return what each answer of a stream to a message contains."""
    return f'"stream":"{stream}"'.encode()


def stored_by(payload: bytes, stream: str) -> bool | ApiError:
    """Tell whether an answer says that a stream has stored a message; or return the error that it is.

    Whatever does not name the stream says nothing, and whoever has given it is somebody else. So is a service, which
    describes its errors in the same way, but has no codes of JetStream. ValueError when it is no error of the API's.
    """
    if not is_object(payload):
        return False
    answer = parse_answer(payload)
    if isinstance(answer, ApiError):
        return answer if answer.err_code else False
    return answer.get("stream") == stream and integer_at(answer, "seq") > 0


class PublishAcks:
    """Reads the answers of one stream; one that does not name it is not an acknowledgement."""

    def __init__(self, stream: str) -> None:
        self._stream = stream
        self._beginning = f'{{"stream":"{stream}","seq":'.encode()
        self._words = words_of(self._beginning)

    def _begin_with(self, answers: Messages, words: list[tuple[int, np.uint64]]) -> Mask:
        """Tell which answers begin as the stream's acknowledgements do, of which some words are looked at.

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
                if not answer.err_code and stream is None:  # a service describes its errors in the same way
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
        """Return why an answer refuses a batch of so many messages; None when it says that this one was stored."""
        if (refusal := self.refusal(answers, i)) is not None:
            return refusal
        answer = parse_document(payload := answers.payload_at(i))
        stored = (answer.get("batch"), answer.get("count")) == (batch, count)
        return None if stored else _of_somebody_else(payload, Verdict.REJECTED)

    def refusals(self, answers: Messages) -> dict[int, Refusal]:
        """Return why answers refuse their messages, by the answers' numbers; all others say that theirs is stored."""
        found = {i: self.refusal(answers, i) for i in np.flatnonzero(~self._begin_with(answers, self._words)).tolist()}
        return {i: refusal for i, refusal in found.items() if refusal is not None}

    def sequence(self, answers: Messages, i: int) -> int:
        """Return the sequence that an acknowledgement names; 0 where an answer is not one."""
        payload = answers.payload_at(i)
        digits = payload[len(self._beginning) : -1]
        if digits.isdigit() and payload.startswith(self._beginning):
            return int(digits)
        with contextlib.suppress(ValueError):
            return integer_at(parse_answer(payload), "seq")
        return 0

    def sequences(self, answers: Messages) -> Positions:
        """Return the sequences that acknowledgements name; any number where an answer is not one."""
        if not len(answers):
            return np.empty(0, np.int64)
        # What stands behind the number, such as a domain, is mostly the same as in the first answer.
        first = answers.payload_at(0)[len(self._beginning) :]
        behind = first.lstrip(b"0123456789") or b"}"
        start = np.minimum(answers.payload.start + len(self._beginning), answers.payload.end)
        end = np.maximum(start, answers.payload.end - len(behind))
        sequences, plain = decimals(answers.buffer, start, end)
        plain &= self._begin_with(answers, self._words[-1:])  # which ends with "seq": and that is enough here
        plain &= answers.buffer[end] == behind[0]
        for i in np.flatnonzero(~plain).tolist():  # more stands behind it, as a domain does
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
        ErrCode.COUNTER_BROKEN,  # the last message of its subject is no counter
        ErrCode.SCHEDULES_DISABLED,
        ErrCode.SCHEDULE_INVALID,
        ErrCode.SCHEDULE_TARGET_INVALID,
        ErrCode.SCHEDULE_TTL_INVALID,
        ErrCode.SCHEDULE_ROLLUP_INVALID,
        ErrCode.SCHEDULE_SOURCE_INVALID,
        ErrCode.SCHEDULER_INVALID,
        ErrCode.SCHEDULE_TIME_ZONE_INVALID,
        ErrCode.SOURCE_HEADER,
    }
)
"""What the server says of one message by its headers, its size and its subject; it stores the next one.

tests/unit/protocol/test_publish_acks.py has a table of all codes of the server.
"""
# The same in words: the code is that of a full stream.
_STORE_FAILED_FOR_ONE = frozenset({"maximum messages per subject exceeded", "message too large"})
_VERDICTS: dict[int, Verdict] = {
    **dict.fromkeys(_OF_ONE_MESSAGE, Verdict.BAD_ROW),
    **dict.fromkeys(NOT_READY | NOT_ENABLED, Verdict.UNAVAILABLE),
    ErrCode.DUPLICATE_IN_PROCESS: Verdict.IN_PROCESS,
    ErrCode.SUBJECT_IN_PROCESS: Verdict.TOO_MANY,
    ErrCode.BATCH_INCOMPLETE: Verdict.TOO_MANY,  # the server has dropped the batch, as when its leader has gone
    ErrCode.BATCH_REPEATED: Verdict.REPEATED,
    ErrCode.WRONG_LAST_SEQUENCE: Verdict.CONFLICT,
}


def _verdict(error: ApiError) -> Verdict:
    if error.code == TOO_MANY_REQUESTS and error.err_code != ErrCode.DUPLICATE_IN_PROCESS:
        return Verdict.TOO_MANY
    if error.err_code == ErrCode.STORE_FAILED and error.description in _STORE_FAILED_FOR_ONE:
        return Verdict.BAD_ROW
    return _VERDICTS.get(error.err_code, Verdict.REJECTED)


def expecting(sequence: str, reason: str) -> str:
    """Say of a message why it was not stored (:attr:`Verdict.CONFLICT`), with what its header expects."""
    return f"it expects the subject's last message at sequence {sequence}, but: {reason}"


def is_other_last_id(payload: bytes) -> bool:
    """Tell whether an answer refuses its message because the stream's last one has another id than it expects."""
    with contextlib.suppress(ValueError):
        answer = parse_answer(payload)
        return isinstance(answer, ApiError) and answer.err_code == ErrCode.WRONG_LAST_ID
    return False


def are_duplicates(answers: Messages) -> Mask:
    """Tell which acknowledgements say that the stream had the message already (``"duplicate": true``)."""
    start, end = answers.payload
    last = answers.buffer[np.maximum(end - 2, start)]
    found: Mask = (last < ord("0")) | (last > ord("9"))  # a plain acknowledgement ends with its sequence
    if found.any():
        payloads = gather(answers.buffer, start[found], end[found])
        found[found] = flags_of(pc.match_substring_regex(payloads, _DUPLICATE))
    return found
