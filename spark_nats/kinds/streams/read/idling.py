"""How a streaming query that has nothing to do finds out that it has something to do again.

It hears of it (:mod:`~spark_nats.jetstream.consuming.watching`): an idle query asks nothing of the servers but a look a
minute, and goes on at once when something is stored. Where it cannot hear, it looks about ten times a second.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from spark_nats import clock
from spark_nats.client.connection import Connection
from spark_nats.client.pool import borrow, keep
from spark_nats.errors import NatsError, PermissionsError, StreamNotFoundError
from spark_nats.jetstream.account import account_info
from spark_nats.jetstream.api import JetStream
from spark_nats.jetstream.consuming.watching import Watch, WatchLostError
from spark_nats.jetstream.streams import LIMITS
from spark_nats.kinds.streams.options import ReadOptions
from spark_nats.kinds.streams.read.conditions import NOT_WATCHED
from spark_nats.kinds.streams.read.looks import QueryMemory

logger = logging.getLogger(__name__)

LOOK_INTERVAL = 0.1
"""Seconds between two looks at each stream that has nothing to do for the query, for each request that a look takes;
and for which a watch is listened to each time. Spark asks up to a hundred times a second."""
MAX_WAIT = 1.0
"""Seconds at most between two looks at many streams. Meanwhile the query takes no other word from Spark."""
MAX_QUIET = 60.0  # seconds after which there is a look though nothing was heard
UNSURE_FOR = 10.0  # seconds for which a query looks, and does not listen, when it has missed something
REFUSED_FOR = 600.0  # the same when it may not have the consumers
MAX_WATCHED = 256  # streams that are listened to; each takes a consumer


class _Idle(NamedTuple):
    """Where a query has nothing to do."""

    start: dict[str, Any]
    looks_at: float  # when to look again, without a watch
    moment: float  # seconds for which to listen each time
    until: float  # when to look though nothing was heard
    places: Mapping[str, int]  # behind which to listen; none where that cannot be done


class Idling:
    """Waits for what comes, for a query that has nothing to do. It has a connection of its own while it listens.

    Args:
        options: of the query.
        memory: what it remembers of the last look.
    """

    def __init__(self, options: ReadOptions, memory: QueryMemory) -> None:
        self._options = options
        self._memory = memory
        self._idle: _Idle | None = None
        self._watch: Watch | None = None
        self._heard: _Idle | None = None  # for which the watch listens
        self._watch_off_until = 0.0
        self._logged = False  # whether the log knows that there is no watch

    def begin(self, start: dict[str, Any], took: float, until: float, waits: bool) -> None:
        """Note that a look, which took so many seconds, has found nothing to do from there.

        ``waits`` where there is something, but not enough for a micro-batch; ``until`` then is when it will do.
        """
        now, options = clock.monotonic(), self._options
        requests = max(1, len(self._memory.selection.names)) * (1 + len(options.filters) * waits)
        looks_at = now + min(LOOK_INTERVAL * requests, MAX_WAIT)
        # What was stored before Spark asks must have been heard of when it has the answer, for ``processAllAvailable``.
        moment = min(max(LOOK_INTERVAL, 2 * took), MAX_WAIT)
        self._idle = _Idle(start, looks_at, moment, min(now + MAX_QUIET, until), self._places())
        if self._watch is not None and self._watch.fits(self._idle.places):
            # At once, since it does not see what is stored and removed again before it listens.
            with contextlib.suppress(NatsError):  # it will be noticed
                self._listens(self._idle)

    def _places(self) -> dict[str, int]:
        states, names = self._memory.states, self._memory.selection.names
        if self._memory.holds or not set(names) <= states.keys() or len(states) > MAX_WATCHED:
            return {}
        if any(state.retention != LIMITS for state in states.values()):
            return {}  # a work queue has no consumer for us, and one of an interest stream keeps messages
        return {name: state.last_sequence + 1 for name, state in states.items()}

    def still_idle(self, start: dict[str, Any]) -> bool:
        """Wait a moment; tell whether there is still nothing to do. Otherwise the streams have to be looked at."""
        idle = self._idle
        if idle is None or idle.start != start:
            self.forget()
            return False
        try:
            if self._listens(idle) and self._watch is not None:
                if not self._watch.wait(idle.moment):
                    return self._lists_the_same(self._watch.js)
                self._memory.expects_more = True
        except (NatsError, WatchLostError) as error:
            logger.debug("not certain to hear of what is stored: %s", error)
            self._give_up(UNSURE_FOR)
        self.forget()
        clock.sleep(max(0.0, idle.looks_at - clock.monotonic()))
        return False

    def forget(self) -> None:
        """Have the next look be made at once."""
        self._idle = None

    def _lists_the_same(self, js: JetStream) -> bool:
        """Tell whether the streams that match a pattern are the same as before, where that is to be asked."""
        names = self._memory.selection.names
        self._memory.selection.look(js)
        return self._memory.selection.names == names

    def _listens(self, idle: _Idle) -> bool:
        """See to it that a watch listens; tell whether it does.

        Raises:
            NatsError: the connection failed, or the stream's leader is not known at the moment.
        """
        now = clock.monotonic()
        if not idle.places or now >= idle.until or now < self._watch_off_until:
            return False
        if self._heard is idle:
            return True
        if self._watch is not None and self._watch.fits(idle.places):
            self._watch.move(idle.places)
        elif self._watch is not None and self._watch.is_ahead(idle.places):
            self._give_up(UNSURE_FOR)  # it has brought what the look has not found
            return False
        else:
            self._give_up(0.0)
            self._watch = self._begin_to_listen(idle.places)
        self._heard = idle
        return self._watch is not None

    def _begin_to_listen(self, places: Mapping[str, int]) -> Watch | None:
        connection = keep(self._options.connection)
        js = JetStream(connection, self._options.api_prefix)
        try:
            if self._has_room(js, len(places)):
                return Watch(js, places, self._options.filters)
            reason: object = "the limits of their consumers leave few places"
        except NatsError as error:
            connection.close()
            if error.may_pass(established=True) or isinstance(error, StreamNotFoundError):
                raise
            reason = error
        connection.close()
        self._watch_off_until = clock.monotonic() + REFUSED_FOR
        if not self._logged:
            self._logged = True
            logger.warning(NOT_WATCHED(streams=self._memory.selection, reason=reason).with_code)
        return None

    def _has_room(self, js: JetStream, wanted: int) -> bool:
        """Tell whether half of the consumers that there may be are left to others, as far as it is known."""
        for state in self._memory.states.values():
            if state.max_consumers is not None and 2 * (state.consumers + 1) > state.max_consumers:
                return False
        try:
            consumers = account_info(js).consumers
        except PermissionsError:
            return True
        return consumers.limit is None or 2 * (consumers.used + wanted) <= consumers.limit

    @contextlib.contextmanager
    def connected(self) -> Iterator[Connection]:
        """Lend a connection for a look: the watch's, if there is one."""
        connection = self._connection()
        if connection is None:
            with borrow(self._options.connection, waits=False) as connection:
                yield connection
            return
        try:
            yield connection
        except BaseException:
            self._give_up(UNSURE_FOR)
            raise

    def _connection(self) -> Connection | None:
        """Return the watch's connection, if there is one and it is of use."""
        if self._watch is None:
            return None
        connection = self._watch.js.connection
        try:
            connection.check()
            if not connection.lame_duck:
                return connection
        except NatsError as error:
            logger.debug("the connection of a watch is lost: %s", error)
        self._give_up(UNSURE_FOR)
        return None

    def _give_up(self, seconds: float) -> None:
        """Do without a watch, for so many seconds."""
        self._watch_off_until = clock.monotonic() + seconds
        watch, self._watch, self._heard = self._watch, None, None
        if watch is not None:
            watch.close()
            watch.js.connection.close()

    def close(self) -> None:
        """Have the consumers deleted, and close the connection."""
        self._give_up(0.0)
