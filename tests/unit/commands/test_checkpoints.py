"""Checkpoints that are damaged: whatever is wrong, one sentence says in which file, and nothing is made of it."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from spark_nats.commands.checkpoints import read_checkpoint
from spark_nats.errors import NatsError
from spark_nats.kinds.streams.read.positions import from_json
from spark_nats.lag import compute_or_ask_lag, parse_offset
from spark_nats.protocol.subjects import name_violation

MADE = "2026-11-01T08:00:00Z"
HEAD = '{"batchWatermarkMs":0,"batchTimestampMs":1795000000000,"conf":{}}'
OFFSET: dict[str, Any] = {
    "ORDERS": {"created": MADE, "next": 81, "since": 41, "first": 43},
    "PAYMENTS": {"created": MADE, "next": 8, "earliest": True},
}
LAST = f"v1\n{HEAD}\n{json.dumps(OFFSET)}"


def checkpoint(folder: Path, last: str | bytes = LAST, metadata: str | bytes = '{"id":"86cc2d8b"}') -> Path:
    """A checkpoint with three micro-batches, of which the last one is under way."""
    for log in ("offsets", "commits"):
        (folder / log).mkdir(parents=True)
    files: dict[str, str | bytes] = {"metadata": metadata, "offsets/0": LAST, "offsets/1": last, "offsets/2": last}
    files |= {"commits/0": "v1\n{}", "commits/1": "v1\n{}"}
    for name, content in files.items():
        (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
    return folder


def sentence(folder: Path) -> str:
    with pytest.raises(NatsError) as raised:
        read_checkpoint(str(folder))
    return str(raised.value)


def offset(**entry: Any) -> str:
    return json.dumps({"ORDERS": {"created": MADE, "next": 81, **entry}})


DAMAGED = {
    "a fraction": (offset(next=81.7), "'next' is not an integer from 1 to 2^64 - 1"),
    "true": (offset(next=True), "'next' is not an integer from 1 to 2^64 - 1"),
    "zero": (offset(next=0), "'next' is not an integer from 1 to 2^64 - 1"),
    "a text": (offset(next="81"), "'next' is not an integer from 1 to 2^64 - 1"),
    "below zero": (offset(**{"since": -1, "first": 1}), "'since' is not an integer from 1 to 2^64 - 1"),
    "no beginning": (offset(since=1), "'first' is not an integer from 1 to 2^64 - 1"),
    "no time": (offset(created=5), "'created' is not a text"),
    "a wildcard": (
        json.dumps({"ORDERS.>": {"created": MADE, "next": 1}}),
        "'ORDERS.>' cannot name a stream: it contains",
    ),
    "white space": (json.dumps({"a b": {"created": MADE, "next": 1}}), "'a b' cannot name a stream: it contains white"),
    "no name": (json.dumps({"": {"created": MADE, "next": 1}}), "'' cannot name a stream: it is empty"),
    "half a character": ('{"\\ud800": {"created": "x", "next": 1}}', "surrogates not allowed"),
    "cut off": (offset()[:-4], "its line 3 is no JSON"),
    "nested": ('{"ORDERS":' + '{"a":' * 100_000 + "1" + "}" * 100_001, "it is nested too deeply"),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_what_is_wrong_with_an_offset_is_said_and_in_which_file(damage: str, tmp_path: Path) -> None:
    line, reason = DAMAGED[damage]
    told = sentence(checkpoint(tmp_path / "c", f"v1\n{HEAD}\n{line}"))
    assert told.startswith(f"'offsets/2' of the checkpoint '{tmp_path}/c' is damaged: ")
    assert reason in told
    assert "\n" not in told
    assert len(told) < 1500


HEADS = ["", "{}", "[]", "5", '{"batchTimestampMs": true}', '{"batchTimestampMs": 1e400}', '{"a":' * 100_000]
HEADS += ['{"batchTimestampMs": "1"}', '{"batchTimestampMs": 9999999999999999999}', '{"batchTimestampMs": -1}']


@pytest.mark.parametrize("head", HEADS, ids=lambda head: head[:40])
def test_a_time_that_is_none_is_not_as_spark_writes_it(head: str, tmp_path: Path) -> None:
    told = sentence(checkpoint(tmp_path / "c", f"v1\n{head}\n{offset()}"))
    assert told == f"'offsets/2' of the checkpoint '{tmp_path}/c' is not in Spark's format"


def test_sources_of_others_are_left_alone(tmp_path: Path) -> None:
    others = ["-", "0", '{"topic":{"0":23}}', '{"logOffset":7}', "{'of': Kinesis?"[1:], '"text"', "[1]"]
    found = read_checkpoint(str(checkpoint(tmp_path / "c", "\n".join(["v1", HEAD, *others, offset()]))))
    assert list(found.samples[-1].streams) == [(len(others), "ORDERS")]


@pytest.mark.parametrize("later", [{"version": 2}, {"ORDERS": {**OFFSET["ORDERS"], "rank": 7}}])
def test_an_offset_of_a_later_version_is_named(later: dict[str, Any], tmp_path: Path) -> None:
    text = json.dumps({**OFFSET, **later})
    told = sentence(checkpoint(tmp_path / "c", f"v1\n{HEAD}\n{text}"))
    assert "which this version" in told
    assert "a later one has written it" in told
    assert parse_offset(text) is None


def test_metadata_that_is_none_leaves_the_query_unknown(tmp_path: Path) -> None:
    for i, metadata in enumerate(["", "[]", "{}", '{"id": 5}', '{"id": "\\ud800"}', '{"a":' * 100_000]):
        assert read_checkpoint(str(checkpoint(tmp_path / str(i), metadata=metadata))).query == "unknown"


def test_a_progress_that_says_nothing_is_none_of_ours() -> None:
    for document in ("{", '{"a":' * 100_000, '{"S": {"next": 5}}', {"S": {"created": MADE, "next": True}}, "5", None):
        assert parse_offset(document) is None


@pytest.mark.parametrize("entry", [{"next": 81.7}, {"next": True}, {"since": "1", "first": 1}])
def test_a_query_does_not_go_on_at_what_is_no_sequence(entry: dict[str, Any]) -> None:
    with pytest.raises(NatsError, match="is not one of this source"):
        from_json({"ORDERS": {"created": MADE, "next": 81, **entry}})


VALUES = st.sampled_from(
    [None, True, False, 0, -1, 1, 81.7, 2**64, 10**400, "", "a b", "\ud800", ">", [], {}, [[]], {"a": {}}]
)
LEAVES: list[tuple[Any, ...]] = [(stream, field) for stream, entry in OFFSET.items() for field in entry]


@st.composite
def damages(draw: st.DrawFn) -> bytes:
    """The text of a file with something wrong in it."""
    how = draw(st.sampled_from(["cut", "flip", "insert", "exchange", "rename", "nest"]))
    raw = LAST.encode()
    if how == "cut":
        return raw[: draw(st.integers(0, len(raw)))]
    if how in ("flip", "insert"):
        at = draw(st.integers(0, len(raw) - 1))
        return raw[:at] + draw(st.binary(min_size=1, max_size=3)) + raw[at + (how == "flip") :]
    document = json.loads(json.dumps(OFFSET))
    stream, field = draw(st.sampled_from(LEAVES))
    if how == "exchange":
        document[stream][field] = draw(VALUES)
    elif how == "rename":
        document[draw(st.text(max_size=5) | VALUES.filter(lambda value: isinstance(value, str)))] = draw(
            st.just(document.pop(stream)) | VALUES
        )
    else:
        depth = draw(st.sampled_from([1, 50, 990, 2000, 100_000]))
        text = json.dumps(OFFSET).replace(str(document[stream][field]), "[" * depth + "]" * depth, 1)
        return f"v1\n{HEAD}\n{text}".encode()
    return f"v1\n{HEAD}\n{json.dumps(document)}".encode()


@settings(max_examples=40)
@given(damages(), st.booleans())
@example(b"", True)
@example(b"\xff\xfe", False)
def test_whatever_is_damaged_is_one_sentence_or_a_sound_position(content: bytes, in_metadata: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        where = checkpoint(Path(folder) / "c", **{"metadata" if in_metadata else "last": content})
        try:
            found = read_checkpoint(str(where))
        except NatsError as error:
            told = str(error)
        else:
            told = ""
    if told:
        assert str(where) in told
        assert "\n" not in told
        told.encode()
        return
    found.query.encode()
    for _, name in found.samples[-1].streams:
        assert name_violation(name) is None
        name.encode()
    for lag in compute_or_ask_lag("", 0, found.samples, None).streams:
        assert type(lag.next) is int
        assert lag.next >= 1
