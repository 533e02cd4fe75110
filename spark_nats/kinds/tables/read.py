"""Reading the account's inventory as tables, in batches: one partition, which requests lists from servers."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice

import pyarrow as pa

from spark_nats.conditions.jetstream import STREAM_NOT_FOUND
from spark_nats.errors import JetStreamError, NatsError, NatsTimeoutError, StreamNotFoundError
from spark_nats.jetstream import listing
from spark_nats.jetstream.api import JetStream, JetStreamLease, Request, bad_answer_is_protocol_error
from spark_nats.jetstream.messages import try_asking
from spark_nats.jetstream.views import StateOf
from spark_nats.kinds.tables.options import BUCKETS, CONSUMERS, STREAMS, SUBJECTS, TableReadOptions
from spark_nats.kinds.tables.wire import Row, bucket_row, consumer_row, long_or_none, misnamed_row, stream_row
from spark_nats.kinds.task import BatchReader, Partition, leased_jetstream
from spark_nats.protocol.api import Api, ErrCode
from spark_nats.protocol.keyvalue import bucket_of
from spark_nats.protocol.subjects import name_violation
from spark_nats.sparkapi import arrow_schema

STREAMS_AT_ONCE = 64
"""Maximum number of streams that one round trip queries."""
ROWS_AT_ONCE = 8_192
"""Maximum number of rows of one Arrow batch."""


@dataclass(frozen=True)
class TablePartition(Partition):
    """What the table covers.

    Attributes:
        streams: names of streams.
    """

    streams: tuple[str, ...]


class NatsTableReader(BatchReader[TableReadOptions, TablePartition]):
    """Reads a table of the account's inventory."""

    def _plan(self, js: JetStream) -> list[TablePartition]:
        """Request the list of streams."""
        return [TablePartition(ask_and_check_stream_names(js, self._options.streams, self._options.pattern))]

    def _read_rows(self, partition: TablePartition) -> Iterator[pa.RecordBatch]:
        schema = arrow_schema(self._schema)
        with leased_jetstream(self._options, f"reading the table of {self._options.table}") as lease:
            for answer in self._request_rows(lease, partition.streams):
                rows = iter(answer)
                while some := list(islice(rows, ROWS_AT_ONCE)):
                    yield pa.RecordBatch.from_pylist(some, schema)

    def _request_rows(self, lease: JetStreamLease, streams: tuple[str, ...]) -> Iterator[Iterable[Row]]:
        """Ask one question after the other, and yield the rows of each answer."""
        options, ask = self._options, lease.ask_with_retries
        if options.table == STREAMS:
            yield ask(partial(request_stream_rows, names=streams, row_of=stream_row))
        elif options.table == BUCKETS:
            yield ask(partial(request_stream_rows, names=[*filter(bucket_of, streams)], row_of=bucket_row))
        for i in range(0, len(streams), STREAMS_AT_ONCE):
            some = streams[i : i + STREAMS_AT_ONCE]
            if options.table == CONSUMERS:
                yield ask(partial(request_consumer_rows, streams=some))
            elif options.table == SUBJECTS:
                holding, problems = ask(partial(ask_holding_and_problem_rows, streams=some))
                yield problems
                for stream in holding:
                    yield ask(partial(ask_subject_rows, stream=stream, filters=options.filters))


_OFFLINE = frozenset({ErrCode.STREAM_OFFLINE, ErrCode.STREAM_OFFLINE_REASON})


def ask_and_check_stream_names(js: JetStream, names: Sequence[str], pattern: re.Pattern[str] | None) -> tuple[str, ...]:
    """Return the streams that are named, or that match the pattern, or else all streams of the account.

    Raises:
        StreamNotFoundError: a stream that is named does not exist.
        NatsError: the request failed.
    """
    there = listing.ask_stream_names(js)
    if pattern is not None:
        return tuple(name for name in there if listing.matches_stream_name(pattern, name))
    with listing.suggesting_names(js, names):
        for name in names:
            if name not in there:
                raise StreamNotFoundError(STREAM_NOT_FOUND(stream=name))
    return tuple(names or there)


def request_stream_rows(js: JetStream, names: Collection[str], row_of: Callable[[listing.Listed], Row]) -> list[Row]:
    """Return a row for each of these streams that exists, as ``row_of`` makes it."""
    listed, wanted = listing.ask_all_streams(js), frozenset(names)
    with bad_answer_is_protocol_error(Api.STREAM_LIST):
        return [row_of(each) for each in listed if each.name in wanted]


def request_consumer_rows(js: JetStream, streams: Sequence[str]) -> list[Row]:
    """Return a row for each consumer of some streams; the first pages of the lists share one round trip.

    A stream that is offline, or whose name cannot be part of a subject, has one row with its problem. A stream that no
    longer exists has none.
    """
    rows = [misnamed_row(each) for each in streams if name_violation(each)]
    requests = [Request(Api.CONSUMER_LIST, (each,), {"offset": 0}) for each in streams if not name_violation(each)]
    for request, answer in zip(requests, js.request_all(requests), strict=True):
        (stream,) = request.names
        if not isinstance(answer, NatsError):
            listed = listing.ask_all_consumers(js, stream, answer)
            with bad_answer_is_protocol_error(Api.CONSUMER_LIST, stream):
                rows += [consumer_row(stream, each) for each in listed]
        elif isinstance(answer, JetStreamError) and answer.err_code in _OFFLINE:
            rows.append({"stream": stream, "problem": answer.description})
        elif not isinstance(answer, StreamNotFoundError):
            raise answer
    return rows


def ask_holding_and_problem_rows(js: JetStream, streams: Sequence[str]) -> tuple[list[str], list[Row]]:
    """Return which streams hold messages, and a row with its problem for each stream that cannot be queried.

    A stream that no longer exists is in neither list. All requests share one round trip, so there is one wait for the
    streams that do not answer.
    """
    rows = [misnamed_row(each) for each in streams if name_violation(each)]
    holding = []
    named = [each for each in streams if not name_violation(each)]
    for stream, state in zip(named, try_asking(js, [StateOf(each) for each in named]), strict=True):
        if isinstance(state, NatsError):
            rows += _problem_row_or_raise(stream, state)
        elif state.messages:
            holding.append(stream)
    return holding, rows


def ask_subject_rows(js: JetStream, stream: str, filters: Sequence[str]) -> Iterator[Row]:
    """Return a row for each subject that has messages in a stream and that a filter matches; without filters, for all.

    A stream that cannot be queried has one row with its problem. A stream that no longer exists has none.
    """
    try:
        counts = [listing.ask_subject_counts(js, stream, each) for each in filters or (">",)]
    except NatsError as error:
        return iter(_problem_row_or_raise(stream, error))
    listing.warn_of_non_utf8(stream, chain.from_iterable(counts), "the row of a name has the messages of all of them")
    return (
        {"stream": stream, "subject": subject, "messages": long_or_none(messages)}
        for found in counts
        for subject, messages in found.items()
    )


def _problem_row_or_raise(stream: str, error: NatsError) -> list[Row]:
    """Return the row of a stream that cannot be queried now, or no row if it is gone; raise any other error."""
    if isinstance(error, StreamNotFoundError):
        return []
    if isinstance(error, NatsTimeoutError | JetStreamError) and error.may_pass(established=False):
        return [{"stream": stream, "problem": str(error)}]
    raise error
