"""The cluster that faults hit, what its monitoring says of it, and the proxies through which Spark reaches it."""

from __future__ import annotations

import base64
import http.client
import json
import shutil
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from nats.errors import Error
from nats.js.errors import APIError

from spark_nats.embedded import NatsServer
from tests.chaos.proxy import Proxy
from tests.nats_py import NatsPy, wait_until
from tests.servers import Cluster

IN, OUT, STATE = "IN", "OUT", "KV_SPARK_NATS"
DEFAULT_WINDOW = 120.0
"""Seconds of the duplicate window that a server gives a stream."""


@dataclass(frozen=True)
class Target:
    """What a query writes into.

    Attributes:
        stream: its stream.
        prefix: of its subjects, which end with the key.
        config: what its stream is created with.
        options: of the query's sink.
        columns: of the query's rows.
        last_tokens: the last tokens of the stream's subjects; empty where it hears all.
        others: further streams that the query writes into, with the last tokens of their subjects.
    """

    stream: str
    prefix: str
    config: Mapping[str, Any]
    options: Mapping[str, str]
    columns: Sequence[str]
    last_tokens: Sequence[str] = ()
    others: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def streams(self) -> list[str]:
        """All streams that the query writes into."""
        return [self.stream, *self.others]


COPY = Target(OUT, "out.", {}, {"stream": OUT}, ("concat('out.', split(subject, '[.]')[1]) AS subject", "payload"))
"""A stream that keeps all messages."""
QUEUE = replace(COPY, config={"retention": "workqueue"})
"""A work queue."""
BUCKET = Target(
    f"KV_{OUT}",
    f"$KV.{OUT}.",
    {"max_msgs_per_subject": 1, "allow_rollup_hdrs": True, "allow_direct": True},
    {"bucket": OUT},
    ("split(subject, '[.]')[1] AS key", "payload AS value"),
)
"""A KV bucket that keeps the last value of each key."""


async def _ignore(_: Exception) -> None:
    pass  # nats-py would print each lost connection


CLIENT: dict[str, Any] = {
    "error_cb": _ignore,
    "connect_timeout": 2,
    "reconnect_time_wait": 0.2,
    "max_reconnect_attempts": -1,
    "ping_interval": 1,
    "max_outstanding_pings": 2,
}
"""Options of a nats-py client that notices a dead server soon and never gives up."""

_READY = 90
_API_TIMEOUT = 30
# Who is in the system account may move the meta leader. The server refuses a lame duck's duration below 30 seconds, but
# with few connections it takes one for each, after the grace period.
_CONFIG = """
accounts {
  APP: { jetstream: enabled, users: [{user: app, password: app}] }
  $SYS: { users: [{user: sys, password: sys}] }
}
no_auth_user: app
lame_duck_duration: "30s"
lame_duck_grace_period: "1s"
"""


@dataclass(frozen=True)
class StreamState:
    """What a stream's leader says of it; `current`: both followers have what it has."""

    leader: str
    last: int
    consumers: int
    current: bool


class ChaosCluster:
    """Three servers with the stream IN and a target, and a proxy in front of each, started with ``with``.

    A server that does not run refuses connections, through its proxy too.
    """

    def __init__(self, directory: Path, logs: Path, window: float = DEFAULT_WINDOW, target: Target = COPY) -> None:
        self._cluster = Cluster(directory, _CONFIG, logs)
        self._window = window
        self.target = target
        self._pool = ThreadPoolExecutor(3)
        self._client: NatsPy | None = None
        self.proxies: list[Proxy] = []

    def __enter__(self) -> ChaosCluster:
        self._cluster.__enter__()
        try:
            self.proxies += [Proxy(server.port) for server in self.servers]
            wait_until(self.meta_leader, _READY)
            self._configure("CREATE", IN, DEFAULT_WINDOW)
            for name in self.target.streams:
                self._configure("CREATE", name, self._window)
            self.wait_until_whole()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._client:
            self._client.close()
        for proxy in self.proxies:
            proxy.close()
        self._pool.shutdown()
        self._cluster.__exit__()

    # Servers

    @property
    def servers(self) -> list[NatsServer]:
        return self._cluster.servers

    @property
    def urls(self) -> list[str]:
        """The servers themselves."""
        return [server.url for server in self.servers]

    def name(self, server: NatsServer) -> str:
        return f"n{self.servers.index(server)}"

    def kill(self, server: NatsServer) -> None:
        """End a server with SIGKILL."""
        self._proxy(server).refuse()
        server.kill()

    def end(self, server: NatsServer, how: signal.Signals = signal.SIGTERM) -> None:
        """Ask a server to end, and wait until it has."""
        if how == signal.SIGTERM:
            self._proxy(server).refuse()
        self._cluster.end(server, how, timeout=60)
        self._proxy(server).refuse()

    def wipe(self, server: NatsServer) -> None:
        self._cluster.wipe(server)

    def copy_stores(self, to: Path) -> None:
        """Copy what the servers have stored, all at one moment, as snapshots of their volumes."""
        with ExitStack() as stack:
            for server in self.servers:
                stack.enter_context(self.paused(server))
            for server in self.servers:
                shutil.copytree(self._cluster.store(server), to / self.name(server))

    def put_back(self, servers: Sequence[NatsServer], copies: Path, folders: Sequence[str]) -> None:
        """Exchange what servers have in these folders of their stores for an older copy. None of them may run.

        Those that are left out lose the folders, and get them from the others. If they kept them, a server (2.15.1)
        whose log is longer than the others' would go on with it under the same sequences, and say that it is current.
        """
        for server in self.servers:
            store = self._cluster.store(server)
            for folder in folders:
                shutil.rmtree(store / folder, ignore_errors=True)
                if server in servers:
                    shutil.copytree(copies / self.name(server) / folder, store / folder)

    def folders_of(self, stream: str) -> list[str]:
        """Where in their stores the servers keep a stream: its messages, and the log by which they agree on them."""
        for page in self._pages("jsz?accounts=true&streams=true&raft=true"):
            for account in page.get("account_details") or []:
                for each in account.get("stream_detail") or []:
                    if each["name"] == stream and each.get("stream_raft_group"):
                        log = f"jetstream/$SYS/_js_/{each['stream_raft_group']}"
                        return [f"jetstream/{account['name']}/streams/{stream}", log]
        raise LookupError(f"no server knows the stream {stream}")

    def start(self, server: NatsServer) -> None:
        server.start()
        self._proxy(server).accept()

    def restart_as(self, server: NatsServer, binary: Path | None) -> None:
        """Upgrade or downgrade a server."""
        self._proxy(server).refuse()
        self._cluster.restart_as(server, binary)
        self._proxy(server).accept()

    def start_all(self) -> None:
        list(self._pool.map(self.start, self.servers))

    @contextmanager
    def paused(self, server: NatsServer) -> Iterator[None]:
        """Stop a server from running for the length of the block (SIGSTOP)."""
        with self._cluster.paused(server):
            yield

    def _proxy(self, server: NatsServer) -> Proxy:
        return self.proxies[self.servers.index(server)]

    # What they say

    def streams(self) -> dict[str, StreamState]:
        """The streams that have a leader which says so."""
        found: dict[str, StreamState] = {}
        for i, page in enumerate(self._pages("jsz?accounts=true&streams=true")):
            for account in page.get("account_details") or []:
                for stream in account.get("stream_detail") or []:
                    group = stream["cluster"]
                    if group.get("leader") == f"n{i}":
                        followers = group.get("replicas") or []
                        current = len(followers) == 2 and all(
                            one["current"] and not one.get("offline") and not one.get("lag") for one in followers
                        )
                        state = stream["state"]
                        one = StreamState(group["leader"], state["last_seq"], state["consumer_count"], current)
                        if stream["name"] not in found or found[stream["name"]].last < one.last:
                            found[stream["name"]] = one  # of two that take themselves for the leader, the one ahead
        return found

    def leader(self, stream: str) -> NatsServer:
        """The server that leads a stream; waits for there to be one."""
        leaders = wait_until(lambda: [state.leader for name, state in self.streams().items() if name == stream], _READY)
        return self._cluster.of(leaders[0])

    def meta_leader(self) -> NatsServer | None:
        """The server that leads the cluster, if it has a leader."""
        for i, page in enumerate(self._pages("jsz")):
            if page.get("meta_cluster", {}).get("leader") == f"n{i}":
                return self.servers[i]
        return None

    def whole(self) -> bool:
        """Whether all servers are healthy and all replicas current."""
        states = self.streams()
        return (
            all(name in states and states[name].current for name in (IN, *self.target.streams))
            and self.meta_leader() is not None
            and all(page.get("status") == "ok" for page in self._pages("healthz"))
        )

    def wait_until_whole(self, timeout: float = _READY) -> None:
        wait_until(self.whole, timeout)

    def _pages(self, path: str) -> list[dict[str, Any]]:
        return list(self._pool.map(lambda server: _page(server, path), self.servers))

    # What they are asked

    def api(self, subject: str, request: dict[str, Any] | None = None, system: bool = False) -> dict[str, Any]:
        """Ask the JetStream API until it answers."""
        login = {"user": "sys", "password": "sys"} if system else {}
        deadline = time.monotonic() + _API_TIMEOUT
        while True:
            try:
                with NatsPy(self.urls, **CLIENT, **login) as client:
                    return client.api(subject, request)
            except (Error, APIError, OSError):
                if time.monotonic() > deadline:
                    raise

    def last_payload(self, subject: str) -> bytes | None:
        """The last message of a subject of the target, None when there is none or nobody says."""
        if self._client is None:
            self._client = NatsPy(self.urls, **CLIENT)
        try:
            request = self._client.nats.request(
                f"$JS.API.STREAM.MSG.GET.{self.target.stream}",
                json.dumps({"last_by_subj": subject}).encode(),
                timeout=1,
            )
            answer = json.loads(self._client.run(request).data)
        except (Error, OSError):
            return None
        return base64.b64decode(answer["message"]["data"]) if "message" in answer else None

    def set_window(self, seconds: float) -> None:
        """Change the duplicate window of the target."""
        for name in self.target.streams:
            self._configure("UPDATE", name, seconds)

    def _configure(self, operation: str, name: str, window: float) -> None:
        target = self.target if name in self.target.streams else replace(COPY, prefix="in.")
        tokens = target.others.get(name, target.last_tokens) or [">"]
        subjects = [f"{target.prefix}{token}" for token in tokens]
        config = {"name": name, "subjects": subjects, "num_replicas": 3, **target.config}
        self.api(f"STREAM.{operation}.{name}", {**config, "duplicate_window": int(window * 1e9)})


def _page(server: NatsServer, path: str) -> dict[str, Any]:
    """A page of a server's monitoring; empty when it does not answer."""
    if not server.running:
        return {}
    try:
        with urllib.request.urlopen(f"{server.monitoring_url}/{path}", timeout=1) as answer:
            decoded: dict[str, Any] = json.load(answer)
        return decoded
    except (OSError, ValueError, urllib.error.URLError, http.client.HTTPException):
        return {}
