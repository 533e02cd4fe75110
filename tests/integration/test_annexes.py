"""What is separate can be taken away: without its files and the lines that register it, the rest works as before."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.nats_py import NatsPy
from tests.pages import ROOT
from tests.servers import Server


class Annex(NamedTuple):
    """Something that can be taken away."""

    paths: tuple[str, ...]  # its files and folders
    # By file, words of the lines that are taken away, and with a comma those of a list; or what becomes of words.
    registration: dict[str, str | dict[str, str]]
    options: dict[str, str]  # some that only it has, and what makes them a query


ANNEXES = {
    "objects": Annex(("kinds/objects",), {"kinds/__init__.py": "OBJECTS"}, {"objectStore": "A"}),
    "tables": Annex(("kinds/tables",), {"kinds/__init__.py": "TABLES"}, {"table": "streams"}),
    "as_of": Annex(
        ("kinds/buckets/as_of.py", "kinds/buckets/as_of_options.py"),
        {
            "kinds/buckets/__init__.py": {
                "buckets.as_of_options import MomentReadOptions": "buckets.options import BucketReadOptions",
                "MomentReadOptions, ": "BucketReadOptions, ",
                "buckets.as_of:reader": "buckets.read:NatsBucketReader",
            }
        },
        {"bucket": "B", "asOf": "latest"},
    ),
    "the progress consumer": Annex(
        ("kinds/streams/progress.py", "jetstream/consuming/progress.py"),
        {
            "kinds/streams/__init__.py": {
                "from spark_nats.kinds.streams.progress import ShownReadOptions\n": "",
                "ShownReadOptions, ": "ReadOptions, ",
                "streams.progress:stream_reader": "streams.read.readers:NatsStreamReader",
            }
        },
        {"stream": "S", "progressConsumer": "P"},
    ),
    "proxies": Annex(
        ("options/proxied.py", "client/proxy.py"),
        {"options/connecting.py": "Proxied, options.proxied Proxied.of"},
        {"stream": "S", "proxy": "http://p"},
    ),
    "WebSocket": Annex(
        ("options/websocket.py", "client/websocket.py", "conditions/websocket.py"),
        {"options/connecting.py": "WebSocket, options.websocket WebSocket.of", "client/servers.py": '"ws":'},
        {"stream": "S", "websocketHeadersSecret": "{}"},
    ),
    "dead letters": Annex(
        ("kinds/streams/dead_letters",),
        {"kinds/streams/options.py": "BadRows, streams.dead_letters"},
        {"stream": "S", "badRows": "drop"},
    ),
    "atomic batches": Annex(
        ("kinds/streams/atomic", "jetstream/publishing/batches.py"),
        {"kinds/streams/options.py": "Atomic, streams.atomic"},
        {"stream": "S", "atomic": "true"},
    ),
    "foreach": Annex(("kinds/foreach.py",), {"__init__.py": "NatsForeachWriter"}, {}),
}

# Imports all that is left, and writes and reads a stream and a bucket with it.
SCRIPT = """
import sys
from importlib import import_module
from pathlib import Path

import pyarrow as pa
from pyspark.sql.types import BinaryType, StringType, StructType

import spark_nats
from spark_nats import NatsDataSource
from spark_nats.errors import OptionError

root, url, name, gone = Path(spark_nats.__file__).parent, *sys.argv[1:3], dict(each.split("=") for each in sys.argv[3:])
assert root.parent == Path.cwd()
for path in sorted(root.rglob("*.py")):
    module = path.relative_to(root.parent).with_suffix("")
    if path.name != "__main__.py":
        import_module(".".join(module.parts).removesuffix(".__init__"))

for options, key, value in (({"stream": name}, "subject", "payload"), ({"bucket": name}, "key", "value")):
    schema = StructType().add(key, StringType()).add(value, BinaryType())
    source = NatsDataSource({"servers": url, **options})
    rows = pa.table({key: [f"{name}.a", f"{name}.b"], value: [b"1", b"2"]})
    source.writer(schema, False).write(iter(rows.to_batches()))
    reader = source.reader(schema)
    found = [row for each in reader.partitions() for batch in reader.read(each) for row in batch.to_pylist()]
    assert found == rows.to_pylist(), found

if gone:
    try:
        NatsDataSource(gone)
    except OptionError as error:
        assert f"unknown option '{list(gone)[-1]}'" in str(error), error
    else:
        raise AssertionError(f"{gone} is known")
"""


@pytest.fixture
def package(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of the package without an annex."""
    annex = ANNEXES[request.param]
    ignore = shutil.ignore_patterns("__pycache__")
    for each in ("spark_nats", "pyspark_nats"):
        shutil.copytree(ROOT / each, tmp_path / each, ignore=ignore)
    root = tmp_path / "spark_nats"
    for path in annex.paths:
        shutil.rmtree(root / path) if (root / path).is_dir() else (root / path).unlink()
    for file, words in annex.registration.items():
        text = (root / file).read_text()
        if isinstance(words, dict):
            for ours, other in words.items():
                assert text.count(ours) == 1, "it is registered in one place"
                text = text.replace(ours, other)
            (root / file).write_text(text)
            continue
        for word in re.findall(r"\S+,", words):
            assert text.count(f"{word} ") == 1, "it is a word of one list"
            text = text.replace(f"{word} ", "")
        lines = text.splitlines(keepends=True)
        left = [line for line in lines if not any(word in line for word in words.split())]
        assert 0 < len(lines) - len(left) <= 3, "it is registered in a line of a list, and imported there"
        (root / file).write_text("".join(left))
    return tmp_path


@pytest.mark.long("spark_nats/*")
@pytest.mark.parametrize(("package", "name"), [(name, name) for name in ANNEXES], indirect=["package"])
def test_without_an_annex_all_else_works(
    package: Path, name: str, nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    nats_py.create_stream(unique)
    nats_py.create_stream(f"KV_{unique}", [f"$KV.{unique}.>"], allow_rollup_hdrs=True, max_msgs_per_subject=1)
    gone = [f"{option}={value}" for option, value in ANNEXES[name].options.items()]
    command = [sys.executable, "-c", SCRIPT, nats_server.url, unique, *gone]
    ran = subprocess.run(command, cwd=package, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.long("spark_nats/*")
@pytest.mark.parametrize("package", ["WebSocket"], indirect=True)
def test_without_the_websocket_its_urls_are_unknown(package: Path) -> None:
    script = "from spark_nats.client import parse_servers; parse_servers('nats://one,ws://two')"
    ran = subprocess.run([sys.executable, "-c", script], cwd=package, capture_output=True, text=True, timeout=60)
    assert ran.stderr.endswith("ValueError: has the unsupported scheme 'ws'; use nats:// or tls://\n")


@pytest.mark.long("spark_nats/*")
@pytest.mark.parametrize("package", ANNEXES, indirect=True)
def test_without_an_annex_the_types_still_fit(package: Path) -> None:
    shutil.copy(ROOT / "pyproject.toml", package)
    command = [sys.executable, "-m", "mypy", "-p", "spark_nats", "-p", "pyspark_nats"]
    ran = subprocess.run(command, cwd=package, capture_output=True, text=True, timeout=280)
    assert ran.returncode == 0, ran.stdout
