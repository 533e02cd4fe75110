"""What the figures belong to: the machine, the versions, and the server."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import secrets
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from benchmarks import data
from benchmarks.peers import nats_c
from benchmarks.settings import Settings
from spark_nats.client import Connection
from spark_nats.client import connect as client_connect
from spark_nats.embedded import EmbeddedServerError, NatsServer, find_binary
from spark_nats.jetstream import JetStream, Publisher
from spark_nats.jetstream.streams import create_stream, delete_stream, stream_info
from spark_nats.options import connection_options, options_of_urls, parse_write

_PACKAGES = ("spark-nats", "numpy", "pyarrow", "pyspark", "nats-py", "natsrpy")


def machine() -> dict[str, Any]:
    """Describe the machine, and how busy it is already."""
    models = [line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")]
    return {
        "cpu": models[0] if models else platform.processor() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "kernel": f"{platform.system()} {platform.release()}",
        "load_average_at_start": round(os.getloadavg()[0], 2),
    }


def versions(settings: Settings) -> dict[str, str]:
    """Return the versions of everything that takes part."""
    found = {"python": f"{platform.python_implementation()} {platform.python_version()}"}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "not installed"
    found["libnats"] = nats_c.version() or "not installed"
    found["java"] = _java()
    found["nats-server"] = Server(settings.servers, None).version if settings.servers else _embedded_version()
    return found


def _embedded_version() -> str:
    try:
        asked = subprocess.run([find_binary(), "--version"], capture_output=True, text=True, check=True)
    except EmbeddedServerError:
        return "not installed"
    return asked.stdout.split()[-1].removeprefix("v")


def _java() -> str:
    try:
        asked = subprocess.run(["java", "-version"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "not installed"
    return asked.stderr.splitlines()[0]


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8").splitlines()
    except OSError:
        return []


def connect(url: str) -> Connection:
    """Open a connection of our own client, a patient one."""
    return client_connect(connection_options(**options_of_urls(url), requestTimeout="60s", connectTimeout="10s"))


def publisher_to(connection: Connection, stream: str) -> Publisher:
    """Publish to a stream with as many rows in flight as a query has, and with patience."""
    options = parse_write({"stream": stream, "ackTimeout": "60s"}, streaming=False)
    return Publisher(connection, stream, options.max_in_flight, options.ack_timeout)


class Server:
    """The server under load.

    Attributes:
        url: where it listens.
        options: the same for Spark.
        version: what it says it is.
        pid: its process; None where it is not ours.
    """

    def __init__(self, url: str, monitoring_url: str | None, pid: int | None = None) -> None:
        self.url = url
        self.options = options_of_urls(url)
        self.pid = pid
        self._monitoring_url = monitoring_url
        with connect(url) as connection:
            self.version = connection.info.version

    def memory(self) -> float | None:
        """Return the server's resident memory in MB, None where it has no monitoring that we know of."""
        if self._monitoring_url is None:
            return None
        with urllib.request.urlopen(f"{self._monitoring_url}/varz", timeout=10) as answer:
            return float(json.load(answer)["mem"]) / 1e6

    @contextmanager
    def stream(self, subjects: str) -> Iterator[str]:
        """Make a stream in files with one replica, give its name, and delete it in the end."""
        name = f"BENCH_{secrets.token_hex(4).upper()}"
        with connect(self.url) as connection:
            create_stream(JetStream(connection), {"name": name, "subjects": [subjects], "storage": "file"})
        try:
            yield name
        finally:
            with connect(self.url) as connection:
                delete_stream(JetStream(connection), name)

    def check(self, stream: str, messages: int) -> None:
        """Make sure that a stream holds what was published."""
        with connect(self.url) as connection:
            found = stream_info(JetStream(connection), stream).messages
        if found != messages:
            raise AssertionError(f"stream {stream} holds {found} messages instead of {messages}")

    def fill(self, stream: str, prefix: str, count: int, size: int) -> None:
        """Publish ``count`` messages to a stream."""
        block = min(count, 100_000)
        subjects, payloads = data.columns(block, size, prefix)
        with connect(self.url) as connection:
            publisher = publisher_to(connection, stream)
            for start in range(0, count, block):
                rows = slice(0, min(block, count - start))
                publisher.publish(subjects[rows], payloads[rows])
            publisher.drain()


class CpuMeter:
    """Tells what a message cost whom: the seconds of all cores that each side took, which no other load changes much.

    Args:
        server: its process is told apart.
        feeder: a process that feeds the contender, told apart as well.
    """

    def __init__(self, server: Server, feeder: int | None = None) -> None:
        self._names = {server.pid: "server", feeder: "feeder"}
        self._known = server.pid is not None
        self._before = self._seconds()

    def per_message(self, messages: int) -> dict[str, float]:
        """Return microseconds a message since the meter was made, by side; nothing where the server is not ours."""
        if not self._known:
            return {}
        after = self._seconds()
        sides = {side: after[side] - self._before.get(side, 0.0) for side in after}
        return {f"{side} \u00b5s": seconds / messages * 1e6 for side, seconds in sides.items()}

    def _seconds(self) -> dict[str, float]:
        seconds = {"client": 0.0}
        own = psutil.Process()
        for process in [own, *own.children(recursive=True)]:
            try:
                with process.oneshot():
                    times, name = process.cpu_times(), process.name()
            except psutil.Error:
                continue  # it has ended, and its parent has its times
            side = self._names.get(process.pid, "JVM" if name == "java" else "client")
            spent = times.user + times.system
            if side == "client":
                spent += times.children_user + times.children_system  # of those that have ended
            seconds[side] = seconds.get(side, 0.0) + spent
        return seconds


@contextmanager
def start_server(settings: Settings) -> Iterator[Server]:
    """Give the server that the settings name, or an embedded one for the time being."""
    if settings.servers:
        yield Server(settings.servers, None)
        return
    with NatsServer() as embedded:
        yield Server(embedded.url, embedded.monitoring_url, embedded.pid)
