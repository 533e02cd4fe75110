"""Rows that cannot be sent: they are left out or stored elsewhere with the reason, and the other rows are stored."""

from __future__ import annotations

import json
import random
import secrets
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from spark_nats.client import connect
from spark_nats.errors import DataLossError, InvalidRowError, PublishError
from spark_nats.jetstream import JetStream
from spark_nats.jetstream.keyvalue import create_bucket_if_missing
from spark_nats.kinds.streams.write import notes, replay
from spark_nats.kinds.streams.write.partitions import write_partition
from spark_nats.kinds.streams.write.sink import sink_of
from spark_nats.kinds.streams.write.tasks import Counts, WriteTask
from tests.connections import options_for, write_options
from tests.integration.kinds.buckets.test_bucket_write import Kv
from tests.integration.kinds.streams.write.test_settled_replays import forget
from tests.integration.support import MENDING, finish, nats, run_task, save, sentence_of, table, write
from tests.nats_py import Collected, Message, NatsPy, wait_until
from tests.servers import Server, ServerFactory

FORGETFUL = {"duplicate_window": 100_000_000}  # nanoseconds, the least that the server allows


@pytest.fixture(autouse=True, scope="module")
def state_bucket(nats_server: Server) -> None:
    """Make the bucket that the driver would make."""
    with connect(options_for(nats_server.url)) as connection:
        create_bucket_if_missing(JetStream(connection), "SPARK_NATS")


@pytest.fixture
def bad(nats_py: NatsPy, unique: str) -> str:
    """A stream for bad rows."""
    nats_py.create_stream(f"BAD_{unique}", [f"bad_{unique}.>"])
    return f"BAD_{unique}"


def set_aside(bad: str) -> dict[str, str]:
    return {"badRows": "stream", "badRowsStream": bad}


def headers_of(message: Message) -> dict[str, str]:
    assert message.headers is not None
    return {name: values[0] for name, values in message.headers.items()}


GOOD, LONG = {"subject": "good", "payload": b"good"}, b"x" * 2000
OF_COLUMNS: dict[str, tuple[dict[str, Any], str]] = {
    "a subject with a wildcard": ({"subject": "a.*"}, "column 'subject' "),
    "no subject": ({"subject": None}, "column 'subject' is null"),
    "a subject that is too long": ({"subject": "a" * 5000}, "column 'subject' is too long"),
    "no payload": ({"payload": None}, "column 'payload' is null; an empty payload is written as ''"),
    "a line break in a header": ({"headers": [("a", ["1\r\n2"])]}, "column 'headers' has a header value with a line"),
    "an empty message id": ({"msg_id": ""}, "column 'msg_id' is empty"),
    "a lifetime that is none": ({"ttl": "soon"}, "column 'ttl' "),
    "a reply": ({"reply": "r"}, "column 'reply' is not null"),
    "a payload that is too large": ({"payload": b"x" * (1 << 20)}, "column 'payload' is larger with its headers than"),
}
OF_SERVER: dict[str, tuple[dict[str, Any], str]] = {
    "more than the stream's max_msg_size": (
        {"payload": LONG},
        "column 'payload' is larger with its headers than the stream's max_msg_size of 1000 bytes",
    ),
    "another stream's subject": ({"subject": "other"}, "another stream listens on it"),
    "nobody's subject": ({"subject": "nobody"}, "no stream listens on it"),
    "another last message than there is": (
        {"expected_last_subject_sequence": 99},
        "it expects the subject's last message at sequence 99, but: wrong last sequence",
    ),
    "a subject that is full": ({"subject": "full.1"}, "maximum messages per subject exceeded (503, 10077)"),
    "a rollup": ({"headers": [("Nats-Rollup", ["sub"])]}, "rollup not permitted (500, 10111)"),
    "another last id than there is": ({"headers": [("Nats-Expected-Last-Msg-Id", ["a"])]}, "wrong last msg ID"),
}
TYPES = {
    "subject": pa.string(),
    "payload": pa.binary(),
    "headers": pa.map_(pa.string(), pa.list_(pa.string())),
    "msg_id": pa.string(),
    "ttl": pa.string(),
    "reply": pa.string(),
    "expected_last_subject_sequence": pa.int64(),
}


def rows_of(rows: list[dict[str, Any]], place: str = "") -> pa.Table:
    names = sorted({name for row in rows for name in row})
    columns = {name: [row.get(name) for row in rows] for name in names}
    columns["subject"] = [subject and place + subject for subject in columns["subject"]]
    return pa.table({name: pa.array(values, TYPES[name]) for name, values in columns.items()})


@pytest.mark.needs("ttl", only="a lifetime that is none")
@pytest.mark.needs("named streams", only="another stream's subject")
@pytest.mark.parametrize("what", [*OF_COLUMNS, *OF_SERVER])
def test_a_row_that_cannot_be_sent_is_stored_elsewhere_with_the_reason_and_the_others_are_stored(
    nats_server: Server, nats_py: NatsPy, unique: str, bad: str, what: str
) -> None:
    changes, reason = (OF_COLUMNS | OF_SERVER)[what]
    full = what == "a subject that is full"
    subjects = [f"{unique}.good", f"{unique}.full.*", f"{unique}.a.*"]
    limits = {"max_msgs_per_subject": 1, "discard": "new", "discard_new_per_subject": True} if full else {}
    if "size" in what:
        limits["max_msg_size"] = 1000
    nats_py.create_stream(unique, subjects, allow_msg_ttl=True, **limits)
    nats_py.create_stream(f"OTHER_{unique}", [f"{unique}.other"])
    good = [{**GOOD, "subject": f"full.{i}"} if full else GOOD for i in (1, 2, 3)]
    row = {**GOOD, "payload": b"bad", **changes}
    rows = rows_of([*good[:2], row, good[2]], f"{unique}.")
    counts = run_task(nats_server.url, rows, stream=unique, controlHeaders="true", **set_aside(bad)).counts

    assert [message.payload for message in nats_py.read_stream(unique)] == [b"good"] * 3
    (message,) = nats_py.read_stream(bad)
    assert message.subject == f"bad_{unique}.{unique}"
    headers = headers_of(message)
    assert headers["Bad-Row-Reason"].startswith(reason)
    assert headers["Bad-Row-Target"] == unique
    assert (headers["Bad-Row-Query"], headers["Bad-Row-Micro-Batch"], headers["Bad-Row-Partition"]) == (
        unique,
        "0",
        "0",
    )
    was = json.loads(headers["Bad-Row-Columns"])
    for name, value in changes.items():
        if name == "payload":
            assert (value or b"").startswith(message.payload)
            assert ("Bad-Row-Cut" in headers) == (len(value or b"") > 1 << 19)
        elif what in OF_COLUMNS and name != "subject":
            assert was[name] == (dict(value) if name == "headers" else value)
    if changes.get("subject"):
        assert was["subject"] == f"{unique}.{changes['subject']}"
    if "payload" not in changes:
        assert message.payload == b"bad"
    assert (counts.rows, counts.bad) == (3, 1)


@contextmanager
def stranger(nats_py: NatsPy, subject: str, answer: bytes | None) -> Iterator[Collected | None]:
    """Somebody who listens on a subject, and answers with anything or not at all."""
    if answer is None:
        with nats_py.collect(subject) as collected:
            yield collected
    else:
        with nats_py.respond(subject, lambda _: answer):
            yield None


ANSWERS = {
    "nothing": None,
    "no bytes": b"",
    "something": b'{"ok":true}',
    "an error": b'{"error":{"code":500,"description":"no"}}',
}
of_answers = pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)


@of_answers
@pytest.mark.parametrize("fate", ["drop", "stream"])
def test_a_subject_on_which_only_somebody_else_listens_makes_one_row_bad(
    nats_server: Server, nats_py: NatsPy, unique: str, bad: str, fate: str, answer: bytes | None
) -> None:
    nats_py.create_stream(unique)
    strange = {**GOOD, "subject": f"service.{unique}", "payload": b"bad"}
    good = {**GOOD, "subject": f"{unique}.good"}
    options = {"badRows": "drop"} if fate == "drop" else set_aside(bad)
    with stranger(nats_py, strange["subject"], answer) as collected:
        rows = rows_of([good, strange, good, strange, good])
        counts = run_task(nats_server.url, rows, stream=unique, **options).counts
        assert collected is None or len(collected.wait(2)) == 2, "a row is not sent again to whoever takes no rows"
    assert (counts.rows, counts.bad) == (3, 2)
    assert [message.payload for message in nats_py.read_stream(unique)] == [b"good"] * 3
    if fate == "stream":
        for message in nats_py.read_stream(bad):
            said = headers_of(message)
            no_answer = "the stream does not listen on it, and whoever does has not answered"
            assert said["Bad-Row-Reason"].startswith(no_answer if answer is None else "something other than the stream")
            assert json.loads(said["Bad-Row-Columns"])["subject"] == strange["subject"]


@of_answers
@pytest.mark.parametrize("ids", ["window", "false"])
def test_such_a_row_is_named_where_it_fails_its_task(
    nats_server: Server, nats_py: NatsPy, unique: str, ids: str, answer: bytes | None
) -> None:
    nats_py.create_stream(unique)
    subject = f"service.{unique}"
    rows = rows_of([{**GOOD, "subject": each} for each in (f"{unique}.1", subject, f"{unique}.2")])
    # Without message ids, rows that are not answered are waited for until the time is up.
    options = {"deduplicate": ids, "ackTimeout": "5s" if ids == "false" else "60s"}
    with stranger(nats_py, subject, answer):
        said = sentence_of(lambda: run_task(nats_server.url, rows, stream=unique, **options))
    why = (
        "the stream does not listen on it, and "
        if answer is None
        else "something other than the stream answers on it: "
    )
    assert f"stream '{unique}' refused row 1 (subject '{subject}'): {why}" in said
    assert "of this task's rows 2 were stored, and none of the others was stored" in said


HUGE = "x" * 70_000
OF_HEADERS: dict[str, dict[str, Any]] = {
    "headers that are larger than a stream takes": {"headers": [("a", [HUGE])]},
    "a message id that is larger than a stream takes": {"msg_id": HUGE},
    "such headers in a row that is bad for something else": {"headers": [("a", [HUGE])], "subject": "a.*"},
}


@pytest.mark.parametrize("fate", ["drop", "stream"])
@pytest.mark.parametrize("what", OF_HEADERS)
def test_headers_of_more_than_64_kib_make_one_row_bad_and_what_is_stored_of_it_has_fewer(
    nats_server: Server, nats_py: NatsPy, unique: str, bad: str, what: str, fate: str
) -> None:
    nats_py.create_stream(unique)
    rows = rows_of([GOOD, {**GOOD, "payload": b"bad", **OF_HEADERS[what]}, GOOD], f"{unique}.")
    options = {"badRows": "drop"} if fate == "drop" else set_aside(bad)
    for _ in range(2):  # a replay leaves it where it is
        counts = run_task(nats_server.url, rows, stream=unique, **options).counts
        assert (counts.rows, counts.bad) == (2, 1)
    assert [message.payload for message in nats_py.read_stream(unique)] == [b"good"] * 2
    if fate == "stream":
        (message,) = nats_py.read_stream(bad)
        assert message.payload == b"bad"
        headers = headers_of(message)
        assert headers["Bad-Row-Cut"].startswith("columns of 7")
        assert headers["Bad-Row-Columns"].startswith("{")
        of_subject = "subject" in OF_HEADERS[what]
        reason = "column 'subject' " if of_subject else "header size exceeds maximum allowed of 64k (400, 10097)"
        assert headers["Bad-Row-Reason"].startswith(reason)


@pytest.mark.needs("named streams", "large refusals")
@pytest.mark.parametrize("fate", ["drop", "stream"])
def test_a_payload_of_more_than_a_stream_can_store_makes_one_row_bad_and_is_cut(
    server_factory: ServerFactory, fate: str
) -> None:
    server = server_factory("max_payload: 60MB\nmax_pending: 120MB")
    with connect(options_for(server.url)) as connection:
        create_bucket_if_missing(JetStream(connection), "SPARK_NATS")
    with NatsPy(server.url) as nats_py:
        nats_py.create_stream("ORDERS")
        nats_py.create_stream("BAD", ["bad.>"])
        rows = rows_of([GOOD, {**GOOD, "payload": bytes(33 << 20)}, GOOD], "ORDERS.")
        options = {"badRows": "drop"} if fate == "drop" else set_aside("BAD")
        assert run_task(server.url, rows, stream="ORDERS", **options).counts.bad == 1
        assert [message.payload for message in nats_py.read_stream("ORDERS")] == [b"good"] * 2
        if fate == "stream":
            (message,) = nats_py.read_stream("BAD")
            assert headers_of(message)["Bad-Row-Reason"] == "message too large (503, 10077)"
            assert headers_of(message)["Bad-Row-Cut"] == f"payload of {33 << 20} bytes"
            assert 31 << 20 < len(message.payload) < 32 << 20


@pytest.mark.needs("ttl", only="a lifetime that is none")
@pytest.mark.parametrize("what", [*OF_COLUMNS, *OF_SERVER])
def test_such_a_row_fails_its_task_unless_another_fate_is_asked_for(
    nats_server: Server, nats_py: NatsPy, unique: str, what: str
) -> None:
    changes, reason = (OF_COLUMNS | OF_SERVER)[what]
    nats_py.create_stream(unique, [f"{unique}.good", f"{unique}.full.*"], allow_msg_ttl=True)
    if what in ("a subject that is full", "more than the stream's max_msg_size"):
        return  # of this stream neither is
    rows = rows_of([{**GOOD, **changes}], f"{unique}.")
    said = sentence_of(lambda: run_task(nats_server.url, rows, stream=unique, controlHeaders="true"))
    assert reason in said or "no stream listens on it" in said
    assert nats_py.held(unique) == 0


def test_rows_may_be_left_out_which_is_counted_and_said(
    nats_server: Server, nats_py: NatsPy, unique: str, caplog: pytest.LogCaptureFixture
) -> None:
    nats_py.create_stream(unique, max_msg_size=1000)
    payloads = [b"1", None, LONG, b"2", None]
    rows = table(subject=[f"{unique}.a"] * 5, payload=payloads)
    counts = run_task(nats_server.url, rows, stream=unique, badRows="drop").counts
    assert nats_py.stored_texts(unique) == ["1", "2"]
    assert (counts.rows, counts.bad) == (2, 3)
    assert str(counts).endswith(", 3 bad")
    (said,) = (record.getMessage() for record in caplog.records if "left out" in record.getMessage())
    assert said == (
        "[NATS_BAD_ROWS_DROPPED] 3 of the 5 rows of partition 0 of micro-batch 0 could not be sent and were left out; "
        "the first: column 'payload' is null; an empty payload is written as ''"
    )


BATCHES = st.lists(st.sampled_from(["good", "null", "star", "long", "other", "large"]), min_size=1, max_size=20)


@pytest.mark.promise("exactly-once#bad-rows")
@settings(
    max_examples=10,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(BATCHES, st.randoms(use_true_random=False))
def test_whatever_is_replayed_late_and_in_any_order_each_row_is_stored_once_in_the_one_place_or_the_other(
    nats_server: Server, nats_py: NatsPy, kinds: list[str], order: random.Random
) -> None:
    name = f"S_{secrets.token_hex(8)}"  # the fixture `unique` is the same for all examples
    nats_py.create_stream(name, max_msg_size=1000, **FORGETFUL)
    nats_py.create_stream(f"BAD_{name}", **FORGETFUL)
    made = {
        "null": {"payload": None},
        "star": {"subject": f"{name}.*", "payload": b"star"},
        "long": {"payload": b"long" * 400},
        "other": {"subject": "elsewhere.a", "payload": b"other"},
        "large": {"payload": b"large" * 220_000},
    }
    rows = [{"subject": f"{name}.a", "payload": b"good", **made.get(kind, {})} for kind in kinds]
    bad = sum(kind != "good" for kind in kinds)
    before = None
    for _ in range(3):
        counts = run_task(
            nats_server.url, rows_of(rows), stream=name, prepared=False, **set_aside(f"BAD_{name}")
        ).counts
        assert (counts.rows, counts.bad) == (len(rows) - bad, bad)
        assert nats_py.stored_texts(name) == ["good"] * (len(rows) - bad)
        stored = [message.payload[:5] for message in nats_py.read_stream(f"BAD_{name}")]
        assert before in (None, stored)
        before = stored
        order.shuffle(rows)
    expected = Counter({"null": b"", "long": b"longl"}.get(kind, kind.encode()) for kind in kinds if kind != "good")
    assert Counter(before) == expected
    nats_py.delete_stream(name)
    nats_py.delete_stream(f"BAD_{name}")


@pytest.mark.promise("exactly-once#bad-rows")
def test_a_row_stays_where_it_is_though_the_server_takes_it_later(
    nats_server: Server, nats_py: NatsPy, unique: str, bad: str
) -> None:
    nats_py.create_stream(unique, max_msg_size=1000, **FORGETFUL)
    rows = table(subject=[f"{unique}.a"] * 2, payload=[b"1", LONG])
    run_task(nats_server.url, rows, stream=unique, **set_aside(bad))
    config = nats_py.stream_info(unique)["config"]
    nats_py.api(f"STREAM.UPDATE.{unique}", {**config, "max_msg_size": -1})
    counts = run_task(nats_server.url, rows, stream=unique, **set_aside(bad)).counts
    assert counts == Counts(rows=1, duplicates=1, bad=1)
    assert (nats_py.held(unique), nats_py.held(bad)) == (1, 1)


def test_a_row_that_was_stored_before_the_server_refused_such_rows_is_not_stored_elsewhere_too(
    nats_server: Server, nats_py: NatsPy, unique: str, bad: str
) -> None:
    nats_py.create_stream(unique, **FORGETFUL)
    rows = table(subject=[f"{unique}.a"] * 2, payload=[b"1", LONG])
    run_task(nats_server.url, rows, stream=unique, **set_aside(bad))
    config = nats_py.stream_info(unique)["config"]
    nats_py.api(f"STREAM.UPDATE.{unique}", {**config, "max_msg_size": 1000})
    counts = run_task(nats_server.url, rows, stream=unique, **set_aside(bad)).counts
    assert counts == Counts(rows=2, duplicates=2)
    assert (nats_py.held(unique), nats_py.held(bad)) == (2, 0)


@pytest.mark.promise("exactly-once#bad-rows")
def test_a_bad_row_is_stored_once_that_an_earlier_attempt_has_stored_since_this_one_began(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    nats_py.create_stream(unique, **FORGETFUL)
    nats_py.create_stream(f"BAD_{unique}", **FORGETFUL)
    options = write_options(nats_server.url, stream=unique, **set_aside(f"BAD_{unique}"))
    task, rows = WriteTask(unique, "0", 0), table(subject=[f"{unique}.a"] * 2, payload=[b"1", None])
    write_partition(options, task, iter([]))

    def late() -> Iterator[pa.RecordBatch]:
        with pytest.MonkeyPatch.context() as earlier:  # which has noted before that it begins
            earlier.setattr(notes, "write_note_or_pause", lambda *_: 1 << 60)
            write_partition(options, task, iter(rows.to_batches()))
        forget(nats_py, unique)
        yield from rows.to_batches()

    assert write_partition(options, task, late()).counts == Counts(rows=1, duplicates=1, bad=1)
    assert nats_py.held(f"BAD_{unique}") == 1
    assert nats_py.stored_texts(unique).count("1") == 1


def test_a_bad_row_that_somebody_has_deleted_is_stored_again_when_it_is_replayed(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    nats_py.create_stream(unique, **FORGETFUL)
    nats_py.create_stream(f"BAD_{unique}", **FORGETFUL)
    rows = table(subject=[f"{unique}.a"] * 2, payload=[b"1", None])
    run_task(nats_server.url, rows, stream=unique, **set_aside(f"BAD_{unique}"))
    nats_py.purge_stream(f"BAD_{unique}")
    wait_until(lambda: replayed(nats_server, unique) and nats_py.held(f"BAD_{unique}") == 1)  # the id is forgotten
    assert nats_py.held(unique) == 1


def test_rows_that_were_all_bad_show_that_the_state_bucket_was_put_back(
    nats_server: Server, nats_py: NatsPy, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    nats_py.create_stream(unique, **FORGETFUL)
    nats_py.create_stream(f"BAD_{unique}", **FORGETFUL)
    rows = table(subject=[f"{unique}.a"] * 2, payload=[None, None])
    run_task(nats_server.url, rows, stream=unique, **set_aside(f"BAD_{unique}"))
    nats_py.publish_acked([(f"$KV.SPARK_NATS.{unique}.0", b"", {"KV-Operation": "DEL"})])
    monkeypatch.setattr(replay, "_noted", {})  # another process
    known = f"it does not know partition 0 of micro-batch 0, of which stream 'BAD_{unique}' has 2 rows"
    with pytest.raises(DataLossError, match=known):
        run_task(nats_server.url, rows, stream=unique, **set_aside(f"BAD_{unique}"))
    run_task(nats_server.url, rows, stream=unique, failOnDataLoss=False, **set_aside(f"BAD_{unique}"))
    assert nats_py.held(f"BAD_{unique}") == 2


def replayed(server: Server, stream: str) -> bool:
    rows = table(subject=[f"{stream}.a"] * 2, payload=[b"1", None])
    return run_task(server.url, rows, stream=stream, **set_aside(f"BAD_{stream}")).counts.bad == 1


def test_many_bad_rows_are_stored_in_portions(nats_server: Server, nats_py: NatsPy, unique: str, bad: str) -> None:
    nats_py.create_stream(unique)
    payloads = [None if i % 2 else b"%d" % i for i in range(6000)]
    rows = table(subject=[f"{unique}.a"] * 6000, payload=payloads)
    counts = run_task(nats_server.url, rows, stream=unique, **set_aside(bad)).counts
    assert (counts.rows, counts.bad) == (3000, 3000)
    assert (nats_py.held(unique), nats_py.held(bad)) == (3000, 3000)


def test_a_bad_row_is_cut_to_what_the_stream_for_bad_rows_takes(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    """Which is less than the server takes."""
    nats_py.create_stream(unique)
    nats_py.create_stream(f"BAD_{unique}", max_msg_size=20_000)
    rows = table(subject=["a b", "a b"], payload=[b"x" * 100_000, b"y" * 1000])
    assert run_task(nats_server.url, rows, stream=unique, **set_aside(f"BAD_{unique}")).counts.bad == 2
    large, small = nats_py.read_stream(f"BAD_{unique}")
    assert headers_of(large)["Bad-Row-Cut"] == "payload of 100000 bytes"
    assert 15_000 < len(large.payload) < 20_000
    assert ("Bad-Row-Cut" in headers_of(small), small.payload) == (False, b"y" * 1000)


def test_rows_for_a_bucket_are_told_by_their_keys(nats_server: Server, nats_py: NatsPy, unique: str, bad: str) -> None:
    kv = Kv(nats_py, unique, history=1)
    kv.put("taken", b"theirs")
    rows = pa.table(
        {
            "key": ["a", "b c", "taken", "d"],
            "value": [b"1", b"2", b"3", None],
            "expected_revision": pa.array([None, None, 0, None], pa.int64()),
        }
    )
    options = {"bucket": unique, **set_aside(bad)}
    parsed = write_options(nats_server.url, **options)
    counts = write_partition(parsed, WriteTask(unique, "0", 0), iter(rows.to_batches()), sink_of(parsed)).counts
    assert (counts.rows, counts.bad) == (1, 3)
    found = {json.loads(headers_of(each)["Bad-Row-Columns"]).get("key"): each for each in nats_py.read_stream(bad)}
    assert set(found) == {"b c", "d", None}
    assert headers_of(found["b c"])["Bad-Row-Target"] == unique
    assert json.loads(headers_of(found[None])["Bad-Row-Columns"])["subject"] == f"$KV.{unique}.taken"
    assert "the key 'taken'" in headers_of(found[None])["Bad-Row-Reason"]
    assert found[None].payload == b"3"


def test_rows_for_core_nats_are_checked_before_they_are_sent(
    nats_server: Server, nats_py: NatsPy, unique: str, bad: str
) -> None:
    parsed = write_options(nats_server.url, subject=unique, **set_aside(bad))
    batch = pa.RecordBatch.from_pydict({"payload": pa.array([b"1", None, b"2"])})
    with nats_py.collect(unique) as collected:
        counts = write_partition(parsed, WriteTask(unique, "0", 0), iter([batch])).counts
        assert [message.payload for message in collected.wait(2)] == [b"1", b"2"]
    assert (counts.rows, counts.bad) == (2, 1)
    (message,) = nats_py.read_stream(bad)
    assert message.subject == f"bad_{unique}.core"
    assert headers_of(message)["Bad-Row-Target"] == "core NATS"


@pytest.mark.parametrize("fate", ["drop", "stream"])
def test_what_keeps_every_row_from_being_stored_is_an_error_as_ever(
    nats_server: Server, nats_py: NatsPy, unique: str, bad: str, fate: str
) -> None:
    options = {"badRows": "drop"} if fate == "drop" else set_aside(bad)
    rows = table(subject=[f"{unique}.a"] * 3, payload=[b"1", b"2", b"3"])
    nats_py.create_stream(unique, max_msgs=1, discard="new")
    assert "maximum messages exceeded" in sentence_of(lambda: run_task(nats_server.url, rows, stream=unique, **options))
    assert nats_py.held(bad) == 0


def test_a_subject_of_all_rows_on_which_no_stream_listens_is_an_error_as_ever(
    nats_server: Server, nats_py: NatsPy, unique: str, bad: str
) -> None:
    nats_py.create_stream(unique)
    rows = table(payload=[b"1"])
    for options in (set_aside(bad), {}):
        said = sentence_of(partial(write, nats_server, rows, stream=unique, subject=f"nobody.{unique}", **options))
        assert "no stream listens on it" in said
        assert said.endswith("; correct the option 'subject', or add it to the subjects of the stream")
        assert "badRows" not in said
    assert nats_py.held(bad) == 0
    said = sentence_of(lambda: write(nats_server, table(subject=["nobody"], payload=[b"1"]), stream=unique))
    assert said.endswith(MENDING)


def test_rows_that_are_for_another_stream_are_a_mistake_and_not_bad(
    nats_server: Server, nats_py: NatsPy, unique: str, bad: str
) -> None:
    nats_py.create_stream(unique)
    rows = table(subject=[f"{unique}.a"], payload=[b"1"], stream=["OTHER"])
    with pytest.raises(InvalidRowError, match="this column does not route rows"):
        run_task(nats_server.url, rows, stream=unique, **set_aside(bad))
    assert nats_py.held(bad) == 0


@pytest.mark.needs("counters")
def test_a_stream_that_cannot_take_bad_rows_is_told_before_anything_is_sent(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    nats_py.create_stream(unique)
    rows = table(subject=[f"{unique}.a"], payload=[b"1"])

    def said(bad: str) -> str:
        return sentence_of(lambda: run_task(nats_server.url, rows, stream=unique, **set_aside(bad)))

    assert "does not exist" in said(f"MISSING_{unique}")
    nats_py.create_stream(f"MIRROR_{unique}", [], mirror={"name": unique})
    assert "listens on no subject of its own" in said(f"MIRROR_{unique}")
    Kv(nats_py, f"B_{unique}", history=1)
    assert "listens on no subject of its own" in said(f"KV_B_{unique}")
    nats_py.create_stream(f"SMALL_{unique}", max_msg_size=4096)
    assert "takes messages of 4096 bytes at most (max_msg_size)" in said(f"SMALL_{unique}")
    nats_py.create_stream(f"COUNTERS_{unique}", allow_msg_counter=True)
    assert "takes only increments of counters" in said(f"COUNTERS_{unique}")
    nats_py.create_stream(f"SILENT_{unique}", no_ack=True)
    assert "does not acknowledge" in said(f"SILENT_{unique}")
    assert nats_py.held(unique) == 0


def test_bad_rows_that_cannot_be_stored_either_fail_the_task_and_are_stored_by_its_replay(
    nats_server: Server, nats_py: NatsPy, unique: str, bad: str
) -> None:
    nats_py.create_stream(unique)
    rows = table(subject=[f"{unique}.a"] * 2, payload=[b"1", None])
    config = nats_py.stream_info(bad)["config"]
    nats_py.api(f"STREAM.UPDATE.{bad}", {**config, "max_bytes": 10, "discard": "new"})
    with pytest.raises(PublishError, match="could not be stored in stream 'BAD_.*maximum bytes exceeded"):
        run_task(nats_server.url, rows, stream=unique, **set_aside(bad))
    nats_py.api(f"STREAM.UPDATE.{bad}", config)
    assert run_task(nats_server.url, rows, stream=unique, **set_aside(bad)).counts.bad == 1
    assert (nats_py.held(unique), nats_py.held(bad)) == (1, 1)


def test_rows_of_a_task_that_is_split_otherwise_are_noticed_in_the_stream_for_bad_rows_too(
    nats_server: Server, nats_py: NatsPy, unique: str, bad: str
) -> None:
    nats_py.create_stream(unique)
    run_task(
        nats_server.url, table(subject=["a b", f"{unique}.a"], payload=[b"1", b"2"]), stream=unique, **set_aside(bad)
    )
    rows = table(subject=[f"{unique}.a"], payload=[b"2"])
    with pytest.raises(PublishError, match="are not among its 1 rows now"):
        run_task(nats_server.url, rows, stream=unique, **set_aside(bad))


def test_a_query_goes_on_with_bad_rows_and_a_replay_of_its_last_micro_batch_changes_nothing(
    spark: SparkSession, nats_server: Server, nats_py: NatsPy, unique: str, bad: str, tmp_path: Path
) -> None:
    nats_py.create_stream(unique)
    nats_py.create_stream(f"IN_{unique}", [f"in_{unique}.>"], duplicate_window=0)
    nats_py.store(f"in_{unique}.a", [b"%d" % i for i in range(100)])
    source = nats(spark.readStream, nats_server, stream=f"IN_{unique}", startingOffsets="earliest").load()
    subject = f"if(CAST(string(payload) AS INT) % 10 = 3, 'two words', '{unique}.a') AS subject"
    sink = nats(source.selectExpr(subject, "payload").writeStream, nats_server, stream=unique, **set_aside(bad))
    sink = sink.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True)
    for _ in range(2):
        finish(sink.start())
        assert sorted(map(int, nats_py.stored_texts(unique))) == [i for i in range(100) if i % 10 != 3]
        assert sorted(map(int, nats_py.stored_texts(bad))) == [i for i in range(100) if i % 10 == 3]
        for name in ("0", ".0.crc"):
            (tmp_path / "commits" / name).unlink(missing_ok=True)
    rows = nats(spark.read, nats_server, stream=bad).load()
    columns = rows.selectExpr("from_json(headers['Bad-Row-Columns'][0], 'subject STRING').subject AS was")
    assert {row.was for row in columns.collect()} == {"two words"}


def test_spark_writes_the_rows_of_a_batch_that_can_be_sent_and_sets_all_others_aside(
    spark: SparkSession, nats_server: Server, nats_py: NatsPy, unique: str, bad: str
) -> None:
    nats_py.create_stream(unique, [unique, f"{unique}.>"])
    good = [(f"{unique}.a", b"1"), (unique, b""), (f"{unique}.ä-b.$c", bytes(999_999))]
    subjects = [None, "", "a b", "a\tb", "a..b", ".a", "a.", "a.*", "a.>", "a\x01b", "a\n"]
    others = [(f"{unique}.a", None), (f"{unique}.a", bytes(2_000_000)), *((subject, b"1") for subject in subjects)]
    frame = spark.createDataFrame(good + others, "subject STRING, payload BINARY")
    save(frame, nats_server, stream=unique, **set_aside(bad))
    assert (nats_py.held(unique), nats_py.held(bad)) == (len(good), len(others))
