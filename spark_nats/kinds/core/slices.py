"""Received messages of core NATS cut into partitions, by arithmetic on bytes: no server, no Spark session."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Self

import numpy as np
from pyspark.sql.datasource import InputPartition

from spark_nats.kinds.core.backlog import Piece
from spark_nats.protocol.bytecolumns import Positions
from spark_nats.protocol.decoder import Decoder
from spark_nats.protocol.messages import Messages

SLICE_BYTES = 8 << 20
"""Maximum bytes of a partition, unless a single read of the socket brought more. Decoding them takes a fraction of the
time that Spark takes to run a task, so smaller partitions would only cost."""


@dataclass(frozen=True, eq=False)
class WireSlice(InputPartition):
    """Consecutive messages as the bytes that came, which one partition reads.

    Attributes:
        wire: whole frames.
        counts: number of messages of each read of the socket.
        received: time of each read, in microseconds since 1970.
    """

    wire: bytes = field(repr=False)
    counts: Positions
    received: Positions

    @classmethod
    def of(cls, pieces: Iterable[Piece]) -> Self:
        """Join pieces."""
        wires, counts, received = zip(*pieces, strict=True)
        return cls(b"".join(wires), np.array(counts, np.int64), np.array(received, np.int64))

    def decode(self) -> tuple[Messages, Positions]:
        """Return the messages, and when each was received."""
        return Decoder().feed(self.wire).messages, np.repeat(self.received, self.counts)


def cut(pieces: Sequence[Piece], min_partitions: int, max_bytes: int = SLICE_BYTES) -> list[WireSlice]:
    """Cut received messages into partitions, in order.

    They are cut evenly into ``min_partitions``, or one for each message if there are fewer messages. They are also cut
    wherever a partition would exceed ``max_bytes``; only a piece that is larger by itself makes a larger partition.
    """
    total = sum(piece.messages for piece in pieces)
    wanted = min(min_partitions, total)
    even = deque(total * i // wanted for i in range(1, wanted))
    parts: list[list[Piece]] = [[]]
    done, size = 0, 0
    for piece in pieces:
        inside = []
        while even and even[0] < done + piece.messages:
            inside.append(even.popleft() - done)
        if 0 in inside or (size > 0 and size + len(piece.wire) > max_bytes):
            parts.append([])
            size = 0
        first, *others = piece.split([bound for bound in inside if bound])
        parts[-1].append(first)
        parts += [[each] for each in others]
        done += piece.messages
        size = len(others[-1].wire) if others else size + len(piece.wire)
    return [WireSlice.of(part) for part in parts if part]
