"""How much a streaming query's next micro-batch may have, and whether it waits for more."""

from __future__ import annotations

import time

from spark_nats.options.read import TriggerLimits
from spark_nats.sparkapi import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows, ReadMinRows


class Pace:
    """When the micro-batches of one run of a query come.

    The first one waits for nothing, as in Spark's Kafka source. That is also the only one of ``Trigger.AvailableNow``
    in PySpark before 4.2, which does not say that this is the trigger.

    Args:
        limits: what the options say.
    """

    def __init__(self, limits: TriggerLimits) -> None:
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

    def waits(self, new: int) -> bool:
        """Tell whether a micro-batch of so many new sequences or messages has to wait."""
        least, delay = self._limits.min_offsets, self._limits.max_delay
        if self._planned is None or least is None or delay is None:
            return False
        return new < least and time.monotonic() - self._planned < delay

    def planned(self) -> None:
        """Note that a micro-batch was planned."""
        self._planned = time.monotonic()
