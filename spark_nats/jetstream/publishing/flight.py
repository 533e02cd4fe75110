"""Rows on their way to a stream: which wait, how many may be in flight, and what answers mean. No socket, no clock.

Rows are columns, in parts; a queue is a list of parts. The window limits how many are in flight, as TCP does, and tells
how long to pause when a stream refuses rows for now. It is halved when a stream is given too much at once, and grows
again slowly. While nobody answers for the stream, it is as small as it can be.

The reply subject carries the message's number, which is never used again on a connection. So an answer names its row; a
late or second answer names a message whose fate is known, and is ignored. Reusing reply subjects, for which nats-server
has a cache of 512, would gain less than a tenth of the rate, and answers would have to be told apart.

Where a stream keeps the last messages of each subject, a row that is sent again must not be stored after a later one of
its subject: the older value would replace the newer one. So a row that may not be stored, but has a later row of its
subject that is, counts as replaced by that one (:func:`are_unstored_but_replaced`), and is not sent again.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from operator import itemgetter, methodcaller
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_nats.client.publishing import cut_into_parts
from spark_nats.client.retrying import Backoff
from spark_nats.conditions.jetstream import ANSWER_TO_NO_ROW
from spark_nats.errors import PublishError
from spark_nats.protocol.bytecolumns import Mask, Positions, booleans, byte_strings, flags_of, integers_of, texts
from spark_nats.protocol.messages import Messages, numbered_subjects
from spark_nats.protocol.publish_acks import PublishAcks, Refusal, Verdict
from spark_nats.protocol.stream_configs import MAX_MESSAGE_SIZE

FIRST = 2048  # rows at first; the window doubles while the server takes all that is sent
MIN_SIZE = 16  # rows that may be in flight in any case
GROWTH = 1 / 16  # rows by which the window grows for each stored row, once there were too many requests
FIRST_ABSENCE, MAX_ABSENCE = 0.25, 2.0  # seconds to pause when nobody answers
MAX_BYTES = 64 << 20
"""Bytes of payload that may be unanswered: rows are kept until they are answered, as they may have to be sent again."""
OF_ROWS = (Verdict.BAD_ROW, Verdict.NO_SUCH_SUBJECT, Verdict.CONFLICT)  # refusals of single rows
# Refusals of messages that will not be stored, unless a decision changes that.
FINAL = (Verdict.REJECTED, Verdict.TOO_LARGE, *OF_ROWS)
_NOT_TOO_LARGE = (
    ", though it has only {size} bytes: nats-server 2.14.0 to 2.14.3 refuse every message after one of more than 32"
    " MiB, until they restart"
)
_IN_FLIGHT, _STORED, _REFUSED = range(3)


class Rows(NamedTuple):
    """A part of the rows on their way, in the order they were given."""

    numbers: Positions  # of the rows, in the order they were given
    subjects: pa.Array  # string column without null
    payloads: pa.Array  # string or binary column without null
    headers: pa.Array | None  # binary column of header blocks, null where a row has none; None when no row has one
    ids: pa.Array | None  # their message ids; None unless every row has one
    since: float = 0.0  # when they were first sent, by :func:`clock.monotonic`; 0 before
    after: int = 0  # a sequence that the stream had given before they were first sent
    again: bool = False  # whether an earlier send may have stored them already
    conditional: bool = False  # whether they name the last message that their subject must have

    @property
    def size(self) -> int:
        """How many rows there are."""
        return len(self.numbers)

    def take(self, chosen: slice | Mask) -> Rows:
        """Return the chosen rows."""
        pick = itemgetter(chosen) if isinstance(chosen, slice) else methodcaller("filter", booleans(chosen))
        subjects, payloads, headers, ids = (None if column is None else pick(column) for column in self[1:5])
        return Rows(self.numbers[chosen], subjects, payloads, headers, ids, *self[5:])

    @classmethod
    def concatenate_as_new(cls, parts: Sequence[Rows]) -> Rows:
        """Return parts as one, of rows that are to be sent for the first time."""
        subjects, payloads, _, ids = zip(*(part[1:5] for part in parts), strict=True)
        blocks = [pa.nulls(part.size, pa.binary()) if part.headers is None else part.headers for part in parts]
        numbers = np.concatenate([part.numbers for part in parts])
        all_ids = None if any(each is None for each in ids) else pa.concat_arrays(ids)
        return cls(numbers, pa.concat_arrays(subjects), pa.concat_arrays(payloads), pa.concat_arrays(blocks), all_ids)

    def header(self, i: int) -> bytes:
        """Return the header block of one row; empty when it has none."""
        return b"" if self.headers is None else self.headers[i].as_py() or b""

    def with_headers(self, headers: Mapping[int, bytes]) -> Rows:
        """Return the rows with the header blocks of some replaced, by their numbers."""
        others = [headers[number] for number in self.numbers.tolist() if number in headers] if headers else []
        if not others:
            return self
        changed = booleans(np.isin(self.numbers, list(headers)))
        return self._replace(headers=pc.replace_with_mask(self.headers, changed, byte_strings(others)))


def count_rows(parts: Iterable[Rows]) -> int:
    """Return how many rows the parts have."""
    return sum(rows.size for rows in parts)


def take_next_part(queue: list[Rows], most: int) -> Rows:
    """Take the next rows to send out of a queue: at most ``most`` rows and about a MiB, at least one row."""
    rows = queue[0]
    part = rows.take(slice(most))
    part = part.take(next(cut_into_parts(part.payloads, part.headers, most)))
    queue[:1] = [rows.take(slice(part.size, None))] if part.size < rows.size else []
    return part


def are_unstored_but_replaced(subjects: pa.Array, stored: Mask) -> Mask:
    """Return a mask of the rows that are not stored and come before a stored one of their subject."""
    if not stored.any() or stored.all():
        return np.zeros(len(subjects), np.bool_)
    codes, places = codes_of(subjects), np.arange(len(subjects))
    last = np.full(int(codes.max()) + 1, -1)
    np.maximum.at(last, codes[stored], places[stored])
    found: Mask = ~stored & (places < last[codes])
    return found


def codes_of(subjects: pa.Array) -> Positions:
    """Return a number for each subject, equal for equal ones."""
    return integers_of(subjects.dictionary_encode().indices.cast(pa.int64()))


class Window:
    """Rows that may be in flight, ``most`` of them at most.

    Attributes:
        absence: the waits while the stream is unavailable; new if rows were stored since it last was.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._exact = float(min(FIRST, most))
        self._congested = False  # there were too many requests before
        self._pause = Backoff(0.01, 0.5, fixed_share=0.0)  # after too many requests
        self.absence = Backoff(FIRST_ABSENCE, MAX_ABSENCE)

    @property
    def size(self) -> int:
        """How many rows may be in flight."""
        return int(self._exact)

    @property
    def part_size(self) -> int:
        """How many rows are sent together."""
        return max(1, self.size // 4)

    def grow(self, stored: int) -> None:
        """Note how many rows were stored."""
        self._pause.reset()
        self.absence.reset()
        self._exact = min(self._exact + stored * (GROWTH if self._congested else 1.0), float(self._most))

    def shrink_and_choose_pause(self, span: int) -> float:
        """Note that ``span`` rows were too many for the stream; return how many seconds to pause."""
        self._congested = True
        self._exact = min(max(float(MIN_SIZE), min(self._exact, span) / 2), float(self._most))
        return self._pause.take_next_wait_seconds()

    def minimize_and_choose_pause(self) -> float:
        """Note that the stream does not take rows at the moment; return how many seconds to pause."""
        self._exact = float(min(MIN_SIZE, self._most))
        return self.absence.take_next_wait_seconds()


class FlightState(Enum):
    """What is known of the messages in flight."""

    IN_ORDER = auto()  # all answered messages are stored, and none before them is in flight
    OUT_OF_ORDER = auto()  # some messages are in flight before answered ones
    REFUSED = auto()  # the stream has refused some messages, and it is known which


class Stored(NamedTuple):
    """Answers that acknowledge messages."""

    messages: Positions  # their numbers
    answers: Messages  # the answers, one for each
    in_order: bool  # whether they came in the order of their messages, which follow all that were answered before


class RefusedMessage(NamedTuple):
    """A message that was not stored."""

    message: int
    row: int  # the number of its row
    subject: str
    reason: str  # the server's words
    verdict: Verdict  # what the words mean
    again: bool  # whether an earlier send may have stored the row all the same


@dataclass
class Elsewhere:
    """What is known, over one connection, of streams in other domains that hear what is sent."""

    possible: bool = False  # whether one may answer, as far as is known
    heard: bool = False  # whether one has answered
    said: str = ""  # what the first one has answered, in words

    def __bool__(self) -> bool:
        """Tell whether one may answer."""
        return self.possible or self.heard


class Flight:
    """Messages in flight on one connection, numbered from ``first`` on; answers come on the inbox with the number."""

    def __init__(
        self, inbox: str, first: int, acks: PublishAcks, now: float, elsewhere: Elsewhere | None = None
    ) -> None:
        self._inbox = inbox
        self._acks = acks
        self._elsewhere = elsewhere or Elsewhere()
        self._twice: list[Positions] = []  # messages that were answered elsewhere too, or refused twice
        self.state = FlightState.IN_ORDER  # what is known of the messages
        self.end = first  # the smallest unused number
        self.in_flight = 0  # how many messages have no answer
        self.bytes = 0  # of the payloads that are kept, in case they have to be sent again
        self.heard = now  # when the last message was sent, or the last informative answer came
        self.refused: dict[int, RefusedMessage] = {}  # the refused messages, by their numbers
        self.strangers: dict[str, str] = {}  # the last answers of other responders, by subjects
        self._parts: deque[tuple[int, Rows]] = deque()  # the kept rows, each part with the number of its first message
        self._base = first  # all before it are stored
        self._top = first  # the number after the highest one that was answered
        self._statuses = np.empty(0, np.uint8)  # of the messages from the base on
        self._had: list[Positions] = []  # messages that the stream had already, see :meth:`note_stored_earlier`
        self._headers: dict[int, bytes] = {}  # replacements for header blocks, by the rows' numbers

    @property
    def unstored(self) -> int:
        """How many rows are not known to be stored."""
        return self.in_flight + len(self.refused)

    @property
    def refused_maybe_stored(self) -> int:
        """How many rows were refused for now, and may be stored by an earlier send."""
        return sum(each.again and each.verdict not in FINAL for each in self.refused.values())

    @property
    def is_refusal_unconfirmed(self) -> bool:
        """Whether a refusal may be that of a stream in another domain, so that the stream's own answer may come yet.

        A refusal names no domain. It counts once the message has a second answer, or none comes.
        """
        if not self.refused or not self._elsewhere:
            return False
        return not np.isin(list(self.refused), np.concatenate([np.empty(0, np.int64), *self._twice])).all()

    @property
    def may_be_stored(self) -> bool:
        """Whether an earlier send may have stored the rows in flight, which is so for all of them or for none."""
        return bool(self._parts) and self._parts[-1][1].again

    @property
    def can_resend_unknown(self) -> bool:
        """Whether all rows of unknown fate can be sent again."""
        return not self.in_flight or not any(
            rows.ids is None and (statuses == _IN_FLIGHT).any() for rows, _, statuses in self._unstored_parts()
        )

    @property
    def sent_since_unstored(self) -> int:
        """How many rows were sent since the first row that is not known to be stored, including it."""
        return self.end - self._base

    def can_send_next(self, rows: Rows, window: int, part: int) -> bool:
        """Tell whether the first of these rows can be sent now.

        ``window`` is how many rows may be in flight, and ``part`` how many rows are sent together.
        """
        if not self.unstored:
            return True
        before = self._parts[-1][1]
        return (
            self.state is FlightState.IN_ORDER
            and self.in_flight + min(part, rows.size) <= window
            and self.bytes <= MAX_BYTES
            and rows.again == before.again
            and not (rows.conditional or before.conditional)
        )

    def note_sent_and_get_replies(self, rows: Rows, now: float, after: int = 0) -> pa.Array:
        """Note that rows are sent; return their reply subjects. The stream has given the sequence ``after`` before."""
        self._drop_stored_rows()
        self.heard = now
        self._parts.append((self.end, rows if rows.since else rows._replace(since=now, after=after)))
        self._statuses = np.concatenate([self._statuses, np.full(rows.size, _IN_FLIGHT, np.uint8)])
        replies = numbered_subjects(self._inbox, self.end, rows.size)
        self.end += rows.size
        self.in_flight += rows.size
        self.bytes += rows.payloads.nbytes
        return replies

    def note_answers(self, answers: Messages, now: float) -> Stored | None:
        """Note answers; return those that acknowledge messages, None when there are none.

        Answers about messages whose fate is known are ignored; but where a stream in another domain may have refused a
        message, its acknowledgement counts. Other responders' answers only go to ``strangers``, because the stream's
        own may still come. An answer that names no message raises :class:`PublishError`. The rows of the answers can be
        looked up until rows are sent or the next answers come.
        """
        self._drop_stored_rows()
        numbers, valid = answers.numbers_below_inbox(self._inbox)
        if not (valid & (numbers < self.end)).all():
            raise PublishError(ANSWER_TO_NO_ROW())
        refusals, count = self._acks.refusals(answers), len(numbers)
        if refusals and (elsewhere := self._acks.stored_in_other_domain(answers)).any():
            self._note_stored_elsewhere(numbers[elsewhere], refusals[int(np.argmax(elsewhere))])
            return self.note_answers(answers.take(~elsewhere), now)
        # Nearly always, exactly the answers that are due come: in order, all messages from the base on are in flight.
        due = np.arange(self._base, self._base + count)
        if count and self.state is FlightState.IN_ORDER and not refusals and np.array_equal(numbers, due):
            self.heard = now
            self.in_flight -= count
            self._base = self._top = self._base + count
            self._statuses = self._statuses[count:]
            return Stored(numbers, answers, True)
        news = numbers >= self._base
        news[news] = self._statuses[numbers[news] - self._base] == _IN_FLIGHT
        stored = np.ones(len(answers), np.bool_)
        stored[list(refusals)] = False
        if self._elsewhere and (refusals or self.refused):
            self._take_back_refusals(numbers, stored, news)
        for i, refusal in refusals.items():
            if news[i] and refusal.verdict is Verdict.STRANGER:
                self.strangers[str(self.row(int(numbers[i])).subjects[0])] = refusal.reason
                news[i] = False
        # Of several refusals of the same message, the first one counts.
        refused = {int(numbers[i]): refusal for i, refusal in reversed(refusals.items()) if news[i]}
        if not news.all():
            answers, numbers, stored = answers.take(news), numbers[news], stored[news]
        rising = bool((numbers[1:] > numbers[:-1]).all())
        if not rising:
            first = np.zeros(len(numbers), np.bool_)
            first[np.unique(numbers, return_index=True)[1]] = True
            answers, numbers, stored = answers.take(first), numbers[first], stored[first]
        if not len(numbers):
            return None
        self.heard = now
        for number in numbers[~stored].tolist():
            self._note_refusal(number, refused[number])
        self._statuses[numbers - self._base] = np.where(stored, _STORED, _REFUSED)
        self.in_flight -= len(numbers)
        in_order = rising and int(numbers[0]) >= self._top
        self._top = max(self._top, int(numbers.max()) + 1)
        self._update_state_and_base()
        if not stored.all():
            answers, numbers = answers.take(stored), numbers[stored]
        return Stored(numbers, answers, in_order) if len(numbers) else None

    def _note_stored_elsewhere(self, numbers: Positions, said: Refusal) -> None:
        """Note that a stream in another domain has stored messages; its first answer counts as a stranger's."""
        places = numbers[numbers >= self._base] - self._base
        if (unanswered := places[self._statuses[places] == _IN_FLIGHT]).size and not self._elsewhere.heard:
            self.strangers[str(self.row(int(unanswered[0]) + self._base).subjects[0])] = said.reason
        self._elsewhere.said = self._elsewhere.said or said.reason
        self._elsewhere.heard = True
        self._twice = [each for each in self._twice if each.max() >= self._base]
        if places.size:
            self._twice.append(places + self._base)

    def _take_back_refusals(self, numbers: Positions, stored: Mask, news: Mask) -> None:
        """Take back a refusal where the message is acknowledged now; the acknowledgement is news, and no refusal is."""
        news &= stored | ~np.isin(numbers, numbers[stored])
        refused, count = np.unique(numbers[news & ~stored], return_counts=True)
        if (count > 1).any():
            self._twice.append(refused[count > 1])
        for i in np.flatnonzero(~news & (numbers >= self._base)).tolist() if self.refused else ():
            number = int(numbers[i])
            if number not in self.refused:
                continue
            if stored[i]:
                del self.refused[number]
                self._statuses[number - self._base] = _IN_FLIGHT
                self.in_flight += 1
                news[i] = True
            else:
                self._twice.append(numbers[i : i + 1])

    def note_resend_or_done(self, message: int, header: bytes | None) -> None:
        """Note the header block with which a refused message's row is sent again; None when the row is not."""
        if header is None:
            del self.refused[message]
            self._statuses[message - self._base] = _STORED
        else:
            refused = self.refused[message]
            self.refused[message] = refused._replace(verdict=Verdict.RESOLVED)
            self._headers[refused.row] = header

    def subjects_in_flight(self) -> Counter[str]:
        """Return the subjects of unanswered messages, and how many messages each has."""
        found = [
            rows.subjects[stored:].filter(booleans(statuses == _IN_FLIGHT))
            for rows, stored, statuses in self._unstored_parts()
        ]
        counts = pc.value_counts(pa.chunked_array(found, pa.string()))
        return Counter(dict(zip(*(counts.field(name).to_pylist() for name in ("values", "counts")), strict=True)))

    def mark_in_flight_refused(self, reasons: Mapping[str, str], verdict: Verdict) -> None:
        """Mark the unanswered messages on the subjects of ``reasons`` as refused, for the reason of each subject."""
        subjects = texts(list(reasons))
        for first, rows in self._parts:
            for i in np.flatnonzero(flags_of(pc.is_in(rows.subjects, subjects))).tolist():
                if (place := first + i - self._base) >= 0 and self._statuses[place] == _IN_FLIGHT:
                    self._note_refusal(first + i, Refusal(reasons[str(rows.subjects[i])], verdict))
                    self._statuses[place] = _REFUSED
                    self.in_flight -= 1
        self._update_state_and_base()

    def row(self, message: int) -> Rows:
        """Return the row of a message."""
        first, rows = next(each for each in self._parts if each[0] <= message < each[0] + each[1].size)
        return rows.take(slice(message - first, message - first + 1))

    def rows_of(self, messages: Positions) -> Rows:
        """Return the rows of messages, in rising order of the messages."""
        found = []
        for first, rows in self._parts:
            of_part = messages[(messages >= first) & (messages < first + rows.size)] - first
            if len(of_part):
                chosen = np.zeros(rows.size, np.bool_)
                chosen[of_part] = True
                found.append(rows.take(chosen))
        return found[0] if len(found) == 1 else Rows.concatenate_as_new(found)

    def note_stored_earlier(self, messages: Positions) -> None:
        """Note messages that count as stored but were not just now: the stream had them or later rows replace them."""
        # Those before the base come before every row that is not known to be stored.
        self._had = [each for each in [*self._had, messages] if each.max() >= self._base]

    def mark_replaced_as_stored(self) -> int:
        """Take rows for stored that come before a stored one of their subject; return how many these are.

        A row that is refused for good stays refused. Nor does a row that the stream had already replace one without an
        answer, which may have been stored after it just now.
        """
        if self.end - self._base == self.unstored:  # no row is stored out of order
            return 0
        first = self._parts[0][0]
        statuses = np.concatenate([np.full(self._base - first, _STORED, np.uint8), self._statuses])
        subjects = pa.concat_arrays([rows.subjects for _, rows in self._parts])
        stored, now = statuses == _STORED, statuses == _STORED
        for had in self._had:
            now[had[had >= first] - first] = False
        late = (are_unstored_but_replaced(subjects, now) & ~stored) | (
            are_unstored_but_replaced(subjects, stored) & (statuses == _REFUSED)
        )
        final = [number for number, each in self.refused.items() if each.verdict in FINAL]
        messages = np.flatnonzero(late) + first
        messages = messages[~np.isin(messages, final)]
        for message in messages.tolist():
            if self.refused.pop(message, None) is None:
                self.in_flight -= 1
        self._statuses[messages - self._base] = _STORED
        if len(messages):
            self.note_stored_earlier(messages)
        self._update_state_and_base()
        return len(messages)

    def unstored_rows(self) -> list[Rows]:
        """Return the rows that are not known to be stored, in order."""
        found = []
        for rows, stored, statuses in self._unstored_parts():
            if (chosen := statuses != _STORED).any():
                again = rows.again or bool((statuses == _IN_FLIGHT).any())
                left = rows.take(slice(stored, None))
                left = left if chosen.all() else left.take(chosen)
                found.append(left.with_headers(self._headers)._replace(again=again))
        return found

    def _note_refusal(self, message: int, refusal: Refusal) -> None:
        row, (reason, verdict) = self.row(message), refusal
        if verdict is Verdict.TOO_LARGE:
            size = row.payloads[0].as_buffer().size + len(row.header(0))
            verdict = Verdict.BAD_ROW if size > MAX_MESSAGE_SIZE else Verdict.REJECTED
            reason += "" if verdict is Verdict.BAD_ROW else _NOT_TOO_LARGE.format(size=size)
        number, subject = int(row.numbers[0]), str(row.subjects[0])
        self.refused[message] = RefusedMessage(message, number, subject, reason, verdict, row.again)

    def _update_state_and_base(self) -> None:
        """Update the state, and move the base to the first message that is not known to be stored."""
        unknown = self._statuses != _STORED
        stored = int(np.argmax(unknown)) if unknown.any() else len(unknown)
        self._base += stored
        self._statuses = self._statuses[stored:]
        if self.refused:
            self.state = FlightState.REFUSED
        elif (self._statuses[: max(0, self._top - self._base)] == _IN_FLIGHT).any():
            self.state = FlightState.OUT_OF_ORDER
        else:
            self.state = FlightState.IN_ORDER

    def _drop_stored_rows(self) -> None:
        """Drop rows that are stored."""
        while self._parts and self._parts[0][0] + self._parts[0][1].size <= self._base:
            self.bytes -= self._parts.popleft()[1].payloads.nbytes

    def _unstored_parts(self) -> Iterator[tuple[Rows, int, npt.NDArray[np.uint8]]]:
        """Yield each part that may not be stored, how many of its first rows are, and the fate of the others."""
        for first, rows in self._parts:
            if (stored := max(0, self._base - first)) < rows.size:
                yield rows, stored, self._statuses[max(0, first - self._base) :][: rows.size - stored]
