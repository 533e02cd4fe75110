"""How the message ids that the sink gives begin: with the query that has written the message."""

from __future__ import annotations

import base64
import hashlib

_QUERY_BYTES = 9  # 12 characters in base64


def ids_of_query(query: str) -> str:
    """Return what the message ids of a query's rows begin with, and those of no other's."""
    digest = hashlib.blake2b(query.encode(), digest_size=_QUERY_BYTES).digest()
    return f"{base64.urlsafe_b64encode(digest).decode()}-"
