"""Time and chance: the only source of the clock, of waits without a socket, of jitter and of random names.

The other external input, what sockets deliver and accept, is in :class:`spark_nats.client.transport.Transport`. A test
that replaces these names and that class runs the whole library in a simulated world, where an hour takes a moment and a
seed reproduces the same history. So callers look the names up at call time::

    from spark_nats import clock

    deadline = clock.monotonic() + 5.0
"""

from __future__ import annotations

from random import shuffle, uniform
from secrets import token_hex as token
from time import monotonic, sleep, time, time_ns

__all__ = ["monotonic", "shuffle", "sleep", "time", "time_ns", "token", "uniform"]

# monotonic: seconds since a fixed moment; they never go back, so deadlines are computed from them.
# time, time_ns: seconds and nanoseconds since 1970 by the clock of this machine; they may jump.
# sleep: waits for seconds, where no connection has to be served during the wait.
# uniform: a random number between two others, for jitter: the tasks of a query must not ask in step.
# shuffle: brings a list into random order, such as the servers to try.
# token: a unique name of the given number of random bytes, in hexadecimal.
