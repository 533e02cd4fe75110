"""What the sink has counted, told to the program that has started a query.

Spark starts a process of its own for each commit, and hands on nothing of what it knows: neither to the query's
progress nor to a listener. So the commit leaves a few bytes in the directory of :mod:`spark_nats.client.memory`, under
the id of the query's run, where the program finds them. It does so only while a process of the machine listens.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from pyspark.sql.datasource import WriterCommitMessage

from spark_nats.client import memory
from spark_nats.kinds.streams.write.tasks import Counts, Written, total


def listen(run: str) -> None:
    """Have the counts of a run kept from now on, for :data:`~spark_nats.client.memory.KEPT` unless called again."""
    memory.remember(memory.counts_wanted(run))


def ignore(run: str) -> None:
    """End that."""
    memory.forget(memory.counts_wanted(run))


def tell(messages: Sequence[WriterCommitMessage | None]) -> None:
    """Tell what tasks have done, of which these are the messages."""
    for run in {message.run for message in messages if isinstance(message, Written) and message.run}:
        if memory.age(memory.counts_wanted(run)) < memory.KEPT:
            memory.tell(memory.counts(run), json.dumps(asdict(total(messages))))


def heard(run: str) -> Counts:
    """Return what was told of a run and was not returned before."""
    return sum((Counts(**json.loads(told)) for told in memory.heard(memory.counts(run))), Counts())
