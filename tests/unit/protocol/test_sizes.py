"""How large messages are whose payloads the server has left out."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_nats.errors import ProtocolError
from spark_nats.protocol.decoder import Decoder
from spark_nats.protocol.messages import Messages
from tests.unit.strategies import header_blocks, wire_fields

stored = st.tuples(
    wire_fields,
    st.one_of(st.just(b""), header_blocks.filter(lambda block: len(block) > 12)),
    st.one_of(st.integers(0, 2000), st.sampled_from([0, 9, 10, 99_999, 64 << 20])),
)


def delivered(*rows: tuple[bytes, bytes]) -> Messages:
    """Messages of subjects and header blocks, without payloads."""
    wire = [b"HMSG %b 1 %d %d\r\n%b\r\n" % (subject, len(block), len(block), block) for subject, block in rows]
    return Decoder().feed(b"".join(wire)).messages


def without_payload(header: bytes, size: int) -> bytes:
    return b"%bNats-Msg-Size: %d\r\n\r\n" % (header[:-2] or b"NATS/1.0\r\n", size)


@settings(max_examples=100)
@given(st.lists(stored, min_size=1, max_size=6))
def test_the_size_of_a_message_is_that_with_its_payload(rows: list[tuple[bytes, bytes, int]]) -> None:
    messages = delivered(*((subject, without_payload(header, size)) for subject, header, size in rows))
    assert messages.announced_full_sizes().tolist() == [len(s) + len(header) + size for s, header, size in rows]


@pytest.mark.parametrize("block", [b"", b"NATS/1.0\r\n\r\n", b"NATS/1.0\r\nNats-Msg-Size: many\r\n\r\n"])
def test_a_message_that_does_not_say_it_is_refused(block: bytes) -> None:
    messages = delivered((b"a", without_payload(b"", 7)), (b"a", block))
    with pytest.raises(ProtocolError, match="without saying how large they are"):
        messages.announced_full_sizes()
