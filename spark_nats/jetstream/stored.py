"""Which message ids a stream holds, for a publisher that has to know what it has stored before.

A stream knows a message id again for its ``duplicate_window`` only. What was published before that is found by reading
the headers of all that the stream has stored since.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from spark_nats.jetstream.api import JetStream
from spark_nats.jetstream.reading import RangeReader
from spark_nats.jetstream.streams import StreamInfo
from spark_nats.protocol.bytecolumns import Mask, flags_of, strings
from spark_nats.protocol.headers import MSG_ID, header_values

logger = logging.getLogger(__name__)


class StoredIds(NamedTuple):
    """What was found.

    Attributes:
        ids: binary column of message ids, in the order of their messages.
        removed: says which messages are gone, whose ids are then not known; empty when there are none.
    """

    ids: pa.Array
    removed: str


def stored_ids(js: JetStream, stream: StreamInfo, since: int, prefix: str = "") -> StoredIds:
    """Return the message ids of what a stream holds behind a sequence.

    Args:
        js: where.
        stream: its state, up to which it is read.
        since: sequence of the last message that is of no interest.
        prefix: only ids that begin so.

    Raises:
        NatsError: the stream could not be read.
    """
    lost: list[str] = []
    reader = RangeReader(
        stream.name, since + 1, stream.last_sequence + 1, created=stream.created, lost=lost.append, headers_only=True
    )
    found = []
    messages = 0
    for delivered in reader.read(js):
        messages += len(delivered.messages)
        ids = header_values(delivered.messages.gather(delivered.messages.header), MSG_ID).drop_null()
        found.append(ids.filter(pc.starts_with(ids, prefix)) if prefix else ids)
    missing = stream.last_sequence - since - messages
    logger.info(
        "stream %s: of %d messages behind sequence %d, %d have message ids that matter",
        stream.name,
        messages,
        since,
        sum(map(len, found)),
    )
    if missing > 0 and not lost:
        lost.append(
            f"messages that stream {stream.name!r} had stored behind sequence {since} are gone ({missing} of them)"
        )
    ids = pa.concat_arrays(found) if found else strings([]).cast(pa.binary())
    return StoredIds(ids, "; ".join(lost))


def is_among(ids: pa.Array, stored: pa.Array) -> Mask:
    """Tell of each message id, a string column, whether it is among stored ones, a binary column."""
    found: Mask = flags_of(pc.is_in(ids.cast(pa.binary()), stored))
    return found
