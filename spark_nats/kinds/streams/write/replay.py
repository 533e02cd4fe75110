"""Finding the rows that an earlier attempt at the same task has stored, however long ago.

A stream recognizes a message id for its ``duplicate_window`` only. So each task of a streaming query notes, before its
first row, where the stream ends: in a KV bucket, under a key for the query and the partition. A task that finds its own
micro-batch noted there knows that an earlier attempt has begun it. The task reads the message ids of what the stream
has stored since, and leaves out their rows. The ids still protect against attempts that run at the same time.

Servers may come back with less than they had stored. So the note holds when the stream's last message was stored, which
tells a stream restored from an old backup from one that has only grown. On a restored stream, the task reads from where
the present history begins. :mod:`.task_start` describes how a restored bucket is detected.

An attempt may run on where Spark does not see it any more, while another one has begun. Both store rows, and the ids
protect them for a while. Then the earlier one has to end (:class:`Fence`).

A batch write does not outlive its driver. So the driver notes where the stream ends, and gives that to retried tasks.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Concatenate, NamedTuple, ParamSpec

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_nats import clock
from spark_nats.client.connection import Connection
from spark_nats.client.pool import Lease
from spark_nats.client.retrying import Result
from spark_nats.errors import JetStreamError, NatsError, PermissionsError, PublishError
from spark_nats.jetstream.api import JetStream
from spark_nats.jetstream.consuming.consumers import check_read_permission
from spark_nats.jetstream.id_memory import IdMemory, memory_of
from spark_nats.jetstream.judgement import SKEW, Judgement, has_only_skipped
from spark_nats.jetstream.keyvalue import Entry
from spark_nats.jetstream.messages import next_message
from spark_nats.jetstream.positions import Position
from spark_nats.jetstream.reading.stored import StoredIds, cannot_read, history_of, is_intact, stored_ids
from spark_nats.jetstream.streams import LIMITS, StreamInfo
from spark_nats.jetstream.views import CONFIRMATION, Trust, believed, first_new, stream_info
from spark_nats.kinds.streams.options import EXACT, WriteOptions
from spark_nats.kinds.streams.write import conditions
from spark_nats.kinds.streams.write.message_ids import MessageIds
from spark_nats.kinds.streams.write.notes import Note, age_of, mark_now, memory_at, note_of, read_note, write_note
from spark_nats.kinds.streams.write.task_start import Inputs, StreamTail, begin
from spark_nats.kinds.streams.write.tasks import StartMark, WriteTask
from spark_nats.options.data_loss import report_loss
from spark_nats.protocol.api import API_PREFIX
from spark_nats.protocol.bytecolumns import Mask, Positions, booleans, flags_of, integers, values_of
from spark_nats.protocol.documents import text_of

logger = logging.getLogger(__name__)

Given = ParamSpec("Given")
_TAIL = 4096  # messages at the end of a stream that are searched for rows of a task
_MOST_SEARCHED = 1 << 20  # messages that are searched to see whether micro-batches were skipped
_MAX_REMEMBERED = 1 << 14


_noted: dict[tuple[object, ...], int] = {}
"""The last micro-batch that a task of this process has noted, by the key's place and the run of the query; see
:mod:`spark_nats.client.host_cache`."""


class AlreadyStored:
    """Rows that an earlier attempt has stored.

    Args:
        found: the message ids of what the stream has stored since the task first began.
        prefix: prefix of this task's generated ids.
        stream: the stream's state when it was read.
        own_ids: whether rows may have other ids.
        keeps_last_values: whether what counts is the last message of each subject, and rows have generated ids. A row
            that is not found may then be stored and replaced since.
        report: reports that it is unknown whether rows that are not found are stored; None where it is known.

    Attributes:
        rows: how many rows :meth:`missing` has found to be stored.
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
        self._stream = stream
        self._sought = "" if own_ids else prefix
        self._ids = pc.unique(found.ids)
        self._generated = flags_of(pc.starts_with(self._ids, prefix))
        self._met = np.zeros(len(self._ids), np.bool_)
        self._last_values: _LastValues | None = None
        if keeps_last_values and found.subjects is not None:
            self._last_values = _LastValues(self._ids, found, report)
        self.rows = 0

    def missing(self, ids: pa.Array, subjects: pa.Array | None = None) -> Mask:
        """Return a mask of the rows to store, by message id (a string column); a row without an id is one of them.

        Raises:
            DataLossError: it is unknown whether rows are stored, and ``failOnDataLoss`` is set.
        """
        place = pc.index_in(ids.cast(pa.binary()), self._ids)
        stored = flags_of(place.is_valid())
        places = values_of(place.filter(booleans(stored)))
        self._met[places] = True
        if self._last_values is not None and subjects is not None:
            stored = self._last_values.placed(subjects, stored, places)
        self.rows += int(np.count_nonzero(stored))
        return ~stored

    def read_on(self, js: JetStream) -> str:
        """Add the ids of what the stream has stored since it was read; return which messages are lost, if any.

        Raises:
            NatsError: it could not be read.
        """
        since = self._stream.last_sequence
        stream = self._stream = believed(js, stream_info(js, self._stream.name), Trust.TWICE)
        if stream.last_sequence <= since:
            return ""
        found = stored_ids(js, stream, since, self._sought)
        new = pc.unique(found.ids.filter(pc.invert(pc.is_in(found.ids, self._ids))))
        self._ids = pa.concat_arrays([self._ids, new])
        # This attempt may have stored them itself, so none is unexpected.
        self._generated, self._met = (
            np.append(each, np.zeros(len(new), np.bool_)) for each in (self._generated, self._met)
        )
        return "" if found.only_by_subject else found.removed

    @property
    def unexpected(self) -> int:
        """Number of rows with generated ids that this task has stored before and that are not among its rows now."""
        return int(np.count_nonzero(self._generated & ~self._met))


class _LastValues:
    """Finds rows of a task that a later row of their subject has replaced, while rows come in order.

    The stream still has some of the task's rows. As long as one of a subject has not come yet, a row of that subject
    that is not found comes before it. So it was stored and is replaced, or must not be stored any more. Of what is
    found, the last row has to be the last in the stream too, or it is stored again. What others have stored behind all
    of them is newer, and stays.
    """

    def __init__(self, ids: pa.Array, found: StoredIds, report: Callable[[str], None] | None) -> None:
        # Where each id was found last: a row may have been stored again, to be the last of its subject.
        self._places = len(found.ids) - 1 - values_of(pc.index_in(ids, found.ids[::-1]).cast(pa.int64()))
        assert found.subjects is not None  # noqa: S101 - the stream keeps last values
        codes = found.subjects.take(integers(self._places)).dictionary_encode()
        self._subjects, of_subject = codes.dictionary, values_of(codes.indices.cast(pa.int64()))
        self._left = np.bincount(of_subject, minlength=len(self._subjects))  # rows that have not come yet
        self._last = np.zeros(len(self._subjects), np.int64)  # where the last message of each was found
        np.maximum.at(self._last, of_subject, self._places)
        assert found.are_ends is not None  # noqa: S101
        self._is_end = found.are_ends[self._last]  # whether nobody else has stored anything behind it
        self._found = found
        self._report = report

    def placed(self, subjects: pa.Array, found: Mask, which: Positions) -> Mask:
        """Return a mask of rows that are in place, or must not be stored; ``which`` ids are those of the found ones."""
        of_known = pc.index_in(subjects, self._subjects)
        known = flags_of(of_known.is_valid())
        codes = np.full(len(subjects), -1)
        codes[known] = values_of(of_known.drop_null())
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
        if self._report is not None and flags_of(pc.is_in(unsure, self._found.full)).any():
            self._report(self._found.removed)
            self._report = None
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
        # Where an earlier attempt began whose rows only the stream's memory of ids tells, as it cannot be read back.
        self.unread: StartMark | None = None

    def note(self, js: JetStream, mark: StartMark, revision: int, deadline: float) -> bool:
        """Write the note as :func:`~.notes.write_note` does; return whether it is written."""
        self._revision = write_note(js, self._options, self._task, mark, revision, deadline)
        self._noted = self._asked = clock.monotonic()
        self._connection, self._process = js.connection, mark.process
        return self._revision > 0

    def is_due(self, connection: Connection) -> bool:
        """Tell whether to :meth:`check` before more rows are sent over a connection."""
        return connection is not self._connection or clock.monotonic() - self._asked > self._window / 8

    def check(self, js: JetStream) -> None:
        """Check that no later attempt has begun, and that what earlier ones have stored is still known.

        Raises:
            PublishError: one has.
            DataLossError: the ids of what they have stored may be forgotten, and ``failOnDataLoss`` is set.
            NatsError: the note or the stream cannot be read.
        """
        now = clock.monotonic()
        entry, _ = read_note(js, self._options, self._task.key)
        if entry.revision > self._revision:
            raise PublishError(conditions.ATTEMPT_TOO_LATE(task=self._task.name, other="another attempt at it"))
        self._asked, is_another = now, False
        if self.unread is not None:
            stream, memory = _state_and_memory(js, str(self._options.stream))
            if not _still_knows(stream, memory, self.unread):
                self.unread = None
                report_unknown(self._options.fail_on_data_loss, self._task, cannot_read(stream))
        if js.connection is not self._connection:  # the server may have restarted, and forgotten ids
            process = memory_of(js, stream_info(js, str(self._options.stream))).process
            is_another = process != self._process or not process
            self._connection, self._process = js.connection, process
        is_last_look = now - self._noted > self._window / 4
        for each in self.earlier if is_another or is_last_look else ():
            # An earlier attempt is seldom running; only one that did so before ids were forgotten makes this an error.
            if removed := each.read_on(js):
                report_unknown(is_another and self._options.fail_on_data_loss, self._task, removed)
        if is_last_look:
            self.earlier.clear()


class EarlierAttempt(NamedTuple):
    """What is known of an earlier attempt at a task.

    Attributes:
        mark: where the stream ended when the task first began.
        already_stored: the rows that it has stored; None where the stream cannot be read back.
    """

    mark: StartMark
    already_stored: AlreadyStored | None


def find_already_stored(
    lease: Lease,
    options: WriteOptions,
    task: WriteTask,
    ids: MessageIds,
    stream: StreamInfo,
    entry: Entry | NatsError | None,
    fence: Fence | None,
) -> tuple[EarlierAttempt | None, bool]:
    """Note that a task of a micro-batch begins; return what an earlier attempt has done, None when there was none.

    Unless ``deduplicate`` is exact, just return (None, False). ``stream`` is the stream's state before this attempt
    has stored anything. ``entry`` is what the task's key of the state bucket held then, if it was read, or the error.
    ``fence`` writes the note; None for a batch write, which has none.
    The second returned value tells whether the micro-batch may have been begun before. An earlier run may have begun it
    with more partitions, even without beginning this partition.

    Raises:
        DataLossError: what the attempt has stored cannot be determined, and ``failOnDataLoss`` is set.
        NatsError: the state could not be read or written, or the query has begun a later micro-batch since.
    """
    if options.deduplicate != EXACT:
        return None, False

    def ask(what: Callable[Concatenate[JetStream, Given], Result], *given: Given.args, **more: Given.kwargs) -> Result:
        return lease.ask(lambda connection: what(JetStream(connection, options.api_prefix), *given, **more))

    if fence is None:
        mark, unsure = task.mark if task.attempt else None, False
    else:
        at_first = iter([(stream, entry)])

        # After a reconnect, both are read again, because another attempt may have stored rows meanwhile.
        def begun(js: JetStream) -> tuple[StartMark | None, bool]:
            now, noted = next(at_first, (None, None))
            return _begin(js, options, task, ids, now or stream_info(js, stream.name), noted, fence)

        mark, unsure = ask(begun)
    if mark is None:
        return None, unsure
    # Another attempt may have stored rows since this one read the stream's state.
    stream, memory = ask(_state_and_memory, stream.name)
    noted, age = memory_at(mark), age_of(mark, stream.time)
    fail = options.fail_on_data_loss
    if stream.retention != LIMITS:  # reading it would take messages from other consumers
        stream = ask(_look_at_end, task, task.batch, mark, stream)
        if _has_stored_since(stream, mark):
            if not _still_knows(stream, memory, mark):
                report_unknown(fail, task, cannot_read(stream))
            elif fence is not None:
                fence.unread = mark
        return EarlierAttempt(mark, None), True
    if mark.end.created != stream.created and ask(history_of, mark.end, stream) is Judgement.RECREATED:
        old = conditions.TARGET_CHANGED(task=task.name, old=stream.name, created=mark.end.created, stream=stream.name)
        logger.warning(old.with_code)
        # An attempt that was running then may have stored rows in the new stream before it noticed.
        mark = replace(mark, end=Position(stream.created, 1), process="")
    else:
        stream, mark = ask(_start_of_reading, options, task, stream, mark, noted.knows_present(memory, age), fence)
    since = stream.last_sequence if has_only_skipped(mark.end, stream) else mark.end.last
    found = ask(stored_ids, stream, since, "" if task.own_ids else ids.prefix)
    report = None if noted.knows_all(memory, age) or not found.removed else partial(report_unknown, fail, task)
    in_order = stream.keeps_last_values and not task.own_ids and _keeps_subjects(options, stream)
    if report is not None and not (in_order and found.only_by_subject):
        report(found.removed)
        report = None
    already_stored = AlreadyStored(found, ids.prefix, stream, task.own_ids, in_order, report)
    if fence is not None:
        fence.earlier.append(already_stored)
    return EarlierAttempt(mark, already_stored), True


def _has_stored_since(stream: StreamInfo, mark: StartMark) -> bool:
    """Tell whether a stream has stored anything since a task began, or lost what it had then.

    A replica that joined an empty stream does not know when its last message was stored.
    """
    times = (stream.last_time, mark.end.time)
    is_same = stream.last_sequence == mark.end.last and (times[0] == times[1] or not all(times))
    return stream.last_sequence > 0 and not is_same and not has_only_skipped(mark.end, stream)


def _still_knows(stream: StreamInfo, memory: IdMemory, mark: StartMark) -> bool:
    """Tell whether a stream that cannot be read back certainly knows the ids of all that it has stored since then."""
    noted = memory_at(mark)
    is_known = noted.knows_present if stream.has_all_after(mark.end.last) else noted.knows_all
    return is_known(memory, age_of(mark, stream.time))


def _state_and_memory(js: JetStream, stream: str) -> tuple[StreamInfo, IdMemory]:
    info = believed(js, stream_info(js, stream), Trust.TWICE)
    return info, memory_of(js, info)


def _keeps_subjects(options: WriteOptions, stream: StreamInfo) -> bool:
    """Tell whether rows are stored on the subjects on which they are published."""
    return options.api_prefix == API_PREFIX and not stream.config.get("subject_transform")


def try_to_read_back(js: JetStream, stream: StreamInfo, singly: bool = False) -> None:
    """Check that tasks can read back what they store in a stream with limits retention.

    If ``singly``, also check reading one message at a time, which finds the first message since a time.

    Raises:
        NatsError: tasks cannot.
    """
    if stream.retention == LIMITS:
        try:
            check_read_permission(js, stream.name, stream.last_sequence + 1)
            if singly:
                next_message(js, stream.name, stream.last_sequence + 1, (">",), with_headers=False)
        except (PermissionsError, JetStreamError) as error:
            raise error.with_context(conditions.CANNOT_READ_BACK(stream=stream.name, reason=error)) from None


def report_unknown(fail: bool, task: WriteTask, why: str) -> None:
    """Fail or warn because it is unknown what an earlier attempt has stored."""
    what = conditions.STORED_BEFORE_UNKNOWN(task=task.name, reason=why)
    report_loss(what, fail, "all of its rows that are not found, so that some may be stored twice")


def _begin(
    js: JetStream,
    options: WriteOptions,
    task: WriteTask,
    ids: MessageIds,
    stream: StreamInfo,
    noted: Entry | NatsError | None,
    fence: Fence,
) -> tuple[StartMark | None, bool]:
    """Note that a task begins; return from where to read back if an earlier attempt may have begun it.

    The second value tells whether an earlier attempt may have begun its micro-batch.
    """
    confirmed = False
    deadline = clock.monotonic() + CONFIRMATION
    while True:
        entry, known = _ask(js, options, task, noted)
        noted = None
        found = begin(task, stream, known)
        if found.lacks_tail:
            tail = _look_at_tail(js, task, ids, stream, known)
            if options.bad_rows_stream and not tail.rows:  # all its rows may have been bad
                aside = believed(js, stream_info(js, options.bad_rows_stream), Trust.TWICE)
                if rows := _look_at_tail(js, task, ids, aside, Inputs(None)).rows:
                    tail = StreamTail(tail.since, rows, aside=aside.name)
            known = known._replace(tail=tail)
            found = begin(task, stream, known)
        if found.older and not confirmed:  # the leader may be stale, or another attempt has begun
            stream, confirmed = believed(js, stream, Trust.BEYOND_DOUBT), True
            deadline = clock.monotonic() + CONFIRMATION
            continue
        if found.warning:
            logger.warning(found.warning.with_code)
        if found.is_first_time:
            logger.info(
                conditions.FIRST_TIME(bucket=options.state_bucket, stream=stream.name, task=task.name).with_code
            )
        if found.older and found.mark:
            _report_older(options, task, stream, found.mark.end.last, found.older)
        elif found.mark is None and known.note is not None and _is_about(known.note, stream):
            _look_at_end(js, task, str(known.note.batch), known.note.mark, stream)
        # The note is written even where it says the same, so that an earlier attempt notices this one.
        mark = found.mark or mark_now(js, stream)
        if known.note is not None:
            passed = max(known.note.batch, known.note.mark.passed)
            mark = replace(mark, passed=passed if passed > int(task.batch or 0) else 0)
        if fence.note(js, mark, entry.revision, deadline):
            _noted[_place(options, task)] = int(task.batch or 0)
            if len(_noted) > _MAX_REMEMBERED:
                del _noted[next(iter(_noted))]
            return found.mark, found.mark is not None or not known.earlier_in_run
        stream = stream_info(js, stream.name)


def _ask(js: JetStream, options: WriteOptions, task: WriteTask, held: Entry | NatsError | None) -> tuple[Entry, Inputs]:
    """Return the entry of the task's key, and what is known before the stream's last messages are searched.

    The key is read unless ``held`` is its entry, read a moment ago.
    """
    if isinstance(held, Entry):
        entry, note = held, note_of(held, task.key)
    else:
        entry, note = read_note(js, options, task.key)
    zero, batch = None, int(task.batch or 0)
    if task.partition and (-1 if note is None else note.batch) < batch - 1:
        zero = read_note(js, options, f"{task.query}.0")[1]
    earlier = any(each is not None and each.batch < batch and each.run == task.run != "" for each in (note, zero))
    newest = max(filter(None, (note, zero)), key=lambda each: each.batch, default=None)
    in_process = _noted.get(_place(options, task), -1)
    return entry, Inputs(note, -1 if zero is None else zero.batch, in_process, earlier, newest=newest)


def _place(options: WriteOptions, task: WriteTask) -> tuple[object, ...]:
    """Return where a task notes that it begins, and in which run of its query."""
    return options.connection, options.state_bucket, task.key, task.run


def _look_at_tail(js: JetStream, task: WriteTask, ids: MessageIds, stream: StreamInfo, known: Inputs) -> StreamTail:
    """Search the last messages of a stream for rows of a task."""
    last, note, newest = stream.last_sequence, known.note, known.newest
    since = max(last - _TAIL, stream.first_sequence - 1)
    if note is not None and _is_about(note, stream) and note.mark.end.last <= last:
        since = max(since, note.mark.end.last)
    is_gap = newest is not None and _shows_gap(js, task, stream, newest)
    if newest is not None and is_gap:
        since = newest.mark.end.last
    if since == last or stream.retention != LIMITS:  # reading would take messages from other consumers
        return StreamTail(last, new=last == 0, skipped=is_gap and since == last)
    found = stored_ids(js, stream, since, ids.query_prefix)
    rows = int(np.count_nonzero(flags_of(pc.starts_with(found.ids, ids.prefix))))
    # Rows of this micro-batch would come after those of the micro-batch before.
    before = pc.any(pc.starts_with(found.ids, f"{ids.query_prefix}{int(task.batch or 0) - 1}-")).as_py()
    is_new = not task.own_ids and not rows and not found.removed and bool(before or since == 0)
    if newest is not None and is_gap:
        # Other tasks of this micro-batch may have begun already.
        prefixes = [f"{ids.query_prefix}{each}-" for each in (newest.batch, task.batch)]
        known_rows = [flags_of(pc.starts_with(found.ids, each)) for each in prefixes]
        is_gap = not rows and not found.removed and bool((known_rows[0] | known_rows[1]).all())
    return StreamTail(since, rows, new=is_new, skipped=is_gap)


def _shows_gap(js: JetStream, task: WriteTask, stream: StreamInfo, newest: Note) -> bool:
    """Tell whether a stream can show that nothing was stored between the last micro-batch that is noted and this one.

    Notes that an older copy of the checkpoint has written are no such place: rows of later micro-batches come before.
    """
    end, last = newest.mark.end, stream.last_sequence
    if newest.batch >= int(task.batch or 0) - 1 or task.own_ids or newest.mark.passed or not _is_about(newest, stream):
        return False
    if end.last == last:
        return (end.time or 0) == stream.last_time
    is_readable = stream.retention == LIMITS and 0 < last - end.last <= _MOST_SEARCHED
    return is_readable and is_intact(js, end, stream)


def _is_about(note: Note, stream: StreamInfo) -> bool:
    """Tell whether a note is certainly about this stream, and not about an earlier stream of the same name."""
    return (note.mark.stream, note.mark.end.created) == (stream.name, stream.created)


def _report_older(options: WriteOptions, task: WriteTask, stream: StreamInfo, since: int, why: str) -> None:
    """Fail or warn because the state bucket is older than the query's checkpoint."""
    what = conditions.STATE_BUCKET_OLDER(bucket=options.state_bucket, batch=task.batch, reason=why)
    looked = stream.last_sequence - since
    found = f" that are not among the last {looked} messages of stream {stream.name!r}" if looked else ""
    report_loss(
        what,
        options.fail_on_data_loss,
        f"all rows of {task.name}{found}, so that some may be stored twice",
        "put the right copy of the bucket back; of queries with copies of one checkpoint, run only the one that has "
        "gone furthest; or set the option 'failOnDataLoss' to false for this micro-batch, of which rows may then be "
        "stored twice",
    )


def _start_of_reading(
    js: JetStream,
    options: WriteOptions,
    task: WriteTask,
    stream: StreamInfo,
    mark: StartMark,
    known: bool,
    fence: Fence | None,
) -> tuple[StreamInfo, StartMark]:
    """Return the stream's state, and from where to read the stream back.

    The stream is read from where the task first began or, if it has lost its end since, from where the present history
    begins. A task of a micro-batch notes the latter before it stores anything.
    """
    for trust in (Trust.AS_SAID, Trust.BEYOND_DOUBT) if known else (Trust.BEYOND_DOUBT,):
        stream = believed(js, stream, trust)
        if is_intact(js, mark.end, stream):
            return stream, mark
    # A note of an older version lacks the time of the last message; the time of the note replaces it.
    before = mark.time - (SKEW if js.connection.info.cluster else 0)
    end = mark.end if mark.end.time is not None else mark.end._replace(time=before)
    since = max(0, min(first_new(js, end, stream), end.last) - 1)
    if since < end.last:  # of a stream that was empty then, and was restored or made again since, nothing is lost
        logger.warning(
            conditions.TARGET_LOST_MESSAGES(
                stream=stream.name,
                messages=end.last - since,
                last=end.last,
                stored=_stored_at(mark.end),
                task=task.whole,
                kept=since,
                others=task.others,
            ).with_code
        )
    there = next_message(js, stream.name, since, (">",), with_headers=False) if since >= stream.first_sequence else None
    stored = there.time if there is not None and there.sequence == since else None
    mark = replace(mark, end=Position(mark.end.created, since + 1, stored))
    if fence is not None:
        _note_anew(js, options, task, mark, fence)
    return stream, mark


def _note_anew(js: JetStream, options: WriteOptions, task: WriteTask, mark: StartMark, fence: Fence) -> None:
    """Note a new beginning for a task that was begun before, unless the query has begun another micro-batch."""
    deadline = clock.monotonic() + CONFIRMATION
    batch = int(task.batch or 0)
    while True:
        entry, state = read_note(js, options, task.key)
        if state is None or state.batch != batch:
            return
        if fence.note(js, mark, entry.revision, deadline):
            return


def _look_at_end(js: JetStream, task: WriteTask, batch: str | None, mark: StartMark, stream: StreamInfo) -> StreamInfo:
    """Warn if a stream ends before the position where a micro-batch or this write began; return its state."""
    if mark.end.last > stream.last_sequence:
        stream = believed(js, stream, Trust.BEYOND_DOUBT)
    if mark.end.last > stream.last_sequence:
        logger.warning(
            conditions.TARGET_LOST_END(
                stream=stream.name,
                last=mark.end.last,
                stored=_stored_at(mark.end),
                task=task.whole if batch is None else f"micro-batch {batch}",
                now=stream.last_sequence,
                others=task.others,
            ).with_code
        )
    return stream


def _stored_at(end: Position) -> str:
    return f" (stored at {text_of(end.time)})" if end.time else ""
