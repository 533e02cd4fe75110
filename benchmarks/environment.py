"""What the figures belong to: the machine, the versions, and the server."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import psutil

from benchmarks.peers import nats_c
from spark_nats.client import Connection, ConnectionOptions, connect, parse_servers

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


def versions() -> dict[str, str]:
    """Return the versions of everything that takes part."""
    found = {"python": f"{platform.python_implementation()} {platform.python_version()}"}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "not installed"
    found["libnats"] = nats_c.version() or "not installed"
    found["java"] = _java()
    return found


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


class Target:
    """The server under load.

    Attributes:
        url: where it listens.
        version: what it says it is.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        with self.connect() as connection:
            self.version = connection.info.version

    def connect(self) -> Connection:
        """Open a connection of our own client; waits patiently."""
        return connect(ConnectionOptions(servers=parse_servers(self.url), request_timeout=60.0))
