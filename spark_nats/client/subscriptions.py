"""The subscriptions of one connection, and the delivery of messages to them."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

from spark_nats.errors import ProtocolError
from spark_nats.protocol.messages import Messages

MAX_PENDING = 256 << 20
"""Maximum bytes of memory for the pending messages of a subscription. Callers request messages in portions, or take
them as they arrive, so only a server that sends unrequested messages reaches the limit."""
_MESSAGE_OVERHEAD = 80  # bytes of memory per message, in addition to its own bytes


class Subscription:
    """Some subjects, and their pending messages: those that have arrived and were not taken yet."""

    def __init__(self, sids: Sequence[int], subject: str) -> None:
        self.sids = sids
        self.subject = subject
        self._pending: deque[Messages] = deque()
        self._size = 0

    def put(self, messages: Messages) -> None:
        """Add messages that have arrived; raise ProtocolError if over :data:`MAX_PENDING` bytes are pending already."""
        if self._size > MAX_PENDING:
            raise ProtocolError(f"it sent {MAX_PENDING >> 20} MiB to {self.subject} that nobody has asked for")
        self._pending.append(messages)
        self._size += _memory_size_of(messages)

    def pop(self) -> Messages | None:
        """Return and remove the pending messages of the earliest :meth:`put`; None when there are none."""
        if not self._pending:
            return None
        messages = self._pending.popleft()
        self._size -= _memory_size_of(messages)
        return messages

    @property
    def has_pending(self) -> bool:
        """Whether messages are pending."""
        return bool(self._pending)


class Subscriptions:
    """All subscriptions of one connection by their ids, which count from 1 and are never reused."""

    def __init__(self) -> None:
        self._by_sid: dict[int, Subscription] = {}
        self._next = 1

    def add(self, subjects: Sequence[str]) -> Subscription:
        """Create a subscription with an id for each subject."""
        sids = range(self._next, self._next + len(subjects))
        subscription = Subscription(sids, ",".join(subjects))
        self._next = sids.stop
        self._by_sid.update(dict.fromkeys(sids, subscription))
        return subscription

    def change(self, subscription: Subscription, added: int, ended: Sequence[int]) -> range:
        """Add ids to a subscription, and return them; forget others of its ids."""
        sids = range(self._next, self._next + added)
        self._next = sids.stop
        self._by_sid.update(dict.fromkeys(sids, subscription))
        for sid in ended:
            self._by_sid.pop(sid, None)
        subscription.sids = [*(set(subscription.sids) - set(ended)), *sids]
        return sids

    def remove(self, subscription: Subscription) -> list[int]:
        """Forget a subscription, whose messages are dropped from now on; return those of its ids that were known."""
        return [sid for sid in subscription.sids if self._by_sid.pop(sid, None) is not None]

    def deliver(self, messages: Messages) -> None:
        """Deliver messages to their subscriptions; drop those of subscriptions that have ended.

        Raises ProtocolError for an id that no subscription has ever had, and as :meth:`Subscription.put` does.
        """
        sids = messages.sids()
        if sids.min() < 1 or sids.max() >= self._next:
            raise ProtocolError("it delivers a message to a subscription that was never made")
        first = self._by_sid.get(int(sids[0]))
        if (sids == sids[0]).all() or (first and np.isin(sids, first.sids).all()):
            groups = [(first, messages)]
        else:
            owners = dict.fromkeys(self._by_sid.get(int(sid)) for sid in np.unique(sids))
            groups = [(owner, messages.take(np.isin(sids, owner.sids))) for owner in owners if owner]
        for owner, group in groups:
            if owner:
                owner.put(group)


def _memory_size_of(messages: Messages) -> int:
    return len(messages.buffer) + _MESSAGE_OVERHEAD * len(messages)
