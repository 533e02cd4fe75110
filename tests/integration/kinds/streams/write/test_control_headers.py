"""Headers on which servers act, in rows with ``controlHeaders``: which are sent, refused or left out."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from tests.integration.support import MENDING, read, sentence_of, table, write
from tests.nats_py import NatsPy, wait_until
from tests.servers import BINARY_2_10, BINARY_2_12, OLDER_BINARY, Server, ServerFactory

HEADERS = pa.map_(pa.string(), pa.list_(pa.string()))
TRACE = {"Nats-Trace-Only": "true", "Nats-Trace-Dest": "traces"}
REFUSED = {
    "Nats-TTL: 5s": "10166",
    "Nats-Rollup: sub": "10111",
    "Nats-Incr: 1": "10168",
    "Nats-Schedule: @every 1h": "10188",
    "Nats-Expected-Last-Sequence: 77": "10071",
    "Nats-Expected-Last-Subject-Sequence: 77": "10071",
    "Nats-Expected-Last-Subject-Sequence-Subject: S.y": "10193",
    "Nats-Expected-Last-Msg-Id: nobody's": "10070",
    "Nats-Scheduler: S.y": "10212",
    "Nats-Schedule-Next: purge": "10212",
}
"""The headers of the page's table that a stream without these features refuses, with the newest server's code."""
STORED = ["Nats-Stream", "Nats-Subject", "Nats-Sequence", "Nats-Time-Stamp", "Nats-Last-Sequence", "Nats-Marker-Reason"]
STORED += ["Nats-Counter-Sources", "Nats-Trace-Dest", "Nats-Trace-Only", "Nats-Schedule-Target", "Nats-Anything"]
LEFT_OUT = ["Nats-Batch-Id", "Nats-Batch-Sequence", "Nats-Batch-Commit", "Nats-Stream-Source"]
OLD = {  # what older servers refuse otherwise, or store
    "2.10": {
        **dict.fromkeys(("Nats-TTL: 5s", "Nats-Incr: 1", "Nats-Schedule: @every 1h"), "that old does not act"),
        "Nats-Expected-Last-Subject-Sequence-Subject: S.y": "",
        **dict.fromkeys(("Nats-Scheduler: S.y", "Nats-Schedule-Next: purge"), ""),
    },
    "2.12": {"Nats-Scheduler: S.y": "", "Nats-Schedule-Next: purge": "10188"},
    "newest": {},
}


@pytest.mark.needs("repeating schedules", only="newest")
@pytest.mark.parametrize(
    ("version", "binary"),
    [("2.10", BINARY_2_10), ("2.12", BINARY_2_12), ("newest", None)],
    ids=["2.10", "2.12", "newest"],
)
@pytest.mark.promise("writing#refused-headers")
@pytest.mark.promise("writing#expected-headers")
@pytest.mark.promise("writing#other-headers")
@pytest.mark.promise("writing#batch-headers")
def test_the_table_of_control_headers_is_what_servers_do(
    server_factory: ServerFactory, version: str, binary: Path | None
) -> None:
    refused = {line: code for line, code in {**REFUSED, **OLD[version]}.items() if code}
    stored = [line for line in REFUSED if line not in refused] + [f"{name}: 1" for name in (*STORED, *LEFT_OUT)]
    headers = [dict([line.split(": ", 1)]) for line in (*refused, *stored)]
    rows = table(subject=["S.x"] * len(headers), payload=[b"x"] * len(headers), headers=headers)
    server = server_factory(binary=binary)
    with NatsPy(server.url) as client:
        client.create_stream("S")
        client.create_stream("BAD")
        write(server, rows, stream="S", controlHeaders=True, badRows="stream", badRowsStream="BAD", ackTimeout="10s")
        reasons = [message.headers["Bad-Row-Reason"][0] for message in client.read_stream("BAD")]
        assert [code for code in refused.values() if not any(code in reason for reason in reasons)] == []
        assert len(reasons) == len(refused), reasons
        kept = [name for message in client.read_stream("S") for name in message.headers]
        assert not set(kept) & set(LEFT_OUT)
        assert {name for name in STORED if kept.count(name) != 1} <= {"Nats-Trace-Dest"}  # 2.12 changes its letters
        assert client.held("S") == len(stored)


@pytest.mark.parametrize("binary", [OLDER_BINARY, None], ids=["2.11", "newest"])
@pytest.mark.parametrize("changes", [{}, {"Nats-Trace-Only": "On"}, {"Nats-Trace-Only": "1"}], ids=["true", "On", "1"])
@pytest.mark.promise("writing#silencing-headers")
def test_a_row_that_the_server_would_only_trace_is_named_or_set_aside(
    server_factory: ServerFactory, binary: Path | None, changes: dict[str, str]
) -> None:
    server = server_factory(binary=binary)
    rows = table(subject=["S.x"] * 3, payload=[b"1", b"2", b"3"], headers=[{}, {**TRACE, **changes}, {}])
    options = {"stream": "S", "controlHeaders": True, "ackTimeout": "10s"}
    with NatsPy(server.url) as client:
        client.create_stream("S")
        assert sentence_of(lambda: write(server, rows, **options)) == (
            "InvalidRowError: row 1 of the task cannot be sent: column 'headers' has headers with which a server only "
            f"traces it, and stores nothing (Nats-Trace-Only); nothing was sent{MENDING}"
        )
        assert client.held("S") == 0
        write(server, rows, **options, badRows="drop")
        assert client.stored_texts("S") == ["1", "3"]
        write(server, rows, stream="S")  # without control headers
        assert client.stored_texts("S") == ["1", "3", "1", "2", "3"]


@pytest.mark.needs("named streams")
@pytest.mark.promise("writing#stream-source")
def test_a_copy_of_a_sourced_row_is_written_with_its_control_headers(server_factory: ServerFactory) -> None:
    server = server_factory()
    with NatsPy(server.url) as client:
        client.create_stream("S")
        client.create_stream("COPY", [], sources=[{"name": "S"}])
        client.create_stream("T")
        client.publish_acked([("S.x", b"a", {"Mine": "1"})])
        wait_until(lambda: client.held("COPY"))
        (row,) = read(server, stream="COPY")
        assert dict(row["headers"])["Nats-Stream-Source"]
        copy = {"subject": ["T.x"], "payload": [row["payload"]], "headers": pa.array([row["headers"]], HEADERS)}
        write(server, pa.table(copy), stream="T", controlHeaders=True, deduplicate="false")
        (message,) = client.read_stream("T")
        assert message.headers == {"Mine": ["1"], "Nats-Expected-Stream": ["T"]}


@pytest.mark.needs("repeating schedules")
@pytest.mark.promise("writing#scheduler-headers")
def test_a_row_may_end_a_schedule(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    nats_py.create_stream(unique, allow_msg_schedules=True)
    schedule = {"Nats-Schedule": "@every 1h", "Nats-Schedule-Target": f"{unique}.now"}
    end = {"Nats-Schedule-Next": "purge", "Nats-Scheduler": f"{unique}.later"}
    for subject, headers in (("later", schedule), ("x", end)):
        rows = table(subject=[f"{unique}.{subject}"], payload=[b""], headers=[headers])
        write(nats_server, rows, stream=unique, controlHeaders=True)
    assert [message.subject for message in nats_py.read_stream(unique)] == [f"{unique}.x"]


@pytest.mark.needs("traces")
@pytest.mark.promise("writing#trace-dest")
def test_a_row_that_is_to_be_traced_is_stored_if_the_user_may_publish_the_trace(server_factory: ServerFactory) -> None:
    may = '{publish: ["S.>", "$JS.>", "_INBOX.>"]}'
    users = f"{{user: a, password: x}}, {{user: b, password: x, permissions: {may}}}"
    server = server_factory(f"authorization: {{users: [{users}]}}")
    rows = table(subject=["S.x"], payload=[b"x"], headers=[{"Nats-Trace-Dest": "traces"}])
    with NatsPy(server.url.replace("//", "//a:x@")) as client, client.collect("traces") as traces:
        client.create_stream("S")
        write(server, rows, stream="S", controlHeaders=True, user="a", password="x")
        assert traces.wait(1)
        said = sentence_of(lambda: write(server, rows, stream="S", controlHeaders=True, user="b", password="x"))
        assert 'Permissions Violation for Publish to "traces"' in said
        assert client.held("S") == 1
