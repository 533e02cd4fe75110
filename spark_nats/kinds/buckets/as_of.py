"""Reading a KV bucket at one moment, so that all rows are from one state of the bucket: the option ``asOf``.

A revision is a sequence of the bucket's stream. At revision R, the value of a key is its last entry up to R.

**The latest moment** (:class:`LatestReader`). While a bucket is read, keys are written again, and the stream may remove
an entry before the reader reaches it. So the reader continues with what was stored meanwhile, in parts, which shrink
unless keys are written as fast as they are read. Before each part it asks the leader for the last sequence M. Then:

* Everything that the stream held up to L, the end of the parts before, was read. If an entry up to L is missing, the
  entry that removed it is M or an earlier one.
* If the part has every sequence after L up to M, nothing of M's state is missing: the moment is M.
* If the part is one direct get, and its server reports at the end that nothing follows the last message, and that
  message is M or a later one, then an entry that was read removed whatever is missing: the moment is that message.
* A moment is never within an atomic batch, which is visible while a server stores it. A batch whose last message does
  not commit it ends where the leader has nothing new.

**An earlier moment** (:class:`RevisionReader`). The reader reads what the stream still holds up to R, and then asks
which keys may have held something at R that was removed since. A key loses its oldest entries first. So the last entry
that was read of a key is its value at R, unless its entries up to R were removed during the read. For a key without any
entry up to R, :func:`may_key_have_lost_entry` decides whether it may have had one.

``multi_last`` with ``up_to_seq`` (ADR-31) is not used. It answers for 1,024 keys at most (413 for more). It omits a key
that was written again since and kept no earlier entry: of 1,000 keys with a history of 1, 500 of them written again, it
returns the other 500 (nats-server 2.15.1). So the missing keys would have to be found here all the same. And without
``multi_last``, too, all keys of a small bucket come in one round trip.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Set
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StructType

from spark_nats.client.retrying import Retries
from spark_nats.conditions import ConditionText
from spark_nats.errors import JetStreamError, OptionError
from spark_nats.jetstream.api import JetStream
from spark_nats.jetstream.listing import ask_subject_counts
from spark_nats.jetstream.messages import MOMENT, MessageAt, ask
from spark_nats.jetstream.reading.cursor import Cursor
from spark_nats.jetstream.reading.delivering import Delivered, Restart
from spark_nats.jetstream.reading.direct import BATCH_MESSAGES, DirectGets, may_use_direct_gets
from spark_nats.jetstream.reading.judging import Removed
from spark_nats.jetstream.reading.ranges import Range, RangeReader, ReadMethod
from spark_nats.jetstream.streams import StreamInfo
from spark_nats.jetstream.times import ask_end_at
from spark_nats.jetstream.views import StateOf, ask_stream_info
from spark_nats.kinds.buckets import conditions
from spark_nats.kinds.buckets.as_of_options import MomentReadOptions
from spark_nats.kinds.buckets.entries import BucketReader, Entries, require_same_stream
from spark_nats.kinds.buckets.key_columns import are_last, may_remove_earlier_entries, operations_of
from spark_nats.kinds.buckets.read import EntryBuilder, KeysPartition, NatsBucketReader
from spark_nats.kinds.task import leased_jetstream
from spark_nats.options.data_loss import raise_or_log_loss
from spark_nats.options.values import LATEST
from spark_nats.protocol.bytecolumns import (
    Mask,
    Positions,
    booleans,
    byte_strings,
    decode_utf8_replacing,
    flags_of,
    texts,
)
from spark_nats.protocol.documents import REPLACED, format_time, parse_time, to_datetime
from spark_nats.protocol.headers import is_before_batch_commit
from spark_nats.protocol.keyvalue import key_filter
from spark_nats.protocol.subject_columns import SubjectMatcher
from spark_nats.sparkapi import arrow_schema

MAX_ASKED = 500  # messages that are requested in one round trip
IN_MEMORY = 32 << 20  # bytes of rows up to which they stay in memory
MAX_PARTS = 200
"""Maximum parts in which a moment is sought; a few are enough, unless keys are written faster than they are read."""


def may_key_have_lost_entry(revisions: int, replaces: bool, history: int) -> bool:
    """Return whether a key that keeps no entry up to a moment may have had one then.

    Args:
        revisions: number of later entries that the key keeps.
        replaces: whether the oldest of them removed the entries before it, as a purge does.
        history: number of revisions of a key that the bucket keeps; all of them when it is not positive.
    """
    return replaces or 0 < history <= revisions


def are_last_up_to(revision: int, subjects: pa.ChunkedArray, sequences: Positions) -> Mask:
    """Return a mask of the last message of each subject up to a revision, with one copy of a repeated message."""
    encoded = subjects.dictionary_encode()
    codes = np.concatenate([np.empty(0, np.int64), *(each.indices.to_numpy() for each in encoded.chunks)]).astype(int)
    rows = np.flatnonzero(sequences <= revision)
    rows = rows[np.argsort(sequences[rows], kind="stable")]
    held = np.zeros(len(sequences), np.bool_)
    held[rows] = are_last(codes[rows])
    return held


@dataclass(frozen=True)
class SnapshotPartition(KeysPartition):
    """What one partition reads at a known moment.

    Attributes:
        revision: the moment.
    """

    revision: int


class NatsMomentReader(NatsBucketReader):
    """Reads a bucket at one moment, and yields rows after it has read everything."""

    _options: MomentReadOptions

    def _plan_parts(self, js: JetStream, info: StreamInfo, every: Entries) -> list[KeysPartition]:
        """Return one partition for each filter of keys; one for the latest moment, none if there was no revision."""
        if self._options.as_of == LATEST:
            return [KeysPartition(every)]
        revision = self._ask_revision_of_moment(js, info)
        return [SnapshotPartition(part, revision) for part in every.parts] if revision else []

    def _ask_revision_of_moment(self, js: JetStream, info: StreamInfo) -> int:
        """Return the last revision of the requested moment; 0 when there was none yet."""
        moment, bucket = self._options.as_of, self._options.bucket
        if isinstance(moment, datetime):
            # A stream that was restored says that it was created later than its messages were stored.
            made = to_datetime(min(filter(None, (parse_time(info.created), info.first_time)), default=0))
            if moment < made:
                said = conditions.MOMENT_BEFORE_BUCKET(time=moment.isoformat(), bucket=bucket, created=info.created)
                raise OptionError(said)
            if info.time and moment > to_datetime(info.time):
                now = format_time(info.time)
                raise OptionError(conditions.MOMENT_TO_COME(time=moment.isoformat(), bucket=bucket, now=now))
            # Removed revisions count if they may have been stored by then.
            return ask_end_at(js, info, moment, included=True).sequence - 1
        revision = int(moment or 0)
        if revision > info.last_sequence:
            raise OptionError(conditions.NO_SUCH_REVISION(revision=revision, bucket=bucket, last=info.last_sequence))
        return revision

    def _read_rows(self, partition: KeysPartition) -> Iterator[pa.RecordBatch]:
        options = self._options
        with closing(SnapshotBuffer(self._schema, options.bucket, options.ignore_deletes)) as held:
            with leased_jetstream(options, f"reading bucket {options.bucket}") as lease:
                reader: LatestReader | RevisionReader = LatestReader(partition.entries, retries=lease.retries)
                if isinstance(partition, SnapshotPartition):
                    reader = RevisionReader(partition.entries, revision=partition.revision, retries=lease.retries)
                for delivered in lease.read_with_retries(reader.read):
                    held.add(delivered)
                for loss in reader.losses:
                    raise_or_log_loss(loss, options.fail_on_data_loss, "the other rows")
            yield from held.finish_and_read_rows(reader.revision or 0, reader.doubtful)


def reader(options: MomentReadOptions, schema: StructType) -> NatsBucketReader:
    """Return the reader of a bucket, or that of a bucket at one moment if the options name a moment."""
    return NatsBucketReader(options, schema) if options.as_of is None else NatsMomentReader(options, schema)


class SnapshotBuffer:
    """Entries of a bucket, kept until it is known which of them become rows.

    A temporary file, which is in memory up to :data:`IN_MEMORY` bytes, holds all of them as Arrow batches. Memory holds
    the subject and the revision of each.

    Args:
        schema: the columns.
        bucket: name of the bucket.
        ignore_deletes: whether to leave out deletions.
    """

    def __init__(self, schema: StructType, bucket: str, ignore_deletes: bool) -> None:
        self._rows = EntryBuilder(schema, bucket, ignore_deletes=False)
        self._bucket = bucket
        self._ignore_deletes = ignore_deletes
        self._file: Any = tempfile.SpooledTemporaryFile(IN_MEMORY)  # noqa: SIM115 - closed by close()
        self._writer = pa.ipc.new_stream(self._file, arrow_schema(schema))
        self._subjects: list[pa.BinaryArray] = [pa.array([], pa.binary())]
        self._sequences: list[Positions] = [np.empty(0, np.int64)]
        self._deletions: list[Mask] = [np.empty(0, np.bool_)]

    def close(self) -> None:
        """Forget the entries."""
        self._file.close()

    def add(self, delivered: Delivered) -> None:
        """Keep entries."""
        self._writer.write_batch(self._rows.build(delivered, self._bucket))
        self._subjects.append(delivered.subjects)
        self._sequences.append(delivered.deliveries.stream_sequences())
        if self._ignore_deletes:
            self._deletions.append(operations_of(delivered.messages).deletions)

    def finish_and_read_rows(self, revision: int, without: Set[bytes] = frozenset()) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the bucket at a revision, without the keys of some subjects."""
        self._writer.close()
        subjects = pa.chunked_array(self._subjects, pa.binary())
        chosen = are_last_up_to(revision, subjects, np.concatenate(self._sequences))
        if self._ignore_deletes:
            chosen &= ~np.concatenate(self._deletions)
        if without:
            others = byte_strings(sorted(without))
            chosen &= ~np.concatenate([flags_of(pc.is_in(each, others)) for each in self._subjects])
        self._file.seek(0)
        start = 0
        for batch in pa.ipc.open_stream(self._file):
            some = chosen[start : start + batch.num_rows]
            start += batch.num_rows
            if some.any():
                yield batch.filter(booleans(some))


def _make_entries_reader(what: Entries, start: int, end: int, retries: Retries | None) -> RangeReader:
    """Return a reader of the entries with ``start <= revision < end``; a removed entry is no loss."""
    revisions = Range(what.stream, what.end.created, start, end, what.filters, removed=Removed.NO_LOSS)
    return RangeReader(revisions, ReadMethod.HEADERS if what.headers_only else ReadMethod.CONSUMER, retries=retries)


class LatestReader:
    """Reads a bucket at a moment that is found while it is read.

    Of some keys it yields not only the entry at the moment: :func:`are_last_up_to` chooses.

    Args:
        what: which entries.
        after: the revision after which to read; 0 to read from the beginning.
        retries: how long to retry without progress; the first failure is an error when None.

    Attributes:
        revision: the moment; None until it is known.
    """

    doubtful: frozenset[bytes] = frozenset()
    losses: tuple[ConditionText, ...] = ()

    def __init__(self, what: Entries, *, after: int = 0, retries: Retries | None = None) -> None:
        self.revision: int | None = None
        self._what = what
        self._matcher = SubjectMatcher(what.filters) if what.keys else None
        self._retries = retries
        self._reached = after or -1  # everything up to it was read; negative until it is known
        self._parts = 0
        self._whole = None if after else BucketReader(what, retries=retries)  # reads the beginning
        self._part: RangeReader | None = None
        self._found = 0  # messages that were read of the part
        self._in_batch = False  # whether the last message of the part begins or continues an atomic batch

    def read(self, js: JetStream) -> Iterator[Delivered]:
        """Continue to read over a connection.

        Raises:
            JetStreamError: the bucket was deleted or created again, or it is written faster than it can be read.
            DataLossError: while a part was read, the bucket was deleted or created again, or has lost its end.
            NatsError: as :meth:`~spark_nats.jetstream.reading.delivering.Reading.read`.
        """
        if self._reached < 0:
            self._reached = self._request_and_note_state(js).last_sequence
        if self._whole is not None:
            yield from self._whole.read(js)
            self._whole = None
        later = 0.0
        while self.revision is None:
            if self._part is not None:
                yield from self._read_part_and_note_moment(js, self._part)
                continue
            info = self._request_and_note_state(js, later)
            last, later = info.last_sequence, 0.0
            if last == self._reached:
                self.revision = last
                return
            self._parts += 1
            if self._parts > MAX_PARTS:
                raise JetStreamError(conditions.NO_MOMENT(bucket=self._what.bucket, parts=MAX_PARTS))
            few = last - self._reached <= BATCH_MESSAGES // 2  # as many again may arrive by then
            if last < self._reached:  # from a leader that was stopped for some time and lags
                later = MOMENT
            elif few and info.allows_direct_gets and may_use_direct_gets(js, self._what.stream):
                yield from self._try_one_direct_get(js, last)
            else:
                self._part, self._found = self._reader_of_part(last), 0

    def _request_and_note_state(self, js: JetStream, later: float = 0.0) -> StreamInfo:
        (info,) = ask(js, [StateOf(self._what.stream)], later)
        self._what = replace(self._what, end=require_same_stream(js, self._what.end, info))
        return info

    def _reader_of_part(self, last: int) -> RangeReader:
        # Without filters, because it must be known whether each sequence exists.
        return _make_entries_reader(replace(self._what, keys=()), self._reached + 1, last + 1, self._retries)

    def _read_part_and_note_moment(self, js: JetStream, part: RangeReader) -> Iterator[Delivered]:
        """Continue to read a part that ends with the last sequence that the stream had when the part was planned."""
        for delivered in part.read(js):
            self._found += len(delivered.messages)
            yield from self._note_batch_and_filter(delivered)
        last = part.cursor.end - 1
        if self._found == last - self._reached and not self._in_batch:
            self.revision = last
        self._part, self._reached = None, last

    def _try_one_direct_get(self, js: JetStream, last: int) -> Iterator[Delivered]:
        """Read a part by one direct get; it may go beyond ``last``, the stream's last sequence before the get."""
        gets = DirectGets(js, self._what.stream, None, 0, optional=True)
        cursor = Cursor.of(self._reached + 1)
        try:
            gets.request_more(cursor, throttled=False)
            while gets.in_flight:
                chunk = gets.receive()
                if chunk is not None:
                    cursor = cursor.receive_until(chunk.last + 1)
                    yield from self._note_batch_and_filter(chunk.delivered)
        except Restart:
            self._part, self._found = self._reader_of_part(last), 0
            return
        finally:
            gets.close()
        self._reached = max(self._reached, cursor.received - 1)
        if gets.exhausted and self._reached >= last and not self._in_batch:
            self.revision = self._reached

    def _note_batch_and_filter(self, delivered: Delivered) -> Iterator[Delivered]:
        self._in_batch = is_before_batch_commit(delivered.messages.header_at(len(delivered.messages) - 1))
        if self._matcher is not None:
            delivered = delivered.take(self._matcher.match(delivered.subjects))
        if len(delivered.messages):
            yield delivered


class RevisionReader:
    """Reads a bucket at a revision, as far as the bucket keeps that state.

    Of some keys it yields not only the entry at the moment: :func:`are_last_up_to` chooses.

    Args:
        what: which entries.
        revision: the moment, at most the bucket's last revision.
        retries: how long to retry without progress; the first failure is an error when None.

    Attributes:
        revision: as given.
        doubtful: after the read, the subjects of the keys whose values at the revision are unknown.
        losses: after the read, sentences about what is or may be missing.
    """

    def __init__(self, what: Entries, *, revision: int, retries: Retries | None = None) -> None:
        self.revision = revision
        self.doubtful = frozenset[bytes]()
        self.losses: tuple[ConditionText, ...] = ()
        self._what = what
        self._retries = retries
        self._begins_at = 0  # the last revision when reading began
        self._delivered: list[pa.BinaryArray] = []  # subjects of the keys that were read
        self._found = 0  # messages that were read
        self._last = 0  # sequence of the last one
        self._later: RangeReader | None = None  # reads what was stored after the revision
        # For each subject without an entry up to the revision:
        self._oldest: dict[str, bool] = {}  # whether its oldest entry has removed others
        self._counts: dict[str, int] = {}  # how many entries it has
        self._meanwhile: LatestReader | None = None  # reads what was stored since reading began
        self._written = set[str]()  # subjects that were read and have an entry stored since reading began
        # For keys whose names in the leader's list may stand for several keys, because they are not UTF-8:
        self._has_unnamed = False  # whether there are any
        self._after: LatestReader | None = None  # reads all that was stored after the revision
        # by subject: the last revision, the number of revisions, and whether one of them has removed others
        self._unnamed: dict[bytes, tuple[int, int, bool]] = {}
        self._range = _make_entries_reader(what, 1, revision + 1, retries)

    def read(self, js: JetStream) -> Iterator[Delivered]:
        """Continue to read over a connection.

        Raises:
            DataLossError: the bucket was deleted or created again, or has lost its end.
            NatsError: as :meth:`LatestReader.read`, which reads what was stored meanwhile, if anything.
        """
        if not self._begins_at:
            self._begins_at = ask_stream_info(js, self._what.stream).last_sequence
        for delivered in self._range.read(js):
            self._delivered.append(pc.unique(delivered.subjects))
            self._found += len(delivered.messages)
            self._last = int(delivered.deliveries.stream_sequences()[-1])
            yield delivered
        self._ask_and_note_losses(js)

    def _ask_and_note_losses(self, js: JetStream) -> None:
        """Find out what may be missing."""
        info = ask_stream_info(js, self._what.stream)
        if self._found == self.revision or (info.first_sequence == 1 and not info.deleted):
            return  # nothing up to the revision was ever removed
        history = int(info.config.get("max_msgs_per_subject", -1))
        if history != 1:
            self._note_counts(js)  # also before the reads below: a purge during them may empty a full history
            self._note_whether_oldest_replaces(js, info.last_sequence)
            if info.last_sequence > self._begins_at:
                self._note_keys_written_meanwhile(js)
        self._note_counts(js)
        if self._has_unnamed:
            self._note_later_non_utf8(js)
        unknown = self._doubtful_non_utf8(history)
        self.doubtful = frozenset(subject.encode() for subject in self._ask_doubtful(js, history)).union(unknown)
        losses, bucket, revision = [], self._what.bucket, self.revision
        if self._last < revision and not self._what.keys:
            losses.append(conditions.REVISION_NOT_KEPT(bucket=bucket, revision=revision))
        if self.doubtful:
            keys, key = len(self.doubtful), min(self.doubtful).split(b".", 2)[-1].decode("utf-8", "replace")
            said = conditions.KEYS_NOT_KEPT(bucket=bucket, revision=revision, keys=keys, key=key, history=history)
            losses.append(said)
        if info.max_age is not None or info.config.get("subject_delete_marker_ttl"):
            losses.append(conditions.ENTRIES_EXPIRED(bucket=bucket, revision=revision))
        self.losses = tuple(losses)

    def _note_counts(self, js: JetStream) -> None:
        """Note the number of entries of each key that was not read, the largest of all calls."""
        for pattern in self._what.filters or (key_filter(">"),):
            counts = ask_subject_counts(js, self._what.stream, pattern)
            listed = texts(list(counts)).cast(pa.binary())
            subjects = _certainly_utf8(listed)
            self._has_unnamed |= len(subjects) < len(listed)
            for subject in _texts(subjects.filter(booleans(~self._were_read(subjects)))):
                self._counts[subject] = max(self._counts.get(subject, 0), counts[subject])

    def _note_whether_oldest_replaces(self, js: JetStream, last: int) -> None:
        """Note for each key that was not read whether its oldest entry in the stream has removed others."""
        headers = replace(self._what, headers_only=True)
        self._later = self._later or _make_entries_reader(headers, self.revision + 1, last + 1, self._retries)
        for delivered in self._later.read(js):
            subjects = delivered.subjects
            unread = ~self._were_read(subjects) & ~_may_be_non_utf8(subjects)
            if unread.any():
                replacing = may_remove_earlier_entries(delivered.messages)[unread]
                for subject, replaces in zip(_texts(subjects.filter(booleans(unread))), replacing, strict=True):
                    self._oldest.setdefault(subject, bool(replaces))

    def _note_keys_written_meanwhile(self, js: JetStream) -> None:
        """Note the keys that were read and written meanwhile; all other keys that were read have lost nothing."""
        self._meanwhile = self._meanwhile or self._header_reader_after(self._begins_at)
        for delivered in self._meanwhile.read(js):
            subjects = _certainly_utf8(pc.unique(delivered.subjects))
            self._written.update(_texts(subjects.filter(booleans(self._were_read(subjects)))))

    def _note_later_non_utf8(self, js: JetStream) -> None:
        """For each key that no request can name, note the entries after the revision."""
        self._after = self._after or self._header_reader_after(self.revision)
        for delivered in self._after.read(js):
            unnamed = _may_be_non_utf8(delivered.subjects)
            if not unnamed.any():
                continue
            chosen = delivered.take(unnamed)
            sequences = chosen.deliveries.stream_sequences().tolist()
            replacing = may_remove_earlier_entries(chosen.messages).tolist()
            for subject, sequence, replaces in zip(chosen.subjects.to_pylist(), sequences, replacing, strict=True):
                last, found, replaced = self._unnamed.get(subject, (0, 0, False))
                if sequence > last:  # else it is read again, after a direct get that broke off
                    self._unnamed[subject] = (sequence, found + 1, replaced or replaces)

    def _header_reader_after(self, revision: int) -> LatestReader:
        return LatestReader(replace(self._what, headers_only=True), after=revision, retries=self._retries)

    def _doubtful_non_utf8(self, history: int) -> Iterator[bytes]:
        """Yield the subjects of keys that no request can name and whose values at the revision are unknown.

        The entry that was read of a key is right unless writes during the read made the key lose entries.
        """
        unnamed = (each.filter(booleans(_may_be_non_utf8(each))) for each in self._delivered)
        was_read = frozenset(chain.from_iterable(each.to_pylist() for each in unnamed))
        for subject, (last, revisions, replaces) in self._unnamed.items():
            unchanged = subject in was_read and (history == 1 or last <= self._begins_at)
            if not unchanged and may_key_have_lost_entry(revisions, replaces, history):
                yield subject

    def _ask_doubtful(self, js: JetStream, history: int) -> Iterator[str]:
        """Yield the subjects of keys whose values at the revision are unknown."""
        for subject, count in self._counts.items():
            if may_key_have_lost_entry(count, self._oldest.get(subject, False), history):
                yield subject
        written = sorted(self._written)
        for some in (written[i : i + MAX_ASKED] for i in range(0, len(written), MAX_ASKED)):
            firsts = ask(js, [MessageAt(self._what.stream, 1, subject) for subject in some])
            for subject, first in zip(some, firsts, strict=True):
                if first is None or first.sequence > self.revision:
                    yield subject

    def _were_read(self, subjects: pa.BinaryArray) -> Mask:
        return flags_of(pc.is_in(subjects, pa.chunked_array(self._delivered, pa.binary())))


def _may_be_non_utf8(subjects: pa.BinaryArray) -> Mask:
    """Return a mask of the subjects with U+FFFD in the leader's list: no request can name one of them alone."""
    return flags_of(pc.match_substring(decode_utf8_replacing(subjects).values, REPLACED))


def _certainly_utf8(subjects: pa.BinaryArray) -> pa.BinaryArray:
    return subjects.filter(booleans(~_may_be_non_utf8(subjects)))


def _texts(subjects: pa.BinaryArray) -> list[str]:
    return [each.decode() for each in subjects.to_pylist()]
