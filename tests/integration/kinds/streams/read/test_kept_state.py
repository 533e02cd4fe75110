"""What an earlier version has kept is gone on with: the checkpoint of a query, and the notes in the state bucket.

`kept/checkpoint-and-store.tar.gz` is of a query from the stream OLD_FROM to OLD_TO, with the store of its server. It
has ended its fourth micro-batch, of the 60 messages that there were; ten more have come since.
"""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from tests.integration.support import finish, nats
from tests.nats_py import NatsPy
from tests.servers import ServerFactory

KEPT = Path(__file__).parents[3] / "kept" / "checkpoint-and-store.tar.gz"


def position_in(offsets: Path) -> dict[str, Any]:
    position: dict[str, Any] = json.loads(offsets.read_text().splitlines()[-1])["OLD_FROM"]
    return position


def notes_of(client: NatsPy) -> list[dict[str, Any]]:
    """What the state bucket says of each partition."""
    found = {message.subject: json.loads(message.payload) for message in client.read_stream("KV_SPARK_NATS")}
    return [each for each in found.values() if "batch" in each]


def test_a_checkpoint_and_notes_of_an_earlier_version_are_gone_on_with(
    spark: SparkSession, server_factory: ServerFactory, tmp_path: Path
) -> None:
    with tarfile.open(KEPT) as kept:
        kept.extractall(tmp_path, filter="data")
    checkpoint = tmp_path / "checkpoint"
    (checkpoint / "commits" / "3").unlink()  # so that the last micro-batch is run again, which has its notes
    server = server_factory(store_dir=tmp_path / "store")
    with NatsPy(server.url) as client:
        noted = notes_of(client)
        frame = nats(spark.readStream, server, stream="OLD_FROM", minPartitions=2, maxOffsetsPerTrigger=20).load()
        frame = frame.selectExpr("replace(subject, 'from', 'to') AS subject", "payload")
        writer = nats(frame.writeStream, server, stream="OLD_TO", checkpointLocation=str(checkpoint))
        before = position_in(checkpoint / "offsets" / "3")
        finish(writer.trigger(availableNow=True).start())
        assert sorted(int(message.payload) for message in client.read_stream("OLD_TO")) == list(range(70))
        after = position_in(checkpoint / "offsets" / "4")
        assert (after["created"], after["since"], after["next"]) == (before["created"], before["next"], 71)
        assert list(after) == [*("first" if name == "from" else name for name in before), "before"]
        added = {"process", "id_lifetime_ms", "noted"}
        assert {frozenset(each) for each in notes_of(client)} == {frozenset(each) | added for each in noted}
