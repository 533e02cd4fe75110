"""What rows become before they are sent: their headers, their ids, and which of them no server would take."""

from __future__ import annotations

import logging
from typing import Any

import pyarrow as pa
import pytest

from spark_nats.errors import InvalidRowError
from spark_nats.kinds.queries import parse_write_options
from spark_nats.kinds.streams.write.columns import RowChecker
from spark_nats.kinds.streams.write.message_ids import MessageIds
from spark_nats.protocol.control import MAX_CONTROL_LINE
from spark_nats.protocol.encoder import encode_messages
from spark_nats.protocol.headers import (
    CONTROL_PREFIX,
    EXPECTED_STREAM,
    HEADERS_TYPE,
    MSG_ID,
    parse_block,
)

MAX_PAYLOAD = 1 << 20
Headers = dict[str, list[str]]


def checker(ids: MessageIds | None = None, names_stream: bool = True, **options: str) -> RowChecker:
    return RowChecker(parse_write_options(options, streaming=False), MAX_PAYLOAD, ids, names_stream)


def batch(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    """Rows with all columns; what a row leaves out is null."""
    types = {"subject": pa.string(), "payload": pa.binary(), "headers": HEADERS_TYPE}
    types |= {"msg_id": pa.string(), "reply": pa.string()}
    whole = [{"subject": "a", "payload": b"", **row} for row in rows]
    whole = [{**row, "headers": list(row["headers"].items()) if "headers" in row else None} for row in whole]
    return pa.RecordBatch.from_pylist(whole, pa.schema(list(types.items())))


def headers_of(found: RowChecker, *rows: dict[str, Any]) -> list[Headers]:
    """The headers that rows are sent with."""
    checked = found.check_and_encode(batch(list(rows)), 0)
    if checked.headers is None:
        return [{} for _ in rows]
    return [{} if block is None else parse_block(block) for block in checked.headers.to_pylist()]


CONTROL = {
    MSG_ID: ["x"],
    EXPECTED_STREAM: ["ELSEWHERE"],
    "Nats-Rollup": ["all"],
    "Nats-TTL": ["1s"],
    "Nats-Expected-Last-Sequence": ["7"],
}


@pytest.mark.parametrize("stream", [{}, {"stream": "S"}])
def test_headers_on_which_servers_act_are_left_out(stream: dict[str, str]) -> None:
    added = {EXPECTED_STREAM: ["S"]} if stream else {}
    found = headers_of(checker(**stream), {"headers": {**CONTROL, "K": ["1", "2"]}}, {"headers": {"nats-ttl": ["1"]}})
    assert found == [{"K": ["1", "2"], **added}, {"nats-ttl": ["1"], **added}]


def test_they_are_sent_when_that_is_asked_for() -> None:
    assert headers_of(checker(controlHeaders="true"), {"headers": CONTROL}) == [CONTROL]
    to_stream = headers_of(checker(controlHeaders="true", stream="S"), {"headers": CONTROL})
    assert to_stream == [{**CONTROL, EXPECTED_STREAM: ["S"]}]


def test_what_is_left_out_is_said_once_for_each_task(caplog: pytest.LogCaptureFixture) -> None:
    found = checker()
    with caplog.at_level(logging.WARNING):
        headers_of(found, {"headers": {MSG_ID: ["x"], EXPECTED_STREAM: ["S"], "K": ["v"]}})
        assert caplog.messages == []
        headers_of(found, {"headers": CONTROL}, {"headers": {"Nats-Rollup": ["sub"]}})
        headers_of(found, {"headers": CONTROL})
    assert caplog.messages == [
        "[NATS_CONTROL_HEADERS_LEFT_OUT] "
        "rows have headers that would control the server, and these are not sent: Nats-Expected-Last-Sequence, "
        "Nats-Rollup, Nats-TTL; set the option 'controlHeaders' to true to send them"
    ]
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        headers_of(checker(), {"headers": {f"{CONTROL_PREFIX}{i}": [""] for i in range(10, 30)}})
        headers_of(checker(controlHeaders="true"), {"headers": CONTROL})
    (message,) = caplog.messages
    assert "not sent: Nats-10, Nats-11, Nats-12, Nats-13, Nats-14, Nats-15, Nats-16, Nats-17 and 12 more; " in message


def test_a_stream_of_counters_is_not_named() -> None:
    options = {"stream": "S", "controlHeaders": "true"}
    row = {"headers": {"Nats-Incr": ["+1"], EXPECTED_STREAM: ["ELSEWHERE"]}}
    assert headers_of(checker(names_stream=False, **options), row) == [{"Nats-Incr": ["+1"]}]


def test_generated_ids_are_for_rows_without_their_own_and_count_only_those() -> None:
    ids = MessageIds("0123456789", "4", 2)
    found = checker(ids, stream="S", controlHeaders="true", deduplicate="window")
    same = {"payload": b"same"}
    rows = [same, {**same, "msg_id": "mine"}, {**same, "headers": {MSG_ID: ["theirs"]}}, same]
    first, mine, theirs, second = (headers[MSG_ID][0] for headers in headers_of(found, *rows))
    assert (mine, theirs) == ("mine", "theirs")
    assert first.startswith(ids.prefix)
    assert second == f"{first}-1"
    assert headers_of(found, same)[0][MSG_ID] == [f"{first}-2"]
    assert headers_of(found, {"msg_id": "mine"})[0][MSG_ID] == ["mine"]


def test_headers_that_are_left_out_are_no_part_of_what_a_row_says() -> None:
    found = checker(MessageIds("0123456789", "4", 2), stream="S", deduplicate="window")
    first, again, other = headers_of(
        found, {"headers": {MSG_ID: ["1"], "K": ["v"]}}, {"headers": {"K": ["v"]}}, {"headers": {"K": ["w"]}}
    )
    assert again[MSG_ID] == [f"{first[MSG_ID][0]}-1"]
    assert other[MSG_ID][0][-16:] != first[MSG_ID][0][-16:]


def test_a_line_that_the_server_would_not_take_is_refused() -> None:
    sizes = 2 * len(f" {MAX_PAYLOAD}")
    longest = MAX_CONTROL_LINE - sizes
    row = {"subject": "s" * (longest - 3), "reply": "é", "headers": {"K": ["v"]}, "payload": bytes(500_000)}
    sent = checker().check_and_encode(batch([row]), 0)
    frames = encode_messages(sent.subjects, sent.payloads, sent.replies, sent.headers).to_pybytes()
    line = frames.split(b"\r\n")[0].removeprefix(b"HPUB ")
    assert 0 <= MAX_CONTROL_LINE - len(line) <= sizes
    for one_more in ({"subject": "s" * (longest - 2)}, {"reply": "ée"}):
        with pytest.raises(
            InvalidRowError, match=r"row 8 .* column 'subject' is too long.*4096.*\(its length is 4097 bytes\)"
        ):
            checker().check_and_encode(batch([{}, {**row, **one_more}]), 7)


def test_a_publish_to_a_stream_has_a_reply_that_counts() -> None:
    inbox = "in." * 20 + "box"
    found = checker(stream="S", inboxPrefix=inbox)
    longest = MAX_CONTROL_LINE - 2 * len(f" {MAX_PAYLOAD}") - len(f" {inbox}.0123456789abcdef.0123456789")
    found.check_and_encode(batch([{"subject": "s" * longest}]), 0)
    with pytest.raises(InvalidRowError, match="its length is 4097 bytes"):
        found.check_and_encode(batch([{"subject": "s" * (longest + 1)}]), 0)


def test_rows_that_expect_a_message_are_known_by_their_column_and_by_their_header() -> None:
    rows = batch(
        [
            {"subject": "a"},
            {"subject": "a"},
            {"subject": "b", "headers": {"Nats-Expected-Last-Subject-Sequence": ["7"]}},
        ]
    ).append_column("expected_last_subject_sequence", pa.array([5, 6, None], pa.int64()))
    found = checker(stream="S", controlHeaders="true").check_and_encode(rows, 0)
    assert found.conditional is not None
    assert found.conditional.to_pylist() == [True, True, True]
    assert [part.subjects.to_pylist() for part in found.split_into_independent_parts()] == [["a"], ["a", "b"]]
