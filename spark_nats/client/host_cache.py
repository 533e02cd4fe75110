"""What is kept from one step of a query to the next outside of NATS, for how long, and what depends on it: only time.

Spark starts a Python process for every step of a query, and workers for its tasks. What one of them has found out, such
as that a server does not answer, would have to be found out by each of them again. So it tells the others of its
machine by small files (the first rows); the functions of this module with the names of the rows say what each is about.
The other rows are what a process keeps to itself, until it ends or for as long as they say.

======================  ========  ======================================================================================
kept                    seconds   where it is used, and what comes of one that is missing or wrong
======================  ========  ======================================================================================
:func:`unreachable`     30        ``choosing``: a server is tried earlier or later than it might be
:func:`announced_to`    3600      ``choosing``: fewer servers are tried, or some that are none, each as long as a server
                                  that is away; who one is, TLS and the login show, as of every server
:func:`prepared`        60        ``preparing``: the driver prepares a write again; or it does not, and what is wrong
                                  with the target is said by the tasks, which check what their rows depend on
:func:`feeds_itself`    3600      ``row_warnings``: a warning is said again, or not
:func:`differs`         3600      ``creating``: the same
:func:`counts`,         3600      ``metrics_channel``: metrics lack what was written, or have too much
:func:`counts_wanted`
``pool._pool``          as idle   connections: another one is made; one that is dead is found out by a PING or when it
                                  is used, as one that is lost then
``choosing._announced``           as :func:`announced_to`
``kept._keeping``                 consumers of a connection: another one is made, also for one that answers oddly
``_refused``            600       ``kept`` and ``direct``: a range is read in the other way
``replay._noted``                 the micro-batch that a task has noted: if it is wrong, an error says that the state
                                  bucket is older; if it is missing, the notes and the stream decide, as in a new worker
``_said``, ``_ahead``             ``creating``, ``row_warnings``, and ``_looked`` of ``partitions``: as with the warnings
======================  ========  ======================================================================================

What rows depend on is in the checkpoint, in the partitions of a micro-batch and in the notes of the state bucket.

A fact is a file in a directory of the user's own, in the system's directory for temporary files, and empty unless a
text belongs to it. The time of the file is that of the fact. Its name is made of the fact with a key that lies there
too: facts may have secrets in them, and nobody can guess them from the names. What is told is a file there too, whose
name begins with that of its topic. Where the directory cannot be used, or is not the user's alone, nothing is
remembered.
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

Fact = NewType("Fact", str)  # what may be remembered, or what is told about
FACT_TTL = 3600.0  # seconds after which a fact is forgotten
UNREACHABLE_FOR = 30.0  # seconds for which a server that could not be reached is tried after the others
PREPARED_FOR = 60.0  # seconds for which a streaming query does not prepare to write again on the driver
_KEY = "key"


def unreachable(host: str, port: int) -> Fact:
    """A server could not be reached."""
    return Fact(f"unreachable: {host}:{port}")


def announced_to(options: ConnectionOptions) -> Fact:
    """Servers were announced to a connection with these options; the text says which."""
    return Fact(f"announced: {astuple(options)}")


def prepared(query: str) -> Fact:
    """This session of Spark has prepared a query to write."""
    return Fact(f"{parent_process()}: prepared {query}")


def feeds_itself(query: str, stream: str) -> Fact:
    """A query has read from a stream what it has written."""
    return Fact(f"{query} feeds itself by {stream}")


def differs(stream: str, fields: str) -> Fact:
    """This session of Spark was told that a stream is not as it is wanted in some fields of its configuration."""
    return Fact(f"{parent_process()}: {stream} differs in {fields}")


def counts(run: str) -> Fact:
    """A run of a query has written something; texts say how much."""
    return Fact(f"counts of run {run}")


def counts_wanted(run: str) -> Fact:
    """Somebody listens to :func:`counts`."""
    return Fact(f"somebody listens to {counts(run)}")


def mark(fact: Fact, text: str = "") -> None:
    """Note that something has happened just now, and a text about it, which takes the place of the one before."""
    with contextlib.suppress(OSError):
        _path().mkdir(0o700, exist_ok=True)
        with _directory() as directory:
            name, now = _name(fact, directory), clock.time_ns()
            _write(name, text, directory)
            os.utime(name, ns=(now, now), dir_fd=directory)  # by our clock, which is not always the file system's
            _remove_before(now - int(FACT_TTL * 1e9), directory)


def get_text(fact: Fact) -> str:
    """Return the text that was last remembered about something; empty when there is none."""
    with contextlib.suppress(OSError), _directory() as directory:
        return _read(_name(fact, directory), directory).decode()
    return ""


def clear(fact: Fact) -> None:
    """Note that something does not hold any more."""
    with contextlib.suppress(OSError), _directory() as directory:
        os.unlink(_name(fact, directory), dir_fd=directory)


def seconds_since(fact: Fact) -> float:
    """Return how many seconds ago something was last remembered; infinite when it is not."""
    with contextlib.suppress(OSError), _directory() as directory:
        found = os.stat(_name(fact, directory), dir_fd=directory, follow_symlinks=False)
        passed = (clock.time_ns() - found.st_mtime_ns) / 1e9
        if passed >= 0:  # else the clock was set back
            return passed
    return math.inf


def at_most_every(fact: Fact, action: Callable[[bool], object], seconds: float = FACT_TTL) -> None:
    """Do something, unless a process of this machine has done it in the last seconds and did not fail.

    Args:
        fact: says what is done, with all that its success depends on.
        action: does it; its argument is whether it has succeeded before, as far as is remembered.
        seconds: for how long a success counts.
    """
    passed = seconds_since(fact)
    if passed < seconds:
        return
    clear(fact)  # first, so that after a failure it is done again
    action(passed < math.inf)
    mark(fact)


def push(topic: Fact, text: str) -> None:
    """Leave a text about a topic to whichever process asks next, within :data:`FACT_TTL`."""
    with contextlib.suppress(OSError), _directory() as directory:
        name = f"{_name(topic, directory)}.{clock.time_ns()}.{clock.token(4)}"
        _write(name, text, directory)


def pop_all(topic: Fact) -> list[str]:
    """Return the texts about a topic that nobody has asked for before, oldest first."""
    found: list[str] = []
    with contextlib.suppress(OSError), _directory() as directory:
        prefix = f"{_name(topic, directory)}."
        with os.scandir(directory) as files:
            names = sorted(file.name for file in files if file.name.startswith(prefix))
        for name in names:
            text = _read(name, directory).decode()
            os.unlink(name, dir_fd=directory)  # by one of several that ask; the others find no more
            found.append(text)
    return found


def parent_process() -> str:
    """Return a text that tells the process which has started this one from all others of the machine.

    Python processes of a Spark session have the same one.
    """
    parent = os.getppid()
    began = ""
    with contextlib.suppress(OSError, IndexError):
        status = Path(f"/proc/{parent}/stat").read_text(encoding="utf-8", errors="replace")
        began = status.rpartition(")")[2].split()[19]  # "starttime", see proc(5), since ids are used again
    return f"{parent} {began}"


def _path() -> Path:
    return Path(tempfile.gettempdir(), f"spark-nats-{os.geteuid()}")


@contextlib.contextmanager
def _directory() -> Iterator[int]:
    """Open the directory, so that what is put in its place meanwhile makes no difference; OSError if others see in."""
    directory = os.open(_path(), os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        status = os.fstat(directory)
        if status.st_uid != os.geteuid() or status.st_mode & 0o077:
            raise PermissionError(f"{_path()} is not this user's alone")
        yield directory
    finally:
        os.close(directory)


def _name(fact: Fact, directory: int) -> str:
    return hmac.digest(_key(directory), fact.encode(), "sha256").hex()


def _read(name: str, directory: int) -> bytes:
    with os.fdopen(os.open(name, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=directory), "rb") as file:
        return file.read()


def _write(name: str, text: str, directory: int) -> None:
    """Write a text to a file that appears, or changes, at once and whole."""
    draft = f"draft.{clock.token(8)}.{name}"
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=directory), "wb") as file:
        file.write(text.encode())
    os.rename(draft, name, src_dir_fd=directory, dst_dir_fd=directory)


def _key(directory: int) -> bytes:
    """Return the key, which is made by whoever comes first: it appears at once and whole."""
    try:
        return _read(_KEY, directory)
    except FileNotFoundError:
        draft = f"{_KEY}.{clock.token(8)}"
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=directory), "wb") as file:
            file.write(secrets.token_bytes(32))
        try:
            with contextlib.suppress(FileExistsError):
                os.link(draft, _KEY, src_dir_fd=directory, dst_dir_fd=directory)
        finally:
            os.unlink(draft, dir_fd=directory)
        return _read(_KEY, directory)


def _remove_before(time_ns: int, directory: int) -> None:
    for name in os.listdir(directory):
        with contextlib.suppress(FileNotFoundError):  # another process removes the same
            if name != _KEY and os.stat(name, dir_fd=directory, follow_symlinks=False).st_mtime_ns < time_ns:
                os.unlink(name, dir_fd=directory)
