"""The contexts of the ``nats`` command line (ADR-21): JSON files with the settings of a connection."""

from __future__ import annotations

import base64
import os
import re

from spark_nats.options.files import is_plain, may_file_name_be_shown, path_of, read_file, read_text_file
from spark_nats.protocol.documents import parse_limited_object

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
# The options for the texts of what fields name, where a field has the text itself or says where else it is.
_TEXTS = {
    "creds": "credentialsSecret",
    "nkey": "nkeySeedSecret",
    "cert": "tlsCertPem",
    "key": "tlsKeySecret",
    "ca": "tlsCaPem",
    "password": "password",
    "token": "token",
}
_FILES = _TEXTS.keys() - {"password", "token"}
# What the library of the command line (natscontext of jsm.go, since 0.4.2) takes for the place of a secret.
_PLACE = re.compile(r"(data):|(file|env|op|nsc)://", re.IGNORECASE)
_VARIABLE = re.compile(r"\$(\w+|\{\w+\})")  # in the name of a file, as the command line expands it
_MOST_NAMES = 10  # maximum number of contexts that an error lists


def read_context(where: str) -> dict[str, str]:
    """Return the fields of a context as options, without fields that are empty or have no effect.

    Args:
        where: the name of a context in the user's configuration directory, or the path of its file, which has a slash
            in it or ends in ``.json``.

    Raises:
        ValueError: ``where`` is neither a name nor a path; the file cannot be read, holds no JSON object, or has an
            unsupported field or a value of the wrong type. The message contains no value of a field, and shows
            ``where`` only if there is such a context.
    """
    content = _read_context_file(where)
    try:
        document = parse_limited_object(content)
    except ValueError:
        document = None  # the error would contain the content
    if document is None:
        raise ValueError(f"is {where!r}, which holds no JSON object")
    found = {}
    for name, value in document.items():
        if not value or name in _WITHOUT_EFFECT:
            continue
        if name not in FIELDS:
            named = f"the field {name!r}, which" if is_plain(name) else "a field whose name is not shown here and"
            raise ValueError(f"is {where!r}, which has {named} is unsupported; remove it")
        if not isinstance(value, bool if name == "tls_first" else str):
            raise ValueError(f"is {where!r}, whose field {name!r} is a {type(value).__name__}")
        try:
            option, found_there = _option_and_value_of_field(name, str(value))
        except ValueError as error:
            raise ValueError(f"is {where!r}, whose field {name!r} {error}") from None
        found[option] = found_there
    return found


def _option_and_value_of_field(field: str, value: str) -> tuple[str, str]:
    """Return a field as an option and its value, from where the field says that it is.

    Raises ValueError, without the value, if that place cannot be read.
    """
    place = _PLACE.match(value) if field in _TEXTS else None
    scheme = (place[1] or place[2]).lower() if place else ""
    rest = value[place.end() :] if place else value
    if scheme in ("op", "nsc"):
        raise ValueError(
            f"begins with {scheme}://, a place from which only the `nats` command line fetches secrets; store the "
            "secret in a file, and name that"
        )
    if scheme in ("", "file"):
        if field in _FILES:
            rest = _VARIABLE.sub(lambda found: os.environ.get(found[1].strip("{}"), ""), rest)
        elif scheme:
            rest = read_text_file(rest, "name a file after file://").rstrip("\r\n")
        return FIELDS[field], rest
    text = _decode_data_uri(rest) if scheme == "data" else os.environ.get(rest)
    if not text:
        missing = (
            "data: and holds no text in base64" if scheme == "data" else "env:// and names no variable that is set"
        )
        raise ValueError(f"begins with {missing}")
    return _TEXTS[field], text if field in _FILES else text.rstrip("\r\n")


def _decode_data_uri(data: str) -> str | None:
    """Return the text in a URI of the scheme ``data``, after the scheme; None if there is none in base64."""
    head, _, encoded = data.partition(",")
    try:
        return base64.b64decode(encoded, validate=True).decode() if "base64" in head.split(";") else None
    except ValueError:
        return None


def _read_context_file(where: str) -> bytes:
    """Return the content of a context's file; raise ValueError if it cannot be read."""
    home = os.environ.get("XDG_CONFIG_HOME")
    contexts = f"{home or '~/.config'}/nats/context"
    is_path = "/" in where or where.endswith(".json")
    path = where if is_path else f"{contexts}/{where}.json"
    try:
        return read_file(path)
    except ValueError as error:
        reason = str(error)
    if may_file_name_be_shown(path) and (is_path or os.path.lexists(path_of(path))):
        raise ValueError(f"is {where!r}, which {reason}")
    if not is_path:
        there = sorted(each.stem for each in path_of(contexts).glob("*.json"))
        shown = ", ".join(map(repr, there[:_MOST_NAMES])) + (", …" if len(there) > _MOST_NAMES else "")
        reason = f"names none of the contexts in {contexts!r}, which are {shown}"
        if not there:
            reason = f"names no context: there are no contexts in {contexts!r}"
    raise ValueError(
        "must be the name of a context or the path of its file; its value, which may be a secret and is not shown, "
        f"{reason}"
    )
