"""What the tests with Spark share: queries in few words, and errors as their reader sees them."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from tests.nats_py import wait_until
from tests.servers import Server

ReaderOrWriter = TypeVar("ReaderOrWriter")

# As Python prints an exception; Spark hands the text on, inside its own.
_ERROR = re.compile(r"^spark_nats\.errors\.(\w+): (.+)$", re.MULTILINE)


def nats(builder: ReaderOrWriter, server: Server, **options: Any) -> ReaderOrWriter:
    """`spark.read`, `spark.readStream`, `df.write` or `df.writeStream`, set to a server with these options."""
    configured: Any = builder
    return configured.format("nats").options(**{"servers": server.url, **options})


def save(frame: DataFrame, server: Server, **options: Any) -> None:
    """Write a DataFrame to NATS."""
    nats(frame.write, server, **options).mode("append").save()


@contextmanager
def running(query: StreamingQuery) -> Iterator[StreamingQuery]:
    """Stop the query at the end of the block, and fail if it failed."""
    try:
        yield query
        failed = query.exception()
        assert failed is None, failed
    finally:
        query.stop()


def finish(query: StreamingQuery, timeout: int = 60) -> StreamingQuery:
    """Wait for the end of a query that ends by itself. Raises what made it fail."""
    with running(query):
        assert query.awaitTermination(timeout), f"the query still runs after {timeout} s"
    return query


def error_of(action: Callable[[], object]) -> str:
    """The one sentence of ours in the error that an action ends with, such as `OptionError: option ...`."""
    with pytest.raises(PySparkException) as raised:
        action()
    sentences = {f"{kind}: {text}" for kind, text in _ERROR.findall(str(raised.value))}
    assert len(sentences) == 1, f"not one sentence of ours but {sentences or 'none'} in: {raised.value}"
    return sentences.pop()


def monitoring(server: Server, page: str) -> dict[str, Any]:
    """A page of the server's monitoring, such as `varz` or `connz?subs=1`."""
    with urllib.request.urlopen(f"{server.monitoring_url}/{page}", timeout=5) as answer:
        decoded: dict[str, Any] = json.load(answer)
    return decoded


def wait_for_requests(server: Server, count: int) -> None:
    """Wait until the server has been asked so many things more."""
    before = monitoring(server, "varz")["in_msgs"]
    wait_until(lambda: monitoring(server, "varz")["in_msgs"] >= before + count, timeout=20)


def wait_for_subscriptions(server: Server, *subjects: str, count: int = 1) -> None:
    """Wait until there are so many subscriptions to each of these subjects or wildcards."""

    def known() -> bool:
        page = monitoring(server, "subsz?subs=1&limit=10000")
        listed = [entry["subject"] for entry in page.get("subscriptions_list") or []]
        return all(listed.count(subject) >= count for subject in subjects)

    wait_until(known, timeout=120)
