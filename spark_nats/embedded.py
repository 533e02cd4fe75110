"""The real nats-server as a child process, for trying things out and for tests.

>>> with NatsServer() as server:
...     spark.readStream.format("nats").option("servers", server.url)
"""

from __future__ import annotations

import atexit
import http.client
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from spark_nats import clock
from spark_nats.conditions import others as conditions
from spark_nats.errors import NatsError

_LOG_LINES_SHOWN = 20
_STOP_SECONDS = 5.0
# Waits until its standard input closes, which happens however this process ends, and then kills the server and
# removes its temporary directory.
_GUARD = 'read -r _; kill -KILL "$0"; rm -rf "$1"'


class EmbeddedServerError(NatsError):
    """The embedded server is not installed, did not start, or is not running."""


def find_binary() -> Path:
    """Find the nats-server program: in this Python's environment first, then on ``PATH``.

    Raises:
        EmbeddedServerError: The program is not installed.
    """
    environment = [str(Path(sys.executable).parent), sysconfig.get_path("scripts")]
    found = shutil.which("nats-server", path=os.pathsep.join([*environment, os.environ.get("PATH", "")]))
    if found is None:
        raise EmbeddedServerError(conditions.SERVER_NOT_INSTALLED())
    return Path(found)


class NatsServer:
    """A private nats-server on a free loopback port, ready once :meth:`start` returns or the ``with`` block begins.

    The server picks its own ports, so any number can run at once. It stops when the ``with`` block or this process
    ends, even if this process is killed. A restarted server keeps its port; it keeps its data too if it has a
    ``store_dir``, or if it ended by itself or by :meth:`kill`.

    Args:
        config: More configuration, in the syntax of nats-server's configuration file. The client address and port, the
            monitoring port and, with ``jetstream``, the store directory are set here and override it.
        jetstream: Whether to enable JetStream.
        port: A fixed client port, or None for a free one.
        store_dir: The directory for JetStream's streams, created if missing and never removed. None means a temporary
            directory that :meth:`stop` removes.
        ready_timeout: Seconds within which the server must become ready.
        binary: The nats-server program, or None for the one that :func:`find_binary` finds.

    Attributes:
        port: The client port. 0 before the first start, unless it was given.
        monitoring_url: The URL of the monitoring pages, such as ``http://127.0.0.1:41043``. Empty before the
            first start; it changes at each start.
    """

    def __init__(
        self,
        config: str = "",
        *,
        jetstream: bool = True,
        port: int | None = None,
        store_dir: str | Path | None = None,
        ready_timeout: float = 10.0,
        binary: str | Path | None = None,
    ) -> None:
        self.port = port or 0
        self.monitoring_url = ""
        self._config = config
        self._jetstream = jetstream
        self._store_dir = store_dir
        self._ready_timeout = ready_timeout
        self._binary = binary
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None
        self._directory: tempfile.TemporaryDirectory[str] | None = None

    def __repr__(self) -> str:
        # Without the configuration, which may hold passwords.
        return f"NatsServer({self.url!r}, running={self.running})"

    @property
    def url(self) -> str:
        """The address for clients, such as ``nats://127.0.0.1:36409``."""
        return f"nats://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int | None:
        """The server's process id, or None when it is not running."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    @property
    def running(self) -> bool:
        """Whether the process is alive."""
        return self.pid is not None

    @property
    def log_path(self) -> Path:
        """The server's log, which :meth:`stop` removes.

        Raises:
            EmbeddedServerError: The server has not been started, or is stopped.
        """
        if self._directory is None:
            raise EmbeddedServerError(conditions.SERVER_NOT_RUNNING())
        return Path(self._directory.name, "server.log")

    def start(self) -> Self:
        """Start this server, unless it runs, and wait until it serves clients and, if enabled, JetStream.

        Raises:
            EmbeddedServerError: nats-server is not installed, cannot be executed, ended at once, or was not ready in
                time; in the last two cases the message ends with the last lines of its log.
        """
        if self.running:
            return self
        self._kill_guard()  # of a process that ended by itself
        binary = self._binary or find_binary()
        if self._directory is None:
            self._directory = tempfile.TemporaryDirectory(prefix="spark-nats-", ignore_cleanup_errors=True)
        directory = Path(self._directory.name)
        config_path = directory / "server.conf"
        config_path.write_text(self._config, encoding="utf-8")
        # Flags, not lines of the file: a repeated block in the file replaces the first one whole, a flag overrides one
        # setting. With -1 the server picks a port itself, so that no other process can take it in between.
        command = [str(binary), "--config", str(config_path), "--addr", "127.0.0.1", "--http_port", "-1"]
        command += ["--port", str(self.port or -1), "--ports_file_dir", str(directory)]
        if self._jetstream:
            command += ["--jetstream", "--store_dir", str(self._store_dir or directory / "store")]
        atexit.register(self.stop)
        with self.log_path.open("ab") as log:
            try:
                # A separate process group, else Ctrl-C would stop the server before its clients.
                process = self._process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, process_group=0
                )
            except OSError as error:
                self.stop()
                said = conditions.SERVER_NOT_EXECUTED(binary=binary, reason=error.strerror)
                raise EmbeddedServerError(said) from None
        self._guard = subprocess.Popen(
            ["/bin/sh", "-c", _GUARD, str(process.pid), str(directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            process_group=0,
        )
        try:
            self._wait_until_ready(process, directory)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Stop the server, with SIGKILL if it does not end in time, and remove temporary files; safe to call again."""
        self._kill_guard()
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self.kill()
        if self._directory is not None:
            self._directory.cleanup()
            self._directory = None
        atexit.unregister(self.stop)

    def kill(self) -> None:
        """End the server with SIGKILL, as a crash would; port, log and data stay for :meth:`start`."""
        self._kill_guard()
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _kill_guard(self) -> None:
        if self._guard is not None:
            self._guard.kill()
            self._guard.communicate()
            self._guard = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _wait_until_ready(self, process: subprocess.Popen[bytes], directory: Path) -> None:
        deadline = clock.monotonic() + self._ready_timeout
        while True:
            status = process.poll()
            if status is not None:
                raise EmbeddedServerError(conditions.SERVER_NOT_STARTED(status=status, log=self._end_of_log()))
            if self._note_ports_and_ask_health(process.pid, directory):
                return
            if clock.monotonic() > deadline:
                said = conditions.SERVER_NOT_READY(timeout=self._ready_timeout, log=self._end_of_log())
                raise EmbeddedServerError(said)
            clock.sleep(0.01)

    def _note_ports_and_ask_health(self, pid: int, directory: Path) -> bool:
        """Read the ports, then ask the server whether its client listener and JetStream are up.

        The server's health check works with every configuration; a client's handshake would need the credentials and
        the TLS settings that ``config`` demands.
        """
        try:
            (ports_path,) = directory.glob(f"*_{pid}.ports")
            ports = json.loads(ports_path.read_text(encoding="utf-8"))
            port = urlsplit(ports["nats"][0]).port
            monitoring_url: str = ports["monitoring"][0]
            with closing(http.client.HTTPConnection(urlsplit(monitoring_url).netloc, timeout=1.0)) as connection:
                connection.request("GET", "/healthz?js-enabled-only=true" if self._jetstream else "/healthz")
                healthy = connection.getresponse().status == http.client.OK
        except (OSError, ValueError, http.client.HTTPException):
            return False  # no file yet, an incomplete one, or no answer yet
        self.port, self.monitoring_url = port or 0, monitoring_url
        return healthy

    def _end_of_log(self) -> str:
        lines = self.log_path.read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join(["The end of its log:", *lines[-_LOG_LINES_SHOWN:]])
