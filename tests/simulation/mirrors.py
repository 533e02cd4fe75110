"""Mirrors of streams, as far as whoever reads the origin meets them: they answer its direct gets under their own names.

A mirror has what the origin had, some time later, with the same sequences; and still has what the origin has removed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from tests.simulation.store import Store, Stored, matcher

if TYPE_CHECKING:
    from tests.simulation.server import ModelServer

_NO_HEADER = b"NATS/1.0\r\n\r\n"


class MirrorSpec(NamedTuple):
    """A mirror.

    Attributes:
        origin: the stream that it copies.
        subject: what it copies: a literal subject or one that ends in ``>``.
        to: what it makes of that part of the subjects; the same where it transforms nothing.
        server: number of the server that keeps it.
        lag: seconds after which it has a message.
    """

    origin: str
    subject: str = ">"
    to: str = ">"
    server: int = 0
    lag: float = 0.0

    @property
    def name(self) -> str:
        """Its name."""
        return f"{self.origin}_MIRROR"

    @classmethod
    def of(cls, config: dict[str, Any]) -> MirrorSpec:
        """Return the mirror that such a stream is."""
        mirror = config["mirror"]
        subject = mirror.get("filter_subject", ">")
        (transform,) = mirror.get("subject_transforms", [{"src": subject, "dest": subject}])
        return cls(mirror["name"], transform["src"], transform["dest"])


class Mirror:
    """The copy on one server."""

    def __init__(self, spec: MirrorSpec, server: ModelServer) -> None:
        self.spec = spec
        self.server = server
        self._store = Store({}, lambda _: None)
        self._match = matcher([spec.subject])

    def look(self) -> Store:
        """Return what it has."""
        return self._store

    def take(self, message: Stored) -> None:
        """Copy a message of the origin, unless it has gone on from there already."""
        if message.sequence > self._store.last and self._match(message.subject):
            behind = message.subject.removeprefix(self.spec.subject.removesuffix(">"))
            subject = self.spec.to.removesuffix(">") + behind if behind else self.spec.to
            lines = message.header.splitlines(keepends=True)
            header = b"".join(each for each in lines if not each.startswith(b"Nats-Expected-"))
            self._store.put(message._replace(subject=subject, header=b"" if header == _NO_HEADER else header))
