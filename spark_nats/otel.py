"""Metrics of streaming queries for OpenTelemetry.

This module needs only the API of OpenTelemetry. The application chooses the SDK that collects and sends metrics.
"""

from __future__ import annotations

import json
import logging
import math
import re
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

from pyspark.sql.streaming.listener import StreamingQueryListener

from spark_nats import clock, metrics
from spark_nats.conditions import Once
from spark_nats.conditions.others import LAG_UNKNOWN, OTEL_NEEDED
from spark_nats.errors import NatsError
from spark_nats.kinds.queries import parse_options
from spark_nats.kinds.streams.write import metrics_channel
from spark_nats.kinds.streams.write.tasks import Counts
from spark_nats.lag import MAX_SAMPLES, QueryLag, StreamLag, lag_of_progress, parse_offset, parse_sample
from spark_nats.metrics import Measure
from spark_nats.version import __version__

try:
    from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation, get_meter
except ModuleNotFoundError as missing:
    raise ImportError(OTEL_NEEDED(reason=missing).with_code) from None

logger = logging.getLogger(__name__)

FRESH = 1.0
"""Seconds for which an answer of the server is reused, because a collection reads all gauges one after the other."""
_OF_CORE = {"epoch", "messages"}  # the fields of an offset in core NATS
_CODE = re.compile(r"\[(NATS_[A-Z0-9_]+)\]")
_BOUNDS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)  # seconds

_Value = tuple[float | None, dict[str, str]]  # the value of an instrument, None when unknown, and its attributes


@dataclass(slots=True)
class _Query:
    """The state of one run of a query."""

    name: str  # or the id of a query without a name
    running: bool = True
    batch: int | None = None  # the last completed micro-batch
    batch_ended: float | None = None  # when that micro-batch ended, in seconds since 1970
    # its last progress documents, oldest first; only those with NATS streams
    recent: deque[Mapping[str, Any]] = field(default_factory=lambda: deque(maxlen=MAX_SAMPLES))


_NEVER: tuple[float, list[QueryLag]] = (-math.inf, [])


class MetricsListener(StreamingQueryListener):
    """A listener that records OpenTelemetry metrics of the streaming queries of a session.

    Call ``spark.streams.addListener(MetricsListener())`` before starting queries. docs/metrics.md lists the metrics.

    Args:
        options: options to ask the server with, for all queries; see :func:`~spark_nats.lag.progress`. Each collection
            of metrics asks the server, so that the growing lag of a stalled query is visible. Without options, the lag
            is that of the last micro-batch.
        meter_provider: the provider that makes the instruments; the global one when None.

    Raises:
        OptionError: an option is wrong.
    """

    def __init__(self, options: Mapping[str, str] | None = None, meter_provider: MeterProvider | None = None) -> None:
        if options is not None:
            parse_options(options)
        self._options = options
        self._lock = threading.Lock()  # Spark calls in one thread, and metrics are collected in another
        self._queries: dict[str, _Query] = {}  # by run id
        self._lags = _NEVER  # when the lags were computed, and the lags
        self._unknown = Once()  # queries whose unknown lag is already logged
        self._meter = get_meter("spark_nats", __version__, meter_provider)
        self._failures = self._meter.create_counter(*metrics.FAILURES)
        self._read = self._meter.create_counter(*metrics.READ_ROWS)
        self._output = self._meter.create_counter(*metrics.OUTPUT_ROWS)
        self._written = {name: self._meter.create_counter(*measure) for name, measure in metrics.OF_COUNTS.items()}
        self._duration = self._meter.create_histogram(*metrics.DURATION, explicit_bucket_boundaries_advisory=_BOUNDS)
        self._create_gauge(metrics.RUNNING, partial(self._values_of_queries, lambda query: int(query.running)))
        self._create_gauge(metrics.BATCH, partial(self._values_of_queries, lambda query: query.batch))
        self._create_gauge(metrics.BATCH_ENDED, partial(self._values_of_queries, lambda query: query.batch_ended))
        self._create_gauge(
            metrics.ASKED, lambda: ((lag.at.timestamp(), _labels(lag.query)) for lag in self._ask_lags_if_due())
        )
        for measure, value_of in metrics.OF_STREAMS:
            self._create_gauge(measure, partial(self._ask_values_of_streams, value_of))

    def onQueryStarted(self, event: Any) -> None:
        """Subscribe to the counts of the query's sink."""
        self._find_or_add_query(event)

    def onQueryProgress(self, event: Any) -> None:
        """Record the rows, the duration and the counts of a micro-batch."""
        document = json.loads(event.progress.json)
        query, sample = self._find_or_add_query(event.progress), parse_sample(document)
        query.batch, query.batch_ended = int(document["batchId"]), sample.ended
        if sample.streams:
            with self._lock:
                query.recent.append(document)
                self._lags = _NEVER
        labels = _labels(query.name)
        for source in document["sources"]:
            if _is_of_nats(source.get("endOffset")):
                self._read.add(source["numInputRows"], labels)
        self._output.add(max(0, (document.get("sink") or {}).get("numOutputRows", 0)), labels)
        self._duration.record(sample.ended - sample.began, labels)
        self._take_and_record_counts(str(event.progress.runId), query)

    def onQueryTerminated(self, event: Any) -> None:
        """Record the last counts, and count the error that has ended the query, if any."""
        run = str(event.runId)
        query = self._queries.get(run)
        if query is None:
            return
        self._take_and_record_counts(run, query)
        metrics_channel.clear_counts_wanted(run)
        with self._lock:
            query.running = False
            query.recent.clear()
            self._lags = _NEVER
        if event.exception is not None:
            code = _CODE.search(event.exception)
            condition = code[1] if code else event.errorClassOnException or "unknown"
            self._failures.add(1, _labels(query.name) | {metrics.CONDITION: condition})

    def _find_or_add_query(self, event: Any) -> _Query:
        """Return the query of an event; a new run replaces the terminated runs of the same query, and is counted."""
        run, name = str(event.runId), str(event.name or event.id)
        with self._lock:
            if run not in self._queries:
                metrics_channel.note_counts_wanted(run)
                earlier = {key for key, each in self._queries.items() if each.name == name and not each.running}
                self._queries = {key: each for key, each in self._queries.items() if key not in earlier}
                self._queries[run] = _Query(name)
            return self._queries[run]

    def _take_and_record_counts(self, run: str, query: _Query) -> None:
        counts = metrics_channel.take_and_sum_counts(run)
        if counts != Counts():  # else the query may write to another sink
            for name, count in asdict(counts).items():
                self._written[name].add(count, _labels(query.name))

    # Callbacks of a collection

    def _copy_queries(self) -> list[_Query]:
        with self._lock:
            return list(self._queries.values())

    def _ask_lags_if_due(self) -> list[QueryLag]:
        """Return the lags of the running queries, computed at most :data:`FRESH` seconds ago."""
        at, lags = self._lags
        if clock.monotonic() - at > FRESH:
            with self._lock:
                running = {run: (each, list(each.recent)) for run, each in self._queries.items() if each.running}
            for run in running:
                metrics_channel.note_counts_wanted(run)  # again, because a subscription expires
            found = (self._ask_lag_or_log(each, recent) for each, recent in running.values())
            lags = [lag for lag in found if lag is not None]
            self._lags = clock.monotonic(), lags
        return lags

    def _ask_lag_or_log(self, query: _Query, recent: Sequence[Mapping[str, Any]]) -> QueryLag | None:
        try:
            lag = lag_of_progress(recent, self._options)
        except NatsError as error:
            if self._unknown.add_if_new(query.name):
                logger.warning(LAG_UNKNOWN(query=query.name, reason=error).with_code)
            return lag_of_progress(recent)  # as of the last micro-batch
        self._unknown.discard(query.name)
        return lag

    def _values_of_queries(self, value_of: Callable[[_Query], float | None]) -> Iterator[_Value]:
        return ((value_of(each), _labels(each.name)) for each in self._copy_queries())

    def _ask_values_of_streams(self, value_of: Callable[[StreamLag], float | None]) -> Iterator[_Value]:
        for lag in self._ask_lags_if_due():
            for each in lag.streams:
                yield value_of(each), metrics.labels_of(lag.query, each)

    def _create_gauge(self, measure: Measure, found: Callable[[], Iterable[_Value]]) -> None:
        def observe(_: CallbackOptions) -> Iterator[Observation]:
            return (Observation(value, labels) for value, labels in found() if value is not None)

        self._meter.create_observable_gauge(measure.name, [observe], measure.unit, measure.meaning)


def _labels(query: str) -> dict[str, str]:
    return {metrics.QUERY: query}


def _is_of_nats(offset: Any) -> bool:
    """Return whether an offset is one of NATS streams or of core NATS."""
    return parse_offset(offset) is not None or (isinstance(offset, dict) and offset.keys() == _OF_CORE)
