"""Where a query begins, how far it can go and what it has to read, without Spark, against the real server."""

import pytest

from spark_nats.client import connect
from spark_nats.errors import DataLossError, NatsError, StreamNotFoundError, UnsupportedStreamError
from spark_nats.jetstream import JetStream
from spark_nats.jetstream.doubts import Doubts
from spark_nats.options import parse_read
from spark_nats.source.stream.offsets import OffsetReader, from_json, planned, to_json
from tests.connections import options_for


@pytest.fixture
def js(nats_server):
    with connect(options_for(nats_server.url)) as connection:
        yield JetStream(connection)


class Query:
    """A streaming query of one stream: it asks the server anew for each step, and keeps what it has searched."""

    def __init__(self, js, options):
        self._js = js
        self._options = options
        self._searched = {}
        self._doubts = Doubts(0.0)

    def _offsets(self):
        return OffsetReader(self._js, self._options, self._doubts)

    def starting(self):
        return self._offsets().starting()

    def now(self):
        return self._offsets().now()

    def latest(self, start, limit=None):
        offsets = self._offsets()
        latest = offsets.latest(start, self._searched)
        self._searched = offsets.searched(start, latest)
        return offsets.limited(start, latest, limit) if limit else latest

    def plan(self, start, end):
        return [(each.start, each.end) for each in planned(start, end, self._options.filters)]


@pytest.fixture
def query(js, unique):
    """Make a query of the stream `unique` with more options."""
    return lambda **options: Query(js, parse_read({"stream": unique, **options}, streaming=True))


@pytest.fixture
def batch(js, unique):
    return lambda **options: OffsetReader(js, parse_read({"stream": unique, **options}, streaming=False), Doubts(0.0))


def sequences(ranges):
    return [(each.start, each.end) for each in ranges]


def publish(nats_py, unique, *tokens):
    nats_py.publish_acked((f"{unique}.{token}", b"") for token in tokens)


def at(position, sequence):
    """The same position, at another sequence."""
    return {name: offset._replace(next=sequence) for name, offset in position.items()}


def following(position):
    """The next sequence of the one stream."""
    (offset,) = position.values()
    return offset.next


def test_offsets_survive_the_checkpoint(query, nats_py, unique):
    nats_py.create_stream(unique)
    publish(nats_py, unique, "a")
    for options in ({}, {"startingOffsets": "earliest"}):
        position = query(**options).starting()
        assert from_json(to_json(position)) == position
    end = query().latest(at(position, 1))
    assert from_json(to_json(end)) == end
    with pytest.raises(NatsError, match="was the checkpoint another query's"):
        from_json({"topic": {"0": 5}})


def test_a_caught_up_query_has_nothing_to_read(query, nats_py, unique):
    nats_py.create_stream(unique)
    publish(nats_py, unique, "a", "b")
    here = query().now()
    assert query().latest(here) == here
    publish(nats_py, unique, "c")
    there = query().latest(here)
    assert query().plan(here, there) == [(3, 4)]
    assert query().latest(there) == there


def test_messages_of_other_subjects_do_not_move_a_filtered_query(query, nats_py, unique):
    nats_py.create_stream(unique)
    publish(nats_py, unique, "a", "b", "b")
    filtered = query(subject=f"{unique}.a", startingOffsets="earliest")
    here = filtered.latest(filtered.starting())
    assert following(here) == 2
    publish(nats_py, unique, "b", "b")
    assert filtered.latest(here) == here


def test_limits_that_pass_a_filtered_query_without_taking_its_messages_lose_nothing(query, nats_py, unique):
    nats_py.create_stream(unique)
    filtered = query(subject=f"{unique}.a")
    publish(nats_py, unique, "a")
    here = filtered.now()
    publish(nats_py, unique, *"bbbb")
    assert filtered.latest(here) == here  # has seen that 2 to 5 are not its own
    nats_py.purge_stream(unique, seq=5)
    moved = filtered.latest(here)
    assert following(moved) == 6
    assert filtered.plan(here, moved) == []
    publish(nats_py, unique, "a")
    assert filtered.plan(moved, filtered.latest(moved)) == [(6, 7)]


def test_a_filtered_query_that_was_away_cannot_know_and_says_so(query, nats_py, unique):
    nats_py.create_stream(unique)
    filtered = query(subject=f"{unique}.a")
    publish(nats_py, unique, "a")
    here = filtered.now()
    publish(nats_py, unique, *"bbbba")
    nats_py.purge_stream(unique, seq=5)
    with pytest.raises(DataLossError, match="sequences 2 to 4"):
        filtered.latest(here)


def test_a_limit_counts_from_the_first_message_that_matches(query, nats_py, unique):
    nats_py.create_stream(unique)
    publish(nats_py, unique, *"bbbbbbbba", *"bbbba")
    filtered = query(subject=f"{unique}.a", startingOffsets="earliest")
    start = filtered.starting()
    first = filtered.latest(start, limit=2)
    assert filtered.plan(start, first) == [(9, 11)]
    assert filtered.plan(first, filtered.latest(first, limit=2)) == [(14, 15)]


def test_purged_messages_are_named(query, nats_py, unique):
    nats_py.create_stream(unique)
    publish(nats_py, unique, *"abcdefgh")
    start = at(query().now(), 3)
    nats_py.purge_stream(unique, seq=6)
    with pytest.raises(DataLossError, match="begins at sequence 6: sequences 3 to 5.*failOnDataLoss"):
        query().latest(start)
    tolerant = query(failOnDataLoss="false")
    assert tolerant.plan(start, tolerant.latest(start)) == [(6, 9)]


def test_a_stream_that_was_made_again_is_noticed(query, nats_py, unique):
    nats_py.create_stream(unique)
    publish(nats_py, unique, *"abcd")
    start = at(query().now(), 3)
    nats_py.delete_stream(unique)
    nats_py.create_stream(unique)
    publish(nats_py, unique, *"ab")
    with pytest.raises(DataLossError, match="deleted and made again.*up to sequence 2"):
        query().latest(start)
    tolerant = query(failOnDataLoss="false")
    assert tolerant.plan(start, tolerant.latest(start)) == [(1, 3)]


def test_an_empty_stream_that_was_made_again_is_noticed(query, nats_py, unique):
    nats_py.create_stream(unique)
    publish(nats_py, unique, "a")
    start = query().now()
    nats_py.delete_stream(unique)
    nats_py.create_stream(unique)
    with pytest.raises(DataLossError, match="deleted and made again"):
        query().latest(start)


def test_a_deleted_stream_is_a_loss(query, nats_py, unique):
    nats_py.create_stream(unique)
    publish(nats_py, unique, *"ab")
    start = at(query().now(), 2)
    nats_py.delete_stream(unique)
    with pytest.raises(DataLossError, match="does not exist any more: whatever it held from sequence 2 on"):
        query().latest(start)
    tolerant = query(failOnDataLoss="false")
    assert tolerant.latest(start) == start
    assert tolerant.now() == {}
    assert tolerant.plan(start, start) == []


def test_an_offset_beyond_the_end_is_a_loss(query, nats_py, unique):
    nats_py.create_stream(unique)
    publish(nats_py, unique, *"ab")
    start = at(query().now(), 9)
    with pytest.raises(DataLossError, match="ends at sequence 2, but the query is to go on at 9"):
        query().latest(start)
    tolerant = query(failOnDataLoss="false")
    back = tolerant.latest(start)
    assert following(back) == 3
    assert tolerant.plan(start, back) == []
    publish(nats_py, unique, "c")
    assert tolerant.plan(back, tolerant.latest(back)) == [(3, 4)]


def test_a_new_query_needs_its_stream_even_where_loss_is_allowed(query):
    with pytest.raises(StreamNotFoundError):
        query(failOnDataLoss="false").starting()


@pytest.mark.parametrize("retention", ["workqueue", "interest"])
def test_streams_without_replay_are_refused(query, nats_py, unique, retention):
    nats_py.create_stream(unique, retention=retention)
    with pytest.raises(UnsupportedStreamError, match=f"{retention} retention"):
        query().starting()


def test_a_batch_ends_where_it_is_told_but_not_beyond_what_there_is(batch, nats_py, unique):
    nats_py.create_stream(unique)
    publish(nats_py, unique, *"abcd")
    wanted = batch(endingOffsets=f'{{"{unique}": 3}}')
    assert sequences(wanted.ranges(wanted.starting(), wanted.ending())) == [(1, 3)]
    too_much = batch(endingOffsets=f'{{"{unique}": 99}}')
    assert sequences(too_much.ranges(too_much.starting(), too_much.ending())) == [(1, 5)]
