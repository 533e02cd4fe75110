"""What every kind of run has: a cluster, a query and a place for their logs."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from tests.chaos.application import Settings
from tests.chaos.cluster import CLIENT, COPY, DEFAULT_WINDOW, IN, OUT, ChaosCluster, Target
from tests.chaos.driver import Driver
from tests.chaos.publisher import KEYS, Ledger, Publisher
from tests.chaos.verdict import Restored, Verdict, judge, number_of, read
from tests.chaos.watch import Watch
from tests.nats_py import NatsPy

STALL_LIMIT = 180.0
"""Seconds that a query may take to make progress after a fault."""


class Beside(Protocol):
    """What looks at the target while the query writes into it."""

    def copied(self) -> int | None:
        """The number of the last message of the first key that has come there, None when that cannot be known now."""
        ...

    def close(self) -> None: ...


@dataclass
class Stage:
    """A cluster and a driver which is not started yet, and what streams came back with an older copy.

    Attributes:
        beside: what looks at the target, once it does.
    """

    cluster: ChaosCluster
    driver: Driver
    logs: Path
    restored: list[Restored] = field(default_factory=list)
    beside: Beside | None = None


@contextmanager
def stage(
    master: str,
    options: Callable[[ChaosCluster], dict[str, str]],
    keep: Path | None,
    window: float = DEFAULT_WINDOW,
    target: Target = COPY,
) -> Iterator[Stage]:
    """Set everything up, and end it in the end.

    Args:
        master: Spark's.
        options: of the query's source, with the servers.
        keep: where to leave the logs; None: nowhere, see `keep_logs`.
        window: the duplicate window of the target.
        target: what the query writes into.
    """
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="spark-nats-chaos-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        logs = (keep or folder / "logs").resolve()
        logs.mkdir(parents=True, exist_ok=True)
        cluster = stack.enter_context(ChaosCluster(folder / "servers", logs, window, target))
        given = options(cluster)
        sink = {"servers": given["servers"], **target.options}
        settings = Settings(master, given, sink, list(target.columns), str(folder / "checkpoint"))
        driver = Driver(settings, folder, logs)
        stack.callback(driver.stop)
        yield Stage(cluster, driver, logs)


def keep_logs(logs: Path) -> Path:
    """Copy logs that would be removed to a place where they stay; which one that is."""
    kept = Path(tempfile.mkdtemp(prefix="spark-nats-chaos-logs-"))
    return Path(shutil.copytree(logs, kept, dirs_exist_ok=True))


def number_in(cluster: ChaosCluster, key: str) -> int | None:
    """The number of the last message of a key in the target, None when there is none or nobody says."""
    last = cluster.last_payload(f"{cluster.target.prefix}{key}")
    return number_of(last) if last else None


class _Last:
    """Looks at the last message of the first key."""

    def __init__(self, stage: Stage) -> None:
        self._cluster = stage.cluster

    def copied(self) -> int | None:
        return number_in(self._cluster, KEYS[0])

    def close(self) -> None:
        """There is nothing to end."""


def watching(stage: Stage, publisher: Ledger, beside: Callable[[Stage], Beside] = _Last) -> Watch:
    """Watch how far the query has come, by the messages of one key."""
    stage.beside = beside(stage)
    return Watch(lambda: publisher.published[KEYS[0]], stage.beside.copied)


def conclude(stage: Stage, publisher: Ledger, watch: Watch) -> list[str]:
    """Stop publishing, and end the query when it has processed the rest; what went wrong in that."""
    publisher.stop()
    watch.doing = "end"
    problems = []
    try:
        watch.wait_until_copied(STALL_LIMIT)
    except TimeoutError:
        problems.append(f"OUT had not everything {STALL_LIMIT:g} s after the last message was published")
    else:
        if not stage.driver.finish(STALL_LIMIT):
            problems.append(f"the query did not come to its end within {STALL_LIMIT:g} s")
    stage.driver.stop()
    stage.cluster.wait_until_whole()
    return problems


@dataclass(frozen=True)
class Kind:
    """What kind of messages a run is about.

    Attributes:
        options: of the query's source.
        publisher: starts what publishes, at a rate.
        compare: judges what has become of the messages.
        target: what the query writes into.
        beside: begins to look at the target.
        named: pattern of what the query may end with at any time, and is started again after; empty for nothing.
    """

    options: Callable[[ChaosCluster], dict[str, str]]
    publisher: Callable[[ChaosCluster, float], Ledger]
    compare: Callable[[Stage, Ledger], Verdict]
    target: Target = COPY
    beside: Callable[[Stage], Beside] = _Last
    named: str = ""


def copy_options(cluster: ChaosCluster) -> dict[str, str]:
    """Options of a query that reads all of IN."""
    servers = ",".join(proxy.url for proxy in cluster.proxies)
    # One partition a micro-batch, however much waits: between partitions there is no order.
    return {"servers": servers, "stream": IN, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "100000"}


def _compare(stage: Stage, publisher: Ledger) -> Verdict:
    with NatsPy(stage.cluster.urls, **CLIENT) as client:
        return judge(read(client, IN), read(client, OUT), publisher.published, stage.restored)


STREAM = Kind(copy_options, lambda cluster, rate: Publisher(cluster.urls, rate), _compare)
"""Messages of the stream IN, all of which must stand in OUT."""
