"""Replays after servers of a cluster have restarted, or others lead; after a clock was set back, a stream edited or
restored: what `test_forgotten_ids` shows with one server that restarts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from nats.js.errors import APIError

from spark_nats.embedded import NatsServer
from spark_nats.errors import DataLossError
from spark_nats.kinds.streams.write.partitions import write_partition
from spark_nats.kinds.streams.write.sink import sink_of
from spark_nats.kinds.streams.write.tasks import WriteTask
from tests.connections import write_options
from tests.integration.support import run_task, table
from tests.nats_py import NatsPy, wait_until
from tests.servers import BINARY_2_12, ClockServer, Cluster, ServerFactory, end

_SECOND = 10**9
LONG = 600 * _SECOND
SHORT = 4 * _SECOND
FILES = ("spark_nats/kinds/streams/write/*", "spark_nats/jetstream/id_memory.py", "spark_nats/jetstream/publishing/*")
RACES = "servers that restart, and elect leaders"


class Target(NamedTuple):
    """A stream of this name, and a micro-batch that is written into it.

    Attributes:
        name: of the stream or the bucket.
        kind: `limits`, `queue`, `values` (the last one of each subject) or `bucket`.
        rows: how many, on five keys.
    """

    name: str
    kind: str
    rows: int = 100

    @property
    def stream(self) -> str:
        return f"KV_{self.name}" if self.kind == "bucket" else self.name

    @property
    def prefix(self) -> str:
        return f"$KV.{self.name}." if self.kind == "bucket" else f"{self.name}."

    def config(self, **more: Any) -> dict[str, Any]:
        config: dict[str, Any] = {"duplicate_window": LONG}
        if self.kind == "queue":
            config["retention"] = "workqueue"
        elif self.kind != "limits":
            config["max_msgs_per_subject"] = 1
        if self.kind == "bucket":
            config |= {"allow_rollup_hdrs": True, "allow_direct": True}
        return {"name": self.stream, "subjects": [f"{self.prefix}>"], **config, **more}

    def create(self, client: NatsPy, **more: Any) -> None:
        client.api(f"STREAM.CREATE.{self.stream}", self.config(**more))
        wait_until(lambda: client.reaches_stream(f"{self.prefix}>"))

    def edit(self, client: NatsPy, **more: Any) -> None:
        client.api(f"STREAM.UPDATE.{self.stream}", self.config(**more))

    def run(self, servers: str, **options: Any) -> None:
        """The micro-batch; the second time it is a replay."""
        keys, numbers = [f"k{i % 5}" for i in range(self.rows)], [str(i).encode() for i in range(self.rows)]
        if self.kind == "bucket":
            parsed = write_options(servers, bucket=self.name, **options)
            rows = pa.table({"key": keys, "value": numbers})
            write_partition(parsed, WriteTask(self.name, "0", 0), iter(rows.to_batches(10)), sink_of(parsed))
        else:
            rows = table(subject=[f"{self.prefix}{key}" for key in keys], payload=numbers)
            run_task(servers, rows, stream=self.name, **options)

    def drain(self, client: NatsPy) -> None:
        """Take every message, as the worker of a queue does."""

        async def take() -> None:
            worker = await client.nats.jetstream().pull_subscribe(f"{self.prefix}>", "worker", self.stream)
            for message in await worker.fetch(self.rows, timeout=30):
                await message.ack_sync(timeout=30)

        client.run(take())
        wait_until(lambda: client.held(self.stream) == 0)

    def given(self, client: NatsPy) -> int:
        """The last sequence that the stream has given."""
        return int(wait_until(lambda: state(client, self.stream))["last_seq"])

    def assert_as_written(self, client: NatsPy) -> None:
        """Assert that nothing was stored again, or at least that each key has its last value."""
        if self.kind != "bucket":
            assert self.given(client) == self.rows
        if self.kind in ("values", "bucket"):
            found = {message.subject: message.payload for message in client.read_stream(self.stream)}
            last = range(self.rows - 5, self.rows)
            assert found == {f"{self.prefix}k{i % 5}": str(i).encode() for i in last}


def state(client: NatsPy, stream: str) -> dict[str, Any]:
    """What a stream says of itself; empty while nobody answers."""
    with suppress(Exception):
        found: dict[str, Any] = client.stream_info(stream)["state"]
        return found
    return {}


def is_whole(client: NatsPy, stream: str) -> bool:
    """Whether a stream has a leader and both followers have what it has."""
    with suppress(Exception):
        cluster = client.stream_info(stream)["cluster"]
        followers = cluster.get("replicas") or []
        up = [each["current"] and not each.get("offline") and not each.get("lag") for each in followers]
        return bool(cluster.get("leader")) and len(up) == 2 and all(up)
    return False


def roll(cluster: Cluster, client: NatsPy, stream: str) -> None:
    """Restart all servers, one after the other."""
    for server in cluster.servers:
        cluster.restart(server)
        wait_until(lambda: is_whole(client, stream), timeout=120)
    wait_until(lambda: is_whole(client, "KV_SPARK_NATS"), timeout=120)


def hand_over(client: NatsPy, stream: str) -> None:
    """Have a server lead that does not."""
    before = client.stream_info(stream)["cluster"]["leader"]

    def another_leads() -> bool:
        now = client.stream_info(stream)["cluster"].get("leader")
        if now == before:
            with suppress(APIError):
                client.api(f"STREAM.LEADER.STEPDOWN.{stream}")
        return now not in (None, "", before)

    wait_until(another_leads, timeout=120)


def replay(target: Target, servers: str, client: NatsPy, fails: bool) -> None:
    """Replay the micro-batch; afterwards all is as it was."""
    if fails:
        with pytest.raises(DataLossError, match="workqueue retention, and cannot be read back"):
            target.run(servers)
    else:
        target.run(servers)
    target.assert_as_written(client)


KINDS = pytest.mark.parametrize("kind", ["queue", "values", "bucket"])


@pytest.mark.long(*FILES, races=RACES)
@pytest.mark.promise("exactly-once#forgotten-queue", "exactly-once#forgotten-replaced", "exactly-once#forgotten-bucket")
@pytest.mark.timeout(300)
@KINDS
def test_what_was_removed_is_not_stored_again_after_all_servers_have_restarted(
    cluster: Cluster, unique: str, kind: str
) -> None:
    target = Target(unique, kind)
    with NatsPy(cluster.urls.split(",")) as client:
        target.create(client, num_replicas=3)
        target.run(cluster.urls)
        if kind == "queue":
            target.drain(client)
        target.run(cluster.urls)
        target.assert_as_written(client)
        roll(cluster, client, target.stream)
        replay(target, cluster.urls, client, fails=kind == "queue")


@pytest.mark.long(*FILES, races=RACES)
@KINDS
def test_what_was_removed_is_not_stored_again_where_a_new_replica_leads(
    cluster: Cluster, unique: str, kind: str
) -> None:
    target = Target(unique, kind, rows=50)
    with NatsPy(cluster.urls.split(",")) as client:
        target.create(client)
        target.run(cluster.urls)
        if kind == "queue":
            target.drain(client)
        target.edit(client, num_replicas=3)
        wait_until(lambda: is_whole(client, target.stream), timeout=120)
        hand_over(client, target.stream)
        replay(target, cluster.urls, client, fails=kind == "queue")


@pytest.mark.long(*FILES, races=RACES)
@pytest.mark.promise("exactly-once#forgotten-kept-queue")
@pytest.mark.parametrize("kind", ["limits", "queue"])
def test_a_replay_goes_on_where_another_replica_leads_and_nothing_was_removed(
    cluster: Cluster, unique: str, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    target = Target(unique, kind)
    with NatsPy(cluster.urls.split(",")) as client:
        target.create(client, num_replicas=3)
        target.run(cluster.urls)
        hand_over(client, target.stream)
        with caplog.at_level(logging.WARNING, "spark_nats"):
            replay(target, cluster.urls, client, fails=False)
        codes = {record.getMessage().split()[0] for record in caplog.records}
        assert codes == (set() if kind == "limits" else {"[NATS_ROWS_STORED_ALREADY]"})


# One server


def wait_until_forgotten(client: NatsPy, target: Target) -> None:
    """Wait until the stream has forgotten the ids that it knows now."""
    probe = (f"{target.prefix}probe", b"", {"Nats-Msg-Id": "probe"})
    (first,) = client.publish_acked([probe])
    wait_until(lambda: client.publish_acked([probe]) != [first])
    if target.kind == "queue":
        client.purge_stream(target.stream)


@pytest.mark.long(*FILES, races="the expiry of message ids")
@pytest.mark.parametrize("back", [0, 3.5, 100])
@KINDS
def test_what_was_removed_is_not_stored_again_where_the_clock_was_set_back(
    clock_server_factory: Callable[..., ClockServer], kind: str, back: float
) -> None:
    server, target = clock_server_factory(), Target("S", kind, rows=20)
    with NatsPy(server.url) as client:
        target.create(client, duplicate_window=SHORT)
        target.run(server.url)
        if kind == "queue":
            target.drain(client)
        wait_until_forgotten(client, target)
        before = target.given(client)
        server.step(-back)
        if kind == "queue":
            with pytest.raises(DataLossError, match="workqueue retention, and cannot be read back"):
                target.run(server.url)
        else:
            target.run(server.url)
        if kind == "bucket":  # puts all rows again, in their order
            before += target.rows
        assert target.given(client) == before
        if kind != "queue":
            found = {message.subject: message.payload for message in client.read_stream(target.stream)}
            found.pop(f"{target.prefix}probe")
            assert found == {f"{target.prefix}k{i % 5}": str(i).encode() for i in range(15, 20)}


@pytest.mark.long(*FILES, races="the expiry of message ids")
@pytest.mark.parametrize(("window", "edited"), [(SHORT, LONG), (LONG, _SECOND)], ids=["longer", "shorter"])
@KINDS
def test_what_was_removed_is_not_stored_again_where_the_window_was_edited(
    server_factory: ServerFactory, kind: str, window: int, edited: int
) -> None:
    server, target = server_factory(), Target("S", kind, rows=20)
    with NatsPy(server.url) as client:
        target.create(client, duplicate_window=window)
        target.run(server.url)
        if kind == "queue":
            target.drain(client)
        if window < edited:
            wait_until_forgotten(client, target)
        target.edit(client, duplicate_window=edited)
        if window > edited:
            wait_until_forgotten(client, target)
        before = target.given(client)
        if kind == "queue":
            with pytest.raises(DataLossError, match="workqueue retention, and cannot be read back"):
                target.run(server.url)
        else:
            target.run(server.url)
        if kind == "bucket":
            before += target.rows
        assert target.given(client) == before
        if kind != "queue":
            found = {message.subject: message.payload for message in client.read_stream(target.stream)}
            found.pop(f"{target.prefix}probe")
            assert found == {f"{target.prefix}k{i % 5}": str(i).encode() for i in range(15, 20)}


def restored(server: NatsServer, target: Target) -> None:
    """The stream is backed up, deleted, and restored."""
    with NatsPy(server.url) as client:
        backup = client.back_up(target.stream)
        client.delete_stream(target.stream)
        client.restore(target.stream, backup)


def edited_and_restarted(server: NatsServer, target: Target) -> None:
    """The server is restarted, the stream edited, and the server restarted again."""
    end(server)
    server.start()
    with NatsPy(server.url) as client:
        config = wait_until(lambda: client.stream_info(target.stream))["config"]
        client.api(f"STREAM.UPDATE.{target.stream}", {**config, "description": "edited"})
    end(server)
    server.start()


WAYS = pytest.mark.parametrize(
    ("binary", "change"),
    [
        pytest.param(None, restored, id="restored"),
        pytest.param(BINARY_2_12, edited_and_restarted, id="edited-2.12"),
    ],
)


@pytest.mark.long(*FILES)
@WAYS
@pytest.mark.parametrize("kind", ["limits", "queue", "drained queue", "values", "bucket"])
def test_nothing_is_stored_again_in_a_stream_that_was_restored_or_says_another_time_of_creation(
    server_factory: ServerFactory,
    tmp_path: Path,
    binary: Path | None,
    change: Callable[[NatsServer, Target], None],
    kind: str,
) -> None:
    server = server_factory(store_dir=tmp_path, binary=binary)
    target = Target("S", kind.removeprefix("drained "), rows=20)
    with NatsPy(server.url) as client:
        target.create(client)
        target.run(server.url)
        if kind == "drained queue":
            target.drain(client)
        before = client.stream_info(target.stream)["created"]
    change(server, target)
    with NatsPy(server.url) as client:
        target.given(client)
        assert client.stream_info(target.stream)["created"] != before
        if "queue" in kind:
            with pytest.raises(DataLossError, match="workqueue retention, and cannot be read back"):
                target.run(server.url)
        else:
            target.run(server.url)
        target.assert_as_written(client)
