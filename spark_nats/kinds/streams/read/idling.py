"""How an idle streaming query notices that there are new messages.

The query listens (:mod:`~spark_nats.jetstream.consuming.watching`): while idle, it looks at the streams only once a
minute, and continues within a second after a message is stored. If it cannot, it looks up to ten times a second. It
does not listen to more than 1,024 streams: it lists them every second, and every five once it has been idle for a
while.

Of many streams, a look asks only the speakers: those whose consumers have delivered something, and those that have
more than the last micro-batch could take. Once a minute it asks all. A stream that is not asked stays where it is in
the offset, so one that is wrongly taken for silent is read later, and nothing of it is left out.
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import NamedTuple

from spark_nats import clock
from spark_nats.client.connection import Connection
from spark_nats.client.pool import borrow, take_idle_or_connect
from spark_nats.conditions import Once
from spark_nats.errors import NatsError, PermissionsError, StreamNotFoundError
from spark_nats.jetstream.api import JetStream
from spark_nats.jetstream.consuming.watching import MANY, Watch, WatchLostError
from spark_nats.jetstream.listing import ask_account_info
from spark_nats.jetstream.streams import LIMITS
from spark_nats.kinds.streams.options import ReadOptions
from spark_nats.kinds.streams.read.conditions import NOT_WATCHED
from spark_nats.kinds.streams.read.looks import LISTED_FROM, QueryMemory
from spark_nats.kinds.streams.read.positions import QueryOffset

logger = logging.getLogger(__name__)

LOOK_INTERVAL = 0.1
"""Seconds between two looks at idle streams, for each request that a look takes; also the minimum seconds for which the
query listens each time. Spark asks up to a hundred times a second."""
MAX_WAIT = 1.0
"""Maximum seconds between two looks without listening, and of listening each time. The query does not react to Spark
meanwhile."""
LISTS_RARELY = 10.0
"""Seconds after which an idle query lists its streams less often: 1,000 streams with their states are four requests,
and cost a server some 50 ms."""
LIST_INTERVAL = 5.0  # seconds between two lists from then on
MAX_QUIET = 60.0  # seconds without a message after which the query looks all the same
UNSURE_FOR = 10.0  # seconds for which a query looks instead of listening, after it may have missed a message
REFUSED_FOR = 600.0  # the same, after it could not have the consumers
MAX_WATCHED = 1024  # streams to which a query listens; each takes a consumer
FEW = 4  # a query follows speakers while it has at least this many streams for each new sequence


class _Idle(NamedTuple):
    """The offset at which a query is idle, or follows speakers, and how the query waits there."""

    start: QueryOffset
    waits: bool  # whether there are messages, but too few for a micro-batch
    next_look: float  # when to look again without a watch, or after one more message of too few
    moment: float  # seconds to listen each time
    until: float  # when to look even without a message
    places: Mapping[str, int]  # by stream, the sequence from which to listen; empty where that is impossible
    unread: Set[str]  # streams that have more for the query than its micro-batch takes


class Idling:
    """Waits for new messages for an idle query. It has its own connection while it listens.

    Args:
        options: options of the query.
        memory: what the query remembers of the last look.

    Attributes:
        speakers: the streams that the next look asks: all others are silent. None for all.
    """

    def __init__(self, options: ReadOptions, memory: QueryMemory) -> None:
        self._options = options
        self._memory = memory
        self.speakers: Set[str] | None = None
        self._idle: _Idle | None = None
        self._all_looked_at = 0.0  # when a look has asked all streams
        self._quiet_at: QueryOffset | None = None  # the offset at which the query was found idle
        self._quiet_since = 0.0
        self._watch: Watch | None = None
        self._listening_for: _Idle | None = None  # the idle state for which the watch listens
        self._watch_off_until = 0.0
        self._said = Once()  # that there is no watch

    def note_idle_and_listen(self, start: QueryOffset, took: float, until: float, waits: bool) -> None:
        """Note that a look, which took ``took`` seconds, has found nothing to do from ``start``.

        ``waits``: there are messages, but too few for a micro-batch; ``until`` is when the wait for more ends, by the
        monotonic clock, or infinity.
        """
        now, options = clock.monotonic(), self._options
        # The states of all streams; while messages wait, also each stream's last message for each filter.
        requests = max(1, len(self._memory.selection.names)) * (1 + len(options.filters) * waits)
        if self._quiet_at != start:
            self._quiet_at, self._quiet_since = start, now
        rarely = self._memory.listed and not waits and now - self._quiet_since >= LISTS_RARELY
        next_look = now + (LIST_INTERVAL if rarely else min(LOOK_INTERVAL * requests, MAX_WAIT))
        self._note_state_and_listen(start, took, until, waits, next_look)

    def note_progress_and_listen(self, end: QueryOffset, took: float, new: int, unread: Set[str]) -> None:
        """Note that a look has found ``new`` sequences, and goes on at ``end``; the ``unread`` streams have more there.

        Where little is new in many streams, the query follows those that speak. Else the next look asks all.
        """
        if self._may_skip_silent_streams() and FEW * new <= len(self._memory.selection.names):
            self._note_state_and_listen(end, took, math.inf, False, 0.0, unread)

    def _may_skip_silent_streams(self) -> bool:
        """Tell whether a look may leave out silent streams: few cost little, and progress is shown of all."""
        return len(self._memory.selection.names) >= LISTED_FROM and self._memory.traits.on_progress is None

    def _note_state_and_listen(
        self,
        start: QueryOffset,
        took: float,
        until: float,
        waits: bool,
        next_look: float,
        unread: Set[str] = frozenset(),
    ) -> None:
        if self.speakers is None:
            self._all_looked_at = clock.monotonic()
        # For ``processAllAvailable``, a message stored before Spark asks must arrive before Spark has the answer.
        moment = min(max(LOOK_INTERVAL, 2 * took), MAX_WAIT)
        until, places = min(self._all_looked_at + MAX_QUIET, until), self._sequences_to_watch()
        self._idle = idle = _Idle(start, waits, next_look, moment, until, places, unread)
        if self._watch is not None and not self._watch.streams_needing_consumer(places):
            # Listening begins at once, because a message that is stored and removed before that would be missed.
            with contextlib.suppress(NatsError):  # wait_while_idle will notice it
                self._try_to_listen(idle)

    def _sequences_to_watch(self) -> dict[str, int]:
        states, names = self._memory.states, self._memory.selection.names
        if self._memory.holds or not set(names) <= states.keys() or len(states) > MAX_WATCHED:
            return {}
        if any(state.retention != LIMITS for state in states.values()):
            return {}  # a work queue refuses our consumer, and an interest stream keeps messages for it
        return {name: state.last_sequence + 1 for name, state in states.items()}

    def wait_and_tell_if_surely_idle(self, start: QueryOffset) -> bool:
        """Wait a moment; return True if there is certainly nothing new, False if streams have to be looked at.

        These are the :attr:`speakers`.
        """
        idle, self.speakers = self._idle, None
        if idle is None or idle.start != start:
            self.forget()
            return False
        try:
            if self._try_to_listen(idle) and self._watch is not None:
                if not self._watch.wait(0.0 if idle.unread else idle.moment) and not idle.unread:
                    return self._ask_if_names_unchanged(self._watch.js)
                self._memory.expects_more = True
                if not idle.waits:  # a micro-batch follows, so there are no more looks than micro-batches
                    if self._may_skip_silent_streams():
                        self.speakers = self._watch.speakers | idle.unread
                    self.forget()
                    return False
        except (NatsError, WatchLostError) as error:
            logger.debug("not certain to hear of what is stored: %s", error)
            self._give_up_watch()
        self.forget()
        clock.sleep(max(0.0, idle.next_look - clock.monotonic()))
        return False

    def forget(self) -> None:
        """Forget that the query is idle, so that the streams are looked at when Spark asks again."""
        self._idle = None

    def _ask_if_names_unchanged(self, js: JetStream) -> bool:
        """Tell whether the pattern still matches the same streams; ask the server only if a listing is due."""
        names = self._memory.selection.names
        self._memory.selection.list_names_if_due(js)
        return self._memory.selection.names == names

    def _try_to_listen(self, idle: _Idle) -> bool:
        """Let a watch listen for new messages, if possible; tell whether one listens.

        Raises:
            NatsError: the connection failed, or a stream does not exist or has no leader at the moment.
        """
        now = clock.monotonic()
        if not idle.places or now >= idle.until or now < self._watch_off_until:
            return False
        if self._listening_for is idle:
            return True
        if self._watch is not None and self._watch.is_ahead(idle.places):
            self._give_up_watch()  # the watch has received what the look has not found
            return False
        if self._watch is None or self._watch.streams_needing_consumer(idle.places):
            self._create_consumers_or_warn(idle.places)
            # The last look was earlier. A stream may have got an older copy since then, and have been filled again.
            return False
        self._watch.move(idle.places)
        self._listening_for = idle
        return True

    def _create_consumers_or_warn(self, places: Mapping[str, int]) -> None:
        """Create a consumer for each place that has none, of this watch or of a new one; do without if refused."""
        try:
            if self._watch is None:
                js = JetStream(take_idle_or_connect(self._options.connection), self._options.api_prefix)
                self._watch = Watch(js, {}, self._options.filters)
            if self._ask_if_consumers_have_room(self._watch.js, self._watch.streams_needing_consumer(places)):
                self._watch.move(places)
                return
            reason: object = "more than half of the consumers that the limits permit would be in use"
        except NatsError as error:
            self._close_and_postpone_watch(0.0)
            if error.may_pass(established=True) or isinstance(error, StreamNotFoundError):
                raise
            reason = error
        self._close_and_postpone_watch(REFUSED_FOR)
        if self._said.add_if_new():
            logger.warning(NOT_WATCHED(streams=self._memory.selection, reason=reason).with_code)

    def _ask_if_consumers_have_room(self, js: JetStream, streams: Sequence[str]) -> bool:
        """Tell whether at least half of the permitted consumers stay unused, as far as the limits are known."""
        for state in map(self._memory.states.__getitem__, streams):
            if state.max_consumers is not None and 2 * (state.consumers + 1) > state.max_consumers:
                return False
        try:
            consumers = ask_account_info(js).consumers
        except PermissionsError:
            return True
        return consumers.limit is None or 2 * (consumers.used + len(streams)) <= consumers.limit

    @contextlib.contextmanager
    def lend_jetstream(self) -> Iterator[JetStream]:
        """Lend JetStream for a look: over the watch's connection, if there is one that works."""
        if self._watch is not None and not _receive_and_test_connection(self._watch.js.connection):
            self._give_up_watch()
        if self._watch is None:
            with borrow(self._options.connection, waits=False) as connection:
                yield JetStream(connection, self._options.api_prefix)
            return
        try:
            yield self._watch.js
        except BaseException:
            self._give_up_watch()
            raise

    def _give_up_watch(self) -> None:
        """Close a watch that may miss messages, and do without one for a while: its consumers cost the servers."""
        self._close_and_postpone_watch(UNSURE_FOR * max(1.0, len(self._memory.states) / MANY))

    def _close_and_postpone_watch(self, seconds: float) -> None:
        """Close the watch, and do without one for ``seconds``."""
        self._watch_off_until = clock.monotonic() + seconds
        watch, self._watch, self._listening_for = self._watch, None, None
        if watch is not None:
            watch.close()
            watch.js.connection.close()

    def close(self) -> None:
        """Delete the consumers, and close the connection."""
        self._close_and_postpone_watch(0.0)


def _receive_and_test_connection(connection: Connection) -> bool:
    """Tell whether the connection of a watch is there, and its server stays."""
    try:
        connection.queue_ping_with_deadline()
    except NatsError as error:
        logger.debug("the connection of a watch is lost: %s", error)
        return False
    return not connection.lame_duck
