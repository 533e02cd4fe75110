"""The prefix of the sink's message ids, which identifies the query that wrote a message."""

from __future__ import annotations

import base64
import hashlib

_QUERY_BYTES = 9  # 12 characters in base64


def id_prefix_of(query: str) -> str:
    """Return the prefix of the message ids of a query's rows, from the query's id; no other query's ids have it."""
    digest = hashlib.blake2b(query.encode(), digest_size=_QUERY_BYTES).digest()
    return f"{base64.urlsafe_b64encode(digest).decode()}-"
