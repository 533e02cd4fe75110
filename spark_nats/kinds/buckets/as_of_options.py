"""The option ``asOf``, which names a moment that :mod:`.as_of` reads."""

from __future__ import annotations

import re
from datetime import datetime

from spark_nats.kinds.buckets.options import SECTION, BucketReadOptions
from spark_nats.options import values
from spark_nats.options.option import option


def read_moment(text: str) -> int | datetime | str:
    """Read a revision, a time in ISO 8601, in UTC unless it has a zone, or ``latest``; ValueError for anything else."""
    if text.lower() == values.LATEST:
        return values.LATEST
    if text.isascii() and text.isdigit() and (revision := int(text[:30])) > 0:
        return revision
    try:
        if not re.fullmatch("[+-]?[0-9]*", text):
            return values.read_timestamp(text)
    except ValueError:
        pass
    raise ValueError(
        f"is {text!r}; it must be a revision, which is a whole number of at least 1, a time in ISO 8601, such as "
        "2026-11-01T00:00:00Z, or latest"
    )


class MomentReadOptions(BucketReadOptions, section=SECTION):
    """What a batch reads of a KV bucket, possibly at one moment."""

    as_of: int | datetime | str | None = option(
        read_moment,
        "batch: read what the bucket held at one moment: at a revision, at a time in ISO 8601, or at `latest`, a "
        "revision reached during the read; [what the bucket keeps](buckets.md#one-moment) limits it",
    )
