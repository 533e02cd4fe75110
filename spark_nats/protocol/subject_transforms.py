"""What a stream's ``subject_transform`` makes of subjects, as far as it only moves tokens (ADR-30)."""

from __future__ import annotations

import re
from collections.abc import Mapping

_TOKEN = re.compile(r"\$([0-9]+)|\{\{\s*wildcard\(\s*([0-9]+)\s*\)\s*\}\}", re.IGNORECASE)


def transformed(subject: str, transform: Mapping[str, str]) -> str | None:
    """Return the subject under which a stream stores a message, given its transform with ``src`` and ``dest``.

    Return None where the transform has other functions than ``wildcard``. A subject that ``src`` does not match stays.
    """
    source, tokens = (transform.get("src") or ">").split("."), subject.split(".")
    destination = (transform.get("dest") or ">").split(".")
    is_open = source[-1] == ">"
    if is_open:
        source, tokens, rest = source[:-1], tokens[: len(source) - 1], tokens[len(source) - 1 :]
    else:
        rest = []
    fits = len(source) == len(tokens) and bool(rest) == is_open
    if not fits or any(one not in ("*", other) for one, other in zip(source, tokens, strict=True)):
        return subject
    moved = [token for pattern, token in zip(source, tokens, strict=True) if pattern == "*"]
    made, stars = [], iter(moved)
    for token in destination:
        found = _TOKEN.fullmatch(token)
        if found:
            place = int(found[1] or found[2])
            if not 1 <= place <= len(moved):
                return None
            made.append(moved[place - 1])
        elif token == "*":
            made.append(next(stars, token))
        elif "{{" in token or "$" in token:
            return None
        else:
            made += rest if token == ">" else [token]
    return ".".join(made)
