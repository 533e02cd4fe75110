"""A position that was reached under a filter is none among the messages of other subjects."""

from __future__ import annotations

import json
from typing import Any

import pytest

from spark_nats.errors import DataLossError, NatsError, OptionError
from tests.integration.kinds.streams.read.test_beginning_at_consumers import at, consume
from tests.integration.support import Query, read_sequences, sentence_of, sequences_of, stream_reader
from tests.nats_py import NatsPy
from tests.servers import Server


@pytest.fixture
def stream(nats_py: NatsPy, unique: str) -> str:
    """Odd sequences are of `<stream>.eu.x`, even ones of `<stream>.us.x`."""
    nats_py.create_stream(unique)
    nats_py.publish_acked([(f"{unique}.{'eu' if i % 2 else 'us'}.x", b"") for i in range(1, 41)])
    return unique


def filtered(nats_py: NatsPy, stream: str, *subjects: str, take: int = 5, **config: Any) -> None:
    """A consumer `billing` of some subjects, which has acknowledged messages."""
    several = {"filter_subject": subjects[0]} if len(subjects) == 1 else {"filter_subjects": list(subjects)}
    consume(nats_py, stream, take, tuple(range(take)), **several, **config)


@pytest.mark.promise("reading#filtered-consumer")
@pytest.mark.parametrize("which", ["startingOffsets", "endingOffsets"])
@pytest.mark.parametrize("subject", [None, "us.x", "us.x,eu.x", "*.x", "*.*"])
def test_a_consumer_of_some_subjects_has_no_position_among_others(
    nats_server: Server, nats_py: NatsPy, stream: str, subject: str | None, which: str
) -> None:
    filtered(nats_py, stream, f"{stream}.eu.>")
    wanted = {} if subject is None else {"subject": ",".join(f"{stream}.{each}" for each in subject.split(","))}
    said = sentence_of(lambda: read_sequences(nats_server, stream=stream, **{which: at(stream)}, **wanted))
    assert said.startswith(
        f"{OptionError.__name__}: the consumer 'billing' of stream '{stream}' has come to sequence 10, but reads only "
        f"{stream}.eu.>; the query reads {stream}."
    )
    assert f'name the sequence, as in {{"{stream}": 10}}' in said
    assert read_sequences(nats_server, stream=stream, startingOffsets=json.dumps({stream: 40})) == [40]


def test_a_streaming_query_does_not_begin_there_either(nats_server: Server, nats_py: NatsPy, stream: str) -> None:
    filtered(nats_py, stream, f"{stream}.eu.>")
    with pytest.raises(OptionError, match="CONSUMER_OF_OTHER_SUBJECTS"):
        stream_reader(nats_server, stream=stream, startingOffsets=at(stream)).initialOffset()


@pytest.mark.parametrize(
    ("theirs", "subject"),
    [(">", ">"), ("eu.>", "eu.x"), ("eu.>,us.>", "us.x,eu.x"), ("*.x", "eu.x")],
)
def test_a_consumer_that_reads_more_than_the_query_has_a_position(
    nats_server: Server, nats_py: NatsPy, stream: str, theirs: str, subject: str
) -> None:
    filtered(nats_py, stream, *(f"{stream}.{each}" for each in theirs.split(",")))
    subjects = ",".join(f"{stream}.{each}" for each in subject.split(","))
    everything = read_sequences(nats_server, stream=stream, subject=subjects)
    found = read_sequences(nats_server, stream=stream, subject=subjects, startingOffsets=at(stream))
    assert found
    assert len(found) < len(everything)
    assert found == everything[-len(found) :]


def test_a_consumer_of_all_that_the_stream_listens_to_has_a_position(
    nats_server: Server, nats_py: NatsPy, stream: str
) -> None:
    filtered(nats_py, stream, f"{stream}.>")
    assert read_sequences(nats_server, stream=stream, startingOffsets=at(stream)) == list(range(6, 41))


def test_a_position_before_which_nothing_else_is_left_counts(nats_server: Server, nats_py: NatsPy, stream: str) -> None:
    filtered(nats_py, stream, f"{stream}.eu.>")
    nats_py.purge_stream(stream, filter=f"{stream}.us.x", seq=10)
    found = read_sequences(nats_server, stream=stream, subject=f"{stream}.us.x", startingOffsets=at(stream))
    assert found == list(range(10, 41, 2))


@pytest.mark.promise("reading#consumer-began-later")
@pytest.mark.parametrize(
    ("config", "first"),
    [({"deliver_policy": "by_start_sequence", "opt_start_seq": 31}, 36), ({"deliver_policy": "new"}, 46)],
    ids=["from 31", "new ones"],
)
def test_what_a_consumer_was_never_to_read_is_before_its_position(
    nats_server: Server, nats_py: NatsPy, stream: str, config: dict[str, Any], first: int
) -> None:
    consume(nats_py, stream, 0, (), **config)
    nats_py.store(f"{stream}.us.x", range(10))
    pulled = nats_py.run(nats_py.nats.jetstream().pull_subscribe_bind(stream=stream, consumer="billing"))
    for message in nats_py.run(pulled.fetch(5, timeout=60)):
        nats_py.run(message.ack_sync())
    assert read_sequences(nats_server, stream=stream, startingOffsets=at(stream)) == list(range(first, 51))


# A checkpoint


def begun(server: Server, stream: str, subject: str) -> dict[str, Any]:
    """The checkpoint of a query that has read all messages of a subject."""
    query = Query(stream_reader(server, stream=stream, subject=subject, startingOffsets="earliest"))
    assert query.rows(20)
    return query.offset


def resumed(server: Server, stream: str, checkpoint: dict[str, Any], **options: Any) -> Query:
    return Query(stream_reader(server, stream=stream, **options), checkpoint)


@pytest.mark.promise("reading#subjects-added")
@pytest.mark.parametrize("subject", [None, "*.x", "eu.x,us.x", "us.x"])
def test_a_checkpoint_that_is_read_on_with_more_subjects_says_what_is_left_out(
    nats_server: Server, nats_py: NatsPy, stream: str, subject: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoint = begun(nats_server, stream, f"{stream}.eu.x")
    wanted = {} if subject is None else {"subject": ",".join(f"{stream}.{each}" for each in subject.split(","))}
    nats_py.store(f"{stream}.us.x", range(3))
    query = resumed(nats_server, stream, checkpoint, **wanted)
    for _ in range(2):
        with pytest.raises(DataLossError, match=f"up to sequence 39, but only {stream}.eu.x; the query reads "):
            query.micro_batch()
    query = resumed(nats_server, stream, checkpoint, failOnDataLoss=False, **wanted)
    assert sequences_of(query.rows(4)) == [40, 41, 42, 43]
    assert [each.levelname for each in caplog.records if "leaves out what of that came before" in each.message] == [
        "WARNING"
    ]
    nats_py.store(f"{stream}.us.x", range(2))
    query = resumed(nats_server, stream, query.offset, **wanted)  # what it reads now is noted
    assert sequences_of(query.rows(2)) == [44, 45]


@pytest.mark.parametrize("subject", ["eu.x", "eu.x,us.x"])
def test_a_checkpoint_that_is_read_on_with_fewer_or_the_same_subjects_goes_on(
    nats_server: Server, nats_py: NatsPy, stream: str, subject: str
) -> None:
    checkpoint = begun(nats_server, stream, f"{stream}.eu.x,{stream}.us.x")
    nats_py.store(f"{stream}.eu.x", range(3))
    query = resumed(nats_server, stream, checkpoint, subject=",".join(f"{stream}.{s}" for s in subject.split(",")))
    assert sequences_of(query.rows(3)) == [41, 42, 43]


def test_subjects_of_which_there_was_nothing_before_are_added_without_a_word(
    nats_server: Server, nats_py: NatsPy, stream: str
) -> None:
    checkpoint = begun(nats_server, stream, f"{stream}.eu.x")
    nats_py.store(f"{stream}.new.x", range(3))
    query = resumed(nats_server, stream, checkpoint, subject=f"{stream}.eu.x,{stream}.new.x")
    assert sequences_of(query.rows(3)) == [41, 42, 43]


def test_a_checkpoint_of_before_goes_on_without_a_note(nats_server: Server, nats_py: NatsPy, stream: str) -> None:
    checkpoint = begun(nats_server, stream, f"{stream}.eu.x")
    assert checkpoint[stream].pop("subjects") == [f"{stream}.eu.x"]
    nats_py.store(f"{stream}.us.x", range(3))
    assert sequences_of(resumed(nats_server, stream, checkpoint).rows(4)) == [40, 41, 42, 43]


def test_a_query_of_all_subjects_notes_none(nats_server: Server, nats_py: NatsPy, stream: str) -> None:
    query = Query(stream_reader(nats_server, stream=stream, startingOffsets="earliest"))
    assert query.rows(40)
    assert "subjects" not in query.offset[stream]


def test_an_offset_that_is_copied_from_a_checkpoint_says_so_too(
    nats_server: Server, nats_py: NatsPy, stream: str
) -> None:
    place = json.dumps(begun(nats_server, stream, f"{stream}.eu.x"))
    with pytest.raises(DataLossError, match="SUBJECTS_ADDED"):
        read_sequences(nats_server, stream=stream, startingOffsets=place)
    assert read_sequences(nats_server, stream=stream, startingOffsets=place, failOnDataLoss=False) == [40]
    assert read_sequences(nats_server, stream=stream, startingOffsets=place, subject=f"{stream}.eu.x") == []


def test_one_entry_of_many_streams_notes_the_subjects(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    names = [f"{unique}_{i:02}" for i in range(33)]
    for name in names:
        nats_py.create_stream(name, [f"{unique}.*.{name}"])
    nats_py.publish_acked([(f"{unique}.{which}.{name}", b"") for which in ("us", "eu") for name in names])
    streams, subject = ",".join(names), f"{unique}.eu.>"
    query = Query(stream_reader(nats_server, stream=streams, subject=subject, startingOffsets="earliest"))
    assert query.rows(33)
    noted = [name for name, entry in query.offset.items() if not isinstance(entry, str)]
    assert noted == names[:1]
    query = resumed(nats_server, streams, query.offset)
    with pytest.raises(DataLossError, match="SUBJECTS_ADDED"):
        query.micro_batch()


def test_a_note_that_is_none_is_an_error(nats_server: Server, stream: str) -> None:
    checkpoint = begun(nats_server, stream, f"{stream}.eu.x")
    checkpoint[stream]["subjects"] = "x"
    with pytest.raises(NatsError, match="OFFSET_OF_ANOTHER"):
        resumed(nats_server, stream, checkpoint).micro_batch()
