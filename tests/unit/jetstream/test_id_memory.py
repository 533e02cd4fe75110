"""What tells that a stream may have forgotten message ids; `tests/simulation/upheavals.py` asks servers."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from spark_nats.jetstream.id_memory import IdMemory, id_memory_of
from spark_nats.jetstream.streams import StreamInfo, parse_stream
from spark_nats.protocol.control import ServerInfo

NOTED = IdMemory(created="2026-11-27T10:00:00Z", process="NABC", lifetime=120.0)


def test_ids_are_known_while_the_same_process_holds_the_same_stream() -> None:
    assert NOTED.knows_all_ids(NOTED, 1.0)


def test_a_restored_stream_is_not_relied_on_though_its_server_goes_on() -> None:
    restored = NOTED._replace(created="2026-11-27T10:00:05Z")
    assert not NOTED.knows_all_ids(restored, 1.0)
    assert not NOTED.knows_ids_of_kept_messages(restored, 1.0)


@pytest.mark.parametrize("cluster", ["", "C"])
def test_a_stream_with_one_replica_may_have_been_moved_away_and_back_in_a_cluster(cluster: str) -> None:
    config = {"name": "Q", "subjects": [], "retention": "workqueue", "num_replicas": 1, "duplicate_window": 120 * 10**9}
    state = {"messages": 0, "bytes": 0, "first_seq": 2, "last_seq": 1}
    answer = {"created": "then", "config": config, "state": state, "cluster": {"leader": "n0"}}
    server = ServerInfo(server_name="n0", server_id="NABC", cluster=cluster)
    js = SimpleNamespace(connection=SimpleNamespace(info=server))
    memory = id_memory_of(js, parse_stream(answer, "Q"))  # type: ignore[arg-type]
    assert memory.knows_ids_of_kept_messages(memory, 30.0)
    assert memory.knows_all_ids(memory, 30.0) == (not cluster)


@pytest.mark.parametrize("deleted", [0, 1])
def test_a_process_that_starts_may_miss_ids_where_messages_in_between_were_removed(deleted: int) -> None:
    def info(since: str) -> StreamInfo:  # of a leader
        cluster = {"leader": "n1", "leader_since": since}
        state = {"messages": 3, "bytes": 9, "first_seq": 1, "last_seq": 3 + deleted, "num_deleted": deleted}
        config = {"name": "S", "subjects": [], "retention": "limits", "num_replicas": 3}
        config["duplicate_window"] = 120 * 10**9
        return parse_stream({"created": "then", "config": config, "state": state, "cluster": cluster}, "S")

    js = SimpleNamespace(connection=SimpleNamespace(info=ServerInfo()))
    before, after = (id_memory_of(js, info(f"2026-11-27T10:00:0{i}Z")) for i in range(2))  # type: ignore[arg-type]
    assert before.knows_ids_of_kept_messages(before, 1.0)
    assert before.knows_ids_of_kept_messages(after, 1.0) == (not deleted)
