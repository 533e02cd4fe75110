"""Facts that outlive a step of a query, kept outside of NATS: time, warnings and metrics depend on them, rows do not.

Spark starts a Python process for every step of a query, and workers for its tasks. Each of them would have to find out
again what another one has found out, such as that a server does not answer. So the processes of a machine share facts
in small files. The first rows of the table are these facts, each named after the function below that makes it. The
other rows are what one process keeps in memory, until it ends or for the given seconds.

============================  =======  =================================================================================
kept                          seconds  where it is used, and the effect of a missing or wrong entry
============================  =======  =================================================================================
:func:`unreachable_fact`      30       ``choosing``: a server is tried earlier or later than necessary
:func:`announced_fact`        3600     ``choosing``: fewer servers are tried, or some that do not exist, each as long as
                                       an unreachable server; TLS and the login verify a server, as they verify every
                                       server
:func:`sought_in_vain_fact`   600      ``choosing``: a server is sought by its name, for one connection in vain; or
                                       rows take the way through another server
:func:`prepared_fact`         60       ``preparing``: the driver prepares a write again; or it does not, and the tasks
                                       report a problem with the target, because they check everything that their rows
                                       depend on
:func:`feeds_itself_fact`     3600     ``row_warnings``: a warning is repeated, or left out
:func:`difference_said_fact`  3600     ``creating``: a warning is repeated, or left out
:func:`counts_topic`,         3600     ``metrics_channel``: the metrics of written rows are too low, or too high
:func:`counts_wanted_fact`
``pool._pool``                         connections, for ``idle_timeout`` seconds: another one is made; a dead one is
                                       detected by a PING or at its next use, like any lost connection
``choosing._announced``                as :func:`announced_fact`
``choosing._names``                    names of servers: as :func:`sought_in_vain_fact`
``kept._keeping``                      consumers of a connection: another one is made, also if the kept one answers
                                       oddly
``_refused``                  600      ``kept`` and ``direct``: a range is read by the other method
``replay._noted``                      the micro-batch that a task has noted: a wrong one raises the error of an older
                                       state bucket; without one, the notes and the stream decide, as in a new worker
``_said``, ``_ahead``,                 ``creating``, ``row_warnings`` and ``partitions``: a warning is repeated, or left
``_looked``                            out
============================  =======  =================================================================================

Rows depend only on the checkpoint, on the partitions of a micro-batch and on the notes in the state bucket.

A fact is a file in a private directory of the user, below the system's directory for temporary files. The file is empty
unless the fact has a text, and the time of the file is that of the fact. The name of the file is a digest of the fact
with a key from the same directory: facts may contain secrets, and nobody can guess them from the names. A pushed text
is also a file, whose name begins with that of its topic. Where the directory cannot be used, or others can access it,
nothing is remembered.
"""

from __future__ import annotations

import contextlib
import hmac
import math
import os
import secrets
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import astuple
from pathlib import Path
from typing import TYPE_CHECKING, NewType

from spark_nats import clock

if TYPE_CHECKING:
    from spark_nats.client.options import ConnectionOptions

Fact = NewType("Fact", str)  # a fact to remember, or the topic of pushed texts
FACT_TTL = 3600.0  # seconds after which a text is forgotten, and :func:`note_fact` removes a fact or a pushed text
UNREACHABLE_FOR = 30.0  # seconds for which a server that could not be reached is tried after the others
SOUGHT_AGAIN_AFTER = 600.0  # seconds for which a server that was :func:`sought_in_vain_fact` is not sought
PREPARED_FOR = 60.0  # seconds for which the driver does not prepare the writes of a streaming query again
_KEY = "key"


def unreachable_fact(host: str, port: int) -> Fact:
    """Return the fact that a server could not be reached or used, or is shutting down."""
    return Fact(f"unreachable: {host}:{port}")


def sought_in_vain_fact(host: str, port: int) -> Fact:
    """Return the fact that a server could not be reached in search of one by its name."""
    return Fact(f"sought in vain: {host}:{port}")


def announced_fact(options: ConnectionOptions) -> Fact:
    """Return the fact that servers were announced to a connection with these options; its text lists them."""
    return Fact(f"announced: {astuple(options)}")


def prepared_fact(query: str) -> Fact:
    """Return the fact that this Spark session has prepared the writes of a query."""
    return Fact(f"{parent_process()}: prepared {query}")


def feeds_itself_fact(query: str, stream: str) -> Fact:
    """Return the fact that a query reads its own rows from a stream."""
    return Fact(f"{query} feeds itself by {stream}")


def difference_said_fact(stream: str, fields: str) -> Fact:
    """Return the fact that this Spark session has warned of differences in fields of a stream's configuration."""
    return Fact(f"{parent_process()}: {stream} differs in {fields}")


def counts_topic(run: str) -> Fact:
    """Return the topic of the counts of a query run; its pushed texts have the counts."""
    return Fact(f"counts of run {run}")


def counts_wanted_fact(run: str) -> Fact:
    """Return the fact that a listener wants the :func:`counts_topic` of a query run."""
    return Fact(f"somebody listens to {counts_topic(run)}")


def note_fact(fact: Fact, text: str = "") -> None:
    """Remember a fact as of now, with a text that replaces the earlier text."""
    with contextlib.suppress(OSError):
        _directory_path().mkdir(0o700, exist_ok=True)
        with _open_private_directory() as directory:
            name, now = _file_name(fact, directory), clock.time_ns()
            _write_file(name, text, directory)
            os.utime(name, ns=(now, now), dir_fd=directory)  # by this clock, which may differ from the file system's
            _remove_before(now - int(FACT_TTL * 1e9), directory)


def text_of_fact(fact: Fact) -> str:
    """Return the text that was remembered with a fact within the last :data:`FACT_TTL` seconds; else an empty one."""
    if seconds_since(fact) < FACT_TTL:
        with contextlib.suppress(OSError), _open_private_directory() as directory:
            return _read_file(_file_name(fact, directory), directory).decode()
    return ""


def forget_fact(fact: Fact) -> None:
    """Forget a fact."""
    with contextlib.suppress(OSError), _open_private_directory() as directory:
        os.unlink(_file_name(fact, directory), dir_fd=directory)


def seconds_since(fact: Fact) -> float:
    """Return how many seconds ago a fact was last remembered; infinite when never or in the future."""
    with contextlib.suppress(OSError), _open_private_directory() as directory:
        found = os.stat(_file_name(fact, directory), dir_fd=directory, follow_symlinks=False)
        passed = (clock.time_ns() - found.st_mtime_ns) / 1e9
        if passed >= 0:  # else the clock was set back
            return passed
    return math.inf


def run_unless_succeeded_lately(fact: Fact, action: Callable[[bool], object], seconds: float = FACT_TTL) -> None:
    """Run an action, unless a process of this machine has run it with success in the last ``seconds``.

    Args:
        fact: the identity of the action, including everything that its success depends on.
        action: the action; its argument is whether an earlier success is remembered.
        seconds: how long a success counts.
    """
    passed = seconds_since(fact)
    if passed < seconds:
        return
    forget_fact(fact)  # first, so that a failed action runs again
    action(passed < math.inf)
    note_fact(fact)


def push_text(topic: Fact, text: str) -> None:
    """Leave a text about a topic for the process that next calls :func:`pop_all`, within :data:`FACT_TTL` seconds."""
    with contextlib.suppress(OSError), _open_private_directory() as directory:
        _write_file(f"{_file_name(topic, directory)}.{clock.time_ns()}.{clock.token(4)}", text, directory)


def pop_all(topic: Fact) -> list[str]:
    """Return and remove the texts about a topic, oldest first; each text goes to one caller."""
    found: list[str] = []
    with contextlib.suppress(OSError), _open_private_directory() as directory:
        prefix = f"{_file_name(topic, directory)}."
        with os.scandir(directory) as files:
            names = sorted(file.name for file in files if file.name.startswith(prefix))
        for name in names:
            text = _read_file(name, directory).decode()
            os.unlink(name, dir_fd=directory)  # only one of several callers succeeds; the others stop here
            found.append(text)
    return found


def parent_process() -> str:
    """Return a text that identifies the parent of this process among all processes of the machine.

    The Python processes of a Spark session have the same parent.
    """
    parent = os.getppid()
    began = ""
    with contextlib.suppress(OSError, IndexError):
        status = Path(f"/proc/{parent}/stat").read_text(encoding="utf-8", errors="replace")
        began = status.rpartition(")")[2].split()[19]  # "starttime" of proc(5), because process ids are reused
    return f"{parent} {began}"


def _directory_path() -> Path:
    return Path(tempfile.gettempdir(), f"spark-nats-{os.geteuid()}")


@contextlib.contextmanager
def _open_private_directory() -> Iterator[int]:
    """Open the directory, so that a later replacement has no effect; raise OSError if others can access it."""
    directory = os.open(_directory_path(), os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        status = os.fstat(directory)
        if status.st_uid != os.geteuid() or status.st_mode & 0o077:
            raise PermissionError(f"{_directory_path()} is not this user's alone")
        yield directory
    finally:
        os.close(directory)


def _file_name(fact: Fact, directory: int) -> str:
    return hmac.digest(_read_or_create_key(directory), fact.encode(), "sha256").hex()


def _read_file(name: str, directory: int) -> bytes:
    with os.fdopen(os.open(name, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=directory), "rb") as file:
        return file.read()


def _write_file(name: str, text: str, directory: int) -> None:
    """Write a text to a file, which appears or changes atomically."""
    os.rename(_write_draft(name, text.encode(), directory), name, src_dir_fd=directory, dst_dir_fd=directory)


def _write_draft(name: str, data: bytes, directory: int) -> str:
    """Write bytes to a new file, and return its name."""
    draft = f"draft.{clock.token(8)}.{name}"
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=directory), "wb") as file:
        file.write(data)
    return draft


def _read_or_create_key(directory: int) -> bytes:
    """Return the key; the first process creates it atomically."""
    try:
        return _read_file(_KEY, directory)
    except FileNotFoundError:
        draft = _write_draft(_KEY, secrets.token_bytes(32), directory)
        try:
            with contextlib.suppress(FileExistsError):
                os.link(draft, _KEY, src_dir_fd=directory, dst_dir_fd=directory)
        finally:
            os.unlink(draft, dir_fd=directory)
        return _read_file(_KEY, directory)


def _remove_before(time_ns: int, directory: int) -> None:
    for name in os.listdir(directory):
        with contextlib.suppress(FileNotFoundError):  # another process has removed it
            if name != _KEY and os.stat(name, dir_fd=directory, follow_symlinks=False).st_mtime_ns < time_ns:
                os.unlink(name, dir_fd=directory)
