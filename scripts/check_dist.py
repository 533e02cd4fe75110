"""Check what a wheel and a source distribution of this checkout contain: check_dist.py WHEEL SDIST."""

from __future__ import annotations

import sys
import tarfile
import zipfile
from email.parser import BytesParser
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parents[1]
PACKAGES = ("spark_nats", "pyspark_nats")
SOURCES = ("pyproject.toml", "README.md", "CHANGELOG.md", "LICENSE", "PKG-INFO")
IN_WHEEL_ONLY = {"METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE"}


def of_packages() -> set[str]:
    """The files of the packages, as they stand in the checkout."""
    files = (path for package in PACKAGES for path in (ROOT / package).rglob("*") if path.is_file())
    return {path.relative_to(ROOT).as_posix() for path in files if "__pycache__" not in path.parts}


def difference(what: str, found: set[str], expected: set[str]) -> list[str]:
    """What is wrong with a set of names, in words."""
    wrong = [f"{what} lacks {name}" for name in sorted(expected - found)]
    return wrong + [f"{what} has {name}, which does not belong there" for name in sorted(found - expected)]


def check_wheel(path: Path) -> list[str]:
    """What is wrong with a wheel."""
    name, version = path.name.split("-")[:2]
    about = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(path) as wheel:
        contents = {each: wheel.read(each) for each in wheel.namelist() if not each.endswith("/")}
    wrong = difference("the wheel", set(contents), of_packages() | {f"{about}/{each}" for each in IN_WHEEL_ONLY})
    if wrong:
        return wrong
    metadata = BytesParser().parsebytes(contents[f"{about}/METADATA"])
    if f'__version__ = "{version}"\n'.encode() not in contents["spark_nats/version.py"]:
        wrong.append(f"the wheel is named {version}, and spark_nats/version.py says something else")
    if (metadata["Name"], metadata["Version"]) != ("spark-nats", version):
        wrong.append(f"the wheel's metadata is of {metadata['Name']} {metadata['Version']}, and not of {version}")
    if contents[f"{about}/licenses/LICENSE"] != (ROOT / "LICENSE").read_bytes():
        wrong.append("the wheel's licence is another one")
    return wrong


def check_sdist(path: Path) -> list[str]:
    """What is wrong with a source distribution."""
    with tarfile.open(path) as sdist:
        names = {PurePosixPath(member.name) for member in sdist if member.isfile()}
    top = path.name.removesuffix(".tar.gz")
    wrong = [f"the sdist has {name} outside of {top}/" for name in sorted(names) if name.parts[0] != top]
    found = {"/".join(name.parts[1:]) for name in names}
    wrong += [f"the sdist lacks {name}" for name in sorted({*of_packages(), *SOURCES} - found)]
    if not any(name.startswith("tests/") for name in found):
        wrong.append("the sdist lacks the tests")
    caches = [name for name in found if name.endswith(".pyc")]
    return wrong + [f"the sdist has {name}, which nobody wrote" for name in sorted(caches)]


def main() -> int:
    """Check both, and print what is wrong."""
    wheel, sdist = map(Path, sys.argv[1:])
    wrong = check_wheel(wheel) + check_sdist(sdist)
    print(*wrong, sep="\n", end="\n" if wrong else "", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
