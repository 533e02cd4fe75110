"""A listener that reports the lag of each streaming query after each micro-batch."""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from pyspark.sql.streaming.listener import StreamingQueryListener

from spark_nats.conditions.others import LAG_UNKNOWN, QUERY_LAG
from spark_nats.errors import NatsError
from spark_nats.kinds.queries import parse_options
from spark_nats.lag import MAX_SAMPLES, QueryLag, lag_of_progress, parse_sample

logger = logging.getLogger(__name__)


class LagListener(StreamingQueryListener):
    """A listener that reports the lag of each query that reads NATS streams, after each of its micro-batches.

    ``spark.streams.addListener(LagListener())`` logs the lag. With a function, the listener calls it instead::

        spark.streams.addListener(LagListener(lambda lag: gauge.set(lag.behind, lag.query)))

    Args:
        tell: a function that takes a :class:`~spark_nats.lag.QueryLag`; when None, the lag is logged at level INFO.
        options: options to ask the server with, for all queries; see :func:`~spark_nats.lag.progress`.

    Raises:
        OptionError: an option is wrong.
    """

    def __init__(
        self, tell: Callable[[QueryLag], object] | None = None, options: Mapping[str, str] | None = None
    ) -> None:
        if options is not None:
            parse_options(options)
        self._tell = tell or (lambda lag: logger.info(QUERY_LAG(lag=str(lag)).with_code))
        self._options = options
        self._recent: dict[str, deque[dict[str, Any]]] = {}

    def onQueryStarted(self, event: Any) -> None:
        """Do nothing: the query has no progress yet."""

    def onQueryProgress(self, event: Any) -> None:
        """Report the lag of the query, if it reads NATS streams; log a warning when the lag is unknown."""
        document = json.loads(event.progress.json)
        if not parse_sample(document).streams:
            return
        recent = self._recent.setdefault(str(event.progress.runId), deque(maxlen=MAX_SAMPLES))
        recent.append(document)
        try:
            lag = lag_of_progress(recent, self._options)
        except NatsError as error:
            logger.warning(LAG_UNKNOWN(query=event.progress.id, reason=error).with_code)
            return
        if lag is not None:
            self._tell(lag)

    def onQueryTerminated(self, event: Any) -> None:
        """Forget the query."""
        self._recent.pop(str(event.runId), None)
