"""A hub and a leaf node with streams of one name, which hear the same subjects: only answers of the right one count."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

from spark_nats.client import connect
from spark_nats.client.retrying import run_with_retries
from spark_nats.embedded import NatsServer
from spark_nats.jetstream import JetStream
from spark_nats.jetstream.creating import create_stream_if_missing
from spark_nats.jetstream.reading.stored import ask_which_ids_are_known
from spark_nats.jetstream.views import ask_stream_info
from spark_nats.kinds.streams.write.checks import prepare_write_and_make_marks
from spark_nats.kinds.streams.write.partitions import write_partition
from spark_nats.kinds.streams.write.tasks import WriteTask
from spark_nats.protocol.api import API_PREFIX, prefix_of_domain
from tests.connections import options_for, publisher_for, retries_for, write_options
from tests.integration.commands.test_permissions import hub_and_leaf
from tests.integration.kinds.buckets.test_bucket_elsewhere import ACCOUNTS
from tests.integration.support import (
    PAYLOAD,
    Query,
    read_payloads,
    run_task,
    sentence_of,
    stream_reader,
    table,
    texts_of,
    write,
)
from tests.nats_py import NatsPy, succeeds, wait_until
from tests.servers import BINARY_2_10, BINARY_2_12, OLDER_BINARY, ServerFactory, paused

HEARS = ["orders.>"]
FULL = {"max_msgs": 50, "discard": "new"}
AHEAD = {"first_seq": 5001}  # what another stream acknowledges seems to be there
THERE = {"stream": "ORDERS", "domain": "hub"}
ALSO = "stream 'ORDERS' in domain 'leaf' answers on it too"


@dataclass
class Two:
    """A hub and a leaf node, with a client at each."""

    hub: NatsServer
    leaf: NatsServer
    at_hub: NatsPy
    at_leaf: NatsPy

    def make(self, name: str, subjects: list[str], hub: dict[str, Any] | None = None, **leaf: Any) -> None:
        """Create a stream of one name in both domains, and wait until both hear what is published at either server."""
        self.at_hub.create_stream(name, subjects, **(hub or {}))
        self.at_leaf.create_stream(name, subjects, **leaf)
        for client in (self.at_hub, self.at_leaf):
            wait_until(lambda client=client: both_answer(client, subjects[-1].replace(">", "probe")))

    def held(self, name: str = "ORDERS") -> tuple[int, int]:
        """How many messages the hub has, and how many the leaf."""
        return self.at_hub.held(name), self.at_leaf.held(name)


def both_answer(client: NatsPy, subject: str) -> bool:
    """Whether two streams answer to what is published to a subject; they are asked to refuse a message."""
    with client.collect("answers") as collected:
        client.publish(subject, headers={"Nats-Expected-Stream": "none"}, reply="answers")
        return succeeds(lambda: collected.wait(2, timeout=1.0))


@pytest.fixture
def two(server_factory: ServerFactory) -> Iterator[Two]:
    hub, leaf = hub_and_leaf(server_factory)
    with NatsPy(hub.url) as at_hub, NatsPy(leaf.url) as at_leaf:
        yield Two(hub, leaf, at_hub, at_leaf)


def rows(count: int, first: int = 0) -> pa.Table:
    return table(subject=["orders.a"] * count, payload=[b"%d" % i for i in range(first, first + count)])


def numbers(count: int) -> list[str]:
    return [str(i) for i in range(count)]


@pytest.mark.promise("writing#other-domain")
@pytest.mark.parametrize("at", ["leaf", "hub"])
def test_rows_that_the_hub_refuses_are_not_stored_though_the_leaf_has_them(two: Two, at: str) -> None:
    two.make("ORDERS", HEARS, FULL)
    said = sentence_of(lambda: write(getattr(two, at), rows(200), **THERE))
    assert "maximum messages exceeded" in said
    assert "of this task's rows 50 were stored, and none of the others was stored" in said
    assert (ALSO in said) or at == "hub"  # where the hub's answer comes first
    assert two.held() == (50, 200)


@pytest.mark.promise("writing#other-domain")
@pytest.mark.parametrize("at", ["leaf", "hub"])
def test_rows_that_the_leaf_refuses_are_stored_in_the_hub_once(two: Two, at: str) -> None:
    """A refusal names no domain."""
    two.make("ORDERS", HEARS, {}, **FULL)
    write(getattr(two, at), rows(200), **THERE)
    assert two.at_hub.stored_texts("ORDERS") == numbers(200)
    assert two.held() == (200, 50)


def test_a_refusal_of_the_leaf_does_not_count_once_the_hub_has_acknowledged(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_nats.jetstream.publishing.decide.LOST_OUT_OF_ORDER", 60.0)
    two.make("ORDERS", HEARS, {}, max_msgs=1, discard="new")
    two.at_leaf.store("orders.a", [b"0"])
    wait_until(lambda: two.held() == (1, 1))
    with connect(options_for(two.leaf.url)) as connection:
        js = JetStream(connection, prefix_of_domain("hub"))
        publisher = publisher_for(connection, ask_stream_info(js, "ORDERS"), api_prefix=js.prefix)
        nothing = pa.array([], pa.string())
        with two.at_leaf.collect("_INBOX.>") as answers, paused(two.hub):
            publisher.publish(pa.array(["orders.a"]), pa.array([b"1"]))
            wait_until(lambda: any(b"maximum messages exceeded" in each.payload for each in answers.messages))
            connection.flush()
            publisher.publish(nothing, nothing)  # which reads what has come
        publisher.wait_for_sent_rows()
        assert publisher.stored == 1
        publisher.close()
    assert two.held() == (2, 1)


@pytest.mark.needs("named streams")
@pytest.mark.parametrize("at", ["leaf", "hub"])
def test_a_stream_of_another_name_that_hears_the_same_changes_nothing(two: Two, at: str) -> None:
    """The leaf's stream refuses rows that name another one, and acknowledges those that name none."""
    two.at_hub.create_stream("ORDERS", HEARS)
    two.at_leaf.create_stream("EDGE", HEARS)
    for client in (two.at_hub, two.at_leaf):
        wait_until(lambda client=client: both_answer(client, "orders.a"))
    server = getattr(two, at)
    write(server, rows(200), **THERE)
    assert (two.at_hub.held("ORDERS"), two.at_leaf.held("EDGE")) == (200, 0)
    with connect(options_for(server.url)) as connection:
        js = JetStream(connection, prefix_of_domain("hub"))
        publisher = publisher_for(connection, ask_stream_info(js, "ORDERS"), api_prefix=js.prefix)
        publisher.publish(pa.array(["orders.a"] * 200), pa.array([b"1"] * 200))
        publisher.wait_for_sent_rows()
        assert publisher.stored == 200
        publisher.close()
    assert two.at_hub.held("ORDERS") == 400
    wait_until(lambda: two.at_leaf.held("EDGE") == 200)  # nobody has waited for its acknowledgements


def test_a_replayed_micro_batch_is_stored_once_in_the_hub_whatever_the_leaf_knows(two: Two) -> None:
    two.make("ORDERS", HEARS)
    for _ in range(2):
        assert run_task(two.leaf.url, rows(200), **THERE, deduplicate="exact").counts.rows == 200
        two.at_leaf.delete_stream("ORDERS")
        two.at_leaf.create_stream("ORDERS", HEARS)
    assert two.at_hub.stored_texts("ORDERS") == numbers(200)
    two.at_hub.purge_stream("ORDERS")
    write(two.leaf, rows(200), deduplicate="window", **THERE)
    assert two.held("ORDERS")[0] == 200


def interrupted(server: NatsServer, count: int, after: int) -> Iterator[pa.RecordBatch]:
    """Batches of a hundred rows; the server is killed after some of them, and comes back after the others are sent."""
    for i, batch in enumerate(rows(count).to_batches(100)):
        if i * 100 == after:
            server.kill()
        yield batch
    server.start()


def write_interrupted(two: Two, **options: Any) -> int:
    parsed = write_options(two.leaf.url, **THERE, maxInFlight=10_000, **options)
    prepare_write_and_make_marks(parsed, streaming=True, columns=["subject", "payload"])
    written = write_partition(parsed, WriteTask("query", "0", 0), interrupted(two.hub, 2000, 1000))
    return written.counts.rows


@pytest.mark.promise("writing#other-domain")
def test_rows_that_only_the_leaf_has_while_the_hub_is_away_are_an_error(two: Two) -> None:
    two.make("ORDERS", HEARS, AHEAD)
    said = sentence_of(lambda: write_interrupted(two, deduplicate="false", ackTimeout="3s"))
    assert ALSO in said
    hub, leaf = two.held()
    assert (hub < 2000, leaf) == (True, 2000)


@pytest.mark.needs("named streams")
@pytest.mark.promise("writing#other-domain")
@pytest.mark.parametrize("deduplicate", ["window", "exact"])
def test_rows_with_ids_that_only_the_leaf_has_are_sent_again(
    two: Two, deduplicate: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_nats.jetstream.publishing.decide.LOST_AFTER", 0.5)
    two.make("ORDERS", HEARS, AHEAD)
    assert write_interrupted(two, deduplicate=deduplicate) == 2000
    assert two.at_hub.stored_texts("ORDERS") == numbers(2000)


@pytest.mark.needs("atomic")
@pytest.mark.promise("writing#other-domain")
def test_a_batch_is_stored_if_the_hub_has_it(two: Two) -> None:
    two.make("ORDERS", HEARS, {"allow_atomic": True, **FULL}, allow_atomic=True)
    said = sentence_of(lambda: write(two.leaf, rows(200), atomic=True, **THERE))
    assert "none of this task's 200 rows was stored" in said
    assert ALSO in said
    assert two.held() == (0, 200)


@pytest.mark.needs("atomic")
@pytest.mark.promise("writing#other-domain")
def test_a_batch_that_the_leaf_refuses_is_stored_in_the_hub(two: Two) -> None:
    two.make("ORDERS", HEARS, {"allow_atomic": True}, allow_atomic=True, **FULL)
    write(two.leaf, rows(200), atomic=True, **THERE)
    assert two.held() == (200, 0)


@pytest.mark.promise("writing#other-domain")
def test_an_object_is_stored_if_the_hub_has_all_of_it(two: Two) -> None:
    subjects = ["$O.FILES.C.>", "$O.FILES.M.>"]
    rollup = {"allow_rollup_hdrs": True, "discard": "new"}
    two.make("OBJ_FILES", subjects, {"max_bytes": 200_000, **rollup}, **rollup)
    an_object = pa.table({"name": ["a"], "content": [bytes(300_000)]})
    said = sentence_of(lambda: write(two.leaf, an_object, objectStore="FILES", domain="hub"))
    assert "does not take the object 'a': maximum bytes exceeded" in said
    assert two.at_hub.held("OBJ_FILES") == 0


@pytest.mark.promise("writing#other-domain")
def test_an_object_that_the_leaf_refuses_is_stored_in_the_hub(two: Two) -> None:
    subjects = ["$O.FILES.C.>", "$O.FILES.M.>"]
    rollup = {"allow_rollup_hdrs": True, "discard": "new"}
    two.make("OBJ_FILES", subjects, rollup, max_bytes=200_000, **rollup)
    an_object = pa.table({"name": ["a"], "content": [bytes(300_000)]})
    write(two.leaf, an_object, objectStore="FILES", domain="hub")
    assert two.at_hub.held("OBJ_FILES") == 4


@pytest.mark.promise("writing#other-domain")
def test_bad_rows_are_stored_if_the_hub_has_them(two: Two) -> None:
    two.make("ORDERS", HEARS)
    two.make("BAD", ["bad"], {"max_msgs": 1, "discard": "new"})
    bad = table(subject=["a b"] * 3, payload=[b"1", b"2", b"3"])
    said = sentence_of(lambda: write(two.leaf, bad, badRows="stream", badRowsStream="BAD", **THERE))
    assert "maximum messages exceeded" in said
    assert "of these rows 1 were stored" in said
    assert two.held("BAD") == (1, 3)


def test_message_ids_are_known_if_the_hub_knows_them(two: Two) -> None:
    two.make("ORDERS", HEARS)
    for client, message_id in ((two.at_hub, "hub"), (two.at_leaf, "leaf")):
        client.publish("orders.a", headers={"Nats-Msg-Id": message_id})
    wait_until(lambda: two.held() == (2, 2))
    two.at_hub.delete_stream("ORDERS")
    two.at_hub.create_stream("ORDERS", HEARS)
    wait_until(lambda: both_answer(two.at_leaf, "orders.a"))
    two.at_leaf.purge_stream("ORDERS")
    with connect(options_for(two.leaf.url)) as connection:

        def are_known(*ids: str) -> list[bool]:
            subjects = pa.array(["orders.a"] * len(ids))
            ask = partial(ask_which_ids_are_known, connection, "ORDERS", "hub", subjects, pa.array(ids))
            # The leaf may hear only now that the hub's former stream listens no more.
            return run_with_retries(ask, retries_for(wait=0.02), "asking", established=True).tolist()

        assert are_known("hub", "leaf", "none") == [False] * 3
        two.at_hub.publish_acked([("orders.a", b"1", {"Nats-Msg-Id": "new"})])
        two.at_leaf.delete_stream("ORDERS")
        two.at_leaf.create_stream("ORDERS", HEARS)
        wait_until(lambda: both_answer(two.at_leaf, "orders.a"))
        assert are_known("new") == [True]


def test_a_bucket_of_one_name_hears_only_its_own_domain(two: Two) -> None:
    """Servers hand `$KV.>` on to no other domain, so keys and the notes of exact writes need no comparison."""
    for client in (two.at_hub, two.at_leaf):
        client.create_stream("KV_CONFIG", ["$KV.CONFIG.>"])
    write(two.leaf, pa.table({"key": ["a"], "value": ["1"]}), bucket="CONFIG", domain="hub")
    write(two.leaf, pa.table({"key": ["b", "c"], "value": ["1", "2"]}), bucket="CONFIG")
    assert two.held("KV_CONFIG") == (1, 2)


@pytest.mark.parametrize("config", [{"allow_direct": True}, {"allow_direct": False}], ids=str)
def test_the_stream_of_the_domain_that_was_asked_is_read(two: Two, config: dict[str, Any]) -> None:
    """The API's subjects name the domain, so no other stream hears a request."""
    two.at_leaf.create_stream("ORDERS", HEARS, **config)
    two.at_leaf.store("orders.a", ["leaf"] * 10)
    two.at_hub.create_stream("ORDERS", HEARS, **config)
    two.at_hub.store("orders.a", numbers(300))
    two.at_leaf.store("orders.a", ["leaf"])
    wait_until(lambda: two.held()[0] >= 301)
    expected = [text.encode() for text in [*numbers(300), "leaf"]]
    assert read_payloads(two.leaf, **THERE)[:301] == expected
    query = Query(stream_reader(two.leaf, PAYLOAD, startingOffsets="earliest", **THERE))
    assert texts_of(query.rows(301))[:301] == [*numbers(300), "leaf"]
    query.reader.stop()


VERSIONS = {"2.10": BINARY_2_10, "2.11": OLDER_BINARY, "2.12": BINARY_2_12, "2.15": None}


@pytest.mark.parametrize("version", VERSIONS)
def test_servers_of_each_version_are_told_apart(server_factory: ServerFactory, version: str) -> None:
    hub, leaf = hub_and_leaf(partial(server_factory, binary=VERSIONS[version]))
    with NatsPy(hub.url) as at_hub, NatsPy(leaf.url) as at_leaf:
        two = Two(hub, leaf, at_hub, at_leaf)
        two.make("ORDERS", HEARS, FULL)
        said = sentence_of(lambda: write(leaf, rows(200), **THERE))
        assert "of this task's rows 50 were stored" in said
        assert two.held() == (50, 200)
        write(leaf, rows(100), stream="ORDERS")
        assert two.held() == (50, 300)


@pytest.mark.parametrize("version", VERSIONS)
def test_acknowledgements_name_the_domain_that_the_state_names(server_factory: ServerFactory, version: str) -> None:
    """So it is without a domain, in one's own, in another, and in another account's stream."""

    def acknowledged(server: NatsServer, prefix: str = API_PREFIX, login: str = "") -> str:
        with connect(options_for(server.url.replace("nats://", f"nats://{login}"))) as connection:
            js = JetStream(connection, prefix)
            state = create_stream_if_missing(js, {"name": "ORDERS", "subjects": HEARS})
            publisher = publisher_for(connection, state, api_prefix=prefix, ack_timeout=5.0)
            publisher.publish(pa.array(["orders.a"]), pa.array([b"1"]))
            publisher.wait_for_sent_rows()
            publisher.close()
            return state.domain

    start = partial(server_factory, binary=VERSIONS[version])
    assert acknowledged(start()) == ""
    other = start(f"jetstream {{ domain: hub }}\n{ACCOUNTS.replace('$O.O.>', 'orders.>')}")
    assert acknowledged(other, "JS.owner.API", "app:pw@") == "hub"
    hub, leaf = hub_and_leaf(start)
    assert acknowledged(leaf, prefix_of_domain("hub")) == "hub"
    assert acknowledged(leaf) == "leaf"  # both hear it now
    assert acknowledged(leaf, prefix_of_domain("hub")) == "hub"
    with NatsPy(hub.url) as at_hub, NatsPy(leaf.url) as at_leaf:
        assert (at_hub.held("ORDERS"), at_leaf.held("ORDERS")) == (3, 2)
