"""The notes that tasks write to the state bucket when they begin."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from spark_nats import clock
from spark_nats.errors import JetStreamError, NatsError, PermissionsError
from spark_nats.jetstream.api import JetStream
from spark_nats.jetstream.id_memory import IdMemory, memory_of
from spark_nats.jetstream.keyvalue import Bucket, Entry
from spark_nats.jetstream.positions import Position, end_of
from spark_nats.jetstream.streams import StreamInfo
from spark_nats.kinds.streams.options import WriteOptions
from spark_nats.kinds.streams.write.conditions import NOTE_INVALID, STATE_BUCKET_UNUSABLE
from spark_nats.kinds.streams.write.tasks import StartMark, WriteTask
from spark_nats.protocol.api import ErrCode
from spark_nats.protocol.documents import integer_at, parse_document, string_at, text_of, time_at

_CLOCKS_DIFFER = 1_000_000_000  # nanoseconds by which the clocks of two machines may differ without a step
_ONCE_MORE = 0.25  # seconds until a key is read again after its revision was not the last one
_NOTED_MEANWHILE = (ErrCode.WRONG_LAST_SEQUENCE, ErrCode.SUBJECT_IN_PROCESS)


class Note(NamedTuple):
    """The note of a task that began.

    Attributes:
        batch: the task's micro-batch.
        mark: where the target stream ended when the task began.
        run: id of the query's run; empty in notes of older versions.
        planned: when the driver planned the micro-batch, see :class:`~.tasks.WriteTask`; 0 if that is unknown.
    """

    batch: int
    mark: StartMark
    run: str = ""
    planned: int = 0


def read_note(js: JetStream, options: WriteOptions, key: str) -> tuple[Entry, Note | None]:
    """Return the entry of a key in the state bucket, and the note that the entry holds; None when it is empty.

    Raises:
        NatsError: the entry cannot be read, or is not a note.
    """
    with about_the_bucket(options):
        entry = Bucket(js, options.state_bucket).get(key)
    return entry, note_of(entry, key)


def write_note(
    js: JetStream, options: WriteOptions, task: WriteTask, mark: StartMark, revision: int, deadline: float
) -> int:
    """Note where a task begins; return the note's revision.

    If ``revision`` is stale, or the key is being written, wait a moment and return 0.

    Raises:
        NatsError: the note cannot be written; or another attempt still changes it after the deadline.
    """
    batch = int(task.batch or 0)
    note = {"batch": batch, "stream": mark.stream, "created": mark.end.created, "sequence": mark.end.last}
    if task.run:
        note |= {"run": task.run, "planned": task.planned}
    if mark.time:
        note["time"] = text_of(mark.time)
    if mark.end.time:
        note["timestamp"] = text_of(mark.end.time)
    if mark.passed:
        note["passed"] = mark.passed
    if mark.end.latest:
        note["latest"] = text_of(mark.end.latest)
    if mark.process:
        note |= {"process": mark.process, "id_lifetime_ms": int(mark.id_lifetime * 1000), "noted": mark.noted}
    with about_the_bucket(options):
        try:
            return Bucket(js, options.state_bucket).put(task.key, json.dumps(note).encode(), revision)
        except JetStreamError as error:
            # A stale leader has returned an old revision, or another attempt has just written the note.
            if error.err_code not in _NOTED_MEANWHILE or clock.monotonic() > deadline:
                raise
            js.connection.wait(_ONCE_MORE)
    return 0


def mark_now(js: JetStream, stream: StreamInfo) -> StartMark:
    """Return a stream's end, from the state that was just reported, for a task or a batch write that begins now."""
    memory = memory_of(js, stream)
    return StartMark(stream.name, end_of(stream), stream.time, clock.time_ns(), memory.process, memory.lifetime)


def memory_at(mark: StartMark) -> IdMemory:
    """Return what held the stream's message ids when a task began."""
    return IdMemory(mark.end.created, mark.process, mark.id_lifetime)


def age_of(mark: StartMark, now: int) -> float:
    """Return the seconds since a task began, by a server's clock that reads ``now`` and by this machine's.

    Return -1 if the server's clock was set back since: then a restart forgets also ids of messages that it still has
    (seen with nats-server 2.15.1).
    """
    if now < mark.time or set_back(mark, now) > _CLOCKS_DIFFER:
        return -1.0
    return max(now - mark.time, clock.time_ns() - mark.noted) / 1e9


def set_back(mark: StartMark, now: int) -> int:
    """Return by how many nanoseconds a server's clock, which reads ``now``, was set back since a task began.

    It is compared with the clocks of this machine and of the one that noted the task.
    """
    return max(0, mark.time - mark.noted - (now - clock.time_ns())) if mark.noted and now else 0


def note_of(entry: Entry, key: str) -> Note | None:
    """Return the note that an entry holds; None when the entry is empty.

    Raises:
        NatsError: the entry holds something else.
    """
    if not entry.value:
        return None
    try:
        note = parse_document(entry.value)
        stored = time_at(note, "timestamp") if "timestamp" in note else None
        latest = time_at(note, "latest") if "latest" in note else None
        end = Position(string_at(note, "created"), integer_at(note, "sequence") + 1, stored or None, latest=latest)
        time = time_at(note, "time") if "time" in note else entry.time
        passed = integer_at(note, "passed") if "passed" in note else 0
        mark = StartMark(string_at(note, "stream"), end, time, passed=passed)
        if "process" in note:
            noted, lifetime = integer_at(note, "noted"), integer_at(note, "id_lifetime_ms") / 1000
            mark = replace(mark, noted=noted, process=string_at(note, "process"), id_lifetime=lifetime)
        run = string_at(note, "run") if "run" in note else ""
        return Note(integer_at(note, "batch"), mark, run, integer_at(note, "planned") if "planned" in note else 0)
    except ValueError as error:
        raise NatsError(NOTE_INVALID(key=key, reason=error)) from None


@contextlib.contextmanager
def about_the_bucket(options: WriteOptions) -> Iterator[None]:
    """Add to an error that it is about the state bucket, and what to do."""
    try:
        yield
    except (PermissionsError, JetStreamError) as error:
        raise error.with_context(STATE_BUCKET_UNUSABLE(bucket=options.state_bucket, reason=error)) from None
