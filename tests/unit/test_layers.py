"""Imports point down, and what is below source and sink knows no Spark."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import spark_nats

PACKAGE = Path(spark_nats.__file__).parent
# Each layer and what it may import of the others.
LAYERS = {
    "protocol": {"errors"},
    "client": {"errors", "protocol"},
    "jetstream": {"errors", "protocol", "client"},
    "source": {"errors", "protocol", "client", "jetstream", "options"},
    "sink": {"errors", "protocol", "client", "jetstream", "options"},
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


def test_only_the_client_opens_sockets():
    for path in PACKAGE.rglob("*.py"):
        if "socket" in imported(path):
            assert path.relative_to(PACKAGE).as_posix() in ("client/transport.py", "embedded.py")


def test_the_client_works_where_pyspark_is_not_installed():
    script = "import sys; sys.modules['pyspark'] = None; import spark_nats, spark_nats.jetstream, spark_nats.embedded"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_a_process_that_only_plans_does_without_pandas():
    """Spark starts a Python process for every load(), save() and commit, which pays for whatever is imported."""
    script = "import sys; from spark_nats import NatsDataSource; NatsDataSource({'stream': 'S'}); "
    script += "sys.exit('pandas' in sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
