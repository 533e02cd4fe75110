"""The size of a streaming query's next micro-batch, and whether the query waits for more messages."""

from __future__ import annotations

import math

from spark_nats import clock
from spark_nats.options.query import Triggers
from spark_nats.sparkapi import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows, ReadMinRows


class TriggerPacing:
    """Decides when the micro-batches of one run of a query are due.

    The first micro-batch waits for nothing, as in Spark's Kafka source. It is also the only one of
    ``Trigger.AvailableNow`` in PySpark before 4.2, which does not report that trigger.
    """

    def __init__(self, limits: Triggers) -> None:
        self._limits = limits
        self._planned: float | None = None

    @property
    def read_limit(self) -> ReadLimit:
        """The limit that Spark is given, and hands back unless everything is to be read, as with ``Trigger.Once``.

        A Spark limit holds one number, and ``ReadMinRows`` no maximum delay; so it only marks that the options count.
        """
        if self._limits.max_offsets:
            return ReadMaxRows(self._limits.max_offsets)
        if self._limits.max_bytes:
            return ReadMaxBytes(self._limits.max_bytes)
        return ReadMinRows(self._limits.min_offsets) if self._limits.min_offsets else ReadAllAvailable()

    @property
    def min_new(self) -> int:
        """The fewest new sequences or messages that make a micro-batch now; 0 when the query does not wait."""
        waits = self._planned is not None and clock.monotonic() - self._planned < self._limits.max_delay
        return (self._limits.min_offsets or 0) if waits else 0

    @property
    def waits_until(self) -> float:
        """When the wait for the minimum ends, by the monotonic clock; infinity without a wait."""
        if self._planned is None or not self._limits.min_offsets:
            return math.inf
        return self._planned + self._limits.max_delay

    def planned(self) -> None:
        """Note that a micro-batch was planned."""
        self._planned = clock.monotonic()
