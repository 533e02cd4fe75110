"""`make dist` builds what can be published, and refuses what cannot."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from spark_nats.version import __version__
from tests.integration.jobs import ROOT, run, uv

ABOUT = f"spark_nats-{__version__}.dist-info"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A wheel and a source distribution."""
    directory = tmp_path_factory.mktemp("dist")
    run(uv(), "build", "--out-dir", directory, ROOT)
    (wheel,), (sdist,) = directory.glob("*.whl"), directory.glob("*.tar.gz")
    return wheel, sdist


def check(wheel: Path, sdist: Path) -> list[str]:
    """What is found wrong with them."""
    command = [sys.executable, ROOT / "scripts" / "check_dist.py", wheel, sdist]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == (1 if done.stderr else 0), done.stderr
    return done.stderr.splitlines()


def changed(wheel: Path, to: Path, name: str, text: str | None) -> Path:
    """A copy of a wheel where a file has another text, or is missing."""
    copy = to / wheel.name
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(copy, "w") as new:
        for each in old.namelist():
            if each != name:
                new.writestr(each, old.read(each))
        if text is not None:
            new.writestr(name, text)
    return copy


@pytest.mark.long("pyproject.toml", "scripts/dist")
def test_what_is_built_is_in_order(built: tuple[Path, Path]):
    assert check(*built) == []


@pytest.mark.long("scripts/dist")
@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("tests/test_x.py", "", "the wheel has tests/test_x.py, which does not belong there"),
        (
            "spark_nats/__pycache__/x.pyc",
            "",
            "the wheel has spark_nats/__pycache__/x.pyc, which does not belong there",
        ),
        ("spark_nats/py.typed", None, "the wheel lacks spark_nats/py.typed"),
        ("pyspark_nats/__init__.py", None, "the wheel lacks pyspark_nats/__init__.py"),
        (f"{ABOUT}/licenses/LICENSE", None, f"the wheel lacks {ABOUT}/licenses/LICENSE"),
        (f"{ABOUT}/licenses/LICENSE", "MIT", "the wheel's licence is another one"),
        (
            "spark_nats/version.py",
            '__version__ = "9.9"\n',
            f"the wheel is named {__version__}, and spark_nats/version.py says something else",
        ),
        (
            f"{ABOUT}/METADATA",
            "Name: spark-nats\nVersion: 9.9\n\n",
            f"the wheel's metadata is of spark-nats 9.9, and not of {__version__}",
        ),
    ],
)
def test_a_wheel_with_something_wrong_is_refused(
    built: tuple[Path, Path], tmp_path: Path, name: str, text: str | None, complaint: str
):
    wheel, sdist = built
    assert check(changed(wheel, tmp_path, name, text), sdist) == [complaint]


@pytest.mark.long("scripts/dist")
def test_a_source_distribution_with_something_wrong_is_refused(built: tuple[Path, Path], tmp_path: Path):
    wheel, sdist = built
    top = f"spark_nats-{__version__}"
    copy = tmp_path / sdist.name
    cache = tmp_path / "x.pyc"
    cache.touch()
    with tarfile.open(sdist) as old, tarfile.open(copy, "w:gz") as new:
        for member in old:
            if member.name != f"{top}/LICENSE":
                new.addfile(member, old.extractfile(member))
        new.add(cache, f"{top}/tests/__pycache__/x.pyc")
        new.add(cache, "x.pyc")
    assert check(wheel, copy) == [
        f"the sdist has x.pyc outside of {top}/",
        "the sdist lacks LICENSE",
        "the sdist has tests/__pycache__/x.pyc, which nobody wrote",
    ]
