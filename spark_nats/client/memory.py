"""What the processes of one machine tell each other: that something has happened, and when, or a text.

Spark starts a Python process for every step of a query, and workers for its tasks. What one of them has found out, such
as that a server does not answer, would have to be found out by each of them again.

A fact is a file in a directory of the user's own, in the system's directory for temporary files, and empty unless a
text belongs to it. The time of the file is that of the fact. Its name is made of the fact with a key that lies there
too: facts may have secrets in them, and nobody can guess them from the names. What is told is a file there too, whose
name begins with that of its topic. Nothing depends on all this: where the directory cannot be used, or is not the
user's alone, nothing is remembered.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from spark_nats import clock

KEPT = 3600.0  # seconds after which a fact is forgotten
_KEY = "key"


def remember(fact: str, text: str = "") -> None:
    """Note that something has happened just now, and a text about it, which takes the place of the one before."""
    with contextlib.suppress(OSError):
        _path().mkdir(0o700, exist_ok=True)
        with _directory() as directory:
            name, now = _name(fact, _key(directory)), clock.time_ns()
            if text:
                _write(name, text, directory)
            else:
                os.close(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600, dir_fd=directory))
            os.utime(name, ns=(now, now), dir_fd=directory)  # by our clock, which is not always the file system's
            _remove_before(now - int(KEPT * 1e9), directory)


def recall(fact: str) -> str:
    """Return the text that was last remembered about something; empty when there is none."""
    with contextlib.suppress(OSError), _directory() as directory:
        return _read(_name(fact, _read_key(directory)), directory).decode()
    return ""


def forget(fact: str) -> None:
    """Note that something does not hold any more."""
    with contextlib.suppress(OSError), _directory() as directory:
        os.unlink(_name(fact, _read_key(directory)), dir_fd=directory)


def age(fact: str) -> float | None:
    """Return how many seconds ago something was last remembered; None when it is not."""
    with contextlib.suppress(OSError), _directory() as directory:
        found = os.stat(_name(fact, _read_key(directory)), dir_fd=directory, follow_symlinks=False)
        passed = (clock.time_ns() - found.st_mtime_ns) / 1e9
        if passed >= 0:  # else the clock was set back
            return passed
    return None


def once_a_while(fact: str, action: Callable[[bool], object], seconds: float) -> None:
    """Do something, unless a process of this machine has done it in the last seconds and did not fail.

    Args:
        fact: says what is done, with all that its success depends on.
        action: does it; its argument is whether it has succeeded before, as far as is remembered.
        seconds: for how long a success counts.
    """
    passed = age(fact)
    if passed is not None and passed < seconds:
        return
    forget(fact)  # first, so that after a failure it is done again
    action(passed is not None)
    remember(fact)


def tell(topic: str, text: str) -> None:
    """Leave a text about a topic to whichever process asks next, within :data:`KEPT`."""
    with contextlib.suppress(OSError), _directory() as directory:
        name = f"{_name(topic, _read_key(directory))}.{clock.time_ns()}.{clock.token(4)}"
        _write(name, text, directory)


def heard(topic: str) -> list[str]:
    """Return the texts about a topic that nobody has asked for before, oldest first."""
    found: list[str] = []
    with contextlib.suppress(OSError), _directory() as directory:
        prefix = f"{_name(topic, _read_key(directory))}."
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


def _name(fact: str, key: bytes) -> str:
    return hmac.digest(key, fact.encode(), "sha256").hex()


def _read_key(directory: int) -> bytes:
    return _read(_KEY, directory)


def _read(name: str, directory: int) -> bytes:
    with os.fdopen(os.open(name, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=directory), "rb") as file:
        return file.read()


def _write(name: str, text: str, directory: int) -> None:
    """Write a text to a file that appears, or changes, at once and whole."""
    draft = f"draft.{os.getpid()}.{name}"
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=directory), "wb") as file:
        file.write(text.encode())
    os.rename(draft, name, src_dir_fd=directory, dst_dir_fd=directory)


def _key(directory: int) -> bytes:
    """Return the key, which is made by whoever comes first: it appears at once and whole."""
    try:
        return _read_key(directory)
    except FileNotFoundError:
        draft = f"{_KEY}.{clock.token(8)}"
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=directory), "wb") as file:
            file.write(secrets.token_bytes(32))
        with contextlib.suppress(FileExistsError):
            os.link(draft, _KEY, src_dir_fd=directory, dst_dir_fd=directory)
        os.unlink(draft, dir_fd=directory)
        return _read_key(directory)


def _remove_before(time_ns: int, directory: int) -> None:
    for name in os.listdir(directory):
        with contextlib.suppress(FileNotFoundError):  # another process removes the same
            if name != _KEY and os.stat(name, dir_fd=directory, follow_symlinks=False).st_mtime_ns < time_ns:
                os.unlink(name, dir_fd=directory)
