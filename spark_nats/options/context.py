"""The contexts of the ``nats`` command line (ADR-21): JSON files with the settings of a connection."""

from __future__ import annotations

import os
import re

from spark_nats.options.values import read_file
from spark_nats.protocol.documents import parse_document

# The option that corresponds to each field of a context.
FIELDS = {
    "url": "servers",
    "token": "token",
    "user": "user",
    "password": "password",
    "creds": "credentialsFile",
    "nkey": "nkeySeedFile",
    "cert": "tlsCertFile",
    "key": "tlsKeyFile",
    "ca": "tlsCaFile",
    "tls_first": "tlsHandshakeFirst",
    "inbox_prefix": "inboxPrefix",
    "jetstream_domain": "domain",
    "jetstream_api_prefix": "apiPrefix",
}
# Fields without an effect on reading and writing.
_WITHOUT_EFFECT = {"name", "description", "color_scheme", "jetstream_event_prefix"}


def read_context(where: str) -> dict[str, str]:
    """Return the fields of a context as options, without fields that are empty or have no effect.

    Args:
        where: the name of a context in the user's configuration directory, or the path of its file, which has a slash
            in it or ends in ``.json``.

    Raises:
        ValueError: ``where`` is neither a name nor a path; the file cannot be read, holds no JSON object, or has an
            unsupported field or a value of the wrong type. The message contains no value of a field.
    """
    path = _path(where)
    try:
        content = read_file(path)
    except ValueError as error:
        raise ValueError(f"is {where!r}, but {path!r} {error}") from None
    try:
        document = parse_document(content)
    except ValueError:
        document = None  # the error would contain the content
    if document is None:
        raise ValueError(f"is {where!r}, but {path!r} holds no JSON object")
    found = {}
    for name, value in document.items():
        if not value or name in _WITHOUT_EFFECT:
            continue
        if name not in FIELDS:
            raise ValueError(f"is {where!r}, which has the field {name!r}, which is unsupported; remove it")
        if not isinstance(value, bool if name == "tls_first" else str):
            raise ValueError(f"is {where!r}, whose field {name!r} is a {type(value).__name__}")
        found[FIELDS[name]] = str(value)
    return found


def _path(where: str) -> str:
    if where.lstrip().startswith("{"):
        raise ValueError("must be the name of a context or the path of its file, and looks like the content of one")
    if "/" in where or where.endswith(".json"):
        return where
    if not re.fullmatch(r"[^\s.]+(\.[^\s.]+)*", where):
        raise ValueError(f"is {where!r}, which is neither the name of a context nor a path")
    home = os.environ.get("XDG_CONFIG_HOME")
    return f"{home or '~/.config'}/nats/context/{where}.json"
