"""Reading a range of a stream of which deliveries and answers get lost, or whose servers do not agree."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from spark_nats.client import Connection, connect
from spark_nats.client.pool import leased
from spark_nats.errors import DataLossError
from spark_nats.jetstream import JetStream, Range, RangeReader, ReadMethod
from spark_nats.jetstream.consuming import consumers
from spark_nats.jetstream.positions import Fingerprint
from spark_nats.jetstream.reading import pulls
from spark_nats.jetstream.reading.delivering import Restart
from spark_nats.jetstream.reading.direct import request_ranges_together
from spark_nats.jetstream.reading.stored import ask_last_common_sequence
from spark_nats.jetstream.streams import StreamInfo
from spark_nats.jetstream.views import ask_stream_info
from tests.connections import options_for, patience, retries_for
from tests.scripted_server import INFO, Peer, api_answer, scripted_server

A, B = "S.a", "S.b"
WAYS = [
    pytest.param({}, id="consumer"),
    pytest.param({"way": ReadMethod.GETS}, id="gets"),
    pytest.param({"way": ReadMethod.ONE_GET_FIRST}, id="one get"),
]
YEAR = 1_767_225_600 * 10**9
"""The beginning of 2026, in nanoseconds."""


class Stream:
    """A stream as whoever reads it meets it.

    Args:
        messages: the subjects of what it has, by sequence.
        lost: sequences of messages that get lost the first time that they are sent.
    """

    def __init__(self, messages: dict[int, str], lost: Sequence[int] = ()) -> None:
        self.messages = messages
        self.lost = set(lost)
        self.astray: set[int] = set()  # sequences that first come as deliveries of another stream's consumer
        self.followers_that_lag = 0  # consumers that say that there is nothing for them
        self.leaders_that_lag = 0  # answers that there are no more messages
        self.created = "then"
        self.pings = 0
        self.direct_gets = "answered"
        self.seconds: dict[int, int] = {}  # when messages were stored, from the beginning of the year
        self.asked: list[str] = []
        self.shuts_down = False  # whether the server says so when it delivers next, and no more then
        self.sent = 0  # messages that were sent, or got lost
        self._consumers: dict[str, tuple[list[int], int]] = {}  # what is to be delivered, and how much was
        self._sids: dict[bytes, bytes] = {}

    def serve(self, peer: Peer) -> None:
        peer.let_in()
        while True:
            verb, *words = peer.expect(b"\r\n").split()
            if verb == b"SUB":
                self._sids[words[0].removesuffix(b".*")] = words[-1]
            elif verb == b"PING":
                self.pings += 1
                peer.send(b"PONG\r\n")
            elif verb == b"PUB":
                payload = peer.take(int(words[-1]) + 2)[:-2]
                operation = words[0].decode().removeprefix("$JS.API.")
                self.asked.append(operation)
                if len(words) == 3:
                    peer.send(self._answer(operation, json.loads(payload or b"{}"), words[1]))

    def _answer(self, operation: str, body: dict[str, Any], inbox: bytes) -> bytes:
        """What is sent to the inbox of a request."""
        sid = self._sids.get(inbox) or self._sids[inbox.rpartition(b".")[0]]
        match operation.split("."):
            case ["STREAM", "INFO", _]:
                return message(inbox, sid, "STREAM.INFO", self._info())
            case ["STREAM", "MSG", "GET", _]:
                return message(inbox, sid, "STREAM.MSG.GET", self._get(body["seq"], body["next_by_subj"]))
            case ["CONSUMER", "CREATE", _, name]:
                return message(inbox, sid, "CONSUMER.CREATE", self._consumer(name, body["config"]))
            case ["CONSUMER", "MSG", "NEXT", _, name]:
                return self._deliveries(name, body["batch"], sid)
            case ["DIRECT", "GET", _]:
                match self.direct_gets:
                    case "answered":
                        return self._direct_gets(body, inbox, sid)
                    case "one message":
                        headers = {"Nats-Stream": "S", "Nats-Subject": A, "Nats-Sequence": body["seq"]}
                        return headed(inbox, sid, "NATS/1.0", {**headers, "Nats-Time-Stamp": self._time(body["seq"])})
                    case "nobody answers":
                        return headed(inbox, sid, "NATS/1.0 503", {})
                    case "forbidden":
                        return b"-ERR 'Permissions Violation for Publish to \"$JS.API.DIRECT.GET.S\"'\r\n"
                    case _:
                        return b""
        raise AssertionError(operation)

    def _time(self, sequence: int) -> str:
        return f"2026-01-01T00:00:{self.seconds.get(sequence, 0):02}Z"

    def _info(self) -> dict[str, Any]:
        first, last = min(self.messages), max(self.messages)
        deleted = last + 1 - first - len(self.messages)
        state = {"messages": len(self.messages), "bytes": 0, "first_seq": first, "last_seq": last}
        config = {"name": "S", "retention": "limits", "subjects": ["S.>"], "allow_direct": True}
        return {"created": self.created, "config": config, "state": {**state, "num_deleted": deleted}}

    def _from(self, start: int, filters: Sequence[str]) -> list[int]:
        return [s for s, subject in self.messages.items() if s >= start and (not filters or subject in filters)]

    def _get(self, start: int, subject: str) -> dict[str, Any]:
        found = self._from(start, () if subject == ">" else (subject,))
        if self.leaders_that_lag or not found:
            self.leaders_that_lag = max(0, self.leaders_that_lag - 1)
            return {"error": {"code": 404, "err_code": 10037, "description": "no message found"}}
        return {"message": {"subject": self.messages[found[0]], "seq": found[0], "time": self._time(found[0])}}

    def _consumer(self, name: str, config: dict[str, Any]) -> dict[str, Any]:
        wanted = self._from(config["opt_start_seq"], config.get("filter_subjects", ()))
        if self.followers_that_lag:
            self.followers_that_lag -= 1
            wanted = []
        self._consumers[name] = wanted, 0
        delivered = {"consumer_seq": 0, "stream_seq": config["opt_start_seq"] - 1}
        state = {"delivered": delivered, "ack_floor": {"stream_seq": 0}, "num_pending": len(wanted)}
        return {"stream_name": "S", "name": name, "config": {}, **state}

    def _arrives(self, sequence: int) -> bool:
        self.sent += 1
        if sequence in self.lost:
            self.lost.remove(sequence)
            return False
        return True

    def _deliveries(self, name: str, count: int, sid: bytes) -> bytes:
        wanted, done = self._consumers[name]
        sent = INFO.replace(b'"proto"', b'"ldm":true,"proto"') if self.shuts_down else b""
        self.shuts_down = False
        for number, sequence in enumerate(wanted[done : done + count], done + 1):
            time = YEAR + self.seconds.get(sequence, 0) * 10**9
            of = b"T" if sequence in self.astray else b"S"
            self.astray.discard(sequence)
            reply = b"$JS.ACK.%b.%b.1.%d.%d.%d.%d" % (of, name.encode(), sequence, number, time, len(wanted) - number)
            if self._arrives(sequence):
                sent += b"MSG %b %b %b 0\r\n\r\n" % (self.messages[sequence].encode(), sid, reply)
        self._consumers[name] = wanted, min(done + count, len(wanted))
        return sent

    def _direct_gets(self, body: dict[str, Any], inbox: bytes, sid: bytes) -> bytes:
        wanted = self._from(body["seq"], [body["next_by_subj"]] if "next_by_subj" in body else ())
        if self.followers_that_lag:
            self.followers_that_lag -= 1
            wanted = wanted[: len(wanted) // 2]
        sent, previous = b"", 0
        for sequence in wanted[: body["batch"]]:
            headers = {
                "Nats-Stream": "S",
                "Nats-Subject": self.messages[sequence],
                "Nats-Sequence": sequence,
                "Nats-Time-Stamp": self._time(sequence),
                "Nats-Num-Pending": 0,
                "Nats-Last-Sequence": previous,
            }
            if self._arrives(sequence):
                sent += headed(inbox, sid, "NATS/1.0", headers)
            previous = sequence
        left = len(wanted[body["batch"] :])
        return sent + headed(inbox, sid, "NATS/1.0 204 EOB", {"Nats-Num-Pending": left, "Nats-Last-Sequence": previous})


def message(subject: bytes, sid: bytes, operation: str, document: dict[str, Any]) -> bytes:
    payload = api_answer(operation, document)
    return b"MSG %b %b %d\r\n%b\r\n" % (subject, sid, len(payload), payload)


def headed(subject: bytes, sid: bytes, line: str, headers: dict[str, Any]) -> bytes:
    block = "".join(f"{each}\r\n" for each in [line, *(f"{name}: {value}" for name, value in headers.items()), ""])
    return b"HMSG %b %b %d %d\r\n%b\r\n" % (subject, sid, len(block), len(block), block.encode())


def read(stream: Stream, end: int, **how: Any) -> list[int]:
    """The sequences of a range of which nothing may be lost."""
    with scripted_server(stream.serve) as url, connect(options_for(url)) as connection:
        return read_by(connection, end, **how)


def read_by(connection: Connection, end: int, *, start: int = 1, created: str | None = None, **how: Any) -> list[int]:
    what = {name: how.pop(name) for name in ("filters", "last") if name in how}
    reader = RangeReader(Range("S", created, start, end, **what), retries=patience(), **how)
    delivered = reader.read(JetStream(connection))
    return [sequence for _, deliveries in delivered for sequence in deliveries.stream_sequences().tolist()]


def some_deleted() -> tuple[dict[int, str], dict[str, Any]]:
    return {s: A for s in range(1, 41) if s % 10 != 5}, {}


def half_of_it_wanted() -> tuple[dict[int, str], dict[str, Any]]:
    return {s: (A, B)[s % 2] for s in range(1, 41)}, {"filters": (B,)}


@pytest.mark.parametrize("direct", WAYS)
@pytest.mark.parametrize("made", [some_deleted, half_of_it_wanted])
@pytest.mark.parametrize("lost", [[1], [21], [1, 21, 23, 37]], ids=str)
def test_what_is_lost_on_its_way_is_asked_for_again(
    made: Callable[[], tuple[dict[int, str], dict[str, Any]]], direct: dict[str, ReadMethod], lost: list[int]
) -> None:
    messages, how = made()
    stream = Stream(messages, lost)
    wanted = [s for s, subject in messages.items() if subject in how.get("filters", (A,))]
    assert read(stream, 41, **direct, **how) == wanted
    assert not stream.lost


@pytest.mark.parametrize("astray", [{1}, {21}, {40}, {1, 23, 37}], ids=str)
def test_a_delivery_of_another_consumer_is_no_row(astray: set[int]) -> None:
    stream = Stream(dict.fromkeys(range(1, 41), A))
    stream.astray = set(astray)
    assert read(stream, 41) == list(range(1, 41))
    assert not stream.astray
    assert sum(asked.startswith("CONSUMER.CREATE.") for asked in stream.asked) > 1


def test_the_last_message_of_a_batch_of_direct_gets_is_asked_for_again() -> None:
    messages, how = half_of_it_wanted()
    assert read(Stream(messages, [39]), 41, way=ReadMethod.GETS, **how) == list(range(1, 41, 2))


def test_servers_that_contradict_each_other_about_the_end_are_asked_again() -> None:
    """A follower that lags has nothing for the consumer, and no more has a leader that was stopped for a while."""
    stream = Stream(dict.fromkeys(range(1, 301), A))
    stream.followers_that_lag = stream.leaders_that_lag = 1
    assert read(stream, 301) == list(range(1, 301))
    assert stream.leaders_that_lag == 0


def test_a_server_that_shuts_down_slowly_is_left_without_a_failure(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Lame duck mode: it still brings what it was asked for, and the rest comes over another connection."""
    monkeypatch.setattr(pulls, "PULL_MESSAGES", 10)
    stream = Stream(dict.fromkeys(range(1, 101), A))
    stream.shuts_down = True
    found: list[int] = []
    with scripted_server(stream.serve) as url, leased(options_for(url), retries_for(), "the test") as lease:
        reader = RangeReader(Range("S", None, 1, 101), retries=lease.retries)
        first = lease.connection
        for _, deliveries in lease.read_with_retries(lambda connection: reader.read(JetStream(connection))):
            sequences = deliveries.stream_sequences().tolist()
            if lease.connection is first:  # two requests, and two that were sent before it was heard
                assert len(found) + len(sequences) <= 40
            found += sequences
        assert lease.connection is not first
    assert found == list(range(1, 101))
    assert "is shutting down" in caplog.text
    assert "NATS_TRYING_AGAIN" not in caplog.text


def test_what_a_filter_leaves_out_at_the_beginning_of_a_stream_is_no_loss() -> None:
    stream = Stream({s: (A, B)[s % 2] for s in range(10, 41)})
    assert read(stream, 41, start=10, filters=(B,)) == list(range(11, 41, 2))


@pytest.mark.parametrize("direct", WAYS)
@pytest.mark.parametrize("last", [25, 40, 60])
def test_what_was_stored_after_the_end_of_a_micro_batch_is_not_of_it(direct: dict[str, ReadMethod], last: int) -> None:
    stream = Stream(dict.fromkeys(range(1, 51), A))
    stream.seconds = {s: 1 if s <= 10 else 9 for s in stream.messages}
    end = Fingerprint(last, YEAR + 5 * 10**9)
    with pytest.raises(DataLossError, match="other messages have its sequences.*: sequence 20, which is about"):
        read(stream, 21, **direct, last=end)
    said: list[str] = []
    assert read(stream, 21, **direct, last=end, lost=said.append) == list(range(1, 11))
    assert len(said) == 1


def test_a_clock_that_goes_back_is_no_loss() -> None:
    stream = Stream(dict.fromkeys(range(1, 41), A))
    stream.seconds = dict.fromkeys(range(1, 21), 9)
    assert read(stream, 21, last=Fingerprint(40, YEAR)) == list(range(1, 21))


def test_what_was_stored_since_is_left_to_the_next_micro_batch_where_the_end_is_lost() -> None:
    stream = Stream(dict.fromkeys(range(1, 31), A))
    stream.seconds = dict.fromkeys(range(28, 31), 9)
    said: list[str] = []
    assert read(stream, 41, last=Fingerprint(40, YEAR + 5 * 10**9), lost=said.append) == list(range(1, 28))
    assert len(said) == 1


def test_an_end_that_is_lost_stays_so_if_a_source_fails_meanwhile_and_others_fill_the_stream(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream = Stream(dict.fromkeys(range(1, 31), A))
    failures = [Restart("it is gone")]

    def fails_once(js: JetStream, info: StreamInfo) -> bool:
        while failures:
            stream.messages |= dict.fromkeys(range(31, 61), A)
            raise failures.pop()
        return False

    monkeypatch.setattr(consumers, "may_keep_consumers", fails_once)
    said: list[str] = []
    assert read(stream, 41, lost=said.append) == list(range(1, 31))
    assert len(said) == 1


def test_a_stream_that_has_lost_its_end_and_was_filled_again_has_kept_what_is_older() -> None:
    stream = Stream(dict.fromkeys(range(1, 13), A))
    stream.seconds = dict.fromkeys(range(7, 13), 9)
    with scripted_server(stream.serve) as url, connect(options_for(url)) as connection:
        js = JetStream(connection)
        info = ask_stream_info(js, "S")
        assert ask_last_common_sequence(js, replace(info, last_sequence=10, last_time=YEAR + 5 * 10**9), info) == 6
        assert ask_last_common_sequence(js, replace(info, last_sequence=10, last_time=YEAR + 9 * 10**9), info) == 10


# The first messages of a range


@pytest.mark.parametrize(
    "how", [*WAYS, pytest.param({"way": ReadMethod.ONE_GET_FIRST, "filters": (B,)}, id="one get, searched here")]
)
@pytest.mark.parametrize("lost", [[], [1], [3, 7]], ids=str)
@pytest.mark.parametrize("limit", [1, 5, 99])
def test_the_first_messages_are_read_whatever_gets_lost(how: dict[str, Any], lost: list[int], limit: int) -> None:
    messages = {s: (A, B)[s % 2] for s in range(1, 41) if s != 5}
    wanted = [s for s, subject in messages.items() if subject in how.get("filters", (A, B))]
    assert read(Stream(messages, lost), 41, limit=limit, **how) == wanted[:limit]
    filters = {"filters": (A,)} if "filters" not in how else {}
    assert (
        read(Stream(messages, lost), 41, limit=limit, **{**how, **filters})
        == ([s for s, subject in messages.items() if subject == A] if filters else wanted)[:limit]
    )


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("filters", [(), (A,)], ids=["all", "one subject"])
def test_no_more_than_the_first_messages_is_asked_for(how: dict[str, Any], filters: tuple[str, ...]) -> None:
    stream = Stream(dict.fromkeys(range(1, 5001), A))
    if how.get("way") is ReadMethod.ONE_GET_FIRST and filters:  # what one get brings is searched here
        return
    assert read(stream, 5001, limit=7, filters=filters, **how) == list(range(1, 8))
    assert stream.sent == 7


@pytest.mark.parametrize("how", WAYS)
def test_what_is_gone_before_the_first_messages_is_a_loss_and_what_is_gone_behind_them_is_none(
    how: dict[str, Any],
) -> None:
    stream = Stream(dict.fromkeys(range(4, 41), A))
    said: list[str] = []
    assert read(stream, 41, limit=3, created="then", lost=said.append, **how) == [4, 5, 6]
    assert len(said) == 1
    assert "sequences 1 to 3" in said[0]
    assert read(stream, 41, start=4, limit=3, created="then", **how) == [4, 5, 6]


def test_the_first_messages_of_a_stream_that_was_made_again_are_lost() -> None:
    stream = Stream(dict.fromkeys(range(1, 41), A))
    stream.created = "since"
    said: list[str] = []
    assert (
        read(
            stream,
            41,
            limit=3,
            way=ReadMethod.ONE_GET_FIRST,
            created="then",
            last=Fingerprint(40, YEAR - 1),
            lost=said.append,
        )
        == []
    )
    assert [text.split(";")[0] for text in said] == ["the stream 'S' was deleted and created again at since"]


# Small ranges


def small(stream: Stream, end: int, last: int | None = None, **how: Any) -> list[int]:
    """Read a small range of what was planned up to a message; ``asked`` then has all that it took."""
    fingerprint = None if last is None else Fingerprint(last, YEAR + stream.seconds.get(last, 0) * 10**9)
    return read(stream, end, way=ReadMethod.ONE_GET_FIRST, created="then", last=fingerprint, **how)


def test_a_small_range_takes_one_request_and_no_consumer() -> None:
    stream = Stream(dict.fromkeys(range(1, 41), A))
    assert small(stream, 41, last=40) == list(range(1, 41))
    assert stream.asked == ["DIRECT.GET.S"]
    assert not stream.pings


def test_the_stream_is_asked_for_in_the_same_flight_where_a_small_range_ends_before_the_last_message() -> None:
    stream = Stream(dict.fromkeys(range(1, 41), A))
    assert small(stream, 21, last=40) == list(range(1, 21))
    assert stream.asked == ["DIRECT.GET.S", "STREAM.INFO.S"]


def test_the_filters_of_a_small_range_are_applied_here() -> None:
    messages, how = half_of_it_wanted()
    stream = Stream(messages)
    assert small(stream, 41, last=40, **how) == list(range(1, 41, 2))
    assert stream.asked == ["DIRECT.GET.S"]


def test_what_a_replica_that_lags_does_not_have_of_a_small_range_is_read_through_a_consumer() -> None:
    stream = Stream(dict.fromkeys(range(1, 41), A))
    stream.followers_that_lag = 1
    assert small(stream, 41, last=40) == list(range(1, 41))
    assert [each for each in stream.asked if each.startswith("CONSUMER.CREATE")]


@pytest.mark.parametrize("why", ["forbidden", "nobody answers", "nothing comes", "one message"])
@pytest.mark.parametrize("end", [21, 41])
def test_a_small_range_is_read_through_a_consumer_where_there_are_no_direct_gets(why: str, end: int) -> None:
    stream = Stream(dict.fromkeys(range(1, 41), A))
    stream.direct_gets = why
    assert small(stream, end, last=40) == list(range(1, end))


@pytest.mark.parametrize("why", ["forbidden", "nobody answers", "one message"])
def test_direct_gets_that_are_refused_are_not_tried_for_every_range(why: str) -> None:
    stream = Stream(dict.fromkeys(range(1, 41), A))
    stream.direct_gets = why
    with scripted_server(stream.serve) as url, connect(options_for(url)) as connection:
        for _ in range(3):
            assert read_by(connection, 41, way=ReadMethod.ONE_GET_FIRST, last=Fingerprint(40, YEAR)) == list(
                range(1, 41)
            )
    assert stream.asked.count("DIRECT.GET.S") == 1


@pytest.mark.parametrize("last", [40, 50])
def test_a_small_range_of_a_stream_that_was_made_again_is_lost(last: int) -> None:
    stream = Stream(dict.fromkeys(range(1, 61), A))
    stream.created, stream.seconds = "since", dict.fromkeys(range(1, 61), 9)
    said: list[str] = []
    end = Fingerprint(last, YEAR + 5 * 10**9)
    assert read(stream, 41, way=ReadMethod.ONE_GET_FIRST, created="then", last=end, lost=said.append) == []
    assert [text.split(";")[0] for text in said] == ["the stream 'S' was deleted and created again at since"]


def test_a_server_that_refuses_without_end_is_not_asked_for_several_ranges_for_ever() -> None:
    class Refusing(Stream):
        def serve(self, peer: Peer) -> None:
            peer.let_in()
            while True:
                verb, *words = peer.expect(b"\r\n").split()
                if verb == b"PUB":
                    peer.take(int(words[-1]) + 2)
                elif verb == b"PING":
                    peer.send(b"-ERR 'Permissions Violation for Publish to \"$JS.API.DIRECT.GET.S\"'\r\n")

    with scripted_server(Refusing({1: A}).serve) as url, connect(options_for(url)) as connection:
        assert request_ranges_together(JetStream(connection), [("S", 1, 2), ("S", 2, 3)]) == []
