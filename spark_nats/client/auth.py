"""Credentials, and what they add to CONNECT."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from spark_nats.protocol.control import ConnectOptions


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a client proves itself with. At most one of user and token is set."""

    user: str | None = None
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)

    def __bool__(self) -> bool:
        return self.user is not None or self.token is not None

    def apply(self, options: ConnectOptions) -> ConnectOptions:
        """Return ``options`` with these credentials in them."""
        return replace(options, user=self.user, password=self.password, auth_token=self.token)
