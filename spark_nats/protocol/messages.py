"""A batch of delivered messages as columns.

The decoder leaves every message where it was received and only notes where its parts begin and end. An Arrow column is
built from those spans on request, so a column that nobody reads costs nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_nats.conditions.jetstream import PAYLOADS_LEFT_OUT
from spark_nats.errors import ProtocolError
from spark_nats.protocol import bytecolumns
from spark_nats.protocol.headers import EMPTY_BLOCK, PAYLOAD_SIZE, HeaderColumn, empty_headers_column, parse_blocks

_BLOCK = 10_000  # numbers that differ only in their last four digits


class Span(NamedTuple):
    """Start and end of one part of each message; an absent part is empty."""

    start: bytecolumns.Positions
    end: bytecolumns.Positions

    def take(self, index: bytecolumns.Positions | bytecolumns.Mask | slice) -> Span:
        """Return the spans of the chosen messages."""
        return Span(self.start[index], self.end[index])


@dataclass(frozen=True, slots=True, eq=False)
class Messages:
    """Messages in the order in which they arrived; the reply, the header and the payload may be empty."""

    buffer: bytecolumns.Bytes  # the received bytes that all spans point into
    start: bytecolumns.Positions  # where each message's frame begins; the frame ends with the CRLF after the payload
    subject: Span
    sid: Span  # subscription id, as the client chose it in SUB
    reply: Span
    header: Span  # from ``NATS/1.0`` to its closing empty line, which messages from direct gets lack
    payload: Span

    def __len__(self) -> int:
        return len(self.subject.start)

    def take(self, index: bytecolumns.Positions | bytecolumns.Mask | slice) -> Messages:
        """Return the chosen messages, which must stay in order; the buffer is shared."""
        of_line = self.subject.take(index), self.sid.take(index), self.reply.take(index)
        return Messages(self.buffer, self.start[index], *of_line, self.header.take(index), self.payload.take(index))

    def gather(self, span: Span) -> pa.BinaryArray:
        """Copy one part of every message into a binary column."""
        return bytecolumns.gather(self.buffer, span.start, span.end)

    def subjects(self) -> pa.StringArray:
        """Return the subjects."""
        return self.decoded(self.subject).values

    def sids(self) -> bytecolumns.Positions:
        """Return the subscription ids as numbers; -1 where one is not a decimal number."""
        if (self.sid.end - self.sid.start == 1).all():  # as in a connection with few subscriptions
            digit = self.buffer[self.sid.start].astype(np.int64) - ord("0")
            return np.where((digit >= 0) & (digit <= 9), digit, -1)
        value, valid = bytecolumns.parse_ints(self.buffer, *self.sid)
        return np.where(valid, value, -1)

    def numbers_below_inbox(self, inbox: str) -> tuple[bytecolumns.Positions, bytecolumns.Mask]:
        """Return the numbers after the inbox in subjects (:func:`numbered_subjects`), and a mask of the valid ones."""
        return bytecolumns.parse_ints(self.buffer, self.subject.start + len(inbox) + 1, self.subject.end)

    def decoded(self, span: Span) -> bytecolumns.Text:
        """Return one part of every message as text, null where a message has none."""
        absent = span.start == span.end
        if absent.all():
            return bytecolumns.Text(pa.nulls(len(self), pa.string()))
        found = bytecolumns.decode_utf8_replacing(self.gather(span))
        if not absent.any():
            return found
        return found._replace(values=pc.if_else(bytecolumns.booleans(~absent), found.values, bytecolumns.NO_TEXT))

    def payloads(self) -> pa.BinaryArray:
        """Return the payloads."""
        return self.gather(self.payload)

    def headers(self) -> HeaderColumn:
        """Return the headers as one map per message, empty where a message has none."""
        if (self.header.start == self.header.end).all():
            return HeaderColumn(empty_headers_column(len(self)), 0, bytecolumns.NO_POSITIONS)
        return parse_blocks(self.gather(self.header))

    def announced_full_sizes(self) -> bytecolumns.Positions:
        """Return the full sizes of messages that came without payloads: bytes of subject, own headers and payload.

        The server adds a last header line with the size of each payload, and a header block where there is none;
        ProtocolError when a block does not end with a size.
        """
        payload, added = self._left_out_sizes()
        headers = self.header.end - self.header.start - added
        return self.subject.end - self.subject.start + headers * (headers > len(EMPTY_BLOCK)) + payload

    def without_size_headers(self) -> Messages:
        """Return messages that came without payloads with their own headers only, whose blocks lack the empty line.

        The server's last line of each is left out; ProtocolError when a block does not end with a size.
        """
        _, added = self._left_out_sizes()
        return replace(self, header=Span(self.header.start, self.header.end - added - len(b"\r\n")))

    def _left_out_sizes(self) -> tuple[bytecolumns.Positions, bytecolumns.Positions]:
        """Return the sizes of the payloads that the server has left out, and the bytes of the lines that say so."""
        length, end = self.header.end - self.header.start, self.header.end - 2 * len(b"\r\n")
        least = len(EMPTY_BLOCK) + len(PAYLOAD_SIZE)
        payload, digits = bytecolumns.parse_last_eight_digits(self.buffer, np.maximum(end, 8))
        if not ((length > least) & (digits > 0)).all():
            raise ProtocolError(PAYLOADS_LEFT_OUT())
        return payload, digits + len(PAYLOAD_SIZE) + len(b": \r\n")

    def wire(self) -> bytes:
        """Return the frames of these messages as they were received, concatenated."""
        if len(self) == 0:
            return b""
        end = self.payload.end + 2
        if (self.start[1:] == end[:-1]).all():
            return self.buffer[self.start[0] : end[-1]].tobytes()
        return bytecolumns.bytes_and_offsets_of(bytecolumns.gather(self.buffer, self.start, end))[0].tobytes()

    def payload_at(self, i: int) -> bytes:
        """Return the payload of message ``i``."""
        return self.buffer[self.payload.start[i] : self.payload.end[i]].tobytes()

    def header_at(self, i: int) -> bytes:
        """Return the header block of message ``i``; empty when it has none."""
        return self.buffer[self.header.start[i] : self.header.end[i]].tobytes()

    def subject_at(self, i: int) -> str:
        """Return the subject of message ``i``."""
        return self.buffer[self.subject.start[i] : self.subject.end[i]].tobytes().decode("utf-8", "replace")


def numbered_subjects(inbox: str, first: int, count: int) -> pa.StringArray:
    """Return the subjects below an inbox that receive the answers to messages with ``count`` numbers from ``first`` on.

    A number has at least five digits, the last four out of a table: formatting each number takes twice as long.
    """
    nothing = bytecolumns.texts([""])[0]
    blocks = []
    for block in range(first // _BLOCK, (first + count) // _BLOCK + 1):
        before, start = bytecolumns.texts([f"{inbox}.{block}"])[0], block * _BLOCK
        digits = _last_digits()[max(0, first - start) : max(0, first + count - start)]
        blocks.append(pc.binary_join_element_wise(before, digits, nothing))
    return pa.concat_arrays(blocks)


@cache
def _last_digits() -> pa.StringArray:
    return bytecolumns.texts([f"{number:04}" for number in range(_BLOCK)])
