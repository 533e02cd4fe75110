"""The reply subject of a JetStream delivery, which carries the message's metadata.

Two forms are in use (ADR-15)::

    $JS.ACK.<stream>.<consumer>.<delivered>.<stream seq>.<consumer seq>.<time ns>.<pending>
    $JS.ACK.<domain>.<account hash>.<stream>.<consumer>.<delivered>.….<pending>[.<token>]

Names have no dots, so the number of tokens tells them apart.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from spark_nats.errors import ProtocolError
from spark_nats.protocol.bytecolumns import Positions, decimals, packed, split

_DOT = ord(".")
_PREFIX = b"$JS.ACK."
_SHORT_FORM_DOTS = 8  # nine tokens
_LONG_FORM_DOTS = 10  # eleven tokens, twelve with the trailing one


@dataclass(frozen=True, slots=True, eq=False)
class Delivery:
    """Metadata of a batch of JetStream deliveries.

    Attributes:
        stream_sequence: sequence in the stream.
        consumer_sequence: sequence of the delivery; rises by one from message to message.
        timestamp: when the server stored the message, in nanoseconds since 1970 UTC.
        pending: how many messages the consumer had still to deliver.
    """

    stream_sequence: Positions
    consumer_sequence: Positions
    timestamp: Positions
    pending: Positions


def parse_deliveries(replies: pa.BinaryArray) -> Delivery:
    """Parse a column of acknowledgement subjects.

    Raises:
        ProtocolError: one of them is no acknowledgement subject.
    """
    data, offsets = packed(replies)
    dots = split(data == _DOT, offsets)
    is_short = dots.per_row == _SHORT_FORM_DOTS
    known = is_short | (dots.per_row == _LONG_FORM_DOTS) | (dots.per_row == _LONG_FORM_DOTS + 1)
    # The dot before the first of the five numbers: after $JS, ACK, [domain, hash,] stream and consumer.
    before = np.where(is_short, 3, 5)
    bounds = [dots.at(before + k) for k in range(5)]
    bounds.append(np.where(dots.per_row > before + 5, dots.at(before + 5), offsets[1:]))
    numbers = []
    for k in range(1, 5):
        value, valid = decimals(data, np.minimum(bounds[k] + 1, bounds[k + 1]), bounds[k + 1])
        known &= valid
        numbers.append(value)
    if not known.all():
        example = replies[int(np.argmin(known))].as_py()
        raise ProtocolError(f"a delivery's reply is no JetStream acknowledgement subject: {example[:100]!r}")
    return Delivery(*numbers)


def is_acknowledgement(reply: bytes) -> bool:
    """Tell whether a reply subject is JetStream's, and so must not be published to by a query."""
    return reply.startswith(_PREFIX)
