"""Reading goes on by itself, each row once: connections that are cut, servers that restart, leaders that go."""

from __future__ import annotations

import logging
import os
import random
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import pyarrow as pa
import pytest

from spark_nats.client import connect, host_cache, retrying
from spark_nats.embedded import NatsServer
from spark_nats.errors import DataLossError, JetStreamUnavailableError, NatsConnectionError
from spark_nats.jetstream.reading import direct, pulls
from tests.connections import options_for
from tests.integration.support import batch_reader, batch_sequences, monitoring
from tests.nats_py import Message, NatsPy, wait_until
from tests.scripted_server import api_answer
from tests.servers import Cluster, Server, ServerFactory


@pytest.fixture(autouse=True)
def in_small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read little at a time, so that faults come between, and learn of silence soon."""
    monkeypatch.setattr(pulls, "PULL_MESSAGES", 100)
    monkeypatch.setattr(pulls, "HEARTBEAT", 0.5)
    monkeypatch.setattr(retrying, "_LEADERLESS_WAIT", 0.1)


@pytest.fixture
def in_order(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Try the first server first, whatever tests before have found."""
    monkeypatch.setattr("spark_nats.clock.shuffle", lambda _: None)
    monkeypatch.setattr(host_cache, "_directory_path", lambda: tmp_path / "memory")


def interrupted(batches: Iterator[pa.RecordBatch], act: Callable[[], object]) -> list[int]:
    """Read on, and do something after the first rows."""
    found: list[int] = next(batches).column("sequence").to_pylist()
    act()
    return [*found, *batch_sequences(batches)]


# Connections


class CuttingProxy:
    """Stands before a server and cuts connections: when so many bytes have come from the server, then so many, ..."""

    def __init__(self, server: Server) -> None:
        address = urlsplit(server.url)
        self._server = (str(address.hostname), int(address.port or 0))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"nats://127.0.0.1:{self._listener.getsockname()[1]}"
        self.cuts: list[int] = []
        self.passed = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._forward, args=(client,), daemon=True).start()

    def _forward(self, client: socket.socket) -> None:
        with client, socket.create_connection(self._server) as server, suppress(OSError):
            while True:
                for ready in select.select([client, server], [], [])[0]:
                    limit = max(1, self.cuts[0]) if self.cuts and ready is server else 65536
                    data = ready.recv(limit)
                    if not data:
                        return
                    (client if ready is server else server).sendall(data)
                    if ready is server:
                        self.passed += len(data)
                        if self.cuts:
                            self.cuts[0] -= len(data)
                            if self.cuts[0] <= 0:  # below it, when two connections have brought the last ones
                                self.cuts.pop(0)
                                return


@pytest.fixture
def proxy(nats_server: Server) -> Iterator[CuttingProxy]:
    proxy = CuttingProxy(nats_server)
    yield proxy
    proxy.close()


@pytest.mark.needs("work queues", only="workqueue")
@pytest.mark.parametrize("times", [8, pytest.param(60, marks=pytest.mark.long("spark_nats/jetstream/*"))])
@pytest.mark.parametrize("retention", ["limits", "workqueue"])
@pytest.mark.parametrize("subject", [None, "1"])
def test_connections_that_are_cut_anywhere_cost_no_row(
    proxy: CuttingProxy,
    nats_py: NatsPy,
    unique: str,
    monkeypatch: pytest.MonkeyPatch,
    subject: str | None,
    retention: str,
    times: int,
) -> None:
    monkeypatch.setattr(pulls, "PULL_MESSAGES", 20)
    monkeypatch.setattr(direct, "BATCH_MESSAGES", 20)
    nats_py.create_stream(unique, retention=retention, allow_direct=True)
    nats_py.publish_acked((f"{unique}.{i % 2}", b"x" * (i % 50)) for i in range(1, 201))
    expected = [i for i in range(1, 201) if not subject or i % 2 == int(subject)]
    options = {"subject": f"{unique}.{subject}"} if subject else {}
    reader = batch_reader(proxy.url, stream=unique, reconnectWait="1ms", peek=True, **options)
    (partition,) = reader.partitions()
    before = proxy.passed
    assert batch_sequences(reader.read(partition)) == expected
    whole = proxy.passed - before
    chosen = random.Random(whole)
    for cut in range(1, whole, whole // times):
        proxy.cuts = [cut, chosen.randrange(1, whole), chosen.randrange(1, whole)]
        assert batch_sequences(reader.read(partition)) == expected, cut


# A server that restarts


def test_a_batch_read_goes_on_when_its_only_server_restarts(
    server_factory: ServerFactory, caplog: pytest.LogCaptureFixture
) -> None:
    server = server_factory()
    with NatsPy(server.url) as client:
        client.create_stream("S")
        client.store_empty("S", 5000)
    reader = batch_reader(server, stream="S", reconnectWait="100ms")
    (partition,) = reader.partitions()

    def start_again() -> None:
        wait_until(lambda: "NATS_TRYING_AGAIN" in caplog.text)
        server.start()

    with caplog.at_level(logging.WARNING), ThreadPoolExecutor(1) as pool:

        def kill() -> None:
            server.kill()
            starting.append(pool.submit(start_again))

        starting: list[Future[None]] = []
        assert interrupted(reader.read(partition), kill) == list(range(1, 5001))
        starting[0].result()
    began, ended = (message for message in caplog.messages if "reading S, sequences 1 to 5000" in message)
    assert "trying again for up to 300 s" in began
    assert "NATS_GOES_ON" in ended


def test_without_patience_a_task_fails_at_once(server_factory: ServerFactory, caplog: pytest.LogCaptureFixture) -> None:
    server = server_factory()
    with NatsPy(server.url) as client:
        client.create_stream("S")
        client.store_empty("S", 5000)
    reader = batch_reader(server, stream="S", retryTimeout="0s")
    (partition,) = reader.partitions()
    batches = reader.read(partition)
    next(batches)
    server.kill()
    with pytest.raises(NatsConnectionError):
        batch_sequences(batches)
    with pytest.raises(NatsConnectionError, match="no NATS server could be reached"):
        batch_sequences(reader.read(partition))
    assert "NATS_TRYING_AGAIN" not in caplog.text


def test_when_all_servers_stay_away_the_task_fails_with_the_last_reason_of_each(server_factory: ServerFactory) -> None:
    server = server_factory()
    with NatsPy(server.url) as client:
        client.create_stream("S")
        client.store_empty("S", 1)
    (partition,) = batch_reader(server, stream="S").partitions()
    server.kill()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        other = f"nats://127.0.0.1:{silent.getsockname()[1]}"
        options = {"retryTimeout": "300ms", "reconnectWait": "100ms", "connectTimeout": "200ms"}
        reader = batch_reader(f"{server.url},{other}", stream="S", **options)
        with pytest.raises(NatsConnectionError) as raised:
            batch_sequences(reader.read(partition))
    sentence = str(raised.value)
    assert sentence.startswith("[NATS_NO_SERVER] no NATS server could be reached (")
    assert f"{server.url}: Connection refused" in sentence
    assert f"{other}: accepted the connection but sent no INFO" in sentence
    assert sentence.count("; tried for 0.3 s") == 1


def test_jetstream_that_is_not_there_yet_is_waited_for(
    nats_server: Server, nats_py: NatsPy, unique: str, caplog: pytest.LogCaptureFixture
) -> None:
    nats_py.create_stream(unique)
    nats_py.store_empty(unique, 100)
    (partition,) = batch_reader(nats_server, stream=unique).partitions()
    elsewhere = batch_reader(nats_server, stream=unique, apiPrefix="LATE.API")
    found: list[int] = []
    task = threading.Thread(target=lambda: found.extend(batch_sequences(elsewhere.read(partition))))
    with caplog.at_level(logging.WARNING):
        task.start()
        wait_until(lambda: "JetStream does not answer on LATE.API" in caplog.text)
        nats = nats_py.nats

        async def forward(message: object) -> None:
            subject = message.subject.removeprefix("LATE.API.")  # type: ignore[attr-defined]
            await nats.publish(f"$JS.API.{subject}", message.data, reply=message.reply)  # type: ignore[attr-defined]

        subscription = nats_py.run(nats.subscribe("LATE.API.>", cb=forward))
        task.join(60)
    nats_py.run(subscription.unsubscribe())
    assert found == list(range(1, 101))
    assert "NATS_GOES_ON" in caplog.text


def test_jetstream_that_does_not_come_back_is_given_up(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    nats_py.create_stream(unique)
    nats_py.store_empty(unique, 100)
    (partition,) = batch_reader(nats_server, stream=unique).partitions()
    elsewhere = batch_reader(nats_server, stream=unique, apiPrefix="NEVER.API", retryTimeout="300ms")
    with pytest.raises(JetStreamUnavailableError, match=r"does not answer on NEVER\.API .*; tried for 0\.3 s"):
        batch_sequences(elsewhere.read(partition))


@pytest.mark.parametrize("answers", [False, True])
def test_a_server_that_is_cut_off_from_jetstream_is_left_for_another(
    nats_server: Server, nats_py: NatsPy, unique: str, server_factory: ServerFactory, in_order: None, answers: bool
) -> None:
    """It says nothing, or that it is not ready, for as long as it is asked."""
    nats_py.create_stream(unique)
    nats_py.store_empty(unique, 100)
    (partition,) = batch_reader(nats_server, stream=unique).partitions()
    cut_off = server_factory(jetstream=False)

    def not_ready(request: Message) -> bytes:
        error = {"code": 503, "err_code": 10008, "description": "temporarily unavailable"}
        return api_answer(request.subject.removeprefix("$JS.API."), {"error": error})

    reader = batch_reader(f"{cut_off.url},{nats_server.url}", stream=unique)
    with NatsPy(cut_off.url) as client, ExitStack() as stack:
        if answers:
            stack.enter_context(client.respond("$JS.API.>", not_ready))
        assert batch_sequences(reader.read(partition)) == list(range(1, 101))


@pytest.mark.parametrize("fail", [True, False])
def test_what_the_limits_remove_while_a_task_waits_for_its_server_is_named(
    server_factory: ServerFactory, caplog: pytest.LogCaptureFixture, fail: bool
) -> None:
    server = server_factory()
    with NatsPy(server.url) as client:
        client.create_stream("S", max_msgs=2000)
        client.store_empty("S", 2000)
    reader = batch_reader(server, stream="S", failOnDataLoss=fail)
    (partition,) = reader.partitions()

    def restart() -> None:
        server.kill()
        server.start()
        with NatsPy(server.url) as client:
            client.store_empty("S", 1500)

    batches = reader.read(partition)
    sentence = r"now begins at sequence 1501; sequences ([0-9]+) to 1500, which were about to be read, are lost"
    if fail:
        with pytest.raises(DataLossError, match=sentence):
            interrupted(batches, restart)
        return
    with caplog.at_level(logging.WARNING):
        found = interrupted(batches, restart)
    assert found[-500:] == list(range(1501, 2001))
    assert found[:-500] == list(range(1, len(found) - 499))
    assert f"sequences {len(found) - 499} to 1500, which were about to be read, are lost" in caplog.text


# A cluster


class Filled:
    """A stream with three replicas that holds 3000 messages."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster = cluster
        self.name = name
        with NatsPy(cluster.servers[0].url) as client:
            wait_until(lambda: self._fill(client))

    def _fill(self, client: NatsPy) -> bool:
        """Begin anew where the test before has left the cluster without a leader for a moment."""
        try:
            client.create_stream(self.name, num_replicas=3)
            client.store(f"{self.name}.x", [b"x" * 100] * 3000)
        except Exception:
            with suppress(Exception):
                client.delete_stream(self.name)
            return False
        return True

    def leader(self) -> NatsServer:
        with NatsPy(self.cluster.servers[0].url) as client:
            return self.cluster.of(client.stream_info(self.name)["cluster"]["leader"])

    def consumer_at(self) -> NatsServer:
        """Where the only consumer is."""
        with NatsPy(self.cluster.servers[0].url) as client:
            (name,) = client.consumers(self.name)
            info = client.api(f"CONSUMER.INFO.{self.name}.{name}")
            return self.cluster.of(info["cluster"]["leader"])

    def bystander(self) -> NatsServer:
        """A server that leads neither the stream nor the cluster: without it, nobody is elected."""
        leader, servers = self.leader(), self.cluster.servers
        of_all = self.cluster.of(monitoring(servers[0], "jsz")["meta_cluster"]["leader"])
        return next(server for server in servers if server not in (leader, of_all))

    def urls_from(self, first: NatsServer) -> str:
        """All URLs, those of one server first."""
        return ",".join([first.url, *(server.url for server in self.cluster.servers if server is not first)])


@pytest.fixture
def filled(cluster: Cluster, unique: str) -> Filled:
    return Filled(cluster, unique)


OPTIONS = {"requestTimeout": "1s", "connectTimeout": "1s", "reconnectWait": "100ms"}


@contextmanager
def _killed(cluster: Cluster, server: NatsServer) -> Iterator[None]:
    server.kill()
    try:
        yield
    finally:
        server.start()


@pytest.mark.long("spark_nats/jetstream/*", races="elections, which a busy machine repeats")
@pytest.mark.parametrize(
    ("away", "whose"),
    [
        pytest.param(_killed, Filled.leader, id="killed, of the stream"),
        pytest.param(_killed, Filled.consumer_at, id="killed, of the consumer"),
        pytest.param(Cluster.paused, Filled.leader, id="stopped, of the stream"),
        pytest.param(Cluster.paused, Filled.consumer_at, id="stopped, of the consumer"),
    ],
)
def test_a_leader_that_goes_while_a_range_is_read_costs_no_row(
    filled: Filled, whose: Callable[[Filled], NatsServer], away: Callable[[Cluster, NatsServer], object]
) -> None:
    reader = batch_reader(filled.cluster.urls, stream=filled.name, **OPTIONS)
    (partition,) = reader.partitions()
    batches = reader.read(partition)
    found: list[int] = next(batches).column("sequence").to_pylist()
    with away(filled.cluster, whose(filled)):  # type: ignore[attr-defined]
        found += batch_sequences(batches)
    assert found == list(range(1, 3001))


def test_a_server_that_says_nothing_any_more_is_left_for_another(filled: Filled, in_order: None) -> None:
    silent = filled.bystander()
    reader = batch_reader(filled.urls_from(silent), stream=filled.name, connectionName="silent", **OPTIONS)
    (partition,) = reader.partitions()
    batches = reader.read(partition)
    found: list[int] = next(batches).column("sequence").to_pylist()
    with filled.cluster.paused(silent):
        found += batch_sequences(batches)
    assert found == list(range(1, 3001))


def test_a_server_that_shuts_down_slowly_is_left(
    filled: Filled, in_order: None, caplog: pytest.LogCaptureFixture
) -> None:
    server = filled.bystander()
    reader = batch_reader(filled.urls_from(server), stream=filled.name, connectionName="lame duck", **OPTIONS)
    (partition,) = reader.partitions()
    batches = reader.read(partition)
    found: list[int] = next(batches).column("sequence").to_pylist()
    assert server.pid
    try:
        with caplog.at_level(logging.WARNING), connect(options_for(server.url)) as witness:
            os.kill(server.pid, signal.SIGUSR2)
            wait_until(lambda: witness.flush() or witness.lame_duck)
            caplog.clear()
            for batch in batches:
                found += batch.column("sequence").to_pylist()
                time.sleep(0 if caplog.messages else 0.1)  # the server says it to one client after the other
    finally:
        server.kill()
        server.start()
    assert found == list(range(1, 3001))
    assert f"{server.url} is shutting down" in caplog.text


def test_leaders_that_step_down_while_a_range_is_read_cost_no_row(filled: Filled) -> None:
    reader = batch_reader(filled.cluster.urls, stream=filled.name, **OPTIONS)
    (partition,) = reader.partitions()
    found: list[int] = []
    with NatsPy(filled.cluster.servers[0].url) as client:
        for batch in reader.read(partition):
            found += batch.column("sequence").to_pylist()
            if len(found) % 700 < 100:
                client.publish(f"$JS.API.STREAM.LEADER.STEPDOWN.{filled.name}")
    assert found == list(range(1, 3001))


@pytest.mark.long("spark_nats/jetstream/*", races="three elections, one after the other")
@pytest.mark.timeout(240)
def test_a_rolling_restart_costs_a_task_no_row(filled: Filled, caplog: pytest.LogCaptureFixture) -> None:
    reader = batch_reader(filled.cluster.urls, stream=filled.name, **OPTIONS)
    (partition,) = reader.partitions()
    done = threading.Event()

    def restart_all() -> None:
        for server in filled.cluster.servers:
            filled.cluster.restart(server)
            done.wait(1.0)
        done.set()

    restarting = threading.Thread(target=restart_all)
    restarting.start()
    while not done.is_set():
        assert batch_sequences(reader.read(partition)) == list(range(1, 3001))
    restarting.join()
    assert batch_sequences(reader.read(partition)) == list(range(1, 3001))
