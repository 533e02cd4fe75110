"""What every kind of run has: a cluster, a query and a place for their logs."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos.application import Settings
from tests.chaos.cluster import CLIENT, DEFAULT_WINDOW, IN, OUT, ChaosCluster
from tests.chaos.driver import Driver
from tests.chaos.publisher import KEYS, Ledger, Publisher
from tests.chaos.verdict import Restored, Verdict, judge, number_of, read
from tests.chaos.watch import Watch
from tests.nats_py import NatsPy

STALL_LIMIT = 180.0
"""Seconds that a query may take to make progress after a fault."""


@dataclass
class Stage:
    """A cluster and a driver which is not started yet, and what streams came back with an older copy."""

    cluster: ChaosCluster
    driver: Driver
    logs: Path
    restored: list[Restored] = field(default_factory=list)


@contextmanager
def stage(
    master: str, options: Callable[[ChaosCluster], dict[str, str]], keep: Path | None, window: float = DEFAULT_WINDOW
) -> Iterator[Stage]:
    """Set everything up, and end it in the end.

    Args:
        master: Spark's.
        options: of the query's source, with the servers.
        keep: where to leave the logs; None: nowhere, see `keep_logs`.
        window: the duplicate window of OUT.
    """
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="spark-nats-chaos-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        logs = (keep or folder / "logs").resolve()
        logs.mkdir(parents=True, exist_ok=True)
        cluster = stack.enter_context(ChaosCluster(folder / "servers", logs, window))
        given = options(cluster)
        settings = Settings(master, given, given["servers"], str(folder / "checkpoint"))
        driver = Driver(settings, folder, logs)
        stack.callback(driver.stop)
        yield Stage(cluster, driver, logs)


def keep_logs(logs: Path) -> Path:
    """Copy logs that would be removed to a place where they stay; which one that is."""
    kept = Path(tempfile.mkdtemp(prefix="spark-nats-chaos-logs-"))
    return Path(shutil.copytree(logs, kept, dirs_exist_ok=True))


def watching(cluster: ChaosCluster, publisher: Ledger) -> Watch:
    """Watch how far the query has come, by the messages of one key."""
    key = KEYS[0]

    def copied() -> int | None:
        last = cluster.last_payload(f"out.{key}")
        return number_of(last) if last else None

    return Watch(lambda: publisher.published[key], copied)


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
    """

    options: Callable[[ChaosCluster], dict[str, str]]
    publisher: Callable[[ChaosCluster, float], Ledger]
    compare: Callable[[Stage, Ledger], Verdict]


def _options(cluster: ChaosCluster) -> dict[str, str]:
    servers = ",".join(proxy.url for proxy in cluster.proxies)
    # One partition a micro-batch, however much waits: between partitions there is no order.
    return {"servers": servers, "stream": IN, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "100000"}


def _compare(stage: Stage, publisher: Ledger) -> Verdict:
    with NatsPy(stage.cluster.urls, **CLIENT) as client:
        return judge(read(client, IN), read(client, OUT), publisher.published, stage.restored)


STREAM = Kind(_options, lambda cluster, rate: Publisher(cluster.urls, rate), _compare)
"""Messages of the stream IN, all of which must stand in OUT."""
