"""Credentials, and what they add to CONNECT."""

from __future__ import annotations

import base64
import contextlib
import re
from dataclasses import dataclass, field, replace
from typing import Any

from spark_nats.errors import AuthorizationError, InvalidCredentialsError, Remedy
from spark_nats.protocol.control import ConnectOptions, ServerInfo

# Both blocks of a .creds file, as the server and its clients find them: dashes around a title, the text, dashes.
_BLOCK = re.compile(r"-{3,}BEGIN ([A-Z ]+)-{3,}\s+([\w\-.=]+)\s+-{3,}END [A-Z ]+-{3,}")
_RECOGNISED = 8  # characters that a secret must have to be told from other words


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a client proves itself with: a user with a password, a token, an nkey, or an nkey with a JWT.

    Attributes:
        user: user name.
        password: its password.
        token: authentication token.
        nkey_seed: private key of an nkey (``SU…``), which signs what the server asks to sign and is never sent.
        jwt: what an account says of the user, beside ``nkey_seed``.
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
        for secret in (self.password, self.token, self.nkey_seed, self.jwt):
            if secret and len(secret) >= _RECOGNISED:
                text = text.replace(secret, "…")
        return text

    def apply(self, options: ConnectOptions, info: ServerInfo) -> ConnectOptions:
        """Return ``options`` with these credentials in them.

        Args:
            options: what CONNECT says besides.
            info: what the server said of itself; its nonce is what is signed.

        Raises:
            AuthorizationError: the server asks for credentials of another kind, or the package ``nkeys`` is missing.
            InvalidCredentialsError: the seed is invalid.
        """
        if self.nkey_seed is None:
            return replace(options, user=self.user, password=self.password, auth_token=self.token)
        if not info.nonce:
            if info.auth_required:
                raise AuthorizationError(
                    "the server sent nothing to sign, so it lets nobody in with an nkey or a JWT; log in another way",
                    remedies=[Remedy.CREDENTIALS],
                )
            return options  # it lets everybody in
        key = key_pair(self.nkey_seed)
        signature = base64.urlsafe_b64encode(key.sign(info.nonce.encode())).decode().rstrip("=")
        if self.jwt is not None:
            return replace(options, jwt=self.jwt, sig=signature)
        return replace(options, nkey=key.public_key.decode(), sig=signature)


def key_pair(seed: str) -> Any:
    """Return the key pair of a user's nkey, of the package ``nkeys``.

    Raises:
        AuthorizationError: the package is not installed.
        InvalidCredentialsError: this is not the seed of a user. The message does not carry it.
    """
    try:
        import nkeys
    except ImportError:
        raise AuthorizationError(
            "to log in with an nkey or a JWT the package 'nkeys' is needed, on the driver and on every executor: "
            'install it with: pip install "spark-nats[nkeys]"'
        ) from None
    with contextlib.suppress(Exception):  # nkeys lets errors of several libraries through
        kind, raw = nkeys.decode_seed(seed.encode())
        # Encoded again, for the checksum that nkeys does not look at.
        if kind == nkeys.PREFIX_BYTE_USER and nkeys.encode_seed(raw, kind) == seed.encode():
            return nkeys.from_seed(seed.encode())
    raise InvalidCredentialsError(
        "the nkey seed is not that of a user, which begins with SU", remedies=[Remedy.CREDENTIALS]
    )


def parse_creds(text: str) -> Credentials:
    """Read a ``.creds`` file: a user's JWT and nkey seed, each between lines of dashes.

    Raises:
        ValueError: one of them is missing. The message carries neither.
    """
    blocks = dict(_BLOCK.findall(text))
    if "NATS USER JWT" not in blocks or "USER NKEY SEED" not in blocks:
        raise ValueError("holds no NATS USER JWT and USER NKEY SEED, as a .creds file does")
    return Credentials(jwt=blocks["NATS USER JWT"], nkey_seed=blocks["USER NKEY SEED"])


def parse_seed(text: str) -> Credentials:
    """Read an nkey seed: alone, or among comments or the other lines of an nkey file.

    Raises:
        ValueError: there is none.
    """
    found = re.search(r"^\s*(SU[A-Z2-7]{56})\s*$", text, re.MULTILINE)
    if not found:
        raise ValueError("is not an nkey seed of a user, which begins with SU")
    return Credentials(nkey_seed=found[1])
