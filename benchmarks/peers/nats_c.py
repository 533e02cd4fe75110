"""nats.c, the official client for C, in a small program that is compiled on the spot."""

from __future__ import annotations

import re
from pathlib import Path

_INCLUDE = (Path("/usr/include/nats"), Path("/usr/local/include/nats"))


def version() -> str | None:
    """Return the version of the installed headers, None where there are none."""
    for directory in _INCLUDE:
        header = directory / "version.h"
        if header.exists():
            found = re.search(r'NATS_VERSION_STRING\s+"([^"]+)"', header.read_text(encoding="utf-8"))
            return found[1] if found else "unknown"
    return None
