"""The differences between streams and the kinds that are read as streams; each kind hands in its own."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from pyspark.sql.types import StructType

from spark_nats.jetstream.api import JetStream
from spark_nats.jetstream.streams import StreamInfo
from spark_nats.kinds.streams.read.columns import RowBuilder


@dataclass(frozen=True, slots=True)
class Traits:
    """What differs in a kind.

    Attributes:
        rows: returns the builder of rows with a schema.
        replaces: whether a later message replaces a removed one, so that its removal is no loss.
        naming: makes the error about a missing stream say what the stream stands for.
        words: what the error names if nothing was stored since the starting time; empty if that is the stream.
        on_look: called with each stream at each look, before the stream is read; may refuse the stream.
        on_progress: called in streaming, unless the query consumes, with each intact stream and the sequence before
            which everything is processed.
    """

    rows: Callable[[StructType], RowBuilder] = RowBuilder
    replaces: bool = False
    naming: Callable[[JetStream], AbstractContextManager[object]] = nullcontext
    words: str = ""
    on_look: Callable[[JetStream, StreamInfo], None] | None = None
    on_progress: Callable[[JetStream, StreamInfo, int], None] | None = None


PLAIN = Traits()
"""Streams that stand for nothing else."""
