"""Wire bytes to columns and columns to wire bytes: no network, one core.

What is timed is CPU time, of all threads together: what one core would take, whatever else the machine is doing.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks import data, paths, targets
from benchmarks.measure import Comparison, Contender, Sample, compare, timed
from benchmarks.peers import nats_py
from benchmarks.settings import Settings
from benchmarks.targets import OURS
from spark_nats.client.transport import CHUNK
from spark_nats.kinds.queries import parse_write_options
from spark_nats.kinds.streams.dead_letters.letters import DeadLetters
from spark_nats.kinds.streams.read.columns import RowBuilder
from spark_nats.kinds.streams.write.columns import RowChecker
from spark_nats.kinds.streams.write.sink import PLAIN
from spark_nats.protocol.subject_columns import SubjectMatcher
from spark_nats.protocol.subjects import covers

_BATCH = 10_000  # rows in a batch of Spark's, when it writes
_COPY = Contender("memory copy", lambda: Sample(0, 1))
_PARSER_NOTE = (
    "its Parser with a client that counts the messages and drops them: control lines are parsed and payloads cut out, "
    "but subjects stay bytes, headers one block, and acknowledgement subjects are not read"
)


def run(settings: Settings) -> Iterator[Comparison]:
    """Measure everything."""
    yield from _decoding(settings)
    yield from _encoding(settings)
    yield _identifying(settings)
    yield from _matching(settings)


def _message(body: Callable[[int], bytes], number: int) -> bytes:
    return data.msg(number, body(number))


class _Wire:
    """Frames to be decoded, and a smaller part of them for slower decoders."""

    def __init__(self, frame: Callable[[int], bytes], megabytes: int) -> None:
        size = len(frame(0))
        self.count = (megabytes << 20) // size
        self.chunks = data.chunks(frame, self.count)
        self.size = sum(map(len, self.chunks))
        self.few_count = max(1, self.count // 4)
        self.few = data.chunks(frame, self.few_count)

    def sample(self, work: Callable[[list[bytes]], int | None]) -> Sample:
        """Time ``work`` on all of the wire; it returns how many messages it found, if it knows."""
        with timed(time.process_time) as seconds:
            found = work(self.chunks)
        return self._checked(found, self.count, self.size, seconds())

    def sample_few(self, work: Callable[[list[bytes]], int]) -> Sample:
        """Time ``work`` on a quarter of the wire."""
        with timed(time.process_time) as seconds:
            found = work(self.few)
        return self._checked(found, self.few_count, sum(map(len, self.few)), seconds())

    def _checked(self, found: int | None, count: int, size: int, seconds: float) -> Sample:
        if found is not None and found != count:
            raise AssertionError(f"{found} messages were found where there are {count}")
        return Sample(count, seconds, size)


def _core(chunks: list[bytes]) -> int:
    return sum(len(paths.core_columns(messages)[0]) for messages in paths.decode(chunks))


def _deliveries(chunks: list[bytes]) -> int:
    rows = RowBuilder(paths.SCHEMA)
    return sum(paths.delivered_columns(messages, rows, data.STREAM).num_rows for messages in paths.decode(chunks))


def _gotten(chunks: list[bytes]) -> int:
    rows = RowBuilder(paths.SCHEMA)
    return sum(paths.gotten_columns(messages, rows, data.STREAM).num_rows for messages in paths.decode(chunks))


def _check_payloads(wire: _Wire, body: Callable[[int], bytes]) -> None:
    """Nothing is measured that is not right: compare every payload."""
    found = [p for messages in paths.decode(wire.chunks) for p in messages.payloads().to_pylist()]
    if found != [body(i) for i in range(wire.count)]:
        raise AssertionError("payloads were decoded wrongly")


def _decoding(settings: Settings) -> Iterator[Comparison]:
    parser = "nats-py's parser"
    size = settings.megabytes

    def plain_contenders(wire: _Wire, decode: Callable[[list[bytes]], int]) -> list[Contender]:
        return [
            Contender(OURS, partial(wire.sample, decode)),
            replace(_COPY, run=partial(wire.sample, paths.copy)),
            Contender(parser, partial(wire.sample_few, nats_py.parse), _PARSER_NOTE),
            Contender(
                "nats-py, same values",
                partial(wire.sample_few, partial(nats_py.parse, values=True)),
                "its parser and its client's message objects, with headers and metadata; no queues, no event loop",
            ),
        ]

    remarks = [
        f"CPU time; fed {CHUNK >> 10} KiB at a time; memory copy: the same bytes into a buffer that stays in the cache"
    ]
    for length in (16, 128, 1024):
        body = partial(data.payload, size=length)
        wire = _Wire(partial(_message, body), size)
        _check_payloads(wire, body)
        title = f"codec: decode MSG, {length} bytes, all columns of core messages"
        yield compare(title, parser, plain_contenders(wire, _core), settings.rounds, remarks)

    body = partial(data.payload, size=128)
    total = 1_000_000
    plain = _Wire(lambda i: data.delivery(i, body(i), total), size)
    _check_payloads(plain, body)
    yield compare(targets.DECODE_DELIVERIES, parser, plain_contenders(plain, _deliveries), settings.rounds, remarks)

    direct = _Wire(lambda i: data.direct_get(i, body(i), total), size)
    _check_payloads(direct, body)
    contenders = [
        Contender(OURS, partial(direct.sample, _gotten)),
        Contender("spark-nats, deliveries of a consumer", partial(plain.sample, _deliveries), "the same messages"),
    ]
    reference = "spark-nats, deliveries of a consumer"
    yield compare(targets.DECODE_DIRECT, reference, contenders, settings.rounds, remarks[:1])

    with_headers = _Wire(lambda i: data.hmsg(i, body(i)), size)
    _check_payloads(with_headers, body)
    yield compare(
        targets.DECODE_HEADERS,
        "nats-py, same values",
        plain_contenders(with_headers, _core),
        settings.rounds,
        remarks,
    )

    hostile_body = partial(data.hostile_payload, size=128)
    hostile = _Wire(lambda i: data.delivery(i, hostile_body(i), total), size)
    _check_payloads(hostile, hostile_body)
    yield compare(
        targets.DECODE_HOSTILE,
        parser,
        [
            *plain_contenders(hostile, _deliveries),
            Contender("spark-nats, plain payloads", partial(plain.sample, _deliveries), "the same with ordinary text"),
        ],
        settings.rounds,
        remarks,
    )


def _encoding(settings: Settings) -> Iterator[Comparison]:
    count = (settings.megabytes << 20) // 200
    few = count // 4
    subjects, payloads = data.columns(count, 128)
    headers = data.header_column(count)
    few_subjects, few_payloads = subjects[:few].to_pylist(), payloads[:few].to_pylist()
    few_headers = [data.headers(i) for i in range(few)]
    batches = list(data.slices(count, _BATCH))

    def ours(with_headers: bool) -> Sample:
        with timed(time.process_time) as seconds:
            size = sum(paths.encode(subjects[s], payloads[s], headers[s] if with_headers else None) for s in batches)
        return Sample(count, seconds(), size)

    def checked(with_headers: bool) -> Sample:
        checker = RowChecker(parse_write_options({}, streaming=False), 1 << 20, None, names_stream=False)
        columns = {"subject": subjects, "payload": payloads, **({"headers": headers} if with_headers else {})}
        table = pa.RecordBatch.from_pydict(columns)
        with timed(time.process_time) as seconds:
            size = 0
            for s in batches:
                rows = checker.check_and_encode(table.slice(s.start, s.stop - s.start), s.start)
                size += paths.encode_with_blocks(rows.subjects, rows.payloads, rows.headers)
        return Sample(count, seconds(), size)

    def sorted_out(with_headers: bool) -> Sample:
        options = parse_write_options({"badRows": "drop"}, streaming=False)
        checker, bad = RowChecker(options, 1 << 20, None, names_stream=False), DeadLetters(options, PLAIN)
        every_tenth = pa.array(np.arange(count) % 10 == 0)
        broken = pc.if_else(every_tenth, pa.scalar("orders.*"), subjects)
        columns = {"subject": broken, "payload": payloads, **({"headers": headers} if with_headers else {})}
        table = pa.RecordBatch.from_pydict(columns)
        with timed(time.process_time) as seconds:
            size = 0
            for s in batches:
                rows = bad.encode_or_refuse_rows(checker, table.slice(s.start, s.stop - s.start), s.start)
                size += paths.encode_with_blocks(rows.subjects, rows.payloads, rows.headers)
        if bad.count != pc.sum(every_tenth).as_py():
            raise AssertionError(f"{bad.count} of {count} rows were set aside")
        return Sample(count, seconds(), size)

    def theirs(with_headers: bool) -> Sample:
        with timed(time.process_time) as seconds:
            size = nats_py.encode(few_subjects, few_payloads, few_headers if with_headers else None)
        return Sample(few, seconds(), size)

    for title, with_headers in ((targets.ENCODE_PUB, False), (targets.ENCODE_HPUB, True)):
        size = ours(with_headers).bytes
        wire = [bytes(min(CHUNK, size - i)) for i in range(0, size, CHUNK)]

        def copied(wire: list[bytes] = wire, size: int = size) -> Sample:
            with timed(time.process_time) as seconds:
                paths.copy(wire)
            return Sample(count, seconds(), size)

        yield compare(
            title,
            "nats-py",
            [
                Contender(OURS, partial(ours, with_headers), f"from Arrow columns, {_BATCH} rows at a time"),
                Contender("spark-nats, rows checked", partial(checked, with_headers), "with all that the sink checks"),
                Contender(
                    "spark-nats, bad rows set aside",
                    partial(sorted_out, with_headers),
                    "the same, of rows every tenth of which has a wildcard in its subject",
                ),
                replace(_COPY, run=copied),
                Contender("nats-py", partial(theirs, with_headers), "its client's _send_publish, the command dropped"),
            ],
            settings.rounds,
        )


def _identifying(settings: Settings) -> Comparison:
    count = (settings.megabytes << 20) // 200
    subjects, payloads = data.columns(count, 128)
    few = slice(0, count // 4)

    def ours() -> Sample:
        with timed(time.process_time) as seconds:
            found = paths.message_ids(subjects, payloads, _BATCH)
        if found != count:
            raise AssertionError(f"{found} ids were given to {count} rows")
        return Sample(count, seconds())

    def one_by_one() -> Sample:
        empty = hashlib.blake2b(digest_size=12, key=bytes(64))
        with timed(time.process_time) as seconds:
            for subject, payload in zip(subjects[few].to_pylist(), payloads[few].to_pylist(), strict=True):
                hashed = empty.copy()
                hashed.update(subject.encode())
                hashed.update(payload)
                hashed.digest()
        return Sample(few.stop, seconds())

    contenders = [
        Contender(OURS, ours, f"of subject, headers (there are none) and payload, {_BATCH} rows at a time, one task"),
        Contender("blake2b, one by one", one_by_one, "hashlib's, of subject and payload; neither text nor counting"),
    ]
    remarks = ["CPU time; spark-nats also counts the rows that were equal before, and makes text of the hashes"]
    title = "codec: message ids from content, 128 bytes"
    return compare(title, "blake2b, one by one", contenders, settings.rounds, remarks)


def _matching(settings: Settings) -> Iterator[Comparison]:
    count = max(_BATCH, settings.megabytes * 5000)
    subjects = [f"orders.eu.{i % 100_000}.x" for i in range(count)]
    column = pa.array([subject.encode() for subject in subjects], pa.binary())
    batches = [column[rows] for rows in data.slices(count, _BATCH)]
    fifty = [f"orders.*.{i}.x" for i in range(50)]
    few = subjects[: count // 100]

    def ours(filters: list[str]) -> Sample:
        matcher = SubjectMatcher(filters)
        if matcher.match(column[: len(few)]).tolist() != one_by_one(filters):
            raise AssertionError(f"subjects were matched wrongly with {filters}")
        with timed(time.process_time) as seconds:
            for batch in batches:
                paths.match(matcher, batch)
        return Sample(count, seconds())

    def one_by_one(filters: list[str]) -> list[bool]:
        return [any(covers(each, subject) for each in filters) for subject in few]

    def theirs() -> Sample:
        with timed(time.process_time) as seconds:
            one_by_one(fifty)
        return Sample(len(few), seconds())

    yield compare(
        targets.MATCH,
        "50 wildcards, one by one",
        [
            Contender("1 beginning", partial(ours, ["orders.>"]), "orders.>"),
            Contender("1 wildcard", partial(ours, fifty[:1]), "orders.*.0.x, and so on; literal: orders.eu.0.x"),
            Contender("10 wildcards", partial(ours, fifty[:10])),
            Contender("50 wildcards", partial(ours, fifty)),
            Contender("50 literal", partial(ours, subjects[:50])),
            Contender("50 wildcards, one by one", theirs, "each subject against each filter, in Python"),
        ],
        settings.rounds,
        [f"CPU time; subjects as orders.eu.4711.x, {_BATCH} at a time"],
    )
