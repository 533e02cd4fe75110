"""Pull consumers as clients meet them, on the one replica where they live."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from tests.simulation.store import Stored, filters_of, matcher, overlaps, tokens_match

if TYPE_CHECKING:
    from tests.simulation.group import Replica
    from tests.simulation.world import Event


_BARE = ("409 Consumer Deleted", "409 Server Shutdown")


class Pull:
    """A pull request that waits."""

    def __init__(self, body: dict[str, Any], reply: str, expires_at: float) -> None:
        self.reply = reply
        self.messages = body.get("batch") or 1
        self.bytes = body.get("max_bytes") or 0
        self.bounded = bool(self.bytes)
        self.no_wait = bool(body.get("no_wait"))
        self.served = False
        self.heartbeat = body.get("idle_heartbeat", 0) / 1e9
        self.expires_at = expires_at
        self.event: Event | None = None
        self.beat: Event | None = None

    def forget(self) -> None:
        """Cancel what was to come of it."""
        for event in (self.event, self.beat):
            if event is not None:
                event.cancel()


class LiveConsumer:
    """A consumer that runs: what it has delivered, and who waits."""

    def __init__(self, replica: Replica, name: str, config: dict[str, Any], created: str) -> None:
        self.replica = replica
        self.world = replica.group.world
        self.name = name
        self.created = created
        self.configure(config)
        self.durable = bool(config.get("durable_name"))
        self.delivered = 0
        self.delivered_stream = 0
        self.waiting: deque[Pull] = deque()
        self.unacknowledged: dict[int, int] = {}  # sequence in the stream -> of the first delivery
        self.redeliver: list[int] = []
        self.times: dict[int, int] = {}  # how often what was delivered again was
        self.floor = 0
        self.acknowledged_count = 0
        self.passed = 0  # up to where there is nothing more for it
        self._seen = replica.store.changes
        self.stopped = False
        self._last_per_subject: list[int] | None = None
        self._idle: Event | None = None
        self.next = self._first()
        self.delivered_stream = self.floor = self.passed = self.next - 1
        self._touch()

    def configure(self, config: dict[str, Any]) -> None:
        """Take a configuration."""
        self.config = config
        self.filters = filters_of(config)
        self.match = matcher(self.filters) if self.filters and ">" not in self.filters else None
        self._pending = None

    _pending: tuple[int, int, int, int] | None = None  # changes, last, next, count

    def _first(self) -> int:
        store, config = self.replica.look(), self.config
        following = store.last + 1
        match config.get("deliver_policy", "all"):
            case "by_start_sequence":
                return max(1, config["opt_start_seq"], store.first)
            case "new":
                return following
            case "last":
                found = store.last_of(self.filters[0] if self.filters else ">")
                return found.sequence if found else following
            case "last_per_subject" if self.replica.group.config["max_msgs_per_subject"] != 1:
                matches = self.match or (lambda _: True)
                self._last_per_subject = sorted(of[-1] for subject, of in store.subjects.items() if matches(subject))
                self._behind_last = following
                if not self._last_per_subject:
                    return max(1, store.last, store.first)
                return self._last_per_subject[0]
        return max(1, store.first)

    @property
    def acks(self) -> str:
        """Its policy."""
        return str(self.config.get("ack_policy", "none"))

    def _touch(self) -> None:
        """Count the time of inactivity from now."""
        threshold = self.config.get("inactive_threshold", 0) / 1e9
        if self.durable or not threshold:
            return
        if self._idle is not None:
            self._idle.cancel()
        self._idle = self.world.after(threshold, self._inactive)

    def _inactive(self) -> None:
        if not self.replica.runs or self.waiting:
            self._touch()
        elif not self.stopped:
            self.replica.group.cluster.remove_consumer(self.replica.group, self.name)

    def pending(self) -> int:
        """Return how many messages it has still to deliver."""
        store = self.replica.store
        if self._last_per_subject is not None:
            left = sum(1 for sequence in self._last_per_subject if sequence in store.messages)
            return left + store.count(self._behind_last, self.match)
        key = (store.changes, store.last, self.next)
        known = self._pending
        if known is not None and known[0] == key[0] and known[2] <= key[2]:
            if known[1] == key[1] and known[2] == key[2]:
                return known[3]
            count = known[3]
            if self.match is None:
                if known[2] != key[2]:
                    count -= sum(1 for s in range(known[2], self.next) if s in store.messages)
                count += sum(1 for s in range(max(known[1] + 1, self.next), store.last + 1) if s in store.messages)
                self._pending = (*key, count)
                return count
        count = store.count(self.next, self.match)
        self._pending = (*key, count)
        return count

    def pull(self, body: dict[str, Any], reply: str) -> None:
        """Take a pull request."""
        self._touch()
        expires = body.get("expires", 0) / 1e9
        pull = Pull(body, reply, self.world.now + expires if expires else float("inf"))
        if 2 * pull.heartbeat > expires and pull.heartbeat:
            self._status(reply, "400 Bad Request - heartbeat value too large")
            return
        limit = self.config.get("max_batch") or self.replica.group.config.get("consumer_max_batch")
        if limit and pull.messages > limit:
            self._status(reply, f"409 Exceeded MaxRequestBatch of {limit}")
            return
        self.waiting.append(pull)
        if expires:
            pull.event = self.world.after(expires, lambda: self._expire(pull))
        if pull.heartbeat:
            self._beat(pull)
        self.deliver()

    def _beat(self, pull: Pull) -> None:
        pull.beat = self.world.after(pull.heartbeat, lambda: self._heartbeat(pull))

    def _heartbeat(self, pull: Pull) -> None:
        if self.stopped or pull not in self.waiting:
            return
        if self.replica.runs:
            self._status(
                pull.reply,
                "100 Idle Heartbeat",
                f"Nats-Last-Consumer: {self.delivered}\r\nNats-Last-Stream: {self.delivered_stream}\r\n",
            )
        self._beat(pull)

    def _expire(self, pull: Pull) -> None:
        if self.stopped or pull not in self.waiting:
            return
        if not self.replica.runs:
            pull.event = self.world.after(1.0, lambda: self._expire(pull))
            return
        self._end(pull, "408 Request Timeout")

    def _end(self, pull: Pull, status: str) -> None:
        pull.forget()
        self.waiting.remove(pull)
        if status.startswith("404") or status in _BARE:
            self._status(pull.reply, status)
        else:
            self._tell_left(pull, status)

    def _tell_left(self, pull: Pull, status: str) -> None:
        left = f"Nats-Pending-Messages: {pull.messages}\r\nNats-Pending-Bytes: {pull.bytes}\r\n"
        self._status(pull.reply, status, left)

    def _status(self, reply: str, status: str, headers: str = "") -> None:
        self.replica.server.route(reply, "", f"NATS/1.0 {status}\r\n{headers}\r\n".encode(), b"")

    def _following(self) -> Stored | None:
        store = self.replica.store
        while self.redeliver:
            message = store.messages.get(self.redeliver[0])
            if message is not None:
                return message
            del self.redeliver[0]
        if self._last_per_subject is not None:
            message = store.messages.get(self._last_per_subject[0]) if self._last_per_subject else None
            if message is not None:
                return message
            if self._last_per_subject:
                del self._last_per_subject[0]
                return None  # a message that is gone: servers look on when they are asked again
            self.next = max(self.next, self._behind_last)
            self._last_per_subject = None
        return store.find(self.next, self.match)

    def deliver(self) -> None:
        """Deliver what there is to whoever waits."""
        if not self.waiting or self.stopped or not self.replica.runs:
            return
        self.replica.look()
        self._drop_removed()
        server, group = self.replica.server, self.replica.group
        headers_only = self.config.get("headers_only")
        cluster = group.cluster
        keeps = self.acks != "none"
        taken: list[int] = []
        while self.waiting:
            pull = self.waiting[0]
            if keeps and not self.redeliver and len(self.unacknowledged) >= self.config.get("max_ack_pending", 1000):
                break
            message = self._following()
            if message is None:
                waits = [p for p in self.waiting if not p.no_wait or (p.expires_at < float("inf") and not p.served)]
                for pull in [p for p in self.waiting if p not in waits]:
                    self._end(pull, "404 No Messages")
                break
            if not cluster.hearing(pull.reply):  # who has asked has gone
                pull.forget()
                self.waiting.popleft()
                continue
            sequence = message.sequence
            header, payload = message.header, message.payload
            if headers_only:
                header = (header[:-2] or b"NATS/1.0\r\n") + f"Nats-Msg-Size: {len(payload)}\r\n\r\n".encode()
                payload = b""
            again = bool(self.redeliver)
            times = self.times.get(sequence, 1) + 1 if again else 1
            place = f"{times}.{sequence}.{self.delivered + 1}.{message.time}.{max(0, self.pending() - (not again))}"
            reply = f"$JS.ACK.{group.name}.{self.name}.{place}"
            size = len(message.subject) + len(reply) + len(header) + len(payload)
            if pull.bounded and size > pull.bytes:
                self._end(pull, "409 Message Size Exceeds MaxBytes")
                continue
            if again:
                del self.redeliver[0]
                self.times[sequence] = times
            else:
                if self._last_per_subject is not None:
                    del self._last_per_subject[0]
                self.next = sequence + 1
                self.passed = max(self.passed, sequence)
            self.delivered += 1
            self.delivered_stream = max(self.delivered_stream, sequence)
            if keeps:
                self.unacknowledged.setdefault(sequence, self.delivered)
            else:
                self.floor = self.delivered_stream
                taken.append(sequence)
            pull.messages -= 1
            pull.served = True
            if pull.bounded:
                pull.bytes -= size
            self.waiting.popleft()
            server.deliver_to_inbox(pull.reply, message.subject, reply, header, payload)
            if pull.bounded and pull.bytes <= 0:
                pull.forget()
            elif pull.messages <= 0:
                pull.forget()
                if pull.bounded:
                    self._tell_left(pull, "409 Batch Completed")
            else:
                self.waiting.append(pull)  # the next one's turn
                if pull.heartbeat and pull.beat is not None:
                    pull.beat.cancel()
                    self._beat(pull)
        if taken and group.config.get("retention") == "interest":
            self._propose_acks(taken)

    def _drop_removed(self) -> None:
        """Count what was removed from the stream as acknowledged."""
        store = self.replica.store
        if self._seen != store.changes:
            self._seen = store.changes
            for sequence in [s for s in self.unacknowledged if s not in store.messages]:
                self._settle(sequence)

    def purged(self, subject: str) -> None:
        """Take note of a purge of messages that match; what is before the first that is left is done with."""
        store = self.replica.store
        mine = [tuple(each.split(".")) for each in self.filters or [">"]]
        theirs = tuple((subject or ">").split("."))
        if all(tokens_match(theirs, each) for each in mine):
            found = store.find(store.first, matcher([subject])) if subject else None
            first = found.sequence if found else store.last + 1 if subject else store.first
        elif any(overlaps(theirs, each) for each in mine):
            first = store.first
        else:
            return
        self.passed, self.next = max(self.passed, first - 1), max(self.next, first)
        if self.floor < first:
            self.floor = first - 1
        for sequence in [s for s in self.unacknowledged if s <= self.floor or s not in store.messages]:
            self.acknowledged_count = max(self.acknowledged_count, self.unacknowledged.pop(sequence))
            self.times.pop(sequence, None)
        if not self.unacknowledged:
            self.acknowledged_count, self.floor = self.delivered, self.passed
        self.redeliver = [s for s in self.redeliver if s in self.unacknowledged]

    def _settle(self, sequence: int) -> None:
        """Take what was delivered for done, and move the floor as servers do."""
        number = self.unacknowledged.pop(sequence)
        self.times.pop(sequence, None)
        if sequence in self.redeliver:
            self.redeliver.remove(sequence)
        if not self.unacknowledged:
            self.acknowledged_count, self.floor = self.delivered, self.passed
        elif number == self.acknowledged_count + 1:
            self.acknowledged_count, self.floor = number, sequence
            following = min((s for s in self.unacknowledged if s > sequence), default=0)
            if following:
                self.acknowledged_count, self.floor = self.unacknowledged[following] - 1, following - 1

    def reset(self, sequence: int) -> None:
        """Begin anew at a sequence. Pull requests go on waiting."""
        self.next = sequence
        self.floor = self.delivered_stream = self.passed = sequence - 1
        self.delivered = self.acknowledged_count = 0
        self.unacknowledged.clear()
        self.redeliver.clear()
        self.times.clear()
        self._last_per_subject = None
        self._pending = None

    def acknowledge(self, sequence: int, number: int, kind: bytes) -> bool:
        """Take an acknowledgement of a delivery; tell whether there was any: else servers say nothing."""
        self._drop_removed()
        if sequence >= self.next:
            return False
        if kind.startswith(b"+WPI"):
            return True
        if kind.startswith(b"-NAK"):
            if sequence in self.unacknowledged and sequence not in self.redeliver:
                self.redeliver.append(sequence)
                self.deliver()
            return True
        if self.acks == "all":
            chosen = [s for s in self.unacknowledged if s <= sequence]
            if sequence > self.floor and number > self.acknowledged_count:
                self.acknowledged_count, self.floor = number, sequence
            for each in chosen:
                del self.unacknowledged[each]
        elif sequence in self.unacknowledged:
            chosen = [sequence]
            self._settle(sequence)
        else:
            return True
        self._propose_acks(chosen)
        self.deliver()
        return True

    def _propose_acks(self, sequences: list[int]) -> None:
        leader = self.replica.group.leader()
        if leader is not None:
            leader.propose(("ack", self.name, sequences))

    def store_changed(self) -> None:
        """Take note that the replica has another state."""
        self._pending = None

    def describe(self) -> dict[str, Any]:
        """Return what the API says of it, beside its name and configuration."""
        self._drop_removed()
        return {
            "delivered": {"consumer_seq": self.delivered, "stream_seq": self.delivered_stream},
            "ack_floor": {
                "consumer_seq": self.delivered if self.acks == "none" else self.acknowledged_count,
                "stream_seq": self.floor,
            },
            "num_ack_pending": len(self.unacknowledged),
            "num_redelivered": 0,
            "num_waiting": len(self.waiting),
            "num_pending": self.pending(),
        }

    def stop(self, status: str | None = None) -> None:
        """End it; whoever waits is told, if it was deleted."""
        self.stopped = True
        if self._idle is not None:
            self._idle.cancel()
        for pull in list(self.waiting):
            if status is not None:
                self._end(pull, status)
            else:
                pull.forget()
        self.waiting.clear()
