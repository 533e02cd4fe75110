"""The channel on which a commit passes the counts of its tasks to the program that started the query.

Spark starts a process for each commit, and passes nothing on from it, neither to the query's progress nor to a
listener. So the commit writes a few bytes to the directory of :mod:`spark_nats.client.host_cache`, under the id of the
query's run, and the program reads them there. The commit does so only while a process of the machine has subscribed.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from pyspark.sql.datasource import WriterCommitMessage

from spark_nats.client import host_cache
from spark_nats.kinds.streams.write.tasks import Counts, Written, sum_counts


def note_counts_wanted(run: str) -> None:
    """Keep the counts of a run from now on, for :data:`~.host_cache.FACT_TTL` seconds unless called again."""
    host_cache.note_fact(host_cache.counts_wanted_fact(run))


def clear_counts_wanted(run: str) -> None:
    """Stop keeping the counts of a run."""
    host_cache.forget_fact(host_cache.counts_wanted_fact(run))


def push_counts_if_wanted(messages: Sequence[WriterCommitMessage | None]) -> None:
    """Publish the sum of what tasks have done, from their commit messages, if a process has subscribed to their run."""
    for run in {message.run for message in messages if isinstance(message, Written) and message.run}:
        if host_cache.seconds_since(host_cache.counts_wanted_fact(run)) < host_cache.FACT_TTL:
            host_cache.push_text(host_cache.counts_topic(run), json.dumps(asdict(sum_counts(messages))))


def take_and_sum_counts(run: str) -> Counts:
    """Return the sum of the counts of a run that were published and not collected yet."""
    return sum((Counts(**json.loads(told)) for told in host_cache.pop_all(host_cache.counts_topic(run))), Counts())
