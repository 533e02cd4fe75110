"""The readers of a stream that are held against each other: our decoder and nats-py's parser."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from nats.protocol.parser import Parser

from spark_nats.errors import ProtocolError
from spark_nats.protocol.decoder import Decoder
from spark_nats.protocol.messages import Messages
from tests.unit.reference import ControlLine, Message, Stream


def messages_of(messages: Messages) -> list[Message]:
    parts = (messages.subject, messages.sid, messages.reply, messages.header, messages.payload)
    columns = [messages.gather(part).to_pylist() for part in parts]
    return [Message(*row) for row in zip(*columns, strict=True)]


def decode(chunks: Iterable[bytes], **limits: int) -> Stream:
    decoder = Decoder(**limits)
    result = Stream()
    for chunk in chunks:
        try:
            decoded = decoder.feed(chunk)
        except ProtocolError as error:
            result.error = str(error)
            break
        before = len(result.messages)
        result.controls += [ControlLine(before + i, c.op.value, c.argument) for i, c in decoded.controls]
        result.messages += messages_of(decoded.messages)
    return result


class NatsPyClient:
    """Takes the place of nats-py's client and notes what its parser reports."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.controls: list[tuple[int, str]] = []

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, header: bytes | None) -> None:
        self.messages.append(Message(bytes(subject), b"%d" % sid, bytes(reply), header or b"", data))

    async def _process_ping(self) -> None:
        self.controls.append((len(self.messages), "PING"))

    async def _process_pong(self) -> None:
        self.controls.append((len(self.messages), "PONG"))

    async def _process_info(self, info: dict[str, Any]) -> None:
        self.controls.append((len(self.messages), "INFO"))

    async def _process_err(self, text: str) -> None:
        self.controls.append((len(self.messages), "-ERR"))


def read_with_nats_py(chunks: Iterable[bytes]) -> NatsPyClient:
    """Feed nats-py's parser.

    It is held to what it supports: operations in capitals, numeric sids (it converts them to int), no white space
    after the last field, ``-ERR`` with a quoted text, fields without the ASCII white space that its ``\\s`` knows
    (vertical tab, form feed) and control lines within its 4096 bytes. It skips ``+OK`` without a call, and it does
    not look at the CRLF after a payload, so broken streams are not compared.
    """
    client = NatsPyClient()
    parser = Parser(client)
    for chunk in chunks:
        try:
            parser.parse(chunk).send(None)  # it waits for nothing, so it runs to its end
        except StopIteration:
            continue
        raise AssertionError("nats-py's parser waits for something")
    return client
