"""Trying again while no server can be reached: restarts, elections and torn networks pass by themselves."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from typing import TypeVar

from spark_nats.errors import (
    AuthorizationError,
    InvalidCredentialsError,
    JetStreamError,
    NatsConnectionError,
    NatsError,
    NatsTimeoutError,
    PermissionsError,
    ServerError,
)
from spark_nats.protocol.statuses import NO_RESPONDERS

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

_FIRST_WAIT, _LONGEST_WAIT = 0.1, 5.0  # seconds between two attempts, doubled each time


def may_pass(error: NatsError) -> bool:
    """Tell whether an error is of a kind that passes by itself.

    A lost connection, a server that does not answer, and JetStream without a leader are. Refused credentials or
    permissions are not, nor is TLS that does not fit: those a user has to repair.
    """
    if isinstance(error, AuthorizationError | InvalidCredentialsError | PermissionsError):
        return False
    if isinstance(error, JetStreamError):
        return error.code == NO_RESPONDERS
    if isinstance(error, NatsConnectionError):
        if error.failures:
            return any(not isinstance(failure, NatsError) or may_pass(failure) for failure in error.failures)
        return not error.remedies
    return isinstance(error, NatsTimeoutError | ServerError)


def retrying(action: Callable[[], Result], timeout: float, what: str) -> Result:
    """Return what an action returns, which is tried again while its error :func:`may_pass`.

    The log has a line when that begins and one when it ends well.

    Args:
        action: whatever asks a server.
        timeout: seconds after which the last error is raised; 0 to try once.
        what: names what waits, for the log.

    Raises:
        NatsError: the error that did not pass, or has not passed in time.
    """
    began = time.monotonic()
    wait = 0.0
    while True:
        try:
            result = action()
        except NatsError as error:
            left = began + timeout - time.monotonic()
            if not may_pass(error):
                raise
            if left <= 0 and not wait:
                raise
            if left <= 0:
                raise error.with_context(f"{error}; tried for {timeout:g} s") from None
            if not wait:
                logger.warning("%s: %s; trying again for up to %g s", what, error, timeout)
            wait = min(max(_FIRST_WAIT, 2 * wait), _LONGEST_WAIT)
            time.sleep(min(left, wait * random.uniform(0.5, 1.0)))  # noqa: S311 - so that queries do not ask in step
        else:
            if wait:
                logger.warning("%s: goes on after %.1f s", what, time.monotonic() - began)
            return result
