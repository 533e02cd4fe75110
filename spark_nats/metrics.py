"""The metrics of a query, with their names in OpenTelemetry and in Prometheus.

:class:`Measure` has the name in OpenTelemetry. :meth:`Measure.prometheus_name` converts it as an OpenTelemetry
collector or an exporter for Prometheus does, so that one dashboard shows both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from spark_nats.lag import StreamLag


class Measure(NamedTuple):
    """A metric.

    Attributes:
        name: the name, with dots between its parts and without the unit.
        unit: the unit in OpenTelemetry's notation: ``s``, ``By``, or in braces what is counted; empty without a unit.
        meaning: a sentence that describes the metric.
    """

    name: str
    unit: str
    meaning: str

    @property
    def prometheus_name(self) -> str:
        """The name in Prometheus, with the unit if it is seconds or bytes; exporters add ``_total`` to counters."""
        unit = {"s": "_seconds", "By": "_bytes"}.get(self.unit, "")
        return self.name.replace(".", "_") + unit


QUERY, SOURCE, STREAM, CONDITION = "query", "source", "stream", "condition"
"""Labels, or attributes: the query's name or id, the index of a source among the query's sources, a stream's name, and
the code of the error that has ended a query: ours, such as ``NATS_ROW_REFUSED``, Spark's, or ``unknown``."""


def labels_of(query: str, lag: StreamLag) -> dict[str, str]:
    """Return the labels of the metrics of a stream."""
    return {QUERY: query, SOURCE: str(lag.source), STREAM: lag.stream}


BEHIND = Measure("spark_nats.lag.messages", "{message}", "Messages of the stream that the query has still to read.")
NEXT = Measure("spark_nats.lag.next_sequence", "{sequence}", "The next sequence of the stream that the query reads.")
END = Measure("spark_nats.lag.end_sequence", "{sequence}", "The sequence after the stream's last message.")
OLDEST = Measure(
    "spark_nats.lag.oldest_message.timestamp",
    "s",
    "When the oldest message that waits was stored, in seconds since 1970; absent when none is known to wait.",
)
CATCH_UP = Measure(
    "spark_nats.lag.catch_up",
    "s",
    "Seconds until the query has caught up if nothing changes; absent when it does not, or that is not known.",
)
MAX_AGE = Measure(
    "spark_nats.lag.max_age", "s", "Seconds for which the stream keeps messages; absent when it has no such limit."
)
BLOCKED = Measure(
    "spark_nats.lag.blocked", "", "1 when the query cannot continue without a loss, or at all; 0 when nothing is wrong."
)
ASKED = Measure("spark_nats.lag.timestamp", "s", "When the lag was determined, in seconds since 1970.")
BATCH = Measure("spark_nats.batch.number", "", "The query's last micro-batch that has ended; -1 when none has.")
BATCH_ENDED = Measure("spark_nats.batch.timestamp", "s", "When the last micro-batch ended, in seconds since 1970.")

OF_STREAMS: tuple[tuple[Measure, Callable[[StreamLag], float | None]], ...] = (
    (BEHIND, lambda lag: lag.behind),
    (NEXT, lambda lag: lag.next),
    (END, lambda lag: lag.end),
    (OLDEST, lambda lag: None if lag.oldest is None else lag.oldest.timestamp()),
    (CATCH_UP, lambda lag: lag.catch_up),
    (MAX_AGE, lambda lag: lag.max_age),
    (BLOCKED, lambda lag: int(bool(lag.problem))),
)
"""The gauges of each stream of a query, with functions that return their values, or None where the value is unknown."""

RUNNING = Measure(
    "spark_nats.query.running", "", "1 while a streaming query of the application runs, 0 when it has ended."
)
FAILURES = Measure("spark_nats.query.failures", "{failure}", "Streaming queries that have ended with an error.")
DURATION = Measure("spark_nats.batch.duration", "s", "How long micro-batches took, from planning to the commit.")
READ_ROWS = Measure("spark_nats.read.rows", "{row}", "Rows that were read from NATS.")
OUTPUT_ROWS = Measure(
    "spark_nats.output.rows", "{row}", "Rows that Spark has handed to the query's sink, whichever it is."
)
OF_COUNTS = {
    "rows": Measure("spark_nats.written.rows", "{row}", "Rows that were written to NATS, duplicates included."),
    "bytes": Measure("spark_nats.written.size", "By", "Bytes of headers and payloads that were sent to NATS."),
    "duplicates": Measure(
        "spark_nats.written.duplicates",
        "{row}",
        "Rows that the stream had already when they were written: replayed ones.",
    ),
    "skipped": Measure("spark_nats.written.skipped", "{row}", "Rows that were left out for their conflicts."),
    "bad": Measure(
        "spark_nats.written.bad",
        "{row}",
        "Rows that could not be sent or that the server refused, and were left out or stored in another stream.",
    ),
    "reconnects": Measure(
        "spark_nats.written.reconnects",
        "{reconnect}",
        "How often tasks that write lost a connection, or could not connect at first, and continued on another.",
    ),
}
"""The counters of the sink, by the fields of :class:`~spark_nats.kinds.streams.write.tasks.Counts`."""
