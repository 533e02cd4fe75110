"""The inputs that the fuzzer begins with, and those it once found, hold."""

from pathlib import Path

import pytest

from tests.fuzz.targets import TARGETS, inputs


@pytest.mark.parametrize(
    ("name", "path"), [pytest.param(name, path, id=f"{name}-{path.name}") for name in TARGETS for path in inputs(name)]
)
def test_what_a_server_sent_or_might_send_is_read_or_refused(name: str, path: Path) -> None:
    TARGETS[name](path.read_bytes())
