"""The protocol, read as slowly and plainly as it can be: what the fast decoder and encoder are held against.

Written from the protocol's grammar alone, one line at a time, with bytes methods only. Nothing is imported from
``spark_nats``, so no mistake can be in both for the same reason.

Decisions where the pages are silent, taken from what the server and its clients do:

* fields end at a space, a tab or the line's CRLF; every other byte, a lone CR or LF too, belongs to a field;
* a line begins with its operation, without white space before it; white space at its end counts for nothing;
* what follows PING, PONG or +OK on their line is kept and harmless, as it is to the server's own parser;
* zeros may lead a size;
* a line is judged when its CRLF has come, a message when its last two bytes have come.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from spark_nats.protocol.subject_columns import Violation

CRLF = b"\r\n"


class Message(NamedTuple):
    subject: bytes
    sid: bytes
    reply: bytes
    header: bytes
    payload: bytes


class ControlLine(NamedTuple):
    """A control line and how many messages came before it."""

    before: int
    op: str
    argument: bytes


class Publication(NamedTuple):
    subject: bytes
    reply: bytes | None
    header: bytes | None
    payload: bytes


class Malformed(Exception):
    """The bytes are not the protocol."""


@dataclass
class Stream:
    """What a stream of bytes from a server says.

    ``error`` tells why reading stopped before the end, ``rest`` how many bytes are not judged yet.
    """

    messages: list[Message] = field(default_factory=list)
    controls: list[ControlLine] = field(default_factory=list)
    error: str | None = None
    rest: int = 0


def fields_of(line: bytes) -> list[bytes]:
    if line[:1] in (b" ", b"\t"):
        raise Malformed("white space before the operation")
    return [part for part in line.replace(b"\t", b" ").split(b" ") if part]


def size_of(digits: bytes, largest: int) -> int:
    if not digits.isdigit():
        raise Malformed("a size that is no number")
    digits = digits.lstrip(b"0") or b"0"
    if len(digits) > 20 or int(digits) > largest:
        raise Malformed("a message that is too large")
    return int(digits)


def argument_of(line: bytes, op: bytes) -> bytes:
    return line[len(op) :].strip(b" \t")


def read_server_stream(data: bytes, max_line: int = 65536, max_message: int = 1 << 26) -> Stream:
    """Read what a server sent to a client."""
    result = Stream()
    at = 0
    try:
        while at < len(data):
            eol = data.find(CRLF, at)
            if eol < 0 and len(data) - at < max_line + 2:
                break
            if eol < 0 or eol - at > max_line:
                raise Malformed("a line that is too long")
            line = data[at:eol]
            parts = fields_of(line)
            op = parts[0].upper() if parts else b""
            if op in (b"MSG", b"HMSG"):
                sizes = 1 if op == b"MSG" else 2
                if len(parts) - sizes not in (3, 4):
                    raise Malformed("a message line with too few or too many fields")
                numbers = [size_of(part, max_message) for part in parts[-sizes:]]
                total, header_size = numbers[-1], numbers[0] if op == b"HMSG" else 0
                if header_size > total:
                    raise Malformed("a header larger than its message")
                body = eol + 2
                if len(data) < body + total + 2:
                    break
                if data[body + total : body + total + 2] != CRLF:
                    raise Malformed("a message that does not end in CRLF")
                reply = parts[3] if len(parts) - sizes == 4 else b""
                header, payload = data[body : body + header_size], data[body + header_size : body + total]
                result.messages.append(Message(parts[1], parts[2], reply, header, payload))
                at = body + total + 2
            elif op in (b"INFO", b"PING", b"PONG", b"+OK", b"-ERR"):
                result.controls.append(ControlLine(len(result.messages), op.decode(), argument_of(line, op)))
                at = eol + 2
            else:
                raise Malformed("an unknown operation")
    except Malformed as error:
        result.error = str(error)
    result.rest = len(data) - at
    return result


def read_client_stream(data: bytes) -> list[Publication | tuple[bytes, ...]]:
    """Read what a client sent to a server: publications, and any other line as its fields.

    Raises:
        Malformed: it is not the protocol, or its last part is missing.
    """
    found: list[Publication | tuple[bytes, ...]] = []
    at = 0
    while at < len(data):
        eol = data.find(CRLF, at)
        if eol < 0:
            raise Malformed("a line without CRLF")
        line = data[at:eol]
        at = eol + 2
        parts = fields_of(line)
        op = parts[0].upper() if parts else b""
        if op in (b"PUB", b"HPUB"):
            sizes = 1 if op == b"PUB" else 2
            if len(parts) - sizes not in (2, 3):
                raise Malformed("a publication with too few or too many fields")
            numbers = [size_of(part, 1 << 26) for part in parts[-sizes:]]
            total = numbers[-1]
            if numbers[0] > total:
                raise Malformed("a header larger than its message")
            body, at = data[at : at + total], at + total + 2
            if data[at - 2 : at] != CRLF:
                raise Malformed("a publication that does not end in CRLF")
            reply = parts[2] if len(parts) - sizes == 3 else None
            header = body[: numbers[0]] if op == b"HPUB" else None
            found.append(Publication(parts[1], reply, header, body[len(header or b"") :]))
        elif op == b"CONNECT":
            found.append((op, argument_of(line, op)))
        elif op in (b"SUB", b"UNSUB", b"PING", b"PONG"):
            if len(parts) not in {b"SUB": (3, 4), b"UNSUB": (2, 3), b"PING": (1,), b"PONG": (1,)}[op]:
                raise Malformed("too few or too many fields")
            found.append((op, *parts[1:]))
        else:
            raise Malformed("an unknown operation")
    return found


def headers_of(block: bytes) -> tuple[dict[str, list[str]], int]:
    """Read a header block: its names and values, and how many lines were neither.

    The first line is the version. Every line ends in CRLF; what stands after the last CRLF is no line.
    """
    *lines, unfinished = block.split(CRLF)
    headers: dict[str, list[str]] = {}
    malformed = 1 if unfinished else 0
    for line in lines[1:]:
        name, colon, value = line.partition(b":")
        if name and colon:
            key = name.decode("utf-8", "replace")
            headers.setdefault(key, []).append(value.strip(b" \t").decode("utf-8", "replace"))
        elif line:
            malformed += 1
    return headers, malformed


def subject_matches(wanted: list[str], tokens: list[str]) -> bool:
    """Match the tokens of a filter with those of a subject, one token at a time."""
    if not wanted or not tokens:
        return not wanted and not tokens
    if wanted[0] == ">":
        return True
    return wanted[0] in ("*", tokens[0]) and subject_matches(wanted[1:], tokens[1:])


def broken(violation: Violation | None) -> dict[int, str]:
    """Which rows of a column break a rule, and which rule each of them breaks."""
    if violation is None:
        return {}
    rows = violation.wrong.nonzero()[0].tolist()
    assert (violation.row, violation.rule) == (rows[0], violation.say(rows[0]))
    return {row: violation.say(row) for row in rows}
