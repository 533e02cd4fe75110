"""Keys and JWTs of a server in operator mode: the part of `nsc` that tests need."""

from __future__ import annotations

import base64
import json
import os
import time
from pathlib import Path
from typing import Any

import nkeys

OPERATOR, ACCOUNT, USER = nkeys.PREFIX_BYTE_OPERATOR, nkeys.PREFIX_BYTE_ACCOUNT, nkeys.PREFIX_BYTE_USER


class Key:
    """A new nkey."""

    def __init__(self, kind: int = USER) -> None:
        self.seed = nkeys.encode_seed(os.urandom(32), kind).decode()
        self._pair = nkeys.from_seed(self.seed.encode())
        self.public = self._pair.public_key.decode()

    def write(self, path: Path) -> Path:
        path.write_text(self.seed + "\n")
        return path

    def sign_jwt(self, subject: str, name: str, nats: dict[str, Any], **claims: Any) -> str:
        """What this key says of another: a JWT of version 2 (ADR-14)."""
        document = {"jti": name, "iat": int(time.time()), "iss": self.public, "sub": subject, "name": name, **claims}
        signed = f"{_encode({'typ': 'JWT', 'alg': 'ed25519-nkey'})}.{_encode({**document, 'nats': nats})}"
        return f"{signed}.{_base64(self._pair.sign(signed.encode()))}"


class OperatorMode:
    """An operator, its system account and one account with JetStream, for a server with a memory resolver."""

    def __init__(self) -> None:
        self._operator, self._system, self._account = Key(OPERATOR), Key(ACCOUNT), Key(ACCOUNT)

    @property
    def account(self) -> str:
        """The account's public key, which is its name to the server."""
        return self._account.public

    @property
    def config(self) -> str:
        operator = self._operator.sign_jwt(
            self._operator.public,
            "OPERATOR",
            {"type": "operator", "version": 2, "system_account": self._system.public},
        )
        return f"""
            operator: {operator}
            system_account: {self._system.public}
            resolver: MEMORY
            resolver_preload: {{
                {self._system.public}: {self._account_jwt(self._system, "SYS", storage=0)}
                {self._account.public}: {self.account_jwt()}
            }}
        """

    def account_jwt(self, revoked: Key | None = None) -> str:
        """The account as it is, or with a user that it does not let in any more."""
        revocations = {"revocations": {revoked.public: int(time.time()) + 10}} if revoked else {}
        return self._account_jwt(self._account, "ACCOUNT", storage=-1, **revocations)

    def creds(self, path: Path, user: Key | None = None, **claims: Any) -> Path:
        """Write a `.creds` file for a user of the account; `claims` such as `exp`."""
        return _write_creds(path, self._account, user or Key(), claims)

    def system_creds(self, path: Path) -> Path:
        """Write a `.creds` file for a user of the system account."""
        return _write_creds(path, self._system, Key(), {})

    def _account_jwt(self, account: Key, name: str, storage: int, **more: Any) -> str:
        unlimited = ("subs", "data", "payload", "imports", "exports", "conn", "leaf")
        limits = {**dict.fromkeys(unlimited, -1), "wildcards": True}
        if storage:
            limits.update(dict.fromkeys(("mem_storage", "disk_storage", "streams", "consumer"), storage))
        nats = {"type": "account", "version": 2, "limits": limits, "default_permissions": {"pub": {}, "sub": {}}}
        return self._operator.sign_jwt(account.public, name, {**nats, **more})


def _write_creds(path: Path, account: Key, user: Key, claims: dict[str, Any]) -> Path:
    nats = {"type": "user", "version": 2, "pub": {}, "sub": {}, "subs": -1, "data": -1, "payload": -1}
    jwt = account.sign_jwt(user.public, "USER", nats, **claims)
    path.write_text(
        f"-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n"
        "************************* IMPORTANT *************************\n"
        "NKEY Seed printed below can be used to sign and prove identity.\n"
        "NKEYs are sensitive and should be treated as secrets.\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{user.seed}\n------END USER NKEY SEED------\n\n"
        "*************************************************************\n"
    )
    return path


def _encode(document: dict[str, Any]) -> str:
    return _base64(json.dumps(document, separators=(",", ":")).encode())


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
