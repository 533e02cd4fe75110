"""Files that options name. They are read on the driver, and nowhere else."""

from __future__ import annotations

from pathlib import Path


def read_file(path: str) -> bytes:
    """Return what a file holds; ``~`` is the home directory.

    Raises:
        ValueError: it cannot be read, and why.
    """
    try:
        return Path(path).expanduser().read_bytes()
    except OSError as error:
        raise ValueError(f"cannot be read: {error.strerror}") from None
    except (RuntimeError, ValueError) as error:  # a user without a home, a NUL
        raise ValueError(f"cannot be read: {error}") from None
