"""The comparison of what was sent with what came back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spark_nats.demo.orders import Revenue

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def differing_orders(sent: DataFrame, read: DataFrame) -> list[str]:
    """Compare messages one by one, by their sequence.

    Args:
        sent: the published messages: columns ``sequence``, ``subject``, ``payload``, ``priority``.
        read: the messages that were read, with the columns of the source.

    Returns:
        What differs; empty when every message was read exactly once, in its place and unchanged.
    """
    from pyspark.sql import functions as sf

    def digest(frame: DataFrame, priority: Any, name: str) -> DataFrame:
        return frame.select("sequence", sf.xxhash64("subject", sf.col("payload").cast("binary"), priority).alias(name))

    copies = digest(read, sf.col("headers")["Priority"][0], "read").groupBy("sequence")
    both = digest(sent, sf.col("priority"), "sent").join(
        copies.agg(sf.count("*").alias("copies"), sf.min("read").alias("read")), "sequence", "full"
    )
    wrong = {
        "lost": sf.col("read").isNull(),
        "never sent": sf.col("sent").isNull(),
        "read more than once": sf.col("copies") > 1,
        "changed": sf.col("sent") != sf.col("read"),
    }
    columns = [f(sf.when(condition, sf.col("sequence"))) for condition in wrong.values() for f in (sf.count, sf.min)]
    (row,) = both.agg(*columns).collect()
    return [
        f"{row[2 * i]:,} {what}, the first at sequence {row[2 * i + 1]:,}" for i, what in enumerate(wrong) if row[2 * i]
    ]


def last_results(messages: DataFrame) -> dict[tuple[str, str], Revenue]:
    """Return the last result of each region and minute; ``messages`` are from the stream of results."""
    from pyspark.sql import functions as sf

    schema = "region STRING, minute STRING, orders BIGINT, express BIGINT, revenue DECIMAL(20, 2)"
    result = sf.from_json(sf.col("payload").cast("string"), schema)
    rows = (
        messages.select("sequence", result.alias("result"))
        .groupBy("result.region", "result.minute")
        .agg(sf.max_by("result", "sequence").alias("result"))
        .select("result.*")
        .collect()
    )
    return {
        (row.region, row.minute): Revenue(row.orders, row.express, int(row.revenue.scaleb(2)) if row.revenue else 0)
        for row in rows
    }


def differing_results(expected: dict[tuple[str, str], Revenue], found: dict[tuple[str, str], Revenue]) -> list[str]:
    """Return what differs between two sets of results; empty when they are equal."""
    differing = sorted(key for key in expected | found if expected.get(key) != found.get(key))
    if not differing:
        return []
    region, minute = differing[0]
    return [
        f"{len(differing):,} of {len(expected | found):,} results differ; the first is {region} at {minute}: "
        f"{found.get((region, minute), 'nothing')} instead of {expected.get((region, minute), 'nothing')}"
    ]
