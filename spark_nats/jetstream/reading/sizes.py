"""Measures a sample of a stream's messages, to tell where a range with a given number of bytes ends.

The server counts bytes for a whole stream and not for a range, so this module reads messages without their payloads. It
reads only enough to estimate the others, because each costs the server as much as one with a small payload.
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

MEASURED = 8192  # sequences whose messages are measured one by one


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of messages: of each measured one, and of the others on average."""

    start: int  # the sizes are of messages from this sequence on
    until: int  # sequence before which each message was measured
    sequences: Positions  # of the measured messages
    totals: Positions  # bytes of the measured messages before each, and of all
    average: float  # estimated bytes for each sequence from ``until`` on

    def estimate_bytes_before(self, end: int) -> int:
        """Return the estimated bytes from ``start`` to before ``end``, a sequence that is not below ``until``."""
        return round(int(self.totals[-1]) + self.average * (end - self.until))

    def end_within(self, most: int, end: int) -> int:
        """Return the end of a range from ``start`` with at most ``most`` bytes, or one message; at most ``end``."""
        fitting = int(np.searchsorted(self.totals[1:], most, "right"))
        if fitting < len(self.sequences):
            return int(max(self.sequences[fitting], self.sequences[0] + 1))
        more = (most - int(self.totals[-1])) / max(1.0, self.average)
        return max(min(end, self.until + int(more)), min(end, self.start + 1))


def measure_sizes(js: JetStream, stream: StreamInfo, start: int, end: int, filters: Sequence[str] = ()) -> Sizes:
    """Return the sizes of the messages with ``start <= sequence < end``, a range that lies within the stream.

    Only the first :data:`MEASURED` sequences are measured. A work queue allows no consumer for that. It holds little
    but unread messages, so the stream's average suffices, as it has to where no consumer is available at the moment.
    """
    until = start if stream.retention == WORK_QUEUE else min(end, start + MEASURED)
    # The actual read reports losses.
    some = Range(stream.name, stream.created, start, until, tuple(filters), removed=Removed.NO_LOSS)
    reader = RangeReader(some, ReadMethod.HEADERS, lost=lambda what: None)
    sequences, sizes = [np.empty(0, np.int64)], [np.zeros(1, np.int64)]
    try:
        for delivered in reader.read(js):
            sequences.append(delivered.deliveries.stream_sequences())
            sizes.append(delivered.messages.announced_full_sizes())
    except (JetStreamError, NatsTimeoutError) as error:
        logger.info(NOT_MEASURED(stream=stream.name, reason=error).with_code)
    totals = np.cumsum(np.concatenate(sizes))
    average = stream.bytes / max(1, stream.count_sequences_from(0))
    if len(totals) > 1:
        average = float(totals[-1]) / (reader.cursor.delivered - start)
    return Sizes(start, reader.cursor.delivered, np.concatenate(sequences), totals, average)
