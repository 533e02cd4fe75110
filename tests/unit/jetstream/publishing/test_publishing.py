"""Publishing to a stream that drops rows, or answers, while others pass over the same connection."""

from __future__ import annotations

import base64
import json
import logging
import re
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum, auto
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from spark_nats import clock
from spark_nats.client.pool import leased
from spark_nats.conditions import Topic
from spark_nats.errors import PermissionsError, PublishError
from spark_nats.jetstream import JetStream, Publisher
from spark_nats.jetstream.publishing import decide, flight, recovery
from spark_nats.jetstream.reading.stored import StoredIds
from spark_nats.jetstream.views import ask_stream_info
from spark_nats.protocol.bytecolumns import byte_strings
from spark_nats.protocol.documents import format_time, time_at
from spark_nats.protocol.headers import MSG_ID, wrap_lines_into_blocks
from tests.connections import options_for, publisher_for, retries_for
from tests.scripted_server import INFO, Peer, api_answer, scripted_server


class Fate(Enum):
    """What becomes of a message when it comes for the first time."""

    STORED = auto()
    TWICE = auto()
    """It is stored, and answered twice: two servers hold themselves for its leader."""
    UNHEARD = auto()
    """It is stored, and its answer is lost."""
    DROPPED = auto()
    """It is not stored, and not answered: its leader steps down."""
    AWAY = auto()
    """It is not stored: nobody answers for the stream."""
    ANSWERED_FOR = auto()
    """It is stored, and somebody else answers before the stream does."""
    ANSWERED_INSTEAD = auto()
    """It is stored, and somebody else answers, but the stream does not."""
    STUCK = auto()
    """The same, and its id is in process the next two times."""


AWAY = b"NATS/1.0 503\r\n\r\n"
IN_PROCESS = b'{"error":{"code":409,"err_code":10158,"description":"duplicate message id is in process"},"stream":"S"}'
Fates = list[tuple[Fate, int]]


class Stream:
    """A stream as a client sees it, whose messages meet these fates, one after the other, and are stored then."""

    def __init__(
        self,
        fates: Fates,
        stuck: int = 2,
        released: Callable[[], bool] | None = None,
        window: float = 120.0,
        known: int = 0,
        cut_after: int | None = None,
        stale_after: int | None = None,
        lame_after: int | None = None,
    ) -> None:
        self._fates = iter([fate for fate, count in fates for _ in range(count)])
        self._stuck: dict[str, int] = {}
        self._repeats = stuck
        self._released = released  # until when ids are in process, if that does not depend on how often they come
        self._window = window
        self.stored: list[str] = [str(i) for i in range(known)]
        self._sequences: dict[str, int] = {row: i for i, row in enumerate(self.stored, 1)}
        self._cut_after = cut_after  # messages behind which the next one is not taken any more
        self._stale_after = stale_after  # messages that are answered before the client is taken for gone
        self._lame_after = lame_after  # messages with whose answers the server says that it shuts down
        self.left = threading.Event()  # and its connection was closed
        self.leader = ""
        self.clock: str | None = None
        self.led_at: float | None = None  # when the leader began to lead, by our clock
        self.old = 0
        self.counts: Counter[Fate] = Counter()

    def lose(self, keep: int, others: int = 0) -> None:
        """Forget all but the first messages, as with an older store; then others write."""
        self.old = keep
        self.stored[keep:] = [f"another's {i}" for i in range(others)]
        self._sequences = {row: i for i, row in enumerate(self.stored, 1)}

    def ids_behind(self, sequence: int) -> StoredIds:
        """What is found by reading it."""
        return StoredIds(byte_strings([row.encode() for row in self.stored[sequence:]]), "")

    def serve(self, peer: Peer) -> None:
        for request in peer.requests():
            if request.subject.startswith(b"$JS.API.STREAM.INFO"):
                answers = [(b"", self._info())]
            elif request.subject.startswith(b"$JS.API.STREAM.MSG.GET"):
                answers = [(b"", self._message(json.loads(request.payload)["seq"]))]
            elif self._cut_after == 0:
                self._cut_after = None
                peer.flush()
                peer.connection.shutdown(socket.SHUT_WR)
                peer.wait_for_close()
                return
            else:
                self._cut_after = None if self._cut_after is None else self._cut_after - 1
                answers = self._take(request.payload.decode(), bool(request.header))
            if self._lame_after == len(self.stored):
                self._lame_after = None
                peer.send(INFO.replace(b'"proto"', b'"ldm":true,"proto"'))
            for header, payload in answers:
                peer.answer(request, payload, header)
            if self._stale_after == len(self.stored):
                self._stale_after = None
                peer.flush()
                peer.send(b"-ERR 'Stale Connection'\r\n")
                peer.connection.shutdown(socket.SHUT_RDWR)
                self.left.set()
                return

    def _info(self) -> bytes:
        last = len(self.stored)
        config = {"name": "S", "retention": "limits", "subjects": ["S.>"], "duplicate_window": int(self._window * 1e9)}
        state = {"messages": last, "bytes": 0, "first_seq": 1, "last_seq": last}
        described = {"created": "then", "config": config, "state": state} | ({"ts": self.clock} if self.clock else {})
        cluster = {"leader": self.leader}
        if self.led_at is not None:
            led = round((clock.monotonic() - self.led_at) * 1e9)
            cluster["leader_since"] = format_time(time_at(described, "ts") - led)
        return api_answer("STREAM.INFO", described | ({"cluster": cluster} if self.leader else {}))

    def _message(self, sequence: int) -> bytes:
        if sequence > len(self.stored):
            return api_answer("STREAM.MSG.GET", {"error": {"code": 404, "err_code": 10037, "description": "none"}})
        row = self.stored[sequence - 1].encode()
        header = b"NATS/1.0\r\nNats-Msg-Id: %b\r\n\r\n" % row
        parts = {"hdrs": base64.b64encode(header).decode(), "data": base64.b64encode(row).decode()}
        time = "2026-01-01T00:01:00Z" if self.old and sequence > self.old else "2026-01-01T00:00:00Z"
        found = {"subject": "S.x", "seq": sequence, "time": time, **parts}
        return api_answer("STREAM.MSG.GET", {"message": found})

    def _take(self, row: str, has_id: bool) -> list[tuple[bytes, bytes]]:
        """The answers to a message: headers and payloads."""
        if has_id and row in self._sequences:
            return [self._known(row)]
        if self._stuck.get(row):
            if self._released is None:
                self._stuck[row] -= 1
                return [(b"", IN_PROCESS)]
            if not self._released():
                return [(b"", IN_PROCESS)]
        fate = next(self._fates, Fate.STORED)
        self.counts[fate] += 1
        if fate is Fate.DROPPED:
            return []
        if fate in (Fate.AWAY, Fate.STUCK):
            self._stuck[row] = self._repeats if fate is Fate.STUCK else 0
            return [(AWAY, b"")]
        self.stored.append(row)
        self._sequences[row] = len(self.stored)
        acknowledgement = (b"", b'{"stream":"S","seq":%d}' % len(self.stored))
        if fate is Fate.ANSWERED_FOR:
            return [(b"", b"ok"), acknowledgement]
        if fate is Fate.ANSWERED_INSTEAD:
            return [(b"", b"ok")]
        return {Fate.UNHEARD: [], Fate.TWICE: [acknowledgement, self._known(row)]}.get(fate, [acknowledgement])

    def _known(self, row: str) -> tuple[bytes, bytes]:
        return b"", b'{"stream":"S","seq":%d,"duplicate": true}' % self._sequences[row]


class SharedStream(Stream):
    """A stream that nobody answers for until it is read back; meanwhile another attempt stores rows with ids.

    It does not know the ids any more.
    """

    def __init__(self, others: list[str]) -> None:
        super().__init__([], window=0.1)
        self._others = others
        self._is_read = False

    def ids_behind(self, sequence: int) -> StoredIds:
        self._is_read = True
        return super().ids_behind(sequence)

    def _take(self, row: str, has_id: bool) -> list[tuple[bytes, bytes]]:
        if self._is_read:
            return super()._take(row, has_id)
        self.stored, self._others = self.stored + self._others, []  # their ids are not among those that it knows
        return [(AWAY, b"")]


@contextmanager
def publishing(
    stream: Stream, ack_timeout: float = 240.0, max_in_flight: int | None = None, **settling: Any
) -> Iterator[Publisher]:
    # The last answer to tens of thousands of rows takes its time: taken for lost, they are sent over and over.
    silence = 0.05 if max_in_flight is None else 1.0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decide, "LOST_AFTER", silence)
        patch.setattr(decide, "LOST_OUT_OF_ORDER", silence)
        patch.setattr(flight, "FIRST_ABSENCE", 0.001)
        patch.setattr(flight, "MAX_ABSENCE", 0.01)
        patch.setattr(recovery, "read_ids", lambda _js, _info, since: stream.ids_behind(since))
        with scripted_server(stream.serve) as url, leased(options_for(url), retries_for(), "the test") as lease:
            began = lease.ask_with_retries(lambda connection: ask_stream_info(JetStream(connection), "S"))
            yield publisher_for(lease.connection, began, max_in_flight, ack_timeout, lease=lease, **settling)


def give(publisher: Publisher, rows: int, with_ids: bool = True, first: int = 0) -> None:
    for start in range(first, first + rows, 500):
        payloads = pa.array([str(i) for i in range(start, min(start + 500, first + rows))])
        headers = wrap_lines_into_blocks(pa.array([""] * len(payloads)), [(MSG_ID, payloads)])
        publisher.publish(pa.array(["S.a"] * len(payloads)), payloads, *((headers, None, payloads) if with_ids else ()))
    publisher.wait_for_sent_rows()


@settings(max_examples=8)
@given(st.lists(st.tuples(st.sampled_from(Fate), st.integers(1, 200)), max_size=4), st.none())
@example([(Fate.STORED, 19_422), (Fate.DROPPED, 7615), (Fate.STORED, 4), (Fate.DROPPED, 30_000)], 30_000)  # look due
@example([(Fate.STORED, 700), (Fate.DROPPED, 1), (Fate.STORED, 5000), (Fate.UNHEARD, 3)], None)
@example([(Fate.DROPPED, 385), (Fate.STORED, 1), (Fate.AWAY, 600)], None)
@example([(Fate.UNHEARD, 2000), (Fate.DROPPED, 2000)], None)
@example([(Fate.STORED, 100), (Fate.DROPPED, 10), (Fate.STUCK, 20)], None)
@example([(Fate.TWICE, 1000)], None)
@example([(Fate.STORED, 2000), (Fate.TWICE, 500), (Fate.DROPPED, 512), (Fate.TWICE, 12)], None)
def test_every_row_is_stored_once_whatever_a_leader_drops(fates: Fates, max_in_flight: int | None) -> None:
    rows = 3000 + sum(count for _, count in fates)
    stream = Stream(fates)
    with publishing(stream, max_in_flight=max_in_flight) as publisher:
        give(publisher, rows)
        assert publisher.stored == rows
        assert publisher.duplicates == 0
    assert Counter(stream.stored) == Counter(map(str, range(rows)))


def test_a_row_that_was_acknowledged_behind_a_refused_one_is_not_taken_for_lost() -> None:
    """The answer that is missing then has the stream looked at, whose last row is not the last one that was in turn."""
    stream = Stream([(Fate.STORED, 300), (Fate.AWAY, 1), (Fate.STORED, 99), (Fate.DROPPED, 1)])
    with publishing(stream) as publisher:
        give(publisher, 200)
        give(publisher, 200, first=200)
        publisher.check_nothing_lost()
        assert publisher.stored == 400
    assert Counter(stream.stored) == Counter(map(str, range(400)))


def test_rows_that_wait_are_not_stored_again_if_another_attempt_has_stored_them_meanwhile() -> None:
    stream = SharedStream([str(i) for i in range(0, 1000, 2)])
    with publishing(stream, ack_timeout=20.0, exact=True) as publisher:
        give(publisher, 1000)
        assert publisher.stored == 1000
    assert Counter(stream.stored) == Counter(map(str, range(1000)))


def test_without_an_exact_promise_the_stream_is_not_read_back_for_them() -> None:
    with publishing(SharedStream([]), ack_timeout=0.5, exact=False) as publisher, pytest.raises(PublishError):
        give(publisher, 10)


def test_second_answers_are_not_taken_for_those_of_as_many_rows_that_were_dropped() -> None:
    stream = Stream([(Fate.DROPPED, 512), (Fate.TWICE, 512)])
    rows = pa.array([str(i) for i in range(1024)])
    headers = wrap_lines_into_blocks(pa.array([""] * len(rows)), [(MSG_ID, rows)])
    with publishing(stream) as publisher:
        publisher.publish(pa.array(["S.a"] * len(rows)), rows, headers, None, rows)  # all are under way at once
        publisher.wait_for_sent_rows()
        assert publisher.stored == len(rows)
    assert Counter(stream.stored) == Counter(rows.to_pylist())


def test_tens_of_thousands_of_rows_are_not_dropped_unseen() -> None:
    stream = Stream([(Fate.STORED, 45_000), (Fate.DROPPED, 32_768)])
    with publishing(stream, max_in_flight=100_000) as publisher:
        give(publisher, 78_000)
        assert publisher.stored == 78_000
    assert Counter(stream.stored) == Counter(map(str, range(78_000)))


@given(st.integers(0, 1), st.integers(1, 2000))
@settings(max_examples=10)
def test_rows_that_are_given_twice_are_stored_once(again: int, rows: int) -> None:
    stream = Stream([(Fate.DROPPED, again)])
    with publishing(stream) as publisher:
        payloads = pa.array([str(i // 2) for i in range(rows)])
        headers = wrap_lines_into_blocks(pa.array([""] * rows), [(MSG_ID, payloads)])
        publisher.publish(pa.array(["S.a"] * rows), payloads, headers, None, payloads)
        publisher.wait_for_sent_rows()
        assert publisher.stored == rows
    assert sorted(map(int, stream.stored)) == list(range((rows + 1) // 2))


@pytest.mark.parametrize("cut_after", [1, 70, 1000, 1999])
def test_rows_that_the_stream_had_before_are_counted_though_the_connection_is_cut(cut_after: int) -> None:
    """Of what is sent again it is not known whether it was there before; all that was answered counts."""
    stream = Stream([], known=2000, cut_after=cut_after)
    with publishing(stream) as publisher:
        give(publisher, 2000)
        assert publisher.stored == 2000
        assert publisher.duplicates >= cut_after
    assert len(stream.stored) == 2000


def test_a_writer_whose_rows_come_slowly_is_not_cut_off_for_good() -> None:
    """It answers no PING while it waits for rows, so its server hangs up; what was acknowledged before is known."""
    stream = Stream([], stale_after=10)
    with publishing(stream) as publisher:
        rows = pa.array([str(i) for i in range(10)])
        publisher.publish(pa.array(["S.a"] * len(rows)), rows)
        assert stream.left.wait(60)
        give(publisher, 10, with_ids=False, first=10)
        assert publisher.stored == 20
    assert stream.stored == [str(i) for i in range(20)]


@pytest.mark.parametrize("with_ids", [True, False])
def test_rows_that_are_answered_twice_are_counted_once(with_ids: bool) -> None:
    stream = Stream([(Fate.STORED, 20), (Fate.TWICE, 300)])
    with publishing(stream) as publisher:
        give(publisher, 1000, with_ids)
        assert publisher.stored == 1000
        assert publisher.duplicates == 0
    assert Counter(stream.stored) == Counter(map(str, range(1000)))


def test_rows_without_ids_that_a_leader_drops_are_an_error_that_counts_them() -> None:
    stream = Stream([(Fate.STORED, 1000), (Fate.DROPPED, 300)])
    with publishing(stream, ack_timeout=1.5) as publisher, pytest.raises(PublishError) as raised:
        give(publisher, 5000, with_ids=False)
    said = str(raised.value)
    assert f"{stream.counts[Fate.STORED]} were stored and 300 were sent and not answered (they may be stored)" in said


def test_rows_without_ids_that_are_refused_for_now_are_stored_once() -> None:
    """An answer names its row, so those that were not taken are known among thousands."""
    stream = Stream([(Fate.STORED, 1000), (Fate.AWAY, 5), (Fate.STORED, 700), (Fate.AWAY, 600)])
    rows = pa.array([str(i) for i in range(3000)])
    with publishing(stream) as publisher:
        publisher.publish(pa.array(["S.a"] * len(rows)), rows)
        publisher.wait_for_sent_rows()
        assert publisher.stored == 3000
    assert Counter(stream.stored) == Counter(rows.to_pylist())


@pytest.mark.parametrize("with_ids", [True, False])
def test_rows_are_stored_once_though_somebody_else_answers_first(with_ids: bool) -> None:
    stream = Stream([(Fate.STORED, 10), (Fate.ANSWERED_FOR, 30)])
    with publishing(stream) as publisher:
        give(publisher, 100, with_ids)
    assert Counter(stream.stored) == Counter(map(str, range(100)))


def test_an_error_says_what_somebody_else_has_answered_while_the_stream_was_silent() -> None:
    stream = Stream([(Fate.STORED, 10), (Fate.ANSWERED_INSTEAD, 1)])
    with publishing(stream, ack_timeout=0.2) as publisher, pytest.raises(PublishError) as raised:
        give(publisher, 20, with_ids=False)
    assert "'S.a': something other than the stream answers on it: b'ok'" in str(raised.value)


def test_an_error_counts_rows_that_wait_to_be_sent_again() -> None:
    """Fewer are under way than before, once the stream has refused some for a moment."""
    stream = Stream([(Fate.DROPPED, 100), (Fate.AWAY, 10**6)])
    with publishing(stream, ack_timeout=1.0) as publisher, pytest.raises(PublishError) as raised:
        give(publisher, 100)
    assert "of this task's rows 0 were stored and 100 were sent and not answered for certain" in str(raised.value)


@pytest.mark.parametrize(
    ("passed", "fate"),
    [
        (0, "none of this task's rows was stored"),
        (1, "of this task's rows 0 were stored and 3 were sent and not answered (they may be stored), and none"),
    ],
)
def test_rows_that_the_server_has_not_let_pass_are_not_stored_unless_one_may_have_passed_before(
    passed: int, fate: str
) -> None:
    class Forbidding(Stream):
        def serve(self, peer: Peer) -> None:
            requests = peer.requests()
            peer.answer(next(requests), self._info())
            for i, _ in enumerate(requests):
                if i >= passed:
                    peer.send_soon(b"-ERR 'Permissions Violation for Publish to \"S.a\"'\r\n")

    with pytest.raises(PermissionsError) as raised, publishing(Forbidding([])) as publisher:
        give(publisher, 3)
    assert f"; {fate}" in str(raised.value)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for answers that are owed, however short the time is in which a row has to be stored."""
    monkeypatch.setattr(decide, "MIN_PATIENCE", 60.0)


def test_an_id_that_stays_in_process_is_waited_for_as_long_as_the_stream_remembers_ids(
    caplog: pytest.LogCaptureFixture, patient: None
) -> None:
    caplog.set_level(logging.WARNING, logger="spark_nats")
    stream = Stream([(Fate.STORED, 5), (Fate.STUCK, 3)], released=lambda: bool(caplog.records))
    with publishing(stream, ack_timeout=3.0) as publisher:
        give(publisher, 1000)
    assert Counter(stream.stored) == Counter(map(str, range(1000)))
    assert [record.message for record in caplog.records] == [
        "[NATS_IDS_IN_PROCESS] stream S has reported message ids of rows as in process for 3 s without storing "
        "them; waiting until it forgets them, after its duplicate_window of 120 s"
    ]


def test_an_id_that_stays_in_process_longer_than_that_is_an_error(patient: None) -> None:
    stream = Stream([(Fate.STORED, 5), (Fate.STUCK, 3)], released=lambda: False, window=0.3)
    with publishing(stream, ack_timeout=3.0) as publisher, pytest.raises(PublishError) as raised:
        give(publisher, 1000)
    assert "'S' has refused every row for 3.3 s: duplicate message id is in process (409, 10158)" in str(raised.value)


# A stream that loses what it has acknowledged


@pytest.mark.parametrize("with_ids", [True, False])
def test_rows_that_are_lost_while_others_are_stored_are_an_error_that_counts_them(with_ids: bool) -> None:
    stream = Stream([])
    with publishing(stream) as publisher:
        give(publisher, 4550, with_ids)
        stream.lose(500)
        with pytest.raises(PublishError) as raised:
            give(publisher, 1000, with_ids, first=4550)
    said = str(raised.value)
    assert "has lost 4050 rows that it had acknowledged to this task: it ended at sequence 4550, and now has" in said
    assert "has other messages from sequence 501 on" in said
    stored = re.search("of this task's rows ([0-9]+) were stored", said)
    assert stored
    assert 500 < int(stored[1]) <= 1500  # by the chunks in which answers came
    assert ("the next attempt of the task" in said) is with_ids
    assert ("they have no message ids" in said) is not with_ids
    assert raised.value.topics == (() if with_ids else (Topic.MESSAGE_IDS,))


def test_rows_that_are_lost_behind_the_last_acknowledgement_are_noticed_at_the_end() -> None:
    stream = Stream([])
    with publishing(stream) as publisher:
        give(publisher, 1000)
        publisher.check_nothing_lost()
        stream.lose(990)
        with pytest.raises(PublishError, match="has lost 10 rows .* ended at sequence 1000, and now ends at 990"):
            publisher.check_nothing_lost()


@pytest.mark.parametrize("with_ids", [True, False])
def test_another_leader_is_asked_for_the_message_that_was_acknowledged_last(with_ids: bool) -> None:
    stream = Stream([])
    stream.leader = "n1"
    with publishing(stream) as publisher:
        give(publisher, 1000, with_ids)
        stream.leader = "n2"
        publisher.check_nothing_lost()  # which has it
        stream.leader = "n3"
        stream.lose(400, others=700)
        with pytest.raises(PublishError, match="lost at most 1000 rows .* 1000, and now has another message there"):
            publisher.check_nothing_lost()


@pytest.mark.parametrize("with_ids", [True, False])
def test_a_lost_end_is_noticed_by_the_row_that_was_there_though_others_were_refused(with_ids: bool) -> None:
    """Whose sequence was the highest is known of each row, in whatever order the answers came."""
    stream = Stream([(Fate.STORED, 20), (Fate.AWAY, 5)])
    stream.leader, stream.clock = "n1", "2026-01-01T00:00:10Z"
    with publishing(stream) as publisher:
        give(publisher, 40, with_ids)
        stream.leader = "n2"
        publisher.check_nothing_lost()  # which has it
        stream.leader = "n3"
        stream.lose(30, others=100)
        with pytest.raises(PublishError, match="has lost 10 rows .* ended at sequence 40, and now has other"):
            publisher.check_nothing_lost()


@pytest.mark.parametrize("with_ids", [True, False])
@pytest.mark.parametrize("others", [0, 30])
def test_a_lost_end_is_noticed_though_others_have_filled_it_before_the_next_row(
    monkeypatch: pytest.MonkeyPatch, with_ids: bool, others: int
) -> None:
    """No sequence falls then, and the stream has the last row. The one before another server led it is looked for."""
    monkeypatch.setattr(recovery, "_PAUSE", 0.0)
    stream = Stream([])
    stream.leader, stream.clock, stream.led_at = "n1", "2026-01-01T00:00:10Z", clock.monotonic()
    with publishing(stream) as publisher:
        give(publisher, 20, with_ids)
        led = clock.monotonic()
        if others:
            stream.lose(10, others)
        give(publisher, 40, with_ids, first=20)
        stream.leader, stream.led_at = "n2", led
        if not others:
            publisher.check_nothing_lost()
            return
        with pytest.raises(PublishError) as raised:
            publisher.check_nothing_lost()
    said = str(raised.value)
    assert "lost 10 rows that it had acknowledged to this task: it ended at sequence 20, and now has other" in said
    assert "messages from sequence 11 on" in said
    assert "of this task's rows 50 were stored" in said


@pytest.mark.parametrize("with_ids", [True, False])
def test_a_lost_end_is_noticed_though_others_have_filled_it_while_the_server_shut_down(with_ids: bool) -> None:
    stream = Stream([], lame_after=20)
    with publishing(stream) as publisher:
        give(publisher, 20, with_ids)
        stream.lose(10, others=30)
        with pytest.raises(
            PublishError, match="lost at most 20 rows .* at sequence 20, and now has another message there"
        ):
            give(publisher, 40, with_ids, first=20)


@settings(max_examples=8)
@given(st.lists(st.integers(1, 400), min_size=1, max_size=4), st.lists(st.integers(0, 300), min_size=4, max_size=4))
def test_a_stream_to_which_others_write_too_raises_no_alarm(parts: list[int], others: list[int]) -> None:
    stream = Stream([])
    with publishing(stream) as publisher:
        for part, other in zip(parts, others, strict=False):
            give(publisher, part)
            stream.stored += [f"another's {i}" for i in range(other)]
        publisher.check_nothing_lost()
        assert publisher.stored == sum(parts)
