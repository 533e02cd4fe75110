"""Several servers: which are found, which are left, and what a query notices of it."""

from __future__ import annotations

import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import BinaryType, StringType, StructType

from spark_nats import NatsDataSource, clock
from spark_nats.client import ConnectionOptions, TlsOptions, connect
from spark_nats.embedded import NatsServer
from spark_nats.errors import AuthorizationError, NatsConnectionError
from spark_nats.kinds.queries import parse_options
from tests.certificates import Certificates
from tests.connections import options_for
from tests.integration.support import (
    MESSAGE,
    PAYLOAD,
    Query,
    monitoring,
    read_payloads,
    reload,
    source,
    stream_reader,
    write,
)
from tests.nats_py import NatsPy, succeeds, wait_until
from tests.needs import since
from tests.operator_mode import Key, OperatorMode
from tests.servers import Cluster, ServerFactory, free_ports, paused

# Servers that others announce


@contextmanager
def killed(server: NatsServer) -> Iterator[None]:
    """Kill a server of a cluster for the length of the block; then it is part of the cluster again."""
    server.kill()
    try:
        yield
    finally:
        server.start()
        wait_until(lambda: leader_known_to(server), timeout=60)


def leader_known_to(server: NatsServer) -> str:
    return str(monitoring(server, "jsz")["meta_cluster"].get("leader", ""))


def follower_and_leader(cluster: Cluster) -> tuple[NatsServer, NatsServer]:
    """A server whose end makes nobody elect another leader, and the leader."""
    leader = cluster.of(wait_until(lambda: leader_known_to(cluster.servers[0]), timeout=60))
    return next(server for server in cluster.servers if server is not leader), leader


def test_a_query_goes_on_at_a_server_that_was_not_named_if_so_asked(cluster: Cluster, unique: str) -> None:
    named, other = follower_and_leader(cluster)
    with NatsPy(other.url) as client:
        client.create_in_cluster(unique, [unique], num_replicas=3, allow_direct=True)
        client.hand_over(unique, f"n{cluster.servers.index(other)}")
        wait_until(lambda: client.reaches_stream(unique), timeout=60)
        client.store(unique, [b""] * 5)
        options = {"discoverServers": True, "reconnectWait": "50ms"}
        query = Query(stream_reader(named.url, stream=unique, startingOffsets="earliest", **options))
        assert len(query.rows(5)) == 5
        with killed(named):
            wait_until(lambda: succeeds(lambda: client.publish_acked([(unique, b"")], timeout=5)), 60)
            assert query.rows(1)[0]["sequence"] >= 6


def test_no_server_is_connected_to_that_was_not_named(cluster: Cluster) -> None:
    named, _ = follower_and_leader(cluster)
    with connect(options_for(named.url)) as connection:
        wait_until(lambda: connection.flush() or len(connection.info.connect_urls) == 3, timeout=60)
        with (
            killed(named),
            pytest.raises(NatsConnectionError, match=rf"no NATS server could be reached \({named.url}: [^;]*\)$"),
        ):
            connect(connection.options)


_TASKS = """
import os, pickle, sys, tempfile, traceback
import pyarrow
from tests.integration.support import source
for machine, task in pickle.load(sys.stdin.buffer):
    if not os.fork():
        try:
            tempfile.tempdir = machine
            run, *arguments = pickle.loads(task)
            found = run(*arguments)
            print(sum(each.num_rows for each in found) if arguments else found.counts.rows, flush=True)
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    if os.wait()[1]:
        break
"""


def run_elsewhere(directory: Path, *tasks: tuple[Any, ...]) -> list[int]:
    """Run tasks, each in a new process of another machine; return how many rows each has read or written.

    Each is a child of a process that has imported what it takes, and nothing else.
    """
    sent = []
    for task in tasks:
        (machine := directory / f"machine{len(sent)}").mkdir(parents=True)
        sent.append((str(machine), pickle.dumps(task)))
    done = subprocess.run([sys.executable, "-c", _TASKS], input=pickle.dumps(sent), capture_output=True, check=True)
    found = [int(line) for line in done.stdout.split()]
    assert len(found) == len(tasks), done.stderr.decode()
    return found


@pytest.mark.long("spark_nats/client/*")
def test_a_task_of_another_machine_knows_the_servers_that_the_driver_knows(
    cluster: Cluster, unique: str, tmp_path: Path
) -> None:
    """Of whichever kind: the reader or the writer comes as Spark sends it, and nothing else does."""
    named, other = follower_and_leader(cluster)
    rows = pa.table({"subject": [unique], "payload": [b"1"]})
    objects = pa.table({"name": ["one"], "content": [b"1"]})
    entries = pa.table({"key": ["one"], "value": [b"1"]})
    to_create = '{"replicas": 3}'
    known = {"discoverServers": True, "reconnectWait": "50ms", "retryTimeout": "30s"}
    with NatsPy(other.url) as client, connect(options_for(named.url)) as connection:
        wait_until(lambda: connection.flush() or len(connection.info.connect_urls) == 3, timeout=60)
        client.create_in_cluster(unique, [unique], num_replicas=3, allow_direct=True)
        write(other, rows, stream=unique)
        write(other, entries, bucket=unique, createBucket=to_create)
        write(other, objects, objectStore=unique, createObjectStore=to_create)
    reads = [
        (PAYLOAD, {"stream": unique}),
        (PAYLOAD, {"stream": unique, "limit": 1}),
        (VALUE, {"bucket": unique}),
        (VALUE, {"bucket": unique, "asOf": "latest"}),
        (CONTENT, {"objectStore": unique}),
        (StructType().add("name", StringType()), {"table": "streams", "stream": unique}),
        (PAYLOAD, {"subject": f"{unique}.nothing", "readTimeout": "10ms"}),
    ]
    tasks: list[tuple[Any, ...]] = []
    for columns, options in reads:
        reader = source(named, **known, **options).reader(columns)
        sent = pickle.loads(pickle.dumps(reader))
        tasks += [(sent.read, partition) for partition in reader.partitions()]
    for columns, options in ((PAYLOAD, {"stream": unique}), (CONTENT, {"objectStore": unique})):
        streaming = source(named, startingOffsets="earliest", **known, **options).streamReader(columns)
        sent = pickle.loads(pickle.dumps(streaming))
        start = streaming.initialOffset()
        end = streaming.latestOffset(start, streaming.getDefaultReadLimit())
        tasks += [(sent.read, partition) for partition in streaming.partitions(start, end)]
        streaming.stop()
    for table, options in (
        (rows, {"stream": unique, "deduplicate": False}),
        (rows.set_column(0, "subject", pa.array([f"{unique}.core"])), {}),
        (entries, {"bucket": unique, "deduplicate": False}),
        (objects, {"objectStore": unique}),
    ):
        schema, batches = from_arrow_schema(table.schema), table.to_batches()
        tasks.append((Writing(source(named, **known, **options).writer(schema, overwrite=False), batches),))
        tasks.append((Writing(source(named, **known, **options).streamWriter(schema, overwrite=False), batches),))
    with killed(named):
        assert run_elsewhere(tmp_path, *tasks) == [1, 1, 1, 1, 1, 1, 0, 1, 1, *[1] * 8]


VALUE = StructType().add("value", BinaryType())
CONTENT = StructType().add("content", BinaryType())


class Writing:
    """A task that writes."""

    def __init__(self, writer: Any, batches: list[pa.RecordBatch]) -> None:
        self._writer = writer
        self._batches = batches

    def __call__(self) -> Any:
        return self._writer.write(iter(self._batches))


@contextmanager
def announcing_pair(scheme: str, certificates: Certificates) -> Iterator[tuple[list[NatsServer], str]]:
    """Two servers of a cluster that are reached in this way, and the URL of the first."""
    ports = free_ports(4)
    routes = ", ".join(f'"nats://127.0.0.1:{port}"' for port in ports[:2])
    tls = certificates.config("127.0.0.1") if scheme in ("tls", "wss") else ""
    servers = []
    for i in (0, 1):
        config = f'cluster {{ name: P, listen: "127.0.0.1:{ports[i]}", routes: [{routes}] }}\n'
        if scheme in ("ws", "wss"):
            config += f'websocket {{ listen: "127.0.0.1:{ports[2 + i]}", {tls or "no_tls: true"} }}\n'
        else:
            config += tls
        servers.append(NatsServer(config, jetstream=False))
    try:
        for server in servers:
            server.start()
        wait_until(lambda: all(monitoring(server, "routez")["num_routes"] for server in servers), timeout=60)
        url = f"{scheme}://127.0.0.1:{ports[2]}" if scheme in ("ws", "wss") else servers[0].url
        yield servers, f"{scheme}://{url.partition('://')[2]}"
    finally:
        for server in servers:
            server.stop()


@pytest.mark.long("spark_nats/client/*")
@pytest.mark.parametrize("scheme", ["nats", "tls", "ws", "wss"])
def test_servers_that_are_announced_are_known_to_tasks_and_later_processes_whatever_leads_to_them(
    scheme: str, tmp_path: Path
) -> None:
    certificates = Certificates(tmp_path)
    with announcing_pair(scheme, certificates) as (servers, url):
        options = {
            "servers": url,
            "subject": "a",
            "discoverServers": "true",
            "retryTimeout": "0s",
            "readTimeout": "10ms",
        }
        if scheme in ("tls", "wss"):
            options["tlsCaFile"] = str(certificates.ca)
        asked = parse_options(
            {name: options[name] for name in options if name not in ("subject", "readTimeout")}
        ).connection

        def announced() -> bool:
            with connect(asked) as connection:
                connection.flush()
                return len(connection.info.connect_urls) == 2

        wait_until(announced, timeout=60)
        reader = NatsDataSource(options).reader(MESSAGE)
        sent = pickle.loads(pickle.dumps(reader))
        (partition,) = reader.partitions()
        servers[0].kill()
        assert run_elsewhere(tmp_path, (sent.read, partition)) == [0]
        # The driver's next process, such as that of the next micro-batch that is written, is one of the same machine.
        found = subprocess.run(
            [sys.executable, "-c", _PLANS], input=repr(options), capture_output=True, text=True, check=False
        )
        assert found.stdout == "1\n", found.stderr


_PLANS = """
import ast, sys
from tests.integration.support import MESSAGE, NatsDataSource
print(len(NatsDataSource(ast.literal_eval(sys.stdin.read())).reader(MESSAGE).partitions()))
"""


AFTER_LOGIN = since(2, 12)
"""Older servers do not repeat, through TLS, what they announce: it does not count."""


@contextmanager
def encrypted_pair(certificates: Certificates, *names: str) -> Iterator[list[NatsServer]]:
    """Two servers of a cluster with certificates for these names, each of which announces the address of the other."""
    ports = free_ports(2)
    routes = ", ".join(f'"nats://127.0.0.1:{port}"' for port in ports)
    servers = [
        NatsServer(
            certificates.config(name) + f'cluster {{ name: T, listen: "127.0.0.1:{port}", routes: [{routes}] }}',
            jetstream=False,
        )
        for name, port in zip(names, ports, strict=True)
    ]
    try:
        for server in servers:
            server.start()
        wait_until(lambda: all(monitoring(server, "routez")["num_routes"] for server in servers), timeout=60)
        yield servers
    finally:
        for server in servers:
            server.stop()


def known_here(server: NatsServer, certificates: Certificates, **tls: str) -> ConnectionOptions:
    """How to connect to a server by the name `localhost`, once it has announced the other one."""
    url = server.url.replace("127.0.0.1", "localhost")
    asked = options_for(url, discover=True, tls=TlsOptions(ca=certificates.ca.read_text(), **tls))
    with connect(asked) as connection:
        wait_until(lambda: connection.flush() or len(connection.info.connect_urls) == 2, timeout=60)
    return asked


@AFTER_LOGIN
def test_a_server_that_is_announced_by_its_address_needs_a_certificate_for_the_name_that_was_named(
    tmp_path: Path,
) -> None:
    certificates = Certificates(tmp_path)
    with encrypted_pair(certificates, "localhost", "localhost") as (named, other):
        asked = known_here(named, certificates)
        named.kill()
        with connect(asked) as connection:
            assert connection.server.port == other.port
            assert other.pid


@AFTER_LOGIN
def test_a_server_that_is_announced_with_a_certificate_for_another_name_is_refused(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    with encrypted_pair(certificates, "localhost", "elsewhere.example.com") as (named, other):
        asked = known_here(named, certificates)
        named.kill()
        with pytest.raises(NatsConnectionError, match="cannot be verified for the name 'localhost'") as raised:
            connect(asked)
        assert f"tls://127.0.0.1:{other.port}: " in str(raised.value)


@AFTER_LOGIN
def test_a_name_that_was_asked_for_is_asked_of_servers_that_are_announced_too(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    with encrypted_pair(certificates, "nats.example.com", "nats.example.com") as (named, other):
        asked = known_here(named, certificates, server_name="nats.example.com")
        named.kill()
        with connect(asked) as connection:
            assert connection.server.port == other.port


# A server that says nothing


def test_a_batch_is_read_though_a_server_has_stopped_answering(
    server_factory: ServerFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clock, "shuffle", lambda servers: None)
    alive, stopped = server_factory(), server_factory()
    with NatsPy(alive.url) as client:
        client.create_stream("S", ["s.>"])
        client.publish_acked((f"s.{i}", b"%d" % i) for i in range(10))
    with paused(stopped):
        options = {"connectTimeout": "1s", "idleTimeout": "1ms", "minPartitions": 4}
        found = read_payloads(f"{stopped.url},{alive.url}", stream="S", **options)
        assert found == [b"%d" % i for i in range(10)]


# Who is not let in any more

SOON = {"reconnectWait": "50ms"}


def test_a_query_whose_user_is_removed_ends_with_the_servers_reason(server_factory: ServerFactory) -> None:
    users = "authorization {{ users: [ {{ user: ann, password: annsOwn }}{} ] }}"
    server = server_factory(users.format(", { user: bob, password: bobsOwn }"))
    login = {"user": "bob", "password": "bobsOwn"}
    with NatsPy(server.url.replace("//", "//ann:annsOwn@")) as client:
        client.create_stream("S", ["s.>"])
        client.publish_acked([("s.a", b"")])
    query = Query(stream_reader(server, stream="S", startingOffsets="earliest", **login, **SOON))
    assert len(query.rows(1)) == 1
    core = stream_reader(server, subject="a", **login, **SOON)
    start = core.initialOffset()
    reload(server, users.format(""))
    for ask in (query.micro_batch, lambda: core.latestOffset(start, core.getDefaultReadLimit())):
        assert "refused the credentials: Authorization Violation; check the option" in refusal_of(ask)


def test_a_query_whose_user_is_revoked_ends_with_the_servers_reason(
    server_factory: ServerFactory, tmp_path: Path
) -> None:
    mode, user = OperatorMode(), Key()
    server = server_factory(mode.config)
    creds = mode.creds(tmp_path / "user.creds", user)
    with NatsPy(server.url, user_credentials=str(mode.creds(tmp_path / "other.creds"))) as client:
        client.create_stream("S", ["s.>"])
        client.publish_acked([("s.a", b"")])
    query = Query(stream_reader(server, stream="S", startingOffsets="earliest", credentialsFile=str(creds), **SOON))
    assert len(query.rows(1)) == 1
    with NatsPy(server.url, user_credentials=str(mode.system_creds(tmp_path / "system.creds"))) as system:
        system.publish(f"$SYS.ACCOUNT.{mode.account}.CLAIMS.UPDATE", mode.account_jwt(revoked=user).encode())
    assert "refused the credentials: Authorization Violation; check the option" in refusal_of(query.micro_batch)


def refusal_of(ask: Callable[[], object]) -> str:
    """What a query says that is asked again and again, until it is refused."""

    def refusal() -> str:
        try:
            ask()
        except AuthorizationError as error:
            return str(error)
        return ""

    return wait_until(refusal, 60)


# The login before a write


@pytest.fixture
def forgetful(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """What this machine remembers is put aside for the test."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return monkeypatch


def begin_micro_batch(server: NatsServer, **options: str) -> None:
    source(server, subject="x", **options).streamWriter(PAYLOAD, overwrite=False)


def logins(server: NatsServer) -> int:
    return int(monitoring(server, "varz")["total_connections"])


def test_micro_batches_share_a_login_on_the_driver_for_a_while(
    server_factory: ServerFactory, forgetful: pytest.MonkeyPatch
) -> None:
    server = server_factory()
    for _ in range(5):
        begin_micro_batch(server)
    assert logins(server) == 1
    begin_micro_batch(server, token="another")
    assert logins(server) == 2
    forgetful.setattr("spark_nats.client.host_cache.parent_process", lambda: "another session")
    begin_micro_batch(server)
    assert logins(server) == 3
    forgetful.setattr("spark_nats.kinds.preparing.PREPARED_FOR", 0.0)
    begin_micro_batch(server)
    assert logins(server) == 4


def test_after_a_failure_a_micro_batch_logs_in_again(
    server_factory: ServerFactory, forgetful: pytest.MonkeyPatch
) -> None:
    server = server_factory()
    begin_micro_batch(server, retryTimeout="0s")
    server.kill()
    begin_micro_batch(server, retryTimeout="0s")  # tasks wait for it then
    forgetful.setattr("spark_nats.kinds.preparing.PREPARED_FOR", 0.0)
    with pytest.raises(NatsConnectionError):
        begin_micro_batch(server, retryTimeout="0s")
    forgetful.setattr("spark_nats.kinds.preparing.PREPARED_FOR", 60.0)
    server.start()
    begin_micro_batch(server, retryTimeout="0s")
    assert logins(server) == 1


def test_a_batch_logs_in_each_time(server_factory: ServerFactory, forgetful: pytest.MonkeyPatch) -> None:
    server = server_factory()
    begin_micro_batch(server)
    for count in (2, 3):
        source(server, subject="x").writer(PAYLOAD, overwrite=False)
        assert logins(server) == count
