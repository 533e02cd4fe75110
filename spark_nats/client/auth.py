"""Credentials, and what they add to CONNECT."""

from __future__ import annotations

import base64
import contextlib
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from spark_nats.conditions.client import NKEYS_NOT_INSTALLED, NOTHING_TO_SIGN, SEED_INVALID
from spark_nats.errors import AuthorizationError, InvalidCredentialsError
from spark_nats.protocol.control import ConnectOptions, ServerInfo

# Both blocks of a .creds file, as the server and its clients find them: dashes around a title, the text, dashes.
_BLOCK = re.compile(r"-{3,}BEGIN ([A-Z ]+)-{3,}\s+([\w\-.=]+)\s+-{3,}END [A-Z ]+-{3,}")
_RECOGNISED = 8  # characters that a secret must have to be told from other words


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a client proves itself with: a user with a password, a token, an nkey, or an nkey with a JWT.

    The seed is the private key of an nkey (``SU…``), which signs what the server asks to sign and is never sent.
    The JWT is what an account says of the user.
    """

    user: str | None = None
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    nkey_seed: str | None = field(default=None, repr=False)
    jwt: str | None = field(default=None, repr=False)

    def __bool__(self) -> bool:
        return self.user is not None or self.token is not None or self.nkey_seed is not None

    def blank(self, text: str) -> str:
        """Return a server's words without these secrets, should it repeat them.

        Short ones stay, since they are found in any text by chance.
        """
        return blanked(text, (self.password, self.token, self.nkey_seed, self.jwt))

    def apply(self, options: ConnectOptions, info: ServerInfo) -> ConnectOptions:
        """Return what CONNECT says with these credentials in it, which sign the nonce that ``info`` has.

        Raises:
            AuthorizationError: the server asks for credentials of another kind, or the package ``nkeys`` is missing.
            InvalidCredentialsError: the seed is invalid.
        """
        if self.nkey_seed is None:
            return replace(options, user=self.user, password=self.password, auth_token=self.token)
        if not info.nonce:
            if info.auth_required:
                raise AuthorizationError(NOTHING_TO_SIGN())
            return options  # it lets everybody in
        key = key_pair(self.nkey_seed)
        signature = base64.urlsafe_b64encode(key.sign(info.nonce.encode())).decode().rstrip("=")
        if self.jwt is not None:
            return replace(options, jwt=self.jwt, sig=signature)
        return replace(options, nkey=key.public_key.decode(), sig=signature)


def blanked(text: str, secrets: Iterable[str | None]) -> str:
    """Return a text without these secrets, but for those that are too short to be told from other words."""
    for secret in secrets:
        if secret and len(secret) >= _RECOGNISED:
            text = text.replace(secret, "…")
    return text


def key_pair(seed: str) -> Any:
    """Return the key pair of a user's nkey, of the package ``nkeys``.

    Raises:
        AuthorizationError: the package is not installed.
        InvalidCredentialsError: this is not the seed of a user. The message does not carry it.
    """
    try:
        import nkeys
    except ImportError:
        raise AuthorizationError(NKEYS_NOT_INSTALLED()) from None
    with contextlib.suppress(Exception):  # nkeys lets errors of several libraries through
        kind, raw = nkeys.decode_seed(seed.encode())
        # Encoded again, for the checksum that nkeys does not look at.
        if kind == nkeys.PREFIX_BYTE_USER and nkeys.encode_seed(raw, kind) == seed.encode():
            return nkeys.from_seed(seed.encode())
    raise InvalidCredentialsError(SEED_INVALID())


def parse_creds(text: str) -> Credentials:
    """Read a ``.creds`` file: a user's JWT and nkey seed, each between lines of dashes.

    A ValueError when one of them is missing carries neither.
    """
    blocks = dict(_BLOCK.findall(text))
    if "NATS USER JWT" not in blocks or "USER NKEY SEED" not in blocks:
        raise ValueError("holds no NATS USER JWT and USER NKEY SEED, as a .creds file does")
    return Credentials(jwt=blocks["NATS USER JWT"], nkey_seed=blocks["USER NKEY SEED"])


def parse_seed(text: str) -> Credentials:
    """Read an nkey seed: alone, or among comments or the other lines of an nkey file; ValueError when there is none."""
    found = re.search(r"^\s*(SU[A-Z2-7]{56})\s*$", text, re.MULTILINE)
    if not found:
        raise ValueError("is not an nkey seed of a user, which begins with SU")
    return Credentials(nkey_seed=found[1])
