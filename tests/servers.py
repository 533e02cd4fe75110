"""The NATS servers that tests run against.

NATS_TEST_SERVER=docker runs the shared server in a container of the image NATS_TEST_IMAGE; without it, the
shared server is the embedded one.
"""

from __future__ import annotations

import importlib.metadata
import os
import secrets
import subprocess
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import pytest

from spark_nats.embedded import EmbeddedServerError, NatsServer, find_binary

IN_DOCKER = os.environ.get("NATS_TEST_SERVER", "embedded") == "docker"
IMAGE = os.environ.get("NATS_TEST_IMAGE", "nats:2.15")


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
    with ContainerServer(IMAGE) if IN_DOCKER else NatsServer() as server:
        yield server


ServerFactory = Callable[..., NatsServer]


@pytest.fixture
def server_factory() -> Iterator[ServerFactory]:
    """Start private embedded servers, for tests that configure, kill or restart one.

    Called as `server_factory(config="", **arguments of NatsServer)`; each server is stopped after the test.
    """
    if IN_DOCKER:
        pytest.skip("needs a server of its own, which only the embedded one can be")
    servers: list[NatsServer] = []

    def start(config: str = "", **arguments: Any) -> NatsServer:
        server = NatsServer(config, **arguments)
        servers.append(server)
        return server.start()

    yield start
    for server in servers:
        server.stop()


@pytest.fixture
def unique() -> str:
    """A name that no other test uses, such as `T_3FA81C09`: for a stream, or a subject's first token."""
    return f"T_{secrets.token_hex(4).upper()}"
