"""How much a streaming query's next micro-batch may have, and whether it waits for more."""

from __future__ import annotations

import math

from spark_nats import clock
from spark_nats.options.query import Triggers
from spark_nats.sparkapi import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows, ReadMinRows


class TriggerPacing:
    """When the micro-batches of one run of a query come.

    The first one waits for nothing, as in Spark's Kafka source. That is also the only one of ``Trigger.AvailableNow``
    in PySpark before 4.2, which does not say that this is the trigger.
    """

    def __init__(self, limits: Triggers) -> None:
        self._limits = limits
        self._planned: float | None = None

    @property
    def read_limit(self) -> ReadLimit:
        """What Spark is told, and gives back unless everything is to be read, as with ``Trigger.Once``.

        Spark's limits hold one number each, and a minimum no time; so it is a sign that the options count.
        """
        if self._limits.max_offsets:
            return ReadMaxRows(self._limits.max_offsets)
        if self._limits.max_bytes:
            return ReadMaxBytes(self._limits.max_bytes)
        return ReadMinRows(self._limits.min_offsets) if self._limits.min_offsets else ReadAllAvailable()

    @property
    def min_new(self) -> int:
        """The fewest new sequences or messages for which there is a micro-batch now."""
        waits = self._planned is not None and clock.monotonic() - self._planned < self._limits.max_delay
        return (self._limits.min_offsets or 0) if waits else 0

    @property
    def waits_until(self) -> float:
        """When it waits for the fewest no more, by the clock that only goes on; infinity where it does not wait."""
        if self._planned is None or not self._limits.min_offsets:
            return math.inf
        return self._planned + self._limits.max_delay

    def planned(self) -> None:
        """Note that a micro-batch was planned."""
        self._planned = clock.monotonic()
