"""Where a query begins, how far it can go and what it has to read, without Spark, against the real server."""

from typing import ClassVar

import pytest

from spark_nats.errors import DataLossError, NatsError, StreamNotFoundError, UnsupportedStreamError
from spark_nats.jetstream.api import JetStream
from spark_nats.jetstream.views import StreamView
from spark_nats.kinds.queries import parse_read_options
from spark_nats.kinds.streams.read import bounds
from spark_nats.kinds.streams.read.advance import Limits
from spark_nats.kinds.streams.read.looks import Look, QueryMemory
from spark_nats.kinds.streams.read.planning import ranges_between
from spark_nats.kinds.streams.read.positions import entry_beginning_at, from_json, to_json
from spark_nats.kinds.streams.read.query import advance_and_release


class Query:
    """A streaming query of one stream: it asks the server anew for each step, and keeps what it has searched."""

    def __init__(self, js, options):
        self._js = js
        self._options = options
        self._memory = QueryMemory(options, patience=0.0)

    def _look(self):
        self._memory.view = StreamView(0.0)
        return Look(self._js, self._options, self._memory)

    def starting(self):
        return {name: entry_beginning_at(place) for name, place in bounds.prepare_and_ask_start(self._look()).items()}

    def now(self):
        return {name: entry_beginning_at(place) for name, place in bounds.prepare_and_ask_ends(self._look()).items()}

    def latest(self, start, limit=None):
        return advance_and_release(self._look(), start, Limits(max_offsets=limit)).end

    def plan(self, start, end):
        return [(each.start, each.end) for each in ranges_between(start, end, self._options.filters)]


@pytest.fixture
def query(js, unique):
    """Make a query of the stream `unique` with more options."""
    return lambda **options: Query(js, parse_read_options({"stream": unique, **options}, streaming=True))


@pytest.fixture
def batch(js, unique):
    def ranges(**options):
        parsed = parse_read_options({"stream": unique, **options}, streaming=False)
        return bounds.plan_batch_and_report_losses(Look(js, parsed, QueryMemory(parsed, patience=0.0)))

    return ranges


def bounds_of(ranges):
    return [(each.start, each.end) for each in ranges]


def store_on(nats_py, unique, *tokens):
    nats_py.publish_acked((f"{unique}.{token}", b"") for token in tokens)


def at(position, sequence):
    """The same position, at another sequence."""
    return {name: entry_beginning_at(each.end._replace(next=sequence)) for name, each in position.items()}


def following(position):
    """The next sequence of the one stream."""
    (entry,) = position.values()
    return entry.end.next


def test_offsets_survive_the_checkpoint(query, nats_py, unique):
    nats_py.create_stream(unique)
    store_on(nats_py, unique, "a")
    for options in ({}, {"startingOffsets": "earliest"}):
        position = query(**options).starting()
        assert from_json(to_json(position)) == position
    end = query().latest(at(position, 1))
    assert from_json(to_json(end)) == end
    with pytest.raises(NatsError, match="does the checkpoint belong to another query"):
        from_json({"topic": {"0": 5}})


def test_a_caught_up_query_has_nothing_to_read(query, nats_py, unique):
    nats_py.create_stream(unique)
    store_on(nats_py, unique, "a", "b")
    here = query().now()
    assert query().latest(here) == here
    store_on(nats_py, unique, "c")
    there = query().latest(here)
    assert query().plan(here, there) == [(3, 4)]
    assert query().latest(there) == there


def test_messages_of_other_subjects_do_not_move_a_filtered_query(query, nats_py, unique):
    nats_py.create_stream(unique)
    store_on(nats_py, unique, "a", "b", "b")
    filtered = query(subject=f"{unique}.a", startingOffsets="earliest")
    here = filtered.latest(filtered.starting())
    assert following(here) == 2
    store_on(nats_py, unique, "b", "b")
    assert filtered.latest(here) == here


def test_limits_that_pass_a_filtered_query_without_taking_its_messages_lose_nothing(query, nats_py, unique):
    nats_py.create_stream(unique)
    filtered = query(subject=f"{unique}.a")
    store_on(nats_py, unique, "a")
    here = filtered.now()
    store_on(nats_py, unique, *"bbbb")
    assert filtered.latest(here) == here  # has seen that 2 to 5 are not its own
    nats_py.purge_stream(unique, seq=5)
    moved = filtered.latest(here)
    assert following(moved) == 6
    assert filtered.plan(here, moved) == []
    store_on(nats_py, unique, "a")
    assert filtered.plan(moved, filtered.latest(moved)) == [(6, 7)]


def test_a_filtered_query_that_was_away_cannot_know_and_says_so(query, nats_py, unique):
    nats_py.create_stream(unique)
    filtered = query(subject=f"{unique}.a")
    store_on(nats_py, unique, "a")
    here = filtered.now()
    store_on(nats_py, unique, *"bbbba")
    nats_py.purge_stream(unique, seq=5)
    with pytest.raises(DataLossError, match="sequences 2 to 4"):
        filtered.latest(here)


def test_a_limit_counts_from_the_first_message_that_matches(query, nats_py, unique):
    nats_py.create_stream(unique)
    store_on(nats_py, unique, *"bbbbbbbba", *"bbbba")
    filtered = query(subject=f"{unique}.a", startingOffsets="earliest")
    start = filtered.starting()
    first = filtered.latest(start, limit=2)
    assert filtered.plan(start, first) == [(9, 11)]
    assert filtered.plan(first, filtered.latest(first, limit=2)) == [(14, 15)]


def test_purged_messages_are_named(query, nats_py, unique):
    nats_py.create_stream(unique)
    store_on(nats_py, unique, *"abcdefgh")
    start = at(query().now(), 3)
    nats_py.purge_stream(unique, seq=6)
    with pytest.raises(DataLossError, match="begins at sequence 6: sequences 3 to 5.*failOnDataLoss"):
        query().latest(start)
    tolerant = query(failOnDataLoss="false")
    assert tolerant.plan(start, tolerant.latest(start)) == [(6, 9)]


def test_a_stream_that_was_made_again_is_noticed(query, nats_py, unique):
    nats_py.create_stream(unique)
    store_on(nats_py, unique, *"abcd")
    start = at(query().now(), 3)
    nats_py.delete_stream(unique)
    nats_py.create_stream(unique)
    store_on(nats_py, unique, *"ab")
    with pytest.raises(DataLossError, match="deleted and created again.*up to sequence 2"):
        query().latest(start)
    tolerant = query(failOnDataLoss="false")
    assert tolerant.plan(start, tolerant.latest(start)) == [(1, 3)]


def test_an_empty_stream_that_was_made_again_is_noticed(query, nats_py, unique):
    nats_py.create_stream(unique)
    store_on(nats_py, unique, "a")
    start = query().now()
    nats_py.delete_stream(unique)
    nats_py.create_stream(unique)
    with pytest.raises(DataLossError, match="deleted and created again"):
        query().latest(start)


def test_a_deleted_stream_is_a_loss(query, nats_py, unique):
    nats_py.create_stream(unique)
    store_on(nats_py, unique, *"ab")
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
    store_on(nats_py, unique, *"ab")
    start = at(query().now(), 9)
    with pytest.raises(DataLossError, match="ends at sequence 2, but the query is to resume at 9"):
        query().latest(start)
    tolerant = query(failOnDataLoss="false")
    back = tolerant.latest(start)
    assert following(back) == 3
    assert tolerant.plan(start, back) == []
    store_on(nats_py, unique, "c")
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
    store_on(nats_py, unique, *"abcd")
    assert bounds_of(batch(endingOffsets=f'{{"{unique}": 3}}')) == [(1, 3)]
    assert bounds_of(batch(endingOffsets=f'{{"{unique}": 99}}')) == [(1, 5)]


@pytest.mark.needs("interest streams")
def test_asking_prepares_nothing(js, nats_py, unique):
    nats_py.create_stream(unique)
    options = parse_read_options({"stream": unique, "consume": "true"}, streaming=True)
    look = Look(js, options, QueryMemory(options, patience=0.0))
    for _ in range(2):
        facts = look.ask_facts([unique])
        assert facts.infos[unique].consumers == 0
    look.check_streams_and_create_consumers(facts)
    assert look.ask_facts([unique]).infos[unique].consumers == 1


class Counting(JetStream):
    """Counts round trips: how many requests each has."""

    trips: ClassVar[list[int]] = []

    def request_all(self, requests):
        self.trips.append(len(requests))
        return super().request_all(requests)


def test_a_look_at_many_streams_takes_one_round_trip_and_each_decision_one_more(js, nats_py, unique):
    names = [f"{unique}_{i}" for i in range(5)]
    for name in names:
        nats_py.create_stream(name, [f"{name}.>"])
        nats_py.publish_acked((f"{name}.{subject}", b"") for subject in "aabab")
    counting = Counting(js.connection)

    def trips(start, limits, **options):
        parsed = parse_read_options({"stream": ",".join(names), **options}, streaming=True)
        Counting.trips.clear()
        found = advance_and_release(Look(counting, parsed, QueryMemory(parsed, patience=0.0)), start, limits)
        return found.end, list(Counting.trips)

    beginning, asked = trips({}, Limits())
    assert asked == [5]
    assert trips(beginning, Limits())[1] == [10]  # the first look compares histories, in the same round trip
    _, asked = trips({}, Limits(), subject=",".join(f"{name}.a" for name in names))
    assert asked[0] == 5
    assert asked[1] == 25  # the last message of each filter, which is for all streams
    end, asked = trips({}, Limits(max_offsets=10))
    assert asked == [5, 10]  # where each begins, and what stands where it is to end
    assert sum(batch.size for batch in end.values()) == 10
