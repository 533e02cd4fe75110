"""nats-py, the independent client that tests check this one against, behind synchronous calls."""

from __future__ import annotations

import asyncio
import json
import secrets
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any, TypeVar
from urllib.parse import urlsplit

import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import NoRespondersError
from nats.js.client import JetStreamContext
from nats.js.errors import APIError

from tests.servers import Cluster, Server

T = TypeVar("T")
_ASKED_AGAIN = (
    "STREAM.CREATE.",
    "STREAM.INFO.",
    "STREAM.NAMES",
    "STREAM.MSG.GET.",
    "CONSUMER.INFO.",
    "CONSUMER.NAMES.",
    "CONSUMER.CREATE.",
)
"""Questions that do no more when they are asked again."""
Headers = Mapping[str, str | Sequence[str]]
Payload = bytes | str | int
"""What a test gives for a payload: bytes, or a text or a number as text."""


@dataclass(frozen=True)
class Message:
    """A received message; the last three are None unless it comes from a stream."""

    subject: str
    payload: bytes
    headers: dict[str, list[str]] = field(default_factory=dict)
    reply: str | None = None
    stream: str | None = None
    sequence: int | None = None
    timestamp: datetime | None = None


class NatsPy:
    """A connected client. `options` are those of `nats.connect`."""

    def __init__(self, url: str | list[str], **options: Any) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="nats-py", daemon=True)
        self._thread.start()
        self._client = _MultiValuedClient()
        try:
            self.run(self._client.connect(url, **options))
        except BaseException:
            self._stop_loop()
            raise

    def __enter__(self) -> NatsPy:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if not self._loop.is_closed():
            self.run(self._client.close())
            self._stop_loop()

    def run(self, coroutine: Coroutine[Any, Any, T], timeout: float = 60.0) -> T:
        """Await anything of nats-py's own, such as `client.run(client.nats.jetstream().…)`."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(timeout)

    @property
    def nats(self) -> Client:
        return self._client

    # Streams

    def api(self, subject: str, request: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Ask `$JS.API.<subject>`; raises nats-py's `APIError` if the answer is an error."""
        payload = json.dumps(request).encode() if request is not None else b""
        # What a cluster is asked while it has no leader is not answered later either.
        deadline = time.monotonic() + 30.0
        timeout = 1.0 if subject.startswith(_ASKED_AGAIN) else 30.0
        while time.monotonic() < deadline:
            with suppress(TimeoutError):
                answer = self.run(self._client.request(f"$JS.API.{subject}", payload, timeout=timeout))
                decoded: dict[str, Any] = json.loads(answer.data)
                if "error" not in decoded:
                    return decoded
                if decoded["error"]["code"] != 503 or not subject.startswith("STREAM.MSG.GET."):
                    raise APIError.from_error(decoded["error"])
                time.sleep(0.05)  # it has no leader at the moment
        raise TimeoutError(f"no answer to {subject} in 30 s")

    def create_stream(self, name: str, subjects: Sequence[str] | None = None, **config: Any) -> dict[str, Any]:
        """Create a stream, by default for the subjects `<name>.>`; `config` is what the JSON API takes."""
        subjects = [f"{name}.>"] if subjects is None else list(subjects)
        return self.api(f"STREAM.CREATE.{name}", {"name": name, "subjects": subjects, **config})

    def create_in_cluster(self, name: str, subjects: Sequence[str] | None = None, **config: Any) -> None:
        """Create a stream as soon as the cluster has a leader, and wait until messages that are sent here reach it."""
        wait_until(lambda: succeeds(lambda: self.create_stream(name, subjects, **config)))
        for subject in [f"{name}.>"] if subjects is None else subjects:
            wait_until(partial(self.reaches_stream, subject))

    def reaches_stream(self, subject: str) -> bool:
        """Whether a stream answers to what is published to a subject or wildcard; it is asked to refuse a message."""
        subject = subject.replace("*", "x").replace(">", "x")
        with suppress(NoRespondersError, TimeoutError):
            return bool(self.request(subject, headers={"Nats-Expected-Stream": "none"}, timeout=1.0).payload)
        return False

    def hand_over(self, stream: str, server: str) -> None:
        """Have the server of this name lead a stream; skip the test where servers are too old to be told."""
        version = self.nats.connected_server_version
        if (version.major, version.minor) < (2, 11):
            pytest.skip("needs nats-server 2.11: the next leader is chosen")

        def leads() -> bool:
            now = self.stream_info(stream)["cluster"].get("leader")
            if now not in (None, server):
                with suppress(APIError):  # nobody leads it any more
                    self.api(f"STREAM.LEADER.STEPDOWN.{stream}", {"placement": {"preferred": server}})
            return bool(now == server)

        wait_until(leads, timeout=60)

    def delete_stream(self, name: str) -> None:
        self.api(f"STREAM.DELETE.{name}")

    def back_up(self, name: str) -> tuple[dict[str, Any], list[bytes]]:
        """A backup of a stream with its consumers, as `nats stream backup` makes it."""
        inbox = self._client.new_inbox()

        async def take() -> tuple[dict[str, Any], list[bytes]]:
            subscription = await self._client.subscribe(inbox)
            request = json.dumps({"deliver_subject": inbox, "no_consumers": False}).encode()
            answer = await self._client.request(f"$JS.API.STREAM.SNAPSHOT.{name}", request, timeout=30)
            said = json.loads(answer.data)
            assert "error" not in said, said
            chunks = []
            while (message := await subscription.next_msg(30)).data:
                chunks.append(message.data)
                if message.reply:
                    await message.respond(b"")
            await subscription.unsubscribe()
            return {"config": said["config"], "state": said["state"]}, chunks

        return self.run(take())

    def restore(self, name: str, backup: tuple[dict[str, Any], list[bytes]]) -> None:
        """Restore a stream from a backup, as `nats stream restore` does; it must not exist."""
        wait_until(lambda: self._is_restored(name, backup))

    def _is_restored(self, name: str, backup: tuple[dict[str, Any], list[bytes]]) -> bool:
        """Whether a stream is restored; not while the server still removes the folder of one that was just deleted."""
        target = self.api(f"STREAM.RESTORE.{name}", backup[0])["deliver_subject"]

        async def send() -> dict[str, Any]:
            for chunk in (*backup[1], b""):
                answer = await self._client.request(target, chunk, timeout=30)
            said: dict[str, Any] = json.loads(answer.data)
            return said

        error = self.run(send()).get("error")
        assert error is None or "no such file or directory" in error["description"], error
        return error is None

    def purge_stream(self, name: str, **request: Any) -> int:
        """Purge, all or by `filter`, `seq`, `keep`; the number of messages removed."""
        return int(self.api(f"STREAM.PURGE.{name}", request)["purged"])

    def delete_message(self, stream: str, sequence: int) -> None:
        self.api(f"STREAM.MSG.DELETE.{stream}", {"seq": sequence})

    def stream_info(self, name: str, **request: Any) -> dict[str, Any]:
        """The whole answer: `["state"]["messages"]`, `["config"]`, `["created"]` and so on."""
        return self.api(f"STREAM.INFO.{name}", request)

    def held(self, stream: str) -> int:
        """How many messages are in the stream now."""
        return int(self.stream_info(stream)["state"]["messages"])

    def consumers(self, stream: str) -> list[str]:
        return list(self.api(f"CONSUMER.NAMES.{stream}")["consumers"] or [])

    def read_stream(self, name: str, timeout: float = 60.0) -> list[Message]:
        """Every message that is in the stream now, in order."""
        return list(self.iterate_stream(name, timeout))

    def stored_numbers(self, stream: str) -> list[int]:
        """The payloads that are in the stream now, which are numbers, in order."""
        return [int(message.payload) for message in self.read_stream(stream)]

    def stored_texts(self, stream: str) -> list[str]:
        """The payloads that are in the stream now, which are texts, in order."""
        return [message.payload.decode() for message in self.read_stream(stream)]

    def iterate_stream(self, name: str, timeout: float = 60.0) -> Iterator[Message]:
        """Every message that is in the stream now, in order, and not all in memory at once."""
        info = self.stream_info(name)
        left = held = int(info["state"]["messages"])
        if not left:
            return
        consumer = f"nats-py-{secrets.token_hex(4)}"
        config = {"name": consumer, "ack_policy": "none", "deliver_policy": "all", "mem_storage": True}
        if "inactive_threshold" not in info["config"].get("consumer_limits", {}):
            config["inactive_threshold"] = 600 * 10**9  # whoever takes messages slowly finds it gone after 5 s
        self.api(f"CONSUMER.CREATE.{name}.{consumer}", {"stream_name": name, "config": config})
        inbox = self._client.new_inbox()
        with self.collect(inbox) as collected:
            while left:
                batch = min(left, 10_000)  # bounded, or this client is a slow consumer
                request = json.dumps({"batch": batch}).encode()
                subject = f"$JS.API.CONSUMER.MSG.NEXT.{name}.{consumer}"

                def asked(subject: str = subject, request: bytes = request) -> bool:
                    """A consumer of a cluster that was just made may not listen yet: then its answer is a status."""
                    collected.clear()
                    self.run(self._client.publish(subject, request, reply=inbox))
                    return collected.wait(1, timeout)[0].sequence is not None

                def has_come(left: int = left, batch: int = batch) -> bool:
                    """Some may expire before they come."""
                    if succeeds(lambda: collected.wait(batch, 1.0)):
                        return True
                    now = self.held(name)
                    return now < held and len(collected.messages) >= now - (held - left)

                wait_until(asked, timeout)
                wait_until(has_come, timeout)
                yield from collected.messages
                collected.clear()
                left -= batch
        self.api(f"CONSUMER.DELETE.{name}.{consumer}")

    # Messages

    def publish(self, subject: str, payload: bytes = b"", *, headers: Headers | None = None, reply: str = "") -> None:
        """Publish one message without an ack, and flush."""
        self.run(self._publish_core([(subject, payload, headers)], reply))

    def publish_many(self, messages: Iterable[tuple[str, bytes] | tuple[str, bytes, Headers | None]]) -> None:
        """Publish without acks, in order, and flush. Not for streams, which may drop such messages."""
        self.run(self._publish_core(messages, ""))

    def publish_each(self, subject: str, payloads: Iterable[Payload]) -> None:
        """Publish these payloads to a subject, as `publish_many` does."""
        self.publish_many([(subject, _encoded(payload)) for payload in payloads])

    def publish_acked(
        self,
        messages: Iterable[tuple[str, bytes] | tuple[str, bytes, Headers | None]],
        *,
        window: int = 4000,
        timeout: float = 120.0,
    ) -> list[int]:
        """Publish to a stream, in order; the sequences that the acks named. Raises what any ack said."""

        async def publish() -> list[int]:
            js = self._client.jetstream(publish_async_max_pending=window)
            acks: list[asyncio.Future[Any]] = []
            for subject, payload, *headers in messages:
                acks.append(await js.publish_async(subject, payload, headers=_repeatable(*headers)))
            return [ack.seq for ack in await asyncio.gather(*acks)]

        return self.run(publish(), timeout)

    def store(self, subject: str, payloads: Iterable[Payload]) -> None:
        """Store these payloads in the stream of a subject, in order."""
        self.publish_acked([(subject, _encoded(payload)) for payload in payloads])

    def store_empty(self, stream: str, count: int, token: str = "x") -> None:
        """Store so many messages without a payload, with the subject `<stream>.<token>`."""
        self.store(f"{stream}.{token}", [b""] * count)

    def put(self, bucket: str, entries: Mapping[str, bytes]) -> list[int]:
        """Put values into a KV bucket, many at once; their revisions."""
        return self.publish_acked([(f"$KV.{bucket}.{key}", value) for key, value in entries.items()])

    def request(
        self, subject: str, payload: bytes = b"", *, headers: Headers | None = None, timeout: float = 60.0
    ) -> Message:
        answer = self._client.request(subject, payload, timeout=timeout, headers=_repeatable(headers))
        return _message(self.run(answer, timeout + 5.0))

    @contextmanager
    def collect(self, subject: str, queue: str = "") -> Iterator[Collected]:
        """Subscribe; the server knows of it when the block begins."""
        collected = Collected()

        async def keep(message: Msg) -> None:
            collected.add(_message(message))

        subscription = self.run(self._subscribe(subject, queue, keep))
        try:
            yield collected
        finally:
            self.run(subscription.unsubscribe())

    @contextmanager
    def respond(self, subject: str, answer: Callable[[Message], bytes]) -> Iterator[None]:
        """Answer requests to a subject while the block runs."""

        async def respond(message: Msg) -> None:
            await self._client.publish(message.reply, answer(_message(message)))

        subscription = self.run(self._subscribe(subject, "", respond))
        try:
            yield
        finally:
            self.run(subscription.unsubscribe())

    async def _subscribe(self, subject: str, queue: str, callback: Callable[[Msg], Awaitable[None]]) -> Any:
        subscription = await self._client.subscribe(subject, queue, callback)
        await self._flush()
        return subscription

    async def _publish_core(self, messages: Iterable[Any], reply: str) -> None:
        for subject, payload, *headers in messages:
            await self._client.publish(subject, payload, reply=reply, headers=_repeatable(*headers))
        await self._flush()

    async def _flush(self) -> None:
        """Wait until the server has processed what was written: nats-py's own flush sends a PING ahead of it."""
        subject = f"_FLUSH.{secrets.token_hex(8)}"
        subscription = await self._client.subscribe(subject)
        await self._client.publish(subject)
        await subscription.next_msg(timeout=30)
        await subscription.unsubscribe()

    def _stop_loop(self) -> None:
        self.run(end_tasks())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def end_tasks() -> None:
    """End what still runs in this event loop; what is left would be said in the log of whatever runs later."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


class Collected:
    """The messages that a subscription has received so far."""

    def __init__(self) -> None:
        self._messages: list[Message] = []
        self._changed = threading.Condition()

    def add(self, message: Message) -> None:
        with self._changed:
            self._messages.append(message)
            self._changed.notify_all()

    def clear(self) -> None:
        with self._changed:
            self._messages = []

    @property
    def messages(self) -> list[Message]:
        with self._changed:
            return list(self._messages)

    def wait(self, count: int, timeout: float = 60.0) -> list[Message]:
        """Wait until there are at least `count`."""
        with self._changed:
            if not self._changed.wait_for(lambda: len(self._messages) >= count, timeout):
                raise TimeoutError(f"{len(self._messages)} of {count} messages came within {timeout:g} s")
            return list(self._messages)


def send_raw(url: str, wire: bytes, timeout: float = 60.0) -> bytes:
    """Send bytes as they are over a fresh connection without credentials.

    Returns what the server said between its INFO and its PONG, or the end of the connection.
    """
    parts = urlsplit(url)
    with socket.create_connection((parts.hostname, parts.port), timeout) as connection:
        connection.settimeout(timeout)
        said = b""
        while b"\r\n" not in said:
            said += connection.recv(65536)
        said = said.partition(b"\r\n")[2]
        options = b'{"verbose":false,"pedantic":false,"headers":true,"no_responders":true,"protocol":1}'
        connection.sendall(b"CONNECT " + options + b"\r\n" + wire + b"PING\r\n")
        while b"PONG\r\n" not in said:
            received = connection.recv(65536)
            if not received:
                break
            said += received
        return said.partition(b"PONG\r\n")[0]


def wait_until(condition: Callable[[], T], timeout: float = 60.0) -> T:
    """Poll until the condition is true; its value."""
    deadline = time.monotonic() + timeout
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"not true within {timeout:g} s")
        time.sleep(0.02)
    return value


def succeeds(action: Callable[[], object]) -> bool:
    """Whether an action succeeds. A cluster that has lost a server, or has just started, takes a moment."""
    try:
        action()
    except Exception:
        return False
    return True


@pytest.fixture
def nats_py(nats_server: Server) -> Iterator[NatsPy]:
    """A nats-py client of the shared server."""
    with NatsPy(nats_server.url) as client:
        yield client


@pytest.fixture
def cluster(shared_cluster: Cluster) -> Cluster:
    """The cluster that tests share; whoever stops a server starts it again.

    Three replicas find their place in it: for a moment after a server has come back the leader refuses them.
    """
    with NatsPy(shared_cluster.urls.split(",")) as client:
        client.create_in_cluster("PLACED", num_replicas=3, storage="memory")
        client.delete_stream("PLACED")
    return shared_cluster


class _Publishing(JetStreamContext):
    """nats-py raises what an ack says where nobody hears it, and goes on waiting for the ack; this says it."""

    async def _handle_async_reply(self, msg: Msg) -> None:
        try:
            await super()._handle_async_reply(msg)
        except APIError as error:
            for inbox, future in list(self._publish_async_futures.items()):
                if msg.subject.endswith(f".{inbox}") and not future.done():
                    future.set_exception(error)


class _MultiValuedClient(Client):
    """nats-py keeps one value per header name; this keeps them all."""

    def jetstream(self, **options: Any) -> JetStreamContext:
        return _Publishing(self, **options)

    async def _process_headers(self, headers: bytes) -> Any:
        if not headers or headers[8:9] == b" ":  # a status, which nats-py must understand itself
            return await super()._process_headers(headers)
        values: dict[str, list[str]] = {}
        for line in headers.split(b"\r\n")[1:]:
            name, colon, value = line.partition(b":")
            if colon:
                values.setdefault(name.decode(), []).append(value.strip().decode("utf-8", "replace"))
        return values


class _Repeatable(dict[str, Any]):
    """Makes nats-py's encoder, which only iterates, write a name once per value."""

    def items(self) -> Any:
        for name, values in super().items():
            for value in [values] if isinstance(values, str) else values:
                yield name, value


def _encoded(payload: Payload) -> bytes:
    return payload if isinstance(payload, bytes) else str(payload).encode()


def _repeatable(headers: Headers | None = None) -> Any:
    return _Repeatable(headers) if headers else None


def _message(message: Msg) -> Message:
    headers = {name: [value] if isinstance(value, str) else value for name, value in (message.headers or {}).items()}
    if not message.reply.startswith("$JS.ACK."):
        return Message(message.subject, message.data, headers, message.reply or None)
    metadata = message.metadata
    sequence = metadata.sequence.stream
    return Message(message.subject, message.data, headers, None, metadata.stream, sequence, metadata.timestamp)
