"""Runs the scripts of this folder, each against a server of its own, and compares what they print with `seen/`."""

from __future__ import annotations

import argparse
import difflib
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from spark_nats.embedded import NatsServer
from tests.servers import free_ports

HERE = Path(__file__).parent
SCRIPTS = {path.stem: path for path in sorted(HERE.glob("*.sh")) if path.stem != "with"}
_VARIES = [
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:?\d\d| \+0000 UTC)?"), "<time>"),
    (re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"), "<uuid>"),
    (re.compile(r"\b[0-9a-f]{32}-[0-9a-f]{16}\b"), "<trace>"),
    (re.compile(r"\b(?=\w*\d)(?=\w*[A-Z])[0-9A-Za-z]{20,22}\b"), "<id>"),
    (re.compile(r"\b\d{13,}\b"), "<number>"),
    (re.compile(r'(?<="Nats-Msg-Id": ")[\w-]{31}(?=")'), "<id>"),
    (re.compile(r"\b[0-9a-f]{20,21}\b"), "<id>"),
    (re.compile(r"(?<= orders\.a )\w{8}\b"), "<id>"),
    (re.compile(r"\(\d+\.\d+m?s\)"), "(<time>)"),
    (re.compile(r"127\.0\.0\.1:\d+"), "<server>"),
]


def run(name: str, timeout: int) -> str:
    """What a script prints, without what differs from run to run. Raises what it exits with."""
    with tempfile.TemporaryDirectory() as folder:
        (mqtt,) = free_ports(1)
        config = f'server_name: neighbours\nmqtt {{ listen: "127.0.0.1:{mqtt}" }}'
        with NatsServer(config, store_dir=Path(folder) / "store", ready_timeout=60) as server:
            environment = {
                **os.environ,
                "NATS_URL": server.url,
                "MQTT_PORT": str(mqtt),
                "PYTHON": sys.executable,
                "CACHE": os.environ.get("NEIGHBOURS_CACHE", str(HERE.parents[1] / ".tools" / "neighbours")),
                "WORK": folder,
                "ROOT": str(HERE.parents[1]),
            }
            # In a group of its own, so that what it leaves behind can be ended.
            script = subprocess.Popen(
                ["bash", str(SCRIPTS[name])],
                cwd=HERE.parents[1],
                env=environment,
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
            try:
                text, _ = script.communicate(timeout=timeout)
            except subprocess.TimeoutExpired:
                os.killpg(script.pid, 9)
                raise
            if script.returncode:
                print(text)
                raise subprocess.CalledProcessError(script.returncode, name)
    for pattern, stands in _VARIES:
        text = pattern.sub(stands, text)
    return text


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.neighbours", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(SCRIPTS)}")
    parser.add_argument("--accept", action="store_true", help="keep what the scripts print")
    parser.add_argument("--timeout", type=int, default=900, help="seconds for each script")
    arguments = parser.parse_args()
    differ = []
    for name in arguments.names or SCRIPTS:
        text = run(name, arguments.timeout)
        seen = HERE / "seen" / f"{name}.txt"
        if arguments.accept:
            seen.write_text(text)
            print(text)
            continue
        before = seen.read_text() if seen.exists() else ""
        difference = list(difflib.unified_diff(before.splitlines(), text.splitlines(), "seen", "now", lineterm=""))
        print(f"{name}: {'as seen' if not difference else 'differs'}", *difference, sep="\n")
        if difference:
            differ.append(name)
    sys.exit(f"differ: {', '.join(differ)}" if differ else 0)


if __name__ == "__main__":
    main()
