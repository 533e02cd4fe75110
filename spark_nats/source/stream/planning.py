"""Ranges of sequences cut into partitions. Arithmetic only: no server, no Spark session."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from pyspark.sql.datasource import InputPartition

from spark_nats.errors import NatsError
from spark_nats.jetstream.fingerprints import Fingerprint

MOST_PARTITIONS = 100_000
"""Most partitions of a micro-batch or a batch: beyond it Spark's driver would be busy with nothing else."""


@dataclass(frozen=True)
class StreamRange(InputPartition):
    """The messages of a stream with ``start <= sequence < end``; also what one partition reads.

    Attributes:
        stream: name of the stream.
        created: when the stream was made, which tells it from a later one of the same name.
        start: first sequence.
        end: sequence before which to stop.
        filters: only subjects that match one of these; all when empty.
        head_may_go: whether it begins with whatever there is, so that messages that are removed before the first one is
            read are not a data loss.
        direct: whether it is read by direct gets, for one filter at most.
        shared: whether no message that is removed is a data loss, because others may acknowledge it.
        last: the last message of the micro-batch that it is of, as it was when that was planned; None when that is not
            known.
        others: whether the stream has lost messages of it and was filled again: what was stored after ``last`` is then
            not of this range.
    """

    stream: str
    created: str
    start: int
    end: int
    filters: tuple[str, ...] = ()
    head_may_go: bool = False
    direct: bool = False
    shared: bool = False
    last: Fingerprint | None = None
    others: bool = False

    @property
    def size(self) -> int:
        """How many sequences the range has."""
        return self.end - self.start


def of_queue(whole: StreamRange) -> list[StreamRange]:
    """Return how a range of a work queue is read: by direct gets, which look for one filter each."""
    direct = replace(whole, direct=True)
    return [replace(direct, filters=(each,)) for each in whole.filters] or [direct]


def cut(ranges: Sequence[StreamRange], min_partitions: int, max_size: int) -> list[StreamRange]:
    """Cut ranges into partitions.

    Each range is cut into equal pieces (to within one sequence) of at most ``max_size``. When that gives fewer than
    ``min_partitions``, the pieces that are largest are cut further, so that all are about the same size. A piece has
    at least one sequence.

    Raises:
        NatsError: that would be more than :data:`MOST_PARTITIONS`.
    """
    ranges = [r for r in ranges if r.size > 0]
    pieces = [-(-r.size // max_size) for r in ranges]
    total = sum(r.size for r in ranges)
    wanted = min(min_partitions, total)
    if (count := max(sum(pieces), wanted)) > MOST_PARTITIONS:
        raise NatsError(
            f"{total} sequences would be read in {count} partitions, which is too many for Spark (at most "
            f"{MOST_PARTITIONS}); raise the option 'maxRecordsPerPartition', or read less at once"
        )
    if sum(pieces) < wanted:
        pieces = [max(n, r.size * wanted // total) for n, r in zip(pieces, ranges, strict=True)]
        while sum(pieces) < wanted:
            largest = max(range(len(ranges)), key=lambda i: ranges[i].size / pieces[i])
            pieces[largest] += 1
    return [piece for r, n in zip(ranges, pieces, strict=True) for piece in _divide(r, n)]


def _divide(whole: StreamRange, n: int) -> list[StreamRange]:
    bounds = [whole.start + whole.size * i // n for i in range(n + 1)]
    return [
        replace(whole, start=start, end=end, head_may_go=whole.head_may_go and start == whole.start)
        for start, end in pairwise(bounds)
    ]


def share(backlogs: dict[str, int], limit: int) -> dict[str, int]:
    """Share ``limit`` sequences among streams in proportion to what each has to offer, at least one each.

    Streams without backlog get none. The sum is ``limit`` unless the backlogs are smaller or there are more streams.
    """
    if sum(backlogs.values()) <= limit:
        return dict(backlogs)
    shares = {name: min(size, 1) for name, size in backlogs.items()}
    rest = {name: size - shares[name] for name, size in backlogs.items()}
    spare, total = max(0, limit - sum(shares.values())), sum(rest.values())
    for name, size in rest.items():
        shares[name] += size * spare // max(1, total)
    for name in sorted(rest, key=lambda name: shares[name] - backlogs[name]):  # what rounding down left over
        shares[name] += min(backlogs[name] - shares[name], max(0, limit - sum(shares.values())))
    return shares
