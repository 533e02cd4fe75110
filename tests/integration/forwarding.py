"""The JetStream API, as a test wants it to answer."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from nats.errors import NoRespondersError

from tests.nats_py import NatsPy, succeeds, wait_until


class ForwardedApi:
    """The JetStream API under another prefix, so that a test can change what it is asked and what it answers.

    `requests` and `answers` are functions by operation, such as `CONSUMER.CREATE`: they get the real one and return
    another.
    """

    PREFIX = "CHANGED.API"

    def __init__(self, client: NatsPy) -> None:
        self._client = client
        self.asked: list[str] = []
        self.requests: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {}
        self.answers: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {}

    @contextmanager
    def serving(self, servers: str = "") -> Iterator[ForwardedApi]:
        """Answer, in the block; also to clients of other ``servers`` of the cluster, comma-separated."""
        nats = self._client.nats

        async def forward(message: Any) -> None:
            operation = message.subject.removeprefix(f"{self.PREFIX}.")
            self.asked.append(operation)
            request = self._changed(self.requests, operation, message.data)
            # Of many answers, or none; they go straight to who has asked.
            if operation.startswith(("CONSUMER.MSG.NEXT.", "DIRECT.GET.")) or not message.reply:
                await nats.publish(f"$JS.API.{operation}", request, reply=message.reply)
                return
            answer = await nats.request(f"$JS.API.{operation}", request, timeout=10)
            if message.reply:
                await nats.publish(message.reply, self._changed(self.answers, operation, answer.data))

        wait_until(lambda: succeeds(lambda: self._client.request("$JS.API.INFO", timeout=1.0)), timeout=60)
        subscription = self._client.run(nats.subscribe(f"{self.PREFIX}.>", cb=forward))
        self._client.run(nats.flush())
        for url in filter(None, servers.split(",")):
            with NatsPy(url) as other:
                wait_until(lambda: _answers(other), timeout=60)
        self.asked.clear()
        yield self
        self._client.run(subscription.unsubscribe())

    @staticmethod
    def _changed(
        changes: dict[str, Callable[[dict[str, Any]], dict[str, Any]]], operation: str, document: bytes
    ) -> bytes:
        for name, change in changes.items():
            if f"{operation}.".startswith(f"{name}."):
                real = json.loads(document)
                kind = {"type": real["type"]} if "type" in real else {}  # which says that JetStream answers
                return json.dumps({**kind, **change(real)}).encode()
        return document

    def count(self, operation: str) -> int:
        return sum(asked.startswith(f"{operation}.") for asked in self.asked)


def unheard_of(answer: dict[str, Any]) -> dict[str, Any]:
    """Change a stream's state to what the leader says while a follower is stopped, which led before it."""
    followers = [
        {"name": "stopped", "current": False, "active": 60 * 10**9},
        {"name": "follower", "current": True, "active": 10**6},
    ]
    return {**answer, "cluster": {"leader": "leader", **answer.get("cluster", {}), "replicas": followers}}


class FormerLeader:
    """Answers as a leader that was stopped when its stream had `known` messages, and resumes when it hides the first.

    Use it for `STREAM.MSG.GET`. `hidden` are the sequences that were requested of it and that it did not know.
    """

    def __init__(self, known: int) -> None:
        self.hidden: list[int] = []
        self._known = known
        self._until = math.inf

    def __call__(self, answer: dict[str, Any]) -> dict[str, Any]:
        if "message" not in answer or answer["message"]["seq"] <= self._known or time.monotonic() > self._until:
            return answer
        self.hidden.append(answer["message"]["seq"])
        self._until = min(self._until, time.monotonic() + 0.1)
        return {"error": {"code": 404, "err_code": 10037, "description": "no message found"}}


def _answers(client: NatsPy) -> bool:
    with suppress(NoRespondersError, TimeoutError):
        return bool(client.request(f"{ForwardedApi.PREFIX}.INFO").payload)
    return False
