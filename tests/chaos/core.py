"""Core NATS: what was received is never lost between micro-batches, and the log says when nothing was received."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime

from tests.chaos.cluster import CLIENT, OUT, ChaosCluster
from tests.chaos.publisher import CorePublisher, Ledger
from tests.chaos.stage import Kind, Stage
from tests.chaos.verdict import Gap, Verdict, judge_core, read
from tests.nats_py import NatsPy

_MISSED = re.compile(r"messages published from (\S+) to (\S+) were missed")
_SLACK = 2.0
"""Seconds before and after a gap in which messages may be missing too: those that were on their way when the connection
was lost, and those that another server of the cluster was given before it knew of the new subscription."""


def gaps(log: str) -> Iterator[Gap]:
    """The times of which a driver's log says that messages published then were missed."""
    for begin, end in _MISSED.findall(log):
        yield datetime.fromisoformat(begin).timestamp() - _SLACK, datetime.fromisoformat(end).timestamp() + _SLACK


def _options(cluster: ChaosCluster) -> dict[str, str]:
    # The third server is the publisher's, and no fault hits it: what a publisher loses is in no log of ours.
    servers = ",".join(proxy.url for proxy in cluster.proxies[:2])
    return {"servers": servers, "subject": "core.>"}


def _compare(stage: Stage, publisher: Ledger) -> Verdict:
    assert isinstance(publisher, CorePublisher)
    with NatsPy(stage.cluster.urls, **CLIENT) as client:
        copied = read(client, OUT)
    logged = [gap for start in range(stage.driver.starts) for gap in gaps(stage.driver.log(start))]
    return judge_core(publisher.times, copied, logged)


CORE = Kind(_options, lambda cluster, rate: CorePublisher(cluster.urls[2], rate), _compare)
"""Messages of core NATS, of which none may be missing in OUT that was not published in a gap."""
