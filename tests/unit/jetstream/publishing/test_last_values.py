"""The last value of each subject is that of the last row, whatever is lost, forgotten and sent again meanwhile."""

from __future__ import annotations

import base64
import json
import socket
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum, auto
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from spark_nats.client.options import RetryOptions
from spark_nats.client.pool import leased
from spark_nats.errors import PublishError
from spark_nats.jetstream import JetStream, Publisher
from spark_nats.jetstream.publishing import decide, flight, recovery
from spark_nats.jetstream.publishing.flight import Rows, are_unstored_but_replaced
from spark_nats.jetstream.publishing.recovery import Overtaken, with_other_ids
from spark_nats.jetstream.reading.stored import StoredIds
from spark_nats.jetstream.views import ask_stream_info
from spark_nats.protocol.bytecolumns import byte_strings
from spark_nats.protocol.headers import MSG_ID, first_header_values, parse_block, wrap_lines_into_blocks
from tests.connections import options_for, publisher_for
from tests.scripted_server import Peer, api_answer, scripted_server

AT_ONCE = RetryOptions(timeout=300.0, wait=0.001, jitter=0.0, attempts=None)


class Fate(Enum):
    """What becomes of a message whose id the stream does not know."""

    STORED = auto()
    UNHEARD = auto()  # it is stored, and its answer is lost
    DROPPED = auto()  # it is not stored, and not answered
    AWAY = auto()  # it is not stored: nobody answers for the stream
    CUT = auto()  # it is stored, and the connection is lost before its answer
    KILLED = auto()  # the same, and the server restarts: it has forgotten the ids of removed messages


Fates = list[tuple[Fate, int]]
PREFIX = "t-"  # of the rows' ids


class LastValues:
    """A stream that keeps the last messages of each subject, as a client sees it."""

    def __init__(self, fates: Fates, kept: int, known: list[tuple[str, str]] | None = None) -> None:
        self._fates = iter([fate for fate, count in fates for _ in range(count)])
        self._kept = kept
        self._messages: dict[int, tuple[str, str]] = {}  # subject and id, by sequence
        self._ids: dict[str, int] = {}
        self._restarts = 0
        self._last = 0
        self.stored: Counter[str] = Counter()  # how often each id was stored, ever
        for subject, row in known or ():
            self._store(subject, row)

    def forget(self, rows: list[str]) -> None:
        """Forget the ids of rows, as after the window."""
        for row in rows:
            del self._ids[row]

    @property
    def values(self) -> dict[str, str]:
        """The last row of each subject, by the id that it was given."""
        return {subject: row.rpartition("-")[2] for subject, row in self._messages.values()}

    def ids_behind(self, since: int) -> StoredIds:
        """What is found by reading it."""
        left = [message for sequence, message in self._messages.items() if sequence > since]
        counts = Counter(subject for subject, _ in left)
        removed = "messages are lost" if len(left) < self._last - since else ""
        full = pa.array([subject for subject, count in counts.items() if count >= self._kept], pa.string())
        subjects = pa.array([subject for subject, _ in left], pa.string())
        sequences = np.array([sequence for sequence in self._messages if sequence > since], np.int64)
        return StoredIds(byte_strings([row.encode() for _, row in left]), removed, subjects, full, True, sequences)

    def serve(self, peer: Peer) -> None:
        for request in peer.requests():
            if request.subject.startswith(b"$JS.API.STREAM.INFO"):
                peer.answer(request, self._info())
            elif request.subject.startswith(b"$JS.API.STREAM.MSG.GET"):
                peer.answer(request, self._message(json.loads(request.payload)))
            else:
                (row,) = parse_block(bytes(request.header))[MSG_ID]
                fate, answer = self._take(request.subject.decode(), row)
                if answer is not None:
                    peer.answer(request, *answer)
                if fate in (Fate.CUT, Fate.KILLED):
                    if fate is Fate.KILLED:
                        self._restarts += 1
                        there = {row for _, row in self._messages.values()}
                        self._ids = {row: sequence for row, sequence in self._ids.items() if row in there}
                    peer.flush()
                    peer.connection.shutdown(socket.SHUT_RDWR)
                    return

    def _take(self, subject: str, row: str) -> tuple[Fate, tuple[bytes, bytes] | None]:
        if row in self._ids:
            return Fate.STORED, (b'{"stream":"S","seq":%d,"duplicate": true}' % self._ids[row], b"")
        fate = next(self._fates, Fate.STORED)
        if fate is Fate.DROPPED:
            return fate, None
        if fate is Fate.AWAY:
            return fate, (b"", b"NATS/1.0 503\r\n\r\n")
        self._store(subject, row)
        return fate, (b'{"stream":"S","seq":%d}' % self._last, b"") if fate is Fate.STORED else None

    def _store(self, subject: str, row: str) -> None:
        self._last += 1
        self._messages[self._last] = subject, row
        self._ids[row] = self._last
        self.stored[row] += 1
        of_subject = [sequence for sequence, (other, _) in self._messages.items() if other == subject]
        for sequence in of_subject[: -self._kept]:
            del self._messages[sequence]

    def _info(self) -> bytes:
        config = {
            "name": "S",
            "retention": "limits",
            "subjects": ["S.>"],
            "duplicate_window": 120 * 10**9,
            "max_msgs_per_subject": self._kept,
        }
        first = min(self._messages, default=self._last + 1)
        state = {"messages": len(self._messages), "bytes": 0, "first_seq": first, "last_seq": self._last}
        cluster = {"leader": "n", "leader_since": f"2026-01-01T00:00:{self._restarts % 60:02}Z"}
        return api_answer("STREAM.INFO", {"created": "then", "config": config, "state": state, "cluster": cluster})

    def _message(self, query: dict[str, Any]) -> bytes:
        subject = query.get("last_by_subj")
        found = [
            (sequence, message)
            for sequence, message in self._messages.items()
            if subject in (None, message[0]) and sequence >= query.get("seq", 0)
        ]
        if not found:
            return api_answer("STREAM.MSG.GET", {"error": {"code": 404, "err_code": 10037, "description": "none"}})
        sequence, (subject, row) = found[-1 if subject else 0]
        header = base64.b64encode(b"NATS/1.0\r\nNats-Msg-Id: %b\r\n\r\n" % row.encode()).decode()
        message = {"subject": subject, "seq": sequence, "time": "2026-01-01T00:00:00Z", "hdrs": header}
        return api_answer("STREAM.MSG.GET", {"message": message})


@contextmanager
def publishing(stream: LastValues, is_bucket: bool, id_prefix: str | None = None) -> Iterator[Publisher]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decide, "LOST_AFTER", 0.05)
        patch.setattr(decide, "LOST_OUT_OF_ORDER", 0.05)
        patch.setattr(flight, "FIRST_ABSENCE", 0.001)
        patch.setattr(flight, "MAX_ABSENCE", 0.01)
        patch.setattr(recovery, "read_ids", lambda _js, _info, since: stream.ids_behind(since))
        with scripted_server(stream.serve) as url, leased(options_for(url), AT_ONCE, "the test") as lease:
            began = lease.ask_with_retries(lambda connection: ask_stream_info(JetStream(connection), "S"))
            resolve = (lambda _js, _conflict: None) if is_bucket else None
            settling = {"lease": lease, "resolve": resolve, "id_prefix": id_prefix}
            yield publisher_for(lease.connection, began, None, 60.0, **settling)


def give(publisher: Publisher, subjects: list[int]) -> None:
    payloads = pa.array([f"{PREFIX}{i}" for i in range(len(subjects))])
    headers = wrap_lines_into_blocks(pa.array([""] * len(payloads)), [(MSG_ID, payloads)])
    publisher.publish(pa.array([f"S.{each}" for each in subjects]), payloads, headers, None, payloads)
    publisher.wait_for_sent_rows()


def ends_in_doubt(publisher: Publisher, subjects: list[int]) -> bool:
    """Give it rows; tell whether that ends in the error that it is unknown which are stored."""
    try:
        give(publisher, subjects)
    except PublishError as error:
        if not str(error).startswith("it is unknown whether unacknowledged rows are stored"):
            raise
        return True
    return False


def last_rows(subjects: list[int]) -> dict[str, str]:
    return {f"S.{subject}": str(row) for row, subject in enumerate(subjects)}


SUBJECTS = st.lists(st.integers(0, 3), min_size=1, max_size=40)
FATES = st.lists(st.tuples(st.sampled_from(Fate), st.integers(1, 6)), max_size=10)
WRITTEN = pytest.mark.parametrize(
    ("is_bucket", "id_prefix"),
    [(True, PREFIX), (False, PREFIX), (False, None)],
    ids=["bucket", "stream", "stream, ids of its own"],
)
"""What is written, and whether an id tells that a message may be one of the rows."""


@WRITTEN
@settings(max_examples=40)
@given(SUBJECTS, FATES, st.integers(1, 3))
@example([0, 0, 0], [(Fate.UNHEARD, 2), (Fate.KILLED, 1)], 1)
@example([0, 0], [(Fate.DROPPED, 1)], 1)
@example([0, 0, 0, 0, 0], [(Fate.STORED, 3), (Fate.DROPPED, 1), (Fate.UNHEARD, 2)], 1)
@example([0, 0], [(Fate.DROPPED, 1), (Fate.UNHEARD, 1), (Fate.KILLED, 1)], 2)
@example([0, 1, 0], [(Fate.AWAY, 1)], 1)
@example([0, 1, 0, 0, 1], [(Fate.STORED, 1), (Fate.DROPPED, 2), (Fate.STORED, 1), (Fate.KILLED, 1)], 2)
@example([0, 0, 0], [(Fate.STORED, 1), (Fate.KILLED, 1)], 1)
@example([0, 0, 0, 0], [(Fate.DROPPED, 1), (Fate.UNHEARD, 3), (Fate.KILLED, 1)], 1)
@example([0, 0, 0], [(Fate.DROPPED, 2), (Fate.UNHEARD, 2), (Fate.AWAY, 1)], 1)
@example([0, 0], [(Fate.DROPPED, 1), (Fate.UNHEARD, 1), (Fate.DROPPED, 1), (Fate.KILLED, 1)], 2)
@example([0, 0], [(Fate.UNHEARD, 1), (Fate.DROPPED, 1), (Fate.KILLED, 1)], 1)
@example([0, 0], [(Fate.CUT, 1), (Fate.KILLED, 1)], 1)
def test_the_last_row_of_each_subject_is_its_last_value(
    is_bucket: bool, id_prefix: str | None, subjects: list[int], fates: Fates, kept: int
) -> None:
    """Where a killed server has forgotten ids, a bucket may have values put again, and a stream be in doubt."""
    stream = LastValues(fates, kept)
    forgets = Fate.KILLED in dict(fates)
    with publishing(stream, is_bucket, id_prefix) as publisher:
        if ends_in_doubt(publisher, subjects):
            assert (forgets, is_bucket) == (True, False)
        else:
            assert publisher.stored == len(subjects)
            assert stream.values == last_rows(subjects)
    assert max(stream.stored.values()) == 1 or (forgets and is_bucket)


@WRITTEN
@settings(max_examples=40)
@given(SUBJECTS, st.lists(st.booleans(), max_size=40), FATES, st.integers(1, 3))
@example([0, 0], [True, False], [(Fate.KILLED, 1)], 2)
def test_it_is_so_when_the_stream_knows_any_of_the_rows_already(
    is_bucket: bool, id_prefix: str | None, subjects: list[int], forgets: list[bool], fates: Fates, kept: int
) -> None:
    """A replay: the first rows are in the stream, which ``forgets`` the ids of some of them."""
    known = [(f"S.{subject}", f"{PREFIX}{row}") for row, subject in enumerate(subjects)][: len(forgets)]
    forgotten = [row for (_, row), each in zip(known, forgets, strict=False) if each]
    stream = LastValues(fates, kept, known)
    stream.forget(forgotten)
    with publishing(stream, is_bucket, id_prefix) as publisher:
        if ends_in_doubt(publisher, subjects):
            assert not is_bucket
        else:
            assert stream.values == last_rows(subjects)


@given(st.lists(st.tuples(st.integers(0, 4), st.booleans()), max_size=30))
def test_a_row_is_replaced_by_a_later_one_of_its_subject_that_is_stored(rows: list[tuple[int, bool]]) -> None:
    subjects, stored = pa.array([str(subject) for subject, _ in rows]), np.array([each for _, each in rows], np.bool_)
    last: dict[int, int] = defaultdict(lambda: -1)
    for i, (subject, is_stored) in enumerate(rows):
        if is_stored:
            last[subject] = i
    expected = [not is_stored and i < last[subject] for i, (subject, is_stored) in enumerate(rows)]
    assert are_unstored_but_replaced(subjects, stored).tolist() == expected


def test_rows_get_other_ids_however_the_header_is_written() -> None:
    blocks = byte_strings([b"NATS/1.0\r\na: 1\r\nnats-msg-id:x\r\n\r\n", b"NATS/1.0\r\nNats-Msg-Id: y\r\nb: 2\r\n\r\n"])
    texts = pa.array(["x", "y"])
    rows = with_other_ids(Rows(np.arange(2), texts, texts, blocks, texts, since=1.0, after=2, again=True))
    assert rows.ids is not None
    found = first_header_values(rows.headers, MSG_ID).cast(pa.string())
    assert found == rows.ids
    assert [each.rpartition("-")[2] for each in rows.ids.to_pylist()] == ["x", "y"]
    assert len(set(rows.ids.to_pylist())) == 2
    assert (rows.since, rows.after, rows.again) == (0.0, 0, False)


@pytest.mark.parametrize("behind", [[], ["another"]])
def test_what_somebody_else_stores_behind_rows_that_are_stored_in_another_order_is_newer_and_stays(
    behind: list[str],
) -> None:
    class Disturbed(LastValues):
        def ids_behind(self, since: int) -> StoredIds:
            for row in [f"{PREFIX}1", f"{PREFIX}0", *behind]:  # by another attempt at the task, and by somebody else
                self._store("S.0", row)
            return super().ids_behind(since)

    stream = Disturbed([(Fate.KILLED, 1)], 10)
    with publishing(stream, is_bucket=False) as publisher:
        give(publisher, [0, 0])
    assert stream.values == {"S.0": "another" if behind else "1"}


def test_a_row_that_somebody_else_may_have_replaced_is_in_doubt_and_not_sent_again() -> None:
    class Replaced(LastValues):
        def ids_behind(self, since: int) -> StoredIds:
            self._store("S.0", "another")
            return super().ids_behind(since)

    stream = Replaced([(Fate.KILLED, 1)], 1)
    with publishing(stream, is_bucket=False) as publisher:
        assert ends_in_doubt(publisher, [0])
    assert stream.values == {"S.0": "another"}


def test_what_a_stream_had_before_it_stored_anything_is_in_order() -> None:
    behind = Overtaken(is_replay=False)
    assert not behind.must_note(np.array([True, True]), is_mixed=False)
    assert not behind.must_note(np.array([False]), is_mixed=False)
    assert behind.must_note(np.array([True]), is_mixed=False)


def test_a_cluster_says_what_it_had_before_it_says_what_it_has_stored_earlier() -> None:
    behind = Overtaken(is_replay=False)
    texts = pa.array(["S.a", "S.b"])
    for number, had, sequence in ((2, True, 1), (0, False, 3)):
        answers = np.array([had, had])
        assert behind.must_note(answers, is_mixed=True)
        rows = Rows(np.arange(number, number + 2), texts, texts, None, texts)
        behind.note(rows, answers, np.array([sequence, sequence + 1]))
    taken = behind.take_and_clear()
    assert taken is not None
    assert (taken[0].numbers.tolist(), taken[1].tolist()) == ([2, 3], [1, 2])
