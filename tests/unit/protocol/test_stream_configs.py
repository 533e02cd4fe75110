"""Configurations of streams that people write: times and names, and where a stream that exists is another one."""

from __future__ import annotations

import pickle
from dataclasses import astuple, dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_nats.protocol.keyvalue import bucket_config
from spark_nats.protocol.stream_configs import (
    RequestedConfig,
    convert_config,
    describe_differences,
    find_meant_field,
    parse_duration,
)

HOUR = 3600 * 10**9


def test_times_are_texts_with_a_unit_wherever_a_stream_has_one() -> None:
    config = convert_config(
        {
            "max_age": "48h",
            "duplicate_window": "90s",
            "subject_delete_marker_ttl": "1h30m",
            "consumer_limits": {"inactive_threshold": "500ms", "max_ack_pending": 7},
        }
    )
    assert config == {
        "max_age": 48 * HOUR,
        "duplicate_window": 90 * 10**9,
        "subject_delete_marker_ttl": HOUR + HOUR // 2,
        "consumer_limits": {"inactive_threshold": 5 * 10**8, "max_ack_pending": 7},
    }


def test_a_time_in_nanoseconds_stays_what_it_is() -> None:
    assert convert_config({"max_age": 86400 * 10**9}) == {"max_age": 24 * HOUR}


@pytest.mark.parametrize(
    ("text", "hours"), [("30d", 720), ("1.5h", 1.5), ("2h", 2), ("0", 0), ("0s", 0), ("1h 30m", 1.5), ("90m", 1.5)]
)
def test_a_time_is_read(text: str, hours: float) -> None:
    assert parse_duration(text) == hours * HOUR


@pytest.mark.parametrize("text", ["", "48", "h", "48 hours", "-1h", "1h!", "x1h", "1e3s", "999999d", "1h\n"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must be a time with its unit, such as 90s, 48h or 30d"):
        parse_duration(text)


def test_replicas_are_understood() -> None:
    assert convert_config({"replicas": 3}) == {"num_replicas": 3}


def test_a_field_that_only_a_newer_server_may_know_is_left_to_the_server() -> None:
    config = convert_config({"quantum_storage": {"qubits": "many"}, "placement": {"orbit": "low"}})
    assert config == {"quantum_storage": {"qubits": "many"}, "placement": {"orbit": "low"}}
    assert convert_config({"placement": {"replica": 1}})  # the most similar field is not one of a placement


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"max_agee": 1}, "has the field 'max_agee', which streams do not have; did you mean 'max_age'?"),
    ({"maxMsgs": 1}, "has the field 'maxMsgs', which streams do not have; did you mean 'max_msgs'?"),
    ({"Replicas": 1}, "did you mean 'replicas'?"),
    ({"replicas": 1, "num_replicas": 3}, "has both 'replicas' and 'num_replicas', which are the same; name it once"),
    ({"max_age": "48"}, "has a time as 'max_age' that is '48'; it must be a time with its unit"),
    ({"max_age": 1.5}, "has 1.5 as 'max_age', which must be a time such as \"48h\", or a whole number of nanoseconds"),
    ({"max_msgs": "many"}, "has \"many\" as 'max_msgs', which must be a whole number"),
    ({"max_msgs": True}, "has true as 'max_msgs', which must be a whole number"),
    ({"replicas": "3"}, "has \"3\" as 'replicas', which must be a whole number"),
    ({"allow_direct": 1}, "has 1 as 'allow_direct', which must be true or false"),
    ({"subjects": "orders.>"}, 'has "orders.>" as \'subjects\', which must be a list of texts, such as ["orders.>"]'),
    ({"subjects": [1]}, "has 1 as 'subjects', which must be a text"),
    ({"retention": "work"}, "has \"work\" as 'retention', which must be limits, interest or workqueue"),
    ({"consumer_limits": {"inactive_threshold": "5"}}, "as 'consumer_limits.inactive_threshold' that is '5'"),
    ({"placement": {"tag": ["ssd"]}}, "has the field 'placement.tag', which streams do not have; did you mean 'tags'?"),
    ({"placement": "ssd"}, "has \"ssd\" as 'placement', which must be an object"),
    ({"sources": [{"nam": "A"}]}, "has the field 'sources.nam', which streams do not have; did you mean 'name'?"),
]


@pytest.mark.parametrize(("document", "said"), WRONG)
def test_what_no_server_takes_is_said_in_our_words(document: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError) as raised:
        convert_config(document)
    assert said in str(raised.value)


@pytest.mark.parametrize(
    ("config", "name", "near"),
    [
        ({"max_messages": 5}, "max_messages", "max_msgs"),
        ({"Replica": 1}, "Replica", "replicas"),
        ({"quantum": 5}, "quantum", None),
        ({"sources": [{"name": "A"}, {"name": "B", "subject": "x"}]}, "subject", "filter_subject"),
        ({"mirror": {"external": {"subjects": "x"}}}, "subjects", None),
        ({"placement": {"replicas": 3}}, "replicas", None),
        ({"clusters": "c"}, "clusters", None),
        ({"allow_batched": True}, "allow_batched", None),  # is known here, but not to an older server
    ],
)
def test_a_field_that_a_server_does_not_know_may_mean_a_field_of_the_same_object(
    config: dict[str, Any], name: str, near: str | None
) -> None:
    assert find_meant_field(name, config) == near


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["name", "src", "x"]), inner),
)
NAMES = st.sampled_from(["max_age", "subjects", "sources", "placement", "metadata", "replicas", "num_replicas", "new"])


@given(st.dictionaries(NAMES | st.text(), ANYTHING), st.dictionaries(NAMES, ANYTHING))
def test_whatever_is_written_is_taken_or_refused_and_can_be_compared(
    document: dict[str, Any], actual: dict[str, Any]
) -> None:
    try:
        requested = convert_config(document)
    except ValueError:
        return
    assert describe_differences(requested, requested) == []
    assert len(describe_differences(requested, {})) <= len(requested.named)


# What a server makes of the smallest configuration (2.15).
ACTUAL: dict[str, Any] = {
    "name": "S",
    "subjects": ["a.>", "b.>"],
    "retention": "limits",
    "max_consumers": -1,
    "max_msgs": -1,
    "max_bytes": -1,
    "max_age": HOUR,
    "max_msgs_per_subject": -1,
    "max_msg_size": -1,
    "discard": "old",
    "storage": "file",
    "num_replicas": 1,
    "duplicate_window": 120 * 10**9,
    "compression": "none",
    "allow_direct": False,
    "mirror_direct": False,
    "sealed": False,
    "deny_delete": False,
    "deny_purge": False,
    "allow_rollup_hdrs": False,
    "consumer_limits": {},
    "allow_msg_ttl": False,
    "placement": {"cluster": "c", "tags": ["a", "b"]},
    "sources": [{"name": "A", "filter_subject": "x"}, {"name": "B"}],
    "metadata": {"owner": "us", "_nats.level": "5", "_nats.ver": "2.15.1"},
}


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"name": "S", "subjects": ["b.>", "a.>"], "max_age": "1h"},
        {"max_age": HOUR, "duplicate_window": 0, "replicas": 1, "storage": "file"},
        {"max_msgs": 0, "max_bytes": -1, "num_replicas": 0, "max_consumers": 0, "first_seq": 0},
        {"description": "", "no_ack": False, "persist_mode": "default", "compression": "none"},
        {"metadata": {"owner": "us"}, "placement": {"tags": ["b", "a"]}},
        {"sources": [{"name": "A", "opt_start_time": "2026-01-01T00:00:00Z"}, {"name": "B"}]},
        {"sources": [{"name": "B"}, {"name": "A"}], "consumer_limits": {"max_ack_pending": 0}},
        {"subject_delete_marker_ttl": "0s", "republish": None, "subjects": []},
    ],
)
def test_what_says_the_same_in_other_words_is_no_difference(document: dict[str, Any]) -> None:
    assert describe_differences(convert_config(document), ACTUAL) == []


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({"max_age": "48h"}, "max_age (has 1h, asked 48h)"),
        ({"max_age": "0"}, "max_age (has 1h, asked none)"),
        ({"max_age": "1500ms"}, "max_age (has 1h, asked 1500ms)"),
        ({"replicas": 3}, "replicas (has 1, asked 3)"),
        ({"subjects": ["a.>"]}, "subjects (has a.> b.>, asked a.>)"),
        ({"subjects": ["a.>", "a.>"]}, "subjects (has a.> b.>, asked a.> a.>)"),
        ({"sources": [{"name": "A"}, {"name": "A", "filter_subject": "x"}]}, "sources (has "),
        ({"max_msgs": 5}, "max_msgs (has no limit, asked 5)"),
        ({"retention": "workqueue"}, "retention (has limits, asked workqueue)"),
        ({"allow_atomic": True}, "allow_atomic (has none, asked true)"),
        ({"metadata": {"owner": "you"}}, "asked {"),
        ({"metadata": {"team": "none"}}, "asked {"),
        ({"metadata": {"max_msgs": "5"}}, "asked {"),
        ({"metadata": {"opt_start_time": "now"}}, "asked {"),
        ({"description": "default"}, "description (has none, asked default)"),
        ({"quantum": 1}, "quantum (has none, asked 1)"),
        ({"duplicate_window": "1ms"}, "duplicate_window (has 2m, asked 1ms)"),
    ],
)
def test_what_contradicts_is_named_with_both_values(document: dict[str, Any], said: str) -> None:
    (found,) = describe_differences(convert_config(document), ACTUAL)
    assert said in found


def test_another_start_of_a_source_is_a_difference_where_the_server_says_one() -> None:
    def sources(time: str) -> dict[str, Any]:
        return {"sources": [{"name": "A", "opt_start_time": time}]}

    asked = convert_config(sources("2026-01-01T00:00:00.5Z"))
    assert describe_differences(asked, sources("2026-01-01T01:00:00.500+01:00")) == []
    (found,) = describe_differences(asked, sources("2026-01-01T01:00:00.5Z"))
    assert "01:00:00.5Z" in found


def test_of_a_bucket_only_what_was_named_is_compared_by_the_names_of_buckets() -> None:
    asked = {"history": 5, "max_age": 2 * HOUR, "replicas": 3, "compression": False, "limit_marker_ttl": 10**9}
    has = bucket_config("B", {"replicas": 1}) | {"max_msgs_per_subject": 1, "max_age": 0, "compression": "s2"}
    assert describe_differences(bucket_config("B", asked), has) == [
        "history (has 1, asked 5)",
        "max_age (has none, asked 2h)",
        "replicas (has 1, asked 3)",
        "compression (has s2, asked none)",
        "limit_marker_ttl (has none, asked 1s)",
    ]
    assert describe_differences(bucket_config("B", {}), {"max_msgs_per_subject": 64}) == []


@dataclass
class _Options:
    requested: RequestedConfig


def test_what_was_named_goes_with_the_configuration_wherever_it_goes() -> None:
    requested = convert_config({"max_age": "48h"})
    copy = pickle.loads(pickle.dumps(requested))
    assert copy == requested
    assert copy.named == {"max_age": "max_age"}
    assert astuple(_Options(requested))[0] == requested
