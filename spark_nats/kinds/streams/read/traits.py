"""What differs between streams and the kinds that are read as their streams, and which hand it in."""

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
    """What a kind has of its own.

    Attributes:
        rows: what builds the rows of a schema.
        replaces: whether a later message takes the place of one that is removed: nothing is lost by that.
        naming: has an error that the stream does not exist say what it is.
        words: what it is called where a query finds nothing to begin with; empty where that is the stream.
        taken: is told of each stream that is read before it is read; it may refuse it.
        passed: is told of each stream before which sequence all is processed.
    """

    rows: Callable[[StructType], RowBuilder] = RowBuilder
    replaces: bool = False
    naming: Callable[[JetStream], AbstractContextManager[object]] = nullcontext
    words: str = ""
    taken: Callable[[JetStream, StreamInfo], None] | None = None
    passed: Callable[[JetStream, StreamInfo, int], None] | None = None


PLAIN = Traits()
"""Streams that are nothing else."""
