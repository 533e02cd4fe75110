"""The answers to messages that were published to a stream, as columns: ``{"stream":"ORDERS","domain":"hub","seq":17}``.

Nearly all answers are a plain success, which is recognised by its beginning, eight bytes at a time. Every other answer
is parsed by itself.

A stream's name is unique in its JetStream domain only. A hub and a leaf node may each have a stream that hears the same
subjects: then both store a message, and both answer it. An acknowledgement names its domain, if there is one, so the
other stream's does not count. A refusal names none.
"""

from __future__ import annotations

import contextlib
from enum import Enum, auto
from typing import NamedTuple

import numpy as np
import pyarrow.compute as pc

from spark_nats.protocol.api import NOT_ENABLED, NOT_READY, ApiError, ErrCode, parse_answer
from spark_nats.protocol.bytecolumns import Mask, Positions, flags_of, gather, load_words, parse_ints, words_of
from spark_nats.protocol.documents import (
    begins_like_object,
    integer_at,
    parse_limited_object,
    string_at,
    text_or_none_at,
)
from spark_nats.protocol.headers import NO_RESPONDERS, TOO_MANY_REQUESTS, parse_status
from spark_nats.protocol.keyvalue import bucket_of
from spark_nats.protocol.messages import Messages

_DUPLICATE = '"duplicate": ?true'  # as the server writes it, or as a JSON library may


class Verdict(Enum):
    """What a refusal means for the message."""

    REJECTED = auto()
    """The stream will not store the message, and perhaps no other one either."""
    BAD_ROW = auto()
    """The stream refuses the message for its own properties, such as its size or a header, and may store others."""
    TOO_LARGE = auto()
    """The stream's store says that the message is too large, which need not be so: nats-server 2.14.0 to 2.14.3 say it
    of every message, once they have refused one of more than 32 MiB and until they restart."""
    NO_SUCH_SUBJECT = auto()
    """The stream will not store the message, because the stream does not listen on the message's subject."""
    STRANGER = auto()
    """Another client answers on the message's subject, or a stream in another domain; the stream may listen there too.
    """
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


class Said(Enum):
    """What the answer to a message says that one stream has to store."""

    STORED = auto()
    """The stream has stored the message."""
    REFUSED = auto()
    """A stream has refused the message: this one, or one of the same name in another domain."""
    NOTHING = auto()
    """Somebody else has answered."""


def classify_answer(stream: str, domain: str | None, payload: bytes) -> Said:
    """Return what an answer says, as :func:`stored_sequence_or_error`, which raises where this returns ``STORED``."""
    try:
        stored = stored_sequence_or_error(payload, stream, domain)
    except ValueError:
        return Said.STORED
    return Said.REFUSED if isinstance(stored, ApiError) else Said.STORED if stored else Said.NOTHING


def stored_sequence_or_error(payload: bytes, stream: str, domain: str | None) -> int | ApiError:
    """Return the sequence at which an answer says that a stream has stored a message, or the error in the answer.

    ``domain`` is the stream's; None counts any.
    0 when another client has answered: the answer does not name the stream, or is an error without an ``err_code``, as
    services describe theirs. ValueError when the JSON, an error in it or the stream's sequence is malformed.
    """
    if not begins_like_object(payload):
        return 0
    answer = parse_answer(payload)
    if isinstance(answer, ApiError):
        return answer if answer.err_code else 0
    if answer.get("stream") != stream or domain not in (None, answer.get("domain", "")):
        return 0
    return integer_at(answer, "seq")


def _begin_with(answers: Messages, beginning: bytes, words: list[tuple[int, np.uint64]]) -> Mask:
    """Return a mask of the answers that have a beginning, as far as ``words`` compare.

    The benchmark's row "client: Arrow to acknowledged JetStream publish" guards the cost.
    """
    start, end = answers.payload
    success: Mask = end - start >= len(beginning)
    for place, word in words:
        success &= load_words(answers.buffer, np.where(success, start + place, 0)) == word
    return success


class _Spelling(NamedTuple):
    """How acknowledgements begin; the servers up to 2.11 write a space after each comma."""

    name: bytes  # up to where the stream is named
    beginning: bytes  # the same, up to the sequence
    words: list[tuple[int, np.uint64]]
    own: bytes  # up to where the domain is named, also where it is empty
    others: list[bytes]  # how the acknowledgements of a stream of this name in any domain begin, but the plain ones

    @classmethod
    def of(cls, stream: str, domain: str, space: str) -> _Spelling:
        """Return the spelling with this space."""
        name = f'{{"stream":"{stream}",{space}'
        others = [f'{name}"domain":"', f'{name}"seq":'] if domain else [f'{name}"domain":"']
        beginning = f'{name}"domain":"{domain}",{space}"seq":' if domain else f'{name}"seq":'
        own = f'{name}"domain":"{domain}"'
        words = words_of(beginning.encode())
        return cls(name.encode(), beginning.encode(), words, own.encode(), [each.encode() for each in others])


class PublishAcks:
    """Reads the answers of one stream; an answer that does not name the stream and its domain is no acknowledgement.

    ``domain`` is empty where the stream's servers have none.
    """

    def __init__(self, stream: str, domain: str = "") -> None:
        self._stream = stream
        self.domain = domain
        self._compact, self._spaced = (_Spelling.of(stream, domain, space) for space in ("", " "))

    def other_domains_may_answer(self, domain: str) -> bool:
        """Return whether streams in other domains may answer too, over a server that is in this domain.

        Servers hand the subjects of buckets on to no other domain.
        """
        return bool(domain or self.domain) and not bucket_of(self._stream)

    def _spelling(self, answers: Messages) -> _Spelling:
        """Return how the server of the first answer writes acknowledgements; all servers of a stream do so alike."""
        is_spaced = len(answers) and answers.payload_at(0).startswith(self._spaced.name)
        return self._spaced if is_spaced else self._compact

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
                stream = parse_limited_object(payload).get("stream")
                if not answer.err_code and stream is None:  # an error of a service looks the same
                    return Refusal(f"something other than the stream answers on it: {reason}", verdict)
                if answer.err_code == ErrCode.WRONG_STREAM or stream not in (None, self._stream):
                    reason = f"another stream listens on it ({answer.description}, {answer.err_code})"
                    verdict = Verdict.NO_SUCH_SUBJECT if answer.err_code == ErrCode.WRONG_STREAM else Verdict.REJECTED
                    return Refusal(reason, verdict)
                return Refusal(reason, _verdict(answer))
            stream, domain = string_at(answer, "stream"), text_or_none_at(answer, "domain") or ""
            if integer_at(answer, "seq"):
                if domain != self.domain:
                    return Refusal(f"{_describe_stream(stream, domain)} answers on it too", verdict)
                if stream == self._stream:
                    return None
                verdict = Verdict.REJECTED  # another stream has stored it
        return _refusal_of_stranger(payload, verdict)

    def batch_refusal(self, answers: Messages, i: int, batch: str, count: int) -> Refusal | None:
        """Return why an answer refuses a batch of ``count`` messages; None when it says that the batch was stored."""
        if (refusal := self.refusal(answers, i)) is not None:
            return refusal
        answer = parse_limited_object(payload := answers.payload_at(i))
        stored = (answer.get("batch"), answer.get("count")) == (batch, count)
        return None if stored else _refusal_of_stranger(payload, Verdict.REJECTED)

    def refusals(self, answers: Messages) -> dict[int, Refusal]:
        """Return the refusals, by index of the answer; every other answer acknowledges its message.

        All acknowledgements of streams in other domains have the refusal of the first one.
        """
        spelling = self._spelling(answers)
        plain = _begin_with(answers, spelling.beginning, spelling.words)
        if plain.all():
            return {}
        elsewhere = self.stored_in_other_domain(answers)
        found = {i: self.refusal(answers, i) for i in np.flatnonzero(~plain & ~elsewhere).tolist()}
        if elsewhere.any():
            found |= dict.fromkeys(np.flatnonzero(elsewhere).tolist(), self.refusal(answers, int(np.argmax(elsewhere))))
        return {i: refusal for i, refusal in found.items() if refusal is not None}

    def stored_in_other_domain(self, answers: Messages) -> Mask:
        """Return a mask of the answers by which a stream of this name in another domain acknowledges its message."""
        spelling = self._spelling(answers)
        found = np.zeros(len(answers), np.bool_)
        for beginning in spelling.others:
            found |= _begin_with(answers, beginning, words_of(beginning))
        return found & ~_begin_with(answers, spelling.own, words_of(spelling.own)) if found.any() else found

    def sequence_or_zero(self, answers: Messages, i: int) -> int:
        """Return the sequence in an answer, whatever stream it names; 0 if the answer has none."""
        payload = answers.payload_at(i)
        for spelling in (self._compact, self._spaced):
            digits = payload[len(spelling.beginning) : -1]
            if digits.isdigit() and payload.startswith(spelling.beginning):
                return int(digits)
        with contextlib.suppress(ValueError):
            return integer_at(parse_answer(payload), "seq")
        return 0

    def sequences(self, answers: Messages) -> Positions:
        """Return the sequences in acknowledgements; undefined where an answer is not one."""
        if not len(answers):
            return np.empty(0, np.int64)
        # The text after the sequence, such as a counter's value, is usually the same as in the first answer.
        spelling = self._spelling(answers)
        first = answers.payload_at(0)[len(spelling.beginning) :]
        suffix = first.lstrip(b"0123456789") or b"}"
        start = np.minimum(answers.payload.start + len(spelling.beginning), answers.payload.end)
        end = np.maximum(start, answers.payload.end - len(suffix))
        sequences, plain = parse_ints(answers.buffer, start, end)
        # The last 8 bytes end with "seq": and suffice.
        plain &= _begin_with(answers, spelling.beginning, spelling.words[-1:])
        plain &= answers.buffer[end] == suffix[0]
        for i in np.flatnonzero(~plain).tolist():  # other text follows the sequence
            with contextlib.suppress(ValueError, OverflowError):
                sequences[i] = integer_at(parse_answer(answers.payload_at(i)), "seq")
        return sequences


def _describe_stream(stream: str, domain: str) -> str:
    return f"stream {stream[:80]!r} " + (f"in domain {domain[:80]!r}" if domain else "outside any domain")


def _refusal_of_stranger(payload: bytes, verdict: Verdict) -> Refusal:
    return Refusal(f"something other than the stream answers on it: {payload[:80]!r}", verdict)


_OF_ONE_MESSAGE = (
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
)
"""Errors about the headers, the size or the subject of one message; the server stores the next one.

tests/unit/protocol/test_publish_acks.py has a table of all codes of the server.
"""
# Errors about one message too. Only their texts show that, because a full stream has the same code.
_STORE_FAILED_FOR_ONE = {
    "maximum messages per subject exceeded": Verdict.BAD_ROW,
    "message too large": Verdict.TOO_LARGE,
}
_VERDICTS: dict[int, Verdict] = {
    **dict.fromkeys(_OF_ONE_MESSAGE, Verdict.BAD_ROW),
    **dict.fromkeys(NOT_READY | NOT_ENABLED, Verdict.UNAVAILABLE),
    ErrCode.DUPLICATE_IN_PROCESS: Verdict.IN_PROCESS,
    ErrCode.SUBJECT_IN_PROCESS: Verdict.TOO_MANY,
    ErrCode.BATCH_INCOMPLETE: Verdict.INCOMPLETE,
    ErrCode.BATCH_HAS_DUPLICATE: Verdict.REPEATED,
    ErrCode.WRONG_LAST_SEQUENCE: Verdict.CONFLICT,
}


_FULL = {
    "maximum messages exceeded": "the stream is full: raise its max_msgs, or remove messages",
    "maximum bytes exceeded": "the stream is full: raise its max_bytes, or remove messages",
    "maximum messages per subject exceeded": "the subject is full: raise the stream's max_msgs_per_subject, or remove "
    "messages",
    "resource limits exceeded for account": "the account has used up what it may store: raise its limit, or remove "
    "messages of any of its streams",
    "invalid operation on sealed stream": "the stream is sealed, which nothing undoes: write to another one",
}


def advise_if_full(reason: str) -> str:
    """Return what to do, after a semicolon, if a refusal means that nothing more is stored; else nothing."""
    advice = _FULL.get(reason.partition(" (")[0])
    return f"; {advice}" if advice else ""


def _verdict(error: ApiError) -> Verdict:
    if error.code == TOO_MANY_REQUESTS and error.err_code != ErrCode.DUPLICATE_IN_PROCESS:
        return Verdict.TOO_MANY
    if error.err_code == ErrCode.STORE_FAILED and error.description in _STORE_FAILED_FOR_ONE:
        return _STORE_FAILED_FOR_ONE[error.description]
    return _VERDICTS.get(error.err_code, Verdict.REJECTED)


def conflict_reason(expected: str, reason: str) -> str:
    """Return why a message was not stored (:attr:`Verdict.CONFLICT`), with the sequence that its header expects."""
    return f"it expects the subject's last message at sequence {expected}, but: {reason}"


def is_wrong_last_id(payload: bytes) -> bool:
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
