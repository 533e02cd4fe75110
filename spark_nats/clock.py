"""Time and chance: the only place that the clock, waits without a socket, jitter and random names come from.

The other thing that the world outside decides, what a socket brings and takes, is in
:mod:`spark_nats.client.transport`. Whoever exchanges these names and that class has the whole library in a world of his
own, where an hour takes a moment and a seed gives the same history again. So they are looked up when they are called::

    from spark_nats import clock

    deadline = clock.monotonic() + 5.0
"""

from __future__ import annotations

from random import shuffle, uniform
from secrets import token_hex as token
from time import monotonic, sleep, time, time_ns

__all__ = ["monotonic", "shuffle", "sleep", "time", "time_ns", "token", "uniform"]

# monotonic: seconds since some moment; they never go back, so deadlines are made of them.
# time, time_ns: seconds and nanoseconds since 1970, as this machine believes; they may jump.
# sleep: waits for seconds, where there is no connection that has to be served meanwhile.
# uniform: a number between two others, for jitter: tasks of a query must not ask in step.
# shuffle: brings a list into random order, such as that in which servers are tried.
# token: a name that nobody else uses, of so many random bytes in hexadecimal.
