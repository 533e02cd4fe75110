"""Credentials, and the fields that they add to CONNECT."""

from __future__ import annotations

import base64
import contextlib
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from spark_nats.conditions.client import NKEYS_NOT_INSTALLED, NOTHING_TO_SIGN, SEED_INVALID
from spark_nats.errors import AuthorizationError, InvalidCredentialsError
from spark_nats.protocol.control import ConnectOptions, ServerInfo

# A block of a .creds file, as the server and other clients match it: dashes around a title, the text, dashes.
_BLOCK = re.compile(r"-{3,}BEGIN ([A-Z ]+)-{3,}\s+([\w\-.=]+)\s+-{3,}END [A-Z ]+-{3,}")
_MIN_BLANKED = 8  # minimum characters of a secret that is blanked; any text may contain a shorter one by chance


@dataclass(frozen=True, slots=True)
class Credentials:
    """The credentials of a client: a user with a password, a token, an nkey, or an nkey with a JWT.

    A token may come with an nkey, for a server that hands both to a program (auth callout). The seed is the private key
    of an nkey (``SU…``); it signs the nonce of the server and is never sent. The JWT has the claims that an account
    signs about the user. Credentials are equal if they were equal at first, whatever their file holds now.
    """

    user: str | None = None
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    nkey_seed: str | None = field(default=None, repr=False)
    jwt: str | None = field(default=None, repr=False)
    file: str | None = field(default=None, repr=False, compare=False)  # the ``.creds`` file that may be renewed

    def __bool__(self) -> bool:
        return self.user is not None or self.token is not None or self.nkey_seed is not None

    @property
    def has_only_user_name(self) -> bool:
        """Whether there is a user without anything that proves who it is."""
        return self.user is not None and self.password is None and self.token is None and self.nkey_seed is None

    def blank_secrets(self, text: str) -> str:
        """Return a text of the server with these secrets blanked, in case the server repeats them.

        Short secrets stay, because any text may contain them by chance.
        """
        return blanked(text, (self.password, self.token, self.nkey_seed, self.jwt))

    def add_to(self, options: ConnectOptions, info: ServerInfo) -> ConnectOptions:
        """Return the options of CONNECT with these credentials added; an nkey signs the nonce in ``info``.

        When the server sends no nonce and requires no login, an nkey adds nothing.

        Raises:
            AuthorizationError: the server asks for credentials of another kind, or the package ``nkeys`` is missing.
            InvalidCredentialsError: the seed is invalid.
        """
        options = replace(options, user=self.user, password=self.password, auth_token=self.token)
        if self.nkey_seed is None:
            return options
        if not info.nonce:
            if info.auth_required and self.token is None:
                raise AuthorizationError(NOTHING_TO_SIGN())
            return options  # the server requires no login, or the token may do
        key = parse_key_pair(self.nkey_seed)
        signature = base64.urlsafe_b64encode(key.sign(info.nonce.encode())).decode().rstrip("=")
        if self.jwt is not None:
            return replace(options, jwt=self.jwt, sig=signature)
        return replace(options, nkey=key.public_key.decode(), sig=signature)


_renewed: dict[Credentials, Credentials] = {}  # the newest of each login whose file has changed


def read_newest_credentials(credentials: Credentials) -> Credentials:
    """Return credentials as their file has them now; without a usable file, the newest that this process knows."""
    if credentials.file is not None:
        with contextlib.suppress(OSError, RuntimeError, ValueError):  # no such file here, or one that is being replaced
            found = parse_creds(Path(credentials.file).expanduser().read_text(encoding="utf-8"))
            note_renewed_credentials(credentials, replace(found, token=credentials.token, file=credentials.file))
    return _renewed.get(credentials, credentials)


def note_renewed_credentials(credentials: Credentials, renewed: Credentials) -> None:
    """Remember what a login has become, as another process may have found out."""
    if renewed != credentials or credentials in _renewed:
        _renewed[credentials] = renewed


def blanked(text: str, secrets: Iterable[str | None]) -> str:
    """Return a text with these secrets blanked, except secrets that are too short to be told from other words."""
    for secret in secrets:
        if secret and len(secret) >= _MIN_BLANKED:
            text = text.replace(secret, "…")
    return text


def parse_key_pair(seed: str) -> Any:
    """Return the key pair of a user's nkey, as an object of the package ``nkeys``.

    Raises:
        AuthorizationError: the package is not installed.
        InvalidCredentialsError: the text is not the seed of a user. The message does not contain it.
    """
    try:
        import nkeys
    except ImportError:
        raise AuthorizationError(NKEYS_NOT_INSTALLED()) from None
    with contextlib.suppress(Exception):  # nkeys raises errors of several libraries
        kind, raw = nkeys.decode_seed(seed.encode())
        # Encoded again to verify the checksum, which nkeys ignores.
        if kind == nkeys.PREFIX_BYTE_USER and nkeys.encode_seed(raw, kind) == seed.encode():
            return nkeys.from_seed(seed.encode())
    raise InvalidCredentialsError(SEED_INVALID())


def parse_creds(text: str) -> Credentials:
    """Read a ``.creds`` file: a user's JWT and nkey seed, each between lines of dashes.

    Raises ValueError, which shows no part of the text, if one of them is missing.
    """
    blocks = dict(_BLOCK.findall(text))
    if "NATS USER JWT" not in blocks or "USER NKEY SEED" not in blocks:
        raise ValueError("holds no NATS USER JWT and USER NKEY SEED, as a .creds file does")
    return Credentials(jwt=blocks["NATS USER JWT"], nkey_seed=blocks["USER NKEY SEED"])


def parse_seed(text: str) -> Credentials:
    """Read an nkey seed, alone or among other lines, such as comments; raise ValueError when there is none."""
    found = re.search(r"^\s*(SU[A-Z2-7]{56})\s*$", text, re.MULTILINE)
    if not found:
        raise ValueError("is not an nkey seed of a user, which begins with SU")
    return Credentials(nkey_seed=found[1])
