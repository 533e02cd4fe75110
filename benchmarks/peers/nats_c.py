"""nats.c, the official client for C: a small program, compiled on the spot."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

_SOURCE = Path(__file__).with_name("bench.c")
_HEADERS = (Path("/usr/include/nats"), Path("/usr/local/include/nats"))
_SECONDS = 300


def version() -> str | None:
    """Return the version of the installed headers, None where there are none."""
    for directory in _HEADERS:
        header = directory / "version.h"
        if header.exists():
            found = re.search(r'NATS_VERSION_STRING\s+"([^"]+)"', header.read_text(encoding="utf-8"))
            return found[1] if found else "unknown"
    return None


class NatsC:
    """The compiled program.

    Attributes:
        missing: why it cannot be run; empty when it can.
    """

    def __init__(self) -> None:
        self.missing = ""
        self._directory = tempfile.TemporaryDirectory(prefix="spark-nats-bench-")
        self._program = Path(self._directory.name, "bench")
        compiler = shutil.which("cc")
        if version() is None:
            self.missing = "nats.c is left out: there is no nats/nats.h (Debian: apt-get install libnats-dev)"
        elif compiler is None:
            self.missing = "nats.c is left out: there is no C compiler cc"
        else:
            command = [compiler, "-O2", "-o", str(self._program), str(_SOURCE), "-lnats"]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                self.missing = f"nats.c is left out: it does not compile: {done.stderr.strip()[-300:]}"

    def run(self, mode: str, *arguments: object) -> tuple[int, float]:
        """Run one path and return its messages and its seconds, without the program's start and its connecting."""
        command = [str(self._program), mode, *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
        if done.returncode:
            raise RuntimeError(f"nats.c, {mode}: status {done.returncode}: {done.stderr.strip()[-500:]}")
        result = json.loads(done.stdout)
        return result["messages"], result["seconds"]
