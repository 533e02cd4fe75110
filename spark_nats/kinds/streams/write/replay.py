"""Finding the rows that an earlier attempt at the same task has stored, however long ago.

A stream recognizes a message id for its ``duplicate_window`` only. So each task of a streaming query notes, before its
first row, where the stream ends: in a KV bucket, under a key for the query and the partition. A task that finds its own
micro-batch noted there knows that an earlier attempt has begun it. The task reads the message ids of what the stream
has stored since, and leaves out their rows. The ids still protect against attempts that run at the same time.

Servers may come back with less than they had stored. So the note holds when the stream's last message was stored, which
tells a stream restored from an old backup from one that has only grown. On a restored stream, the task reads from where
the present history begins. :mod:`.task_start` describes how a restored bucket is detected.

A batch write does not outlive its driver. So the driver notes where the stream ends, and gives that to retried tasks.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial

import numpy as np
import pyarrow.compute as pc

from spark_nats import clock
from spark_nats.errors import NatsError
from spark_nats.jetstream.api import JetStream, JetStreamLease
from spark_nats.jetstream.judgement import SKEW, Judgement, is_empty_and_unchanged
from spark_nats.jetstream.keyvalue import Entry
from spark_nats.jetstream.messages import Answers, Questions, ask_first_message_from, run_decision
from spark_nats.jetstream.positions import Position
from spark_nats.jetstream.reading.stored import (
    ask_and_judge_as_reader,
    ask_if_intact,
    describe_why_not_readable,
    read_ids,
)
from spark_nats.jetstream.streams import LIMITS, StreamInfo
from spark_nats.jetstream.views import CONFIRMATION, Trust, ask_again_if_doubted, ask_first_new, ask_stream_info
from spark_nats.kinds.streams.options import WriteOptions
from spark_nats.kinds.streams.write import conditions, notes
from spark_nats.kinds.streams.write.checks import prepare_target_and_ask_entry
from spark_nats.kinds.streams.write.message_ids import MessageIds
from spark_nats.kinds.streams.write.notes import AlreadyStored, Fence, Note
from spark_nats.kinds.streams.write.task_start import Inputs, StreamTail, decide_task_start
from spark_nats.kinds.streams.write.tasks import StartMark, WriteTask
from spark_nats.options.data_loss import raise_or_log_loss
from spark_nats.protocol.bytecolumns import flags_of
from spark_nats.protocol.documents import format_time

logger = logging.getLogger(__name__)

_TAIL = 4096  # messages at the end of a stream that are searched for rows of a task
_MOST_SEARCHED = 1 << 20  # messages that are searched to see whether micro-batches were skipped
_MAX_REMEMBERED = 1 << 14


_noted: dict[tuple[object, ...], int] = {}
"""The last micro-batch that a task of this process has noted, by the key's place and the run of the query; see
:mod:`spark_nats.client.host_cache`."""


class Deduplication:
    """How the rows of a task are kept from being stored twice: not at all, or by their message ids.

    Attributes:
        ids: gives rows their message ids; None where none can get one.
        exact: whether rows are recognized however late they are written again.
        fence: keeps apart attempts that run at the same time; None where they write no notes.
        mark: where the stream ended when an earlier attempt began; None where there was none.
        already_stored: the rows that it has stored; None where the stream cannot be read back.
        unsure: whether the micro-batch may have been begun before. An earlier run may have begun it with more
            partitions, even without beginning this partition.
    """

    exact = False
    fence: Fence | None = None
    mark: StartMark | None = None
    already_stored: AlreadyStored | None = None
    unsure = False

    def __init__(self, options: WriteOptions, task: WriteTask) -> None:
        self._options, self._task = options, task
        self.ids = MessageIds(task.query, task.batch, task.partition) if options.stream and task.query else None

    @property
    def since(self) -> int | None:
        """The sequence after which an earlier attempt may have stored rows; None where there was none."""
        return self.mark.end.last if self.mark is not None else None

    def check_target_and_begin(self, lease: JetStreamLease) -> StreamInfo:
        """Begin the task; return the stream's state before this attempt has stored anything."""
        return lease.ask_with_retries(prepare_target_and_ask_entry, self._options)[0]


class ExactlyOnce(Deduplication):
    """Keeps rows from being stored twice however late: by notes, and by reading back what the stream has stored."""

    exact = True
    ids: MessageIds

    def check_target_and_begin(self, lease: JetStreamLease) -> StreamInfo:
        """Note that a task of a micro-batch begins, and find out what an earlier attempt has done.

        Raises:
            DataLossError: what the attempt has stored cannot be determined, and ``failOnDataLoss`` is set.
            NatsError: the state could not be read or written, or the query has begun a later micro-batch since.
        """
        key = self._task.note_key if self._task.batch is not None else None
        stream, entry = lease.ask_with_retries(prepare_target_and_ask_entry, self._options, key)
        if key is None:  # the driver has noted where a batch write began
            marks = self._task.marks if self._task.attempt else ()
            mark = next((each for each in marks if each.stream == stream.name), None)
        else:
            self.fence = fence = Fence(self._options, self._task, stream)
            at_first = iter([(stream, entry)])

            # After a reconnect, both are read again, because another attempt may have stored rows meanwhile.
            def note(js: JetStream) -> tuple[StartMark | None, bool]:
                now, held = next(at_first, (None, None))
                return self._note_and_find_earlier_start(js, fence, now or ask_stream_info(js, stream.name), held)

            mark, self.unsure = lease.ask_with_retries(note)
        if mark is not None:
            (self.mark, self.already_stored), self.unsure = self._update_mark_and_read_stored(lease, stream, mark), True
        return stream

    def _update_mark_and_read_stored(
        self, lease: JetStreamLease, stream: StreamInfo, mark: StartMark
    ) -> tuple[StartMark, AlreadyStored | None]:
        """Return what an earlier attempt has stored, which began at a mark, and the mark as it holds now."""
        options, task, fence, fail = self._options, self._task, self.fence, self._options.fail_on_data_loss
        # Another attempt may have stored rows since this one read the stream's state.
        stream, memory = lease.ask_with_retries(notes.ask_state_and_id_memory, stream.name)
        noted, age = notes.id_memory_at(mark), notes.seconds_since_or_negative(mark, stream.time)
        if stream.retention != LIMITS:  # reading it would take messages from other consumers
            stream = lease.ask_with_retries(_confirm_and_warn_end_lost, task, task.batch, mark, stream)
            if _has_changed_since(stream, mark):
                doubt = partial(notes.raise_or_warn_stored_unknown, fail, task, describe_why_not_readable(stream))
                if not notes.still_knows_ids_since(mark, stream, memory):
                    doubt()
                elif fence is not None:
                    fence.note_reliance_on_memory(mark, doubt)
            return mark, None
        name, created = stream.name, mark.end.created
        is_other = created != stream.created
        if is_other and lease.ask_with_retries(ask_and_judge_as_reader, mark.end, stream) is Judgement.RECREATED:
            logger.warning(conditions.TARGET_CHANGED(task=task.name, old=name, created=created, stream=name).with_code)
            # An attempt that was running then may have stored rows in the new stream before it noticed.
            mark = replace(mark, end=Position(stream.created, 1), process="")
        else:
            knows_ids = noted.knows_ids_of_kept_messages(memory, age)
            stream, mark = lease.ask_with_retries(self._confirm_or_move_start, stream, mark, knows_ids)
        since = stream.last_sequence if is_empty_and_unchanged(mark.end, stream) else mark.end.last
        found = lease.ask_with_retries(read_ids, stream, since, "" if task.own_ids else self.ids.prefix)
        in_order = (
            stream.keeps_last_values and not task.own_ids and stream.stores_on_published_subjects(options.api_prefix)
        )
        report = partial(notes.raise_or_warn_stored_unknown, fail, task)
        already_stored = AlreadyStored(found, self.ids.prefix, stream, task.own_ids, in_order, report)
        if found.removed:
            # It may have forgotten ids while it was read.
            now, memory = lease.ask_with_retries(notes.ask_state_and_id_memory, stream.name)
            if not noted.knows_all_ids(memory, notes.seconds_since_or_negative(mark, now.time)):
                already_stored.raise_or_warn_forgotten_or_defer()
            elif fence is not None:
                fence.note_reliance_on_memory(mark, already_stored.raise_or_warn_forgotten_or_defer)
        if fence is not None:
            fence.earlier.append(already_stored)
        return mark, already_stored

    def _note_and_find_earlier_start(
        self, js: JetStream, fence: Fence, stream: StreamInfo, held: Entry | NatsError | None
    ) -> tuple[StartMark | None, bool]:
        """Note that a task begins; return from where to read back if an earlier attempt may have begun it.

        The second value tells whether an earlier attempt may have begun its micro-batch.
        """
        options, task, confirmed = self._options, self._task, False
        deadline = clock.monotonic() + CONFIRMATION
        while True:
            entry, known = _read_known_notes(js, options, task, held)
            held = None
            found = run_decision(
                decide_task_start(task, stream, known), partial(self._search_tails_for_task, js, stream, known)
            )
            if found.older and not confirmed:  # the leader may be stale, or another attempt has begun
                stream, confirmed = ask_again_if_doubted(js, stream, Trust.BEYOND_DOUBT), True
                deadline = clock.monotonic() + CONFIRMATION
                continue
            if found.warning:
                logger.warning(found.warning.with_code)
            if found.is_first_time:
                first = conditions.FIRST_TIME(bucket=options.state_bucket, stream=stream.name, task=task.name)
                logger.info(first.with_code)
            if found.older and found.mark:
                _raise_or_warn_bucket_older(options, task, stream, found.mark.end.last, found.older)
            elif found.mark is None and known.note is not None and _is_about(known.note, stream):
                _confirm_and_warn_end_lost(js, task, str(known.note.batch), known.note.mark, stream)
            # The note is written even where it says the same, so that an earlier attempt notices this one.
            mark = found.mark or notes.start_mark_at_end(js, stream)
            if known.note is not None:
                passed = max(known.note.batch, known.note.mark.passed)
                mark = replace(mark, passed=passed if passed > int(task.batch or 0) else 0)
            if fence.try_to_write_note(js, mark, entry.revision, deadline):
                _noted[_identity_of_note(options, task)] = int(task.batch or 0)
                if len(_noted) > _MAX_REMEMBERED:
                    del _noted[next(iter(_noted))]
                return found.mark, found.mark is not None or not known.earlier_in_run
            stream = ask_stream_info(js, stream.name)

    def _search_tails_for_task(self, js: JetStream, stream: StreamInfo, known: Inputs, questions: Questions) -> Answers:
        """Return what the last messages of the stream, or else of the dead-letter stream, show about the task."""
        tail = _search_tail_for_rows(js, self._task, self.ids, stream, known)
        if self._options.dead_letter_stream and not tail.rows:  # all its rows may have been bad
            aside = ask_again_if_doubted(js, ask_stream_info(js, self._options.dead_letter_stream), Trust.TWICE)
            if rows := _search_tail_for_rows(js, self._task, self.ids, aside, Inputs(None)).rows:
                tail = StreamTail(tail.since, rows, aside=aside.name)
        return dict.fromkeys(questions, tail)

    def _confirm_or_move_start(
        self, js: JetStream, stream: StreamInfo, mark: StartMark, known: bool
    ) -> tuple[StreamInfo, StartMark]:
        """Return the stream's state, and from where to read the stream back.

        The stream is read from where the task first began or, if it has lost its end since, from where the present
        history begins. A task of a micro-batch notes the latter before it stores anything.
        """
        for trust in (Trust.AS_SAID, Trust.BEYOND_DOUBT) if known else (Trust.BEYOND_DOUBT,):
            stream = ask_again_if_doubted(js, stream, trust)
            if ask_if_intact(js, mark.end, stream):
                return stream, mark
        # A note of an older version lacks the time of the last message; the time of the note replaces it.
        before = mark.time - (SKEW if js.may_be_clustered else 0)
        end = mark.end if mark.end.time is not None else mark.end._replace(time=before)
        since = max(0, min(ask_first_new(js, end, stream), end.last) - 1)
        if since < end.last:  # of a stream that was empty then, and was restored or made again since, nothing is lost
            lost = conditions.TARGET_LOST_MESSAGES(
                stream=stream.name,
                messages=end.last - since,
                last=end.last,
                stored=_describe_stored_time(mark.end),
                task=self._task.write_in_words,
                kept=since,
                others=self._task.other_writes_in_words,
            )
            logger.warning(lost.with_code)
        is_there = since >= stream.first_sequence
        there = ask_first_message_from(js, stream.name, since, (">",), with_headers=False) if is_there else None
        stored = there.time if there is not None and there.sequence == since else None
        mark = replace(mark, end=Position(mark.end.created, since + 1, stored))
        if self.fence is not None:
            self._try_to_rewrite_start_note(js, self.fence, mark)
        return stream, mark

    def _try_to_rewrite_start_note(self, js: JetStream, fence: Fence, mark: StartMark) -> None:
        """Note a new beginning for a task that was begun before, unless the query has begun another micro-batch."""
        deadline = clock.monotonic() + CONFIRMATION
        batch = int(self._task.batch or 0)
        while True:
            entry, state = notes.ask_entry_and_note(js, self._options, self._task.note_key)
            if state is None or state.batch != batch:
                return
            if fence.try_to_write_note(js, mark, entry.revision, deadline):
                return


def _has_changed_since(stream: StreamInfo, mark: StartMark) -> bool:
    """Tell whether a stream has stored anything since a task began, or lost what it had then.

    A replica that joined an empty stream does not know when its last message was stored.
    """
    times = (stream.last_time, mark.end.time)
    is_same = stream.last_sequence == mark.end.last and (times[0] == times[1] or not all(times))
    return stream.last_sequence > 0 and not is_same and not is_empty_and_unchanged(mark.end, stream)


def _read_known_notes(
    js: JetStream, options: WriteOptions, task: WriteTask, held: Entry | NatsError | None
) -> tuple[Entry, Inputs]:
    """Return the entry of the task's key, and what is known before the stream's last messages are searched.

    The key is read unless ``held`` is its entry, read a moment ago.
    """
    if isinstance(held, Entry):
        entry, note = held, notes.parse_note(held, task.note_key)
    else:
        entry, note = notes.ask_entry_and_note(js, options, task.note_key)
    zero, batch = None, int(task.batch or 0)
    is_elsewhere = note is not None and note.mark.stream != options.stream
    if (-1 if note is None else note.batch) < batch - 1 or is_elsewhere:
        # Until then, the query may have written to this stream alone, or to several.
        other_form = replace(task, stream="" if task.stream else str(options.stream))
        other = notes.ask_entry_and_note(js, options, other_form.note_key)[1]
        if other is not None and other.mark.stream == options.stream:
            note = other if note is None or other.batch > note.batch - is_elsewhere else note
    if task.partition and (-1 if note is None else note.batch) < batch - 1:
        zero = notes.ask_entry_and_note(js, options, replace(task, partition=0).note_key)[1]
    earlier = any(each is not None and each.batch < batch and each.run == task.run != "" for each in (note, zero))
    newest = max(filter(None, (note, zero)), key=lambda each: each.batch, default=None)
    in_process = _noted.get(_identity_of_note(options, task), -1)
    return entry, Inputs(note, -1 if zero is None else zero.batch, in_process, earlier, newest=newest)


def _identity_of_note(options: WriteOptions, task: WriteTask) -> tuple[object, ...]:
    """Return where a task notes that it begins, and in which run of its query."""
    return options.connection, options.state_bucket, task.note_key, task.run


def _search_tail_for_rows(
    js: JetStream, task: WriteTask, ids: MessageIds, stream: StreamInfo, known: Inputs
) -> StreamTail:
    """Search the last messages of a stream for rows of a task."""
    last, note, newest = stream.last_sequence, known.note, known.newest
    since = max(last - _TAIL, stream.first_sequence - 1)
    if note is not None and _is_about(note, stream) and note.mark.end.last <= last:
        since = max(since, note.mark.end.last)
    is_gap = newest is not None and _ask_if_gap_provable(js, task, stream, newest)
    if newest is not None and is_gap:
        since = newest.mark.end.last
    if since == last or stream.retention != LIMITS:  # reading would take messages from other consumers
        return StreamTail(last, new=last == 0, skipped=is_gap and since == last)
    found = read_ids(js, stream, since, ids.query_prefix)
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


def _ask_if_gap_provable(js: JetStream, task: WriteTask, stream: StreamInfo, newest: Note) -> bool:
    """Tell whether a stream can show that nothing was stored between the last micro-batch that is noted and this one.

    Notes that an older copy of the checkpoint has written are no such place: rows of later micro-batches come before.
    """
    end, last = newest.mark.end, stream.last_sequence
    if newest.batch >= int(task.batch or 0) - 1 or task.own_ids or newest.mark.passed or not _is_about(newest, stream):
        return False
    if end.last == last:
        return (end.time or 0) == stream.last_time
    is_readable = stream.retention == LIMITS and 0 < last - end.last <= _MOST_SEARCHED
    return is_readable and ask_if_intact(js, end, stream)


def _is_about(note: Note, stream: StreamInfo) -> bool:
    """Tell whether a note is certainly about this stream, and not about an earlier stream of the same name."""
    return (note.mark.stream, note.mark.end.created) == (stream.name, stream.created)


def _raise_or_warn_bucket_older(
    options: WriteOptions, task: WriteTask, stream: StreamInfo, since: int, why: str
) -> None:
    """Fail or warn because the state bucket is older than the query's checkpoint."""
    what = conditions.STATE_BUCKET_OLDER(bucket=options.state_bucket, batch=task.batch, reason=why)
    looked = stream.last_sequence - since
    found = f" that are not among the last {looked} messages of stream {stream.name!r}" if looked else ""
    raise_or_log_loss(
        what,
        options.fail_on_data_loss,
        f"all rows of {task.name}{found}, so that some may be stored twice",
        "put the right copy of the bucket back; of queries with copies of one checkpoint, run only the one that has "
        "gone furthest; or set the option 'failOnDataLoss' to false for this micro-batch, of which rows may then be "
        "stored twice",
    )


def _confirm_and_warn_end_lost(
    js: JetStream, task: WriteTask, batch: str | None, mark: StartMark, stream: StreamInfo
) -> StreamInfo:
    """Warn if a stream ends before the position where a micro-batch or this write began; return its state."""
    if mark.end.last > stream.last_sequence:
        stream = ask_again_if_doubted(js, stream, Trust.BEYOND_DOUBT)
    if mark.end.last > stream.last_sequence:
        lost = conditions.TARGET_LOST_END(
            stream=stream.name,
            last=mark.end.last,
            stored=_describe_stored_time(mark.end),
            task=task.write_in_words if batch is None else f"micro-batch {batch}",
            now=stream.last_sequence,
            others=task.other_writes_in_words,
        )
        logger.warning(lost.with_code)
    return stream


def _describe_stored_time(end: Position) -> str:
    return f" (stored at {format_time(end.time)})" if end.time else ""
