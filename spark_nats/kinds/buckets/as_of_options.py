"""The option ``asOf``; :mod:`.as_of` reads what it names."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from spark_nats.kinds.buckets.options import SECTION, BucketReadOptions
from spark_nats.options import values
from spark_nats.options.option import option


@dataclass(frozen=True, kw_only=True)
class MomentReadOptions(BucketReadOptions, section=SECTION):
    """What a batch reads of a KV bucket, which may be what it held at one moment."""

    as_of: int | datetime | str | None = option(
        values.read_moment,
        "batch: read what the bucket held at one moment: at a revision, at a time in ISO 8601, or at `latest`, the "
        "last revision when the read ends; [what the bucket keeps](buckets.md#one-moment) limits it",
    )
