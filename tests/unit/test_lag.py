"""How far a query is behind, as arithmetic on what Spark's progress says."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from spark_nats import clock
from spark_nats.errors import NatsError
from spark_nats.jetstream.positions import Position
from spark_nats.kinds.queries import parse_options
from spark_nats.kinds.streams.read.positions import SHORT_FROM, OffsetEntry, to_json
from spark_nats.lag import QueryLag, StreamLag, compute_or_ask_lag, lag_of_progress, parse_sample
from spark_nats.options.short_forms import is_short

MADE = "2026-11-01T08:00:00Z"
BEGAN = datetime(2026, 11, 2, tzinfo=UTC)


def offset(**streams: int) -> dict[str, Any]:
    return {name: {"created": MADE, "next": sequence} for name, sequence in streams.items()}


def micro_batch(number: int, at: float, start: Any, end: Any, latest: Any, seconds: float = 1.0) -> dict[str, Any]:
    """A progress as Spark writes it: a micro-batch that began so many seconds after the first one."""
    return {
        "id": "0c5b",
        "name": "copy",
        "timestamp": (BEGAN + timedelta(seconds=at)).isoformat().replace("+00:00", "Z"),
        "batchId": number,
        "durationMs": {"triggerExecution": int(seconds * 1000)},
        "sources": [{"startOffset": start, "endOffset": end, "latestOffset": latest}],
    }


def lag_of(*documents: dict[str, Any]) -> QueryLag:
    found = lag_of_progress(documents)
    assert found is not None
    return found


def only(lag: QueryLag) -> StreamLag:
    (stream,) = lag.streams
    return stream


def test_before_the_first_micro_batch_nothing_is_known() -> None:
    assert lag_of_progress([]) is None


def test_one_micro_batch_says_how_far_and_how_fast() -> None:
    lag = lag_of(micro_batch(7, 0, offset(S=1), offset(S=101), offset(S=501), seconds=2))
    assert (lag.query, lag.batch, lag.behind) == ("copy", 7, 400)
    assert lag.at == BEGAN + timedelta(seconds=2)
    assert only(lag) == StreamLag("S", 101, 501, 400, rate=50.0, arriving=None, catch_up=8.0)


def test_rates_are_those_of_the_last_micro_batches_waiting_included() -> None:
    lag = lag_of(
        micro_batch(0, 0, None, {"S": {**offset(S=101)["S"], "since": 1, "first": 1}}, offset(S=1001)),
        micro_batch(1, 10, offset(S=101), offset(S=201), offset(S=1051)),
        micro_batch(2, 20, offset(S=201), offset(S=301), offset(S=1101)),
    )
    assert only(lag).rate == 300 / 21
    assert only(lag).arriving == 5.0
    assert only(lag).catch_up == pytest.approx(800 / (300 / 21 - 5))


def test_a_query_that_is_slower_than_its_stream_does_not_catch_up() -> None:
    lag = lag_of(
        micro_batch(0, 0, offset(S=1), offset(S=11), offset(S=1001)),
        micro_batch(1, 1, offset(S=11), offset(S=21), offset(S=2001)),
    )
    assert only(lag).behind == 1980
    assert only(lag).catch_up is None
    assert "caught up" not in str(lag)


def test_a_query_that_is_not_behind_has_caught_up() -> None:
    lag = lag_of(micro_batch(0, 0, offset(S=1), offset(S=11), offset(S=11)))
    assert (lag.behind, only(lag).catch_up) == (0, 0.0)


def test_what_was_before_the_query_had_last_caught_up_is_no_part_of_its_rate() -> None:
    lag = lag_of(
        micro_batch(0, 0, offset(S=1), offset(S=2), offset(S=2)),
        micro_batch(1, 30, offset(S=2), offset(S=1002), offset(S=5002)),
    )
    assert only(lag).rate == 1000.0


def test_a_long_pause_is_no_part_of_the_rate() -> None:
    lag = lag_of(
        micro_batch(0, 0, offset(S=1), offset(S=2), offset(S=100)),
        micro_batch(1, 3600, offset(S=2), offset(S=52), offset(S=102)),
    )
    assert only(lag).rate == 50.0


MINUTES = [micro_batch(i, 60 * i, offset(S=1 + i), offset(S=2 + i), None, seconds=50) for i in range(5)]


@pytest.mark.parametrize(
    ("after", "planned", "is_silent"), [(60, 0, False), (599, 0, False), (601, 0, True), (601, 10, False)]
)
def test_a_query_that_misses_ten_of_its_triggers_has_no_rate(
    after: float, planned: float, is_silent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The usual distance counts: one long pause before the last micro-batch says nothing of triggers."""
    later = micro_batch(5, 9000, offset(S=6), offset(S=7), None, seconds=50)
    samples = [parse_sample(each) for each in (*MINUTES, later)]
    ended = samples[-1].ended
    monkeypatch.setattr(clock, "time", lambda: ended + after)
    monkeypatch.setattr("spark_nats.lag._ask_present_lags", lambda options, last, streams: streams)
    lag = compute_or_ask_lag("copy", 5, samples, parse_options({}), planned and ended + planned)
    assert (lag.is_silent, only(lag).rate is None) == (is_silent, is_silent)
    assert lag.ended == datetime.fromtimestamp(ended, UTC)
    assert ("micro-batch 5, ended at 2026-11-02 02:30:50Z: S is" in str(lag)) is is_silent


def test_the_lag_as_of_the_last_micro_batch_is_never_one_of_a_silent_query() -> None:
    lag = lag_of(*MINUTES)
    assert (lag.is_silent, lag.ended, only(lag).rate is None) == (False, lag.at, False)


def waiting(sequence: int) -> dict[str, Any]:
    """How far a stream reaches, of a query that waits for a hundred new sequences."""
    return {"S": {**offset(S=sequence)["S"], "waits_for": 100}}


def test_a_query_that_waits_for_more_between_its_micro_batches_is_not_slow() -> None:
    lag = lag_of(
        micro_batch(0, 0, offset(S=1), offset(S=121), waiting(131)),
        micro_batch(1, 50, offset(S=121), offset(S=241), waiting(281)),
        micro_batch(2, 100, offset(S=241), offset(S=361), waiting(391)),
        micro_batch(3, 110, offset(S=361), offset(S=361), waiting(391)),  # which Spark reports of a query that is idle
    )
    assert only(lag).rate == 120.0
    assert (lag.behind, only(lag).waits_for, only(lag).catch_up) == (30, 100, None)
    assert str(lag).endswith("S is 30 messages behind, read at 120.0/s, growing by 2.4/s, waiting for 100")


def test_a_query_that_has_no_need_to_wait_catches_up() -> None:
    lag = lag_of(micro_batch(0, 0, offset(S=1), offset(S=121), waiting(361)))
    assert (only(lag).rate, only(lag).catch_up) == (120.0, 2.0)
    assert "waiting" not in str(lag)


def test_a_stream_that_was_made_again_begins_anew() -> None:
    other = {"S": {"created": "2026-11-02T00:00:01Z", "next": 11, "since": 1, "first": 1}}
    lag = lag_of(
        micro_batch(0, 0, offset(S=1), offset(S=1001), offset(S=1100)),
        micro_batch(1, 1, offset(S=1001), other, other),
    )
    assert only(lag).rate == 10.0


def test_several_streams_and_sources_are_told_apart_and_others_left_out() -> None:
    document = micro_batch(0, 0, offset(A=1, B=1), offset(A=2, B=3), offset(A=5, B=9))
    document["sources"] += [
        {"startOffset": None, "endOffset": {"topic": {"0": 5}}, "latestOffset": {"topic": {"0": 5}}},
        {"startOffset": None, "endOffset": "7", "latestOffset": None},
        {
            "startOffset": None,
            "endOffset": {"epoch": "x", "messages": 3},
            "latestOffset": {"epoch": "x", "messages": 9},
        },
        {"startOffset": json.dumps(offset(A=2)), "endOffset": json.dumps(offset(A=4)), "latestOffset": None},
    ]
    lag = lag_of(document)
    assert [(stream.stream, stream.behind) for stream in lag.streams] == [("A", 3), ("B", 6), ("A", 0)]
    assert lag.behind == 9


def test_the_short_offsets_of_many_streams_are_understood() -> None:
    def of_each(sequence: int, first: int | None = None) -> dict[str, Any]:
        end = Position("2026-11-26T09:58:56.1Z", sequence, 1764151136223456789)
        return to_json({f"S{i:02}": OffsetEntry(first, first or sequence, end) for i in range(SHORT_FROM)})

    assert is_short(of_each(4)["S00"])
    lag = lag_of(micro_batch(3, 0, of_each(4, 1), of_each(9, 4), of_each(12), seconds=5))
    assert [(each.next, each.behind, each.rate) for each in lag.streams] == [(9, 3, 1.0)] * SHORT_FROM


def test_a_query_that_reads_no_stream_cannot_be_behind() -> None:
    document = micro_batch(0, 0, None, {"epoch": "x", "messages": 3}, None)
    with pytest.raises(NatsError, match="the query copy reads no NATS stream"):
        lag_of(document)


def test_a_lag_says_when_what_waits_is_about_to_be_removed() -> None:
    at = datetime(2026, 11, 22, 12, tzinfo=UTC)
    waiting = StreamLag("S", 11, 21, 10, oldest=at - timedelta(hours=13))
    for max_age, expires in ((None, False), (86400.0, True), (2 * 86400.0, False)):
        stream = replace(waiting, max_age=max_age)
        assert stream.nears_max_age(at) == expires
        said = " (the stream removes messages older than 86,400 s)" in str(QueryLag("copy", 1, at, (stream,)))
        assert said == expires


def test_a_lag_is_a_sentence_for_logs() -> None:
    lag = lag_of(
        micro_batch(3, 0, offset(S=1), offset(S=1001), offset(S=5001)),
        micro_batch(4, 1, offset(S=1001), offset(S=2001), offset(S=5101)),
    )
    assert str(lag) == (
        "query copy, micro-batch 4: S is 3,100 messages behind, read at 1,000.0/s, growing by 100.0/s, caught up in 3 s"
    )
