"""What streams get that listen where the target of a write republishes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.integration.support import sentence_of, table, write
from tests.nats_py import NatsPy, wait_until
from tests.servers import BINARY_2_12, Server, ServerFactory

ROW = {"payload": [b"a"]}


@pytest.mark.parametrize("binary", [BINARY_2_12, None], ids=["2.12", "newest"])
@pytest.mark.promise("writing#republished")
def test_a_stream_gets_what_the_target_republishes_and_so_does_one_behind_it(
    server_factory: ServerFactory, binary: Path | None
) -> None:
    server = server_factory(binary=binary)
    targets: dict[str, tuple[pa.Table, dict[str, Any]]] = {
        "S": (table(subject=["S.x"], **ROW), {"stream": "S", "deduplicate": "window"}),
        "BAD": (table(subject=[" "], **ROW), {"stream": "S", "badRows": "stream", "badRowsStream": "BAD"}),
        "KV_B": (pa.table({"key": ["k"], "value": [b"a"]}), {"bucket": "B"}),
        "OBJ_O": (pa.table({"name": ["n"], "content": [b"a"]}), {"objectStore": "O"}),
    }
    subjects = {"S": "S.>", "BAD": "BAD.>", "KV_B": "$KV.B.>", "OBJ_O": "$O.O.>"}
    with NatsPy(server.url) as client:
        for stream, subject in subjects.items():
            client.create_stream(
                stream, [subject], allow_rollup_hdrs=True, republish={"src": ">", "dest": f"{stream}_to.>"}
            )
            client.create_stream(
                f"{stream}_2",
                [f"{stream}_to.>"],
                allow_rollup_hdrs=True,
                republish={"src": ">", "dest": f"{stream}_on.>"},
            )
            client.create_stream(f"{stream}_3", [f"{stream}_on.>"], allow_rollup_hdrs=True)
        for stream, (rows, options) in targets.items():
            write(server, rows, **options)
            held = client.held(stream)
            assert held
            for behind in (f"{stream}_2", f"{stream}_3"):
                wait_until(lambda behind=behind, held=held: client.held(behind) == held, timeout=20)


def test_a_row_for_another_stream_than_the_one_that_republishes_fails_its_task(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    nats_py.create_stream(unique, republish={"src": ">", "dest": f"{unique}_to.>"})
    nats_py.create_stream(other := f"{unique}_OTHER")
    error = sentence_of(lambda: write(nats_server, table(subject=[f"{other}.x"], **ROW), stream=unique))
    assert "refused row 0" in error
    assert f'{{"stream":"{other}","seq":1}}' in error.replace(", ", ",")  # servers before 2.12 write a space


def test_rows_that_a_stream_behind_a_republishing_one_drops_are_warned_of(
    nats_server: Server, nats_py: NatsPy, unique: str, caplog: pytest.LogCaptureFixture
) -> None:
    copies = f"{unique}_COPIES"
    nats_py.create_stream(unique, republish={"src": f"{unique}.*", "dest": f"{copies}.{{{{wildcard(1)}}}}"})
    first = table(subject=[f"{unique}.x"], **ROW)
    then = table(subject=[f"{unique}.x"], payload=[b"b"], expected_last_subject_sequence=[1])
    write(nats_server, first, stream=unique)
    write(nats_server, then, stream=unique)
    assert "REPUBLISHED" not in caplog.text  # nobody but subscribers of core NATS may listen there
    nats_py.create_stream(copies)
    write(nats_server, first, stream=unique)
    assert "REPUBLISHED" not in caplog.text
    then = table(subject=[f"{unique}.x"], payload=[b"d"], expected_last_subject_sequence=[3])
    write(nats_server, then, stream=unique)
    assert (nats_py.held(unique), nats_py.held(copies)) == (4, 1)
    assert f"stream '{unique}' sends its messages on to" in caplog.text
    assert f"where stream '{copies}' listens" in caplog.text
    assert "rows with the column 'expected_last_subject_sequence'" in caplog.text


@pytest.mark.needs("refused copies")
@pytest.mark.promise("writing#republished-copies")
def test_a_stream_drops_what_another_one_has_from_its_sources_and_republishes(server_factory: ServerFactory) -> None:
    """From nats-server 2.15.0 on; no client can help that. A subscriber of core NATS gets it."""
    server = server_factory()
    with NatsPy(server.url) as client, client.collect("on.>") as heard:
        client.create_stream("S")
        client.create_stream("COPY", [], sources=[{"name": "S"}], republish={"src": ">", "dest": "on.>"})
        client.create_stream("BEHIND", ["on.>"])
        write(server, table(subject=["S.x"], **ROW), stream="S")
        assert heard.wait(1)
        client.publish("on.y")
        wait_until(lambda: client.held("BEHIND"))
        assert [message.subject for message in client.read_stream("BEHIND")] == ["on.y"]


@pytest.mark.needs("named streams")
@pytest.mark.promise("writing#streams-elsewhere")
def test_a_stream_of_another_account_needs_a_source_and_no_import_of_subjects(server_factory: ServerFactory) -> None:
    """It hears the rows, with the name of the stream that alone is to store them. Nobody sees that it drops them."""
    users = "users: [{user: %s, password: x}]"
    exports = 'exports: [{stream: "S.>"}, {stream: "deliver.>"}, {service: "$JS.API.>"}, {service: "$JS.FC.>"}]'
    imports = 'imports: [{stream: {account: A, subject: "S.>"}}]'
    accounts = (
        f"A: {{jetstream: enabled, {users % 'a'}, {exports}}}, B: {{jetstream: enabled, {users % 'b'}, {imports}}}"
    )
    server = server_factory(f"accounts: {{{accounts}}}")
    urls = [server.url.replace("//", f"//{user}:x@") for user in "ab"]
    with NatsPy(urls[0]) as ours, NatsPy(urls[1]) as theirs:
        ours.create_stream("S")
        theirs.create_stream("COPY", ["S.>"])
        write(server, table(subject=["S.x"], **ROW), stream="S", user="a", password="x")
        ours.publish_acked([("S.y", b"by another program")])
        wait_until(lambda: theirs.held("COPY"))
        assert (ours.held("S"), theirs.held("COPY")) == (2, 1)
