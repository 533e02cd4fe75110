"""Writing one partition on its executor."""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext

from spark_nats.client.pool import borrow
from spark_nats.client.publishing import CorePublisher
from spark_nats.conditions import ConditionText, Topic
from spark_nats.errors import InvalidRowError, NatsError, PublishError
from spark_nats.jetstream.api import JetStream, JetStreamLease
from spark_nats.jetstream.listing import ask_stream_names
from spark_nats.jetstream.publishing.publisher import Aside, Publisher
from spark_nats.jetstream.streams import StreamInfo
from spark_nats.kinds.kind import import_by_name
from spark_nats.kinds.streams.options import WriteOptions
from spark_nats.kinds.streams.write import conditions
from spark_nats.kinds.streams.write.checks import ask_target_streams, check_targets_disjoint
from spark_nats.kinds.streams.write.columns import CheckedRows, RowChecker, has_counters, invalid_row_error
from spark_nats.kinds.streams.write.message_ids import id_prefix_of_task
from spark_nats.kinds.streams.write.replay import Deduplication, ExactlyOnce
from spark_nats.kinds.streams.write.routing import Router
from spark_nats.kinds.streams.write.sink import PLAIN, Sink
from spark_nats.kinds.streams.write.tasks import Counts, WriteTask, Written, sum_written
from spark_nats.kinds.task import leased_jetstream, try_move_to_leader
from spark_nats.logs import Reporter
from spark_nats.protocol.bytecolumns import Positions, integers, size_of
from spark_nats.protocol.control import is_older
from spark_nats.protocol.headers import KNOWN_SINCE, MIRRORED_SINCE
from spark_nats.protocol.subjects import subject_violation

logger = logging.getLogger(__name__)

_SUBJECTS_LOOKED_AT = 8
MAX_BATCH = 1 << 30
"""Maximum bytes of rows that are checked and encoded at once: the columns that this makes can have 2 GiB each."""

Rule = Callable[[pa.RecordBatch, int], str]
"""Returns the rule that a row of a batch breaks."""


def write_partition(
    options: WriteOptions, task: WriteTask, batches: Iterator[pa.RecordBatch], sink: Sink = PLAIN
) -> Written:
    """Write one partition, on an executor.

    Raises:
        InvalidRowError: a row cannot be sent.
        PublishError: an earlier attempt has stored rows that are not among these.
        NatsError: the server did not accept a row; the message tells which rows are safe.
    """
    batches = cut_large_batches(batches)
    with contextlib.ExitStack() as leases:
        targets = [_Target(each, named, sink) for each, named in _ask_targets_and_tasks(options, task)]
        for target in targets:
            target.begin(leases)
        if begun := [each for each in targets if each.earlier_attempt_began_at is not None]:
            min(begun, key=lambda each: each.earlier_attempt_began_at or 0).read_earlier_dead_letters_for(targets)
        if options.is_core:
            batches = _warn_at_first_rows(options, task.query, batches)
        if options.may_have_several_targets:
            _route_and_send_rows(targets, options, batches)
        else:
            for batch in batches:
                targets[0].send(targets[0].check_and_encode_rows_to_send(batch))
        counts = [target.finish() for target in targets]
        return sum_written([target.check_stored_and_add_up(each) for target, each in zip(targets, counts, strict=True)])


def cut_large_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Pass batches on, those of more than :data:`MAX_BATCH` bytes in parts; a part has at least one row."""
    for batch in batches:
        waiting = [batch]
        while waiting:
            part = waiting.pop()
            if size_of(part) > MAX_BATCH and (half := part.num_rows // 2):
                waiting += [part[half:], part[:half]]
            else:  # offsets that are too large stay too large in a slice, but not in a copy
                yield part if part is batch else part.take(integers(np.arange(part.num_rows)))


def _ask_targets_and_tasks(options: WriteOptions, task: WriteTask) -> list[tuple[WriteOptions, WriteTask]]:
    """Return the options of each target, and the task as its note names it."""
    if not options.may_have_several_targets:
        return [(options, task)]
    names = options.streams
    if options.pattern is not None:
        with leased_jetstream(options, f"writing to {options.target}") as lease:
            names = lease.ask_with_retries(ask_target_streams, options)
    return [(options.for_stream(name), replace(task, stream=name)) for name in names]


def _route_and_send_rows(targets: Sequence[_Target], options: WriteOptions, batches: Iterator[pa.RecordBatch]) -> None:
    """Write each row to the one of several streams that listens on its subject.

    Raises:
        InvalidRowError: a row cannot be sent. The rows of the batches before it are stored.
    """
    streams = [target.stream for target in targets if target.stream is not None]
    check_targets_disjoint(streams)
    router, written = Router(streams, options.subject), 0
    for batch in batches:
        places = router.stream_numbers(batch)
        try:
            if len(unheard := np.flatnonzero(places < 0)):
                targets[0].refuse_or_set_aside(batch, unheard, router.describe_unheard_subject, written)
            of_each = [np.flatnonzero(places == number) for number in range(len(targets))]
            checked = [
                target.check_and_encode_rows_to_send(batch.take(integers(picked)), written, picked)
                for target, picked in zip(targets, of_each, strict=True)
            ]
        except InvalidRowError:
            for target in targets:
                target.wait_for_sent_rows()  # the error reports them as sent, so they must be safe
            raise
        for target, rows in zip(targets, checked, strict=True):
            target.send(rows)
        written += batch.num_rows


class _Target:
    """What a task writes to one stream, or to core NATS.

    Attributes:
        stream: the stream before the task's first row; None for core NATS.
    """

    def __init__(self, options: WriteOptions, task: WriteTask, sink: Sink) -> None:
        self._options, self._task, self._sink = options, task, sink
        self._deduplication = (ExactlyOnce if options.is_exact else Deduplication)(options, task)
        self._writer: RowWriter = import_by_name(options.row_writer)(options, sink)
        self.stream: StreamInfo | None = None
        self._is_open = False

    @property
    def earlier_attempt_began_at(self) -> int | None:
        """When an earlier attempt began, in nanoseconds since 1970 by the server's clock; None where there was none."""
        mark = self._deduplication.mark
        return None if mark is None else mark.time

    def begin(self, leases: contextlib.ExitStack) -> None:
        """Connect, and find out what earlier attempts have stored."""
        what = f"writing to {self._options.stream or 'core NATS'}"
        # Core NATS loses what is sent over a dead connection, so the lease waits until the server has answered.
        self._lease = lease = leases.enter_context(leased_jetstream(self._options, what, waits=self._options.is_core))
        self._max_payload = lease.js.connection.info.max_payload
        if not self._options.is_core:
            self.stream = self._deduplication.check_target_and_begin(lease)
        self._writer.begin(lease, self._task, self._deduplication)

    def read_earlier_dead_letters_for(self, targets: Sequence[_Target]) -> None:
        """Find the bad rows that earlier attempts have stored, for all targets of the task."""
        self._writer.read_earlier_dead_letters_for([each._writer for each in targets])

    def check_and_encode_rows_to_send(
        self, batch: pa.RecordBatch, before: int | None = None, picked: Positions | None = None
    ) -> CheckedRows | None:
        """Check rows, as :meth:`RowWriter.check_and_encode_rows_to_send` does."""
        if not self._is_open:
            if not batch.num_rows:
                return None  # the first rows tell whether to go to the stream's leader
            self._open(batch)
        return self._writer.check_and_encode_rows_to_send(batch, before, picked)

    def send(self, rows: CheckedRows | None) -> None:
        """Send rows that were checked."""
        if rows is not None:
            self._writer.send(rows)

    def refuse_or_set_aside(self, batch: pa.RecordBatch, rows: Positions, rule: Rule, before: int) -> None:
        """Refuse rows of a batch whose subjects break a rule, as in :meth:`check_and_encode_rows_to_send`."""
        if not self._is_open:
            self._open(batch)
        self._writer.refuse_or_set_aside(batch, rows, rule, before)

    def wait_for_sent_rows(self) -> None:
        """Wait until the rows that were sent are safe."""
        if self._is_open:
            self._writer.wait_for_sent_rows()

    def _open(self, first: pa.RecordBatch | None = None) -> None:
        """Get ready for the ``first`` rows, if there are any."""
        stream, lease, options, sink = self.stream, self._lease, self._options, self._sink
        self._is_open = True
        if stream is not None and first is not None:
            try_move_to_leader(lease, stream, first.num_rows, size_of(first))
        names_stream = stream is not None and can_rows_name_stream(stream)
        unknown = () if stream is None else headers_unknown_to(stream)
        most, ids = None if stream is None else stream.max_message_size, self._deduplication.ids
        checker = RowChecker(options, self._max_payload, ids, names_stream, sink.columns, unknown, most)
        self._writer.open(stream, checker)

    def finish(self) -> Counts:
        """Wait until all rows are safe; return how many there are."""
        if not self._is_open:
            self._open()
        return self._writer.finish()

    def check_stored_and_add_up(self, counts: Counts) -> Written:
        """Return what was done, after checking that earlier attempts have stored nothing else.

        Raises:
            PublishError: they have stored rows that are not among these.
        """
        task, deduplication = self._task, self._deduplication
        count, duplicates = counts.rows, counts.duplicates
        if (already_stored := deduplication.already_stored) is not None:
            if already_stored.unexpected_earlier_rows + self._writer.unexpected_earlier_rows:
                whose = f"that this partition stored before, and that are not among its {count} rows now,"
                raise PublishError(conditions.OTHER_PARTITIONS(task=task.name, which=whose))
            if already_stored.rows:
                logger.info(conditions.BEGUN_BEFORE(task=task.name, stored=already_stored.rows, rows=count).with_code)
            duplicates += already_stored.rows
        elif duplicates and not ((context := TaskContext.get()) and context.attemptNumber()):
            # A retried attempt is expected to find rows that are stored already.
            again = conditions.ROWS_STORED_ALREADY(stream=self._options.stream, duplicates=duplicates, rows=count)
            logger.warning(again.with_code)
        self._writer.warn_of_bad_rows(count)
        rows, reconnects = count - counts.skipped - counts.bad, self._lease.lease.reconnects
        counts = replace(counts, rows=rows, duplicates=duplicates, reconnects=reconnects)
        by_stream = ((task.stream, counts),) if task.stream else ()
        return Written(counts, task.query if deduplication.unsure else None, task.run, by_stream)


def can_rows_name_stream(stream: StreamInfo) -> bool:
    """Tell whether rows name their stream in a header, so that no other one stores them.

    A stream of counters refuses that, and mirrors on old servers do, which are taken to be of the version that leads
    the stream. Where a stream republishes, the header goes along, and a stream that listens there would drop the rows
    without a word. In these cases only the acknowledgement tells which stream has stored a row.
    """
    if has_counters(stream) or stream.config.get("republish"):
        return False
    return not is_older(stream.server_version, *MIRRORED_SINCE)


def headers_unknown_to(stream: StreamInfo) -> tuple[str, ...]:
    """Return the headers that the server which leads a stream would store without acting on them."""
    return tuple(name for name, since in KNOWN_SINCE.items() if is_older(stream.server_version, *since))


class RowWriter:
    """Stores the rows of one task, each by itself; a row that cannot be sent is an error.

    Args:
        options: where and how to write.
        sink: the target.

    Attributes:
        acted_on: what gives rows headers on which a stream acts that hears what the target republishes, in words.
        aside: takes rows that the stream refuses for themselves; None where such a row is an error.
    """

    acted_on: tuple[str, ...] = ()
    aside: Aside | None = None

    @property
    def unexpected_earlier_rows(self) -> int:
        """Number of rows that an earlier attempt has set aside and that are not among those of the task so far."""
        return 0

    def __init__(self, options: WriteOptions, sink: Sink) -> None:
        self._options = options
        self._sink = sink

    def check_dead_letter_stream(self, js: JetStream) -> None:
        """Check on the driver, before the target, what else the tasks need."""

    def check_target_stream(self, stream: StreamInfo) -> None:
        """Check on the driver that the target stream takes rows as this writer stores them."""

    def begin(self, lease: JetStreamLease, task: WriteTask, deduplication: Deduplication) -> None:
        """Begin the task, after it was found out what earlier attempts at it have stored."""
        self._lease, self._task, self._deduplication = lease, task, deduplication

    def read_earlier_dead_letters_for(self, writers: Sequence[RowWriter]) -> None:
        """Find, for all writers of a task, the rows that an earlier attempt at it has set aside."""

    def open(self, stream: StreamInfo | None, checker: RowChecker) -> None:
        """Get ready for rows.

        ``stream`` is the target's state before the first row was sent; None for core NATS.
        """
        self._checker, self._rows, self._size = checker, 0, 0
        if stream is None:
            self._publisher: Publisher | CorePublisher = self._make_core_publisher()
        else:
            self._publisher = publisher = self._make_stream_publisher(stream)
            self._ask_with_retries = publisher.ask_with_retries

    def check_and_encode_rows_to_send(
        self, batch: pa.RecordBatch, before: int | None = None, picked: Positions | None = None
    ) -> CheckedRows | None:
        """Return the rows that are to be sent: those that an earlier attempt has not stored; None if all wait.

        If they are only the ``picked`` rows of a batch, the task had ``before`` rows before the batch.

        Raises:
            InvalidRowError: a row cannot be sent.
            PublishError: a later attempt at the task has begun.
            NatsError: the server did not accept a row; the message tells which rows are safe.
        """
        publisher, fence = self._publisher, self._deduplication.fence
        with self._reporting_row_errors():
            if fence is not None and fence.is_check_due(self._lease.js.connection):
                self._ask_with_retries(fence.check_latest_and_read_newer)
            self._checker.set_size_limit(self._lease.js.connection.info.max_payload)
            self._checker.picked = picked
            try:
                rows = self.encode_rows_not_yet_stored(self._checker, batch, self._rows if before is None else before)
            except InvalidRowError:
                publisher.wait_for_sent_rows()  # the error reports these rows as sent, so they must be safe
                raise
            self._rows += batch.num_rows
            return rows

    def send(self, rows: CheckedRows) -> None:
        """Send rows; return when the last of them is sent, not yet acknowledged.

        Raises:
            NatsError: the server did not accept a row; the message tells which rows are safe.
        """
        with self._reporting_row_errors():
            self._size += int(rows.sizes.sum())
            for part in rows.split_into_independent_parts():
                self._publisher.publish(*part[:5], conditional=part.conditional is not None)

    def refuse_or_set_aside(self, batch: pa.RecordBatch, rows: Positions, rule: Rule, before: int) -> None:
        """Refuse rows of a batch whose subjects break a rule; the task had ``before`` rows before the batch.

        Raises:
            InvalidRowError: always, but where such rows are set aside.
        """
        raise invalid_row_error(before, int(rows[0]), "subject", rule(batch, int(rows[0])), (Topic.ROW,))

    def wait_for_sent_rows(self) -> None:
        """Wait until the rows that were sent are safe."""
        self._publisher.wait_for_sent_rows()

    def finish(self) -> Counts:
        """Wait until all rows are safe; return the number of all rows, and the bytes of those that were sent.

        Raises:
            NatsError: the server did not accept a row; the message tells which rows are safe.
        """
        with self._reporting_row_errors():
            counts = self._finish()
        if counts.skipped and self._sink.skipped:
            logger.warning(self._sink.skipped(skipped=counts.skipped, rows=counts.rows).with_code)
        return counts

    def _finish(self) -> Counts:
        """Wait until all rows are safe; return their number."""
        self._publisher.finish()
        return Counts(self._rows, self._size, self._publisher.duplicates, self._publisher.skipped)

    @contextlib.contextmanager
    def _reporting_row_errors(self) -> Iterator[None]:
        """Let a refusal of a subject be about a row, where no option has it that is to be corrected."""
        try:
            yield
        except PublishError as error:
            if Topic.SUBJECT in error.topics and self._options.subject is None and self._options.stream:
                raise error.with_topics(Topic.ROW) from None
            raise

    def encode_rows_not_yet_stored(self, checker: RowChecker, batch: pa.RecordBatch, first_row: int) -> CheckedRows:
        """Return the rows of a batch that are to be sent, without those that an earlier attempt has stored.

        Raises:
            InvalidRowError: a row cannot be sent. Nothing of the batch has been sent then.
        """
        rows, stored = self.encode_or_refuse_rows(checker, batch, first_row), self._deduplication.already_stored
        return rows if stored is None else rows.where(stored.note_and_find_missing(rows.ids, rows.subjects))

    def encode_or_refuse_rows(self, checker: RowChecker, batch: pa.RecordBatch, first_row: int) -> CheckedRows:
        """Return the rows of a batch as they are published; a row that breaks a rule is an error."""
        return checker.check_and_encode(batch, first_row)

    def warn_of_bad_rows(self, rows: int) -> None:
        """Log what became of some of the task's ``rows``."""

    def _make_core_publisher(self) -> CorePublisher:
        core = CorePublisher(self._lease.lease, Reporter(logger, lambda: core.confirmed, self._describe_sending))
        return core

    def _describe_sending(self, rows: int, rate: float) -> ConditionText:
        return conditions.STILL_SENDING(task=self._task.name, rows=rows, rate=rate)

    def _make_stream_publisher(self, stream: StreamInfo) -> Publisher:
        """Return a publisher to a stream that logs its progress."""

        def said(rows: int, rate: float) -> ConditionText:
            return conditions.STILL_WRITING(
                stream=stream.name,
                task=self._task.name,
                rows=rows,
                rate=rate,
                in_flight=publisher.in_flight,
                window=publisher.window,
                resent=publisher.resent,
            )

        conflicts = self._sink.conflicts
        publisher = Publisher(
            self._lease.js.connection,
            stream,
            self._options.max_in_flight,
            self._options.ack_timeout,
            lease=self._lease.lease,
            api_prefix=self._lease.prefix,
            resolve=conflicts(self.aside is not None) if conflicts else None,
            on_stored=Reporter(logger, lambda: publisher.stored, said),
            aside=self.aside,
            exact=self._deduplication.exact,
            since=self._deduplication.since,
            id_prefix=id_prefix_of_task(self._task.query, self._task.batch, self._task.partition),
            whose=f"this task's rows for stream {stream.name!r}" if self._task.stream else "this task's rows",
        )
        return publisher


_looked: deque[str] = deque(maxlen=64)
"""The last writes of this process whose subjects were compared with those of streams."""


def _warn_at_first_rows(
    options: WriteOptions, write_id: str, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Pass batches on; once in this process for a write, call :func:`_warn_if_streams_listen` for its first rows."""
    for batch in batches:
        if write_id not in _looked and batch.num_rows:
            _looked.append(write_id)
            _warn_if_streams_listen(options, batch)
        yield batch


def _warn_if_streams_listen(options: WriteOptions, batch: pa.RecordBatch) -> None:
    """Warn when a stream listens on a subject that is written without acknowledgement.

    The stream may drop messages unseen. Only the first :data:`_SUBJECTS_LOOKED_AT` subjects are checked.
    """
    if options.subject is not None:
        subjects = [options.subject]
    else:
        subjects = pc.unique(batch.column("subject"))[:_SUBJECTS_LOOKED_AT].to_pylist()
    # This check has its own connection: without the permission or without JetStream, the write must not fail.
    with contextlib.suppress(NatsError), borrow(options.connection) as connection:
        js = JetStream(connection, options.api_prefix)
        for subject in subjects:
            if subject and not subject_violation(subject) and (streams := ask_stream_names(js, subject)):
                listed = ", ".join(map(repr, streams))
                said = conditions.SUBJECT_OF_STREAM(subject=subject, streams=listed, stream=streams[0])
                logger.warning(said.with_code)
                return
