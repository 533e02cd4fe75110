"""The chaos runs would notice what they look for."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from tests.chaos.application import last_sentence
from tests.chaos.cluster import IN, OUT, STATE
from tests.chaos.core import gaps
from tests.chaos.faults import FAULTS, faults_for, plan
from tests.chaos.proxy import Direction, Proxy
from tests.chaos.soak import compare
from tests.chaos.verdict import (
    Entry,
    Restored,
    Taken,
    Verdict,
    entries,
    judge,
    judge_bucket,
    judge_core,
    judge_queue,
    payload,
)
from tests.nats_py import Message, wait_until


def stream(*numbers: int) -> dict[str, list[Entry]]:
    return {"k0": [Entry(number, sequence) for sequence, number in enumerate(numbers, 1)]}


def figures(verdict: Verdict) -> tuple[int, int, int, int]:
    return verdict.forgotten, verdict.lost, verdict.duplicated, verdict.reordered


def test_a_true_copy_is_good() -> None:
    verdict = judge(stream(1, 2, 3), stream(1, 2, 3), {"k0": 3})
    assert verdict.good
    assert verdict.messages == 3
    assert verdict.examples() == []


@pytest.mark.parametrize(
    ("copied", "expected"),
    [
        pytest.param((1, 2, 4), (0, 1, 0, 0), id="lost"),
        pytest.param((1, 2, 3, 2, 4), (0, 0, 1, 0), id="doubled"),
        pytest.param((1, 3, 2, 4), (0, 0, 0, 1), id="reordered"),
        pytest.param((1, 2, 3, 4, 1, 2, 3, 4), (0, 0, 4, 0), id="all doubled"),
        pytest.param((4, 1, 1), (0, 2, 1, 1), id="everything at once"),
        pytest.param((1, 2, 3, 4, 5), (0, 0, 1, 0), id="one that nobody published"),
        pytest.param((), (0, 4, 0, 0), id="nothing copied"),
    ],
)
def test_what_is_wrong_with_a_copy_is_found(copied: tuple[int, ...], expected: tuple[int, ...]) -> None:
    verdict = judge(stream(1, 2, 3, 4), stream(*copied))
    assert figures(verdict) == expected
    assert not verdict.good
    assert verdict.examples()


def test_the_order_of_the_input_stream_is_the_right_one() -> None:
    assert judge(stream(1, 3, 2), stream(1, 3, 2)).good
    assert judge(stream(1, 3, 2), stream(1, 2, 3)).reordered == 1


def test_what_was_acknowledged_and_is_not_in_the_input_is_told() -> None:
    verdict = judge(stream(1, 2, 4), stream(1, 2, 4), {"k0": 5})
    assert figures(verdict) == (2, 0, 0, 0)
    assert verdict.examples() == ["acknowledged and not in IN: k0 3", "acknowledged and not in IN: k0 5"]


# After 2 the copy was made, after 4 the servers ended, and 5 was on its way.
IN_PUT_BACK = Restored([IN], {"k0": 2}, {"k0": 4}, (3, 5), ["DataLossError: …"])
OUT_PUT_BACK = Restored([OUT], {"k0": 2}, {"k0": 4}, (3, 4))


@pytest.mark.parametrize(
    ("given", "copied", "expected"),
    [
        pytest.param((1, 2, 5, 6), (1, 2, 5, 6), (0, 0, 0, 0), id="gone before it was read"),
        pytest.param((1, 2, 5, 6), (1, 2, 3, 4, 5, 6), (0, 0, 0, 0), id="gone after it was read"),
        pytest.param((1, 2, 5, 6), (1, 2, 3, 5, 5, 6), (0, 0, 0, 0), id="sent again after it was read and gone"),
        pytest.param((1, 2, 3, 4, 5, 6), (1, 2, 3, 4, 5, 6), (0, 0, 0, 0), id="not gone after all"),
        pytest.param((1, 2, 5, 6), (1, 2, 3, 3, 5, 6), (0, 0, 1, 0), id="gone and doubled"),
        pytest.param((1, 2, 5, 6), (1, 2, 5, 3, 6), (0, 0, 0, 1), id="gone and behind what came later"),
        pytest.param((1, 2, 5, 6), (1, 5, 6), (0, 1, 0, 0), id="older than the copy and not read"),
        pytest.param((1, 2, 5, 6), (1, 2, 5), (0, 1, 0, 0), id="published since and not read"),
        pytest.param((1, 2, 5, 6), (1, 2, 5, 6, 6), (0, 0, 1, 0), id="published since and doubled"),
        pytest.param((1, 2, 6), (1, 2, 6), (1, 0, 0, 0), id="acknowledged since and not there"),
    ],
)
def test_what_an_older_copy_of_the_input_has_taken_may_be_in_the_output_once(
    given: tuple[int, ...], copied: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    verdict = judge(stream(*given), stream(*copied), {"k0": 6}, [IN_PUT_BACK])
    assert figures(verdict) == expected
    assert verdict.silent == 0
    assert verdict.gone == len({3, 4} - set(given))


@pytest.mark.parametrize(
    ("copied", "expected"),
    [
        pytest.param((1, 2, 4, 5, 6), (0, 0, 0, 0), id="what was processed before"),
        pytest.param((1, 2, 3, 4, 5, 6), (0, 0, 0, 0), id="nothing"),
        pytest.param((1, 2, 3, 5, 6), (0, 1, 0, 0), id="what was being processed"),
        pytest.param((1, 4, 5, 6), (0, 1, 0, 0), id="what the copy has"),
        pytest.param((1, 2, 4, 4, 5, 6), (0, 0, 1, 0), id="and doubled"),
        pytest.param((1, 2, 3, 3, 4, 5, 6), (0, 0, 1, 0), id="nothing, and doubled"),
    ],
)
def test_an_older_copy_of_the_output_may_lack_what_was_processed_since(
    copied: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    verdict = judge(stream(1, 2, 3, 4, 5, 6), stream(*copied), {"k0": 6}, [OUT_PUT_BACK])
    assert figures(verdict) == expected
    assert verdict.gone == int(3 not in copied)


def test_what_was_read_and_is_gone_without_an_error_is_told() -> None:
    silent = replace(IN_PUT_BACK, said=[])
    verdict = judge(stream(1, 2, 5), stream(1, 2, 3, 5), {"k0": 5}, [silent])
    assert figures(verdict) == (0, 0, 0, 0)
    assert not verdict.good
    assert verdict.examples() == ["read, lost by IN, and no error: k0 3"]
    assert judge(stream(1, 2, 5), stream(1, 2, 5), {"k0": 5}, [silent]).good  # nobody had read it


def test_an_older_copy_of_the_state_excuses_nothing() -> None:
    state = Restored([STATE], {"k0": 2}, {"k0": 4}, (3, 5))
    assert figures(judge(stream(1, 2, 3, 4), stream(1, 2, 4, 4), {"k0": 4}, [state])) == (0, 1, 1, 0)


def test_a_message_on_the_subject_of_another_is_an_error() -> None:
    assert entries([Message("out.k1", payload("k1", 7))]) == {"k1": [Entry(7)]}
    with pytest.raises(ValueError, match=r"stands on out\.k2"):
        entries([Message("out.k2", payload("k1", 7))])


def test_what_was_missed_of_core_nats_must_be_in_the_log() -> None:
    published = {"k0": [100.0, 101.0, 102.0, 103.0, 104.0]}
    assert figures(judge_core(published, stream(2, 3, 5), [])) == (0, 1, 0, 0)  # before the first, nobody listened
    verdict = judge_core(published, stream(2, 3, 5), [(102.5, 103.5)])
    assert verdict.good
    assert verdict.missed == 2
    assert figures(judge_core(published, stream(1, 2, 3, 3, 5, 4), [(102.5, 103.5)])) == (0, 0, 1, 1)


def test_the_gaps_of_a_log_are_read() -> None:
    sentence = (
        "core NATS, core.>: messages published from 2026-11-22T01:50:48.857+00:00 to 2026-11-22T01:50:50.870+00:00 "
        "were missed, because there was no connection (…)"
    )
    ((begin, end),) = gaps(f"something\n{sentence}\nmore")
    lost = datetime(2026, 11, 22, 1, 50, 48, 857000, UTC).timestamp()
    assert begin < lost < end


def test_the_plan_is_the_same_for_the_same_seed() -> None:
    faults = faults_for("local[2,4]")
    assert plan(5, 50, faults) == plan(5, 50, faults)
    assert plan(5, 50, faults) != plan(6, 50, faults)
    assert plan(5, 20, faults) == plan(5, 50, faults)[:20]


def test_each_fault_that_is_named_comes_once_before_any_comes_again() -> None:
    named = faults_for("local[2]", ["cut", "step-in", "driver"])
    chosen = [planned.fault.name for planned in plan(1, 6, named)]
    assert sorted(chosen[:3]) == sorted(chosen[3:]) == ["cut", "driver", "step-in"]


def test_a_master_gets_only_faults_that_its_query_can_survive() -> None:
    names = {master: {fault.name for fault in faults_for(master)} for master in ("local[2]", "local[2,4]")}
    everything = {fault.name for fault in FAULTS}
    assert names["local[2]"] == everything - {"worker", "executor"}
    assert names["local[2,4]"] == everything - {"executor"}
    assert {fault.name for fault in faults_for("local-cluster[2,1,1024]")} == everything
    with pytest.raises(ValueError, match="worker needs a master that tries tasks again"):
        faults_for("local[2]", ["worker"])
    with pytest.raises(ValueError, match="no such fault: rain"):
        faults_for("local[2]", ["rain"])


def test_the_sentence_of_ours_is_found_in_what_spark_says() -> None:
    text = "Job aborted\nTraceback:\nspark_nats.errors.NatsTimeoutError: it took too long\n\n\tat org.apache.spark.X"
    assert last_sentence(text) == "NatsTimeoutError: it took too long"
    assert last_sentence("[STREAM_FAILED] it failed\n\tat a.B.c(D.java:1)\nCaused by: x") == "[STREAM_FAILED] it failed"


def test_a_soak_compares_its_first_and_last_quarter() -> None:
    table = compare([{"sockets": float(count)} for count in (4, 4, 5, 6, 7, 8, 8, 8)])
    assert table.splitlines()[1].split() == ["sockets", "4", "8", "2.00"]


@contextmanager
def connected() -> Iterator[tuple[Proxy, socket.socket, socket.socket]]:
    """A proxy with one connection through it: the client's end and the server's."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        proxy = stack.enter_context(closing(Proxy(listener.getsockname()[1])))
        client = stack.enter_context(connect(proxy))
        server = stack.enter_context(listener.accept()[0])
        server.settimeout(10)
        yield proxy, client, server


def connect(proxy: Proxy) -> socket.socket:
    return socket.create_connection(("127.0.0.1", int(proxy.url.rpartition(":")[2])), timeout=10)


def receive_all(connection: socket.socket) -> bytes:
    """What comes until the connection ends, in whatever way."""
    received = b""
    try:
        while data := connection.recv(65536):
            received += data
    except ConnectionResetError:
        pass
    return received


def test_a_proxy_forwards_both_ways_also_when_it_trickles_and_delays() -> None:
    with connected() as (proxy, client, server):
        proxy.trickling, proxy.delay = list(Direction), 0.01
        for sender, receiver in ((client, server), (server, client)):
            said = bytes(range(256)) * 4
            sender.sendall(said)
            received = b""
            while len(received) < len(said):
                received += receiver.recv(65536)
            assert received == said


def test_a_proxy_cuts_both_ends() -> None:
    with connected() as (proxy, client, server):
        assert wait_until(proxy.cut) == 1  # the proxy itself may be the last to know of the connection
        assert receive_all(client) == receive_all(server) == b""


def test_a_proxy_tears_a_chunk_in_the_direction_that_is_asked_for() -> None:
    with connected() as (proxy, client, server):
        proxy.tear(Direction.TO_SERVER)
        server.sendall(b"x" * 100)
        assert client.recv(100)
        client.sendall(b"y" * 100)
        assert receive_all(server) == b"y" * 50
        assert receive_all(client).strip(b"x") == b""
        assert proxy.torn == 1


def test_a_proxy_refuses_connections_until_it_accepts_again() -> None:
    with connected() as (proxy, client, server):
        proxy.refuse()
        with pytest.raises(ConnectionRefusedError):
            connect(proxy)
        client.sendall(b"still here")
        assert server.recv(10) == b"still here"
        proxy.accept()
        connect(proxy).close()


def test_a_connection_through_a_proxy_ends_when_its_server_is_gone() -> None:
    with connected() as (_, client, server):
        server.close()
        wait_until(lambda: receive_all(client) == b"")


def test_what_a_worker_takes_twice_is_a_duplicate_unless_an_error_has_said_so() -> None:
    given = {"k": [Entry(1, 1), Entry(2, 2)]}
    once = [Taken("k", Entry(1, 1), False), Taken("k", Entry(2, 2), False)]
    assert judge_queue(given, once).good
    verdict = judge_queue(given, [*once, Taken("k", Entry(2, 3), True)])
    assert (verdict.good, verdict.again) == (True, 1)
    verdict = judge_queue(given, [*once, Taken("k", Entry(2, 3), False)])
    assert (verdict.good, verdict.duplicated) == (False, 1)
    assert judge_queue(given, once[:1]).lost == 1
    assert judge_queue(given, [once[0], Taken("k", Entry(2, 2), True)]).good


def test_a_key_that_ends_with_an_older_value_has_lost_the_last_one() -> None:
    given = {"k": [Entry(1, 1), Entry(3, 2)], "l": [Entry(1, 3)]}
    assert judge_bucket(given, {"k": [Entry(3, 9)], "l": [Entry(1, 8)]}).good
    verdict = judge_bucket(given, {"k": [Entry(1, 10)], "l": [Entry(1, 8)]})
    assert (verdict.messages, verdict.lost, verdict.good) == (3, 1, False)
    assert not judge_bucket(given, {"k": [Entry(3, 9)]}).good
