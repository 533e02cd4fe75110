"""The same through a socket and through a WebSocket, with TLS and without: a stream to Arrow, and rows to a stream."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks import data, paths
from benchmarks.client import sample
from benchmarks.environment import Server
from benchmarks.measure import Contender, LeftOut, Sample, Table, compare, timed
from benchmarks.settings import Settings
from spark_nats.embedded import NatsServer
from tests.certificates import Certificates
from tests.servers import free_ports

_SIZES = {128: 1, 4096: 8}
"""Bytes of a payload, and which part of the messages there are of it."""
_BATCH = 10_000  # rows in a batch of Spark's, when it writes
_SOCKET = "socket"


def run(settings: Settings) -> Iterator[Table]:
    """Measure everything, with three servers: whether a WebSocket is compressed or encrypted is the server's to say."""
    if settings.servers:
        yield LeftOut("websocket", "where a server that is given listens for WebSockets is not known")
        return
    ports = free_ports(3)
    with ExitStack() as stack:
        certificates = Certificates(Path(stack.enter_context(TemporaryDirectory())))
        stack.enter_context(_trusting(certificates))
        configs = [
            f'websocket {{ listen: "127.0.0.1:{ports[0]}", no_tls: true }}',
            f'websocket {{ listen: "127.0.0.1:{ports[1]}", no_tls: true, compression: true }}',
            f'{certificates.config()}\nwebsocket {{ listen: "127.0.0.1:{ports[2]}"\n{certificates.config()} }}',
        ]
        started = [stack.enter_context(NatsServer(config)) for config in configs]
        servers = [Server(each.url, each.monitoring_url, each.pid) for each in started]
        ways = [
            (_SOCKET, servers[0], servers[0].url),
            ("WebSocket", servers[0], f"ws://127.0.0.1:{ports[0]}"),
            ("WebSocket, compressed by the server", servers[1], f"ws://127.0.0.1:{ports[1]}"),
            ("TLS", servers[2], servers[2].url.replace("nats://", "tls://")),
            ("WebSocket with TLS", servers[2], f"wss://127.0.0.1:{ports[2]}"),
        ]
        for size, part in _SIZES.items():
            yield _read(settings, ways, settings.messages // part, size)
        for size, part in _SIZES.items():
            yield _write(settings, ways, settings.published // part, size)


@contextmanager
def _trusting(certificates: Certificates) -> Iterator[None]:
    """Have all connections of this process trust an authority, as one of the system's."""
    before = os.environ.get("SSL_CERT_FILE")
    os.environ["SSL_CERT_FILE"] = str(certificates.ca)
    try:
        yield
    finally:
        os.environ.pop("SSL_CERT_FILE")
        if before is not None:
            os.environ["SSL_CERT_FILE"] = before


def _read(settings: Settings, ways: list[tuple[str, Server, str]], count: int, size: int) -> Table:
    servers = {server.url: server for _, server, _ in ways}
    with ExitStack() as stack:
        names = {url: stack.enter_context(server.stream("read.>")) for url, server in servers.items()}
        for url, server in servers.items():
            server.fill(names[url], "read.", count, size)

        def read(server: Server, url: str) -> Sample:
            def seconds() -> float:
                with timed() as took:
                    rows = paths.read_stream(url, names[server.url], 1, count + 1)
                if rows != count:
                    raise AssertionError(f"{rows} rows were read instead of {count}")
                return took()

            return sample(server, count, seconds)

        contenders = [Contender(name, partial(read, server, url)) for name, server, url in ways]
        title = f"websocket: a stream to Arrow, {count:,} messages of {size:,} bytes"
        return compare(title, _SOCKET, contenders, settings.rounds, [])


def _write(settings: Settings, ways: list[tuple[str, Server, str]], count: int, size: int) -> Table:
    subjects, payloads = data.columns(count, size, "keep.")

    def write(server: Server, url: str) -> Sample:
        with server.stream("keep.>") as stream:
            work = partial(paths.publish_stream, url, stream, subjects, payloads, _BATCH)
            written = sample(server, count, work)
            server.check(stream, count)
        return written

    contenders = [Contender(name, partial(write, server, url)) for name, server, url in ways]
    title = f"websocket: Arrow to a stream, acknowledged, {count:,} messages of {size:,} bytes"
    return compare(
        title, _SOCKET, contenders, settings.rounds, ["without connecting; what is sent is never compressed"]
    )
