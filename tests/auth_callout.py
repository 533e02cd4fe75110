"""A server that asks a program who logs in (auth callout, ADR-26), and that program."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from spark_nats.embedded import NatsServer
from tests.nats_py import Message, NatsPy
from tests.operator_mode import ACCOUNT, Key

Judge = Callable[[dict[str, Any]], float | None]
"""What a client has sent in CONNECT, to the seconds for which it is let in; None refuses it."""


class AuthCallout:
    """The account that signs the answers, with the server's configuration."""

    def __init__(self) -> None:
        self._account = Key(ACCOUNT)

    @property
    def config(self) -> str:
        return f"""
            accounts {{ APP: {{ jetstream: enabled, users: [{{user: callout, password: callout}}] }}, SYS: {{}} }}
            system_account: SYS
            authorization {{
                timeout: 20
                auth_callout {{ issuer: {self._account.public}, account: APP, auth_users: [callout] }}
            }}
        """

    @contextmanager
    def answering(self, server: NatsServer, judge: Judge) -> Iterator[NatsPy]:
        """Decide who is let in while the block runs; yields the client that does so, which may be used too."""

        def answer(message: Message) -> bytes:
            asked = _claims(message.payload.decode())
            client = asked["nats"]["user_nkey"]
            seconds = judge(asked["nats"]["connect_opts"])
            nats: dict[str, Any] = {"type": "authorization_response", "version": 2}
            if seconds is None:
                nats["error"] = "not known"
            else:
                user = {"type": "user", "version": 2, "pub": {}, "sub": {}, "subs": -1, "data": -1, "payload": -1}
                nats["jwt"] = self._account.sign_jwt(client, "USER", user, aud="APP", exp=int(time.time() + seconds))
            return self._account.sign_jwt(client, "ANSWER", nats, aud=asked["nats"]["server_id"]["id"]).encode()

        with (
            NatsPy(server.url, user="callout", password="callout") as client,
            client.respond("$SYS.REQ.USER.AUTH", answer),
        ):
            yield client


def _claims(jwt: str) -> dict[str, Any]:
    body = jwt.split(".")[1]
    claims: dict[str, Any] = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    return claims
