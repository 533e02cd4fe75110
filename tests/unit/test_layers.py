"""Imports point down, and what is below source and sink knows no Spark."""

import ast
import re
import subprocess
import sys
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import spark_nats
from spark_nats.conditions import Topic
from spark_nats.kinds.queries import documented_options
from spark_nats.options.hints import HINTS

PACKAGE = Path(spark_nats.__file__).parent
# Each room and what it may import of those before it. A module belongs to the narrowest room that its name begins with;
# outside of a room, its name stands for those within it too.
ROOMS = {
    "conditions": "",
    "clock": "",
    "errors": "conditions",
    "version": "",
    "logs": "conditions clock",
    "sparkapi": "conditions",
    "embedded": "conditions clock errors",
    "protocol": "conditions errors",
    "client": "conditions clock errors version protocol",
    "jetstream": "conditions clock errors protocol client",
    "jetstream.consuming": "conditions clock errors protocol client jetstream",
    "jetstream.reading": "conditions clock errors protocol client jetstream jetstream.consuming",
    "jetstream.publishing": "conditions clock errors protocol client jetstream jetstream.reading",
    "jetstream.__init__": "conditions jetstream jetstream.reading jetstream.publishing",
    "options": "conditions errors protocol client",
    "kinds.kind": "conditions options",
    "kinds.preparing": "errors sparkapi protocol client",
    "kinds.task": "clock sparkapi client jetstream options kinds.preparing",
    "kinds.streams.conditions": "conditions",
    "kinds.streams.atomic.conditions": "conditions",
    "kinds.streams.atomic.options": "errors options kinds.streams.atomic.conditions",
    "kinds.streams.dead_letters.conditions": "conditions",
    "kinds.streams.dead_letters.options": "errors options kinds.streams.dead_letters.conditions",
    "kinds.streams.options": "conditions errors protocol options kinds.streams.conditions kinds.streams.atomic.options "
    "kinds.streams.dead_letters.options",
    "kinds.streams.read": "conditions clock errors logs sparkapi protocol client jetstream options kinds.task "
    "kinds.streams.options",
    "kinds.streams.write": "conditions clock errors logs sparkapi protocol client jetstream options kinds.kind "
    "kinds.preparing kinds.task kinds.streams.options",
    "kinds.streams.atomic": "errors protocol client jetstream kinds.streams.atomic.conditions kinds.streams.write",
    "kinds.streams.dead_letters": "conditions errors protocol client jetstream kinds.streams.dead_letters.conditions "
    "kinds.task kinds.streams.options kinds.streams.write",
    "kinds.streams.progress": "errors jetstream options kinds.streams.conditions kinds.streams.options "
    "kinds.streams.read",
    "kinds.streams": "conditions kinds.kind kinds.streams.conditions kinds.streams.options kinds.streams.read "
    "kinds.streams.progress",
    "kinds.tables": "conditions errors sparkapi protocol client jetstream options kinds.kind kinds.task "
    "kinds.streams.options kinds.streams.read",
    "kinds.core": "conditions clock errors sparkapi protocol client options kinds.kind kinds.task "
    "kinds.streams.options kinds.streams.read kinds.streams",
    "kinds.buckets": "conditions clock errors sparkapi protocol client jetstream options kinds.kind kinds.task "
    "kinds.streams.options kinds.streams.read kinds.streams.write kinds.streams",
    "kinds.objects": "conditions clock errors sparkapi protocol client jetstream options kinds.kind kinds.task "
    "kinds.preparing kinds.streams.options kinds.streams.read kinds.streams.write kinds.streams",
    "kinds.__init__": "",
    "kinds.queries": "conditions errors options kinds.kind kinds.__init__",
    "kinds.foreach": "conditions errors options kinds.streams.options kinds.streams.write kinds.buckets kinds.queries",
    "datasource": "conditions errors sparkapi options kinds.streams.read kinds.queries",
    "lag": "conditions clock errors protocol client jetstream options kinds.streams.read kinds.queries",
    "metrics": "lag",
    "listener": "conditions errors options lag kinds.queries",
    "otel": "conditions clock errors version options kinds.queries kinds.streams.write lag metrics",
    "partitioning": "conditions errors",
    "__init__": "conditions errors version logs kinds.foreach datasource lag listener otel partitioning",
    "commands": "conditions clock errors protocol client jetstream options kinds.streams.options kinds.streams.read "
    "kinds.streams kinds.buckets kinds.queries lag metrics",
    "demo": "conditions clock errors embedded sparkapi protocol client jetstream options kinds.queries lag",
    "cli": "conditions errors version client options kinds.queries commands demo",
}
WITHOUT_SPARK = ("clock", "conditions", "embedded", "errors", "version", "protocol", "client", "jetstream", "options")


@cache
def nodes(path):
    """What a file consists of."""
    return list(ast.walk(ast.parse(path.read_text())))


@cache
def imported(path):
    """The modules that a file imports, also where it does so only when they are needed."""
    found = []
    for node in nodes(path):
        if isinstance(node, ast.ImportFrom):
            found += [with_name(node.module, alias.name) for alias in node.names]
        elif isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
    return found


def with_name(module, name):
    """The module that is meant by `from module import name`."""
    folder = PACKAGE.parent.joinpath(*module.split("."))
    if not folder.is_relative_to(PACKAGE) or not folder.is_dir():
        return module
    is_module = (folder / name).is_dir() or (folder / f"{name}.py").exists()
    return f"{module}.{name}" if is_module else f"{module}.__init__"


def module_of(path):
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts)


def ours(path):
    return {name.removeprefix("spark_nats.") for name in imported(path) if name.startswith("spark_nats.")}


def room_of(module):
    parts = module.split(".")
    return next(room for n in range(len(parts), 0, -1) if (room := ".".join(parts[:n])) in ROOMS)


def may_import(room, other):
    return room == other or any(
        other == each or (other.startswith(f"{each}.") and not room.startswith(f"{each}."))
        for each in ROOMS[room].split()
    )


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=module_of)
def test_imports_point_down(path):
    room = room_of(module_of(path))
    assert not [module for module in ours(path) if not may_import(room, room_of(module))]


def test_no_room_is_below_itself():
    rooms = list(ROOMS)
    for room, below in ROOMS.items():
        assert set(below.split()) <= set(rooms[: rooms.index(room)]), room


def test_no_module_imports_itself_by_way_of_others():
    TopologicalSorter({module_of(path): ours(path) for path in PACKAGE.rglob("*.py")}).prepare()


def test_the_lower_layers_know_no_spark():
    for path in PACKAGE.rglob("*.py"):
        if room_of(module_of(path)).startswith(WITHOUT_SPARK):
            assert not [name for name in imported(path) if name.startswith("pyspark")], path


def files_below_options():
    """The ground floor, and the conditions that it uses."""
    floors = ("errors", "protocol", "client", "jetstream")
    files = [path for path in PACKAGE.rglob("*.py") if room_of(module_of(path)).startswith(floors)]
    texts = {name for path in files for name in ours(path) if name.startswith("conditions.")}
    assert texts == {"conditions.__init__", "conditions.client", "conditions.jetstream", "conditions.websocket"}
    return [*files, *(PACKAGE / f"{name.replace('.', '/')}.py" for name in texts)]


def test_below_the_options_none_is_named():
    """What knows no options cannot tell its user to check one: an error has a topic, and what hands it to Spark knows
    the options."""
    names = {each.option.name for each in documented_options().values() if not each.option.name.islower()}
    named = re.compile(rf"\boptions? '|\b({'|'.join(names)})\b")
    for path in files_below_options():
        assert not named.search(path.read_text()), path
        assert path.name == "errors.py" or "OptionError" not in path.read_text(), path


def test_each_topic_has_options_to_check():
    assert set(HINTS) == set(Topic)
    names = {each.option.name for each in documented_options().values()}
    for hint in HINTS.values():
        options = re.findall(r"'(\w+)'", hint)
        assert options
        assert set(options) <= names


# API subjects and reply subjects, header names, and what begins a line or a header block.
WIRE_TEXT = re.compile(
    r"\$(JS|KV)\b|\bNats-[A-Z]|NATS/1\.0|\b(STREAM|CONSUMER)\.[A-Z]|_INBOX\b|^(H?PUB|H?MSG|SUB|UNSUB) "
)
# Fields of the requests of JetStream's API, and of what they configure; but for words that say something elsewhere too.
WIRE_FIELDS = {
    *("last_by_subj", "next_by_subj", "no_hdr", "subjects_filter", "idle_heartbeat", "reset_seq"),
    *("stream_name", "deliver_policy", "deliver_subject", "opt_start_seq", "filter_subject", "filter_subjects"),
    *("durable_name", "ack_policy", "mem_storage", "headers_only", "inactive_threshold", "consumer_limits"),
}
WIRE_NUMBERS = {400, 404, 408, 409, 412, 423, 429, 503}


def constants(path):
    """The constants of a module that are not docstrings."""
    words = {id(node.value) for node in nodes(path) if isinstance(node, ast.Expr)}
    return [node.value for node in nodes(path) if isinstance(node, ast.Constant) and id(node) not in words]


def test_the_constants_of_the_wire_stand_in_protocol():
    for path in PACKAGE.rglob("*.py"):
        folders = {PACKAGE / "protocol", PACKAGE / "conditions"}
        if folders & set(path.parents) or path.name in ("wire.py", "conditions.py"):
            continue
        for value in constants(path):
            assert not (isinstance(value, str) and (value in WIRE_FIELDS or WIRE_TEXT.search(value))), (path, value)
            assert not (type(value) is int and (value in WIRE_NUMBERS or 10000 <= value < 10400)), (path, value)


def test_only_the_client_encodes_messages():
    for path in PACKAGE.rglob("*.py"):
        if "spark_nats.protocol.encoder" in imported(path):
            assert room_of(module_of(path)) == "client"


def test_only_the_client_opens_sockets():
    for path in PACKAGE.rglob("*.py"):
        if "socket" in imported(path):
            assert path.relative_to(PACKAGE).as_posix() in ("client/transport.py", "embedded.py")


def test_time_and_chance_come_from_one_place():
    """Or a history in a world of our own would not be the same one again."""
    for path in PACKAGE.rglob("*.py"):
        found = {"time", "random", "secrets", "uuid"} & set(imported(path))
        if path.name == "host_cache.py":
            found -= {"secrets"}  # of a key, which is no name
        assert not found or path.name == "clock.py", path


def test_the_client_works_where_pyspark_is_not_installed():
    script = "import sys; sys.modules['pyspark'] = None; import spark_nats, spark_nats.jetstream, spark_nats.embedded"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_the_lag_of_a_checkpoint_is_known_where_pyspark_is_not_installed():
    script = "import sys; sys.modules['pyspark'] = None; from spark_nats.cli import main; main(sys.argv[1:])"
    arguments = ["lag", "--checkpoint", "/nowhere", "--servers", "nats://127.0.0.1:1"]
    ran = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, timeout=60, check=True)
    assert b"'/nowhere' is not a directory, so it is not a checkpoint" in ran.stderr


# Spark starts a Python process for every step of a query, and each pays for whatever is imported.
LOADED = "import sys; from spark_nats import NatsDataSource; {}; print(*sys.modules)"
LOAD = "NatsDataSource({'stream': 'S', 'user': 'u', 'password': 'p', 'startingOffsets': 'earliest'}).schema()"
PLAN = "from pyspark.sql.types import StructType; NatsDataSource({'stream': 'S'}).reader(StructType())"


@cache
def modules_after(script):
    ran = subprocess.run([sys.executable, "-c", LOADED.format(script)], check=True, capture_output=True, timeout=60)
    return set(ran.stdout.decode().split())


def test_a_process_that_only_reads_options_does_without_what_moves_messages():
    heavy = {"pandas", "numpy", "pyarrow", "ssl", "socket", "importlib.metadata", "spark_nats.client.connection"}
    without_us = subprocess.run(
        [sys.executable, "-c", "import sys, pyspark.sql.datasource; print(*sys.modules)"],
        check=True,
        capture_output=True,
        timeout=60,
    )
    assert modules_after(LOAD) & heavy <= set(without_us.stdout.decode().split())
    assert not modules_after(LOAD) & {"pandas", "numpy", "pyarrow", "spark_nats.protocol.decoder"}


def test_a_process_that_plans_does_without_pandas():
    assert "spark_nats.kinds.streams.read.readers" in modules_after(PLAN)
    assert "pandas" not in modules_after(PLAN)


def test_what_is_believed_of_streams_has_one_address():
    """Only views.py asks for a stream's state, but for lists of an account's streams and subjects; and it alone has it
    judged. Others name the request where they say which permissions it takes."""
    asks = re.compile(r"([rR]equest\(|_ask_all_pages\(js, )Api\.STREAM_INFO")
    asking = {module_of(path) for path in PACKAGE.rglob("*.py") if asks.search(path.read_text())}
    assert asking == {"jetstream.views", "jetstream.listing"}
    judging = {module_of(path) for path in PACKAGE.rglob("*.py") if {"judge", "contradiction"} & names_from(path)}
    assert judging == {"jetstream.views"}


def names_from(path, module="spark_nats.jetstream.judgement"):
    """The names that a file imports from a module."""
    found = [node for node in nodes(path) if isinstance(node, ast.ImportFrom) and node.module == module]
    return {alias.name for node in found for alias in node.names}


def test_there_is_one_position():
    named = [
        (module_of(path), node.name)
        for path in PACKAGE.rglob("*.py")
        for node in nodes(path)
        if isinstance(node, ast.ClassDef) and node.name == "Position"
    ]
    assert named == [("jetstream.positions", "Position")]


def test_the_loops_that_outlast_a_connection_are_those_that_the_architecture_names():
    """Whoever counts failures of connections, or exchanges a lost one, has a row in the table."""
    page = (PACKAGE.parent / "docs/architecture.md").read_text()
    table = page.partition("\n## When a connection is lost\n")[2].partition("\n## ")[0]
    named = re.findall(r"^\| `(?:\w+\.)?\w+`, `([\w/]+\.py)` \|", table, re.MULTILINE)
    assert len(named) <= 8
    goes_on = re.compile(r"\.reconnect_or_raise\(|retries\.wait_or_raise\(error\)|def retrying")
    found = {path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py") if goes_on.search(path.read_text())}
    assert found == set(named)
