"""A query's position from its checkpoint: Spark's logs of planned and of finished micro-batches.

``offsets/<n>`` has the end of micro-batch n: two lines of Spark's own, then a line of JSON for each source.
``commits/<n>`` exists when micro-batch n has ended. Nothing here writes to the checkpoint.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from spark_nats.commands import conditions
from spark_nats.conditions.others import NOT_BEHIND
from spark_nats.errors import NatsError
from spark_nats.jetstream.positions import Position
from spark_nats.kinds.streams.read.positions import OffsetEntry, QueryOffset, from_json
from spark_nats.lag import MAX_SAMPLES, Key, LagSample, is_ours, start_of
from spark_nats.protocol.documents import integer_at, parse_object, printable, string_at


class Planned(NamedTuple):
    """A micro-batch as it was planned."""

    began: float  # when, in seconds since 1970
    entries: dict[Key, OffsetEntry]  # what it has of each stream
    reads_nats: bool  # whether the query reads streams of NATS; there may be none yet


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
    planned, ended = files.numbers("offsets"), files.numbers("commits")
    if not planned:
        raise NatsError(conditions.NO_CHECKPOINT(location=location))
    batch = max(ended, default=-1)
    under_way = files.planned(batch + 1) if batch + 1 in planned else None
    known = {n: files.planned(n) for n in sorted(planned & ended)[-MAX_SAMPLES - 1 :]}
    samples = [_sample(batch_planned, known.get(n - 1), files.ended(n)) for n, batch_planned in known.items()]
    if not samples and under_way is not None:
        start = {key: start_of(part, None) for key, part in under_way.entries.items()}
        ends = {key: part.end for key, part in under_way.entries.items()}
        positions = {key: _beginning(end, start[key]) for key, end in ends.items()}
        samples = [LagSample(under_way.began, under_way.began, start, positions, {})]
    if not samples or (ended and batch not in known):
        raise NatsError(conditions.CHECKPOINT_INCOMPLETE(location=location, batch=batch))
    last = known.get(batch, under_way)
    if last is None or not last.reads_nats:
        raise NatsError(NOT_BEHIND(query=f"of {location!r}"))
    since = datetime.fromtimestamp(under_way.began, UTC) if under_way else None
    return Checkpoint(files.query(), tuple(samples[-MAX_SAMPLES:]), batch, since)


def _beginning(end: Position, start: int) -> Position:
    """Return where a micro-batch begins at a sequence, by what the position at its end notes of that."""
    before = end.before
    time = before.time if before is not None and before.sequence == start - 1 else None
    return Position(end.created, start, time, end.earliest, end.latest)


def _sample(planned: Planned, before: Planned | None, ended: float) -> LagSample:
    begins = {key: entry.end for key, entry in before.entries.items()} if before else {}
    starts = {key: start_of(entry, begins.get(key)) for key, entry in planned.entries.items()}
    positions = {key: entry.end for key, entry in planned.entries.items()}
    return LagSample(planned.began, max(planned.began, ended), starts, positions, {})


class _Files:
    """The files of a checkpoint."""

    def __init__(self, location: str) -> None:
        from pyarrow import fs

        self._location = location
        location = re.sub("^file:/+", "/", location)  # as Hadoop writes it
        if "://" not in location:
            location = str(Path(location).expanduser().absolute())
        with self._errors():
            self._fs, self._root = fs.FileSystem.from_uri(location)
            if self._fs.get_file_info(self._root).type is not fs.FileType.Directory:
                raise NatsError(conditions.CHECKPOINT_NO_DIRECTORY(location=self._location))

    def numbers(self, log: str) -> set[int]:
        """Return the numbers of the micro-batches in a log."""
        from pyarrow import fs

        with self._errors():
            listed = self._fs.get_file_info(fs.FileSelector(f"{self._root}/{log}", allow_not_found=True))
        return {int(info.base_name) for info in listed if re.fullmatch("[0-9]{1,18}", info.base_name)}

    def planned(self, number: int) -> Planned:
        """Return a micro-batch from the log of offsets."""
        lines = self._text(f"offsets/{number}").split("\n")
        try:
            if lines[0] != "v1":
                raise NatsError(conditions.CHECKPOINT_VERSION(location=self._location, version=lines[0][:20]))
            began = integer_at(parse_object(lines[1]), "batchTimestampMs") / 1000
            datetime.fromtimestamp(began, UTC)
        except (IndexError, ValueError, OverflowError, OSError):
            raise NatsError(conditions.CHECKPOINT_NOT_OF_SPARK(batch=number, location=self._location)) from None
        offsets = [self._offset(number, i, line) for i, line in enumerate(lines[2:], 3)]
        entries = {(i, name): entry for i, offset in enumerate(offsets) for name, entry in (offset or {}).items()}
        return Planned(began, entries, any(offset is not None for offset in offsets))

    def _offset(self, number: int, line: int, text: str) -> QueryOffset | None:
        """Return the offset on a line; None when it is another source's."""
        try:
            document = parse_object(text)
        except ValueError as error:
            if not text.startswith("{"):
                return None
            raise self._damaged(number, f"its line {line} is no JSON ({error})") from None
        try:
            return from_json(document) if is_ours(document) else None
        except NatsError as error:
            raise self._damaged(number, str(error)) from None

    def _damaged(self, number: int, why: str) -> NatsError:
        return NatsError(conditions.CHECKPOINT_DAMAGED(batch=number, location=self._location, reason=why))

    def ended(self, number: int) -> float:
        """Return when a micro-batch ended, in seconds since 1970; 0 when the file system does not say."""
        with self._errors():
            return float(self._fs.get_file_info(f"{self._root}/commits/{number}").mtime_ns or 0) / 1e9

    def query(self) -> str:
        """Return the query's id; ``unknown`` when the metadata has none."""
        try:
            return printable(string_at(parse_object(self._text("metadata")), "id"))
        except ValueError:
            return "unknown"

    def _text(self, name: str) -> str:
        with self._errors(), self._fs.open_input_stream(f"{self._root}/{name}") as file:
            return bytes(file.read()).decode("utf-8", "replace")

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Turn errors of the file system, raised by the operating system or PyArrow, into errors of this checkpoint."""
        try:
            yield
        except (OSError, ValueError, NotImplementedError) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise NatsError(conditions.CHECKPOINT_UNREADABLE(location=self._location, reason=reason)) from None
