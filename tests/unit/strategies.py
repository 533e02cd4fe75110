"""Hypothesis strategies for what may stand on the wire, and helpers to cut it into chunks."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np
from hypothesis import strategies as st

from spark_nats.protocol.bytecolumns import Positions
from tests.unit.reference import ControlLine, Message

CRLF = b"\r\n"


class Sequences:
    """Messages that have arrived, of which only the sequences matter."""

    def __init__(self, sequences: list[int]) -> None:
        self.sequences = sequences

    def __len__(self) -> int:
        return len(self.sequences)

    def stream_sequences(self) -> Positions:
        return np.array(self.sequences, np.int64)


# Subjects and names

_SUBJECT_CHARACTERS = st.one_of(
    st.sampled_from("abcFOO019_-$/"),
    st.characters(min_codepoint=0x21, exclude_categories=["Cs", "Cc"], exclude_characters=".*>"),
)
tokens = st.text(_SUBJECT_CHARACTERS, min_size=1, max_size=6)
subjects = st.lists(tokens, min_size=1, max_size=4).map(".".join)
wire_fields = st.one_of(
    subjects.map(str.encode),
    # What no server sends, but the grammar lets pass: any bytes that neither separate fields nor end the line.
    st.binary(min_size=1, max_size=8).filter(lambda field: not set(field) & set(b" \t\r\n")),
)
sids = st.one_of(st.integers(0, 2**63 - 1).map(lambda n: b"%d" % n), st.sampled_from([b"1", b"44", b"RSID:1:1", b"a"]))

# Headers

_NAME_CHARACTERS = st.characters(min_codepoint=33, max_codepoint=126, exclude_characters=":")
header_names = st.one_of(
    st.sampled_from(["Bar", "bar", "BAR", "Nats-Msg-Id", "BREAKFAST"]),
    st.text(_NAME_CHARACTERS, min_size=1, max_size=6),
)
header_values = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\n"), max_size=10).map(
    lambda value: value.strip(" \t")
)


def block_of(lines: list[tuple[str, str]], status: str = "") -> bytes:
    text = "".join(f"{name}: {value}\r\n" for name, value in lines)
    return f"NATS/1.0{status}\r\n{text}\r\n".encode()


header_blocks = st.builds(
    block_of,
    st.lists(st.tuples(header_names, header_values), max_size=4),
    st.sampled_from(["", "", "", " 503", " 404 No Messages"]),
)

# Payloads

_DECEPTIVE = [
    b"\r\nMSG a 1 5\r\n",
    b"\r\nMSG a 1 0\r\n\r\n",
    b"\r\nHMSG a 1 12 12\r\nNATS/1.0\r\n\r\n\r\n",
    b"MSG a 1 3\r\nabc\r\n",
    b"\r\nMSG a 1 999999\r\n",
    b"\r\nPING\r\n",
    b"\r\n-ERR 'x'\r\n",
    b"\r\nMSG foo",
    b"\r\nMS",
    b"\r\n",
    b"\r\n\r\n\r\n",
    b"\r",
    b"\n",
    b"\nMSG a 1 0\r",
]
payloads = st.one_of(
    st.binary(max_size=30),
    st.lists(st.one_of(st.sampled_from(_DECEPTIVE), st.binary(max_size=4)), max_size=5).map(b"".join),
)

# Frames: what is meant, and the bytes that say it


class Frame(NamedTuple):
    wire: bytes
    message: Message | None = None
    control: tuple[str, bytes] | None = None


separators = st.sampled_from([b" "] * 12 + [b"\t", b"  ", b" \t ", b"\t\t\t"])
endings = st.sampled_from([b""] * 8 + [b" ", b"\t "])
paddings = st.sampled_from([b""] * 10 + [b"0", b"0" * 30])


@st.composite
def any_case(draw: st.DrawFn, word: bytes) -> bytes:
    how = draw(st.sampled_from([bytes.upper] * 4 + [bytes.lower, bytes.title, bytes.swapcase]))
    return how(word)


@st.composite
def message_frames(draw: st.DrawFn) -> Frame:
    subject, sid, payload = draw(wire_fields), draw(sids), draw(payloads)
    reply = draw(st.one_of(st.just(b""), wire_fields))
    header = draw(st.one_of(st.just(b""), header_blocks))
    padding = draw(paddings)
    fields = [draw(any_case(b"HMSG" if header else b"MSG")), subject, sid]
    if reply:
        fields.append(reply)
    if header:
        fields.append(b"%b%d" % (padding, len(header)))
    fields.append(b"%b%d" % (padding, len(header) + len(payload)))
    line = fields[0] + b"".join(draw(separators) + part for part in fields[1:]) + draw(endings)
    return Frame(line + CRLF + header + payload + CRLF, message=Message(subject, sid, reply, header, payload))


_ARGUMENTS = {
    b"PING": st.just(b""),
    b"PONG": st.just(b""),
    b"+OK": st.just(b""),
    b"INFO": st.sampled_from([b"{}", b'{"server_id":"x","port":4222}', b'{"a": "b  c"}']),
    b"-ERR": st.sampled_from([b"'Stale Connection'", b"'Invalid Subject'", b"'a\tb  c'", b""]),
}


@st.composite
def control_frames(draw: st.DrawFn) -> Frame:
    op = draw(st.sampled_from(sorted(_ARGUMENTS)))
    argument = draw(_ARGUMENTS[op])
    line = draw(any_case(op)) + (draw(separators) + argument if argument else b"") + draw(endings)
    return Frame(line + CRLF, control=(op.decode(), argument))


streams = st.lists(st.one_of(message_frames(), message_frames(), message_frames(), control_frames()), max_size=7)


def meaning_of(frames: list[Frame]) -> tuple[list[Message], list[ControlLine]]:
    messages: list[Message] = []
    controls: list[ControlLine] = []
    for frame in frames:
        if frame.message is not None:
            messages.append(frame.message)
        else:
            controls.append(ControlLine(len(messages), *frame.control))
    return messages, controls


# Chunks


def cut(data: bytes, at: list[int]) -> list[bytes]:
    bounds = [0, *sorted({position % (len(data) + 1) for position in at}), len(data)]
    return [data[start:end] for start, end in pairwise(bounds)]


def one_by_one(data: bytes) -> list[bytes]:
    return [data[i : i + 1] for i in range(len(data))]


cuts = st.one_of(
    st.just([]),
    st.lists(st.integers(0, 10_000), max_size=6),
    st.just(list(range(10_000))),  # one byte at a time
)
