"""Imports point down, and what is below source and sink knows no Spark."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import spark_nats
from spark_nats.options import OPTIONS

PACKAGE = Path(spark_nats.__file__).parent
# Each layer and what it may import of the others.
LAYERS = {
    "protocol": {"errors"},
    "client": {"errors", "protocol", "version"},
    "jetstream": {"errors", "protocol", "client"},
    "options": {"errors", "protocol", "client"},
    "source": {"errors", "protocol", "client", "jetstream", "options", "sparkapi"},
    "sink": {"errors", "protocol", "client", "jetstream", "options", "sparkapi"},
}


def imported(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            yield node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


@pytest.mark.parametrize("layer", LAYERS)
def test_imports_point_down(layer):
    for path in (PACKAGE / layer).glob("*.py"):
        layers = {name.split(".")[1] for name in imported(path) if name.startswith("spark_nats.")}
        assert layers - {layer} <= LAYERS[layer], path


@pytest.mark.parametrize("layer", ["protocol", "client", "jetstream"])
def test_the_lower_layers_know_no_spark(layer):
    for path in (PACKAGE / layer).glob("*.py"):
        assert not [name for name in imported(path) if name.startswith("pyspark")], path


def files_below_options():
    layers = [PACKAGE / layer for layer in ("protocol", "client", "jetstream")]
    return [PACKAGE / "errors.py", *(path for layer in layers for path in layer.glob("*.py"))]


def test_below_the_options_none_is_named():
    """What knows no options cannot tell its user to check one: that is said where Spark calls us."""
    names = [option.name for option in OPTIONS if option.name != option.name.lower()]
    named = re.compile(rf"\boptions? '|OptionError|\b({'|'.join(names)})\b")
    for path in files_below_options():
        if path.name != "errors.py":
            assert not named.search(path.read_text()), path


# API subjects and reply subjects, header names, and what begins a line or a header block.
WIRE_TEXT = re.compile(
    r"\$(JS|KV)\b|\bNats-[A-Z]|NATS/1\.0|\b(STREAM|CONSUMER)\.[A-Z]|_INBOX\b|^(H?PUB|H?MSG|SUB|UNSUB) "
)
WIRE_NUMBERS = {400, 404, 408, 409, 412, 423, 429, 503}


def constants(path):
    """The constants of a module that are not docstrings."""
    tree = ast.parse(path.read_text())
    words = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    return [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in words]


def test_the_constants_of_the_wire_stand_in_protocol():
    for path in PACKAGE.rglob("*.py"):
        if PACKAGE / "protocol" in path.parents:
            continue
        for value in constants(path):
            assert not (isinstance(value, str) and WIRE_TEXT.search(value)), (path, value)
            assert not (type(value) is int and (value in WIRE_NUMBERS or 10000 <= value < 10400)), (path, value)


def test_only_the_client_encodes_messages():
    for path in PACKAGE.rglob("*.py"):
        if "spark_nats.protocol.encoder" in imported(path):
            assert path.parent == PACKAGE / "client"


def test_only_the_client_opens_sockets():
    for path in PACKAGE.rglob("*.py"):
        if "socket" in imported(path):
            assert path.relative_to(PACKAGE).as_posix() in ("client/transport.py", "embedded.py")


def test_the_client_works_where_pyspark_is_not_installed():
    script = "import sys; sys.modules['pyspark'] = None; import spark_nats, spark_nats.jetstream, spark_nats.embedded"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


# Spark starts a Python process for every step of a query, and each pays for whatever is imported.
LOADED = "import sys; from spark_nats import NatsDataSource; {}; print(*sys.modules)"
LOAD = "NatsDataSource({'stream': 'S', 'user': 'u', 'password': 'p', 'startingOffsets': 'earliest'}).schema()"
PLAN = "from pyspark.sql.types import StructType; NatsDataSource({'stream': 'S'}).reader(StructType())"


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
    assert "spark_nats.source.stream.readers" in modules_after(PLAN)
    assert "pandas" not in modules_after(PLAN)
