"""Whose a message is."""

from __future__ import annotations

import pytest

from spark_nats.client import subscriptions
from spark_nats.client.subscriptions import Subscription, Subscriptions
from spark_nats.errors import ProtocolError
from spark_nats.protocol.decoder import Decoder
from spark_nats.protocol.messages import Messages


def messages(*sids: object) -> Messages:
    """A message for each of these ids; their payloads count from 0 to 9."""
    return (
        Decoder()
        .feed(b"".join(b"MSG x %s 1\r\n%d\r\n" % (str(sid).encode(), i % 10) for i, sid in enumerate(sids)))
        .messages
    )


def payloads(subscription: Subscription) -> list[bytes]:
    taken = iter(subscription.pop, None)
    return [each.payload_at(i) for each in taken for i in range(len(each))]


def test_every_subject_has_an_id_of_its_own() -> None:
    known = Subscriptions()
    assert [known.add(["a", "b"]).sids, known.add(["c"]).sids] == [range(1, 3), range(3, 4)]


def test_messages_are_kept_apart_by_subscription_and_in_order() -> None:
    known = Subscriptions()
    both, other = known.add(["a", "b"]), known.add(["c"])
    known.deliver(messages(2, 1, 3, 2, 1))
    known.deliver(messages(3))
    assert payloads(both) == [b"0", b"1", b"3", b"4"]
    assert payloads(other) == [b"2", b"0"]
    assert not both.has_pending


def test_subjects_of_a_subscription_come_and_go() -> None:
    known = Subscriptions()
    some, other = known.add(["a", "b"]), known.add(["c"])
    assert known.change(some, 2, [1]) == range(4, 6)
    known.deliver(messages(1, 2, 3, 4, 5))
    assert payloads(some) == [b"1", b"3", b"4"]
    assert payloads(other) == [b"2"]
    known.remove(some)
    known.deliver(messages(2, 4, 5))
    assert not some.has_pending


def test_what_comes_for_a_subscription_that_has_ended_is_dropped() -> None:
    known = Subscriptions()
    ended, other = known.add(["a"]), known.add(["b"])
    assert known.remove(ended) == [1]
    assert known.remove(ended) == []
    known.deliver(messages(1, 2, 1))
    known.deliver(messages(1))
    assert payloads(ended) == []
    assert payloads(other) == [b"1"]


@pytest.mark.parametrize("sid", ["2", "0", "-1", "x", "99999999999999999999999"])
def test_a_message_for_a_subscription_that_was_never_made_is_a_protocol_error(sid: str) -> None:
    known = Subscriptions()
    known.add(["a"])
    with pytest.raises(ProtocolError, match="a subscription that was never made"):
        known.deliver(messages(1, sid, 1))


def test_messages_that_nobody_asked_for_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriptions, "MAX_PENDING", 1 << 20)
    known = Subscriptions()
    known.add(["a"])
    with pytest.raises(ProtocolError, match="it sent 1 MiB to a that nobody has asked for"):
        for _ in range(1000):
            known.deliver(messages(*[1] * 100))


def test_memory_of_what_was_taken_is_free_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriptions, "MAX_PENDING", 1 << 20)
    known = Subscriptions()
    subscription = known.add(["a"])
    for _ in range(1000):
        known.deliver(messages(*[1] * 100))
        assert len(payloads(subscription)) == 100
