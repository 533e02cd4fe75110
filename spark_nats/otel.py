"""Metrics of streaming queries for OpenTelemetry.

Only the interface of OpenTelemetry is needed here. What collects and sends metrics is the application's choice.
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
from spark_nats.conditions.others import LAG_UNKNOWN, OTEL_NEEDED
from spark_nats.errors import NatsError
from spark_nats.kinds.queries import parse
from spark_nats.kinds.streams.write import metrics_channel
from spark_nats.kinds.streams.write.tasks import Counts
from spark_nats.lag import MAX_LOOKS, QueryLag, StreamLag, lag_of_progress, offset_of, sample_of
from spark_nats.metrics import Measure
from spark_nats.version import __version__

try:
    from opentelemetry.metrics import CallbackOptions, Counter, MeterProvider, Observation, get_meter
except ModuleNotFoundError as missing:
    raise ImportError(OTEL_NEEDED(reason=missing).with_code) from None

logger = logging.getLogger(__name__)

FRESH = 1.0
"""Seconds for which the answer of a server is used again: all gauges are read one after the other."""
_OF_CORE = {"epoch", "messages"}
_CODE = re.compile(r"\[(NATS_[A-Z0-9_]+)\]")
_BOUNDS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)


_Value = tuple[float | None, dict[str, str]]  # what an instrument shows, None for nothing, and its attributes


@dataclass(slots=True)
class _Query:
    """What is known of a query."""

    name: str  # or its id, if it has none
    running: bool = True
    batch: int | None = None  # the last micro-batch that has ended
    ended: float | None = None  # when that was, in seconds since 1970
    recent: deque[Mapping[str, Any]] = field(default_factory=lambda: deque(maxlen=MAX_LOOKS))  # none of other sources


_NEVER: tuple[float, list[QueryLag]] = (-math.inf, [])


class MetricsListener(StreamingQueryListener):
    """Measures the streaming queries of a session, for OpenTelemetry.

    ``spark.streams.addListener(MetricsListener())`` before queries are started. docs/metrics.md lists the metrics.

    Args:
        options: options to ask the server with for all queries, see :func:`~spark_nats.lag.progress`. It is asked when
            the metrics are collected, so that the lag of a query that stands still is seen to grow. Without them it
            is that of the last micro-batch.
        meter_provider: makes the instruments; the global one when None.

    Raises:
        OptionError: an option is wrong.
    """

    def __init__(self, options: Mapping[str, str] | None = None, meter_provider: MeterProvider | None = None) -> None:
        if options is not None:
            parse(options)
        self._options = options
        self._lock = threading.Lock()  # Spark tells in one thread, and metrics are collected in another
        self._queries: dict[str, _Query] = {}  # by the ids of their runs
        self._lags = _NEVER  # how far the queries are behind, and when that was found out
        self._unknown: set[str] = set()  # queries of which the log says that their lag is not known
        self._meter = get_meter("spark_nats", __version__, meter_provider)
        self._failures = self._counter(metrics.FAILURES)
        self._read = self._counter(metrics.READ_ROWS)
        self._output = self._counter(metrics.OUTPUT_ROWS)
        self._written = {name: self._counter(measure) for name, measure in metrics.OF_COUNTS.items()}
        self._duration = self._meter.create_histogram(*metrics.DURATION, explicit_bucket_boundaries_advisory=_BOUNDS)
        self._gauge(metrics.RUNNING, lambda: ((int(each.running), _of(each.name)) for each in self._known()))
        self._gauge(metrics.BATCH, lambda: ((each.batch, _of(each.name)) for each in self._known()))
        self._gauge(metrics.BATCH_ENDED, lambda: ((each.ended, _of(each.name)) for each in self._known()))
        self._gauge(metrics.ASKED, lambda: ((lag.at.timestamp(), _of(lag.query)) for lag in self._looked()))
        for measure, value_of in metrics.OF_STREAMS:
            self._gauge(measure, partial(self._of_streams, value_of))

    def onQueryStarted(self, event: Any) -> None:
        """Have the sink's counts kept from now on."""
        self._query(event)

    def onQueryProgress(self, event: Any) -> None:
        """Count what a micro-batch has done."""
        document = json.loads(event.progress.json)
        query, look = self._query(event.progress), sample_of(document)
        query.batch, query.ended = int(document["batchId"]), look.ended
        if look.positions:
            with self._lock:
                query.recent.append(document)
                self._lags = _NEVER
        labels = _of(query.name)
        for source in document["sources"]:
            if _is_ours(source.get("endOffset")):
                self._read.add(source["numInputRows"], labels)
        self._output.add(max(0, (document.get("sink") or {}).get("numOutputRows", 0)), labels)
        self._duration.record(look.ended - look.began, labels)
        self._count(str(event.progress.runId), query)

    def onQueryIdle(self, event: Any) -> None:
        """Nothing has changed since its last micro-batch."""

    def onQueryTerminated(self, event: Any) -> None:
        """Count an error that has ended the query."""
        run = str(event.runId)
        query = self._queries.get(run)
        if query is None:
            return
        self._count(run, query)
        metrics_channel.unsubscribe(run)
        with self._lock:
            query.running = False
            query.recent.clear()
            self._lags = _NEVER
        if event.exception is not None:
            code = _CODE.search(event.exception)
            condition = code[1] if code else event.errorClassOnException or "unknown"
            self._failures.add(1, _of(query.name) | {metrics.CONDITION: condition})

    def _query(self, started: Any) -> _Query:
        """Return the query of an event; one that is met for the first time takes the place of its earlier runs."""
        run, name = str(started.runId), str(started.name or started.id)
        with self._lock:
            if run not in self._queries:
                metrics_channel.subscribe(run)
                earlier = {key for key, each in self._queries.items() if each.name == name and not each.running}
                self._queries = {key: each for key, each in self._queries.items() if key not in earlier}
                self._queries[run] = _Query(name)
            return self._queries[run]

    def _count(self, run: str, query: _Query) -> None:
        counts = metrics_channel.collect(run)
        if counts != Counts():  # else it may be that it writes elsewhere
            for name, count in asdict(counts).items():
                self._written[name].add(count, _of(query.name))

    # What is called when metrics are collected

    def _known(self) -> list[_Query]:
        with self._lock:
            return list(self._queries.values())

    def _looked(self) -> list[QueryLag]:
        """Return how far the queries are behind that run."""
        at, lags = self._lags
        if clock.monotonic() - at > FRESH:
            with self._lock:
                running = {run: (each, list(each.recent)) for run, each in self._queries.items() if each.running}
            for run in running:
                metrics_channel.subscribe(run)  # it is forgotten after a while
            found = (self._lag(each, recent) for each, recent in running.values())
            lags = [lag for lag in found if lag is not None]
            self._lags = clock.monotonic(), lags
        return lags

    def _lag(self, query: _Query, recent: Sequence[Mapping[str, Any]]) -> QueryLag | None:
        try:
            lag = lag_of_progress(recent, self._options)
        except NatsError as error:
            if query.name not in self._unknown:
                logger.warning(LAG_UNKNOWN(query=query.name, reason=error).with_code)
            self._unknown.add(query.name)
            return lag_of_progress(recent)  # as of the last micro-batch
        self._unknown.discard(query.name)
        return lag

    def _of_streams(self, value_of: Callable[[StreamLag], float | None]) -> Iterator[_Value]:
        for lag in self._looked():
            for each in lag.streams:
                yield value_of(each), metrics.labels_of(lag.query, each)

    def _counter(self, measure: Measure) -> Counter:
        return self._meter.create_counter(*measure)

    def _gauge(self, measure: Measure, found: Callable[[], Iterable[_Value]]) -> None:
        def observe(_: CallbackOptions) -> Iterator[Observation]:
            return (Observation(value, labels) for value, labels in found() if value is not None)

        self._meter.create_observable_gauge(measure.name, [observe], measure.unit, measure.meaning)


def _of(query: str) -> dict[str, str]:
    return {metrics.QUERY: query}


def _is_ours(offset: Any) -> bool:
    """Tell whether an offset is that of a stream or of core NATS."""
    return offset_of(offset) is not None or (isinstance(offset, dict) and offset.keys() == _OF_CORE)
