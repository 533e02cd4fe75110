"""What the pages of the documentation say of bad input: requests that are garbage, rows that cannot be sent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.integration.support import running, wait_for_subscriptions
from tests.nats_py import NatsPy, send_raw
from tests.pages import ROOT, blocks_of
from tests.servers import Server

pytestmark = pytest.mark.timeout(150)


def execute(page: str, words: str, server: Server, folder: Path, **names: Any) -> dict[str, Any]:
    """Run the block of a page in which these words are, and return its variables."""
    (code,) = [block.code for block in blocks_of(ROOT / "docs" / page) if words in block.code]
    code = code.replace('.format("nats")', f'.format("nats").option("servers", "{server.url}")')
    code = code.replace("/data/", f"{folder}/")
    exec(compile(code, page, "exec"), names)
    return names


@pytest.mark.long("docs/core.md")
def test_the_service_that_answers_requests_survives_those_that_are_bad(
    spark: SparkSession, nats_server: Server, nats_py: NatsPy, tmp_path: Path
) -> None:
    execute("core.md", "answers = (", nats_server, tmp_path, spark=spark)
    (query,) = spark.streams.active
    hint = b"send whole numbers, as [1, 2]"
    with running(query):
        wait_for_subscriptions(nats_server, "sum")
        replies = ("a.*", "_INBOX.a..b", "_INBOX.>", "$JS.API.STREAM.NAMES")
        send_raw(nats_server.url, b"".join(b"PUB sum %b 3\r\n[1]\r\n" % reply.encode() for reply in replies))

        def ask(payload: bytes) -> bytes:
            async def request() -> bytes:
                message = await nats_py.nats.request("sum", payload, timeout=60)
                return bytes(message.data)

            return bytes(nats_py.run(request(), 90))

        assert ask(b"[1, 2, 39]") == b"42"
        for bad in (b"garbage", b"", b"\xff\xfe", b"[1, null]", b'{"a": 1}', b"[9223372036854775807, 1]"):
            assert ask(bad) == hint
        assert ask(b"[1, 2, 39]") == b"42"
