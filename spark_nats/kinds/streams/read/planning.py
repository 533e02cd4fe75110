"""Cutting ranges of sequences into partitions. Arithmetic only: no server, no Spark session."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import cycle, pairwise

from spark_nats.errors import NatsError
from spark_nats.jetstream.positions import Position
from spark_nats.jetstream.reading.direct import BATCH_BYTES
from spark_nats.jetstream.reading.judging import Removed
from spark_nats.jetstream.reading.ranges import Range, ReadMethod
from spark_nats.jetstream.streams import WORK_QUEUE
from spark_nats.kinds.streams.read.conditions import TOO_MANY_PARTITIONS
from spark_nats.kinds.streams.read.losses import removal_is_normal
from spark_nats.kinds.streams.read.positions import QueryOffset
from spark_nats.kinds.task import Partition

MAX_PARTITIONS = 100_000
"""Maximum number of partitions of a micro-batch or a batch; more would keep Spark's driver busy with nothing else."""
RANGE_COST = 500
"""What each range costs a task beside its messages, in messages: a consumer is created, asked and deleted."""
MAX_PACKED = 50_000
"""Maximum cost, in messages, of the ranges that share a partition. A task costs as much as 8,000 messages by itself
(``make bench ARGS="--only reads"``). Replays depend on it and on RANGE_COST: others need a new sign in the offset."""
MAX_SMALL = 1024
"""Maximum size, in sequences, of a partition that one direct get reads. Per message, a direct get costs a server more
than a consumer, but a consumer has to be created and deleted (``make bench ARGS="--only small"``)."""

MIN_SPREAD = 20_000
"""Minimum size, in sequences, of a partition that is dealt to a server: the task may have to connect to it first."""


@dataclass(frozen=True)
class StreamRange(Range, Partition):
    """A range of a stream that can be one partition.

    Attributes:
        way: how it is read.
    """

    way: ReadMethod = field(default=ReadMethod.CONSUMER, kw_only=True)

    @classmethod
    def until(cls, stop: Position, stream: str, first: int, filters: tuple[str, ...], earliest: bool) -> StreamRange:
        """Return the range from a sequence to a position; ``earliest``: it begins with the first message there is."""
        removed, last = (Removed.NO_LOSS_AT_FIRST if earliest else Removed.LOSS), stop.fingerprint
        return cls(stream, stop.created, first, stop.next, filters, removed=removed, last=last, latest=stop.latest)

    @property
    def size(self) -> int:
        """Number of sequences in the range."""
        return self.end - self.start


@dataclass(frozen=True)
class SeveralRanges(Partition):
    """A partition with several ranges, which its task reads one after another: all messages, or the first ones.

    Attributes:
        limit: how many messages are read; None for all.
    """

    ranges: tuple[StreamRange, ...]
    limit: int | None = None


def ranges_between(
    start: QueryOffset, end: QueryOffset, filters: tuple[str, ...], rewritten: Collection[str] = ()
) -> list[StreamRange]:
    """Return the ranges that a micro-batch reads.

    They depend on its two offsets and the filters, and on nothing that only the driver's memory has, so a replay plans
    the same ranges. Of a stream in ``rewritten``, this micro-batch leaves out what was stored in the place of lost
    messages; the next one reads it.
    """
    found = []
    for name, stop in end.items():
        begin = start.get(name)
        if begin == stop:
            continue
        first = stop.first
        # Usually the start is ``since``. It is after ``since`` when Spark replays the first micro-batch of a query,
        # because Spark then requests the initial offset again. It is before ``since`` when not all offsets were kept.
        if begin is not None:
            is_before = stop.since is not None and begin.end.next < stop.since
            again = stop.since is None and begin.end.created == stop.end.created
            first = begin.end.next if is_before or again else first
        whole = StreamRange.until(stop.end, name, first, filters, begin is None or begin.end.earliest)
        found.append(replace(whole, rewritten=name in rewritten))
    return [r for r in found if r.size > 0]


def adapt_to_retention(whole: StreamRange, retention: str | None, peek: bool, replaces: bool) -> list[StreamRange]:
    """Return a range as a stream with this retention is read: one range, or one for each filter. None means limits.

    The arguments are those of :func:`.removal_is_normal`.
    """
    if removal_is_normal(retention, whole.filters, peek, replaces):
        whole = replace(whole, removed=Removed.NO_LOSS)
    if retention != WORK_QUEUE:
        return [whole]
    direct = replace(whole, way=ReadMethod.GETS)  # a direct get has one filter
    return [replace(direct, filters=(each,)) for each in whole.filters] or [direct]


def mark_small_for_gets(
    ranges: Sequence[StreamRange], sizes: Mapping[str, float], limit: int | None = None
) -> list[StreamRange]:
    """Mark partitions that one direct get may read whole, or whose first ``limit`` messages it may read.

    ``sizes`` holds the average bytes of a message, for the streams that may be read like this.
    """
    found = []
    for each in ranges:
        most = each.size if limit is None or each.filters else min(limit, each.size)
        small = most <= MAX_SMALL and most * sizes.get(each.stream, math.inf) <= BATCH_BYTES
        found.append(replace(each, way=ReadMethod.ONE_GET_FIRST) if small and each.way is ReadMethod.CONSUMER else each)
    return found


def mark_large_for_headers_only(ranges: Sequence[StreamRange], large: Collection[str]) -> list[StreamRange]:
    """Return ranges whose consumers bring no payloads, in the streams whose messages are ``large``."""
    return [
        replace(each, way=ReadMethod.HEADERS) if each.way is ReadMethod.CONSUMER and each.stream in large else each
        for each in ranges
    ]


def pack_into_partitions(
    ranges: Sequence[StreamRange], min_partitions: int, max_size: int
) -> list[StreamRange | SeveralRanges]:
    """Return ranges as partitions: small ones share a partition, in their order.

    At least ``min_partitions`` are left if there are as many ranges, and ranges that share one have at most
    ``max_size`` sequences. Ranges of a work queue, one for each filter, do not share one: a partition has the rows of a
    stream in the order of their sequences.
    """
    spare = max(0, len(ranges) - min_partitions)  # ranges that may join another one
    total = sum(each.size + RANGE_COST for each in ranges)
    most = min(MAX_PACKED, total / min_partitions)
    packs, cost, size = list[list[StreamRange]](), math.inf, 0
    for each in ranges:
        fits = cost + each.size + RANGE_COST <= most and size + each.size <= max_size
        before = packs[-1][-1] if packs else each
        if spare and fits and (each.stream != before.stream or each.start >= before.end):
            packs[-1].append(each)
            spare -= 1
        else:
            packs.append([each])
            cost = size = 0
        cost, size = cost + each.size + RANGE_COST, size + each.size
    return [SeveralRanges(tuple(pack)) if len(pack) > 1 else pack[0] for pack in packs]


def assign_servers_in_turn(
    partitions: Sequence[StreamRange | SeveralRanges], servers: Mapping[str, Sequence[str]]
) -> list[StreamRange | SeveralRanges]:
    """Deal the large partitions of each stream to its ``servers`` in turn, because each sends with one goroutine."""
    large = [each for each in partitions if isinstance(each, StreamRange) and _may_have_own_server(each)]
    counts = Counter(each.stream for each in large)
    turns = {name: cycle(names) for name, names in servers.items() if len(names) > 1 and counts[name] > 1}
    return [
        replace(each, server=next(turns[each.stream]))
        if isinstance(each, StreamRange) and _may_have_own_server(each) and each.stream in turns
        else each
        for each in partitions
    ]


def alternate_streams(partitions: Sequence[StreamRange | SeveralRanges]) -> list[StreamRange | SeveralRanges]:
    """Return partitions so that those of different streams alternate: tasks begin in this order.

    A server has a loop for each stream, so that tasks of one stream wait for each other.
    """
    turns: Counter[str] = Counter()
    ranks = []
    for each in partitions:
        stream = each.stream if isinstance(each, StreamRange) else ""
        ranks.append(turns[stream])
        turns[stream] += 1
    return [partitions[place] for place in sorted(range(len(ranks)), key=ranks.__getitem__)]


def _may_have_own_server(part: StreamRange) -> bool:
    return part.size >= MIN_SPREAD and part.way in (ReadMethod.CONSUMER, ReadMethod.HEADERS)


def cut_into_partitions(ranges: Sequence[StreamRange], min_partitions: int, max_size: int) -> list[StreamRange]:
    """Cut ranges into partitions.

    Each range is cut into equal pieces (to within one sequence) of at most ``max_size`` sequences. When that gives
    fewer than ``min_partitions``, the largest pieces are cut further, so that all have about the same size. A piece has
    at least one sequence.

    Raises:
        NatsError: there would be more than :data:`MAX_PARTITIONS`.
    """
    ranges = [r for r in ranges if r.size > 0]
    pieces = [-(-r.size // max_size) for r in ranges]
    total = sum(r.size for r in ranges)
    wanted = min(min_partitions, total)
    if (count := max(sum(pieces), wanted)) > MAX_PARTITIONS:
        raise NatsError(TOO_MANY_PARTITIONS(sequences=total, partitions=count, most=MAX_PARTITIONS))
    if sum(pieces) < wanted:
        pieces = [max(n, r.size * wanted // total) for n, r in zip(pieces, ranges, strict=True)]
        while sum(pieces) < wanted:
            index = max(range(len(ranges)), key=lambda i: ranges[i].size / pieces[i])
            pieces[index] += 1
    found = []
    for whole, n in zip(ranges, pieces, strict=True):
        for start, end in pairwise(whole.start + whole.size * i // n for i in range(n + 1)):
            same = start == whole.start or whole.removed is Removed.NO_LOSS
            found.append(replace(whole, start=start, end=end, removed=whole.removed if same else Removed.LOSS))
    return found
