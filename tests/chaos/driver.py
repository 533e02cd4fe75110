"""The Spark driver in a process of its own, and the processes below it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import psutil
import pyspark

from tests.chaos.application import Settings
from tests.nats_py import wait_until

_START_TIMEOUT = 120
_LOST_TASK = re.compile(r"\bLost task \d")
_LOSS = re.compile(r"DataLossError: |.*\bhas lost .*\backnowledged\b")
_ROOT = Path(__file__).parents[2]


class Driver:
    """Runs the query, until it is killed or has finished.

    Args:
        settings: what the query does.
        folder: for what Spark leaves behind.
        logs: for its logs, one file for each time that it is started.

    Attributes:
        ended: why queries ended by themselves, in the order in which they did.
        losses: of those the sentences that say that a server has lost something, while it has (`losing`).
        losing: whether servers lose what they have acknowledged at the moment.
        named: pattern of what counts as a loss at any time; empty for nothing.
        lenient: whether the query that runs goes on with what there is.
    """

    def __init__(self, settings: Settings, folder: Path, logs: Path) -> None:
        self.ended: list[str] = []
        self.losses: list[str] = []
        self.losing = False
        self.named = ""
        self.lenient = False
        self.starts = 0
        self._settings = settings
        self._logs = logs
        self._process: subprocess.Popen[str] | None = None
        self._started = threading.Event()
        self._finished = threading.Event()
        self._expected = 0
        self._below: set[psutil.Process] = set()  # what killed drivers have left behind
        self._environment = _environment(folder, logs)

    # Its life

    def start(self) -> None:
        """Start the driver, and wait until the query runs."""
        self._started.clear()
        log = self._log(self.starts)
        self.starts += 1
        with log.open("w") as errors:
            process = self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.chaos.application", json.dumps(asdict(self._settings))],
                env=self._environment,
                cwd=_ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        threading.Thread(target=self._listen, args=(process,), daemon=True).start()

        def runs() -> bool:
            assert process.poll() is None, f"the driver has ended: {log.read_text()[-3000:]}"
            return self._started.is_set()

        wait_until(runs, _START_TIMEOUT)

    def kill(self, at: Callable[[Callable[[], None]], None]) -> None:
        """End the driver with SIGKILL, its Python process and its JVM; what is below them learns of it by itself.

        Args:
            at: is called with what does it, since to find the processes takes a while.
        """
        assert self._process
        python, jvm = psutil.Process(self._process.pid), self.jvm()
        self._below |= set(self.descendants())

        def kill() -> None:
            jvm.kill()
            python.kill()

        at(kill)
        self._process.wait()

    def finish(self, timeout: float) -> bool:
        """Have the query process what there is and stop; whether it has within the time."""
        assert self._process
        assert self._process.stdin
        with suppress(OSError):
            self._process.stdin.write("finish\n")
            self._process.stdin.flush()
        return self._finished.wait(timeout)

    def stop(self) -> None:
        """End everything that was ever started."""
        if self._process is None:
            return
        self._below |= set(self.descendants())
        with suppress(subprocess.TimeoutExpired):
            self._process.communicate(timeout=1 if self._process.poll() is None else 0)
        self._process.kill()
        self._process.wait()
        for process in self._below:
            with suppress(psutil.NoSuchProcess):  # psutil takes no other process with the same id for it
                process.kill()

    def expect_end(self) -> None:
        """Take the next end of a query for the consequence of a fault that no query survives."""
        self._expected += 1

    def done(self) -> int:
        """The sequence of IN before which all was processed by micro-batches that have ended."""
        folder = Path(self._settings.checkpoint)
        ended = [int(each.name) for each in (folder / "commits").iterdir() if each.name.isdigit()]
        offset = (folder / "offsets" / f"{max(ended)}").read_text().splitlines()[2] if ended else '{"IN": {"next": 1}}'
        following: int = json.loads(offset)["IN"]["next"]
        return following

    def _listen(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout
        for line in process.stdout:
            match json.loads(line):
                case {"started": _, "lenient": bool(lenient)}:
                    self.lenient = lenient
                    self._started.set()
                case {"finished": _}:
                    self._finished.set()
                case {"ended": str(sentence)}:
                    if (self.losing and _LOSS.match(sentence)) or (self.named and re.match(self.named, sentence)):
                        self.losses.append(sentence)
                    elif self._expected:
                        self._expected -= 1
                    else:
                        self.ended.append(sentence)

    # The processes below it

    def descendants(self) -> list[psutil.Process]:
        """All processes that the driver has started, and those that these have started."""
        assert self._process
        with suppress(psutil.NoSuchProcess):
            return list(psutil.Process(self._process.pid).children(recursive=True))
        return []

    def jvm(self) -> psutil.Process:
        """The driver's JVM."""
        return self._javas()[0]

    def executors(self) -> list[psutil.Process]:
        """The JVMs of executors, where these have their own."""
        return [java for java in self._javas() if "CoarseGrainedExecutorBackend" in _command(java)]

    def workers(self) -> list[psutil.Process]:
        """The Python processes that run tasks: what the daemons have forked."""
        return [one for one in self.descendants() if _is_daemon(one) and _is_daemon(one.parent())]

    def runners(self) -> list[psutil.Process]:
        """The Python processes in which the driver's side of the source lives."""
        return [one for one in self.descendants() if "python_streaming_source_runner" in _command(one)]

    def pythons(self) -> list[psutil.Process]:
        """All Python processes, with the driver's own."""
        assert self._process
        below = [one for one in self.descendants() if "python" in _name(one)]
        return [psutil.Process(self._process.pid), *below]

    def _javas(self) -> list[psutil.Process]:
        return [one for one in self.descendants() if _name(one) == "java"]

    # Its logs

    def lost_tasks(self) -> int:
        """How often a task has failed."""
        return sum(len(_LOST_TASK.findall(self.log(i))) for i in range(self.starts))

    def log(self, start: int) -> str:
        """What the driver has logged since it was started for this time."""
        return self._log(start).read_text(errors="replace")

    def _log(self, start: int) -> Path:
        return self._logs / f"driver-{start}.log"


def _environment(folder: Path, logs: Path) -> dict[str, str]:
    # See spark_environment in tests/spark_session.py, and a place for what killed drivers cannot remove.
    home, scratch, executors = folder / "spark", folder / "scratch", logs / "executors"
    for made in (home, scratch, executors):
        made.mkdir(exist_ok=True)
    for name in ("bin", "jars"):
        (home / name).symlink_to(Path(pyspark.__file__).parent / name)
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {
        **inherited,
        # A driver starts seven Python processes one after another, and is itself started again and again.
        "PYTHONPYCACHEPREFIX": str(folder / "compiled"),
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_DIRS": str(scratch),
        "SPARK_WORKER_DIR": str(executors),
        "TMPDIR": str(scratch),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_HOSTNAME": "localhost",
        "SPARK_LOCAL_IP": "127.0.0.1",
        "JDK_JAVA_OPTIONS": f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Djava.io.tmpdir={scratch}",
    }


def _name(process: psutil.Process) -> str:
    try:
        return str(process.name())
    except psutil.Error:
        return ""


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def _is_daemon(process: psutil.Process | None) -> bool:
    return process is not None and "pyspark.daemon" in _command(process)
