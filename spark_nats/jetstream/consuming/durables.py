"""Holds messages with a durable consumer while they are read by sequence, and releases them once they are processed.

Nobody pulls from the durable. On an interest stream it keeps the messages that other consumers have acknowledged. On a
work queue it claims its subjects, so that nobody else can take from them. With limits retention it shows how far a
reader is. On a work queue, a purge releases the processed messages, because moving the consumer there would strand
messages; it leaves what a stream that copies the queue still needs (:func:`ask_first_needed_by_others`). On other
streams, moving the consumer's floor releases them (ADR-60 and the server's CONSUMER.RESET, 2.14).

One run of a reader owns the durable at a time: the last one to take it, whose mark is in the durable's metadata. The
run checks the mark before each release, so two readers on one durable never lose each other's messages silently.

A purge would take away what a stream that sources or mirrors a work queue has still to copy. Since nats-server 2.14,
such a stream has a durable consumer, which the server accepts beside that of a worker, with the
same subjects: a message leaves the queue when both have it. Older servers neither list nor count it.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from spark_nats import clock
from spark_nats.conditions import ConditionText, Once
from spark_nats.conditions import jetstream as conditions
from spark_nats.errors import (
    ConsumerConflictError,
    JetStreamError,
    NatsError,
    PermissionsError,
    ProtocolError,
    UnsupportedStreamError,
)
from spark_nats.jetstream.api import JetStream
from spark_nats.jetstream.consuming import consumers
from spark_nats.jetstream.listing import Listed, ask_all_consumers
from spark_nats.jetstream.messages import ask_first_sequence_from, may_be_former_leader
from spark_nats.jetstream.streams import INTEREST, WORK_QUEUE, StreamInfo
from spark_nats.jetstream.views import StreamView
from spark_nats.protocol.api import Api, ErrCode, server_version_in
from spark_nats.protocol.consumers import (
    ConsumerInfo,
    describe_copied_stream,
    durable_config,
    filters_of,
    max_inactive_threshold,
    parse_consumer,
    reason_not_ours,
)
from spark_nats.protocol.control import is_older
from spark_nats.protocol.documents import integer_at, value_or_none_at
from spark_nats.protocol.subjects import overlap

logger = logging.getLogger(__name__)

OWNER = "spark-nats-owner"  # key in the metadata of a durable for the run that owns it
NEW = "spark-nats-new"
"""Key in the metadata of a durable that had to be created, until the reader has reported what its absence means. A run
that ends with that report, or before it, leaves the key to the next run."""
LOOK_INTERVAL = 5.0
"""Seconds between two checks of a durable from which nothing is released, and between two attempts at a release that
waits for another consumer."""
STUCK = 60.0  # seconds without progress after which it is a warning that another consumer holds up a release
STEP = 100_000  # maximum sequences, of about 5 µs each, of a filtered purge or of a move on an interest stream
_RESET_LEVEL = 4  # API level of nats-server 2.14
_MAX_SHOWN = 3


def default_durable_name(stream: str, filters: Sequence[str]) -> str:
    """Return a name for the durable of a reader of these subjects, the same name each time."""
    text = "\n".join([stream, *sorted(filters)])
    return f"spark-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


class DurableHandle:
    """The durable of one stream, for one run of a reader. It can be pickled; each call takes a connection.

    The filters are the reader's, and do not overlap; it reads all subjects when there are none. A report that the
    durable is gone is doubted for ``patience`` seconds at most, see :class:`~.views.StreamView`.
    """

    def __init__(self, stream: str, name: str, filters: Sequence[str], patience: float) -> None:
        self.name = name
        self.retention: str | None = None  # of the stream; None before it was seen
        self._stream = stream
        self._filters = tuple(filters)
        self._owner = clock.token(8)
        self._was_held = False  # whether the reader has begun or resumed while the run owned the durable
        self._unannounced = False  # whether the durable had to be created, and what that means is not reported yet
        self._created: str | None = None  # creation time of the stream where the run owns the durable; None: nowhere
        self._config: dict[str, Any] = {}  # of the durable, as the server has it
        self._released = 0  # everything before this sequence is known to be released
        self._waits = _Waits()
        self._looked = 0.0
        self._view = StreamView(patience)

    @property
    def has_reader_begun(self) -> bool:
        """Whether the reader has begun or resumed, after reporting what a missing durable may have lost."""
        return self._was_held and not self._unannounced

    @property
    def _description(self) -> str:
        return f"the durable consumer {self.name!r} of stream {self._stream!r}"

    # Taking

    def create_or_take_over(self, js: JetStream, info: StreamInfo) -> None:
        """Create the durable, or take over the existing one, unless this run owns it already.

        Raises:
            UnsupportedStreamError: messages of the stream cannot be released (any more), or the server is too old.
            ConsumerConflictError: the durable is not ours, somebody pulls from it, or other consumers are in its way.
            JetStreamError: another client has just created or deleted the durable, or its loss is still in doubt.
        """
        if self._created == info.created:
            _check_purges_possible(info)
            return
        self.retention = info.retention
        check_releasable(js, info)
        version = info.server_version
        if self.retention == INTEREST and not consumers.delivers_all_despite_purges(version, self._filters):
            raise UnsupportedStreamError(conditions.SEVERAL_SUBJECTS_NOT_HELD(stream=info.name, version=version))
        found, _ = self._ask_or_confirm_gone(js)
        if found is None:
            found = self._create_durable(js)
        else:
            self._check_ours_and_unused(found)
            found = self._update_metadata(js, found.config, {**found.metadata, OWNER: self._owner})
        self._config = found.config
        self._unannounced = NEW in found.metadata
        self._created = info.created
        self._released = 0 if self.retention == WORK_QUEUE else found.after_floor
        self._looked = clock.monotonic()

    def update_durable_as_begun(self, js: JetStream) -> None:
        """Note that the reader begins, or resumes although the durable was missing, which no longer matters."""
        if self._unannounced:
            metadata = {name: value for name, value in self._config["metadata"].items() if name != NEW}
            self._update_metadata(js, self._config, metadata)
        self._was_held, self._unannounced = True, False

    def resume_or_explain_loss(self, js: JetStream, start: int) -> ConditionText | None:
        """Return what may be lost because the durable was missing when a reader resumes at ``start``; None if nothing.

        With None, the reader has resumed. Otherwise call :meth:`update_durable_as_begun` when it resumes all the same.

        Raises:
            ConsumerConflictError: a release would remove messages of a work queue that were perhaps never read.
        """
        if self._unannounced and not self._was_held and self.retention == WORK_QUEUE:
            left = ask_first_sequence_from(js, self._stream, 1, self._filters or (">",), may_be_former_leader(js))
            if left is not None and left < start:
                what, stream = self._description, self._stream
                said = conditions.LEFT_BEFORE_CHECKPOINT(stream=stream, start=start, sequence=left, what=what)
                raise ConsumerConflictError(said)
        if not self._unannounced or self.retention != INTEREST:
            self.update_durable_as_begun(js)
            return None
        return conditions.DURABLE_DELETED(what=self._description)

    def _ask_or_confirm_gone(self, js: JetStream, with_all: bool = False) -> tuple[ConsumerInfo | None, list[Listed]]:
        """Return the server's state of the durable; None when there is none (confirmed, if this run has owned it).

        All consumers of the stream come with it if they are asked for.
        """
        if with_all:
            found, listed = consumers.ask_consumer_and_all(js, self._stream, self.name)
        else:
            found, listed = consumers.ask_consumer(js, self._stream, self.name), []
        if found is not None:
            self._view.note_nothing_lost(self.name)
        elif self._was_held:
            self._view.check_loss_confirmed(js, self.name, f"{self._description} does not exist any more")
        return found, listed

    def _create_durable(self, js: JetStream) -> ConsumerInfo:
        config = durable_config(self.name, self._filters, {OWNER: self._owner, NEW: "true"})
        try:
            made = consumers.create_or_update_durable(js, self._stream, config, "create")
        except JetStreamError as error:
            raise self._make_refusal_error(js, error) from None
        logger.info(conditions.DURABLE_MADE(stream=self._stream, consumer=self.name).with_code)
        return made

    def _update_metadata(self, js: JetStream, config: dict[str, Any], metadata: dict[str, Any]) -> ConsumerInfo:
        """Replace the metadata of the existing durable."""
        try:
            return consumers.create_or_update_durable(js, self._stream, {**config, "metadata": metadata}, "update")
        except JetStreamError as error:
            if error.err_code == ErrCode.CONSUMER_DOES_NOT_EXIST:  # another client has just deleted it
                raise JetStreamError(conditions.DURABLE_JUST_DELETED(what=self._description)) from None
            raise

    def _make_refusal_error(self, js: JetStream, error: JetStreamError) -> NatsError:
        """Return the error for a durable that could not be created."""
        what, reason, code = self._description, error.description, error.err_code
        match error.err_code:
            case ErrCode.MULTIPLE_UNFILTERED | ErrCode.CONSUMER_NOT_UNIQUE:
                subjects = ", ".join(self._filters) or "all subjects"
                said = conditions.QUEUE_HAS_CONSUMER(
                    what=what, subjects=subjects, rivals=self._ask_rival_names(js), reason=reason, err_code=code
                )
                return ConsumerConflictError(said)
            case ErrCode.MAXIMUM_CONSUMERS:
                limit = consumers.PLACE_LIMIT
                said = conditions.NO_PLACE_FOR_DURABLE(what=what, limit=limit, reason=reason, err_code=code)
                return ConsumerConflictError(said)
            case ErrCode.CONSUMER_EXISTS:  # another client has just created it
                return JetStreamError(conditions.DURABLE_JUST_MADE(what=self._description))
        return error

    def _ask_rival_names(self, js: JetStream) -> str:
        """Name the consumers whose subjects overlap with ours, as far as the user may list them."""
        try:
            listed = ask_all_consumers(js, self._stream)
        except (PermissionsError, JetStreamError, ProtocolError):
            return "another one"
        # A stream that copies takes no subjects away from others.
        names = [each.name for each in other_overlapping(listed, self.name, self._filters) if not is_sourcing(each)]
        shown = ", ".join(map(repr, names[:_MAX_SHOWN]))
        return (shown + " and others" if len(names) > _MAX_SHOWN else shown) or "another one"

    def _check_ours_and_unused(self, found: ConsumerInfo) -> None:
        """Check that spark-nats has created the durable of our name for our filters, and that nobody pulls from it."""
        problem = reason_not_ours(found, OWNER, self._filters)
        if not problem and not found.has_our_durable_config:
            problem = "has another configuration than spark-nats gives it"
        if problem:
            raise ConsumerConflictError(conditions.DURABLE_NOT_OURS(what=self._description, problem=problem))
        self._check_unused(found)

    def _check_unused(self, found: ConsumerInfo) -> None:
        if found.deliveries:
            raise ConsumerConflictError(conditions.DURABLE_PULLED(what=self._description))

    # Releasing

    def check_owner_if_due(self, js: JetStream) -> None:
        """Check every :data:`LOOK_INTERVAL` seconds that the durable is ours, else raise; note if it does not exist."""
        if clock.monotonic() - self._looked > LOOK_INTERVAL:
            self._ask_and_check_owner(js)

    def _ask_and_check_owner(self, js: JetStream, with_all: bool = False) -> tuple[ConsumerInfo | None, list[Listed]]:
        """Return what :meth:`_ask_or_confirm_gone` does; there is no durable when another client has deleted it."""
        self._looked = clock.monotonic()
        found, listed = self._ask_or_confirm_gone(js, with_all)
        if found is None:
            self.note_unowned()
            return None, listed
        if found.metadata.get(OWNER) != self._owner:
            raise ConsumerConflictError(conditions.DURABLE_TAKEN(what=self._description))
        self._check_unused(found)
        return found, listed

    def may_skip_release(self, end: int) -> bool:
        """Tell whether all before a sequence is released as far as is known, or the run owns no durable on that stream.

        For a while, that includes what cannot be released yet because another consumer needs it.
        """
        return end <= max(self._released, 1) or self._created is None or self._waits.is_too_early(end)

    def release_messages_before(self, js: JetStream, info: StreamInfo, end: int) -> None:
        """Release all messages before a sequence; none if it lies beyond the stream's end, or the durable is gone.

        A work queue keeps those that a stream which sources or mirrors it has still to copy: the next release of that
        sequence comes back to them.

        An interest stream keeps all while a server before 2.14 leads the durable, as it may in a cluster that is
        upgraded. Such a server does not answer, and no other one can release.

        When another run has taken the durable, it raises :class:`ConsumerConflictError`.
        """
        if self.may_skip_release(end) or end > info.last_sequence + 1:
            return
        is_shared = self.retention == WORK_QUEUE and info.consumers > 1
        found, listed = self._ask_and_check_owner(js, with_all=is_shared)
        if found is None:
            return
        if self.retention != WORK_QUEUE and is_older(found.server_version, 2, 14):
            self._waits.note_and_log_old_server(info.name, found, end)
            return
        if is_shared and (needed := ask_first_needed_by_others(js, info, listed, self.name, self._filters, end)):
            self._waits.note_and_log_needed(info.name, needed, end)
            end = needed.sequence
        if self.retention == WORK_QUEUE:
            self._purge(js, max(info.first_sequence, self._released), end)
        else:
            self._move_floor(js, max(info.first_sequence, found.after_floor), found.after_floor, end)
        self._released = max(self._released, end)

    def note_unowned(self) -> None:
        """Note that the durable has to be taken again: it is gone, or was perhaps restored with an older stream."""
        self._unannounced = False
        self._created = None

    def _purge(self, js: JetStream, first: int, target: int) -> None:
        """Remove our filters' messages before ``target`` from a work queue, which has none of them before ``first``."""
        if target <= max(first, 1):  # some servers purge everything when asked to purge up to sequence 1
            return
        if not self._filters:
            js.request(Api.STREAM_PURGE, self._stream, body={"seq": target})
        for subject in self._filters:
            start: int | None = first
            if target - first > STEP:  # messages of other subjects may lie in between
                start = ask_first_sequence_from(js, self._stream, first, (subject,))
            for end in self._removal_ends_while_owned(js, start or target, target):
                js.request(Api.STREAM_PURGE, self._stream, body={"seq": end, "filter": subject})

    def _move_floor(self, js: JetStream, first: int, floor: int, target: int) -> None:
        """Move the durable's floor forward to ``target``, and never back; nothing lies before ``first``."""
        if target <= floor:
            return
        try:
            for end in self._removal_ends_while_owned(js, first, target) if self.retention == INTEREST else (target,):
                consumers.move_consumer(js, self._stream, self.name, end, level=_RESET_LEVEL)
        except JetStreamError as error:
            if error.err_code == ErrCode.REQUIRED_API_LEVEL:
                what = f"releasing from a stream with {self.retention} retention"
                raise consumers.too_old_error(self._stream, server_version_in(self._config), "2.14", what) from None
            raise

    def _removal_ends_while_owned(self, js: JetStream, start: int, target: int) -> Iterator[int]:
        """Yield the ends of successive removals, small enough for the server to answer each request in time.

        Before each removal but the first, check that the durable still exists and is ours.
        """
        for end in range(start + STEP, target, STEP):
            yield end
            if self._ask_and_check_owner(js)[0] is None:
                return
        yield target


class _Waits:
    """What a release waits for, as far as that has to be logged and asked for again."""

    def __init__(self) -> None:
        self._end = 0  # the sequence before which messages were to be released
        self._rests_until = 0.0
        self._needed: Needed | None = None
        self._since = 0.0  # when that was found first
        self._said = Once()  # consumers, and levels of the log

    def is_too_early(self, end: int) -> bool:
        """Tell whether it is too early to try the release of all before a sequence again."""
        return end == self._end and clock.monotonic() < self._rests_until

    def note_and_log_old_server(self, stream: str, found: ConsumerInfo, end: int) -> None:
        """Note that the server which leads the durable ``found`` releases nothing; log it once for each server."""
        self._end, self._rests_until = end, clock.monotonic() + LOOK_INTERVAL
        if self._said.add_if_new((found.leader, logging.WARNING)):
            text = conditions.RELEASE_NEEDS_UPGRADE(
                stream=stream, end=end, consumer=found.name, leader=found.leader, version=found.server_version
            )
            logger.warning(text.with_code)

    def note_and_log_needed(self, stream: str, needed: Needed, end: int) -> None:
        """Note that a message before ``end`` is still needed; log it once, and once more after a while."""
        now = clock.monotonic()
        self._end, self._rests_until = end, now + LOOK_INTERVAL
        if needed != self._needed:
            self._needed, self._since = needed, now
            self._said.discard((needed.consumer, logging.WARNING))
        level = logging.WARNING if now - self._since >= STUCK else logging.INFO
        if self._said.add_if_new((needed.consumer, level)):
            text = conditions.RELEASE_WAITS(
                stream=stream, first=needed.sequence, end=end, whom=needed.whom, consumer=needed.consumer
            )
            logger.log(level, text.with_code)


def check_releasable(js: JetStream, info: StreamInfo) -> None:
    """Raise :class:`UnsupportedStreamError` unless a stream can be read by sequence and its messages then released."""
    if max_inactive_threshold(info.config):
        raise UnsupportedStreamError(conditions.DURABLE_WOULD_EXPIRE(stream=info.name))
    if info.retention != WORK_QUEUE:
        consumers.check_servers_move_consumers(js, info, f"releasing from a stream with {info.retention} retention")
        return
    check_direct_gets_possible(info)
    _check_purges_possible(info)


def _check_purges_possible(info: StreamInfo) -> None:
    """Raise :class:`UnsupportedStreamError` if the stream is a work queue that allows no purges."""
    for name in ("deny_purge", "sealed"):
        if info.retention == WORK_QUEUE and info.config.get(name) is True:
            raise UnsupportedStreamError(conditions.NO_PURGES(stream=info.name, field=name))


def check_direct_gets_possible(info: StreamInfo) -> None:
    """Raise :class:`UnsupportedStreamError` unless a work queue can be read without a consumer."""
    if is_older(info.server_version, 2, 11):
        raise consumers.too_old_error(info.name, info.server_version, "2.11", "reading a work queue")
    if not info.allows_direct_gets:
        raise UnsupportedStreamError(conditions.NO_DIRECT_GETS(stream=info.name))


class Needed(NamedTuple):
    """The first message that another consumer of a stream still needs."""

    sequence: int
    consumer: str  # name of that consumer
    whom: str  # the same in words, with the stream that copies


def ask_first_needed_by_others(
    js: JetStream, info: StreamInfo, listed: Sequence[Listed], name: str, filters: Sequence[str], end: int
) -> Needed | None:
    """Return the first message before ``end`` that another consumer still needs; None when there is none.

    A consumer whose place is unknown at the moment needs all. Only consumers whose subjects overlap with ours count.

    Args:
        js: the JetStream API over the connection to use.
        info: the stream's state.
        listed: all consumers of the stream.
        name: our own consumer.
        filters: our subjects; all when empty.
        end: the sequence before which messages are to be removed.

    Raises:
        JetStreamError: fewer consumers are listed than the stream has.
        NatsError: a request failed.
    """
    if len(listed) < info.consumers:
        said = conditions.CONSUMERS_NOT_LISTED(stream=info.name, listed=len(listed), consumers=info.consumers)
        raise JetStreamError(said)
    found = []
    for each in other_overlapping(listed, name, filters):
        after, first = _sequence_after_acknowledged(each, info.name), info.first_sequence
        if after < end:
            wanted, doubt = subjects_taken(each), may_be_former_leader(js, info)
            needed = ask_first_sequence_from(js, info.name, max(after, first), wanted, doubt) if after else first
            if needed is not None and needed < end:
                found.append(Needed(needed, each.name, describe_consumer(each)))
    return min(found, default=None)


def other_overlapping(listed: Sequence[Listed], name: str, filters: Sequence[str]) -> Iterator[Listed]:
    """Yield the consumers except our own whose subjects overlap with ours, or are unknown."""
    for each in listed:
        if each.name != name and any(
            overlap(one, other) for one in filters or (">",) for other in subjects_taken(each)
        ):
            yield each


def is_sourcing(listed: Listed) -> bool:
    """Tell whether a consumer copies for a stream that sources or mirrors its stream."""
    return _config(listed).get("sourcing") is True


def _config(listed: Listed) -> dict[str, Any]:
    config = value_or_none_at(listed.entry, "config")
    return config if isinstance(config, dict) else {}


def subjects_taken(listed: Listed) -> tuple[str, ...]:
    """Return the subjects that a consumer takes."""
    return filters_of(_config(listed)) or (">",)


def _sequence_after_acknowledged(listed: Listed, stream: str) -> int:
    """Return the sequence before which a consumer needs nothing any more; 0 where that is unknown."""
    try:
        return parse_consumer(listed.entry or {}, stream, listed.name).sequence_after_acknowledged
    except ValueError:  # it is offline, or has no leader
        return 0


def count_left_to_acknowledge(listed: Listed) -> int | None:
    """Return how many messages of its stream a consumer has not acknowledged; None where that is unknown."""
    try:
        return integer_at(listed.entry, "num_pending") + integer_at(listed.entry, "num_ack_pending")
    except ValueError:
        return None


def describe_consumer(listed: Listed) -> str:
    """Describe a consumer, and the stream for which it copies."""
    copier = describe_copied_stream(_config(listed))
    return f"consumer {listed.name!r}" + (f" of {copier}" if copier else "")
