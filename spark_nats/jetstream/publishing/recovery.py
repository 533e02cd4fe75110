"""Finds out what a stream has of rows whose answers were lost, and whether it still has what it has acknowledged.

Answers can be lost, with a connection or with the leader that owed them. Rows with message ids are sent again: all of
them while the stream certainly recognizes the ids (:mod:`~spark_nats.jetstream.id_memory`), else only those that it
turns out to lack. Rows that could not be sent for so long may be stored too, by another attempt.

A server may come back with less than it has acknowledged. So sequences must rise, and after every reconnection the
stream must still have the row with the highest one; under another leader also the last row that it acknowledged before
that one led. If several leaders have led the stream since, the last of them counts.

A stream gives every message that it stores a higher sequence than all before. So the stream has lost its end, with
acknowledged rows, when an acknowledgement names a sequence that is not higher, or when the stream ends before the
highest one. :class:`Acknowledged` keeps runs of sequences instead of each one, and the last row before each pause in
the answers: in a pause the stream may lose its end, and others may fill it before its next answer.

In a stream that keeps the last messages of each subject, such as a KV bucket, what counts is the last message of a
subject. Such a stream may recognize a row by its message id and say that it has the row already, but only after it has
stored earlier rows of the same subject again, whose ids it has forgotten. Then an older value is the last one.
:class:`Behind` collects such rows, to be stored again under other ids.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import NamedTuple, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_nats import clock
from spark_nats.client.retrying import Backoff
from spark_nats.conditions import ConditionText, Once, Topic
from spark_nats.conditions import jetstream as conditions
from spark_nats.errors import (
    JetStreamError,
    JetStreamUnavailableError,
    NatsError,
    NatsTimeoutError,
    PermissionsError,
    PublishError,
    StreamNotFoundError,
)
from spark_nats.jetstream.api import JetStream
from spark_nats.jetstream.id_memory import IdMemory, id_memory_of
from spark_nats.jetstream.judgement import SKEW
from spark_nats.jetstream.messages import MessageAt, StoredMessage, ask, ask_first_message_from, ask_first_since
from spark_nats.jetstream.positions import end_position_of
from spark_nats.jetstream.publishing.flight import (
    FIRST_ABSENCE,
    MAX_ABSENCE,
    Flight,
    FlightState,
    Rows,
    Stored,
    are_unstored_but_replaced,
    codes_of,
    count_rows,
)
from spark_nats.jetstream.reading.stored import (
    StoredIds,
    are_among,
    ask_if_intact,
    ask_last_common_sequence,
    has_id_of,
    read_ids,
)
from spark_nats.jetstream.streams import LIMITS, StreamInfo
from spark_nats.jetstream.views import StreamView, Trust, ask_again_if_doubted, ask_stream_info
from spark_nats.protocol.api import API_PREFIX
from spark_nats.protocol.bytecolumns import (
    Mask,
    Positions,
    booleans,
    byte_strings,
    flags_of,
    integers,
    integers_of,
    texts,
)
from spark_nats.protocol.headers import MSG_ID, first_header_values, with_id_replaced
from spark_nats.protocol.messages import Messages
from spark_nats.protocol.publish_acks import PublishAcks, are_duplicates

logger = logging.getLogger(__name__)

_AT_ONCE = 256  # requests
_LOOKED = 0.05  # seconds for which rows are not looked for again, however short the stream's duplicate_window is


_MAX_RUNS = 4096
_MAX_PAUSES = 4096
_PAUSE = 0.05  # seconds without an answer after which the stream may have another leader


class LastRow(NamedTuple):
    """The row with the highest sequence that a stream had acknowledged at a time."""

    sequence: int
    since: float  # when it was acknowledged, by :func:`clock.monotonic`
    ids: pa.Array | None  # its message id; None when it has none
    digest: bytes  # of its payload


def digest_of(payload: bytes | str) -> bytes:
    """Return a digest that distinguishes payloads."""
    return blake2b(payload.encode() if isinstance(payload, str) else payload, digest_size=16).digest()


class _Run(NamedTuple):
    """A run of rows with sequences from the first to the last one."""

    first: int
    last: int
    rows: int

    def least_and_most_from(self, sequence: int) -> tuple[int, int]:
        """Return how many rows of the run lie from a sequence on, at least and at most."""
        if self.first >= sequence:
            return self.rows, self.rows
        there, before = max(0, self.last + 1 - sequence), sequence - self.first
        return min(max(0, self.rows - before), there), min(self.rows, there)


class Acknowledged:
    """What a stream has acknowledged; ``before`` was its last sequence when the first row was sent."""

    def __init__(self, acks: PublishAcks, before: int) -> None:
        self._acks = acks
        self._before = before
        self._runs: list[_Run] = []
        self._pauses: list[LastRow] = []  # the last row before each pause
        self._in_no_run = 0  # rows in no run: one whose sequence was not higher, and those noted together after it
        self.highest = 0  # the highest acknowledged sequence, 0 before there is one
        self.since = 0.0  # when it was acknowledged
        self._row: Rows | None = None  # its row; None before there is one
        # The first sequence of a new row that was not higher than all before; None while there is none to check.
        self.fallen: int | None = None
        self.duplicates = 0  # rows that the stream had before they were first sent, by their message ids

    def note_and_find_duplicates(self, stored: Stored, row_of: Callable[[int], Rows], again: bool, now: float) -> Mask:
        """Note acknowledgements; return a mask of those of rows that the stream had before they were sent.

        ``row_of`` returns the row of a message.

        The method checks only the first and the last one while nobody else writes in between and no row is a duplicate.
        The benchmark's row "client: Arrow to acknowledged JetStream publish" guards the cost. Where an earlier send
        may have stored the rows (``again``), only duplicates that the stream had at the beginning count.
        """
        messages, answers, in_order = stored
        duplicates = are_duplicates(answers)
        if in_order and not duplicates.any():
            first, last = (self._acks.sequence_or_zero(answers, each) for each in (0, len(answers) - 1))
            if first > self.highest and last - first == len(answers) - 1:
                self._set_highest(last, row_of(int(messages[-1])), now)
                self._add(_Run(first, last, len(answers)))
                return duplicates
        sequences = self._acks.sequences(answers)
        had = duplicates & (sequences <= self._before) if again else duplicates
        self.duplicates += int(np.count_nonzero(had))
        rising = self._count_rising(sequences, duplicates) if in_order else len(sequences)
        if rising:
            highest = int(np.argmax(sequences[:rising]))
            if sequences[highest] > self.highest:
                self._set_highest(int(sequences[highest]), row_of(int(messages[highest])), now)
            for chosen in (~duplicates[:rising], duplicates[:rising]):
                if chosen.any():
                    found = sequences[:rising][chosen]
                    self._add(_Run(int(found.min()), int(found.max()), len(found)))
        if rising < len(sequences):
            self._in_no_run += len(sequences) - rising
            self.fallen = int(sequences[rising]) if self.fallen is None else self.fallen
        return duplicates

    def _count_rising(self, sequences: Positions, duplicates: Mask) -> int:
        """Return how many answers come before the first new row whose sequence is not higher than all before."""
        new = np.flatnonzero(~duplicates)
        before = np.concatenate([[self.highest], sequences[new][:-1]])
        fallen = new[sequences[new] <= before]
        return int(fallen[0]) if len(fallen) else len(sequences)

    def least_and_most_lost(self, first: int, last: int, rows: int) -> tuple[int, int]:
        """Return how many rows, at least and at most, are lost with all sequences from the first to the last.

        ``rows`` are stored in all: acknowledged, or found in the stream.
        """
        found = [(run.rows, *run.least_and_most_from(first), *run.least_and_most_from(last + 1)) for run in self._runs]
        kept = sum(of - most + later for of, _, most, later, _ in found)
        least = sum(max(0, least - later) for _, least, _, _, later in found)
        return least, max(0, rows - self._in_no_run - kept)

    def sequences(self, answers: Messages) -> Positions:
        """Return the sequences in acknowledgements."""
        return self._acks.sequences(answers)

    def may_be_own(self, sequence: int) -> bool:
        """Tell whether a sequence may be one of these rows'; where others write in between, it may be theirs."""
        return any(run.first <= sequence <= run.last for run in self._runs)

    def last_rows(self, during: tuple[float, float] | None = None) -> list[LastRow]:
        """Return the last row, if any; also the last before each pause ``during`` a time, and one earlier."""
        found = [] if self._row is None else [self._make_last_row(self._row)]
        if during is not None:
            began, ended = during
            for each in reversed(self._pauses):
                if each.since < ended:
                    found.append(each)
                if each.since < began:
                    break
        return found

    def _make_last_row(self, row: Rows) -> LastRow:
        ids = None if row.ids is None else pa.array(row.ids.to_pylist())  # a slice would keep its whole batch in memory
        return LastRow(self.highest, self.since, ids, digest_of(row.payloads[0].as_py()))

    def _set_highest(self, sequence: int, row: Rows, now: float) -> None:
        if self._row is not None and now - self.since >= _PAUSE:
            self._pauses.append(self._make_last_row(self._row))
            if len(self._pauses) > _MAX_PAUSES:
                del self._pauses[::2]
        self.highest, self._row, self.since = sequence, row, now

    def _add(self, run: _Run) -> None:
        """Add a run; where there are too many, join pairs of them, which is less exact."""
        if self._runs and self._runs[-1].last + 1 == run.first:
            last = self._runs[-1]
            if last.last - last.first == last.rows - 1 and run.last - run.first == run.rows - 1:
                self._runs[-1] = _Run(last.first, run.last, last.rows + run.rows)
                return
        self._runs.append(run)
        if len(self._runs) > _MAX_RUNS:
            pairs = zip(self._runs[::2], self._runs[1::2], strict=False)
            joined = [_Run(min(a.first, b.first), max(a.last, b.last), a.rows + b.rows) for a, b in pairs]
            self._runs = joined + self._runs[len(joined) * 2 :]


class Overtaken:
    """The rows of a task that a stream had already, while an earlier row of their subject may have been stored later.

    Args:
        is_replay: whether rows may have been stored in any order before.
    """

    def __init__(self, is_replay: bool) -> None:
        self._is_mixed = is_replay  # whether rows may have been stored after what the stream had already
        self._rows: Rows | None = None  # rows that the stream had, the last of each subject
        self._sequences: Positions = np.zeros(0, np.int64)
        self._overtaking: Positions = np.zeros(0, np.int64)  # see :func:`overtaking_sequences`

    def must_note(self, had: Mask, is_mixed: bool) -> bool:
        """Tell whether answers have to be noted, from a mask of those to rows that the stream had.

        What it had before it stored anything is in order, unless this ``is_mixed``: an earlier send may have stored the
        rows, or rows before them have no answer yet. A cluster says at once what it had, and later what it has stored.
        """
        self._is_mixed |= is_mixed
        if self._rows is not None:
            return True
        if self._is_mixed:
            return bool(had.any())
        self._is_mixed = not had.all()
        return bool(had.any()) and self._is_mixed

    def note(self, answered: Rows, had: Mask, sequences: Positions, overtaking: Positions | None = None) -> None:
        """Note answered rows: which of them the stream ``had``, their sequences, and which overtake them if known."""
        if answered.conditional:  # the row itself says what it may replace
            had = np.zeros(answered.size, np.bool_)
        overtaking = np.zeros(answered.size, np.int64) if overtaking is None else overtaking
        if self._rows is not None:
            answered = Rows.concatenate_as_new([self._rows, answered])
            had = np.concatenate([np.ones(self._rows.size, np.bool_), had])
            sequences = np.concatenate([self._sequences, sequences])
            overtaking = np.concatenate([self._overtaking, overtaking])
        codes, is_last = codes_of(answered.subjects), np.zeros(answered.size, np.bool_)
        order = np.argsort(answered.numbers, kind="stable")[::-1]
        is_last[order[np.unique(codes[order], return_index=True)[1]]] = True
        chosen = is_last & had
        self._rows = answered.take(chosen) if chosen.any() else None
        self._sequences, self._overtaking = sequences[chosen], overtaking[chosen]

    def note_found(self, rows: Rows, sequences: Positions) -> None:
        """Note rows that were found in the stream, unless all that it is known to have is in the order of the rows."""
        known = 0 if self._rows is None else self._rows.size
        together = rows if self._rows is None else Rows.concatenate_as_new([self._rows, rows])
        places = np.concatenate([self._sequences[:known], sequences])
        order, later = np.argsort(together.numbers, kind="stable"), np.zeros(together.size, np.int64)
        later[order] = overtaking_sequences(together.subjects.take(integers(order)), places[order])
        if known or later.any():
            self._overtaking = np.maximum(self._overtaking[:known], later[:known])
            self.note(rows, np.ones(rows.size, np.bool_), sequences, later[known:])

    def take_and_clear(self) -> tuple[Rows, Positions, Positions] | None:
        """Return these rows, their sequences and those that overtake them; note that they are taken care of."""
        rows, self._rows = self._rows, None
        return None if rows is None else (rows, self._sequences, self._overtaking)


def overtaking_sequences(subjects: pa.Array, sequences: Positions) -> Positions:
    """Return for each row, in their order, the highest sequence of an earlier row of its subject; 0 if not higher."""
    codes = codes_of(subjects)
    order = np.lexsort((np.arange(len(codes)), codes))
    of_subject, highest = codes[order], sequences[order].copy()
    for part in np.split(np.arange(len(codes)), np.flatnonzero(np.diff(of_subject)) + 1):
        highest[part] = np.maximum.accumulate(highest[part])
    found = np.zeros(len(codes), np.int64)
    found[order] = np.where(highest > sequences[order], highest, 0)
    return found


def with_other_ids(rows: Rows) -> Rows:
    """Return rows with message ids that the stream does not know, as rows that were never sent."""
    assert rows.ids is not None  # noqa: S101 - a stream knows rows by their ids only
    ids = [f"again-{clock.token(8)}-{each}" for each in rows.ids.to_pylist()]
    blocks = [with_id_replaced(rows.header(i), each) for i, each in enumerate(ids)]
    return rows._replace(headers=byte_strings(blocks), ids=texts(ids), since=0.0, after=0, again=False)


@dataclass
class PublishLedger:
    """Counts the rows of a publisher by their fate."""

    acknowledged: Acknowledged  # what the stream has acknowledged
    queue: list[Rows] = field(default_factory=list)  # the rows to be sent, in order
    flight: Flight = field(init=False)  # the rows in flight
    given: int = 0  # how many rows there are in all
    skipped: int = 0  # how many are not stored, for their conflicts
    set_aside: int = 0  # how many are not stored, because the stream refuses their content
    lost: int = 0  # how many, at most, the stream had stored and has lost
    resent: int = 0  # how many were sent again, counted each time
    all_ids: bool = True  # whether every row has a message id
    whose: str = "this task's rows"  # how errors name the rows

    @property
    def stored(self) -> int:
        """How many rows are stored: acknowledged or found in the stream, without those that are lost."""
        return self.given - self.skipped - self.set_aside - self.lost - self.unsettled

    @property
    def unsettled(self) -> int:
        """How many rows are queued, or in flight and not known to be stored."""
        return count_rows(self.queue) + self.flight.unstored

    def __str__(self) -> str:
        """Describe what became of the rows that were sent."""
        flight = self.flight
        unsure = flight.refused_maybe_stored + count_rows(rows for rows in self.queue if rows.again)
        if not (self.stored or self.skipped or self.set_aside or unsure or flight.in_flight):
            return f"none of {self.whose} was stored"
        ledger = f"of {self.whose} {self.stored} were stored"
        if self.skipped:
            ledger += f", {self.skipped} were skipped for their conflicts"
        if self.set_aside:
            ledger += f", {self.set_aside} were set aside as bad rows"
        if unsure:
            ledger += f" and {flight.in_flight + unsure} were sent and not answered for certain (they may be stored)"
        elif flight.in_flight:
            ledger += f" and {flight.in_flight} were sent and not answered (they may be stored)"
        return ledger + ", and none of the others was stored"


def wait_and_read_ids(
    js: JetStream, initial: StreamInfo, info: StreamInfo, since: int | None = None, trust: Trust = Trust.BEYOND_DOUBT
) -> StoredIds:
    """Return the message ids of what a stream has stored since its ``initial`` state, or since the sequence ``since``.

    In a cluster, the call waits until a newer state than ``info`` is beyond doubt (:mod:`spark_nats.jetstream.views`).
    A state that is trusted less is enough while the stream still knows the ids of the messages that it has.
    """
    info = ask_again_if_doubted(js, info, trust)
    kept = ask_last_common_sequence(js, initial, info)
    if since is not None:
        kept = since if kept >= initial.last_sequence else min(kept, since)
    return read_ids(js, info, kept)


def _leader_and_led_since(info: StreamInfo) -> tuple[str, int]:
    return info.leader, info.led_since


@dataclass
class Recovery:
    """Asks a stream what it has stored."""

    initial: StreamInfo  # the stream as it was before the first row was sent
    ack_timeout: float  # seconds after which a stream that does not answer is given up
    patience: float  # seconds to wait for the stream over a new connection, or when it is verified
    api_prefix: str  # first tokens of the subjects of JetStream's API
    # Whether it is an error that reading the stream does not tell which rows it has stored. A bucket does not hold a
    # message for long: there, such rows are put again. Rows that expect a last message conflict with themselves.
    is_strict: bool
    exact: bool  # whether rows that waited for long are looked for, as another attempt may have stored them
    shared_since: int | None  # the sequence since which other attempts may have stored these rows; None if none may
    ledger: PublishLedger  # counts the rows, and records what the stream has acknowledged
    memory: IdMemory  # what held the ids of the stream's messages when rows were last known to be stored or not
    id_prefix: str | None = None  # with what only the message ids of these rows begin; None if nothing tells them

    def __post_init__(self) -> None:
        self.stream = self.initial.name
        self.duplicate_window = self.initial.duplicate_window  # seconds for which it remembered a message id then
        # The leader when the stream was last known to have everything that it had acknowledged, and since when it led.
        self.leader = _leader_and_led_since(self.initial)
        self._acknowledged = self.ledger.acknowledged
        self.known = self.initial  # the stream's last reported state
        self._memory_now = self.memory  # what held its ids then
        self._looked_back = clock.monotonic()  # when the stream was last known to have everything it had acknowledged
        self._behind = Overtaken(self.exact)
        self._found = np.zeros(0, np.int64)  # the sequences at which rows of last-value streams were found
        self._asked = 0.0  # when the state was requested
        self.last_progress = clock.monotonic()  # when rows were last stored or looked for, or began to wait
        self._view = StreamView(self.ack_timeout)
        self._said = Once()  # that rows wait for their ids

    # The stream's state

    def request_state(self, js: JetStream) -> StreamInfo:
        """Request the stream's state; in a cluster, its absence has to be reported for several seconds."""
        self._asked = clock.monotonic()
        self.known = info = self._view.request_state(js, self.stream)
        self._memory_now = id_memory_of(js, info)
        return info

    def request_state_or_error(self, js: JetStream) -> StreamInfo | NatsError:
        """Request the stream's state; return the error if there is no stream, or its leader does not answer now."""
        try:
            return self.request_state(js)
        except (JetStreamError, NatsTimeoutError) as error:
            if not isinstance(error, StreamNotFoundError) and not error.may_pass(established=True):
                raise
            return error

    def _await_state(self, js: JetStream, patience: float) -> StreamInfo:
        """Return the stream's state once its leader reports it; wait for that ``patience`` seconds at most."""
        deadline = clock.monotonic() + patience
        pauses = Backoff(FIRST_ABSENCE, MAX_ABSENCE)
        while not isinstance(info := self.request_state_or_error(js), StreamInfo):
            if isinstance(info, StreamNotFoundError):
                raise PublishError(info.args[0])
            if clock.monotonic() > deadline:
                raise PublishError(self.describe_absence(info))
            js.connection.flush()
            js.connection.wait_while_receiving(pauses.take_next_wait_seconds())
        if info.created != self.initial.created and not ask_if_intact(js, end_position_of(self.initial), info):
            raise PublishError(conditions.TARGET_MADE_AGAIN(stream=self.stream, created=info.created))
        return info

    # What may be stored

    @property
    def last_known_sequence(self) -> int:
        """A sequence that the stream had given before now."""
        return max(self.initial.last_sequence, self._acknowledged.highest)

    def still_knows_ids(self, rows: Rows) -> bool:
        """Tell whether the stream certainly remembers the message ids of rows; True also if they were never sent."""
        return not rows.since or self.memory.knows_all_ids(self._memory_now, clock.monotonic() - rows.since)

    def may_be_stored_and_forgotten(self, rows: Rows) -> bool:
        """Tell whether another attempt may have stored rows that wait, and the stream may have forgotten their ids."""
        waited, is_another = clock.monotonic() - self.last_progress, self.memory[:2] != self._memory_now[:2]
        is_late = is_another or (waited > _LOOKED and waited >= self.known.id_lifetime)
        return self.exact and rows.ids is not None and is_late

    def _may_be_forgotten_after_break(self, rows: Rows) -> bool:
        """Tell the same after a disturbance, such as a lost connection: who answers since may be another process."""
        is_unknown = self.exact and rows.ids is not None and not self._memory_now.process
        return is_unknown or self.may_be_stored_and_forgotten(rows)

    def log_waiting_for_ids(self) -> None:
        """Log, once, that rows wait until the stream forgets their message ids."""
        if self._said.add_if_new():
            window = self.duplicate_window
            said = conditions.IDS_IN_PROCESS(stream=self.stream, seconds=self.ack_timeout, window=window)
            logger.warning(said.with_code)

    def wait_and_drop_stored(self, js: JetStream, parts: list[Rows], patience: float | None = None) -> list[Rows]:
        """Return the rows that are to be sent now, out of ``parts``, which were sent before or wait.

        The call waits for the leader, ``patience`` seconds at most; the attribute of that name is the default. Where
        no row can be stored yet, it returns ``parts`` at once.

        Raises:
            PublishError: the stream is missing, recreated, or silent for too long; it has lost rows; or it is unknown
                which of ``parts`` it holds.
        """
        again = [rows for rows in parts if rows.again]
        if not again and not self.exact and not self._acknowledged.highest:
            return parts
        info = self._await_state(js, self.patience if patience is None else patience)
        self._check_rows_kept(js, info, closely=True)
        if again and not info.undisputed:  # the word of a former leader does not tell who holds the ids
            info = ask_again_if_doubted(js, info, Trust.TWICE)
            self._memory_now = id_memory_of(js, info)
        if not any(map(self._may_be_forgotten_after_break, parts)) and all(map(self.still_knows_ids, again)):
            return parts
        return self._read_back_and_drop_stored(js, info, parts)

    def _read_back_and_drop_stored(self, js: JetStream, info: StreamInfo, parts: list[Rows]) -> list[Rows]:
        """Return the rows without those found in the stream, and without those that a later one has replaced."""
        sent = [rows for rows in parts if rows.since and not self._are_left_to_resolver(rows)]
        late, now = any(map(self._may_be_forgotten_after_break, parts)), clock.monotonic()
        if not sent and not late:
            return [rows._replace(since=0.0, after=0) for rows in parts]
        memory = id_memory_of(js, info)  # before the stream is read
        in_time = all(self.memory.knows_ids_of_kept_messages(memory, now - rows.since) for rows in sent)
        trust = Trust.TWICE if in_time and not late else Trust.BEYOND_DOUBT
        since = self.shared_since
        if since is None and not late:
            since = min(rows.after for rows in sent)
        if late and self._knows_ids_of_others(info, memory, since):
            self.memory, self._memory_now = memory, memory
            return parts
        try:
            found = wait_and_read_ids(js, self.initial, info, since, trust)
        except PermissionsError as error:
            if self.is_strict:
                raise PublishError(conditions.STORED_UNKNOWN(reason=error)).with_topics(*error.topics) from None
            found = StoredIds(byte_strings([]), "")
        left = [rows._replace(since=0.0, after=0) for rows in self._missing_or_raise(found, parts)]  # as if never sent
        self.memory, self._memory_now, self.last_progress = memory, memory, clock.monotonic()
        return left

    def _knows_ids_of_others(self, info: StreamInfo, memory: IdMemory, since: int | None) -> bool:
        """Tell whether a stream without limits retention has all rows of other attempts, and so knows their ids."""
        age = clock.monotonic() - self.last_progress
        has_all = info.retention != LIMITS and since is not None and info.has_all_after(since)
        return has_all and self.memory.knows_ids_of_kept_messages(memory, age)

    def _missing_or_raise(self, found: StoredIds, parts: list[Rows]) -> list[Rows]:
        """Return the rows that are not stored, or raise that it is unknown which these are."""
        is_stored = [
            np.zeros(rows.size, np.bool_)
            if rows.ids is None or self._are_left_to_resolver(rows)
            else are_among(rows.ids, found.ids)
            for rows in parts  # waiting rows too: another attempt may have stored them
        ]
        stored = np.concatenate(is_stored)
        subjects = pa.concat_arrays([rows.subjects for rows in parts])
        if self.initial.keeps_last_values:
            self._note_found(found, parts, is_stored)
            late = are_unstored_but_replaced(subjects, stored)
            if late.any():
                self.warn_not_sent_again(int(np.count_nonzero(late)))
            stored |= late
        if found.removed and self.is_strict and not self._missing_were_never_stored(found, subjects, stored):
            raise PublishError(conditions.STORED_UNKNOWN(reason=found.removed))
        ends = np.cumsum([rows.size for rows in parts])[:-1]
        left = [rows.take(~there) for rows, there in zip(parts, np.split(stored, ends), strict=True)]
        return [rows for rows in left if rows.size]

    def _note_found(self, found: StoredIds, parts: list[Rows], is_stored: list[Mask]) -> None:
        """Note rows that are found after later ones of their subjects."""
        rows = Rows.concatenate_as_new([each.take(there) for each, there in zip(parts, is_stored, strict=True)])
        if rows.size and rows.ids is not None and found.sequences is not None:
            # Where each was found last: another attempt may have stored a row again.
            places = integers_of(pc.index_in(rows.ids.cast(pa.binary()), found.ids[::-1]).cast(pa.int64()))
            sequences = found.sequences[::-1][places]
            self._found = np.union1d(self._found, sequences)
            self._behind.note_found(rows, sequences)

    def _are_left_to_resolver(self, rows: Rows) -> bool:
        """Tell whether rows that are stored already conflict with themselves, which is resolved."""
        return rows.conditional and not self.is_strict

    def _missing_were_never_stored(self, found: StoredIds, subjects: pa.Array, stored: Mask) -> bool:
        """Tell whether rows that are not found cannot have been stored and replaced by messages of others."""
        stream = self.initial
        if not (
            found.only_by_subject and stream.keeps_last_values and stream.stores_on_published_subjects(self.api_prefix)
        ):
            return False
        return not flags_of(pc.is_in(subjects.filter(booleans(~stored)), found.full)).any()

    def ask_which_stored(self, js: JetStream, rows: Sequence[Rows]) -> list[bool]:
        """Tell for each row whether an earlier send has stored it, although the stream refuses it now.

        Raises:
            PublishError: that is unknown.
        """
        if not any(row.again and not self._are_left_to_resolver(row) for row in rows):
            return [False] * len(rows)
        left = self._read_back_and_drop_stored(js, ask_stream_info(js, self.stream), list(rows))
        numbers = {int(row.numbers[0]) for row in left}
        return [int(row.numbers[0]) not in numbers for row in rows]

    # The last row of each subject

    def warn_not_sent_again(self, rows: int) -> None:
        """Log that rows are not sent again, because later rows of their subjects are stored."""
        logger.warning(conditions.ROWS_REPLACED(stream=self.stream, rows=rows).with_code)

    def note_stored_before(self, stored: Stored, had: Mask, flight: Flight) -> None:
        """Note which of the rows that are stored the stream ``had`` before they were sent."""
        if had.any():
            flight.note_stored_earlier(stored.messages[had])
        if self._behind.must_note(had, flight.may_be_stored or flight.state is not FlightState.IN_ORDER):
            order = np.argsort(stored.messages, kind="stable")
            sequences = self._acknowledged.sequences(stored.answers)[order]
            self._behind.note(flight.rows_of(stored.messages[order]), had[order], sequences)

    def ask_and_take_overtaken_rows(self, js: JetStream) -> Rows | None:
        """Return rows that have to be stored again, since an earlier row of their subject was stored after them."""
        if (taken := self._behind.take_and_clear()) is None:
            return None
        rows, sequences, later_ones = taken
        subjects = [subject.removeprefix(f"{self.api_prefix}.") for subject in rows.subjects.to_pylist()]
        last = [MessageAt(self.stream, None, subject, with_headers=True) for subject in subjects]
        is_behind = np.ones(rows.size, np.bool_)
        # A user who may write may not be allowed to ask; and where subjects are transformed, nothing is there.
        with contextlib.suppress(PermissionsError):
            found = [each for i in range(0, len(last), _AT_ONCE) for each in ask(js, last[i : i + _AT_ONCE])]
            is_behind = np.array(
                [
                    there is None or there.sequence == later or (there.sequence > sequence and self._may_be_own(there))
                    for there, sequence, later in zip(found, sequences.tolist(), later_ones.tolist(), strict=True)
                ]
            )
        if not is_behind.any():
            return None
        rows = with_other_ids(rows.take(is_behind))
        logger.warning(conditions.LAST_ROWS_STORED_AGAIN(stream=self.stream, rows=rows.size).with_code)
        return rows

    def _may_be_own(self, message: StoredMessage) -> bool:
        """Tell whether a message may be one of these rows; where others write in between, it may be theirs."""
        prefix, (own,) = self.id_prefix, first_header_values(byte_strings([message.header]), MSG_ID).to_pylist()
        has_prefix = prefix is not None and own is not None and own.startswith(prefix.encode())
        return has_prefix or message.sequence in self._found or self._acknowledged.may_be_own(message.sequence)

    # What was acknowledged

    def check_nothing_lost(self, js: JetStream, closely: bool) -> None:
        """Check that the stream still has what it has acknowledged; ``closely`` also if anything makes that doubtful.

        A loss raises :class:`PublishError`. Where the user may not request the state, nothing is checked.
        """
        if self._acknowledged.highest:
            with contextlib.suppress(PermissionsError):  # a user who may write may not be allowed to ask
                info = self._await_state(js, self.patience)
                is_new = _leader_and_led_since(info) != self.leader or not self._memory_now.process
                is_doubtful = self._acknowledged.fallen is not None or is_new
                self._check_rows_kept(js, info, closely or is_doubtful)

    def _check_rows_kept(self, js: JetStream, info: StreamInfo, closely: bool) -> None:
        """Check that the stream still has what it has acknowledged.

        If ``closely``, check also that no other message has taken the sequence of one of its last rows.
        """
        leader = _leader_and_led_since(info)
        for row in self._last_rows(info):
            if self._ask_if_row_lost(js, info, row, closely):
                info = ask_again_if_doubted(js, info, Trust.BEYOND_DOUBT)
                if self._ask_if_row_lost(js, info, row, closely=True):
                    self._raise_lost(js, row)
        self._acknowledged.fallen = None
        if closely:
            self.leader, self._looked_back = leader, clock.monotonic()

    def _last_rows(self, info: StreamInfo) -> list[LastRow]:
        """Return the row that was acknowledged last; under another leader, also the last ones before that one led.

        Where nothing tells when the present leader began, each pause since the last look may have been before it.
        """
        if not self._memory_now.process:
            return self._acknowledged.last_rows((self._looked_back, clock.monotonic()))
        if not info.led_since or _leader_and_led_since(info) == self.leader:
            return self._acknowledged.last_rows()
        led = (info.time - info.led_since) / 1e9
        return self._acknowledged.last_rows((self._asked - led, clock.monotonic() - led))

    def _ask_if_row_lost(self, js: JetStream, info: StreamInfo, row: LastRow, closely: bool) -> bool:
        """Tell whether the stream has lost a row.

        Where the row was removed meanwhile, or may not be requested, or the stream has counters, the sequences decide.
        """
        if info.last_sequence < row.sequence:
            return True
        if closely and not info.config.get("allow_msg_counter"):
            with contextlib.suppress(PermissionsError, JetStreamUnavailableError):
                there = ask_first_message_from(js, self.stream, row.sequence, (">",))
                if there is not None and there.sequence == row.sequence:
                    same = digest_of(there.payload) == row.digest
                    return not (same if row.ids is None else has_id_of(there.header, row.ids))
        return row.sequence == self._acknowledged.highest and self._acknowledged.fallen is not None

    def _raise_lost(self, js: JetStream, row: LastRow) -> NoReturn:
        """Raise that the stream has lost rows up to and including ``row``, and how many.

        Messages stored after ``row`` was acknowledged are recognized by their time, by the clock of the leader.
        """
        said, all_ids = self._acknowledged, self.ledger.all_ids
        ago = clock.monotonic() - row.since
        info = ask_stream_info(js, self.stream)
        last, end = row.sequence, info.last_sequence + 1
        first = None if end > last else end
        if info.time:
            since = info.time - round(ago * 1e9) + (SKEW if js.may_be_clustered else 0)
            with contextlib.suppress(PermissionsError, JetStreamUnavailableError):
                first = ask_first_since(js, self.stream, since, info.first_sequence, end)
        if said.fallen is not None:
            first = min(said.fallen, first or end)
        least, most = said.least_and_most_lost(first or 0, last, self.ledger.stored)
        exact = first is not None and least == most
        if first is None:
            now = "has another message there"
        else:
            now = f"has other messages from sequence {first} on" if first < end else f"ends at {end - 1}"
        self.ledger.lost = most
        then = (
            "the next attempt of the task, or the micro-batch when it is run again, stores them by their message ids"
            if all_ids
            else "they have no message ids, so rows that are written again are stored twice if they are not lost"
        )
        rows = f"{'' if exact else 'at most '}{most}"
        why = conditions.ACKNOWLEDGED_LOST(stream=self.stream, rows=rows, last=last, now=now, then=then)
        raise PublishError(why).with_topics(*([] if all_ids else [Topic.MESSAGE_IDS]))

    # Why nothing is stored

    def ask_why_silent(self, js: JetStream, subject: str) -> ConditionText:
        """Return why no acknowledgement has come, as far as the server reports it."""
        maybe = "it cannot store, as when a disk is full; see the server's log"
        if self.api_prefix != API_PREFIX:
            maybe = f"{subject!r} does not lead to it, as when that is not imported from its account; or {maybe}"
        reason = f", though it is there: maybe {maybe}"
        try:
            ask_stream_info(js, self.stream)
        except (StreamNotFoundError, NatsTimeoutError) as error:
            reason = f": {error}"
        except JetStreamError as error:
            return self.describe_absence(error)
        return conditions.NO_ACKNOWLEDGEMENT(stream=self.stream, seconds=self.ack_timeout, reason=reason)

    def describe_absence(self, reason: object) -> ConditionText:
        """Return the text of the error that nobody answers for the stream."""
        return conditions.NOBODY_STORES(stream=self.stream, seconds=self.ack_timeout, reason=reason)
