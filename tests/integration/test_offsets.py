"""Where a query begins, how far it can go and what it has to read, without Spark, against the real server."""

import pytest

from spark_nats.client import ConnectionOptions, connect, parse_servers
from spark_nats.errors import DataLossError, NatsError, StreamNotFoundError, UnsupportedStreamError
from spark_nats.jetstream import JetStream
from spark_nats.options import parse_read
from spark_nats.source.offsets import OffsetReader, from_json, to_json


@pytest.fixture
def js(nats_server):
    with connect(ConnectionOptions(servers=parse_servers(nats_server.url))) as connection:
        yield JetStream(connection)


@pytest.fixture
def reader(js, unique):
    """Make an OffsetReader for the stream `unique`; keeps what was searched from call to call, as a query does."""
    searched = {}

    def make(streaming=True, **options):
        return OffsetReader(js, parse_read({"stream": unique, **options}, streaming), searched)

    return make


def sequences(ranges):
    return [(each.start, each.end) for each in ranges]


def publish(nats_py, unique, *tokens):
    nats_py.publish_acked((f"{unique}.{token}", b"") for token in tokens)


def at(position, sequence):
    """The same position, at another sequence."""
    return {name: offset._replace(next=sequence) for name, offset in position.items()}


def test_offsets_survive_the_checkpoint(reader, nats_py, unique):
    nats_py.create_stream(unique)
    position = reader().starting()
    assert from_json(to_json(position)) == position
    with pytest.raises(NatsError, match="was the checkpoint another query's"):
        from_json({"topic": {"0": 5}})


def test_a_caught_up_query_has_nothing_to_read(reader, nats_py, unique):
    nats_py.create_stream(unique)
    publish(nats_py, unique, "a", "b")
    here = reader().now()
    assert reader().latest(here) == here
    publish(nats_py, unique, "c")
    there = reader().latest(here)
    assert sequences(reader().ranges(here, there)) == [(3, 4)]


def test_messages_of_other_subjects_do_not_move_a_filtered_query(reader, nats_py, unique):
    nats_py.create_stream(unique)
    publish(nats_py, unique, "a", "b", "b")
    query = {"subject": f"{unique}.a", "startingOffsets": "earliest"}
    start = reader(**query).starting()
    here = reader(**query).latest(start)
    assert here == at(here, 2)
    publish(nats_py, unique, "b", "b")
    assert reader(**query).latest(here) == here


def test_limits_that_pass_a_filtered_query_without_taking_its_messages_lose_nothing(reader, nats_py, unique):
    nats_py.create_stream(unique)
    query = {"subject": f"{unique}.a"}
    publish(nats_py, unique, "a")
    here = reader(**query).now()
    publish(nats_py, unique, *"bbbb")
    assert reader(**query).latest(here) == here  # has seen that 2 to 5 are not its own
    nats_py.purge_stream(unique, seq=5)
    moved = reader(**query).latest(here)
    assert moved == at(here, 6)
    assert reader(**query).ranges(here, moved) == []
    publish(nats_py, unique, "a")
    assert sequences(reader(**query).ranges(moved, reader(**query).latest(moved))) == [(6, 7)]


def test_a_filtered_query_that_was_away_cannot_know_and_says_so(reader, nats_py, unique):
    nats_py.create_stream(unique)
    query = {"subject": f"{unique}.a"}
    publish(nats_py, unique, "a")
    here = reader(**query).now()
    publish(nats_py, unique, *"bbbba")
    nats_py.purge_stream(unique, seq=5)
    with pytest.raises(DataLossError, match="sequences 2 to 4"):
        reader(**query).ranges(here, reader(**query).latest(here))


def test_a_limit_counts_from_the_first_message_that_matches(reader, nats_py, unique):
    nats_py.create_stream(unique)
    publish(nats_py, unique, *"bbbbbbbba", *"bbbba")
    query = {"subject": f"{unique}.a", "startingOffsets": "earliest"}
    start = reader(**query).starting()
    one = reader(**query)
    first = one.limited(start, one.latest(start), 2)
    assert first == at(start, 11)
    two = reader(**query)
    assert two.limited(first, two.latest(first), 2) == at(start, 15)


def test_purged_messages_are_named(reader, nats_py, unique):
    nats_py.create_stream(unique)
    publish(nats_py, unique, *"abcdefgh")
    start = at(reader().now(), 3)
    nats_py.purge_stream(unique, seq=6)
    end = reader().latest(start)
    with pytest.raises(DataLossError, match="begins at sequence 6: sequences 3 to 5.*failOnDataLoss"):
        reader().ranges(start, end)
    assert sequences(reader(failOnDataLoss="false").ranges(start, end)) == [(6, 9)]


def test_a_stream_that_was_made_again_is_noticed(reader, nats_py, unique):
    nats_py.create_stream(unique)
    publish(nats_py, unique, *"abcd")
    start = at(reader().now(), 3)
    nats_py.delete_stream(unique)
    nats_py.create_stream(unique)
    publish(nats_py, unique, *"ab")
    end = reader().latest(start)
    with pytest.raises(DataLossError, match="deleted and made again.*up to sequence 2"):
        reader().ranges(start, end)
    assert sequences(reader(failOnDataLoss="false").ranges(start, end)) == [(1, 3)]


def test_an_empty_stream_that_was_made_again_is_noticed(reader, nats_py, unique):
    nats_py.create_stream(unique)
    publish(nats_py, unique, "a")
    start = reader().now()
    nats_py.delete_stream(unique)
    nats_py.create_stream(unique)
    with pytest.raises(DataLossError, match="deleted and made again"):
        reader().ranges(start, reader().latest(start))


def test_a_deleted_stream_is_a_loss(reader, nats_py, unique):
    nats_py.create_stream(unique)
    publish(nats_py, unique, *"ab")
    start = at(reader().now(), 2)
    nats_py.delete_stream(unique)
    with pytest.raises(DataLossError, match="does not exist any more: whatever it held from sequence 2 on"):
        reader().latest(start)
    tolerant = {"failOnDataLoss": "false"}
    assert reader(**tolerant).latest(start) == start
    assert reader(**tolerant).now() == {}
    assert reader(**tolerant).ranges(start, start) == []


def test_an_offset_beyond_the_end_is_a_loss(reader, nats_py, unique):
    nats_py.create_stream(unique)
    publish(nats_py, unique, *"ab")
    start = at(reader().now(), 9)
    with pytest.raises(DataLossError, match="ends at sequence 2, but the query is to go on at 9"):
        reader().latest(start)
    tolerant = {"failOnDataLoss": "false"}
    assert reader(**tolerant).latest(start) == at(start, 3)
    assert reader(**tolerant).ranges(start, at(start, 3)) == []


def test_a_new_query_needs_its_stream_even_where_loss_is_allowed(reader):
    with pytest.raises(StreamNotFoundError):
        reader(failOnDataLoss="false").starting()


@pytest.mark.parametrize("retention", ["workqueue", "interest"])
def test_streams_without_replay_are_refused(reader, nats_py, unique, retention):
    nats_py.create_stream(unique, retention=retention)
    with pytest.raises(UnsupportedStreamError, match=f"{retention} retention"):
        reader().starting()


def test_a_batch_ends_where_it_is_told_but_not_beyond_what_there_is(reader, nats_py, unique):
    nats_py.create_stream(unique)
    publish(nats_py, unique, *"abcd")
    wanted = reader(streaming=False, endingOffsets=f'{{"{unique}": 3}}')
    assert sequences(wanted.ranges(wanted.starting(), wanted.ending())) == [(1, 3)]
    too_much = reader(streaming=False, endingOffsets=f'{{"{unique}": 99}}')
    assert sequences(too_much.ranges(too_much.starting(), too_much.ending())) == [(1, 5)]
