"""Retries while servers are unavailable: restarts, leader elections and network failures pass.

The schedule is that of ADR-40: at once after a lost connection, then after a wait that doubles, with jitter, so that
the tasks of a query do not reconnect in step. After a server has reported an overload, the first attempt waits too. A
stream without a leader is asked again sooner, because an election takes a moment and the connection stays open. Each
kind of failure doubles its own waits: servers that are back, and still elect a leader, do not inherit the long waits of
their absence.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from spark_nats import clock
from spark_nats.client.options import RetryOptions
from spark_nats.conditions.client import GOES_ON, LOGIN_UNDECIDED, TRYING_AGAIN
from spark_nats.errors import (
    AuthorizationError,
    JetStreamError,
    NatsConnectionError,
    NatsError,
    NatsTimeoutError,
    ServerError,
)
from spark_nats.protocol.control import error_kind

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

MAX_WAIT = 10.0  # maximum seconds between two attempts, without jitter, unless the first wait is longer
_LEADERLESS_WAIT = 1.0  # seconds before a stream without a leader is asked again; doubled each time, up to MAX_WAIT
_MAX_DOUBLINGS = 16


class Retries:
    """The count of failed attempts, and the wait before the next one.

    Args:
        options: how long and how often to retry.
        what: the name of the work in the log.
        established: whether the same work has succeeded before, see :class:`~spark_nats.conditions.Transient`.
        sleep: waits for a number of seconds; :func:`clock.sleep` when None.
    """

    def __init__(
        self, options: RetryOptions, what: str, *, established: bool, sleep: Callable[[float], object] | None = None
    ) -> None:
        self._options = options
        self.timeout = options.timeout  # seconds for which to retry without success
        self._what = what
        self._established = established
        self._sleep = sleep or clock.sleep
        self._began: float | None = None
        self._resumed = -math.inf  # when an attempt last succeeded after failures
        self._at_once = False  # whether the next attempt to connect need not wait
        self._attempts = 0  # to connect, in a row
        self._waits: Counter[type[NatsError]] = Counter()  # by kind of failure
        self._refusals: set[str] = set()

    def wait_or_raise(self, error: NatsError) -> None:
        """Wait before the next attempt, or raise the error.

        The error is raised when it cannot pass, when the same server refuses the credentials a second time, or when the
        time or the attempts are used up.
        """
        refusals = _refusals_in(error)
        if not error.may_pass(established=self._established) or refusals & self._refusals:
            raise error
        self._refusals |= refusals
        now = clock.monotonic()
        if self._began is None:
            if not self.timeout:
                raise error
            self._began = now
            self._attempts = 0
            self._at_once = now - self._resumed > self._options.wait  # else the last immediate attempt gained nothing
            self._waits.clear()
            limit = f" for up to {self.timeout:g} s" if self.timeout < math.inf else ""
            logger.warning(TRYING_AGAIN(what=self._what, reason=error, limit=limit).with_code)
        left = self._began + self.timeout - now
        attempts = self._options.attempts
        if left <= 0:
            raise error.with_message(f"{error}; tried for {self.timeout:g} s") from None
        if attempts is not None and self._attempts >= attempts:
            raise error.with_message(f"{error}; tried again {attempts} times") from None
        self._sleep(min(left, self._count_and_choose_wait(error)))

    def note_success(self) -> None:
        """Note that an attempt has succeeded; the next failure starts a new count."""
        self._established = True
        if self._began is not None:
            self._resumed = clock.monotonic()
            logger.warning(GOES_ON(what=self._what, seconds=self._resumed - self._began).with_code)
            self._began = None
            self._refusals.clear()

    def _count_and_choose_wait(self, error: NatsError) -> float:
        if isinstance(error, JetStreamError):
            wait = min(_LEADERLESS_WAIT * self._count_and_double(JetStreamError), MAX_WAIT)
            return wait * clock.uniform(0.75, 1.0)
        self._attempts += 1
        at_once, self._at_once = self._at_once, False
        if at_once and is_lost_connection(error):
            return 0.0
        times = self._count_and_double(NatsTimeoutError if isinstance(error, NatsTimeoutError) else NatsConnectionError)
        wait = min(self._options.wait * times, max(MAX_WAIT, self._options.wait))
        return wait + clock.uniform(0.0, min(self._options.jitter * times, wait))

    def _count_and_double(self, kind: type[NatsError]) -> float:
        """Return the factor by which the next wait after such a failure exceeds the first one."""
        doublings = min(self._waits[kind], _MAX_DOUBLINGS)
        self._waits[kind] += 1
        return 2.0**doublings


def is_lost_connection(error: NatsError) -> bool:
    """Return whether an error is a lost connection, not a failed attempt to connect or an overload of the server."""
    if isinstance(error, ServerError):
        return not error_kind(error.text).needs_backoff
    return not _is_refusal(error) and not (isinstance(error, NatsConnectionError) and error.failures)


def _refusals_in(error: NatsError) -> set[str]:
    """Return the refusals of credentials in an error, as texts that name their servers."""
    failures = error.failures if isinstance(error, NatsConnectionError) else ()
    return {str(each) for each in failures or (error,) if _is_refusal(each)}


def _is_refusal(error: Exception) -> bool:
    """Return whether a login was refused; not one that has ended since, or that nobody may have decided about."""
    if not isinstance(error, AuthorizationError) or error.condition == LOGIN_UNDECIDED.code:
        return False
    return not error.may_pass(established=False)


def run_with_retries(
    action: Callable[[], Result],
    options: RetryOptions,
    what: str,
    *,
    established: bool,
    retry_if: Callable[[NatsError], bool] = lambda _: True,
) -> Result:
    """Return the result of an action, retried by :class:`Retries`, where the other arguments are described.

    The log says when retries begin and succeed. An error that cannot pass, or has not passed in time, is raised, as is
    one for which ``retry_if`` is false.
    """
    retries = Retries(options, what, established=established)
    while True:
        try:
            result = action()
        except NatsError as error:
            if not retry_if(error):
                raise
            retries.wait_or_raise(error)
        else:
            retries.note_success()
            return result


@dataclass(slots=True)
class Backoff:
    """Doubling waits for one event; unlike :class:`Retries`, they do not depend on errors.

    Attributes:
        first: seconds of the first wait.
        maximum: maximum seconds of a wait.
        fixed_share: the share of each wait, from 0 to 1, that is fixed; the rest is random.
        upcoming: seconds of the next wait.
    """

    first: float
    maximum: float
    fixed_share: float = 1.0
    upcoming: float = field(init=False)

    def __post_init__(self) -> None:
        self.reset()

    @property
    def is_new(self) -> bool:
        """Whether there was no wait since the start or the last :meth:`reset`."""
        return self.upcoming == self.first

    def reset(self) -> None:
        """Start again with the first wait."""
        self.upcoming = self.first

    def take_next_wait_seconds(self) -> float:
        """Return the seconds to wait now."""
        wait, self.upcoming = self.upcoming, min(2 * self.upcoming, self.maximum)
        return wait if self.fixed_share == 1.0 else clock.uniform(self.fixed_share * wait, wait)
