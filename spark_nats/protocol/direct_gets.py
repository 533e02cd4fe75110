"""A batched direct get (ADR-31): its request, and its answers, stored messages with six headers after their own.

The server puts them at the end of a message's headers, always in this order::

    Nats-Stream, Nats-Subject, Nats-Sequence, Nats-Time-Stamp, Nats-Num-Pending, Nats-Last-Sequence

A message may have headers of its own with these names, for example after a republish, so the six are counted from the
end of the block. Without the six headers, the message is as it was stored. ``Nats-Stream`` names the stream that
answers, which may be a mirror of the requested one. The benchmark's row "codec: decode direct gets to seven columns"
guards the cost.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_nats.conditions.jetstream import DIRECT_GET_WITHOUT_SEQUENCE, DIRECT_GET_WITHOUT_TIME
from spark_nats.errors import ProtocolError
from spark_nats.protocol import bytecolumns
from spark_nats.protocol.documents import parse_time
from spark_nats.protocol.headers import NO_RESPONDERS, VERSION, RequestRefused, Status
from spark_nats.protocol.messages import Messages, Span

_LF, _T, _COLON = b"\nT:"
_STREAM, _SUBJECT, _SEQUENCE, _TIME, _PENDING, _PREVIOUS = (
    f"Nats-{name}: ".encode()
    for name in ("Stream", "Subject", "Sequence", "Time-Stamp", "Num-Pending", "Last-Sequence")
)
_ADDED_LINES = 7  # with the empty one that closes the block
_NANOSECONDS = pa.timestamp("ns", "UTC")


@dataclass(frozen=True, slots=True, eq=False)
class DirectGetReplies:
    """Metadata of messages that direct gets returned; times are parsed on request."""

    sequences: bytecolumns.Positions  # of the messages in the stream
    previous: bytecolumns.Positions  # for each, the sequence of the message before it in its batch; 0 for the first one
    data: bytecolumns.Bytes  # holds the times, and the lines that name streams
    times: Span  # where each time stands in ``data``
    streams: Span  # where the line that names the stream stands in ``data``

    def __len__(self) -> int:
        return len(self.sequences)

    def take(self, chosen: slice | bytecolumns.Mask) -> DirectGetReplies:
        """Return the metadata of the chosen messages."""
        sequences, previous = self.sequences[chosen], self.previous[chosen]
        return DirectGetReplies(sequences, previous, self.data, self.times.take(chosen), self.streams.take(chosen))

    def find_other_stream(self, stream: str) -> str | None:
        """Return the name of another stream that answered instead of this one; None when there is none."""
        lines = bytecolumns.gather(self.data, *self.streams)
        # Only the end is compared: the message's last own header may lack its CRLF.
        named = bytecolumns.flags_of(pc.ends_with(lines, _STREAM + stream.encode() + b"\r"))
        if named.all():
            return None
        said: bytes = lines[int(np.argmin(named))].as_py().rpartition(_STREAM)[2]
        return said.rstrip(b"\r").decode("utf-8", "backslashreplace")

    def last_sequence_and_time(self) -> tuple[int, int]:
        """Return the last message's sequence, and its time in nanoseconds since 1970 UTC.

        ProtocolError when the time is invalid.
        """
        text = self.data[self.times.start[-1] : self.times.end[-1]].tobytes()
        time = _nanoseconds(text)  # quicker for a single time
        if time is None:
            raise ProtocolError(DIRECT_GET_WITHOUT_TIME(time=text[:40]))
        return int(self.sequences[-1]), time

    def stream_sequences(self) -> bytecolumns.Positions:
        """Return the stream sequences."""
        return self.sequences

    def timestamps(self) -> bytecolumns.Positions:
        """Return when the messages were stored, in nanoseconds since 1970 UTC; ProtocolError when a time is invalid."""
        start = self.times.start
        texts = bytecolumns.gather(self.data, *self.times)
        # Arrow would also take a blank for the T, and a time without seconds.
        right = (self.data[start + 10] == _T) & (self.data[start + 16] == _COLON)
        with contextlib.suppress(pa.ArrowInvalid):
            if right.all():
                return bytecolumns.integers_of(texts.view(pa.string()).cast(_NANOSECONDS).view(pa.int64()))
        wrong = next((text for text in texts.to_pylist() if _nanoseconds(text) is None), texts[0].as_py())
        raise ProtocolError(DIRECT_GET_WITHOUT_TIME(time=wrong[:40]))


def separate_stored_messages(answers: Messages) -> tuple[Messages, DirectGetReplies, list[tuple[bytes, bytes]]]:
    """Separate stored messages from other answers, and restore the messages' own subjects and headers.

    Returns:
        The messages as they were stored, except that their header blocks lack the closing empty line; their metadata
        row by row; and header block and payload of all other answers.

    Raises:
        ProtocolError: a sequence is not a number.
    """
    data, offsets = bytecolumns.bytes_and_offsets_of(answers.gather(answers.header))
    lines = bytecolumns.find_separators(data == _LF, offsets)
    begin = offsets[:-1]
    stored = _has_added_lines(data, lines)
    others = [(answers.header_at(i), answers.payload_at(i)) for i in np.flatnonzero(~stored).tolist()]
    if others:
        answers, begin = answers.take(stored), begin[stored]
        lines = bytecolumns.Separators(lines.position, lines.first[stored], lines.per_row[stored])
    both = zip(_value_span(lines, 4, _SEQUENCE), _value_span(lines, 1, _PREVIOUS), strict=True)
    numbers, valid = bytecolumns.parse_ints(data, *map(np.concatenate, both))
    if not valid.all():
        raise ProtocolError(DIRECT_GET_WITHOUT_SEQUENCE())
    sequences, previous = numbers[: len(answers)], numbers[len(answers) :]
    shift = answers.header.start - begin  # from the packed headers to the buffer
    subject = Span(*(position + shift for position in _value_span(lines, 5, _SUBJECT)))
    # The added lines begin after the message's own last line, or with the block.
    added = np.where(lines.per_row > _ADDED_LINES, lines.positions_of(lines.per_row - _ADDED_LINES - 1) + 1, begin)
    streams = Span(added, lines.positions_of(lines.per_row - _ADDED_LINES))
    own = np.where(added - begin > len(VERSION) + 2, added, begin)  # the version line alone is no header
    header = Span(answers.header.start, own + shift)
    gotten = DirectGetReplies(sequences, previous, data, Span(*_value_span(lines, 3, _TIME)), streams)
    return replace(answers, subject=subject, header=header), gotten, others


def is_unbatched_answer(header: bytes) -> bool:
    """Return whether an answer is a single message from a server before 2.11, which has no batches."""
    return _SEQUENCE in header


def _has_added_lines(data: bytecolumns.Bytes, lines: bytecolumns.Separators) -> bytecolumns.Mask:
    """Return a mask of the blocks that end with the added lines; only ``Nats-Stream`` is not checked here."""
    found = lines.per_row >= _ADDED_LINES
    if len(data) < 8 or not found.any():
        return np.zeros_like(found)
    for line, name in ((5, _SUBJECT), (4, _SEQUENCE), (3, _TIME), (2, _PENDING), (1, _PREVIOUS)):
        start = lines.positions_of(lines.per_row - 2 - line) + 1
        for i, word in bytecolumns.words_of(name):
            found &= bytecolumns.load_words(data, np.minimum(start + i, len(data) - 8)) == word
    return found


def _value_span(
    lines: bytecolumns.Separators, line: int, name: bytes
) -> tuple[bytecolumns.Positions, bytecolumns.Positions]:
    """Return where the value of an added line begins and ends; lines are counted from the end, the empty one is 0."""
    end = lines.per_row - 1 - line
    return lines.positions_of(end - 1) + 1 + len(name), lines.positions_of(end) - 1


def _nanoseconds(time: bytes) -> int | None:
    return parse_time(time.decode("ascii", "replace"))


def encode_direct_get(sequence: int, messages: int, max_bytes: int, subject: str | None = None) -> bytes:
    """Return the body of a batched direct get (ADR-31).

    Args:
        sequence: first sequence to return.
        messages: maximum number of messages.
        max_bytes: bytes of subjects, headers and payloads after which the server ends the batch; it sends the first
            message in any case.
        subject: return only messages that match this subject or wildcard; all when None.
    """
    body: dict[str, Any] = {"seq": sequence, "batch": messages, "max_bytes": max_bytes}
    if subject is not None:
        body["next_by_subj"] = subject
    return json.dumps(body).encode()


class BatchEnded(NamedTuple):
    """The server has sent its whole answer to a request."""

    last: int  # sequence of the last message that it has sent, 0 when it has sent none
    pending: int  # matching messages that its replica has after that one


class NobodyAnswers(NamedTuple):
    """No server answers direct gets of the stream at the moment."""


DirectEvent = BatchEnded | NobodyAnswers | RequestRefused


def interpret_direct_status(status: Status) -> DirectEvent:
    """Return what a status means for a batched direct get; an unknown one, such as 408, refuses later ones too."""
    if status.code == 204:
        last, pending = status.number("Nats-Last-Sequence"), status.number("Nats-Num-Pending")
        return RequestRefused(status) if last is None or pending is None else BatchEnded(last, pending)
    if status.code == 404:
        return BatchEnded(0, 0)  # the replica has nothing that matches
    return NobodyAnswers() if status.code == NO_RESPONDERS else RequestRefused(status)
