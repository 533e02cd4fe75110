"""The decoder: chunks of received bytes in, columns of messages out.

Strategy. A message is a control line (``MSG <subject> <sid> [reply] <#bytes>``, or ``HMSG`` with two sizes) and as
many bytes as the line says, so strictly the only way to find the next message is to read this one's line. Doing that
in Python costs more per message than everything else together. So the frames of a whole chunk are *guessed* at once:
every line that begins with ``MSG `` or ``HMSG `` is a candidate, all candidates' lines are parsed by array arithmetic,
and then the guesses are *verified*: a frame counts only if it begins exactly where a verified frame ended. A line
inside a payload that looks like a message is never reached that way.

Where a verified frame is not followed by a good candidate (a control line, a tab after ``MSG``, several spaces between
fields, a torn frame, an error), :meth:`_Scan._take_frame_or_line` takes one step by the protocol's grammar as it is
written, and the guesses continue from there. So a guess can cost time but not correctness: the grammar decides whatever
the guess does not recognise, and only the grammar raises errors. The grammar alone reads chunks of a few frames: with
arrays, the answer to a request would take ten times as long.

Frames with the layout of a chunk's first one need no guess: the grammar reads that one, and a comparison tells how many
follow. Answers to published messages are such frames.

The benchmark's rows "codec: decode ..." guard the cost: of deliveries, of headers, and of hostile payloads.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np

from spark_nats.errors import ProtocolError
from spark_nats.protocol import bytecolumns
from spark_nats.protocol.control import Control, Op
from spark_nats.protocol.messages import Messages, Span

MAX_LINE = 64 * 1024  # most bytes of a control line; servers accept 4 KiB, but an INFO with many servers is longer
MAX_MESSAGE = 64 * 1024 * 1024  # most bytes of a message with its headers: the most that a server can carry
SMALL = 4 * 1024  # bytes up to which a chunk is read frame by frame; array arithmetic pays off in larger ones

_CR, _LF, _SPACE, _TAB = b"\r\n \t"
_FOUR_LETTERS = np.uint32(0x20202020)  # or-ed to four ASCII letters it makes them lower case
_MSG = np.uint32(int.from_bytes(b"msg ", "little"))
_HMSG = np.uint32(int.from_bytes(b"hmsg", "little"))
_MIN_LINE = len("MSG a 1 0")
_BEFORE_FIRST = np.array([-1])
_SAMPLES = 8  # frames that show whether all of a chunk may have the same layout
_MAX_SIZE_DIGITS = 8  # digits of a header's size that a guess reads, and a space; the grammar reads longer ones

# The grammar: operation names in any case, fields separated by any number of spaces and tabs.
_FIELD = rb"[ \t]+([^ \t]+)"
_MESSAGE_LINE = re.compile(rb"(?i:MSG)%b%b(?:%b)??[ \t]+([0-9]+)[ \t]*" % (_FIELD, _FIELD, _FIELD))
_HEADER_LINE = re.compile(rb"(?i:HMSG)%b%b(?:%b)??[ \t]+([0-9]+)[ \t]+([0-9]+)[ \t]*" % (_FIELD, _FIELD, _FIELD))
_CONTROL_LINE = re.compile(rb"(?i:(INFO|PING|PONG|\+OK|-ERR))(?:[ \t]+(.*))?[ \t]*", re.DOTALL)


class Decoded(NamedTuple):
    """What one chunk completed, in order."""

    messages: Messages
    controls: list[tuple[int, Control]]  # the control lines, each with the number of messages that came before it


class Decoder:
    """Turns the bytes of one connection into messages and control lines.

    The arguments are limits in bytes: of a control line, and of a message with its headers.
    """

    def __init__(self, max_line: int = MAX_LINE, max_message: int = MAX_MESSAGE) -> None:
        self._max_line = max_line
        self._max_message = max_message
        self._pending: list[bytes] = []
        self._pending_size = 0
        self._needed = 1  # bytes that must be there before anything new can be decoded

    def feed(self, data: bytes) -> Decoded:
        """Decode what ``data`` completes, and keep the incomplete rest for the next call.

        Raises:
            ProtocolError: the bytes are not the protocol; the connection has to be closed.
        """
        self._pending.append(data)
        self._pending_size += len(data)
        if self._pending_size < self._needed:
            return Decoded(_NOTHING, [])
        chunk = b"".join(self._pending)  # one piece is not copied
        scan = _Scan(chunk, self._max_line, self._max_message)
        scan.run()
        rest = chunk[scan.position :]
        self._pending = [rest] if rest else []
        self._pending_size = len(rest)
        self._needed = scan.needed
        return Decoded(scan.messages(), scan.controls)


def frame_ends(wire: bytes) -> bytecolumns.Positions:
    """Return the end of each message's frame in bytes that are whole frames, with or without control lines between."""
    return Decoder().feed(wire).messages.payload.end + 2


def _messages(buffer: bytecolumns.Bytes, table: bytecolumns.Positions) -> Messages:
    """Return the messages of a table of frames, which has a row for each kind of position in the chunk.

    The header ends where the payload begins, the frame ends two bytes after the payload.
    """
    start, subject, subject_end, sid, sid_end, reply, reply_end, header, payload, end = table
    of_line = Span(subject, subject_end), Span(sid, sid_end), Span(reply, reply_end)
    return Messages(buffer, start, *of_line, Span(header, payload), Span(payload, end))


_NO_FRAMES: bytecolumns.Positions = np.empty((10, 0), np.int64)
_NOTHING = _messages(np.empty(0, np.uint8), _NO_FRAMES)


class _Scan:
    """One pass over one chunk; after :meth:`run`, everything before ``position`` is decoded."""

    def __init__(self, chunk: bytes, max_line: int, max_message: int) -> None:
        self.chunk = chunk
        self.buffer: bytecolumns.Bytes = np.frombuffer(chunk, np.uint8)
        self.max_line = max_line
        self.max_message = max_message
        self.position = 0
        self.needed = 1
        self.controls: list[tuple[int, Control]] = []
        self._tables: list[bytecolumns.Positions] = []
        self._rows: list[tuple[int, ...]] = []  # frames after those of the tables
        self._count = 0

    def run(self) -> None:
        """Decode all complete frames."""
        guess: _Guess | None = None
        if len(self.chunk) > SMALL:
            self._take_alike_frames()
        while (rest := len(self.chunk) - self.position) > 0:
            if guess is None and rest > SMALL:
                guess = _Guess(self.buffer, self.max_line, self.max_message)
            if guess is not None and (frames := guess.good_frames_from(self.position)).shape[1]:
                self._add_frames(frames)
            elif not self._take_frame_or_line():
                break

    def _take_alike_frames(self) -> None:
        """Take the first frame and all that directly follow it with its layout, if most frames may have it.

        In such a frame each part is as long as in the first one, the subject and the reply have no white space, and
        all other bytes outside the payload are the same. So the grammar finds each part at the same place.
        """
        if not self._take_frame_or_line() or not self._rows:
            return
        _, subject, subject_end, _, _, reply, reply_end, header, _, end = frame = self._rows[0]
        size = self.position
        grid = self.buffer[: len(self.chunk) // size * size].reshape(-1, size)
        alike = len(grid)
        if (grid[:: alike // _SAMPLES + 1, :subject] != grid[0, :subject]).any():
            self.position = self._count = 0  # the guess takes the first frame together with the others
            self._rows.clear()
            return
        names = (subject, subject_end), (reply, reply_end)
        for first, last in (*names, (0, subject), (subject_end, reply), (reply_end, header), (end, size)):
            part = grid[:alike, first:last]
            odd = np.flatnonzero(part <= _SPACE if (first, last) in names else part != part[:1])
            alike = int(odd[0]) // (last - first) if len(odd) else alike
        if alike > 1:
            self._add_frames(np.array(frame)[:, np.newaxis] + size * np.arange(1, alike))

    def messages(self) -> Messages:
        self._move_rows_to_table()
        if not self._tables:
            return _NOTHING
        return _messages(self.buffer, self._tables[0] if len(self._tables) == 1 else np.concatenate(self._tables, 1))

    def _move_rows_to_table(self) -> None:
        if self._rows:
            self._tables.append(np.ascontiguousarray(np.array(self._rows, np.int64).T))
            self._rows = []

    def _add_frames(self, frames: bytecolumns.Positions) -> None:
        self._move_rows_to_table()
        self._tables.append(frames)
        self._count += frames.shape[1]
        self.position = int(frames[-1, -1]) + 2

    def _take_frame_or_line(self) -> bool:
        """Take one frame or control line by the grammar; return False when it is not complete yet."""
        start = self.position
        available = len(self.chunk) - start
        eol = self.chunk.find(b"\r\n", start, start + self.max_line + 2)
        if eol < 0:
            if available >= self.max_line + 2:  # a line of just max_line bytes may still lack its LF
                raise ProtocolError(
                    f"a control line is longer than {self.max_line} bytes and begins with "
                    f"{_excerpt(self.chunk[start : start + 40])}"
                )
            self.needed = available + 1
            return False
        if found := _MESSAGE_LINE.fullmatch(self.chunk, start, eol):
            header_size, total = 0, self._checked_size(found, 4)
        elif found := _HEADER_LINE.fullmatch(self.chunk, start, eol):
            header_size, total = self._checked_size(found, 4), self._checked_size(found, 5)
        elif found := _CONTROL_LINE.fullmatch(self.chunk, start, eol):
            argument = (found[2] or b"").rstrip(b" \t")
            self.controls.append((self._count, Control(Op(found[1].decode().upper()), argument)))
            self.position = eol + 2
            return True
        else:
            raise ProtocolError(f"not a line of the NATS protocol: {_excerpt(self.chunk[start:eol])}")
        header = eol + 2
        end = header + total
        if header_size > total:
            line = _excerpt(self.chunk[start:eol])
            raise ProtocolError(f"a header of {header_size} bytes in a message of {total}: {line}")
        if end + 2 > len(self.chunk):
            self.needed = end + 2 - start
            return False
        if self.chunk[end : end + 2] != b"\r\n":
            raise ProtocolError(f"no CRLF after the {total} bytes of the message {_excerpt(self.chunk[start:eol])}")
        reply = found.span(3) if found[3] is not None else (eol, eol)
        self._rows.append((start, *found.span(1), *found.span(2), *reply, header, header + header_size, end))
        self._count += 1
        self.position = end + 2
        return True

    def _checked_size(self, found: re.Match[bytes], group: int) -> int:
        # Compared as text first: Python refuses to convert thousands of digits.
        digits = found[group].lstrip(b"0")
        if len(digits) > len(str(self.max_message)) or int(digits or b"0") > self.max_message:
            raise ProtocolError(f"a message larger than {self.max_message} bytes was announced: {_excerpt(found[0])}")
        return int(digits or b"0")


class _Guess:
    """The places in a chunk that look like messages, parsed but not yet verified.

    The cheap checks come first, for every line that looks like a message's: it ends in a size, and a CRLF stands where
    the frame would end. A candidate inside the frame of an earlier one is dropped too. So a payload full of lines
    that look like messages costs little more than any other, and only the remaining candidates are parsed in full.
    """

    def __init__(self, buffer: bytecolumns.Bytes, max_line: int, max_message: int) -> None:
        # The remaining candidates: their starts, whether their whole lines are valid, and their columns; and the
        # indexes of those that are not valid, or that the next candidate does not directly follow.
        self._start: bytecolumns.Positions = bytecolumns.NO_POSITIONS
        self._good: bytecolumns.Mask = np.empty(0, np.bool_)
        self._table: bytecolumns.Positions = _NO_FRAMES
        self._stops: bytecolumns.Positions = bytecolumns.NO_POSITIONS
        # A line begins after each LF and ends before the next.
        feeds = np.concatenate([_BEFORE_FIRST, bytecolumns.true_positions(buffer == _LF)])
        chosen = np.flatnonzero(np.diff(feeds) >= _MIN_LINE + 2)
        if len(chosen) == 0:
            return
        start, line_end = feeds[chosen] + 1, feeds[chosen + 1] - 1  # the latter is where its CR should be
        words = np.ndarray((len(buffer) - 3,), "<u4", buffer, 0, (1,))[start] | _FOUR_LETTERS
        chosen = np.flatnonzero(((words == _MSG) | (words == _HMSG)) & (buffer[line_end] == _CR))
        start, line_end, has_header = start[chosen], line_end[chosen], words[chosen] == _HMSG

        total, digits = bytecolumns.parse_last_eight_digits(buffer, line_end)
        end = line_end + 2 + total
        possible = (digits > 0) & (total <= max_message) & (end + 2 <= len(buffer)) & (line_end - start <= max_line)
        after = np.where(possible, end, 0)
        possible &= (buffer[after] == _CR) & (buffer[after + 1] == _LF)
        reached = np.maximum.accumulate(np.where(possible, end + 2, 0))
        possible[1:] &= start[1:] >= reached[:-1]
        chosen = np.flatnonzero(possible)
        if len(chosen):
            self._start = start[chosen]
            self._parse(buffer, line_end[chosen], has_header[chosen], digits[chosen], end[chosen])

    def _parse(
        self,
        buffer: bytecolumns.Bytes,
        line_end: bytecolumns.Positions,
        has_header: bytecolumns.Mask,
        digits: bytecolumns.Positions,
        end: bytecolumns.Positions,
    ) -> None:
        start = self._start
        lines, offsets = bytecolumns.bytes_and_offsets_of(bytecolumns.gather(buffer, start, line_end))
        fields = bytecolumns.find_separators((lines == _SPACE) | (lines == _TAB), offsets)
        has_reply = fields.per_row - 3 - has_header
        operation_end, subject_end, sid_end = fields.positions_of(0), fields.positions_of(1), fields.positions_of(2)
        last = fields.positions_of(fields.per_row - 1)
        good = (
            ((has_reply == 0) | (has_reply == 1))
            & (operation_end - offsets[:-1] == 3 + has_header)
            & (offsets[1:] - last - 1 == digits)
        )
        doubled = np.flatnonzero(np.diff(fields.position) == 1)
        if len(doubled):  # two separators in a row: an empty field, which is left to the grammar
            good[np.searchsorted(offsets[1:], fields.position[doubled + 1], "right")] = False
        first_byte = line_end + 2
        payload = first_byte
        if has_header.any():
            header, is_number = bytecolumns.parse_ints(lines, fields.positions_of(fields.per_row - 2) + 1, last)
            payload = first_byte + np.where(has_header, header, 0)
            good &= ~has_header | (is_number & (last - fields.positions_of(fields.per_row - 2) <= _MAX_SIZE_DIGITS))
            good &= payload <= end

        shift = start - offsets[:-1]  # from a position in the packed lines to one in the chunk
        self._good = good
        self._table = np.stack(
            [
                start,
                operation_end + 1 + shift,
                subject_end + shift,
                subject_end + 1 + shift,
                sid_end + shift,
                sid_end + has_reply + shift,
                fields.positions_of(2 + has_reply) + shift,
                first_byte,
                payload,
                end,
            ]
        )
        # A frame is linked to the next, good or not, when it is good itself and ends where the next one begins.
        linked = good[:-1] & (end[:-1] + 2 == start[1:])
        self._stops = np.append(np.flatnonzero(~linked), len(start) - 1)

    def good_frames_from(self, position: int) -> bytecolumns.Positions:
        """Return the unbroken run of good frames that begins at ``position``; may be empty."""
        first = int(np.searchsorted(self._start, position))
        if first == len(self._start) or self._start[first] != position:
            return _NO_FRAMES
        stop = int(self._stops[np.searchsorted(self._stops, first)])
        frames: bytecolumns.Positions = self._table[:, first : stop + int(self._good[stop])]
        return frames


def _excerpt(data: bytes) -> str:
    """Return the beginning of what a server sent, safe to print."""
    # Short enough to leave out a password, should a peer send our own CONNECT back.
    return repr(data[:60])[1:] + ("…" if len(data) > 60 else "")
