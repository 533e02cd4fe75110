"""How far streaming queries are behind the streams that they read.

Spark's progress reports where a micro-batch ended and where the streams ended when it was planned. That is enough for
:func:`progress` and :class:`~spark_nats.listener.LagListener`. With the options of a connection, both also ask the
server where the streams end now and when the oldest unread message was stored.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from spark_nats import clock
from spark_nats.client.pool import borrow
from spark_nats.conditions.others import NOT_BEHIND
from spark_nats.errors import JetStreamError, NatsError, PermissionsError, StreamNotFoundError
from spark_nats.jetstream.api import JetStream
from spark_nats.jetstream.consuming.consumers import (
    create_ephemeral,
    delete_consumer_without_waiting,
    delivers_all_matches,
)
from spark_nats.jetstream.judgement import Judgement, is_empty_and_unchanged
from spark_nats.jetstream.messages import ask_first_message_from, ask_last_sequence
from spark_nats.jetstream.positions import Position
from spark_nats.jetstream.streams import LIMITS, StreamInfo
from spark_nats.jetstream.views import ask_and_judge, ask_first_new, ask_stream_info
from spark_nats.kinds.queries import parse_options
from spark_nats.kinds.streams.read.losses import removal_is_normal
from spark_nats.kinds.streams.read.positions import VERSION, OffsetEntry, QueryOffset, from_json
from spark_nats.options.hints import errors_for_spark
from spark_nats.options.option import read_option_value
from spark_nats.options.settings import Settings
from spark_nats.options.short_forms import is_short
from spark_nats.options.values import read_filters
from spark_nats.protocol.documents import parse_object, to_datetime
from spark_nats.protocol.keyvalue import bucket_of, key_filter, store_of

if TYPE_CHECKING:
    from pyspark.sql.connect.streaming.query import StreamingQuery as ConnectQuery
    from pyspark.sql.streaming.query import StreamingQuery

MAX_SAMPLES = 10
"""Maximum number of micro-batches from which rates are computed."""
MAX_PAUSE = 60.0
"""Maximum seconds between two micro-batches of a busy query; after a longer pause, the query counts as idle."""
MAX_TRIGGERS_MISSED = 10
"""Maximum number of its usual triggers for which a query may be silent until its rates are unknown."""

Key = tuple[int | str, str]
"""A stream of a query: the index of the source among the query's sources, or its name, and the stream's name."""


@dataclass(frozen=True, slots=True)
class StreamLag:
    """The lag of a query behind one stream.

    Attributes:
        stream: the stream's name.
        next: the next sequence that the query reads.
        end: the sequence after the last message for the query; ``next`` when unknown.
        behind: the number of unread messages, or a maximum where the server cannot count them; 0 if the stream has lost
            its end. If it is gone or was not asked about: unread sequences, with deleted messages and other subjects.
        rate: sequences per second that the query reads, over the last micro-batches; None when unknown, as when the
            query is silent.
        arriving: sequences per second by which the stream grows; None when unknown.
        catch_up: seconds until the query has caught up at these rates, where an unknown ``arriving`` counts as 0; 0 if
            it is not behind, else None if it does not catch up, if that is unknown, and while the query waits for
            more messages.
        oldest: when the oldest unread message was stored; None when there is none, or when the server was not asked.
        problem: the reason why the query cannot continue, or not without a loss; empty when there is none, or when the
            server was not asked.
        waits_for: new sequences that the query waits for before its next micro-batch; None when it does not wait, or
            when that is unknown.
        max_age: seconds for which the stream keeps messages; None without such a limit, or when the server was not
            asked.
        source: the index of the source that reads the stream, among the query's sources; its name where it has one and
            the lag is that of a checkpoint.
    """

    stream: str
    next: int
    end: int
    behind: int
    rate: float | None = None
    arriving: float | None = None
    catch_up: float | None = None
    oldest: datetime | None = None
    problem: str = ""
    waits_for: int | None = None
    max_age: float | None = None
    source: int | str = 0

    def nears_max_age(self, at: datetime) -> bool:
        """Return whether, at a given time, the oldest unread message is older than half of ``max_age``."""
        return bool(self.oldest and self.max_age and (at - self.oldest).total_seconds() > self.max_age / 2)


@dataclass(frozen=True, slots=True)
class QueryLag:
    """The lag of a query.

    Attributes:
        query: the query's name, or its id if it has none.
        batch: the last completed micro-batch; -1 when there is none.
        at: when that micro-batch ended, or when the server was asked.
        streams: the lag behind each stream in the query's offset: also one that it does not read any more, unless the
            option ``stream`` was given.
        ended: when that micro-batch ended; None when there is none.
        is_silent: whether, when the server was asked, the query had neither planned nor ended a micro-batch for more
            than a minute and ten times the usual time between two: it is idle, hangs or does not run.
    """

    query: str
    batch: int
    at: datetime
    streams: tuple[StreamLag, ...]
    ended: datetime | None = None
    is_silent: bool = False

    @property
    def behind(self) -> int:
        """The number of unread messages in all streams."""
        return sum(stream.behind for stream in self.streams)

    def __str__(self) -> str:
        streams = "; ".join(_describe_lag(each, self.at) for each in self.streams) or "there is no stream to read yet"
        since = f", ended at {self.ended:%Y-%m-%d %H:%M:%S}Z" if self.is_silent else ""
        return f"query {self.query}, micro-batch {self.batch}{since}: {streams}"


def progress(query: StreamingQuery | ConnectQuery, options: Mapping[str, str] | None = None) -> QueryLag | None:
    """Return the lag of a streaming query behind the streams that it reads.

    Args:
        query: a running or terminated query, of a classic session or of Spark Connect.
        options: the query's read options, by name: those of the connection, and ``stream``, ``subject`` or ``keys`` and
            ``minOffsetsPerTrigger`` if the query has them. With options, this process asks the server; without, the lag
            is that of the last micro-batch. ``stream`` leaves out other streams, as those that the query has read
            before; where it names none that the query has read, it is ignored.

    Returns:
        The lag; None before the first micro-batch has ended.

    Raises:
        NatsError: the query reads no NATS stream, an option is wrong, or the server cannot be asked.
    """
    return lag_of_progress([json.loads(each.json) for each in query.recentProgress[-MAX_SAMPLES:]], options)


def lag_of_progress(
    documents: Sequence[Mapping[str, Any]], options: Mapping[str, str] | None = None
) -> QueryLag | None:
    """Return the lag as :func:`progress` does, from a query's progress documents in Spark's JSON, oldest first."""
    if not documents:
        return None
    last = documents[-1]
    if all(parse_offset(source.get("endOffset")) is None for source in last["sources"]):
        raise NatsError(NOT_BEHIND(query=last.get("name") or last["id"]))
    samples = [sample for document in documents if (sample := parse_sample(document)).streams or document is last]
    settings = None if options is None else parse_options(options)
    return compute_or_ask_lag(str(last.get("name") or last["id"]), int(last["batchId"]), samples, settings)


# Arithmetic


class StreamSample(NamedTuple):
    """The progress of a query in one stream, in one of its micro-batches."""

    start: int  # the first sequence of the micro-batch
    position: Position  # the position of the query after the micro-batch
    end: int | None = None  # the sequence after the stream's last message when it was planned; None when unknown
    waits_for: int | None = None  # new sequences that the query waits for; None when unknown


class LagSample(NamedTuple):
    """The progress of a query in one of its micro-batches."""

    began: float  # start of the micro-batch, in seconds since 1970
    ended: float  # end of the micro-batch, in seconds since 1970
    streams: Mapping[Key, StreamSample]


def parse_sample(document: Mapping[str, Any]) -> LagSample:
    """Return the sample in one progress document, without the sources that are not NATS streams."""
    began = datetime.fromisoformat(document["timestamp"]).timestamp()
    duration = (document.get("durationMs") or {}).get("triggerExecution", document.get("batchDuration") or 0)
    streams: dict[Key, StreamSample] = {}
    for i, source in enumerate(document["sources"]):
        before, latest = parse_offset(source.get("startOffset")) or {}, parse_offset(source.get("latestOffset")) or {}
        for name, entry in (parse_offset(source.get("endOffset")) or {}).items():
            end = waits_for = None
            if name in latest:
                end = max(latest[name].end.next, entry.end.next)
                reach = _parse_if_text(source["latestOffset"])[name]
                if isinstance(reach, dict) and isinstance(least := reach.get("waits_for"), int):
                    waits_for = least
            streams[i, name] = StreamSample(first_sequence_of(entry, before.get(name)), entry.end, end, waits_for)
    return LagSample(began, began + duration / 1000, streams)


def parse_offset(document: Any) -> QueryOffset | None:
    """Parse an offset in NATS streams; return None when it belongs to core NATS or another source, or is invalid."""
    try:
        document = _parse_if_text(document)
        return from_json(document) if is_streams_offset(document) else None
    except (NatsError, ValueError):
        return None


def _parse_if_text(document: Any) -> Any:
    return parse_object(document) if isinstance(document, str) else document


def is_streams_offset(document: Any) -> bool:
    """Return whether a document has the form of an offset in NATS streams, even if it is damaged or empty."""
    if not isinstance(document, dict):
        return False
    entries = [entry for name, entry in document.items() if name != VERSION or not isinstance(entry, int)]
    return all(isinstance(entry, dict) or is_short(entry) for entry in entries) and (
        not document or any(is_short(entry) or "created" in entry or "next" in entry for entry in entries)
    )


def first_sequence_of(entry: OffsetEntry, before: OffsetEntry | None) -> int:
    """Return the first sequence of a micro-batch, given the end of the one before it, if any."""
    if before is not None:
        return min(before.end.next, entry.first)  # entry.first is smaller where the stream had lost its end
    return entry.first if entry.since is None else entry.since


def compute_or_ask_lag(
    query: str, batch: int, samples: Sequence[LagSample], options: Settings | None, planned: float = 0.0
) -> QueryLag:
    """Return the lag of a query.

    Args:
        query: the query's name, or its id.
        batch: the last completed micro-batch.
        samples: one or more samples, oldest first; the last one has the position.
        options: the query's options, where known; see :func:`progress`.
        planned: when the micro-batch that is under way was planned, in seconds since 1970; 0 when unknown.

    Raises:
        NatsError: the server cannot be asked.
    """
    last, given = samples[-1], options.given if options else {}
    named = [key for key in last.streams if key[1] in given.get("stream", ())]
    keys = sorted(named or last.streams, key=lambda key: (f"{key[0]:>9}", key[1]))  # numbers in their order
    at = last.ended if options is None else clock.time()
    distances = [later.began - one.began for one, later in pairwise(samples)] or [last.ended - last.began]
    is_silent = at - max(last.ended, planned) > max(MAX_PAUSE, MAX_TRIGGERS_MISSED * median(distances))
    least = given.get("minOffsetsPerTrigger")
    streams = tuple(_compute_stream_lag(key, samples, least, is_silent) for key in keys)
    if options is not None:
        streams = tuple(_ask_present_lags(options, last, streams))
        at = clock.time()
    ended = datetime.fromtimestamp(last.ended, UTC) if batch >= 0 else None
    return QueryLag(query, batch, datetime.fromtimestamp(at, UTC), streams, ended, is_silent and ended is not None)


def _compute_stream_lag(key: Key, samples: Sequence[LagSample], least: int | None, is_silent: bool) -> StreamLag:
    """Return the lag behind a stream; the query waits for ``least`` new sequences, unless its progress says more."""
    busy = [(sample, sample.streams[key]) for sample in _latest_busy_samples(key, samples)]
    (first, begin), (last, now) = busy[0], busy[-1]
    reached, end, arriving = now.position.next, now.end, None
    waits_for = least if now.waits_for is None else now.waits_for
    seconds = last.ended - first.began
    if waits_for is not None:  # the time that the query spends waiting must not lower its rate
        seconds = sum(sample.ended - sample.began for sample, here in busy if here.position.next > here.start)
    rate = (reached - begin.start) / seconds if seconds > 0 else None
    if end is not None and begin.end is not None and last.began > first.began:
        arriving = max(0.0, (end - begin.end) / (last.began - first.began))
    if is_silent:
        rate = arriving = None
    end = reached if end is None else end
    found = StreamLag(key[1], reached, end, 0, rate, arriving, waits_for=waits_for, source=key[0])
    return _with_end_and_catch_up(found, end, end - reached)


def _latest_busy_samples(key: Key, samples: Sequence[LagSample]) -> list[LagSample]:
    """Return the latest samples between which the query was busy: always behind, and without a long pause."""
    found = [samples[-1]]
    for sample in reversed(samples[-MAX_SAMPLES:-1]):
        here, later = sample.streams.get(key), found[0]
        if here is None or here.position.next > later.streams[key].position.next:  # the stream was recreated
            break
        caught_up = here.end is not None and here.position.next >= here.end
        if caught_up or later.began - sample.ended > MAX_PAUSE:
            break
        found.insert(0, sample)
    return found


def _with_end_and_catch_up(lag: StreamLag, end: int, behind: int) -> StreamLag:
    """Return a lag with another end of the stream and with the values that depend on the end."""
    unread = end - lag.next  # in sequences, like the rates, even if few of them are messages
    gain = 0.0 if lag.rate is None else lag.rate - (lag.arriving or 0.0)
    waits = lag.waits_for is not None and unread < lag.waits_for
    catch_up = 0.0 if behind <= 0 else unread / gain if gain > 0 and not waits else None
    return replace(lag, end=end, behind=max(0, behind), catch_up=catch_up)


def with_growth(before: QueryLag, now: QueryLag) -> QueryLag:
    """Return the later of two lags, with the growth of the streams between them."""
    found, seconds = [], (now.at - before.at).total_seconds()
    for one, other in zip(before.streams, now.streams, strict=True):
        grown = replace(other, arriving=max(0, other.end - one.end) / seconds if seconds > 0 else None)
        found.append(_with_end_and_catch_up(grown, other.end, other.behind))
    return replace(now, streams=tuple(found))


# Answers of the server


def _ask_present_lags(options: Settings, last: LagSample, streams: Sequence[StreamLag]) -> Iterator[StreamLag]:
    """Ask the server for the present lags, filtered by the options ``subject`` and, for KV buckets, ``keys``."""
    subject = options.given.get("subject")
    filters = read_option_value("subject", subject, read_filters) if subject else ()
    of_keys = tuple(map(key_filter, options.given.get("keys", ())))
    with errors_for_spark(), borrow(options.connection) as connection:
        js = JetStream(connection, options.api_prefix)
        for lag in streams:
            chosen = of_keys if of_keys and bucket_of(lag.stream) else filters
            yield _ask_stream_lag(js, lag, last.streams[lag.source, lag.stream].position, chosen)


def _ask_stream_lag(js: JetStream, lag: StreamLag, position: Position, filters: tuple[str, ...]) -> StreamLag:
    try:
        info = ask_stream_info(js, lag.stream)
    except StreamNotFoundError:
        return replace(lag, problem="the stream does not exist any more")
    found = ask_and_judge(js, position, info)
    if found is Judgement.RECREATED:
        problem = f"the stream was deleted and created again: the present one was created at {info.created}"
        return replace(lag, problem=problem)
    lag = replace(lag, max_age=info.max_age)
    nothing = _with_end_and_catch_up(lag, position.next, 0)
    if found is Judgement.TRUNCATED:
        problem = f"the stream ends at sequence {info.last_sequence}, before where the query is to go on"
        return replace(nothing, problem=problem)
    if found is Judgement.REWRITTEN:
        first = ask_first_new(js, position, info)
        problem = f"the stream has lost its end, and what it has from sequence {first} on is other messages"
        return replace(nothing, problem=problem)
    problem = ""
    # It is not known whether the query consumes: as for one that peeks, what another retention removes is no loss.
    replaces = bool(bucket_of(lag.stream) or store_of(lag.stream))
    is_normal = removal_is_normal(info.retention, filters, True, replaces)
    is_expected = is_normal or position.earliest or is_empty_and_unchanged(position, info)
    if position.next < info.first_sequence and not is_expected:
        problem = f"the stream begins at sequence {info.first_sequence}: what lies before it cannot be read any more"
    first = max(position.next, info.first_sequence)
    last = (
        info.last_sequence if not filters or first > info.last_sequence else ask_last_sequence(js, info.name, filters)
    )
    if last < first:
        return replace(_with_end_and_catch_up(lag, first, 0), problem=problem)
    oldest = ask_first_message_from(js, info.name, first, filters or (">",))
    behind = _ask_unread_or_maximum(js, info, first, last, filters)
    lag = _with_end_and_catch_up(replace(lag, problem=problem), last + 1, behind)
    return replace(lag, oldest=to_datetime(oldest.time)) if oldest else lag


def _ask_unread_or_maximum(js: JetStream, info: StreamInfo, first: int, last: int, filters: tuple[str, ...]) -> int:
    """Return the number of unread messages; the server counts them where there are filters or deleted messages.

    A stream with another retention than limits would refuse the consumer that counts, or keep messages for it. There,
    and where no consumer can be created, return a maximum.
    """
    most = min(info.messages, last + 1 - first)
    if info.retention == LIMITS and (filters or info.deleted):
        try:
            return _ask_match_count(js, info.name, first, filters)
        except (JetStreamError, PermissionsError):  # too many consumers, or the user may not create one
            pass
    return most


def _ask_match_count(js: JetStream, stream: str, first: int, filters: tuple[str, ...]) -> int:
    """Have a new consumer count; one for each filter where its server counts too few of several."""
    consumer = create_ephemeral(js, stream, first, filters, patience=0.0)
    delete_consumer_without_waiting(js, stream, consumer.name)
    if delivers_all_matches(consumer):
        return consumer.pending
    return sum(_ask_match_count(js, stream, first, (each,)) for each in filters)


# Text for log lines


def _describe_lag(lag: StreamLag, at: datetime) -> str:
    said = f"{lag.stream} is {lag.behind:,} messages behind"
    if lag.oldest is not None:
        said += f", the oldest of {lag.oldest:%Y-%m-%d %H:%M:%S}Z"
    if lag.nears_max_age(at):
        said += f" (the stream removes messages older than {lag.max_age:,g} s)"
    if lag.rate is not None:
        said += f", read at {lag.rate:,.1f}/s"
    if lag.arriving is not None:
        said += f", growing by {lag.arriving:,.1f}/s"
    if lag.waits_for is not None and 0 < lag.end - lag.next < lag.waits_for:
        said += f", waiting for {lag.waits_for:,}"
    if lag.behind and lag.catch_up is not None:
        said += f", caught up in {lag.catch_up:,.0f} s"
    return f"{said}, {lag.problem}" if lag.problem else said
