"""How far queries are behind: of a query that runs, for its listeners, and from its checkpoint by `spark-nats lag`."""

from __future__ import annotations

import json
import os
import re
import time
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StringType, StructType

import spark_nats
from spark_nats.cli import main
from spark_nats.errors import OptionError
from spark_nats.lag import lag_of_progress
from tests.integration.commands.test_permissions import READ, hub_and_leaf, login, user, users
from tests.integration.forwarding import ForwardedApi
from tests.integration.support import Query, nats, running, sentence_of, stream_reader, uncoded, write
from tests.nats_py import NatsPy, wait_until
from tests.servers import OLDER_BINARY, Server, ServerFactory

pytestmark = pytest.mark.usefixtures("in_a_hurry")

KEY = StructType().add("key", StringType())


def write_checkpoint(
    folder: Path,
    *offsets: dict[str, Any] | list[str],
    ended: int | None = None,
    version: str = "v1",
    began: float | None = None,
) -> Path:
    """A checkpoint as Spark 4.3 writes it: micro-batches with these ends, of which so many have ended.

    An end is an offset, or the lines of several sources.
    """
    for log in ("offsets", "commits"):
        (folder / log).mkdir(parents=True)
    (folder / "metadata").write_text('{"id":"86cc2d8b-88d3-48b9-9936-f6a0f4dd2f5e"}')
    for i, offset in enumerate(offsets):
        at = int(((time.time() if began is None else began) - len(offsets) + i) * 1000)
        (folder / f"offsets/{i}").write_text(
            f'{version}\n{{"batchWatermarkMs":0,"batchTimestampMs":{at},"conf":{{}}}}\n'
            + "\n".join([json.dumps(offset)] if isinstance(offset, dict) else offset)
        )
        (folder / f"offsets/.{i}.crc").write_bytes(b"crc")
        if i < (len(offsets) if ended is None else ended):
            (folder / f"commits/{i}").write_text('v1\n{"nextBatchWatermarkMs":0}')
    return folder


def position(client: NatsPy, stream: str, following: int, **more: int) -> dict[str, Any]:
    """The offset of a query that goes on with a sequence."""
    return {stream: {"created": client.stream_info(stream)["created"], "next": following, **more}}


def lag(server: Server | str, checkpoint: Path | str, capsys: Any, *arguments: str) -> tuple[int, dict[str, Any]]:
    """The status of `spark-nats lag`, and of its report the only stream."""
    url = server if isinstance(server, str) else server.url
    status = main(["lag", "--checkpoint", str(checkpoint), "--servers", url, "--json", *arguments])
    (stream,) = json.loads(capsys.readouterr().out)["streams"]
    return status, stream


# With Spark


def test_the_lag_of_a_query_is_known_while_it_runs_and_from_its_checkpoint(
    spark: SparkSession,
    nats_server: Server,
    nats_py: NatsPy,
    unique: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    nats_py.create_stream(unique)
    nats_py.publish_acked([(f"{unique}.{i % 2}", b"x") for i in range(100)])
    told: list[spark_nats.QueryLag] = []

    def tell(each: spark_nats.QueryLag) -> None:
        if each.query == unique:  # the last progress of a query before may come as late as this
            told.append(each)

    listener = spark_nats.LagListener(tell, {"servers": nats_server.url})
    spark.streams.addListener(listener)
    frame = nats(
        spark.readStream, nats_server, stream=unique, startingOffsets="earliest", maxOffsetsPerTrigger=30
    ).load()
    writer = frame.writeStream.format("noop").queryName(unique).option("checkpointLocation", str(tmp_path / "c"))
    try:
        with running(writer.trigger(processingTime="0 seconds").start()) as query:
            wait_until(lambda: len(told) >= 4)
            done = spark_nats.progress(query)
            assert done is not None
            assert (done.query, done.behind) == (unique, 0)
            assert done.batch >= 3  # an idle query reports its next micro-batch after ten seconds
            assert done.streams[0].next == 101
    finally:
        spark.streams.removeListener(listener)
    assert [(each.batch, each.behind) for each in told[:4]] == [(0, 70), (1, 40), (2, 10), (3, 0)]
    assert [each.streams[0].oldest is None for each in told[:4]] == [False, False, False, True]
    assert told[0].streams[0].rate is not None

    nats_py.publish_acked([(f"{unique}.{i % 2}", b"x") for i in range(10)])  # the query has ended
    later = spark_nats.progress(query, {"servers": nats_server.url})
    assert later is not None
    assert later.behind == 10
    assert later.at > done.at
    only_some = spark_nats.progress(query, {"servers": nats_server.url, "subject": f"{unique}.1"})
    assert only_some is not None
    assert only_some.behind == 5

    status, stream = lag(nats_server, tmp_path / "c", capsys)
    assert (status, stream["next"], stream["end"], stream["behind"]) == (0, 101, 111, 10)
    assert stream["rate"] > 0
    assert stream["oldest"]
    assert main(["lag", "--checkpoint", str(tmp_path / "c"), "--servers", nats_server.url]) == 0
    shown = capsys.readouterr().out
    assert f"query       {query.id}" in shown
    assert "last ended  micro-batch 3" in shown
    (row,) = [line.split() for line in shown.splitlines() if line.startswith(unique)]
    assert row[1:4] == ["100", "110", "10"]


@pytest.mark.long("spark_nats/commands/checkpoints.py", "spark_nats/lag.py")
def test_a_checkpoint_says_of_each_source_what_the_progress_says(
    spark: SparkSession,
    nats_server: Server,
    nats_py: NatsPy,
    unique: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """With Spark's second format of offsets, which sources with names have, and where a DataFrame is used twice."""
    names = {"payments": f"{unique}_P", "orders": f"{unique}_O"}
    for stream in names.values():
        nats_py.create_stream(stream)
        nats_py.store(f"{stream}.x", [b"x"] * 20)

    def frame(stream: str, name: str = "") -> DataFrame:
        reader = spark.readStream.name(name) if name else spark.readStream
        return nats(reader, nats_server, stream=stream, startingOffsets="earliest").load()

    def progress_of(rows: DataFrame, folder: str) -> dict[str, int]:
        writer = rows.writeStream.format("noop").option("checkpointLocation", str(tmp_path / folder))
        with running(writer.trigger(availableNow=True).start()) as query:
            assert query.awaitTermination(60)
            for stream in names.values():
                nats_py.store(f"{stream}.x", [b"x"] * 5)
            now = spark_nats.progress(query, {"servers": nats_server.url})
            assert now is not None
            return {f'source="{each.source}",stream="{each.stream}"': each.behind for each in now.streams}

    once = frame(names["orders"])
    told = progress_of(once.union(once), "twice")
    assert {of: int(behind) for of, behind in gauges(nats_server, tmp_path / "twice", capsys).items()} == told
    assert list(told.values()) == [5]

    spark.conf.set("spark.sql.streaming.queryEvolution.enableSourceEvolution", "true")
    try:
        rows = frame(names["payments"], "payments").union(frame(names["orders"], "orders"))
        told = progress_of(rows, "named")
    finally:
        spark.conf.unset("spark.sql.streaming.queryEvolution.enableSourceEvolution")
    assert (tmp_path / "named/offsets/0").read_text().startswith("v2\n")
    named = {f'source="{name}",stream="{stream}"': "5" for name, stream in sorted(names.items())}
    assert gauges(nats_server, tmp_path / "named", capsys) == named
    assert sorted(told.values()) == [5, 5]


# From a checkpoint


def test_a_query_of_which_no_micro_batch_has_ended_is_where_it_begins(
    nats_server: Server, nats_py: NatsPy, unique: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nats_py.create_stream(unique)
    nats_py.store(f"{unique}.x", [b"x"] * 20)
    offset = position(nats_py, unique, 11, **{"since": 6, "first": 6})
    status, stream = lag(nats_server, write_checkpoint(tmp_path / "c", offset, ended=0), capsys)
    assert (status, stream["next"], stream["behind"]) == (0, 6, 15)
    assert main(["lag", "--checkpoint", str(tmp_path / "c"), "--servers", nats_server.url]) == 0
    shown = capsys.readouterr().out
    assert "last ended  none" in shown
    assert "under way   micro-batch 0, since" in shown


def test_a_query_whose_first_micro_batch_is_under_way_has_lost_nothing(
    nats_server: Server, nats_py: NatsPy, unique: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What its offset tells of the history is about its end, and not about where it begins."""
    nats_py.create_stream(unique)
    nats_py.store(f"{unique}.x", [b"x"] * 5)
    query = Query(stream_reader(nats_server, stream=unique))
    nats_py.store(f"{unique}.x", [b"x"] * 5)
    end = query.reader.latestOffset(query.offset, query.reader.getDefaultReadLimit())
    _, stream = lag(nats_server, write_checkpoint(tmp_path / "c", end, ended=0), capsys)
    assert (stream["next"], stream["behind"], stream["problem"]) == (6, 5, "")


def test_a_micro_batch_that_is_under_way_is_still_to_be_read(
    nats_server: Server, nats_py: NatsPy, unique: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nats_py.create_stream(unique)
    nats_py.store(f"{unique}.x", [b"x"] * 20)
    ends = [position(nats_py, unique, following) for following in (6, 11, 21)]
    checkpoint = write_checkpoint(tmp_path / "c", *ends, ended=2)
    _, stream = lag(nats_server, checkpoint, capsys)
    assert (stream["next"], stream["end"], stream["behind"]) == (11, 21, 10)
    _, stream = lag(nats_server, f"file:{checkpoint}", capsys)  # as Hadoop writes it
    assert stream["behind"] == 10


def test_messages_and_not_sequences_are_counted_where_some_are_gone(
    nats_server: Server, nats_py: NatsPy, unique: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nats_py.create_stream(unique)
    nats_py.publish_acked([(f"{unique}.{i % 4}", b"x") for i in range(20)])
    for sequence in (8, 9, 10):
        nats_py.delete_message(unique, sequence)
    checkpoint = write_checkpoint(tmp_path / "c", position(nats_py, unique, 6))
    _, stream = lag(nats_server, checkpoint, capsys)
    assert (stream["end"], stream["behind"]) == (21, 12)
    _, stream = lag(nats_server, checkpoint, capsys, "--subject", f"{unique}.0,{unique}.1")
    assert (stream["end"], stream["behind"]) == (19, 5)  # 6, 13, 14, 17 and 18
    wait_until(lambda: not nats_py.consumers(unique))


def test_a_query_that_waits_for_more_is_not_said_to_catch_up(
    nats_server: Server, nats_py: NatsPy, unique: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nats_py.create_stream(unique)
    nats_py.store(f"{unique}.x", [b"x"] * 20)
    checkpoint = write_checkpoint(tmp_path / "c", position(nats_py, unique, 6, **{"since": 1, "first": 1}))
    _, stream = lag(nats_server, checkpoint, capsys)
    assert (stream["behind"], stream["waits_for"]) == (15, None)
    assert stream["catch_up"] is not None
    for least, catches_up in ((15, True), (16, False)):
        _, stream = lag(nats_server, checkpoint, capsys, "--minOffsetsPerTrigger", str(least))
        assert (stream["behind"], stream["waits_for"], stream["catch_up"] is not None) == (15, least, catches_up)


def test_a_query_that_cannot_go_on_without_a_loss_ends_with_the_status_1(
    nats_server: Server, nats_py: NatsPy, unique: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nats_py.create_stream(unique)
    nats_py.store(f"{unique}.x", [b"x"] * 20)
    checkpoint = write_checkpoint(tmp_path / "c", position(nats_py, unique, 6))
    nats_py.purge_stream(unique, seq=11)
    status, stream = lag(nats_server, checkpoint, capsys)
    assert (status, stream["behind"]) == (1, 10)
    assert "begins at sequence 11" in stream["problem"]
    nats_py.purge_stream(unique)  # the rest, too: nothing unread is left, but the end is not where the query is
    status, stream = lag(nats_server, checkpoint, capsys)
    assert (status, stream["behind"], stream["end"]) == (1, 0, 21)
    assert "begins at sequence 21" in stream["problem"]
    beyond = write_checkpoint(tmp_path / "beyond", position(nats_py, unique, 31))
    status, stream = lag(nats_server, beyond, capsys)
    assert status == 1
    assert "ends at sequence 20" in stream["problem"]
    nats_py.delete_stream(unique)
    status, stream = lag(nats_server, checkpoint, capsys)
    assert (status, stream["problem"]) == (1, "the stream does not exist any more")
    nats_py.create_stream(unique)
    status, stream = lag(nats_server, checkpoint, capsys)
    assert status == 1
    assert "was deleted and created again" in stream["problem"]


def test_messages_that_the_stream_is_about_to_remove_unread_are_warned_of(
    nats_server: Server, nats_py: NatsPy, unique: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nats_py.create_stream(unique, max_age=60 * 10**9)
    nats_py.store(f"{unique}.x", [b"x"] * 10)
    checkpoint = write_checkpoint(tmp_path / "c", position(nats_py, unique, 6))
    api = ForwardedApi(nats_py)
    old = datetime.now(UTC) - timedelta(seconds=45)

    def aged(answer: dict[str, Any]) -> dict[str, Any]:
        answer["message"]["time"] = f"{old:%Y-%m-%dT%H:%M:%S.%f}Z"
        return answer

    arguments = ["lag", "--checkpoint", str(checkpoint), "--servers", nats_server.url]
    assert main(arguments) == 0
    assert "max_age" not in capsys.readouterr().out
    api.answers["STREAM.MSG.GET"] = aged
    with api.serving():
        assert main([*arguments, "--apiPrefix", ForwardedApi.PREFIX]) == 0
        shown = capsys.readouterr().out
    (line,) = [line for line in shown.splitlines() if line.startswith("warning: ")]
    assert line.startswith(f"warning: {unique}: the oldest unread message is ")
    assert line.endswith(" s old, and the stream removes messages after 60 s (max_age)")


def gone_from_the_option(client: NatsPy, unique: str, folder: Path) -> tuple[Path, str, str]:
    """The checkpoint of a query that has read two streams, of which it now reads only one, and the other is purged."""
    left, shop = f"{unique}_LEFT", f"{unique}_SHOP"
    for stream in (left, shop):
        client.create_stream(stream)
        client.store(f"{stream}.x", [b"x"] * 20)
    ends = [{**position(client, left, 6), **position(client, shop, following)} for following in (6, 11, 16)]
    client.purge_stream(left, seq=11)
    return write_checkpoint(folder, *ends), left, shop


def test_a_stream_that_the_query_does_not_read_any_more_is_no_problem_if_the_others_are_named(
    nats_server: Server, nats_py: NatsPy, unique: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The offset keeps it at its place, as it does with a stream where nothing is new."""
    checkpoint, left, shop = gone_from_the_option(nats_py, unique, tmp_path / "c")
    arguments = ["lag", "--checkpoint", str(checkpoint), "--servers", nats_server.url]
    assert main(arguments) == 1
    assert f"{left}: the stream begins at sequence 11" in (shown := capsys.readouterr().out)
    assert "if the query does not read it any more, name the streams that it reads (--stream)" in shown

    assert main([*arguments, "--stream", shop]) == 0
    shown = capsys.readouterr().out
    assert f"left out, because --stream does not name them: {left}\n" in shown
    assert "begins at" not in shown
    status, stream = lag(nats_server, checkpoint, capsys, "--stream", shop)
    assert (status, stream["stream"], stream["behind"]) == (0, shop, 5)
    assert main([*arguments, "--stream", shop, "--prometheus"]) == 0
    shown = capsys.readouterr().out
    assert "spark_nats_lag_blocked{" in shown
    assert left not in shown

    assert main([*arguments, "--stream", f"{left},{shop}"]) == 1
    assert main([*arguments, "--stream", f"{unique}_MISSPELT"]) == 1  # as without it


def test_a_query_that_reads_fewer_streams_keeps_the_others_in_its_offset_and_names_what_it_reads_to_progress(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    left, shop = f"{unique}_LEFT", f"{unique}_SHOP"
    for stream in (left, shop):
        nats_py.create_stream(stream)
        nats_py.store(f"{stream}.x", [b"x"] * 20)
    both = Query(stream_reader(nats_server, stream=f"{left},{shop}", startingOffsets="earliest"))
    assert len(both.rows(40)) == 40
    nats_py.store(f"{left}.x", [b"x"] * 20)
    nats_py.purge_stream(left)
    nats_py.store(f"{shop}.x", [b"x"] * 5)
    reader = stream_reader(nats_server, stream=shop)
    end = reader.latestOffset(both.offset, reader.getDefaultReadLimit())
    assert end[left] == both.offset[left]
    document = {
        "id": "1",
        "timestamp": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
        "batchId": 1,
        "sources": [{"startOffset": both.offset, "endOffset": end, "latestOffset": end}],
    }
    options = {"servers": nats_server.url}
    found = lag_of_progress([document], options)
    assert found is not None
    assert [(each.stream, bool(each.problem)) for each in found.streams] == [(left, True), (shop, False)]
    found = lag_of_progress([document], {**options, "stream": shop})
    assert found is not None
    assert [(each.stream, bool(each.problem)) for each in found.streams] == [(shop, False)]


def aged(checkpoint: Path, seconds: float) -> Path:
    """A checkpoint whose micro-batches ended so long ago as they are begun."""
    for i, file in enumerate(files := sorted((checkpoint / "commits").iterdir())):
        at = time.time() - seconds - len(files) + i + 0.5
        os.utime(file, (at, at))
    return checkpoint


@pytest.mark.parametrize("ended", [3, 4])
def test_a_query_that_does_not_run_is_not_said_to_catch_up(
    nats_server: Server, nats_py: NatsPy, unique: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], ended: int
) -> None:
    """Also where it was stopped in the middle of a micro-batch, as most are."""
    nats_py.create_stream(unique)
    nats_py.store(f"{unique}.x", [b"x"] * 40)
    ends = [position(nats_py, unique, following) for following in (6, 11, 16, 21)]
    for seconds, is_known in ((360, False), (30, True)):
        began = time.time() - seconds
        checkpoint = aged(write_checkpoint(tmp_path / f"{seconds}", *ends, began=began, ended=ended), seconds)
        status, stream = lag(nats_server, checkpoint, capsys)
        assert (status, stream["behind"]) == (0, 40 - 5 * ended)
        assert [stream[name] is not None for name in ("rate", "catch_up")] == [is_known, is_known]
        arguments = ["lag", "--checkpoint", str(checkpoint), "--servers", nats_server.url]
        assert main(arguments) == 0
        shown = capsys.readouterr().out
        (row,) = [line.split() for line in shown.splitlines() if line.startswith(unique)]
        assert (row[-1] == "?", row[-3] == "?") == (not is_known, not is_known)
        since = (
            f"{datetime.fromtimestamp((checkpoint / f'commits/{ended - 1}').stat().st_mtime, UTC):%Y-%m-%d %H:%M:%S}Z"
        )
        said = f"no micro-batch has ended since {since}, so it is not known how fast the query reads; does it run?"
        assert (said in shown) is not is_known
        assert main([*arguments, "--prometheus"]) == 0
        assert ("spark_nats_lag_catch_up_seconds{" in capsys.readouterr().out) is is_known


def test_json_says_when_the_last_micro_batch_ended(
    nats_server: Server, nats_py: NatsPy, unique: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nats_py.create_stream(unique)
    here = position(nats_py, unique, 1)

    def ended(checkpoint: Path) -> tuple[str | None, bool]:
        assert main(["lag", "--checkpoint", str(checkpoint), "--servers", nats_server.url, "--json"]) == 0
        document = json.loads(capsys.readouterr().out)
        return document["ended"], document["is_silent"]

    assert ended(write_checkpoint(tmp_path / "none", here, began=time.time() - 360, ended=0)) == (None, False)
    checkpoint = aged(write_checkpoint(tmp_path / "c", here, began=time.time() - 360), 360)
    at = datetime.fromtimestamp((checkpoint / "commits/0").stat().st_mtime, UTC)
    assert ended(checkpoint) == (at.isoformat(), True)


def gauges(server: Server, checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """What `spark-nats lag --prometheus` says of how much is to be read, by the labels of source and stream."""
    assert main(["lag", "--checkpoint", str(checkpoint), "--servers", server.url, "--prometheus"]) == 0
    lines = re.findall(r'lag_messages\{query="[^"]*",(.*?)\} (\d+)', capsys.readouterr().out)
    return dict(lines)


def test_the_second_format_of_offsets_has_a_line_for_each_source_in_any_order(
    nats_server: Server, nats_py: NatsPy, unique: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As Spark 4.2 and 4.3 write it with `spark.sql.streaming.offsetLog.formatVersion` 2, or where sources have names.

    The commits of a query with state have a second format too.
    """
    streams = [f"{unique}_{letter}" for letter in "ABCDEFGHIJK"]
    for stream in streams:
        nats_py.create_stream(stream)
        nats_py.store(f"{stream}.x", [b"x"] * 20)
    ends = {stream: json.dumps(position(nats_py, stream, 10 + i)) for i, stream in enumerate(streams)}
    first, second = streams[:2]

    numbered = [f"{i}:{ends[stream]}" for i, stream in enumerate(streams)][::-1]
    checkpoint = write_checkpoint(tmp_path / "numbered", numbered, numbered, version="v2")
    (checkpoint / "commits/1").write_text('v2\n{"nextBatchWatermarkMs":0,"stateUniqueIds":{"0":[["fbfe"]]}}')
    found = gauges(nats_server, checkpoint, capsys)
    assert list(found.items()) == [(f'source="{i}",stream="{stream}"', str(11 - i)) for i, stream in enumerate(streams)]

    named = [f"payments:{ends[second]}", f"orders:{ends[first]}"]
    checkpoint = write_checkpoint(tmp_path / "named", named, version="v2")
    assert gauges(nats_server, checkpoint, capsys) == {
        f'source="orders",stream="{first}"': "11",
        f'source="payments",stream="{second}"': "10",
    }
    assert main(["lag", "--checkpoint", str(checkpoint), "--servers", nats_server.url]) == 0
    assert f"\n{first} (orders) " in capsys.readouterr().out

    others = [f"1:{ends[first]}", "0:10"]  # a rate, and a stream
    checkpoint = write_checkpoint(tmp_path / "others", others, version="v2")
    assert gauges(nats_server, checkpoint, capsys) == {f'source="1",stream="{first}"': "11"}


def test_a_stream_that_is_read_for_two_uses_counts_once(
    nats_server: Server, nats_py: NatsPy, unique: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As `s.union(s)`: Spark writes a line for each use; in its second format one, with the number of the last use."""
    for stream in (unique, f"{unique}_OTHER"):
        nats_py.create_stream(stream)
        nats_py.store(f"{stream}.x", [b"x"] * 20)
    at, later = (json.dumps(position(nats_py, unique, following)) for following in (11, 16))
    other = json.dumps(position(nats_py, f"{unique}_OTHER", 1))
    once = {f'source="0",stream="{unique}"': "5"}

    uses = write_checkpoint(tmp_path / "uses", [at, at], [later, later])
    assert gauges(nats_server, uses, capsys) == once
    assert gauges(nats_server, write_checkpoint(tmp_path / "v2", [f"1:{later}"], version="v2"), capsys) == once
    uses = write_checkpoint(tmp_path / "more", [at, at, other], [later, later, other])
    assert gauges(nats_server, uses, capsys) == {**once, f'source="1",stream="{unique}_OTHER"': "20"}
    sources = write_checkpoint(tmp_path / "sources", [at, later], [later, later])
    assert gauges(nats_server, sources, capsys) == {**once, f'source="1",stream="{unique}"': "5"}
    sources = write_checkpoint(tmp_path / "v2 sources", [f"0:{later}", f"1:{later}"], version="v2")
    assert gauges(nats_server, sources, capsys) == {**once, f'source="1",stream="{unique}"': "5"}


def test_what_a_work_queue_has_removed_is_no_loss(
    nats_server: Server, nats_py: NatsPy, unique: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nats_py.create_stream(unique, retention="workqueue")
    nats_py.store(f"{unique}.x", [b"x"] * 20)
    checkpoint = write_checkpoint(tmp_path / "c", position(nats_py, unique, 6))
    nats_py.purge_stream(unique, seq=11)
    nats_py.delete_message(unique, 15)
    status, stream = lag(nats_server, checkpoint, capsys)
    assert (status, stream["problem"], stream["end"], stream["behind"]) == (0, "", 21, 9)


def test_the_query_of_a_bucket_is_behind_by_the_revisions_that_are_kept(
    nats_server: Server, nats_py: NatsPy, unique: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nats_py.create_stream(f"KV_{unique}", [f"$KV.{unique}.>"], max_msgs_per_subject=1)
    query = Query(stream_reader(nats_server, KEY, bucket=unique, startingOffsets="earliest"))

    def put(*keys: str) -> None:
        nats_py.publish_acked([(f"$KV.{unique}.{key}", b"x") for key in keys])

    put("eu.a", "eu.b", "us.a")
    assert len(query.rows(3)) == 3
    put("eu.a", "eu.b", "us.a", "us.b", "eu.a", "eu.a")  # what the query has read is gone, and some that it has not
    checkpoint = write_checkpoint(tmp_path / "c", query.offset)
    status, stream = lag(nats_server, checkpoint, capsys)
    assert (status, stream["problem"], stream["next"], stream["behind"]) == (0, "", 4, 4)
    status, stream = lag(nats_server, checkpoint, capsys, "--keys", "eu.*")
    assert (status, stream["behind"]) == (0, 2)
    assert len(query.rows(4)) == 4
    status, stream = lag(nats_server, write_checkpoint(tmp_path / "d", query.offset), capsys, "--keys", "eu.*")
    assert (status, stream["behind"]) == (0, 0)
    document = {
        "id": "1",
        "timestamp": "2026-11-22T05:00:00.000Z",
        "batchId": 0,
        "sources": [{"startOffset": None, "endOffset": query.offset, "latestOffset": query.offset}],
    }
    put("eu.c", "us.c", "us.d")
    options = {"servers": nats_server.url, "bucket": unique, "keys": "us.>"}
    found = lag_of_progress([document], options)
    assert found is not None
    assert found.behind == 2


def test_the_query_of_an_object_store_has_lost_no_object_that_was_replaced(
    nats_server: Server, nats_py: NatsPy, unique: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nats_py.create_stream(f"OBJ_{unique}", [f"$O.{unique}.C.>", f"$O.{unique}.M.>"], allow_rollup_hdrs=True)
    query = Query(stream_reader(nats_server, objectStore=unique, startingOffsets="earliest"))
    put = partial(write, nats_server, objectStore=unique)
    put(pa.table({"name": ["a"], "content": [b"1"]}))
    assert len(query.rows(1)) == 1
    for content in (b"2", b"3"):
        put(pa.table({"name": ["a", "b"], "content": [content] * 2}))
    status, stream = lag(nats_server, write_checkpoint(tmp_path / "c", query.offset), capsys)
    assert (status, stream["problem"]) == (0, "")
    assert len(query.rows(2)) == 2


@pytest.mark.parametrize("place", ["newest", "2.11", "2.11 behind a newer leaf"])
def test_filters_of_different_depths_are_counted_exactly(
    server_factory: ServerFactory, place: str, unique: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A consumer of nats-server 2.11 with these filters counts others."""
    domain = ["--domain", "hub"] if "leaf" in place else []
    if domain:
        owner, server = hub_and_leaf(server_factory, hub_binary=OLDER_BINARY)
    else:
        owner = server = server_factory(binary=OLDER_BINARY if place == "2.11" else None)
    with NatsPy(owner.url) as client:
        client.create_stream(unique, [f"{unique}.>"])
        client.publish_acked([(f"{unique}.{leaf}", b"") for leaf in ("a", "c.d", "b", "c.d", "b", "x.y", "b")])
        checkpoint = write_checkpoint(tmp_path / "c", position(client, unique, 1))
        _, stream = lag(server, checkpoint, capsys, "--subject", f"{unique}.*,{unique}.c.*", *domain)
        assert stream["behind"] == 6
        wait_until(lambda: not client.consumers(unique))


def test_keys_and_subjects_are_each_for_their_own(
    nats_server: Server, nats_py: NatsPy, unique: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nats_py.create_stream(unique)
    nats_py.create_stream(f"KV_{unique}", [f"$KV.{unique}.>"], max_msgs_per_subject=1)
    nats_py.publish_acked([(f"{unique}.{i % 4}", b"x") for i in range(20)])
    nats_py.publish_acked([(f"$KV.{unique}.{i % 2}", b"x") for i in range(20)])
    both = {**position(nats_py, unique, 1), **position(nats_py, f"KV_{unique}", 1)}
    checkpoint = write_checkpoint(tmp_path / "c", both)
    arguments = ["--checkpoint", str(checkpoint), "--servers", nats_server.url, "--json"]
    assert main(["lag", *arguments, "--subject", f"{unique}.1", "--keys", "1"]) == 0
    streams = json.loads(capsys.readouterr().out)["streams"]
    assert {stream["stream"]: stream["behind"] for stream in streams} == {unique: 5, f"KV_{unique}": 1}


def test_whoever_may_read_a_stream_may_ask_how_far_its_query_is_behind(
    server_factory: ServerFactory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    watcher = [READ[0], READ[-1]]
    server = server_factory(users(user("reader", READ), user("watcher", watcher)))
    with NatsPy(server.url, user="admin", password="pw") as client:
        client.create_stream("ORDERS", ["orders.>"])
        client.store("orders.x", [b"x"] * 20)
        client.delete_message("ORDERS", 8)
        checkpoint = write_checkpoint(tmp_path / "c", position(client, "ORDERS", 6))
    arguments = [text for name, value in login("reader").items() for text in (f"--{name}", value)]
    assert lag(server, checkpoint, capsys, *arguments)[1]["behind"] == 14
    arguments[1] = "watcher"  # who cannot have the server count
    assert lag(server, checkpoint, capsys, *arguments)[1]["behind"] == 15


# What can be wrong


def test_what_is_no_checkpoint_is_said_in_a_sentence(
    nats_server: Server, nats_py: NatsPy, unique: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def said(location: Path | str, status: int = 3) -> str:
        assert main(["lag", "--checkpoint", str(location), "--servers", nats_server.url]) == status
        (line,) = capsys.readouterr().err.splitlines()
        return uncoded(line.removeprefix("spark-nats: "))

    nats_py.create_stream(unique)
    here = position(nats_py, unique, 1)
    assert said("/nowhere") == "'/nowhere' is not a directory, so it is not a checkpoint"
    assert "is not a checkpoint, or belongs to a query that has never begun" in said(tmp_path)
    assert "cannot be read: " in said("gopher://host/path")
    assert "cannot be read: Could not determine home directory" in said("~nobody-of-that-name/checkpoint")
    with pytest.MonkeyPatch.context() as patch:
        (tmp_path / "gone").mkdir()
        patch.chdir(tmp_path / "gone")
        (tmp_path / "gone").rmdir()
        assert "the checkpoint 'here' cannot be read: [Errno 2] No such file or directory" in said("here")
    for secret in ("s3://AKIA:s3cret@buck et/x", "s3://AKIA:s3cret@bucket:x/x", "gs://a@b?key=s3cret"):
        assert "s3cret" not in said(secret)
    assert "has offsets of version 'v9'" in said(write_checkpoint(tmp_path / "v9", here, version="v9"))
    assert "reads no NATS stream" in said(write_checkpoint(tmp_path / "core", {"epoch": "x", "messages": 1}))
    damaged = write_checkpoint(tmp_path / "damaged", here)
    (damaged / "offsets/0").write_text("v1\n{")
    assert "'offsets/0' of the checkpoint" in said(damaged, 1)
    missing = write_checkpoint(tmp_path / "missing", here, here)
    (missing / "offsets/1").unlink()
    assert "has no offsets for its last micro-batch, 1" in said(missing, 1)
    sound = write_checkpoint(tmp_path / "sound", here)
    assert main(["lag", "--checkpoint", str(sound), "--servers", "nats://127.0.0.1:1"]) == 3
    assert "no NATS server could be reached" in capsys.readouterr().err


def test_a_server_without_jetstream_is_no_loss(
    server_factory: ServerFactory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = server_factory(jetstream=False)
    checkpoint = write_checkpoint(tmp_path / "c", {"ORDERS": {"created": "2026-11-01T08:00:00Z", "next": 5}})
    arguments = ["lag", "--checkpoint", str(checkpoint), "--servers", server.url]
    assert main(arguments) == 3
    assert "JetStream" in capsys.readouterr().err
    assert main([*arguments, "--minOffsetsPerTrigger", "none"]) == 2


def test_a_listener_with_a_wrong_option_is_refused_at_once() -> None:
    with pytest.raises(OptionError, match="unknown option 'server'"):
        spark_nats.LagListener(options={"server": "x"})


def test_a_server_that_is_away_is_an_error_of_progress_with_options(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    nats_py.create_stream(unique)
    query = Query(stream_reader(nats_server, stream=unique, startingOffsets="earliest"))
    document = {
        "id": "1",
        "timestamp": "2026-11-22T05:00:00.000Z",
        "batchId": 0,
        "sources": [{"startOffset": None, "endOffset": query.offset, "latestOffset": query.offset}],
    }
    assert lag_of_progress([document], {"servers": nats_server.url}) is not None
    sentence = sentence_of(lambda: lag_of_progress([document], {"servers": "nats://127.0.0.1:1"}))
    assert "check the option 'servers'" in sentence


@pytest.mark.parametrize(("name", "following"), [("{}", 81.7), ("{}", True), ("{}", 0), ("a b", 1), ("*", 1), ("", 1)])
def test_a_damaged_checkpoint_is_told_in_a_line(
    nats_server: Server, nats_py: NatsPy, unique: str, tmp_path: Path, capsys: Any, name: str, following: Any
) -> None:
    nats_py.create_stream(unique)
    made = nats_py.stream_info(unique)["created"]
    where = write_checkpoint(tmp_path / "c", {name.format(unique): {"created": made, "next": following}})
    assert main(["lag", "--checkpoint", str(where), "--servers", nats_server.url]) == 1
    printed = capsys.readouterr()
    said = f"[NATS_CHECKPOINT_DAMAGED] 'offsets/0' of the checkpoint '{where}' is damaged: "
    assert printed.err.startswith(f"spark-nats: {said}")
    assert (printed.out, printed.err.count("\n")) == ("", 1)


@pytest.mark.parametrize(("name", "following"), [("{}", 2**64 - 1), ("{}_MISSING", 5)])
def test_a_place_that_the_stream_does_not_have_is_a_problem(
    nats_server: Server, nats_py: NatsPy, unique: str, tmp_path: Path, capsys: Any, name: str, following: int
) -> None:
    nats_py.create_stream(unique)
    made = nats_py.stream_info(unique)["created"]
    where = write_checkpoint(tmp_path / "c", {name.format(unique): {"created": made, "next": following}})
    status, stream = lag(nats_server, where, capsys)
    assert (status, bool(stream["problem"])) == (1, True)
