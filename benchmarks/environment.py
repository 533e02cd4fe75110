"""What the figures belong to: the machine, the versions, and the server."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import secrets
import subprocess
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from benchmarks import data
from benchmarks.peers import nats_c
from benchmarks.peers.kafka import Broker
from benchmarks.settings import Settings
from spark_nats.client import Connection
from spark_nats.client import connect as client_connect
from spark_nats.client.options import RetryOptions
from spark_nats.client.pool import Lease
from spark_nats.client.retrying import Retries
from spark_nats.embedded import EmbeddedServerError, NatsServer, find_binary
from spark_nats.jetstream import JetStream, Publisher
from spark_nats.jetstream.creating import create_stream_if_missing
from spark_nats.jetstream.views import ask_stream_info
from spark_nats.kinds.queries import parse_write_options
from spark_nats.options import connection_options, options_of_urls
from spark_nats.protocol.api import Api

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


def lease_of(connection: Connection) -> Lease:
    """Lend a connection that is not exchanged for another one."""
    return Lease(connection.options, Retries(RetryOptions(0.0, 0.0, 0.0, None), "", established=True), connection)


def publisher_to(connection: Connection, stream: str) -> Publisher:
    """Publish to a stream with as many rows in flight as a query has, and with patience."""
    options = parse_write_options({"stream": stream, "ackTimeout": "60s"}, streaming=False)
    return Publisher(
        connection, ask_stream_info(JetStream(connection), stream), options.max_in_flight, options.ack_timeout
    )


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
        return None if self._monitoring_url is None else float(self.monitoring("varz")["mem"]) / 1e6

    def connections_made(self) -> int:
        """Return how many connections the server has had so far."""
        return int(self.monitoring("varz")["total_connections"])

    def monitoring(self, page: str) -> dict[str, Any]:
        """Return a page of the server's monitoring, such as ``varz``.

        Raises:
            ValueError: the server is not ours, and where its monitoring is we do not know.
        """
        if self._monitoring_url is None:
            raise ValueError("nothing is known of the monitoring of a server that is given")
        with urllib.request.urlopen(f"{self._monitoring_url}/{page}", timeout=10) as answer:
            found: dict[str, Any] = json.load(answer)
        return found

    @contextmanager
    def stream(self, subjects: str, **config: Any) -> Iterator[str]:
        """Make a stream in files with one replica, give its name, and delete it in the end.

        Args:
            subjects: what it listens on.
            config: what else stands in its configuration.
        """
        name = f"BENCH_{secrets.token_hex(4).upper()}"
        with connect(self.url) as connection:
            create_stream_if_missing(
                JetStream(connection), {"name": name, "subjects": [subjects], "storage": "file", **config}
            )
        try:
            yield name
        finally:
            with connect(self.url) as connection:
                JetStream(connection).request(Api.STREAM_DELETE, name)

    def check(self, stream: str, messages: int) -> None:
        """Make sure that a stream holds what was published."""
        with connect(self.url) as connection:
            found = ask_stream_info(JetStream(connection), stream).messages
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
            publisher.wait_for_sent_rows()


class CpuMeter:
    """Tells what a message cost whom: the seconds of all cores that each side took, which no other load changes much.

    Args:
        server: its process is told apart.
        feeder: a process that feeds the contender, told apart as well.
        ignored: a process that has no part in it.
    """

    def __init__(self, server: Server | Broker, feeder: int | None = None, ignored: int | None = None) -> None:
        self._names = {server.pid: "server", feeder: "feeder"}
        self._ignored = ignored
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
        for pid, name, used, used_by_ended in _cpu_times(lambda: [own, *own.children(recursive=True)]):
            if pid == self._ignored:
                continue
            side = self._names.get(pid, "JVM" if name == "java" else "client")
            seconds[side] = seconds.get(side, 0.0) + used
            if side in ("client", "JVM"):
                seconds["client"] += used_by_ended
        return seconds


def cpu_seconds(pids: Iterable[int | None]) -> float:
    """Return the CPU seconds that processes have used so far, their children's not counted; None is no process."""
    times = [psutil.Process(pid).cpu_times() for pid in pids if pid is not None]
    return float(sum(each.user + each.system for each in times))


def spark_cpu_seconds() -> dict[str, float]:
    """Return the CPU time that Spark's processes have used, workers that have ended included."""
    seconds = {"java": 0.0, "python": 0.0}
    for _, name, used, used_by_ended in _cpu_times(spark_processes):
        seconds["java" if "java" in name else "python"] += used
        seconds["python"] += used_by_ended  # the children of Python daemons and of the JVM
    return seconds


def cpu_seconds_below(pid: int) -> float:
    """Return the CPU time that a process and all below it have used, those that have ended included."""
    root = psutil.Process(pid)
    found = _cpu_times(lambda: [root, *root.children(recursive=True)])
    return sum(used + used_by_ended for *_, used, used_by_ended in found)


def _cpu_times(find: Callable[[], list[psutil.Process]]) -> list[tuple[int, str, float, float]]:
    """Return id, name, CPU seconds and those of ended children of some processes, of which each parent comes first.

    Where one ends meanwhile, its time may have gone to its parent behind our back: then all are asked once more.
    """
    while True:
        found = []
        try:
            for process in find():
                with process.oneshot():
                    times = process.cpu_times()
                    ended = times.children_user + times.children_system
                    found.append((process.pid, process.name(), times.user + times.system, ended))
            return found
        except psutil.NoSuchProcess:
            continue


def spark_processes() -> list[psutil.Process]:
    """Return the JVM that this process has started and all below it."""
    found: list[psutil.Process] = []
    for child in psutil.Process().children():
        below = child.children(recursive=True)
        if any("java" in p.name() for p in [child, *below]):
            found += [child, *below]
    return found


def python_megabytes(module: str = "") -> float:
    """Return the MB that Spark's Python processes, or those of a module, have in memory, shared memory counted once."""
    found = 0.0
    for process in spark_processes():
        with suppress(psutil.Error):
            if "python" in process.name() and module in " ".join(process.cmdline()):
                found += process.memory_full_info().pss / 1e6
    return found


@contextmanager
def start_server(settings: Settings) -> Iterator[Server]:
    """Give the server that the settings name, or an embedded one for the time being."""
    if settings.servers:
        yield Server(settings.servers, None)
        return
    with NatsServer() as embedded:
        yield Server(embedded.url, embedded.monitoring_url, embedded.pid)
