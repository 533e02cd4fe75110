"""`spark-nats check` and `spark-nats options`, as their users see them, against servers with restricted users."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_nats import clock
from spark_nats.cli import main
from spark_nats.commands import STREAM_ACTIVITIES
from spark_nats.embedded import NatsServer
from spark_nats.kinds.queries import options_by_section
from tests.certificates import Certificates
from tests.integration.commands.test_permissions import (
    ACCOUNTS,
    COMPARE_AND_SET,
    CONSUME,
    CONSUME_QUEUE,
    CREATE,
    CREATE_BUCKET,
    INBOX,
    MATCH,
    PEEK,
    READ,
    READ_BACK,
    READ_BUCKET,
    STATE,
    WRITE,
    WRITE_BUCKET,
    hub_and_leaf,
    login,
    user,
    users,
)
from tests.integration.support import monitoring, write
from tests.nats_py import NatsPy, succeeds, wait_until
from tests.needs import since
from tests.operator_mode import OperatorMode
from tests.servers import BINARY_2_12, OLDER_BINARY, Cluster, Server, ServerFactory, binary_of, free_ports, paused

pytestmark = pytest.mark.usefixtures("in_a_hurry")

ASK = "$SYS.REQ.USER.INFO"
LOGIN = ["--password", "pw", "--inboxPrefix", "_INBOX_spark"]


class Ran:
    """What a run of the command has printed, and its status."""

    def __init__(self, status: int, out: str, err: str) -> None:
        self.status, self.out, self.err = status, out, err

    @property
    def report(self) -> Any:
        return json.loads(self.out)

    def abilities(self, stream: str) -> dict[str, Any]:
        (found,) = [each for each in self.report["streams"] if each["name"] == stream]
        return {ability["to"]: ability for ability in found["abilities"]}


Command = Callable[..., Ran]


@pytest.fixture
def check(capsys: pytest.CaptureFixture[str]) -> Command:
    def run(server: Server | str, *arguments: str) -> Ran:
        status = main(["check", "--servers", server if isinstance(server, str) else server.url, *arguments])
        said = capsys.readouterr()
        assert "Traceback" not in said.err
        return Ran(status, said.out, said.err)

    return run


def make_orders(url: str, name: str = "admin") -> None:
    with NatsPy(url, user=name, password="pw") as client:
        client.create_stream("ORDERS", ["orders.>"])
        client.publish_acked([("orders.x", b"1"), ("orders.y", b"2")])


# What is there


@pytest.mark.needs("interest streams")
def test_the_server_its_streams_and_what_one_may_are_printed(
    check: Command, nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    nats_py.create_stream(unique, [f"{unique}.>"])
    nats_py.publish_acked([(f"{unique}.a", b"x" * 1000)] * 3)
    ran = check(nats_server, "--stream", unique)
    assert ran.status == 0
    lines = ran.out.splitlines()
    assert lines[0].startswith(f"server      {nats_server.url}, nats-server 2.")
    assert lines[0].endswith(", no TLS")
    assert "login " in ran.out
    assert "account $G" in ran.out
    assert "round trip " in ran.out
    (row,) = [line.split() for line in lines if line.startswith(unique) and "1 to 3" in line]
    assert row[1:5] == ["3", "1", "to", "3"]
    assert row[-2:] == ["kB", "0/s"]
    assert any(line.split() == [unique, "read,", "consume,", "write,", "exact,", "create", "yes"] for line in lines)


def test_all_streams_are_looked_at_when_none_is_named(check: Command, server_factory: ServerFactory) -> None:
    server = server_factory()
    with NatsPy(server.url) as client:
        for i in range(300):  # more than one page of the server's list
            client.create_stream(f"S{i:03}", [f"s{i}.>"], storage="memory")
    streams = check(server, "--json").report["streams"]
    assert [stream["name"] for stream in streams] == [f"S{i:03}" for i in range(300)]
    assert [len(stream["abilities"]) for stream in streams] == [5] * 20 + [0] * 280
    assert "and 280 more; name streams with --stream" in check(server).out


def test_the_rate_at_which_a_stream_grows_is_measured(
    check: Command, nats_server: Server, nats_py: NatsPy, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    nats_py.create_stream(unique, [f"{unique}.>"])
    monkeypatch.setattr(clock, "sleep", lambda _: nats_py.store(f"{unique}.x", range(10)))  # between two looks
    (stream,) = check(nats_server, "--stream", unique, "--json").report["streams"]
    assert stream["rate"] > 0


def test_usage_and_limits_of_the_account_are_shown(check: Command, server_factory: ServerFactory) -> None:
    server = server_factory(
        "server_name: here\n"
        "accounts { A: { jetstream: {max_streams: 7, max_consumers: 9, max_file: 1000000, max_mem: 2000}, "
        "users: [ {user: ann, password: pw} ] } }"
    )
    ran = check(server, "--user", "ann", "--password", "pw")
    assert "login       ann, account A" in ran.out
    assert "name here" in ran.out
    assert "JetStream   0 of 7 streams, 0 of 9 consumers, 0 B of 1.0 MB in files, 0 B of 2.0 kB in memory" in ran.out


def test_what_there_is_one_of_and_what_has_no_end_are_said_so(check: Command, server_factory: ServerFactory) -> None:
    server = server_factory()
    with NatsPy(server.url) as client:
        client.create_stream("S")
    ran = check(server, "--stream", "S")
    assert "JetStream   1 stream, 0 consumers, " in ran.out
    (line,) = [line for line in ran.out.splitlines() if line.startswith("S  ") and " file " in line]
    assert line.endswith("no time limit")


def test_a_server_without_jetstream_is_said_to_have_none(check: Command, server_factory: ServerFactory) -> None:
    server = server_factory(jetstream=False)
    ran = check(server)
    assert ran.status == 0
    assert "unknown: how much of JetStream the account uses: JetStream does not answer" in ran.out
    ran = check(server, "--stream", "ORDERS")
    assert ran.status == 1
    assert ran.err.startswith("spark-nats: stream ORDERS: JetStream does not answer")


def test_a_stream_that_is_missing_is_a_failure(check: Command, nats_server: Server) -> None:
    ran = check(nats_server, "--stream", "NOT_THERE")
    assert ran.status == 1
    assert ran.err == "spark-nats: stream NOT_THERE: the stream 'NOT_THERE' does not exist\n"


def test_what_is_missing_can_be_made_and_nothing_else(check: Command, nats_server: Server) -> None:
    ran = check(nats_server, "--stream", "NOT_THERE")
    lines = [line.split() for line in ran.out.splitlines()]
    assert ["NOT_THERE", "does", "not", "exist"] in lines
    assert ["NOT_THERE", "read,", "consume,", "write,", "exact", "no", "does", "not", "exist"] in lines
    assert ["create", "yes"] in lines
    ran = check(nats_server, "--stream", "NOT_THERE", "--require", "read,create", "--json")
    (stream,) = ran.report["streams"]
    assert stream["missing"] is True
    assert ran.report["failures"] == [
        "stream NOT_THERE: the stream 'NOT_THERE' does not exist",
        "stream NOT_THERE, read: does not exist",
    ]


# What a stream may lose


NO_SAFER = ". A write with deduplicate=exact, the default in streaming, is no safer than that"


@pytest.mark.needs("async", only="async")
@pytest.mark.parametrize(
    ("config", "kept", "risk"),
    [
        ({}, "file", "it has one replica, so a broken disk loses all of it, and a power failure what it has"),
        ({"storage": "memory"}, "memory", "it is kept in memory, so a restart of its server loses all that it has"),
        ({"persist_mode": "async"}, "file, async", "its persist_mode is async, so a server that is killed loses what"),
    ],
    ids=["one replica", "memory", "async"],
)
def test_what_a_stream_may_lose_of_what_it_has_acknowledged_is_said(
    check: Command, nats_server: Server, nats_py: NatsPy, unique: str, config: dict[str, str], kept: str, risk: str
) -> None:
    nats_py.create_stream(unique, [f"{unique}.>"], max_age=86400 * 10**9, **config)
    ran = check(nats_server, "--stream", unique)
    assert ran.status == 0
    (line,) = [line for line in ran.out.splitlines() if line.startswith("warning: ")]
    assert line.startswith(f"warning: stream {unique}: {risk}")
    assert line.endswith(NO_SAFER)
    assert [unique, *kept.split(), "1", "2", "min", "24", "h"] in [line.split() for line in ran.out.splitlines()]
    (stream,) = check(nats_server, "--stream", unique, "--json").report["streams"]
    assert [f"warning: stream {unique}: {warning}" for warning in stream["warnings"]] == [line]
    assert (stream["storage"], stream["replicas"], stream["max_age"]) == (kept.split(",")[0], 1, 86400)
    assert "warning: " not in check(nats_server).out  # of streams that nobody has named


def test_an_edit_that_empties_a_stream_at_the_next_start_is_said(
    check: Command, nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    nats_py.create_stream(unique, [f"{unique}.>"], first_seq=5)
    nats_py.store(f"{unique}.a", range(10))

    def warnings() -> list[str]:
        (stream,) = check(nats_server, "--stream", unique, "--json").report["streams"]
        return [each for each in stream["warnings"] if "first_seq" in each]

    assert warnings() == []
    nats_py.api(f"STREAM.UPDATE.{unique}", {**nats_py.stream_info(unique)["config"], "first_seq": 1000})
    (said,) = warnings()
    assert said.startswith(
        "its first_seq was edited to 1,000. The next start of its server removes every message before"
    )


def test_a_mirror_that_lacks_messages_once_it_is_full_is_warned_of(
    check: Command, nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    nats_py.create_stream(unique, [f"{unique}.>"])
    for discard, expected in (("old", False), ("new", True)):
        name = f"{unique}_{discard}"
        nats_py.create_stream(name, [], mirror={"name": unique}, max_msgs=5, discard=discard)
        (stream,) = check(nats_server, "--stream", name, "--json").report["streams"]
        assert any("it is a mirror with discard: new" in each for each in stream["warnings"]) == expected


def test_a_stream_with_three_replicas_is_warned_of_where_its_state_bucket_has_one(
    check: Command, cluster: Cluster, unique: str
) -> None:
    with NatsPy(cluster.servers[0].url) as client:
        client.create_in_cluster(unique, subjects=[f"{unique}.>"], num_replicas=3)
        (stream,) = check(cluster.urls, "--stream", unique, "--stateBucket", unique, "--json").report["streams"]
        assert (stream["replicas"], stream["warnings"]) == (3, [])
        client.create_in_cluster(f"KV_{unique}", subjects=[f"$KV.{unique}.>"])
    (stream,) = check(cluster.urls, "--stream", unique, "--stateBucket", unique, "--json").report["streams"]
    assert stream["warnings"] == [
        f"it has 3 replicas in file, and the bucket where exact writes note what they begin, {unique}, has 1 in file"
    ]


def test_the_duplicate_window_is_compared_with_how_long_tasks_wait(
    check: Command, nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    nats_py.create_stream(unique, [f"{unique}.>"], duplicate_window=600 * 10**9)
    for patience, shown in (("299s", False), ("10m", True)):
        ran = check(nats_server, "--stream", unique, "--retryTimeout", patience)
        assert ("message ids: tasks wait for servers for up to 10 min (retryTimeout)" in ran.out) == shown
    (stream,) = check(nats_server, "--stream", unique, "--json").report["streams"]
    assert (stream["duplicate_window"], stream["outlasts"]) == (600, False)  # half of it is five minutes, the default


def test_a_subject_that_no_message_can_have_is_warned_of(
    check: Command, nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    nats_py.create_stream(unique, [f"{unique}.orders.>"])
    nats_py.create_stream(f"{unique}_M", [], mirror={"name": unique})

    def misses(streams: str, subject: str) -> list[str]:
        ran = check(nats_server, "--stream", streams, "--subject", subject)
        return [line for line in ran.out.splitlines() if "it stores no message with" in line]

    assert misses(unique, f"{unique}.order.>,{unique}.*.eu") == [
        f"warning: stream {unique}: it stores no message with subject {unique}.order.>: it listens on {unique}.orders.>"
    ]
    assert misses(f"{unique}_M", f"{unique}.order.>") == []  # it listens on nothing, and has what the other one has


def test_a_mirror_is_said_to_be_nothing_to_write_to(
    check: Command, nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    nats_py.create_stream(unique)
    nats_py.create_stream(f"{unique}_M", [], mirror={"name": unique})
    nats_py.create_stream(f"KV_{unique}", [f"$KV.{unique}.>"])
    nats_py.create_stream(f"KV_{unique}_M", [], mirror={"name": f"KV_{unique}"})
    of_stream, of_bucket = (
        f"a mirror of {what} '{unique}', and stores only messages from there" for what in ("stream", "bucket")
    )
    found = check(nats_server, "--stream", f"{unique}_M", "--json").abilities(f"{unique}_M")
    assert {found[to]["obstacle"] for to in ("write", "exact")} == {f"it is {of_stream}"}
    assert found["read"]["obstacle"] == ""
    found = check(nats_server, "--bucket", f"{unique}_M", "--json").abilities(f"KV_{unique}_M")
    assert {found[to]["obstacle"] for to in ("write", "compare")} == {f"it is {of_bucket}"}
    found = check(nats_server, "--stream", unique, "--stateBucket", f"{unique}_M", "--json").abilities(unique)
    assert (found["write"]["obstacle"], found["exact"]["obstacle"]) == ("", f"the state bucket is {of_bucket}")


@pytest.mark.skipif(not OLDER_BINARY.exists(), reason="make test brings it")
def test_an_older_server_is_looked_at_too(check: Command, server_factory: ServerFactory) -> None:
    server = server_factory(users(user("reader", READ)), binary=OLDER_BINARY)
    make_orders(server.url)
    ran = check(server, "--user", "reader", *LOGIN, "--stream", "ORDERS", "--require", "read")
    assert ran.status == 0
    assert "nats-server 2.11" in ran.out
    ran = check(server, "--user", "reader", *LOGIN, "--stream", "ORDERS", "--require", "consume")
    assert ran.status == 1
    assert "releasing from a stream with limits retention needs nats-server 2.14 or newer" in ran.err


def test_a_cluster_with_a_stopped_follower_is_looked_at(check: Command, cluster: Cluster, unique: str) -> None:
    with NatsPy(cluster.servers[0].url) as client:
        client.create_in_cluster(unique, subjects=[f"{unique}.>"], num_replicas=3)
        client.publish_acked([(f"{unique}.x", b"1")])
        leads = client.stream_info(unique)["cluster"]["leader"]
    leads_all = monitoring(cluster.servers[0], "jsz")["meta_cluster"]["leader"]  # it says what the account uses
    follower = next(server for server in cluster.servers if server not in map(cluster.of, (leads, leads_all)))
    others = ",".join(server.url for server in cluster.servers if server is not follower)
    with cluster.paused(follower):
        ran = check(others, "--stream", unique, "--require", "read,write,exact,create")
    assert ran.status == 0
    assert ", cluster C, " in ran.out


def test_a_stream_without_a_leader_is_said_where_none_is_named(check: Command, cluster: Cluster, unique: str) -> None:
    with NatsPy(cluster.servers[0].url) as client:
        client.create_in_cluster(unique, subjects=[f"{unique}.>"], num_replicas=1)
        ended = cluster.of(client.stream_info(unique)["cluster"]["leader"])
        client.create_in_cluster(f"{unique}_WELL", subjects=[f"{unique}_WELL.>"], num_replicas=3)
    others = ",".join(server.url for server in cluster.servers if server is not ended)
    cluster.end(ended)
    try:

        def once_the_cluster_has_a_leader() -> Ran | None:
            found = check(others, "--requestTimeout", "10s")
            return found if f"{unique}_WELL  " in found.out and unique in found.err else None

        found = wait_until(once_the_cluster_has_a_leader, timeout=60)
        assert found.status == 1
        said = f"spark-nats: stream {unique}: cannot be used now: no server that keeps it answers: they are offline"
        assert said in found.err

        last, another = (server for server in cluster.servers if server is not ended)
        cluster.end(another)
        said = "spark-nats: the streams cannot be listed: STREAM.LIST failed: JetStream system temporarily unavailable"
        try:
            wait_until(lambda: said in (found := check(last)).err and found.status == 1, timeout=60)
        finally:
            another.start()
    finally:
        ended.start()


@pytest.mark.needs("fast batches")
@pytest.mark.skipif(not BINARY_2_12.exists(), reason="make test brings it")
def test_a_stream_that_a_server_is_too_old_for_is_said_where_none_is_named(check: Command, tmp_path: Path) -> None:
    with NatsServer(store_dir=tmp_path / "js") as server, NatsPy(server.url) as client:
        client.create_stream("WELL")
        client.create_stream("LATER", allow_batched=True)
    with NatsServer(store_dir=tmp_path / "js", binary=BINARY_2_12) as server:
        ran = check(server)
        assert ran.status == 1
        said = 'cannot be used now: it is offline: unsupported - config error: unknown field "allow_batched"'
        assert ran.err == f"spark-nats: stream LATER: {said}\n"
        assert "WELL" in ran.out
        streams = {each["name"]: each["problem"] for each in check(server, "--json").report["streams"]}
        assert streams == {"WELL": "", "LATER": said}


# What the user may do


def test_what_the_permissions_lack_is_named_for_users_who_may_not_ask(
    check: Command, server_factory: ServerFactory
) -> None:
    server = server_factory(users(user("reader", READ), user("creator", CREATE)))
    make_orders(server.url)
    ran = check(server, "--user", "reader", *LOGIN, "--stream", "ORDERS", "--json")
    assert ran.status == 0
    found = ran.abilities("ORDERS")
    assert found["read"]["possible"] is True
    assert found["write"]["possible"] is None
    assert found["write"]["unknown"] == ["publish to orders.>"]
    assert found["exact"]["lacks"] == [f"publish to {subject}" for subject in STATE if subject.startswith("$JS")]
    assert found["create"]["lacks"] == [f"publish to {CREATE[0]}"]
    found = check(server, "--user", "creator", *LOGIN, "--stream", "ORDERS", "--json").abilities("ORDERS")
    assert found["read"]["lacks"] == [f"publish to {subject}" for subject in READ]
    assert found["create"]["lacks"] == [f"publish to {READ[0]}"]


def test_what_the_permissions_lack_is_known_of_users_who_may_ask(check: Command, server_factory: ServerFactory) -> None:
    server = server_factory(
        users(
            user("writer", [*WRITE, ASK]),
            user("partly", [WRITE[0], "orders.eu.>", ASK]),
            user("settler", [*WRITE, *STATE, *READ_BACK, ASK]),
            '{"user": "denied", "password": "pw", "permissions": {"publish": {"deny": ["orders.secret"]}}}',
        )
    )
    make_orders(server.url)

    def abilities(name: str, *arguments: str) -> dict[str, Any]:
        return check(server, "--user", name, *LOGIN, "--stream", "ORDERS", "--json", *arguments).abilities("ORDERS")

    assert abilities("writer")["write"]["possible"] is True
    assert abilities("writer")["read"]["lacks"] == [f"publish to {subject}" for subject in READ_BACK]
    assert abilities("partly")["write"]["lacks"] == ["publish to orders.>"]
    assert abilities("partly", "--subject", "orders.eu.x")["write"]["possible"] is True
    assert abilities("settler")["exact"]["possible"] is True
    assert abilities("denied")["write"]["lacks"] == ["publish to orders.>"]
    assert abilities("denied")["read"]["possible"] is True


def test_a_pattern_needs_to_be_told_the_names(check: Command, server_factory: ServerFactory) -> None:
    server = server_factory(users(user("reader", READ), user("lister", READ + MATCH), user("asker", [*MATCH, ASK])))
    make_orders(server.url)
    asked = ["--streamPattern", "ORD.*", "--require", "read", "--json"]
    ran = check(server, "--user", "lister", *LOGIN, *asked)
    assert (ran.status, ran.abilities("ORDERS")["read"]["lacks"]) == (0, [])
    ran = check(server, "--user", "reader", *LOGIN, *asked)
    assert ran.status == 1
    (failure,) = ran.report["failures"]
    assert failure.startswith("stream ORD.*: ")
    assert "$JS.API.STREAM.NAMES" in failure
    ran = check(server, "--user", "asker", *LOGIN, *asked)
    assert ran.status == 1
    assert ran.abilities("ORDERS")["read"]["lacks"] == [f"publish to {subject}" for subject in READ]


@pytest.mark.needs("interest streams")
def test_what_consuming_needs_depends_on_the_retention(check: Command, server_factory: ServerFactory) -> None:
    server = server_factory(
        users(
            user("reader", READ),
            user("consumer", [*READ, *CONSUME]),
            user("queue", CONSUME_QUEUE),
            user("queue_asks", [*CONSUME_QUEUE, ASK]),
            user("peek", PEEK),
        )
    )

    def abilities(name: str) -> dict[str, Any]:
        return check(server, "--user", name, *LOGIN, "--stream", "ORDERS", "--json").abilities("ORDERS")

    make_orders(server.url)
    assert abilities("reader")["consume"]["lacks"] == [f"publish to {subject}" for subject in CONSUME]
    assert abilities("consumer")["consume"]["possible"] is True
    assert "peek" not in abilities("consumer")
    with NatsPy(server.url, user="admin", password="pw") as client:
        client.delete_stream("ORDERS")
        client.create_stream("ORDERS", ["orders.>"], retention="workqueue", allow_direct=True)
    assert abilities("queue_asks")["consume"]["possible"] is True
    assert abilities("queue")["consume"]["unknown"] == ["publish to $JS.API.STREAM.PURGE.ORDERS"]
    assert abilities("queue")["consume"]["lacks"] == []
    assert abilities("peek")["peek"]["possible"] is True
    lacking = {f"publish to {subject}" for subject in CONSUME_QUEUE if subject not in PEEK and "PURGE" not in subject}
    assert set(abilities("peek")["consume"]["lacks"]) == lacking


@pytest.mark.parametrize("asks", [[], [ASK]], ids=["who may not ask", "who may ask"])
def test_each_lacking_permission_is_found(check: Command, server_factory: ServerFactory, asks: list[str]) -> None:
    server = server_factory(
        users(*(user(f"u{i}", [*READ[:i], *READ[i + 1 :], *asks]) for i in range(len(READ)))),
    )
    make_orders(server.url)
    for i, missing in enumerate(READ):
        ran = check(server, "--user", f"u{i}", *LOGIN, "--stream", "ORDERS", "--json", "--require", "read")
        assert ran.status == 1
        assert ran.abilities("ORDERS")["read"]["lacks"] == [f"publish to {missing}"]


@pytest.mark.parametrize("binary", [None, OLDER_BINARY], ids=["newest", "older"])
def test_a_check_changes_nothing(check: Command, server_factory: ServerFactory, binary: Path | None) -> None:
    if binary and not binary.exists():
        pytest.skip("make test brings it")
    server = server_factory(users(user("reader", READ), user("all", ["$JS.API.>"])), binary=binary)
    make_orders(server.url)
    with NatsPy(server.url, user="admin", password="pw") as client:
        client.create_stream("QUEUE", ["queue.>"], retention="workqueue", allow_direct=True)
        client.publish_acked([("queue.x", b"1")])
    with NatsPy(server.url, user="admin", password="pw") as client, client.collect("orders.>") as seen:
        before = client.stream_info("ORDERS")["state"]
        for name in ("reader", "all"):
            check(server, "--user", name, *LOGIN, "--stream", "ORDERS,QUEUE,OTHER", "--subject", "orders.new")
        assert client.stream_info("ORDERS")["state"] == before
        assert client.held("QUEUE") == 1
        assert client.api("STREAM.NAMES")["streams"] == ["ORDERS", "QUEUE"]
        assert client.consumers("ORDERS") == client.consumers("QUEUE") == []
        assert seen.messages == []


def test_a_bucket_that_is_there_need_not_be_made(check: Command, server_factory: ServerFactory) -> None:
    server = server_factory(users(user("settler", [*WRITE, *STATE[:3], *READ_BACK, ASK])))
    make_orders(server.url)
    arguments = ["--user", "settler", *LOGIN, "--stream", "ORDERS", "--json"]
    assert check(server, *arguments).abilities("ORDERS")["exact"]["lacks"] == [f"publish to {STATE[3]}"]
    with NatsPy(server.url, user="admin", password="pw") as client:
        client.create_stream("KV_SPARK_NATS", ["$KV.SPARK_NATS.>"])
    assert check(server, *arguments).abilities("ORDERS")["exact"]["possible"] is True


# KV buckets


def make_config(url: str) -> None:
    with NatsPy(url, user="admin", password="pw") as client:
        client.create_stream("KV_CONFIG", ["$KV.CONFIG.>"], max_msgs_per_subject=1)
        client.publish_acked([("$KV.CONFIG.a", b"1"), ("$KV.CONFIG.b", b"2")])


def test_a_bucket_and_what_one_may_do_with_it_are_printed(check: Command, server_factory: ServerFactory) -> None:
    server = server_factory(users(user("writer", [*WRITE_BUCKET, *COMPARE_AND_SET, ASK])))
    make_config(server.url)
    ran = check(server, "--user", "writer", *LOGIN, "--bucket", "CONFIG", "--require", "write,compare")
    assert ran.status == 0
    lines = [line.split() for line in ran.out.splitlines()]
    assert ["bucket", "activity", "allowed", "lacks"] in lines
    assert any(line[:5] == ["CONFIG", "2", "1", "to", "2"] for line in lines)
    assert ["write,", "compare", "yes"] in lines
    ran = check(server, "--user", "writer", *LOGIN, "--bucket", "CONFIG", "--require", "create")
    assert ran.status == 1
    assert ran.err == f"spark-nats: bucket CONFIG, create: may not publish to {CREATE_BUCKET[0]}\n"


@pytest.mark.parametrize("asks", [[], [ASK]], ids=["who may not ask", "who may ask"])
def test_what_the_permissions_lack_for_a_bucket_is_found(
    check: Command, server_factory: ServerFactory, asks: list[str]
) -> None:
    needed = {
        "read": READ_BUCKET,
        "write": WRITE_BUCKET,
        "compare": [*WRITE_BUCKET, *COMPARE_AND_SET],
        "create": [WRITE_BUCKET[0], *CREATE_BUCKET],
    }
    everything = list(dict.fromkeys(subject for subjects in needed.values() for subject in subjects))
    without = [[each for each in everything if each != one] for one in everything]
    server = server_factory(
        users(
            user("all", [*everything, *asks]), *(user(f"u{i}", [*allowed, *asks]) for i, allowed in enumerate(without))
        )
    )
    make_config(server.url)

    def abilities(name: str) -> dict[str, Any]:
        ran = check(server, "--user", name, *LOGIN, "--bucket", "CONFIG", "--json")
        assert ran.report["streams"][0]["bucket"] == "CONFIG"
        return ran.abilities("KV_CONFIG")

    def lacks(ability: dict[str, Any]) -> list[str]:
        return [each for each in ability["lacks"] + ability["unknown"] if asks or "$KV" not in each]

    assert {to: lacks(ability) for to, ability in abilities("all").items()} == {to: [] for to in needed}
    for i, missing in enumerate(everything):
        found = {to: lacks(ability) for to, ability in abilities(f"u{i}").items()}
        expected = [f"publish to {missing}"] if asks or "$KV" not in missing else []
        assert found == {to: expected if missing in subjects else [] for to, subjects in needed.items()}


def test_only_some_keys_of_a_bucket_may_be_written(check: Command, server_factory: ServerFactory) -> None:
    server = server_factory(users(user("eu", [WRITE_BUCKET[0], "$KV.CONFIG.eu.>", ASK])))
    make_config(server.url)
    arguments = ["--user", "eu", *LOGIN, "--bucket", "CONFIG", "--require", "write"]
    assert check(server, *arguments, "--keys", "eu.*,eu.x.y").status == 0
    ran = check(server, *arguments, "--keys", "eu.x,us.x")
    assert ran.status == 1
    assert ran.err == "spark-nats: bucket CONFIG, write: may not publish to $KV.CONFIG.us.x\n"


def in_the_hub(subjects: list[str]) -> list[str]:
    return [each.replace("$JS.", "$JS.hub.").replace("$KV.", "$JS.hub.API.$KV.") for each in subjects]


def test_in_a_domain_keys_are_checked_where_they_are_published(check: Command, server_factory: ServerFactory) -> None:
    writing = [*WRITE_BUCKET, *COMPARE_AND_SET]
    here, there = user("here", [*writing, ASK]), user("there", [*in_the_hub(writing), ASK])
    hub, leaf = hub_and_leaf(server_factory, users(here, there))
    make_config(hub.url)

    def status(server: Server, name: str) -> int:
        arguments = ["--user", name, *LOGIN, "--domain", "hub", "--bucket", "CONFIG", "--require", "write,compare"]
        return check(server, *arguments).status

    # What is of its own domain, a server looks at as it is without one.
    wait_until(lambda: status(hub, "here") == 0, timeout=60)  # it has a leader
    assert status(hub, "there") == 1
    wait_until(lambda: status(leaf, "there") == 0, timeout=60)  # it has heard of the hub
    assert status(leaf, "here") == 1
    rows = pa.table({"key": ["new", "a"], "value": ["1", "2"], "expected_revision": pa.array([None, 1], pa.int64())})
    for server, name in ((hub, "here"), (leaf, "there")):
        write(server, rows, bucket="CONFIG", domain="hub", onConflict="skip", **login(name))
    with NatsPy(hub.url, user="admin", password="pw") as client:
        stored = [(message.subject, message.payload) for message in client.read_stream("KV_CONFIG")]
    assert stored == [("$KV.CONFIG.b", b"2"), ("$KV.CONFIG.a", b"2"), ("$KV.CONFIG.new", b"1")]


def test_a_stream_of_the_servers_own_domain_that_hears_the_same_is_told(
    check: Command, server_factory: ServerFactory
) -> None:
    hub, leaf = hub_and_leaf(server_factory, users(user("quiet", [*in_the_hub(["$JS.API.STREAM.INFO.ORDERS"]), ASK])))
    admin, there = ["--user", "admin", "--password", "pw"], ["--stream", "ORDERS", "--domain", "hub"]
    too = "stream {!r} in domain 'leaf' hears orders.eu.> too: it stores what is written here, and answers it"
    with NatsPy(hub.url, user="admin", password="pw") as client:
        client.create_stream("ORDERS", ["orders.eu.>", "orders.us.>"])
    assert "hears" not in check(leaf, *admin, *there).out
    with NatsPy(leaf.url, user="admin", password="pw") as client:
        client.create_stream("ORDERS", ["orders.eu.*"])
        client.create_stream("OTHERS", ["others"])
    assert f"warning: stream ORDERS: {too.format('ORDERS')}" in check(leaf, *admin, *there).out
    assert "hears" not in check(leaf, *admin, "--stream", "ORDERS").out
    assert "hears" not in check(hub, *admin, *there).out  # a hub does not know which domains there are
    quiet = check(leaf, "--user", "quiet", *LOGIN, *there).out
    assert "unknown: which streams of the server's own domain hear the same subjects: this user may not ask" in quiet


def test_a_stream_outside_any_domain_that_hears_the_same_is_told(check: Command, server_factory: ServerFactory) -> None:
    (port,) = free_ports(1)
    hub = server_factory(f'jetstream {{ domain: hub }}\nleafnodes {{ listen: "127.0.0.1:{port}" }}')
    up = f'leafnodes {{ remotes: [ {{ url: "nats://127.0.0.1:{port}" }} ] }}'
    for named, jetstream in (("with", True), ("without", False)):
        leaf = server_factory(f"server_name: {named}\n{up}", jetstream=jetstream)
        with NatsPy(hub.url) as at_hub, NatsPy(leaf.url) as at_leaf:
            at_hub.create_stream("ORDERS", ["orders"])
            if jetstream:
                at_leaf.create_stream("EDGE", ["orders"])
            wait_until(lambda: succeeds(lambda: at_leaf.request("$JS.hub.API.INFO", timeout=1.0)))
            ran = check(leaf, "--stream", "ORDERS", "--domain", "hub")
        told = "stream 'EDGE' outside any domain hears orders too" in ran.out
        assert (told, ran.status, "unknown:" in ran.out) == (jetstream, 0, False)


def test_a_bucket_that_is_missing_is_a_failure_that_names_another(
    check: Command, server_factory: ServerFactory
) -> None:
    server = server_factory()
    with NatsPy(server.url) as client:
        client.create_stream("KV_CONFIG", ["$KV.CONFIG.>"])
    ran = check(server, "--bucket", "CONFIGS", "--require", "create")
    assert ran.status == 1
    assert ran.err == "spark-nats: bucket CONFIGS: the bucket 'CONFIGS' does not exist (there is 'CONFIG')\n"


def test_a_check_changes_no_bucket(check: Command, server_factory: ServerFactory) -> None:
    server = server_factory(users(user("all", ["$JS.API.>", "$KV.>"])))
    make_config(server.url)
    with NatsPy(server.url, user="admin", password="pw") as client, client.collect("$KV.>") as seen:
        for bucket in ("CONFIG", "OTHER"):
            check(server, "--user", "all", *LOGIN, "--bucket", bucket, "--keys", "a,new")
        assert client.api("STREAM.NAMES")["streams"] == ["KV_CONFIG"]
        assert client.stream_info("KV_CONFIG")["state"]["last_seq"] == 2
        assert client.consumers("KV_CONFIG") == []
        assert seen.messages == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--bucket", "A", "--subject", "a"], "option 'subject' is not for KV buckets, and contradicts the option"),
        (["--bucket", "A", "--stream", "A"], "options 'stream' and 'bucket' contradict each other"),
        (["--stream", "A", "--keys", "a"], "option 'keys' needs the option 'bucket'; it is for KV buckets"),
        (
            ["--bucket", "A", "--require", "read,exact"],
            "--require exact is not for a KV bucket; use read, write,",
        ),
        (["--stream", "A", "--require", "compare"], "--require compare is not for a stream; use read, consume,"),
        (["--subject", "a", "--require", "consume"], "--require consume is not for core NATS; use read, write"),
        (["--bucket", "a.b"], "option 'bucket' is 'a.b'; a bucket's name has only"),
    ],
)
def test_what_is_not_for_buckets_or_core_nats_is_refused(check: Command, arguments: list[str], words: str) -> None:
    ran = check("nats://127.0.0.1:1", *arguments)
    assert ran.status == 2
    assert words in ran.err


def test_a_user_who_hears_no_answers_can_do_nothing_with_streams(check: Command, server_factory: ServerFactory) -> None:
    server = server_factory(users(user("deaf", READ, ("elsewhere",))))
    make_orders(server.url)
    ran = check(server, "--user", "deaf", *LOGIN, "--stream", "ORDERS", "--json")
    assert ran.status == 1
    assert ran.report["hears_answers"] is False
    assert ran.abilities("ORDERS")["read"]["lacks"] == ["subscribe to _INBOX_spark.>"]


def test_subjects_of_core_nats_are_looked_at_without_a_stream(check: Command, server_factory: ServerFactory) -> None:
    server = server_factory(users(user("core", ["a.x", ASK], ("a.>", INBOX)), user("mute", [], ("a.>",))))
    ran = check(server, "--user", "core", *LOGIN, "--subject", "a.x", "--require", "read,write")
    assert ran.status == 0
    ran = check(server, "--user", "core", *LOGIN, "--subject", "a.x,b.x", "--require", "read", "--require", "write")
    assert ran.status == 1
    assert ran.err.splitlines() == [
        "spark-nats: core NATS, read: may not subscribe to b.x",
        "spark-nats: core NATS, write: may not publish to b.x",
    ]
    ran = check(server, "--user", "mute", *LOGIN, "--subject", "a.x", "--require", "read")
    assert ran.status == 0


@pytest.mark.needs("work queues")
def test_a_stream_that_cannot_be_replayed_is_consumed_or_peeked_at(
    check: Command, nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    nats_py.create_stream(unique, [f"{unique}.>"], retention="workqueue", allow_direct=True)
    ran = check(nats_server, "--stream", unique, "--require", "read,consume,peek")
    assert ran.status == 1
    assert ran.err == f"spark-nats: stream {unique}, read: workqueue retention: to be consumed, or peeked at\n"
    nats_py.create_stream(f"{unique}_2", [f"{unique}_2.>"], retention="workqueue", deny_purge=True, allow_direct=True)
    nats_py.create_stream(f"{unique}_3", [f"{unique}_3.>"], retention="workqueue", allow_direct=False)
    ran = check(nats_server, "--stream", f"{unique}_2,{unique}_3", "--require", "consume,peek")
    lines = ran.err.splitlines()
    for line, words in zip(
        lines,
        [
            f"_2, consume: stream '{unique}_2' does not allow purges (deny_purge)",
            f"_3, consume: stream '{unique}_3' does not allow direct gets",
            f"_3, peek: stream '{unique}_3' does not allow direct gets",
        ],
        strict=True,
    ):
        assert line.startswith(f"spark-nats: stream {unique}{words}")


@pytest.mark.needs("interest streams")
def test_an_imported_api_is_checked_with_its_prefix(check: Command, server_factory: ServerFactory) -> None:
    server = server_factory(ACCOUNTS)
    make_orders(server.url, "owner")
    arguments = ["--user", "app", "--password", "pw", "--stream", "ORDERS", "--require", ",".join(STREAM_ACTIVITIES)]
    assert check(server, *arguments, "--apiPrefix", "JS.owner.API").status == 0
    assert check(server, *arguments).status == 1


# What can be wrong


def test_secrets_are_not_shown(check: Command, server_factory: ServerFactory) -> None:
    server = server_factory("authorization { token: t0ps3cret_t0ken }")
    for more in ([], ["--json"]):
        ran = check(server, "--token", "t0ps3cret_t0ken", *more)
        assert ran.status == 0
        assert "t0ps3cret" not in ran.out + ran.err
    ran = check(server, "--token", "wr0ng_t0ken")
    assert ran.status == 1
    said = f"[NATS_CREDENTIALS_REFUSED] {server.url} refused the credentials: Authorization Violation; check the"
    assert ran.err.startswith(f"spark-nats: {said}")
    assert "wr0ng" not in ran.err


def test_a_context_says_how_to_connect(
    check: Command, server_factory: ServerFactory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = server_factory(users())
    context = tmp_path / "prod.json"
    context.write_text(json.dumps({"url": server.url, "user": "admin", "password": "pw"}))
    assert main(["check", "--context", str(context)]) == 0
    assert "login       admin, account $G" in capsys.readouterr().out


@since(2, 12)  # older ones say the key of a user, not the name
def test_a_login_by_jwt_and_tls_is_said_to_end(check: Command, server_factory: ServerFactory, tmp_path: Path) -> None:
    mode, certificates = OperatorMode(), Certificates(tmp_path)
    server = server_factory(certificates.config() + mode.config)
    creds = mode.creds(tmp_path / "ann.creds", exp=int(time.time()) + 3 * 3600 + 60)
    ran = check(server, "--credentialsFile", str(creds), "--tlsCaFile", str(certificates.ca))
    assert ran.status == 0
    assert ", TLS\n" in ran.out
    assert "login       USER, account ACCOUNT, for another 3 h\n" in ran.out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--servers", "nats://ann:secret@h"], "option 'servers' has a user, password or token in a URL"),
        (["--password", "secret"], "option 'password' needs the option 'user'"),
        (["--context", "/nowhere.json"], "option 'context' is '/nowhere.json'"),
        (["--stream", "a b"], "option 'stream' is 'a b'; 'a b' contains white space"),
        (["--require", "read"], "--require needs to know what to check"),
    ],
)
def test_a_wrong_option_is_a_sentence_and_the_status_2(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.fullmatch(rf"spark-nats: \[NATS_[A-Z_]+\] {re.escape(sentence)}.*", line)
    assert "secret" not in line


def test_an_unknown_activity_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["check", "--stream", "S", "--require", "read,delete"])
    assert "'delete' is none of read, consume, peek, write, exact, compare, create" in capsys.readouterr().err


def test_a_server_that_says_nothing_any_more_is_given_up(check: Command, server_factory: ServerFactory) -> None:
    server = server_factory()
    check(server)
    with paused(server):
        ran = check(server, "--connectTimeout", "200ms", "--requestTimeout", "200ms")
    assert ran.status == 1
    assert "sent no INFO in 0.2 s" in ran.err


def test_whoever_reads_may_stop_reading(nats_server: Server) -> None:
    command = f"{sys.executable} -m spark_nats.cli options | head -1"
    ran = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True, timeout=60)
    assert ran.stdout == f"{next(iter(options_by_section()))}\n"
    assert ran.stderr == ""


# Terminals


def test_in_a_terminal_there_are_tables_of_rich() -> None:
    pytest.importorskip("rich")
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "160"}
    command = [sys.executable, "-m", "spark_nats.cli", "options", "write"]
    process = subprocess.Popen(command, stdout=theirs, env=environment)
    os.close(theirs)
    shown = b""
    try:
        while part := os.read(ours, 65536):
            shown += part
    except OSError:  # the other end is closed
        pass
    finally:
        os.close(ours)
        assert process.wait(timeout=60) == 0
    assert b"\x1b[1m" in shown
    assert "maxInFlight" in shown.decode()
    assert "─" in shown.decode()


# The table of options


def test_the_options_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["options"]) == 0
    shown = capsys.readouterr().out.strip().split("\n\n")
    for section, (title, options) in zip(shown, options_by_section().items(), strict=True):
        first, head, *rows = section.splitlines()
        assert first == title
        assert head.split() == ["option", "for", "default", "meaning"]
        assert [row.split()[0] for row in rows] == [each.option.name for each in options]


def test_the_options_for_reading_or_writing_are_listed_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    for scope, only in (("read", "minPartitions"), ("write", "maxInFlight")):
        assert main(["options", scope, "--json"]) == 0
        listed = {option["name"]: option for option in json.loads(capsys.readouterr().out)}
        assert {option["scope"] for option in listed.values()} == {scope, "both"}
        assert only in listed
        assert listed["servers"]["default"] == "nats://localhost:4222"
        assert listed["servers"]["section"] == "Connecting"


def test_only_sections_with_options_for_writing_are_listed_for_writing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["options", "write"]) == 0
    titles = {section.splitlines()[0] for section in capsys.readouterr().out.strip().split("\n\n")}
    assert "Writing" in titles
    assert "Work queues and interest streams" not in titles


@pytest.mark.needs("copied queues")
@pytest.mark.promise("queues#copied")
def test_what_a_queue_keeps_for_a_stream_that_copies_it_is_said(
    check: Command, nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    nats_py.create_stream(unique, [f"{unique}.>"], retention="workqueue", allow_direct=True)
    log = f"{unique}_LOG"
    nats_py.create_stream(log, [], sources=[{"name": unique}], max_msgs=3, discard="new")
    wait_until(lambda: nats_py.consumers(unique))
    (name,) = nats_py.consumers(unique)

    def warnings() -> list[str]:
        (stream,) = check(nats_server, "--stream", unique, "--json").report["streams"]
        return [each for each in stream["warnings"] if "copie" in each or "keeps" in each]

    assert warnings() == []
    nats_py.store(f"{unique}.a", range(10))
    line = f"it keeps 10 messages until consumer {name!r} of stream {log!r} has them, also those that are processed"
    wait_until(lambda: warnings() == [line])


def test_what_a_server_removes_unread_from_a_copied_queue_is_said(check: Command, tmp_path: Path, unique: str) -> None:
    with NatsServer(binary=binary_of("2.14.5"), store_dir=tmp_path) as server, NatsPy(server.url) as client:
        client.create_stream(unique, [f"{unique}.a", f"{unique}.b"], retention="workqueue", allow_direct=True)

        def warnings() -> list[str]:
            (stream,) = check(server, "--stream", unique, "--json").report["streams"]
            return [each for each in stream["warnings"] if "unread" in each]

        assert warnings() == []
        client.create_stream(f"{unique}_LOG", [], sources=[{"name": unique, "filter_subject": f"{unique}.a"}])
        wait_until(lambda: client.consumers(unique))
        (said,) = warnings()
        assert f"nats-server 2.14.5 removes messages with subject {unique}.b unread" in said
        worker = {"durable_name": "worker", "ack_policy": "explicit", "filter_subject": f"{unique}.b"}
        client.api(f"CONSUMER.CREATE.{unique}.worker.{unique}.b", {"stream_name": unique, "config": worker})
        assert warnings() == []
