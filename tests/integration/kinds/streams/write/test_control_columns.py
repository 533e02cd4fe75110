"""Columns that become headers on which a stream acts, seen by nats-py."""

from __future__ import annotations

import json
import random
from base64 import b64decode
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest
from nats.js.errors import APIError

from spark_nats.embedded import NatsServer
from spark_nats.errors import DataLossError, PublishError
from spark_nats.jetstream import views
from tests.integration.support import MENDING, run_task, sentence_of, table, write
from tests.nats_py import NatsPy, wait_until
from tests.servers import BINARY_2_10, IN_DOCKER, OLDER_BINARY, Cluster, Server, ServerFactory

EXPECTED = "expected_last_subject_sequence"
EXPECTED_HEADER, TTL, MSG_ID = "Nats-Expected-Last-Subject-Sequence", "Nats-TTL", "Nats-Msg-Id"


def headers_of(client: NatsPy, stream: str, name: str) -> list[list[str] | None]:
    return [message.headers.get(name) for message in client.read_stream(stream)]


# Lifetimes


@pytest.mark.needs("ttl")
@pytest.mark.docker
def test_rows_expire_when_their_lifetime_ends(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    nats_py.create_stream(unique, allow_msg_ttl=True)
    lifetimes = ["1s", None, "never", "1500ms", "90", "2h", "1.5 m"]
    rows = table(subject=[f"{unique}.{i}" for i in range(7)], payload=[b""] * 7, ttl=lifetimes)
    with nats_py.collect(f"{unique}.>") as published:
        write(nats_server, rows, stream=unique)
        said = [message.headers.get(TTL) for message in published.wait(7)]
    assert said == [["1"], None, ["never"], ["1"], ["90"], ["7200"], ["90"]]
    wait_until(lambda: nats_py.held(unique) == 5)


@pytest.mark.needs("ttl")
def test_a_lifetime_may_be_as_other_programs_have_left_it_in_a_row(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    """nats.go 1.55.0 stores `10m0s`, nats.js 3.4.0 `10m`, jnats 2.26.0 `600s`, nats-py 2.16.0 and async-nats `600`."""
    nats_py.create_stream(unique, allow_msg_ttl=True)
    lifetimes = ["10m0s", "10m", "600s", "600", "1h0m0.5s", "1h30m", "1.5s", "2m999ms"]
    rows = table(subject=[f"{unique}.x"] * 8, payload=[b""] * 8, ttl=lifetimes)
    write(nats_server, rows, stream=unique)
    assert headers_of(nats_py, unique, TTL) == [[s] for s in ("600", "600", "600", "600", "3600", "5400", "1", "120")]


@pytest.mark.needs("ttl")
@pytest.mark.parametrize("kind", [pa.int32(), pa.int64()], ids=str)
def test_a_lifetime_may_be_a_number_of_seconds(
    nats_server: Server, nats_py: NatsPy, unique: str, kind: pa.DataType
) -> None:
    nats_py.create_stream(unique, allow_msg_ttl=True)
    rows = table(subject=[f"{unique}.x"] * 3, payload=[b""] * 3, ttl=pa.array([3600, None, 60], kind))
    write(nats_server, rows, stream=unique)
    assert headers_of(nats_py, unique, TTL) == [["3600"], None, ["60"]]


NO_LIFETIMES = ["999ms", "0", "0s", "-1", "1d", "soon", "90.5", "9e9", "876001h", "0m0s", "1m30", "1s1h", "h"]


@pytest.mark.needs("ttl")
@pytest.mark.parametrize("ttl", [*NO_LIFETIMES, "", " 1s", "1s\r\n"])
def test_a_lifetime_that_is_none_is_refused_with_its_row_before_anything_is_sent(
    nats_server: Server, nats_py: NatsPy, unique: str, ttl: str
) -> None:
    nats_py.create_stream(unique, allow_msg_ttl=True)
    rows = table(subject=[f"{unique}.x"] * 2, payload=[b""] * 2, ttl=["1s", ttl])
    assert sentence_of(lambda: write(nats_server, rows, stream=unique)) == (
        f"InvalidRowError: row 1 of the task cannot be sent: column 'ttl' is {ttl!r}; it must be a time from 1s to "
        f"876000h with its unit, whole seconds, or 'never'; nothing was sent{MENDING}"
    )
    assert nats_py.held(unique) == 0


@pytest.mark.needs("ttl")
def test_a_stream_without_lifetimes_is_refused_by_the_driver(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    nats_py.create_stream(unique)
    rows = table(subject=[f"{unique}.x"], payload=[b""], ttl=["1h"])
    assert sentence_of(lambda: write(nats_server, rows, stream=unique)) == (
        f"SchemaError: stream '{unique}' does not allow lifetimes of single messages (its allow_msg_ttl is not "
        "true), but there is a column 'ttl'; set allow_msg_ttl to true, or drop the column"
    )
    # A task that finds it so has the server's word for it.
    options = {"stream": unique, "deduplicate": "window", "prepared": False}
    assert sentence_of(lambda: run_task(nats_server.url, rows, **options)).startswith(
        f"PublishError: stream '{unique}' refused row 0 (subject '{unique}.x'): per-message TTL is "
        "disabled (400, 10166);"
    )
    assert nats_py.held(unique) == 0


@pytest.mark.parametrize("column", ["ttl", EXPECTED])
def test_core_nats_has_no_such_columns(nats_server: Server, unique: str, column: str) -> None:
    rows = pa.table({"subject": [f"{unique}.x"], "payload": ["x"], column: pa.array([1], pa.int64())})
    assert sentence_of(lambda: write(nats_server, rows)) == (
        f"SchemaError: column '{column}' is for streams, and core NATS does not act on it; set the option 'stream', or "
        "drop the column"
    )


@pytest.mark.needs("ttl")
def test_a_column_stands_above_the_header_of_its_name(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    nats_py.create_stream(unique, allow_msg_ttl=True)
    rows = table(
        subject=[f"{unique}.{i}" for i in range(4)],
        payload=[b""] * 4,
        headers=[{TTL: "5h", EXPECTED_HEADER: "77", "K": "v"}, {TTL: "5h"}, {TTL: "5h", EXPECTED_HEADER: "77"}, {}],
        ttl=["1h", None, "2h", None],
        **{EXPECTED: [0, None, 0, None]},
    )
    write(nats_server, rows, stream=unique, controlHeaders=True)
    assert headers_of(nats_py, unique, TTL) == [["3600"], ["5h"], ["7200"], None]
    assert headers_of(nats_py, unique, EXPECTED_HEADER) == [["0"], None, ["0"], None]
    assert headers_of(nats_py, unique, "K") == [["v"], None, None, None]


# What a row expects to be its subject's last message


def update(unique: str, expected: list[int | None], subjects: str = "a") -> pa.Table:
    """Rows that expect this, on one subject or on one for each."""
    names = subjects * len(expected) if len(subjects) == 1 else subjects
    payloads = [b"%d" % i for i in range(len(expected))]
    return table(subject=[f"{unique}.{name}" for name in names], payload=payloads, **{EXPECTED: expected})


@pytest.mark.docker
@pytest.mark.parametrize("deduplicate", ["exact", "window", "false"])
def test_a_row_is_stored_only_behind_the_message_that_it_expects(
    nats_server: Server, nats_py: NatsPy, unique: str, deduplicate: str
) -> None:
    nats_py.create_stream(unique)
    nats_py.publish_acked([(f"{unique}.a", b""), (f"{unique}.b", b"")])
    rows = update(unique, [1, 0, None, 2], "acab")
    write(nats_server, rows, stream=unique, deduplicate=deduplicate)
    assert headers_of(nats_py, unique, EXPECTED_HEADER)[2:] == [["1"], ["0"], None, ["2"]]
    late = update(unique, [6, 3, 5], "bac")
    error = sentence_of(lambda: write(nats_server, late, stream=unique, deduplicate=deduplicate))
    assert error.startswith(
        f"PublishError: stream '{unique}' refused row 1 (subject '{unique}.a'): it expects the subject's last message "
        "at sequence 3, but: wrong last sequence: 5 (400, 10071); 2 rows were refused in all; of this task's rows "
        "1 were stored"
    )


def test_no_sequence_is_negative(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    nats_py.create_stream(unique)
    rows = update(unique, [None, 0, -1])
    assert sentence_of(lambda: write(nats_server, rows, stream=unique)) == (
        f"InvalidRowError: row 2 of the task cannot be sent: column '{EXPECTED}' is '-1'; it must be a sequence, or 0 "
        f"for a subject that has no message; nothing was sent{MENDING}"
    )


@pytest.fixture(scope="module")
def older() -> Iterator[Server]:
    """A server of 2.11."""
    if IN_DOCKER:
        pytest.skip("needs a server of its own, which only the embedded one can be")
    with NatsServer(binary=OLDER_BINARY) as server:
        yield server


@pytest.fixture(
    params=[("nats_server", 1), ("older", 1), ("cluster", 1), ("cluster", 3)],
    ids=["one server", "one server of 2.11", "one replica in a cluster", "three replicas"],
)
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[str, int]:
    """URLs of servers, and how many replicas a stream is to have there. All of them are up to date."""
    monkeypatch.setattr(views, "CONFIRMATION", 0.5)
    fixture, replicas = request.param
    servers: Server | Cluster = request.getfixturevalue(fixture)
    return servers.urls if isinstance(servers, Cluster) else servers.url, replicas


@pytest.mark.needs("repeated conditions", only="three replicas")
@pytest.mark.parametrize("deduplicate", ["exact", "window"])
def test_a_row_that_is_written_again_is_no_conflict_with_itself(
    place: tuple[str, int], unique: str, deduplicate: str
) -> None:
    urls, replicas = place
    with NatsPy(urls.split(",")) as client:
        client.create_in_cluster(unique, num_replicas=replicas)
        rows = update(unique, [0, 0, None, 0, None], "abccd")
        rows = rows.slice(0, 2), rows.slice(2)
        whole = pa.concat_tables([rows[0], rows[1].filter(pa.array([True, False, True]))])
        options = {"stream": unique, "deduplicate": deduplicate}
        assert run_task(urls, whole.slice(0, 2), **options).counts.duplicates == 0
        written = run_task(urls, whole, **options)
        assert (written.counts.rows, written.counts.duplicates) == (4, 2)
        again = run_task(urls, whole, **options)
        assert (again.counts.rows, again.counts.duplicates) == (4, 4)
        assert [m.subject[-1] for m in client.read_stream(unique)] == ["a", "b", "c", "d"]
        client.delete_stream(unique)


@pytest.mark.needs("repeated conditions", only="three replicas")
@pytest.mark.parametrize("deduplicate", ["exact", "window"])
def test_a_replay_whose_rows_were_replaced_meanwhile_is_no_conflict_either(
    place: tuple[str, int], unique: str, deduplicate: str
) -> None:
    """As in a KV bucket, which keeps the last value of a key."""
    urls, replicas = place
    with NatsPy(urls.split(",")) as client:
        client.create_in_cluster(unique, num_replicas=replicas, max_msgs_per_subject=1)
        rows = update(unique, [0, 0], "ab")
        options = {"stream": unique, "deduplicate": deduplicate}
        run_task(urls, rows, **options)
        client.publish_acked([(f"{unique}.a", b"newer")])
        if "," in urls and replicas == 1 and deduplicate == "exact":  # it may have been moved, which nothing tells
            with pytest.raises(DataLossError, match="is unknown what it stored then"):
                run_task(urls, rows, **options)
            return
        run_task(urls, rows, **options)
        assert sorted(m.payload for m in client.read_stream(unique)) == [b"1", b"newer"]
        # And what was never stored is one.
        error = sentence_of(lambda: run_task(urls, rows, batch="1", **options))
        assert "refused row 0" in error
        assert "at sequence 0, but: wrong last sequence: 3 (400, 10071)" in error
        client.delete_stream(unique)


def test_a_row_that_is_written_again_beyond_the_window_is_no_conflict_with_itself(
    place: tuple[str, int], unique: str
) -> None:
    urls, replicas = place
    with NatsPy(urls.split(",")) as client:
        window = 100_000_000  # nanoseconds
        client.create_in_cluster(unique, num_replicas=replicas, duplicate_window=window)
        rows = update(unique, [0, 0, 0], "abc")
        run_task(urls, rows.slice(0, 2), stream=unique)
        probe = {MSG_ID: "forgotten"}
        client.publish_acked([(f"{unique}.x", b"", probe)])
        wait_until(lambda: client.publish_acked([(f"{unique}.x", b"", probe)])[0] > 3)
        run_task(urls, rows, stream=unique)
        assert sorted(m.subject[-1] for m in client.read_stream(unique)) == ["a", "b", "c", "x", "x"]
        client.delete_stream(unique)


def test_updates_of_few_subjects_are_stored_in_their_order(place: tuple[str, int], unique: str) -> None:
    """Each expects the one before it, which a cluster would still be storing when the next one comes."""
    urls, replicas = place
    chance = random.Random(1)
    last = dict.fromkeys("abc", 0)
    subjects = [chance.choice("aaabbc") for _ in range(300)]
    expected: list[int | None] = []
    for sequence, subject in enumerate(subjects, 1):
        expected.append(last[subject] if chance.random() < 0.7 else None)
        last[subject] = sequence
    with NatsPy(urls.split(",")) as client:
        client.create_in_cluster(unique, num_replicas=replicas)
        run_task(urls, update(unique, expected, "".join(subjects)), stream=unique)
        assert client.stored_numbers(unique) == list(range(300))
        client.delete_stream(unique)


@pytest.mark.parametrize("replicas", [1, 3])
def test_no_update_is_lost_between_two_who_compare_and_set(cluster: Cluster, unique: str, replicas: int) -> None:
    """A counter by hand: each reads, adds one and writes what it expects nobody to have changed."""
    rounds = 20

    def add(client: NatsPy, write_value: Callable[[int, int], bool]) -> None:
        for _ in range(rounds):

            def try_once() -> bool:
                last = client.api(f"STREAM.MSG.GET.{unique}", {"last_by_subj": f"{unique}.a"})["message"]
                return write_value(int(b64decode(last["data"])) + 1, last["seq"])

            wait_until(try_once)

    def by_us(value: int, expected: int) -> bool:
        rows = table(subject=[f"{unique}.a"], payload=[b"%d" % value], **{EXPECTED: [expected]})
        try:
            write(cluster.urls, rows, stream=unique)
        except PublishError as error:
            if "wrong last sequence" not in str(error):
                raise
            return False
        return True

    with NatsPy(cluster.urls.split(",")) as client, NatsPy(cluster.urls.split(",")) as other:

        def by_other(value: int, expected: int) -> bool:
            try:
                other.publish_acked([(f"{unique}.a", b"%d" % value, {EXPECTED_HEADER: str(expected)})])
            except APIError as error:
                if error.err_code not in (10071, 10164):
                    raise
                return False
            return True

        client.create_in_cluster(unique, num_replicas=replicas)
        client.publish_acked([(f"{unique}.a", b"0")])
        with ThreadPoolExecutor() as pool:
            for done in [pool.submit(add, client, by_us), pool.submit(add, other, by_other)]:
                done.result()
        assert client.stored_numbers(unique) == list(range(2 * rounds + 1))
        client.delete_stream(unique)


def test_ids_tell_rows_apart_that_differ_in_what_they_expect_only(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    """So that a replay in another order gives each of them its own id again."""
    nats_py.create_stream(unique)
    same = [b"same"] * 2
    rows = table(subject=[f"{unique}.a"] * 2, payload=same, **{EXPECTED: [0, 1]})
    run_task(nats_server.url, rows.slice(0, 1), stream=unique)
    for numbers in ([1, 0], [0, 1]):
        run_task(nats_server.url, rows.take(numbers), stream=unique)
    assert headers_of(nats_py, unique, EXPECTED_HEADER) == [["0"], ["1"]]


# Counters


def totals(client: NatsPy, stream: str) -> dict[str, str]:
    """The total of each subject, by its last part."""
    return {m.subject.rpartition(".")[2]: json.loads(m.payload)["val"] for m in client.read_stream(stream)}


@pytest.mark.needs("counters")
@pytest.mark.docker
@pytest.mark.parametrize("kind", [pa.int32(), pa.int64(), pa.string()], ids=str)
def test_increments_are_added_up_once(nats_server: Server, nats_py: NatsPy, unique: str, kind: pa.DataType) -> None:
    nats_py.create_stream(unique, allow_msg_counter=True)
    increments = pa.array([3, 0, -5, 1, 1], pa.int64()).cast(kind)
    rows = table(subject=[f"{unique}.{name}" for name in "abaaa"], increment=increments)
    for _ in range(2):  # the second time is a replay
        run_task(nats_server.url, rows, stream=unique)
    assert totals(nats_py, unique) == {"a": "0", "b": "0"}
    assert len(nats_py.read_stream(unique)) == 5


@pytest.mark.needs("counters")
def test_increments_beyond_64_bits_are_texts(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    nats_py.create_stream(unique, allow_msg_counter=True)
    rows = table(subject=[f"{unique}.a"] * 3, increment=["+1" + "0" * 40, "-1", "007"], payload=[b""] * 3)
    write(nats_server, rows, stream=unique)
    assert totals(nats_py, unique) == {"a": "1" + "0" * 39 + "6"}


@pytest.mark.needs("counters")
@pytest.mark.parametrize("increment", ["1.5", "", "+", "one", "0x1", "1_000", " 1", "1\r\n"])
def test_what_cannot_be_added_is_refused_before_anything_is_sent(
    nats_server: Server, nats_py: NatsPy, unique: str, increment: str
) -> None:
    nats_py.create_stream(unique, allow_msg_counter=True)
    rows = table(subject=[f"{unique}.a"] * 2, increment=["1", increment])
    assert sentence_of(lambda: write(nats_server, rows, stream=unique)) == (
        f"InvalidRowError: row 1 of the task cannot be sent: column 'increment' is {increment!r}; it must be a whole "
        f"number; nothing was sent{MENDING}"
    )
    assert nats_py.held(unique) == 0


@pytest.mark.needs("counters")
def test_rows_that_are_no_increments_are_refused(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    nats_py.create_stream(unique, allow_msg_counter=True)
    subjects = [f"{unique}.a"] * 2

    def refusal(**columns: list[Any]) -> str:
        return sentence_of(lambda: write(nats_server, table(subject=subjects, **columns), stream=unique))

    assert "column 'increment' is null, and a counter takes only increments" in refusal(increment=[1, None])
    assert (
        "row 1 of the task cannot be sent: column 'payload' is not empty, but the server writes the total"
        in refusal(increment=[1, 1], payload=[b"", b"1"])
    )
    assert refusal(payload=[b"", b""]) == (
        f"SchemaError: stream '{unique}' has counters (its allow_msg_counter is true), and accepts only "
        "increments; add the column 'increment'"
    )
    assert "incremented in any case; drop the column" in refusal(increment=[1, 1], **{EXPECTED: [0, None]})
    assert nats_py.held(unique) == 0


@pytest.mark.needs("counters")
def test_a_stream_without_counters_is_refused_by_the_driver(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    nats_py.create_stream(unique)
    rows = table(subject=[f"{unique}.a"], increment=[1])
    assert sentence_of(lambda: write(nats_server, rows, stream=unique)) == (
        f"SchemaError: stream '{unique}' has no counters (its allow_msg_counter is not true), but there is a "
        "column 'increment'; create a stream with allow_msg_counter, or drop the column"
    )


@pytest.mark.skipif(not BINARY_2_10.exists(), reason="needs nats-server 2.10")
def test_a_server_that_is_too_old_for_a_column_is_named_instead_of_the_streams_configuration(
    server_factory: ServerFactory,
) -> None:
    server = server_factory(binary=BINARY_2_10)
    old = "but the server of stream {!r} is 2.10 or older; upgrade the servers"
    made = {"createStream": json.dumps({"subjects": ["S"], "allow_msg_ttl": True, "allow_msg_counter": True})}
    for rows, column, since in (
        (table(subject=["S"], payload=[b""], ttl=["1h"]), "ttl", "2.11"),
        (table(subject=["S"], increment=[1]), "increment", "2.12"),
    ):
        assert sentence_of(lambda rows=rows: write(server, rows, stream="S", **made)) == (  # type: ignore[misc]
            f"UnsupportedStreamError: the column '{column}' needs nats-server {since} or newer, {old.format('S')}"
        )
    entry = pa.table({"key": ["a"], "value": ["1"], "expected_revision": [0], "ttl": ["1h"]})
    error = sentence_of(lambda: write(server, entry, bucket="B", createBucket="true"))
    assert error.endswith(f"the column 'ttl' needs nats-server 2.11 or newer, {old.format('KV_B')}")
    with NatsPy(server.url) as client:
        assert client.held("S") == client.held("KV_B") == 0


@pytest.mark.needs("counters")
def test_what_another_stream_than_the_counters_takes_is_an_error(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    nats_py.create_stream(unique, allow_msg_counter=True)
    nats_py.create_stream(f"{unique}_OTHER", allow_msg_counter=True)
    rows = table(subject=[f"{unique}.a", f"{unique}_OTHER.a"], increment=[1, 1])
    assert "refused row 1 (subject" in sentence_of(lambda: write(nats_server, rows, stream=unique))
