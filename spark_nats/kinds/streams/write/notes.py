"""The notes that tasks write to the state bucket when they begin, and what other attempts have stored.

An attempt may run on where Spark does not see it any more, while another one has begun. Both store rows, and the ids
protect them for a while. Then the earlier one has to end (:class:`Fence`).
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_nats import clock
from spark_nats.client.connection import Connection
from spark_nats.errors import JetStreamError, NatsError, PermissionsError, PublishError
from spark_nats.jetstream.api import JetStream
from spark_nats.jetstream.consuming.consumers import check_read_permission
from spark_nats.jetstream.id_memory import IdMemory, id_memory_of
from spark_nats.jetstream.keyvalue import Bucket, Entry
from spark_nats.jetstream.messages import ask_first_message_from
from spark_nats.jetstream.positions import Position, end_position_of
from spark_nats.jetstream.reading.stored import StoredIds, read_ids
from spark_nats.jetstream.streams import LIMITS, StreamInfo
from spark_nats.jetstream.views import Trust, ask_again_if_doubted, ask_stream_info
from spark_nats.kinds.streams.options import WriteOptions
from spark_nats.kinds.streams.write import conditions
from spark_nats.kinds.streams.write.tasks import StartMark, WriteTask
from spark_nats.options.data_loss import raise_or_log_loss
from spark_nats.protocol.api import ErrCode
from spark_nats.protocol.bytecolumns import Mask, Positions, booleans, flags_of, integers, integers_of
from spark_nats.protocol.documents import format_time, integer_at, parse_limited_object, string_at, time_at

_CLOCKS_DIFFER = 1_000_000_000  # nanoseconds by which the clocks of two machines may differ without a step
_ONCE_MORE = 0.25  # seconds until a key is read again after its revision was not the last one
_NOTED_MEANWHILE = (ErrCode.WRONG_LAST_SEQUENCE, ErrCode.SUBJECT_IN_PROCESS)


class Note(NamedTuple):
    """The note of a task that began.

    Attributes:
        batch: the task's micro-batch.
        mark: where the target stream ended when the task began.
        run: id of the query's run; empty in notes of older versions.
        planned_at: when the driver planned the micro-batch, see :class:`~.tasks.WriteTask`; 0 if that is unknown.
    """

    batch: int
    mark: StartMark
    run: str = ""
    planned_at: int = 0


def ask_entry_and_note(js: JetStream, options: WriteOptions, key: str) -> tuple[Entry, Note | None]:
    """Return the entry of a key in the state bucket, and the note that the entry holds; None when it is empty.

    Raises:
        NatsError: the entry cannot be read, or is not a note.
    """
    with reporting_unusable_bucket(options):
        entry = Bucket(js, options.state_bucket).get(key)
    return entry, parse_note(entry, key)


def write_note_or_pause(
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
        note |= {"run": task.run, "planned": task.planned_at}
    times = {"time": mark.time, "timestamp": mark.end.time, "latest": mark.end.latest}
    note |= {name: format_time(time) for name, time in times.items() if time}
    if mark.passed:
        note["passed"] = mark.passed
    if mark.process:
        note |= {"process": mark.process, "id_lifetime_ms": int(mark.id_lifetime * 1000), "noted": mark.noted}
    with reporting_unusable_bucket(options):
        try:
            return Bucket(js, options.state_bucket).put(task.note_key, json.dumps(note).encode(), revision)
        except JetStreamError as error:
            # A stale leader has returned an old revision, or another attempt has just written the note.
            if error.err_code not in _NOTED_MEANWHILE or clock.monotonic() > deadline:
                raise
            js.connection.wait_while_receiving(_ONCE_MORE)
    return 0


def start_mark_at_end(js: JetStream, stream: StreamInfo) -> StartMark:
    """Return a stream's end, from the state that was just reported, for a task or a batch write that begins now."""
    memory = id_memory_of(js, stream)
    return StartMark(
        stream.name, end_position_of(stream), stream.time, clock.time_ns(), memory.process, memory.lifetime
    )


def id_memory_at(mark: StartMark) -> IdMemory:
    """Return what held the stream's message ids when a task began."""
    return IdMemory(mark.end.created, mark.process, mark.id_lifetime)


def seconds_since_or_negative(mark: StartMark, now: int) -> float:
    """Return the seconds since a task began, by a server's clock that reads ``now`` and by this machine's.

    Return -1 if the server's clock was set back since: then a restart forgets also ids of messages that it still has
    (seen with nats-server 2.15.1).
    """
    if now < mark.time or clock_setback(mark, now) > _CLOCKS_DIFFER:
        return -1.0
    return max(now - mark.time, clock.time_ns() - mark.noted) / 1e9


def clock_setback(mark: StartMark, now: int) -> int:
    """Return by how many nanoseconds a server's clock, which reads ``now``, was set back since a task began.

    It is compared with the clocks of this machine and of the one that noted the task.
    """
    return max(0, mark.time - mark.noted - (now - clock.time_ns())) if mark.noted and now else 0


def parse_note(entry: Entry, key: str) -> Note | None:
    """Return the note that an entry holds; None when the entry is empty.

    Raises:
        NatsError: the entry holds something else.
    """
    if not entry.value:
        return None
    try:
        note = parse_limited_object(entry.value)
        times = {name: time_at(note, name) for name in ("time", "timestamp", "latest") if name in note}
        numbers = {name: integer_at(note, name) for name in ("passed", "planned") if name in note}
        stored, latest = times.get("timestamp") or None, times.get("latest")
        end = Position(string_at(note, "created"), integer_at(note, "sequence") + 1, stored, latest=latest)
        passed = numbers.get("passed", 0)
        mark = StartMark(string_at(note, "stream"), end, times.get("time", entry.time), passed=passed)
        if "process" in note:
            noted, lifetime = integer_at(note, "noted"), integer_at(note, "id_lifetime_ms") / 1000
            mark = replace(mark, noted=noted, process=string_at(note, "process"), id_lifetime=lifetime)
        run = string_at(note, "run") if "run" in note else ""
        return Note(integer_at(note, "batch"), mark, run, numbers.get("planned", 0))
    except ValueError as error:
        raise NatsError(conditions.NOTE_INVALID(key=key, reason=error)) from None


@contextlib.contextmanager
def reporting_unusable_bucket(options: WriteOptions) -> Iterator[None]:
    """Add to an error that it is about the state bucket, and what to do."""
    try:
        yield
    except (PermissionsError, JetStreamError) as error:
        raise error.with_message(conditions.STATE_BUCKET_UNUSABLE(bucket=options.state_bucket, reason=error)) from None


def still_knows_ids_since(mark: StartMark, stream: StreamInfo, memory_now: IdMemory) -> bool:
    """Tell whether a stream certainly knows the ids of all that it has stored since a mark, without being read."""
    noted = id_memory_at(mark)
    is_known = noted.knows_ids_of_kept_messages if stream.has_all_after(mark.end.last) else noted.knows_all_ids
    return is_known(memory_now, seconds_since_or_negative(mark, stream.time))


def ask_state_and_id_memory(js: JetStream, stream: str) -> tuple[StreamInfo, IdMemory]:
    """Return a stream's state, asked twice where a former leader may answer, and what holds its message ids."""
    info = ask_again_if_doubted(js, ask_stream_info(js, stream), Trust.TWICE)
    return info, id_memory_of(js, info)


def raise_or_warn_stored_unknown(fail: bool, task: WriteTask, why: str) -> None:
    """Fail or warn because it is unknown what an earlier attempt has stored."""
    what = conditions.STORED_BEFORE_UNKNOWN(task=task.name, reason=why)
    raise_or_log_loss(what, fail, "all of its rows that are not found, so that some may be stored twice")


class AlreadyStored:
    """Rows that an earlier attempt has stored.

    Args:
        found: the message ids of what the stream has stored since the task first began.
        prefix: prefix of this task's generated ids.
        stream: the stream's state when it was read.
        own_ids: whether rows may have other ids.
        keeps_last_values: whether what counts is the last message of each subject, and rows have generated ids. A row
            that is not found may then be stored and replaced since.
        report: reports that it is unknown whether rows that are not found are stored.

    Attributes:
        rows: how many rows :meth:`note_and_find_missing` has found to be stored.
    """

    def __init__(
        self,
        found: StoredIds,
        prefix: str,
        stream: StreamInfo,
        own_ids: bool,
        keeps_last_values: bool = False,
        report: Callable[[str], None] | None = None,
    ) -> None:
        self._found, self._report = found, report
        self._stream = stream
        self._sought = "" if own_ids else prefix
        self._ids = pc.unique(found.ids)
        self._generated = flags_of(pc.starts_with(self._ids, prefix))
        self._met = np.zeros(len(self._ids), np.bool_)
        self._last_values: _LastValues | None = None
        if keeps_last_values and found.subjects is not None:
            self._last_values = _LastValues(self._ids, found)
        self.rows = 0

    def raise_or_warn_forgotten_or_defer(self) -> None:
        """Report that the stream has forgotten ids of rows that it does not have any more.

        Where the last message of each subject is what counts, report it only when such a row comes.

        Raises:
            DataLossError: ``failOnDataLoss`` is set.
        """
        if self._last_values is not None and self._found.only_by_subject:
            self._last_values.report = self._report
        elif self._report is not None:
            self._report(self._found.removed)

    def note_and_find_missing(self, ids: pa.Array, subjects: pa.Array | None = None) -> Mask:
        """Return a mask of the rows to store, by message id (a string column); a row without an id is one of them.

        Raises:
            DataLossError: it is unknown whether rows are stored, and ``failOnDataLoss`` is set.
        """
        place = pc.index_in(ids.cast(pa.binary()), self._ids)
        stored = flags_of(place.is_valid())
        places = integers_of(place.filter(booleans(stored)))
        self._met[places] = True
        if self._last_values is not None and subjects is not None:
            stored = self._last_values.note_and_find_unneeded(subjects, stored, places)
        self.rows += int(np.count_nonzero(stored))
        return ~stored

    def read_newer_and_describe_lost(self, js: JetStream) -> str:
        """Add the ids of what the stream has stored since it was read; return which messages are lost, if any.

        Raises:
            NatsError: it could not be read.
        """
        since = self._stream.last_sequence
        stream = self._stream = ask_again_if_doubted(js, ask_stream_info(js, self._stream.name), Trust.TWICE)
        if stream.last_sequence <= since:
            return ""
        found = read_ids(js, stream, since, self._sought)
        new = pc.unique(found.ids.filter(pc.invert(pc.is_in(found.ids, self._ids))))
        self._ids = pa.concat_arrays([self._ids, new])
        # This attempt may have stored them itself, so none is unexpected.
        none = np.zeros(len(new), np.bool_)
        self._generated, self._met = np.append(self._generated, none), np.append(self._met, none)
        return "" if found.only_by_subject else found.removed

    @property
    def unexpected_earlier_rows(self) -> int:
        """Number of rows with generated ids that this task has stored before and that are not among its rows now."""
        return int(np.count_nonzero(self._generated & ~self._met))


class _LastValues:
    """Finds rows of a task that a later row of their subject has replaced, while rows come in order.

    The stream still has some of the task's rows. As long as one of a subject has not come yet, a row of that subject
    that is not found comes before it. So it was stored and is replaced, or must not be stored any more. Of what is
    found, the last row has to be the last in the stream too, or it is stored again. What others have stored behind all
    of them is newer, and stays.

    Attributes:
        report: reports that it is unknown whether a row is stored; None where that is known.
    """

    report: Callable[[str], None] | None = None

    def __init__(self, ids: pa.Array, found: StoredIds) -> None:
        # Where each id was found last: a row may have been stored again, to be the last of its subject.
        self._places = len(found.ids) - 1 - integers_of(pc.index_in(ids, found.ids[::-1]).cast(pa.int64()))
        assert found.subjects is not None  # noqa: S101 - the stream keeps last values
        codes = found.subjects.take(integers(self._places)).dictionary_encode()
        self._subjects, of_subject = codes.dictionary, integers_of(codes.indices.cast(pa.int64()))
        self._left = np.bincount(of_subject, minlength=len(self._subjects))  # rows that have not come yet
        self._last = np.zeros(len(self._subjects), np.int64)  # where the last message of each was found
        np.maximum.at(self._last, of_subject, self._places)
        assert found.are_ends is not None  # noqa: S101
        self._is_end = found.are_ends[self._last]  # whether nobody else has stored anything behind it
        self._found = found

    def note_and_find_unneeded(self, subjects: pa.Array, found: Mask, which: Positions) -> Mask:
        """Return a mask of rows that are in place, or must not be stored; ``which`` ids are those of the found ones."""
        of_known = pc.index_in(subjects, self._subjects)
        known = flags_of(of_known.is_valid())
        codes = np.full(len(subjects), -1)
        codes[known] = integers_of(of_known.drop_null())
        rows, is_first = np.flatnonzero(found), which < len(self._places)  # others were found when it was read on
        rows, which = rows[is_first], which[is_first]
        had = np.zeros(len(found), np.bool_)
        had[rows] = True
        order = np.argsort(codes, kind="stable")
        so_far = np.cumsum(had[order])
        begins = np.searchsorted(codes[order], codes[order])
        met = np.empty(len(codes), np.int64)
        met[order] = so_far - np.concatenate([[0], so_far])[begins]  # of the subject, up to and including the row
        placed = found.copy()
        if len(self._left):
            left = self._left[codes] - met
            placed |= known & ~found & (left > 0)
            of_row = codes[rows]
            is_behind = (self._places[which] != self._last[of_row]) & self._is_end[of_row]
            placed[rows[(left[rows] == 0) & is_behind]] = False
            np.subtract.at(self._left, codes[rows], 1)
        unsure = subjects.filter(booleans(~found & ~known))
        if self.report is not None and flags_of(pc.is_in(unsure, self._found.full)).any():
            self.report(self._found.removed)
            self.report = None
        return placed


class Fence:
    """Keeps apart the attempts at a task of a micro-batch that run at the same time.

    An attempt reads the note again at regular times, and ends if a later one has written it since. A later attempt
    reads the stream back once more when earlier ones have ended by that, while the stream still knows all their ids.
    """

    def __init__(self, options: WriteOptions, task: WriteTask, stream: StreamInfo) -> None:
        self._options = options
        self._task = task
        self._window = stream.duplicate_window
        self._revision = 0  # of the note that this attempt has written
        self._connection: Connection | None = None  # over which the note was last read or written
        self._process = ""  # that held the stream's message ids then
        self._noted = self._asked = clock.monotonic()
        self.earlier: list[AlreadyStored] = []  # the rows of earlier attempts, until they are read back once more
        # Where an attempt began, if only the stream's memory tells some of its rows; what to do once that may be lost.
        self._remembered: tuple[StartMark, Callable[[], None]] | None = None

    def try_to_write_note(self, js: JetStream, mark: StartMark, revision: int, deadline: float) -> bool:
        """Write the note as :func:`~.notes.write_note_or_pause` does; return whether it is written."""
        self._revision = write_note_or_pause(js, self._options, self._task, mark, revision, deadline)
        self._noted = self._asked = clock.monotonic()
        self._connection, self._process = js.connection, mark.process
        return self._revision > 0

    def note_reliance_on_memory(self, mark: StartMark, doubt: Callable[[], None]) -> None:
        """Rely on the stream's memory of ids alone for rows of the attempt that began last before this, at a mark.

        From now on the fence checks before every batch. Once the memory may be lost, ``doubt`` is called.
        """
        self._remembered = mark, doubt

    def is_check_due(self, connection: Connection) -> bool:
        """Tell whether to :meth:`check_latest_and_read_newer` before more rows are sent over a connection."""
        is_other = connection is not self._connection
        return is_other or self._remembered is not None or clock.monotonic() - self._asked > self._window / 8

    def check_latest_and_read_newer(self, js: JetStream) -> None:
        """Check that no later attempt has begun, and that what earlier ones have stored is still known.

        Raises:
            PublishError: one has.
            DataLossError: the ids of what they have stored may be forgotten, and ``failOnDataLoss`` is set.
            NatsError: the note or the stream cannot be read.
        """
        now = clock.monotonic()
        self._check_no_later_attempt(js)
        self._asked = now
        self._ask_and_doubt_if_lost(js)
        may_have_forgotten = self._ask_and_note_process_change(js)
        is_last_look = now - self._noted > self._window / 4
        if may_have_forgotten or is_last_look:
            self._read_newer_and_raise_or_warn(js, may_have_forgotten)
        if is_last_look:
            self.earlier.clear()

    def _check_no_later_attempt(self, js: JetStream) -> None:
        """Raise :class:`PublishError` if a later attempt has written the note."""
        entry, _ = ask_entry_and_note(js, self._options, self._task.note_key)
        if entry.revision > self._revision:
            raise PublishError(conditions.ATTEMPT_TOO_LATE(task=self._task.name, other="another attempt at it"))

    def _ask_and_doubt_if_lost(self, js: JetStream) -> None:
        """Doubt what only the stream's memory tells, if that may be lost by now."""
        if self._remembered is not None:
            mark, doubt = self._remembered
            stream, memory = ask_state_and_id_memory(js, str(self._options.stream))
            if not still_knows_ids_since(mark, stream, memory):
                self._remembered = None
                doubt()

    def _ask_and_note_process_change(self, js: JetStream) -> bool:
        """Tell whether, over another connection, another process of a server holds the ids: it may not have them."""
        if js.connection is self._connection:
            return False
        before, self._process = self._process, id_memory_of(js, ask_stream_info(js, str(self._options.stream))).process
        self._connection = js.connection
        return self._process != before or not self._process

    def _read_newer_and_raise_or_warn(self, js: JetStream, may_have_forgotten: bool) -> None:
        """Read what earlier attempts have stored meanwhile."""
        for each in self.earlier:
            # An earlier attempt is seldom running; only one that did so before ids were forgotten makes this an error.
            if removed := each.read_newer_and_describe_lost(js):
                raise_or_warn_stored_unknown(
                    may_have_forgotten and self._options.fail_on_data_loss, self._task, removed
                )


def check_can_read_back(js: JetStream, stream: StreamInfo, singly: bool = False) -> None:
    """Check that tasks can read back what they store in a stream with limits retention.

    If ``singly``, also check reading one message at a time, which finds the first message since a time.

    Raises:
        NatsError: tasks cannot.
    """
    if stream.retention == LIMITS:
        try:
            check_read_permission(js, stream.name, stream.last_sequence + 1)
            if singly:
                ask_first_message_from(js, stream.name, stream.last_sequence + 1, (">",), with_headers=False)
        except (PermissionsError, JetStreamError) as error:
            raise error.with_message(conditions.CANNOT_READ_BACK(stream=stream.name, reason=error)) from None
