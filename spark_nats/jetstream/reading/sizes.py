"""How many bytes the messages of a stream have, to tell how many of them are so many bytes.

The server counts bytes for a whole stream and not for a range of it, so it is asked for the messages without their
payloads: for as many as say enough about the others, since each costs it as much as one with a small payload.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from spark_nats.conditions.jetstream import NOT_MEASURED
from spark_nats.errors import JetStreamError, NatsTimeoutError
from spark_nats.jetstream.api import JetStream
from spark_nats.jetstream.reading.judging import Removed
from spark_nats.jetstream.reading.ranges import Range, RangeReader, ReadMethod
from spark_nats.jetstream.streams import WORK_QUEUE, StreamInfo
from spark_nats.protocol.bytecolumns import Positions

logger = logging.getLogger(__name__)

MEASURED = 8192  # sequences of which each message is measured


@dataclass(frozen=True, slots=True)
class Sizes:
    """What is known of the sizes of messages: each of those that were measured, and what others have on average."""

    start: int  # sequence from which on they are known
    until: int  # sequence before which each was measured
    sequences: Positions  # of those that were
    totals: Positions  # bytes of all of them up to each
    average: float  # bytes for each sequence behind them

    def before(self, end: int) -> int:
        """Return how many bytes there are before a sequence that is not below ``until``."""
        return round(self._measured + self.average * (end - self.until))

    def end_within(self, most: int, end: int) -> int:
        """Return before which sequence there are so many bytes at most, but one message at least; ``end`` or less."""
        fitting = int(np.searchsorted(self.totals, most, "right"))
        if fitting < len(self.totals):
            return int(max(self.sequences[fitting], self.sequences[0] + 1))
        more = (most - self._measured) / max(1.0, self.average)
        return max(min(end, self.until + int(more)), min(end, self.start + 1))

    @property
    def _measured(self) -> int:
        return int(self.totals[-1]) if len(self.totals) else 0


def measure(js: JetStream, stream: StreamInfo, start: int, end: int, filters: Sequence[str] = ()) -> Sizes:
    """Return what is known of the sizes of the messages with ``start <= sequence < end``, which is within the stream.

    A work queue does not let anybody have a consumer for that. It holds little but what is still to be read, so the
    average of its messages will do, as it has to where a consumer cannot be had at the moment.
    """
    until = start if stream.retention == WORK_QUEUE else min(end, start + MEASURED)
    # What is gone is reported where it is read.
    some = Range(stream.name, stream.created, start, until, tuple(filters), removed=Removed.NO_LOSS)
    reader = RangeReader(some, ReadMethod.HEADERS, lost=lambda what: None)
    sequences, sizes = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    try:
        for delivered in reader.read(js):
            sequences.append(delivered.deliveries.stream_sequences())
            sizes.append(delivered.messages.sizes_with_payloads())
    except (JetStreamError, NatsTimeoutError) as error:
        logger.info(NOT_MEASURED(stream=stream.name, reason=error).with_code)
    totals = np.cumsum(np.concatenate(sizes))
    average = stream.bytes / max(1, stream.messages_from(0))
    if len(totals):
        average = float(totals[-1]) / (reader.cursor.delivered - start)
    return Sizes(start, reader.cursor.delivered, np.concatenate(sequences), totals, average)
