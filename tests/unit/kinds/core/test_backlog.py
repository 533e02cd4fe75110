"""What was received of core NATS: kept by count of messages, cut anywhere, and nothing lost or changed by it."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate, chain

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import LongType, StructType

from spark_nats.kinds.core.backlog import PIECE_OVERHEAD, Backlog, Piece, cut_into_partitions
from spark_nats.kinds.core.read import NatsCoreStreamReader, WireSlice
from spark_nats.kinds.core.spool import Spool
from spark_nats.kinds.queries import parse_read_options
from spark_nats.protocol.decoder import Decoder, frame_ends
from tests.unit.strategies import control_frames, message_frames


@st.composite
def pieces(draw: st.DrawFn) -> list[Piece]:
    """Readings of a socket, each with some messages and the control lines before them."""
    found = []
    for received in range(draw(st.integers(0, 6))):
        frames = draw(st.lists(message_frames(), min_size=1, max_size=5))
        controls = draw(st.lists(control_frames(), max_size=2))
        wire = b"".join(frame.wire for frame in [*frames[:1], *controls, *frames[1:]])
        if draw(st.booleans()):
            wire = b"PING\r\n" + wire
        found.append(Piece(wire, len(frames), received))
    return found


def rows(parts: Iterable[Piece]) -> list[tuple[bytes, bytes, bytes, int]]:
    """Every message, and when it was received."""
    found = []
    for part in parts:
        messages = Decoder().feed(part.wire).messages
        assert len(messages) == part.messages
        for i in range(len(messages)):
            found.append((messages.subject_at(i), messages.header_at(i), messages.payload_at(i), part.received))
    return found


def messages_of(part: list[Piece]) -> int:
    return sum(piece.messages for piece in part)


@settings(max_examples=40)
@given(pieces(), st.integers(1, 12), st.integers(1, 400))
def test_partitions_hold_every_message_once_and_in_order(parts: list[Piece], minimum: int, max_bytes: int) -> None:
    slices = cut_into_partitions(parts, minimum, max_bytes)
    assert rows(chain.from_iterable(slices)) == rows(parts)
    assert len(slices) >= min(minimum, messages_of(parts))
    largest = max((len(part.wire) for part in parts), default=0)
    assert all(sum(len(piece.wire) for piece in each) <= max(max_bytes, largest) for each in slices)
    assert all(map(messages_of, slices))
    reader = NatsCoreStreamReader(
        parse_read_options({"subject": ">"}, streaming=True), StructType().add("timestamp", LongType())
    )
    read = [batch for each in slices for batch in reader.read(WireSlice.of(each))]
    assert [time for batch in read for time in batch.column(0).to_pylist()] == [row[-1] for row in rows(parts)]


def test_a_partition_is_as_large_as_it_may_be_after_an_even_cut() -> None:
    wire = message(b"x")
    parts = [Piece(4 * wire, 4, 0), Piece(wire, 1, 1), Piece(wire, 1, 2)]
    assert [*map(messages_of, cut_into_partitions(parts, 2, 4 * len(wire)))] == [3, 3]


@settings(max_examples=40)
@given(pieces(), st.data())
def test_a_backlog_gives_any_range_again_until_it_is_released(parts: list[Piece], data: st.DataObject) -> None:
    backlog = Backlog(1 << 20)
    for part in parts:
        backlog.add_or_drop(part)
    everything = rows(parts)
    assert backlog.end == len(everything)
    start = 0
    while start < backlog.end:
        end = data.draw(st.integers(start + 1, backlog.end))
        assert rows(backlog.get_and_mark_taken(start, end)) == everything[start:end]
        assert rows(backlog.get_and_mark_taken(start, end)) == everything[start:end]
        if data.draw(st.booleans()):
            backlog.release(end)
        start = end
    assert backlog.get_and_mark_taken(start, start) == []
    assert not backlog.take_losses("a")


@settings(max_examples=40)
@given(pieces(), st.integers(1, 400), st.data())
def test_a_backlog_says_how_many_messages_have_so_many_bytes(
    parts: list[Piece], most: int, data: st.DataObject
) -> None:
    backlog = Backlog(1 << 20)
    for part in parts:
        backlog.add_or_drop(part)

    def size(start: int, end: int) -> int:
        return sum(len(piece.wire) for piece in backlog.get_and_mark_taken(start, end))

    start = 0
    while start < backlog.end:
        end = backlog.end_within(start, most)
        assert start < end <= backlog.end
        assert size(start, end) <= most or end == start + 1
        assert end == backlog.end or size(start, end + 1) > most
        start = data.draw(st.integers(start + 1, end))


@settings(max_examples=40)
@given(pieces(), st.integers(1, 3000), st.data())
def test_a_backlog_drops_the_newest_and_counts_them(parts: list[Piece], limit: int, data: st.DataObject) -> None:
    backlog = Backlog(limit)
    kept, dropped, taken = [], 0, 0
    for part in parts:
        before = backlog.end
        backlog.add_or_drop(part)
        added = backlog.end - before
        kept += rows([part])[:added]
        dropped += part.messages - added
        if added < part.messages:  # there was no room for one more
            waiting = sum(piece.size for piece in backlog.get_and_mark_taken(taken, backlog.end))
            taken = backlog.end
            next_end = int(frame_ends(part.wire)[added]) - (int(frame_ends(part.wire)[added - 1]) if added else 0)
            assert waiting <= limit < waiting + next_end + PIECE_OVERHEAD
    assert rows(backlog.get_and_mark_taken(0, backlog.end)) == kept
    losses = backlog.take_losses("a")
    if dropped:
        (loss,) = losses
        assert loss.condition == "NATS_MESSAGES_DROPPED"
        assert loss.parameters["messages"] == dropped
        assert loss.parameters["bytes"] == limit
    else:
        assert losses == []
    assert not backlog.take_losses("a")


def message(payload: bytes) -> bytes:
    return b"MSG a 1 %d\r\n%b\r\n" % (len(payload), payload)


def test_what_was_taken_waits_no_longer() -> None:
    size = len(message(b"x" * 100)) + PIECE_OVERHEAD
    backlog = Backlog(2 * size)
    for _ in range(5):
        backlog.add_or_drop(Piece(message(b"x" * 100), 1, 0))
        backlog.add_or_drop(Piece(message(b"y" * 100), 1, 0))
        backlog.get_and_mark_taken(backlog.end - 2, backlog.end)
    assert backlog.end == 10
    assert not backlog.take_losses("a")


def test_frames_end_where_the_next_ones_begin() -> None:
    frames = [message(b""), message(b"\r\nMSG a 1 1\r\n"), b"HMSG a 1 12 12\r\nNATS/1.0\r\n\r\n\r\n", message(b"x")]
    assert frame_ends(b"PING\r\n" + b"".join(frames)).tolist() == [6 + end for end in accumulate(map(len, frames))]
    assert len(Decoder().feed(b"".join(frames)).messages) == 4


@settings(max_examples=25)
@given(parts=pieces().filter(bool))
def test_a_spool_gives_back_what_it_was_given(tmp_path_factory: pytest.TempPathFactory, parts: list[Piece]) -> None:
    location = tmp_path_factory.mktemp("spool")
    for spool in (Spool(str(location / "a b")), Spool(location.as_uri() + "/c")):
        spool.write("e", 7, parts)
        spool.write("e", 9, parts[:1])
        assert spool.read_micro_batch("e", 7) == parts
        assert spool.read_micro_batch("e", 8) is None
        assert spool.read_micro_batch("other", 7) is None
        spool.remove("e", 7)
        assert spool.read_micro_batch("e", 7) is None
        assert spool.read_micro_batch("e", 9) == parts[:1]
        spool.remove("e")
        spool.remove("e")
        spool.remove("other", 5)
        assert spool.read_micro_batch("e", 9) is None
