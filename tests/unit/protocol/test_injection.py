"""Whatever users or their rows bring, the server is sent the commands that were meant, and no other."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from spark_nats.client import connect
from spark_nats.errors import InvalidRowError, OptionError
from spark_nats.kinds.queries import parse_options, parse_read_options, parse_write_options
from spark_nats.kinds.streams.write.columns import RowChecker
from spark_nats.protocol.control import ConnectOptions, ServerInfo, encode_sub, encode_unsub
from spark_nats.protocol.encoder import encode_message, encode_messages
from spark_nats.protocol.headers import HEADERS_TYPE
from tests.connections import options_for
from tests.scripted_server import scripted_server
from tests.unit.reference import Publication, headers_of, read_client_stream

EVIL = "a\r\nPUB b 1\r\nx\r\n"
# Text that is likely to be nearly right, and text that is anything.
pieces = st.sampled_from(
    ["a", "B.c", "é", ".", "*", ">", " ", "\t", "\r", "\n", "\r\n", "\x00", ":", "PUB x 0", "\u2028"]
)
texts = st.one_of(
    st.lists(pieces, max_size=4).map("".join), st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
)


@settings(max_examples=100)
@given(texts, st.one_of(st.none(), texts), st.integers(1, 10**12))
@example(EVIL, None, 1)
@example("a", EVIL, 1)
def test_a_subscription_is_one_line_or_refused(subject: str, queue: str | None, sid: int) -> None:
    try:
        line = encode_sub(subject, sid, queue)
    except ValueError:
        return
    fields = [subject, *([] if queue is None else [queue]), str(sid)]
    assert read_client_stream(line + encode_unsub(sid, 7)) == [
        (b"SUB", *(field.encode() for field in fields)),
        (b"UNSUB", b"%d" % sid, b"7"),
    ]


class Row:
    """A row, and what it is to become."""

    def __init__(
        self, subject: str, payload: bytes, headers: list[tuple[str, list[str]]], reply: str | None, msg_id: str | None
    ) -> None:
        self.subject, self.payload, self.headers, self.reply, self.msg_id = subject, payload, headers, reply, msg_id

    def __repr__(self) -> str:
        return f"Row({self.subject!r}, {self.payload!r}, {self.headers!r}, {self.reply!r}, {self.msg_id!r})"


rows = st.builds(
    Row,
    texts,
    st.one_of(st.binary(max_size=20), st.sampled_from([b"\r\n", b"\r\nPUB a 0\r\n\r\n"])),
    st.lists(st.tuples(texts, st.lists(texts, min_size=1, max_size=2)), max_size=2, unique_by=lambda header: header[0]),
    st.one_of(st.none(), texts),
    st.one_of(st.none(), texts),
)


@settings(max_examples=100)
@given(st.lists(rows, min_size=1, max_size=3), st.booleans())
@example([Row("a", b"", [(EVIL, ["v"])], None, None)], False)
@example([Row("a", b"", [("n", [EVIL])], None, None)], False)
@example([Row("a", b"", [], EVIL, None)], False)
@example([Row("a", b"", [], None, EVIL)], True)
@example([Row(EVIL, b"", [], None, None)], True)
def test_rows_become_the_publications_that_were_meant_or_nothing_is_sent(batch: list[Row], to_stream: bool) -> None:
    options = parse_write_options({"stream": "S"} if to_stream else {}, streaming=False)
    columns = pa.RecordBatch.from_arrays(
        [
            pa.array([row.subject for row in batch]),
            pa.array([row.payload for row in batch], pa.binary()),
            pa.array([row.headers for row in batch], HEADERS_TYPE),
            pa.array([row.reply for row in batch], pa.string()),
            pa.array([row.msg_id for row in batch], pa.string()),
        ],
        ["subject", "payload", "headers", "reply", "msg_id"],
    )
    try:
        checked = RowChecker(options, 1 << 20, None, names_stream=to_stream).check_and_encode(columns, 0)
    except InvalidRowError:
        return
    wire = encode_messages(checked.subjects, checked.payloads, checked.replies, checked.headers).to_pybytes()
    sent = read_client_stream(wire)
    assert len(sent) == len(batch)
    for row, publication in zip(batch, sent, strict=True):
        assert isinstance(publication, Publication)
        assert publication.subject == row.subject.encode()
        assert publication.reply == (None if row.reply is None else row.reply.encode())
        assert publication.payload == row.payload
        expected = {name: [value.strip(" \t") for value in values] for name, values in row.headers}
        if to_stream:
            expected["Nats-Expected-Stream"] = ["S"]
        if row.msg_id is not None:
            expected["Nats-Msg-Id"] = [row.msg_id.strip(" \t")]
        assert headers_of(publication.header or b"") == (expected, 0)


@settings(max_examples=100)
@given(
    st.fixed_dictionaries(
        {"stream": texts},
        optional=dict.fromkeys(("subject", "inboxPrefix", "apiPrefix", "connectionName", "user"), texts),
    )
)
@example({"stream": EVIL})
@example({"stream": "S", "apiPrefix": EVIL})
@example({"stream": "S", "inboxPrefix": EVIL})
@example({"stream": "S", "connectionName": EVIL})
def test_options_become_the_lines_that_were_meant_or_are_refused(given_options: dict[str, str]) -> None:
    given_options = {**given_options, "password": EVIL} if "user" in given_options else given_options
    try:
        read = parse_read_options(given_options, streaming=False)
    except OptionError:
        return
    inbox = f"{read.connection.inbox_prefix}.0.1"
    for stream in read.streams:
        subject = f"{read.api_prefix}.STREAM.INFO.{stream}"
        assert read_client_stream(encode_message(subject, b"{}", inbox)) == [
            Publication(subject.encode(), inbox.encode(), None, b"{}")
        ]
    hello = read.connection.credentials.add_to(ConnectOptions(name=read.connection.name), ServerInfo()).encode()
    ((operation, document),) = read_client_stream(hello)
    assert operation == b"CONNECT"
    assert json.loads(document)["name"] == given_options.get("connectionName", "spark-nats")
    assert json.loads(document).get("pass") == given_options.get("password")


@settings(max_examples=100)
@given(st.one_of(texts, st.dictionaries(st.sampled_from(["name", "subjects", "x"]), texts, max_size=2).map(json.dumps)))
@example(json.dumps({"name": EVIL, "subjects": ["a"]}))
@example(json.dumps({"name": 7}))
@example("[" * 100_000)
def test_a_stream_that_options_describe_has_the_name_that_they_give(config: str) -> None:
    try:
        parse_options({"createStream": config})
        write = parse_write_options({"stream": "S", "subject": "s", "createStream": config}, streaming=False)
    except OptionError:
        return
    assert write.requested_config is None or write.requested_config["name"] == "S"


@pytest.mark.parametrize("subject", [EVIL, "a b", "", "a.*", "a..b"])
def test_a_request_to_what_is_no_subject_is_not_sent(subject: str) -> None:
    def script(peer):  # type: ignore[no-untyped-def]
        peer.let_in()
        assert peer.connection.recv(1) == b""

    with (
        scripted_server(script) as url,
        connect(options_for(url)) as connection,
        pytest.raises(ValueError, match="subject"),
    ):
        connection.request(subject, b"")
