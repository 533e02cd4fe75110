"""Reads the account's use of JetStream, and its limits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from spark_nats.jetstream.api import JetStream, bad_answer_is_protocol_error
from spark_nats.protocol.api import Api
from spark_nats.protocol.documents import integer_at, object_at, value_at


@dataclass(frozen=True, slots=True)
class Quota:
    """The use and the limit of one resource; ``limit`` is None where there is none."""

    used: int
    limit: int | None


@dataclass(frozen=True, slots=True)
class AccountInfo:
    """The account's use of JetStream, and its limits."""

    memory: Quota  # bytes of streams in memory
    storage: Quota  # bytes of streams in files
    streams: Quota  # number of streams
    consumers: Quota  # number of consumers


def account_info(js: JetStream) -> AccountInfo:
    """Return the account's use, with the limits of all replica tiers added up; raise if it has no JetStream."""
    answer = js.request(Api.ACCOUNT_INFO)
    with bad_answer_is_protocol_error(Api.ACCOUNT_INFO):
        tiers = object_at(answer, "tiers") or {"": answer}
        return AccountInfo(*(_quota(answer, tiers, what) for what in ("memory", "storage", "streams", "consumers")))


def _quota(answer: dict[str, Any], tiers: dict[str, Any], what: str) -> Quota:
    limit = ("limits", f"max_{what}")
    limits = [integer_at(tier, *limit) for tier in tiers.values() if value_at(tier, *limit) not in (-1, None)]
    return Quota(integer_at(answer, what), sum(limits) if len(limits) == len(tiers) else None)
