"""Which server has what first: the table behind `@pytest.mark.needs("counters")`, and the server of this run.

A test that needs what an older server does not have is marked with it, and skipped there with the name of what is
missing. `needs("interest streams", only="interest")` holds for parameters whose id has that word. `make matrix` plays
the tests on each server, and docs/what-works-where.md is written of what it sees.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from spark_nats.embedded import EmbeddedServerError, find_binary
from tests.servers import IMAGE, IN_DOCKER

Version = tuple[int, ...]


@dataclass(frozen=True)
class Feature:
    """What servers have since a version.

    Attributes:
        since: the first version.
        what: what a user has of it.
        before: what an older server leads to.
        source: where their developers say so.
    """

    since: Version
    what: str
    before: str
    source: str


NOTES = "https://docs.nats.io/release-notes/whats_new/whats_new_"

FEATURES: dict[str, Feature] = {
    "work queues": Feature(
        (2, 11),
        "[`consume` and `peek`](queues.md) on a work queue",
        "refused (`NATS_SERVER_TOO_OLD`)",
        "ADR-31",
    ),
    "direct batches": Feature(
        (2, 11),
        "small ranges and buckets are read by direct gets, without a consumer",
        "they are read through consumers; `asOf=latest` fails while the bucket is written to without a pause",
        "ADR-31",
    ),
    "ttl": Feature(
        (2, 11),
        "[`ttl`](writing.md) of a row, and markers of what has expired",
        "refused (`NATS_SERVER_TOO_OLD`), or `that old does not act` on the header",
        "ADR-43",
    ),
    "repeated conditions": Feature(
        (2, 11),
        "in a cluster, a row with a condition that a replay sends again is known by its id",
        "the replay ends with a conflict of the row with itself (400, 10071)",
        "seen",
    ),
    "paused consumers": Feature(
        (2, 11), "paused consumers, in the [table of consumers](tables.md)", "consumers cannot be paused", NOTES + "211"
    ),
    "named streams": Feature(
        (2, 11, 5),
        "rows name their stream, so that [no other one stores them](writing.md#server-headers)",
        "a row whose subject belongs to another stream may be stored there before the task fails",
        "the release notes of servers, and what was seen",
    ),
    "traces": Feature(
        (2, 12),
        "a row with `Nats-Trace-Dest` is traced if the user may publish there, and else refused",
        "2.11 traces it all the same; 2.10 traces nothing",
        "ADR-41",
    ),
    "counters": Feature(
        (2, 12),
        "[`increment`](writing.md#counters-schedules-rollups), on streams of counters",
        "refused (`NATS_SERVER_TOO_OLD`)",
        "ADR-49",
    ),
    "atomic": Feature((2, 12), "[`atomic`](writing.md)", "refused (`NATS_SERVER_STORES_SINGLY`)", "ADR-50"),
    "promotion": Feature(
        (2, 12),
        "a [mirror is promoted](failover.md), and read on",
        "servers refuse to promote it",
        NOTES + "212",
    ),
    "async": Feature(
        (2, 12),
        "`persist_mode: async`, of which [`check`](command-line.md) warns",
        "servers leave it out",
        NOTES + "212",
    ),
    "strict": Feature(
        (2, 12),
        "fields of `createStream` that the server does not know are refused by name",
        "they are left out, and the log says which (`NATS_STREAM_MADE_OTHERWISE`)",
        NOTES + "212",
    ),
    "several held subjects": Feature(
        (2, 14, 7),
        "[`consume`](queues.md) of several subjects of a stream with interest",
        "refused (`NATS_SEVERAL_SUBJECTS_NOT_HELD`): a purge of one of them lets others remove the rest unread",
        "seen",
    ),
    "interest streams": Feature(
        (2, 14),
        "[`consume`](queues.md) on streams with interest or limits",
        "refused (`NATS_SERVER_TOO_OLD`)",
        "ADR-60",
    ),
    "progress": Feature(
        (2, 14), "[`progressConsumer`](options.md#progressConsumer)", "refused (`NATS_SERVER_TOO_OLD`)", "ADR-60"
    ),
    "kept consumers": Feature(
        (2, 14),
        "[consumers are kept](sizing.md#connections-and-consumers) for the next range",
        "each range creates and deletes one",
        "ADR-60",
    ),
    "copied queues": Feature(
        (2, 14),
        "streams that [copy a work queue](queues.md#streams-that-copy-a-queue) are waited for",
        "the server does not say what such a stream has still to copy: what a query releases may be missing there",
        NOTES + "214",
    ),
    "repeating schedules": Feature(
        (2, 14),
        "schedules that repeat (`@every 1h`), and headers that end them",
        "2.12 takes schedules that fire once; before that they are refused",
        "ADR-51",
    ),
    "fast batches": Feature(
        (2, 14), "streams with `allow_batched` are written and read", "servers refuse or leave out the field", "ADR-50"
    ),
    "ends of batches": Feature(
        (2, 14),
        "a message ends an atomic batch and is none of it (`Nats-Batch-Commit: eob`): other programs' batches are read",
        "servers refuse it",
        "ADR-50",
    ),
    "no window": Feature(
        (2, 14),
        "a stream with `sources` has [no window](exactly-once.md#no-window) unless it is given one",
        "it has one of two minutes, so `deduplicate=window` works",
        NOTES + "214",
    ),
    "percent signs": Feature(
        (2, 14, 6),
        "a stream whose name has a `%`, as in `A%s`, is read",
        "servers deliver nothing of it (`NATS_STOPPED_DELIVERING`); direct gets work",
        "seen",
    ),
    "large refusals": Feature(
        (2, 14, 4),
        "behind a row of more than 32 MiB, which is refused, rows are stored",
        "2.14.0 to 2.14.3 refuse them too, as too large, until they restart: the task fails and says so; older servers "
        "store them",
        "seen",
    ),
    "filtered copies": Feature(
        (2, 14, 6),
        "a stream that mirrors [some subjects of a work queue](queues.md#streams-that-copy-a-queue) leaves the others",
        "2.14.0 to 2.14.5 remove the others too, unless a worker has claimed them; older servers leave them",
        "seen",
    ),
    "counters together": Feature(
        (2, 14, 3),
        "`increment` with `atomic`",
        "refused (`NATS_INCREMENTS_LOST_TOGETHER`)",
        "the release notes of servers, and what was seen",
    ),
    "restored anew": Feature(
        (2, 15),
        "a restored stream says that it was created then (`NATS_CREATED_OTHERWISE`)",
        "it says when its origin was created",
        "the release notes of servers, and what was seen",
    ),
    "consumer limit": Feature(
        (2, 15),
        "a server's own limit of consumers (`default_max_consumers`) is named",
        "there is none",
        "the release notes of servers, and what was seen",
    ),
    "refused copies": Feature(
        (2, 15),
        "a stream refuses [copies that come republished](writing.md#republished-copies)",
        "it stores them a second time",
        "the release notes of servers, and what was seen",
    ),
}


@cache
def server_version(binary: Path | None = None) -> Version:
    """The version of a server, or of the one that tests share; newer than any where there is none."""
    try:
        shared = binary is None and IN_DOCKER
        command = ["docker", "run", "--rm", IMAGE] if shared else [str(binary or find_binary())]
        said = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True).stdout
    except EmbeddedServerError:
        return (999,)
    found = re.search(r"v(\d+)\.(\d+)\.(\d+)", said)
    assert found, said
    return tuple(map(int, found.groups()))


def named(version: Version) -> str:
    """A version as its developers write it."""
    return ".".join(map(str, version))


def since(*version: int) -> pytest.MarkDecorator:
    """Skip a test on older servers, which lack what it needs of them, and which is no feature of ours."""
    return pytest.mark.skipif(server_version() < version, reason=f"needs nats-server {named(version)}")


def skip_on(binary: Path | None, *features: str) -> None:
    """Skip the test that runs on a server of its own, such as `BINARY_2_10`, if that lacks a feature."""
    missing = _missing(features, server_version(binary))
    if missing:
        pytest.skip(missing)


def _missing(features: Iterable[str], server: Version) -> str:
    """Say which of these features a version lacks; empty where it has them all."""
    names = [name for name in sorted(features) if server < FEATURES[name].since]
    why = ", ".join(f"{name} (nats-server {named(FEATURES[name].since)})" for name in names)
    return f"needs {why}, and this is {named(server)}" if why else ""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        words = getattr(item, "callspec", None) and item.callspec.id.partition("@")[0].split("-")
        needed = {
            name
            for mark in item.iter_markers("needs")
            for name in mark.args
            if "only" not in mark.kwargs or mark.kwargs["only"] in (words or ())
        }
        item.user_properties += [("needs", name) for name in sorted(needed)]
        if needed and (missing := _missing(needed, server_version())):
            item.add_marker(pytest.mark.skip(reason=missing))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--results", metavar="FILE", type=Path, help="write a line of JSON there for each test that ends")


class Results:
    """Writes what became of each test as soon as it has ended: a run that is ended early has told all the same."""

    def __init__(self, file: Path) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("")
        self._file = file
        self._bad: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = report.nodeid.partition("@")[0]
        if report.failed:
            self._bad[name] = str(getattr(report.longrepr, "reprcrash", report.longrepr)).strip()[-300:]
        if report.when != "teardown":
            if report.skipped:
                why = report.longrepr[2] if isinstance(report.longrepr, tuple) else ""
                self._write(report, name, "skipped", why.removeprefix("Skipped: "))
            elif report.when == "call" and report.passed:
                self._write(report, name, "passed", "")
        elif name in self._bad:
            self._write(report, name, "failed", self._bad.pop(name))

    def _write(self, report: pytest.TestReport, name: str, outcome: str, why: str) -> None:
        needs = [value for key, value in report.user_properties if key == "needs"]
        with self._file.open("a") as file:
            file.write(json.dumps({"test": name, "outcome": outcome, "why": why, "needs": needs}) + "\n")


def pytest_configure(config: pytest.Config) -> None:
    file = config.getoption("results")
    if file and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Results(file), "results")
