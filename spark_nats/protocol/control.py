"""The operations that are one line: INFO, CONNECT, SUB, UNSUB, PING, PONG, +OK, -ERR.

INFO and CONNECT carry JSON. Their fields are those of the client protocol's tables; all other fields from a server are
ignored, as the protocol requires.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from enum import Enum, StrEnum, auto
from typing import Any, NamedTuple

from spark_nats.errors import ProtocolError
from spark_nats.protocol.documents import boolean_at, integer_at, parse_limited_object, printable, string_at, strings_at
from spark_nats.protocol.subjects import filter_violation, queue_violation

PING = b"PING\r\n"
PONG = b"PONG\r\n"
MAX_CONTROL_LINE = 4096
"""A server's default limit on the bytes between an operation's name and the end of its line.

The server closes the connection of a client that exceeds the limit. INFO does not announce the limit.
"""


class Op(StrEnum):
    """The operations other than messages that a server sends."""

    INFO = "INFO"
    PING = "PING"
    PONG = "PONG"
    OK = "+OK"
    ERR = "-ERR"


class Control(NamedTuple):
    """One control line: its operation and what followed it on the line."""

    op: Op
    argument: bytes = b""


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """The fields of INFO, by which a server describes itself.

    A field that the server leaves out has the protocol's default: false, zero, empty.
    """

    server_id: str = ""
    server_name: str = ""
    version: str = ""
    go: str = ""
    host: str = ""
    port: int = 0
    headers: bool = False
    max_payload: int = 0
    proto: int = 0
    client_id: int = 0
    auth_required: bool = False
    tls_required: bool = False
    tls_verify: bool = False
    tls_available: bool = False
    connect_urls: tuple[str, ...] = ()
    ws_connect_urls: tuple[str, ...] = ()
    ldm: bool = False
    git_commit: str = ""
    jetstream: bool = False
    ip: str = ""
    client_ip: str = ""
    nonce: str = field(default="", repr=False)
    cluster: str = ""
    domain: str = ""


def is_older(version: str, major: int, minor: int, patch: int = 0) -> bool:
    """Return whether a server's version is older than a release; False when it is no version number."""
    found = re.match(r"v?(\d{1,4})\.(\d{1,4})(?:\.(\d{1,4}))?", version)
    return found is not None and (int(found[1]), int(found[2]), int(found[3] or 0)) < (major, minor, patch)


_INFO_TYPES = {f.name: type(f.default) for f in fields(ServerInfo)}
_READERS: dict[type, Callable[..., Any]] = {bool: boolean_at, int: integer_at, str: string_at, tuple: strings_at}


def parse_info(argument: bytes) -> ServerInfo:
    """Parse the JSON of an INFO line; ProtocolError when it is invalid or a field has the wrong type."""
    try:
        document = parse_limited_object(argument)
        if "ssl_required" in document:  # the name of tls_required before 2016
            document.setdefault("tls_required", document["ssl_required"])
        known = {
            name: _READERS[kind](document, name) for name, kind in _INFO_TYPES.items() if document.get(name) is not None
        }
    except ValueError as error:
        raise ProtocolError(f"the JSON of INFO ({len(argument)} bytes) is invalid: {error}") from None
    return ServerInfo(**known)


@dataclass(frozen=True, slots=True)
class ConnectOptions:
    """The fields of CONNECT, by which a client describes itself.

    ``echo`` false asks the server not to deliver this connection's own messages to it. (The older protocol pages
    say the opposite; the current page and the server agree on this.)
    """

    verbose: bool = False
    pedantic: bool = False
    tls_required: bool = False
    auth_token: str | None = field(default=None, repr=False)
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    name: str | None = None
    lang: str = "python-arrow"
    version: str = ""
    protocol: int = 1
    echo: bool = True
    sig: str | None = field(default=None, repr=False)
    jwt: str | None = field(default=None, repr=False)
    no_responders: bool = True
    headers: bool = True
    nkey: str | None = None

    def encode(self) -> bytes:
        """Return the CONNECT line, without the fields that are None."""
        document = {
            "pass" if f.name == "password" else f.name: value
            for f in fields(self)
            if (value := getattr(self, f.name)) is not None
        }
        return b"CONNECT " + json.dumps(document, separators=(",", ":")).encode() + b"\r\n"


def encode_sub(subject: str, sid: int, queue: str | None = None) -> bytes:
    """Return a SUB line; ValueError when the subject or the queue group is not valid."""
    if violation := filter_violation(subject):
        raise ValueError(f"subject {subject!r} {violation}")
    if queue is None:
        return f"SUB {subject} {sid}\r\n".encode()
    if violation := queue_violation(queue):
        raise ValueError(f"queue group {queue!r} {violation}")
    return f"SUB {subject} {queue} {sid}\r\n".encode()


def encode_unsub(sid: int, max_msgs: int | None = None) -> bytes:
    """Return an UNSUB line; with ``max_msgs`` the server unsubscribes after that number of messages."""
    return f"UNSUB {sid}\r\n".encode() if max_msgs is None else f"UNSUB {sid} {max_msgs}\r\n".encode()


class ErrorKind(Enum):
    """What an -ERR means for its receiver (ADR-40, "Error Handling", and the server's source)."""

    PERMISSIONS = auto()  # one publish or subscription is not permitted
    REJECTED = auto()  # one operation is not valid
    LIMITED = auto()  # one operation exceeds a limit that others share
    AUTHORIZATION = auto()  # the credentials are refused
    OVERLOADED = auto()  # the server has too many connections, or this client is a slow consumer
    TOO_LARGE = auto()  # a message is larger than the server accepts now, which may have changed since it said how much
    MISUSE = auto()  # the client sent what this server does not accept, or the port is not for clients
    FATAL = auto()  # anything else

    @property
    def closes_connection(self) -> bool:
        """Whether the server closes the connection after the error."""
        return self not in (ErrorKind.PERMISSIONS, ErrorKind.REJECTED, ErrorKind.LIMITED)

    @property
    def is_transient(self) -> bool:
        """Whether the operation may succeed later, with the same credentials and permissions."""
        return self in (ErrorKind.LIMITED, ErrorKind.OVERLOADED, ErrorKind.FATAL)

    @property
    def needs_backoff(self) -> bool:
        """Whether the server asks for less load: a client should wait before its first retry."""
        return self in (ErrorKind.LIMITED, ErrorKind.OVERLOADED)


# How the texts of each kind begin, in lower case: those that the protocol lists, and a few more of the server's. The
# first that fits counts.
_ERRORS = {
    # the login took too long; the credentials may be right
    ErrorKind.FATAL: ("authorization timeout", "authentication timeout"),
    ErrorKind.PERMISSIONS: ("permissions violation",),
    ErrorKind.REJECTED: ("invalid subject", "invalid publish subject"),
    ErrorKind.LIMITED: ("maximum subscriptions exceeded",),
    ErrorKind.AUTHORIZATION: ("authorization", "authentication", "user authentication", "account authentication"),
    ErrorKind.OVERLOADED: (
        "maximum connections exceeded",
        "maximum account active connections exceeded",
        "connection throttling",
        "slow consumer",
    ),
    ErrorKind.TOO_LARGE: ("maximum payload violation",),
    ErrorKind.MISUSE: (
        "maximum control line exceeded",
        "unknown protocol operation",
        "invalid client protocol",
        "no responders requires headers support",
        "secure connection - tls required",
        "attempted to connect to",
    ),
}


def error_text(argument: bytes) -> str:
    """Return the text of an -ERR line without its quotes, made printable."""
    return printable(argument.decode("utf-8", "replace").strip().strip("'"))


def publish_denial_text(subject: str) -> str:
    """Return the text of the -ERR for a message whose subject the user may not publish to: one for each message."""
    return f'Permissions Violation for Publish to "{subject}"'


def error_kind(text: str) -> ErrorKind:
    """Return the kind of an -ERR by its text."""
    text = text.lower()
    return next((kind for kind, beginnings in _ERRORS.items() if text.startswith(beginnings)), ErrorKind.FATAL)
