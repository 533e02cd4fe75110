"""A query's position from its checkpoint: Spark's logs of planned and of finished micro-batches.

``offsets/<n>`` has the end of micro-batch n: two lines of Spark's own, then a line of JSON for each use of a source. In
Spark's second format, ``v2``, which Spark 4.2 has brought, there is a line for each source, in any order, with the
source's number or name before the JSON. ``commits/<n>`` exists when micro-batch n has ended. Nothing here writes to the
checkpoint.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from spark_nats.conditions import others as conditions
from spark_nats.errors import NatsError
from spark_nats.jetstream.positions import Position
from spark_nats.kinds.streams.read.positions import OffsetEntry, QueryOffset, from_json
from spark_nats.lag import MAX_SAMPLES, Key, LagSample, StreamSample, first_sequence_of, is_streams_offset
from spark_nats.protocol.documents import integer_at, parse_object, printable, string_at


class Planned(NamedTuple):
    """A micro-batch as it was planned."""

    began: float  # when, in seconds since 1970
    offsets: dict[int | str, QueryOffset | None]  # by the source's number or name; None of a source that is not ours
    are_uses: bool  # whether a number is that of a use of a source: a DataFrame that is used twice has two

    def entries(self, sources: Mapping[int | str, int | str]) -> dict[Key, OffsetEntry]:
        """Return what it has of each stream of these sources, which are given new numbers."""
        ours = ((number, self.offsets.get(source) or {}) for source, number in sources.items())
        return {(number, name): entry for number, offset in ours for name, entry in offset.items()}


class Checkpoint(NamedTuple):
    """The position of a query."""

    query: str  # its id
    # the last micro-batches that have ended, oldest first; the beginning of the query when none has
    samples: tuple[LagSample, ...]
    batch: int  # number of the last micro-batch that has ended; -1 when none has
    next_planned: datetime | None  # when the next micro-batch was planned; None when none was


def read_checkpoint(location: str) -> Checkpoint:
    """Read a checkpoint.

    Args:
        location: a path, or a URI that ``pyarrow.fs`` knows, such as ``s3://bucket/path``.

    Raises:
        NatsError: the checkpoint cannot be read, or its query reads no streams of NATS.
    """
    files = _Files(location)
    planned, ended = files.list_numbers("offsets"), files.list_numbers("commits")
    if not planned:
        raise NatsError(conditions.NO_CHECKPOINT(location=files.location))
    batch = max(ended, default=-1)
    under_way = files.read_micro_batch(batch + 1) if batch + 1 in planned else None
    known = {n: files.read_micro_batch(n) for n in sorted(planned & ended)[-MAX_SAMPLES - 1 :]}
    sources = _number_sources([*known.values(), *([under_way] if under_way else [])])
    entries = {n: each.entries(sources) for n, each in known.items()}
    ends = {n: max(each.began, files.read_end_time(n)) for n, each in known.items()}
    samples = [_make_lag_sample(each.began, entries[n], entries.get(n - 1, {}), ends[n]) for n, each in known.items()]
    if not samples and under_way is not None:
        streams = {key: _sample_of_beginning(entry) for key, entry in under_way.entries(sources).items()}
        samples = [LagSample(under_way.began, under_way.began, streams)]
    if not samples or (ended and batch not in known):
        raise NatsError(conditions.CHECKPOINT_INCOMPLETE(location=files.location, batch=batch))
    last = known.get(batch, under_way)
    if last is None or all(offset is None for offset in last.offsets.values()):
        raise NatsError(conditions.NOT_BEHIND(query=f"of {files.location!r}"))
    since = datetime.fromtimestamp(under_way.began, UTC) if under_way else None
    return Checkpoint(files.read_query_id(), tuple(samples[-MAX_SAMPLES:]), batch, since)


def _sample_of_beginning(entry: OffsetEntry) -> StreamSample:
    """Return the sample of a query that has ended no micro-batch, by what the end of its first one notes."""
    end, start = entry.end, first_sequence_of(entry, None)
    before = end.before
    time = before.time if before is not None and before.sequence == start - 1 else None
    return StreamSample(start, Position(end.created, start, time, end.earliest, end.latest))


def _make_lag_sample(
    began: float, entries: Mapping[Key, OffsetEntry], before: Mapping[Key, OffsetEntry], ended: float
) -> LagSample:
    firsts = {key: first_sequence_of(entry, before.get(key)) for key, entry in entries.items()}
    return LagSample(began, ended, {key: StreamSample(firsts[key], entry.end) for key, entry in entries.items()})


def _number_sources(plans: Sequence[Planned]) -> dict[int | str, int | str]:
    """Return the sources, with the numbers that a query's progress gives them; a name stays.

    Uses whose offsets were always the same are one source. Two sources may look like that too: then they are at the
    same place of the same streams, so one of them says it all.
    """
    if not plans:
        return {}

    def same(one: int | str, other: int | str) -> bool:
        offsets = [(plan.offsets.get(one), plan.offsets.get(other)) for plan in plans if plan.are_uses]
        return bool(offsets) and all(mine is not None and mine == others for mine, others in offsets)

    found = list(plans[-1].offsets)
    kept = [each for i, each in enumerate(found) if not any(same(each, before) for before in found[:i])]
    if any(isinstance(each, str) for each in kept):
        return {each: str(each) for each in kept}
    return {each: i for i, each in enumerate(sorted(kept))}


def _split_named_line(line: str) -> tuple[int | str, str]:
    """Split a line of the second format; raise ValueError for another one."""
    source, colon, offset = line.partition(":")
    if not colon or not re.fullmatch("[A-Za-z0-9_]+", source):
        raise ValueError("a line without the source's number or name")
    return (int(source) if source.isascii() and source.isdigit() else source), offset


def _without_secrets(location: str) -> str:
    """Return a URI as it may be shown: ``s3://`` can have a key before the host, and others in its query."""
    if "://" not in location:
        return location
    return re.sub(r"(//[^/:@]*:)[^/]*@|\?.*", lambda found: f"{found[1]}…@" if found[1] else "?…", location)


class _Files:
    """The files of a checkpoint."""

    def __init__(self, location: str) -> None:
        from pyarrow import fs

        self._uri, self.location = location, _without_secrets(location)
        with self._converting_errors():
            location = re.sub("^file:/+", "/", location)  # as Hadoop writes it
            if "://" not in location:
                location = str(Path(location).expanduser().absolute())
            self._fs, self._root = fs.FileSystem.from_uri(location)
            if self._fs.get_file_info(self._root).type is not fs.FileType.Directory:
                raise NatsError(conditions.CHECKPOINT_NO_DIRECTORY(location=self.location))

    def list_numbers(self, log: str) -> set[int]:
        """Return the numbers of the micro-batches in a log."""
        from pyarrow import fs

        with self._converting_errors():
            listed = self._fs.get_file_info(fs.FileSelector(f"{self._root}/{log}", allow_not_found=True))
        return {int(info.base_name) for info in listed if re.fullmatch("[0-9]{1,18}", info.base_name)}

    def read_micro_batch(self, number: int) -> Planned:
        """Return a micro-batch from the log of offsets."""
        lines = self._read_text(f"offsets/{number}").split("\n")
        try:
            if lines[0] not in ("v1", "v2"):
                raise NatsError(conditions.CHECKPOINT_VERSION(location=self.location, version=lines[0][:20]))
            began = integer_at(parse_object(lines[1]), "batchTimestampMs") / 1000
            datetime.fromtimestamp(began, UTC)
            are_uses = lines[0] == "v1"
            texts = dict(enumerate(lines[2:]) if are_uses else map(_split_named_line, lines[2:]))
        except (IndexError, ValueError, OverflowError, OSError):
            raise NatsError(conditions.CHECKPOINT_NOT_OF_SPARK(batch=number, location=self.location)) from None
        offsets = {source: self._parse_offset(number, i, line) for i, (source, line) in enumerate(texts.items(), 3)}
        return Planned(began, offsets, are_uses)

    def _parse_offset(self, number: int, line: int, text: str) -> QueryOffset | None:
        """Return the offset on a line; None when it is another source's."""
        try:
            document = parse_object(text)
        except ValueError as error:
            if not text.startswith("{"):
                return None
            raise self._damage_error(number, f"its line {line} is no JSON ({error})") from None
        try:
            return from_json(document) if is_streams_offset(document) else None
        except NatsError as error:
            raise self._damage_error(number, str(error)) from None

    def _damage_error(self, number: int, why: str) -> NatsError:
        return NatsError(conditions.CHECKPOINT_DAMAGED(batch=number, location=self.location, reason=why))

    def read_end_time(self, number: int) -> float:
        """Return when a micro-batch ended, in seconds since 1970; 0 when the file system does not say."""
        with self._converting_errors():
            return float(self._fs.get_file_info(f"{self._root}/commits/{number}").mtime_ns or 0) / 1e9

    def read_query_id(self) -> str:
        """Return the query's id; ``unknown`` when the metadata has none."""
        try:
            return printable(string_at(parse_object(self._read_text("metadata")), "id"))
        except ValueError:
            return "unknown"

    def _read_text(self, name: str) -> str:
        with self._converting_errors(), self._fs.open_input_stream(f"{self._root}/{name}") as file:
            return bytes(file.read()).decode("utf-8", "replace")

    @contextlib.contextmanager
    def _converting_errors(self) -> Iterator[None]:
        """Turn errors of the file system, raised by the operating system or PyArrow, into errors of this checkpoint."""
        try:
            yield
        except (OSError, ValueError, RuntimeError, NotImplementedError) as error:  # RuntimeError: a user without a home
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        else:
            return
        reason = reason.replace(self._uri, self.location)
        raise NatsError(conditions.CHECKPOINT_UNREADABLE(location=self.location, reason=reason))
