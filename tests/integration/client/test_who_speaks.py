"""An answer counts if it names who gives it, and what it is about; a stranger's is no row and no acknowledgement."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pytest

from spark_nats.client import connect
from spark_nats.errors import JetStreamError, NatsTimeoutError, ProtocolError
from spark_nats.jetstream import JetStream
from spark_nats.jetstream.consuming.consumers import ask_consumer, create_ephemeral
from spark_nats.jetstream.consuming.watching import Watch, WatchLostError
from spark_nats.jetstream.creating import create_stream_if_missing
from spark_nats.jetstream.keyvalue import Bucket, create_bucket_if_missing
from spark_nats.jetstream.listing import ask_all_stream_states, ask_stream_names
from spark_nats.jetstream.messages import ask_last_message
from spark_nats.jetstream.reading.stored import ask_which_ids_are_known
from spark_nats.jetstream.views import ask_stream_info
from spark_nats.kinds.objects.store import Putting
from spark_nats.kinds.objects.wire import ObjectInfo
from spark_nats.protocol.api import Api
from tests.connections import options_for
from tests.integration.forwarding import ForwardedApi
from tests.integration.support import (
    MESSAGE,
    Query,
    batch_reader,
    batch_sequences,
    numbers_of,
    read,
    run_task,
    sentence_of,
    stream_reader,
    table,
)
from tests.nats_py import NatsPy
from tests.servers import Server, ServerFactory

MESSAGES = 300
STRANGE = ["+ACK", "", "null", '{"ok":true}', '{"stream":"OTHER","seq":1}', "\x1b[31m" * 100]
CONFIGS: list[dict[str, Any]] = [
    {"allow_direct": True},
    {"allow_direct": False},
    {"allow_direct": True, "retention": "workqueue"},
]
Row = dict[str, Any]


@pytest.fixture(autouse=True)
def _tries_direct_gets_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_nats.jetstream.api.REFUSED_FOR", 0.0)


@pytest.fixture
def api(nats_py: NatsPy) -> Iterator[ForwardedApi]:
    with ForwardedApi(nats_py).serving() as serving:
        yield serving


@pytest.fixture
def js(nats_server: Server) -> Iterator[JetStream]:
    with connect(options_for(nats_server.url, request_timeout=0.5)) as connection:
        yield JetStream(connection, ForwardedApi.PREFIX)


@contextmanager
def worker(client: NatsPy, subject: str = ">") -> Iterator[Counter[str]]:
    """Somebody who acknowledges whatever there is; counts what it was asked."""
    asked = Counter[str]()

    async def acknowledge(message: Any) -> None:
        if message.reply:
            asked[message.subject] += 1
            await client.nats.publish(message.reply, b"+ACK")

    subscription = client.run(client.nats.subscribe(subject, cb=acknowledge))
    client.run(client.nats.flush())
    try:
        yield asked
    finally:
        client.run(subscription.unsubscribe())


@contextmanager
def answered_first(client: NatsPy, prefix: str, alone: str = "-", times: int = 10**9) -> Iterator[Counter[str]]:
    """JetStream under another prefix, where a worker is faster; where he is `alone`, JetStream is not even asked.

    That is for so many requests in all.
    """
    asked = Counter[str]()
    nats = client.nats

    async def answer(message: Any) -> None:
        operation = message.subject.removeprefix(f"{prefix}.")
        if message.reply:
            asked[".".join(token for token in operation.split(".") if token.isalpha() and token.isupper())] += 1
            await nats.publish(message.reply, b"+ACK")
        if not operation.startswith(alone) or asked.total() > times:
            subject = operation if operation.startswith("$KV.") else f"$JS.API.{operation}"
            await nats.publish(subject, message.data, reply=message.reply)

    subscription = client.run(nats.subscribe(f"{prefix}.>", cb=answer))
    client.run(nats.flush())
    try:
        yield asked
    finally:
        client.run(subscription.unsubscribe())


def fill(client: NatsPy, stream: str, **config: Any) -> None:
    client.create_stream(stream, **config)
    client.store(f"{stream}.a", range(1, MESSAGES + 1))


# Somebody else


@pytest.mark.parametrize("answer", STRANGE)
def test_an_answer_of_somebody_else_is_shown_and_waited_out(
    nats_server: Server, nats_py: NatsPy, unique: str, answer: str
) -> None:
    fill(nats_py, unique)
    reader = batch_reader(nats_server, stream=unique, apiPrefix=f"API.{unique}", requestTimeout="300ms")
    with nats_py.respond(f"API.{unique}.STREAM.>", lambda _: answer.encode()):
        said = sentence_of(reader.partitions)
    shown = repr(answer[:80]) + "…" * (len(answer) > 80) if answer else "nothing"
    assert f"something other than JetStream answered on API.{unique}.STREAM.INFO.{unique}: {shown}" in said
    assert "\x1b" not in said


@pytest.mark.needs("work queues", only="{'allow_direct': True, 'retention': 'workqueue'}")
@pytest.mark.parametrize(
    "config",
    [{"allow_direct": True}, {"allow_direct": False}, {"allow_direct": True, "retention": "workqueue"}],
    ids=str,
)
def test_rows_are_read_though_somebody_else_answers_first(
    nats_server: Server, nats_py: NatsPy, unique: str, config: Row
) -> None:
    fill(nats_py, unique, **config)
    how = {"peek": True} if "retention" in config else {}
    with answered_first(nats_py, f"API.{unique}") as asked:
        rows = read(nats_server, MESSAGE, stream=unique, apiPrefix=f"API.{unique}", **how)
    assert numbers_of(rows) == list(range(1, MESSAGES + 1))
    assert asked["STREAM.INFO"] > 0
    assert asked["CONSUMER.MSG.NEXT"] + asked["DIRECT.GET"] > 0


def test_a_task_asks_again_what_only_somebody_else_has_answered(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    fill(nats_py, unique, allow_direct=False)
    reader = batch_reader(nats_server, stream=unique, apiPrefix=f"API.{unique}", requestTimeout="300ms")
    with answered_first(nats_py, f"API.{unique}"):
        (partition,) = reader.partitions()
    with answered_first(nats_py, f"API.{unique}", alone="", times=2) as asked:
        assert batch_sequences(reader.read(partition)) == list(range(1, MESSAGES + 1))
    assert asked.total() > 2


def test_a_streaming_query_asks_again_what_only_somebody_else_has_answered(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    fill(nats_py, unique)
    requested = {"startingOffsets": "earliest", "apiPrefix": f"API.{unique}", "requestTimeout": "300ms"}
    with answered_first(nats_py, f"API.{unique}", alone="", times=2):
        query = Query(stream_reader(nats_server, MESSAGE, stream=unique, **requested))
        assert numbers_of(query.rows(MESSAGES)) == list(range(1, MESSAGES + 1))


def test_a_streaming_query_goes_on_though_somebody_else_answers_first(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    fill(nats_py, unique, allow_direct=False)
    with answered_first(nats_py, f"API.{unique}"):
        requested = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": 100, "apiPrefix": f"API.{unique}"}
        query = Query(stream_reader(nats_server, MESSAGE, stream=unique, **requested))
        assert numbers_of(query.rows(MESSAGES)) == list(range(1, MESSAGES + 1))


def test_a_worker_on_all_subjects_does_not_change_what_is_read(server_factory: ServerFactory) -> None:
    server = server_factory()
    with NatsPy(server.url) as client:
        fill(client, "S")
        with worker(client) as asked:
            for _ in range(5):
                assert numbers_of(read(server, MESSAGE, stream="S")) == list(range(1, MESSAGES + 1))
        assert any(subject.startswith("$JS.API.") for subject in asked)


@pytest.mark.needs("atomic", only="True")
@pytest.mark.parametrize("atomic", [True, False])
def test_a_worker_on_all_subjects_does_not_change_what_is_written(server_factory: ServerFactory, atomic: bool) -> None:
    server = server_factory()
    rows = table(subject=["S.a"] * MESSAGES, payload=[b"%d" % i for i in range(MESSAGES)])
    with NatsPy(server.url) as client:
        client.create_stream("S", allow_atomic=True)
        with worker(client) as asked:
            counts = run_task(server.url, rows, stream="S", atomic=atomic).counts
        assert any(subject.startswith("S.") for subject in asked)
        assert counts.rows == client.held("S") == MESSAGES


@pytest.mark.needs("work queues", only="True")
@pytest.mark.parametrize("allow_direct", [True, False])
def test_what_brings_no_message_says_who_has_answered(
    nats_server: Server, nats_py: NatsPy, unique: str, allow_direct: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A work queue is read by direct gets and nothing else; another stream, without them, by a consumer."""
    monkeypatch.setattr("spark_nats.jetstream.reading.pulls.HEARTBEAT", 0.2)
    fill(nats_py, unique, allow_direct=allow_direct, retention="workqueue" if allow_direct else "limits")
    how = {"peek": True} if allow_direct else {}
    reader = batch_reader(nats_server, stream=unique, apiPrefix=f"API.{unique}", retryTimeout="1s", **how)
    what = "DIRECT.GET" if allow_direct else "CONSUMER.MSG.NEXT"
    with answered_first(nats_py, f"API.{unique}", alone=what):
        (partition,) = reader.partitions()
        said = sentence_of(lambda: list(reader.read(partition)))
    assert f"something other than JetStream answered on API.{unique}.{what}.{unique}" in said
    assert "'+ACK'" in said


# Another stream, another consumer, another message


def of_type(operation: str) -> Callable[[Row], Row]:
    return lambda answer: {**answer, "type": f"io.nats.jetstream.api.v1.{operation}_response"}


Ask = Callable[[JetStream, str], object]
TYPED: dict[str, tuple[str, Ask]] = {
    "STREAM.INFO": ("stream_list", ask_stream_info),
    "STREAM.CREATE": ("stream_update", lambda js, name: create_stream_if_missing(js, {"name": f"{name}_NEW"})),
    "STREAM.DELETE": ("stream_purge", lambda js, name: js.request(Api.STREAM_DELETE, name)),
    "STREAM.NAMES": ("consumer_names", lambda js, _: ask_stream_names(js)),
    "STREAM.LIST": ("stream_names", lambda js, _: ask_all_stream_states(js)),
    "STREAM.MSG.GET": ("stream_info", lambda js, name: ask_last_message(js, name, ">")),
    "CONSUMER.CREATE": ("consumer_info", lambda js, name: create_ephemeral(js, name, 1)),
    "CONSUMER.INFO": ("consumer_create", lambda js, name: ask_consumer(js, name, "spark")),
}


@pytest.mark.parametrize("operation", TYPED)
def test_what_answers_another_operation_is_no_answer(
    nats_py: NatsPy, js: JetStream, api: ForwardedApi, unique: str, operation: str
) -> None:
    fill(nats_py, unique)
    other, ask = TYPED[operation]
    api.answers[operation] = of_type(other)
    with pytest.raises(JetStreamError, match=rf"something other than JetStream answered on CHANGED\.API\.{operation}"):
        ask(js, unique)


NAMED: dict[str, tuple[str, Callable[[Row], Row], Ask]] = {
    "the state of another stream": (
        "STREAM.INFO",
        lambda answer: {**answer, "config": {**answer["config"], "name": "OTHER"}},
        ask_stream_info,
    ),
    "a new stream of another name": (
        "STREAM.CREATE",
        lambda answer: {**answer, "config": {**answer["config"], "name": "OTHER"}},
        lambda js, name: create_stream_if_missing(js, {"name": f"{name}_NEW"}),
    ),
    "a consumer of another stream": (
        "CONSUMER.CREATE",
        lambda answer: {**answer, "stream_name": "OTHER"},
        lambda js, name: create_ephemeral(js, name, 1),
    ),
    "another consumer": (
        "CONSUMER.CREATE",
        lambda answer: {**answer, "name": "OTHER"},
        lambda js, name: create_ephemeral(js, name, 1),
    ),
    "the state of a consumer of another stream": (
        "CONSUMER.INFO",
        lambda answer: {**answer, "stream_name": "OTHER"},
        lambda js, name: ask_consumer(js, name, "spark"),
    ),
    "a message of another subject": (
        "STREAM.MSG.GET",
        lambda answer: {**answer, "message": {**answer["message"], "subject": "other"}},
        lambda js, name: ask_last_message(js, name, f"{name}.*"),
    ),
}


@pytest.mark.parametrize("wrong", NAMED)
def test_an_answer_about_something_else_is_an_error(
    nats_py: NatsPy, js: JetStream, api: ForwardedApi, unique: str, wrong: str
) -> None:
    fill(nats_py, unique)
    nats_py.api(f"CONSUMER.CREATE.{unique}.spark", {"stream_name": unique, "config": {"name": "spark"}})
    operation, change, ask = NAMED[wrong]
    ask(js, unique)
    api.answers[operation] = change
    with pytest.raises(ProtocolError, match=r"the server's answer to \S+ is invalid: it is a"):
        ask(JetStream(js.connection, js.prefix), f"{unique}" if operation != "STREAM.CREATE" else f"{unique}_2")


def test_a_delivery_of_another_consumer_does_not_wake_an_idle_query(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    """Whoever may create consumers can have messages of another stream delivered to its inbox."""
    other = f"{unique}_OTHER"
    fill(nats_py, unique)
    fill(nats_py, other)
    with (
        connect(options_for(nats_server.url)) as connection,
        nats_py.collect(f"$JS.API.CONSUMER.MSG.NEXT.{unique}.*") as asked,
    ):
        watch = Watch(JetStream(connection), {unique: MESSAGES + 1}, [])
        config = {"name": "push", "deliver_subject": asked.wait(1)[0].reply, "ack_policy": "none"}
        nats_py.api(f"CONSUMER.CREATE.{other}.push", {"stream_name": other, "config": config})
        with pytest.raises(WatchLostError, match="a delivery is not of its consumer"):
            watch.wait(60.0)


@pytest.mark.needs("interest streams")
@pytest.mark.parametrize("wrong", [{"name": "other"}, {"stream_name": "OTHER"}, {"reset_seq": 77}], ids=str)
def test_nothing_counts_as_released_if_another_consumer_was_moved(
    nats_server: Server, nats_py: NatsPy, api: ForwardedApi, unique: str, wrong: Row
) -> None:
    fill(nats_py, unique, retention="interest", storage="memory")
    nats_py.purge_stream(unique)
    requested = {"startingOffsets": "earliest", "consume": True, "apiPrefix": ForwardedApi.PREFIX}
    query = Query(stream_reader(nats_server, MESSAGE, stream=unique, **requested))
    nats_py.store(f"{unique}.a", range(3))
    api.answers["CONSUMER.RESET"] = lambda answer: {**answer, **wrong}
    assert "answer to CONSUMER.RESET" in sentence_of(lambda: [query.rows(3), query.micro_batch()])


@pytest.mark.needs("progress")
@pytest.mark.parametrize("wrong", [{"name": "other"}, {"stream_name": "OTHER"}, {"reset_seq": 77}], ids=str)
def test_a_consumer_does_not_show_progress_if_another_was_moved(
    nats_server: Server, nats_py: NatsPy, api: ForwardedApi, unique: str, wrong: Row, caplog: pytest.LogCaptureFixture
) -> None:
    fill(nats_py, unique)
    api.answers["CONSUMER.RESET"] = lambda answer: {**answer, **wrong}
    requested = {"startingOffsets": "earliest", "progressConsumer": "lag", "apiPrefix": ForwardedApi.PREFIX}
    query = Query(stream_reader(nats_server, MESSAGE, stream=unique, **requested))
    assert len(query.rows(MESSAGES)) == MESSAGES
    query.micro_batch()
    assert "[NATS_PROGRESS_NOT_SHOWN]" in caplog.text
    assert "the server's answer to CONSUMER.RESET" in caplog.text


# What is stored


@pytest.mark.parametrize("answer", ["+ACK", "", '{"stream":"OTHER","seq":1}', '{"seq":1}'])
def test_a_value_is_stored_if_its_bucket_says_so(
    nats_server: Server, nats_py: NatsPy, unique: str, answer: str
) -> None:
    with connect(options_for(nats_server.url, request_timeout=0.5)) as connection:
        create_bucket_if_missing(JetStream(connection), unique)
        Bucket(JetStream(connection), unique).put("k", b"1")
        elsewhere = Bucket(JetStream(connection, f"API.{unique}"), unique)
        with (
            nats_py.respond(f"API.{unique}.$KV.>", lambda _: answer.encode()),
            pytest.raises(JetStreamError, match=rf"something other than JetStream answered on API\.{unique}\.\$KV"),
        ):
            elsewhere.put("k", b"2")
        assert Bucket(JetStream(connection), unique).get("k").value == b"1"


def test_a_value_is_stored_once_though_somebody_else_answers_first(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    with connect(options_for(nats_server.url)) as connection:
        create_bucket_if_missing(JetStream(connection), unique)
        with answered_first(nats_py, f"API.{unique}"):
            Bucket(JetStream(connection, f"API.{unique}"), unique).put("k", b"1")
        assert Bucket(JetStream(connection), unique).get("k").revision == 1


def test_a_part_of_an_object_is_stored_if_its_store_says_so(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    nats_py.create_stream(f"OBJ_{unique}", [f"other.{unique}"])
    with (
        connect(options_for(nats_server.url, request_timeout=0.5)) as connection,
        worker(nats_py, f"$O.{unique}.>"),
        pytest.raises(
            JetStreamError, match=rf"something other than JetStream answered on \$O\.{unique}\.C\.\w+: '\+ACK'"
        ),
    ):
        Putting(unique, ObjectInfo("a"), b"content").put(JetStream(connection))
    assert nats_py.held(f"OBJ_{unique}") == 0


def test_a_message_id_is_known_if_the_stream_says_so(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    nats_py.create_stream(unique)
    with (
        connect(options_for(nats_server.url)) as connection,
        nats_py.respond(f"other.{unique}", lambda _: b'{"stream":"OTHER","seq":1,"duplicate":true}'),
        pytest.raises(NatsTimeoutError, match="does not say at the moment which message ids"),
    ):
        ask_which_ids_are_known(connection, unique, "", pa.array([f"other.{unique}"]), pa.array(["a"]))
