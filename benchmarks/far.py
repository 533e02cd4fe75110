"""Servers that are 0, 20 and 100 ms away: round trips of a micro-batch, and rates of reading and writing."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa

from benchmarks import data, paths
from benchmarks.distance import Distance
from benchmarks.environment import Server, connect, publisher_to, start_server
from benchmarks.measure import Comparison, Contender, Grid, LeftOut, Sample, Table, compare, progress, timed
from benchmarks.peers import kafka, nats_py
from benchmarks.peers.kafka import Broker, KafkaMissingError
from benchmarks.session import Session, start_spark
from benchmarks.settings import Settings
from benchmarks.spark import PHASES, triggers
from spark_nats.options import options_of_urls

_ROUND_TRIPS = (0, 20, 100)  # ms
_SIZE = 128
_BATCH = 10_000  # rows in a batch of Spark's, when it writes
_FETCH = 1000
_FEW = 12  # nats-py handles a twelfth
_WARM = 2  # micro-batches at each distance
_PINGS = 15


def run(settings: Settings) -> Iterator[Table]:
    """Measure everything; Kafka where it can be had."""
    if settings.servers:
        yield LeftOut("far", "a server that is given is as far away as it is")
        return
    with start_server(settings) as server, Distance(urlsplit(server.url).port or 4222) as distance:
        yield _pings(distance)
        yield _read(settings, server, distance)
        yield _write(settings, server, distance)
        with start_spark() as session:
            yield _from_stream_to_stream(settings, server, distance, session)
    try:
        progress("far: Maven looks for Spark's connector for Kafka and a broker")
        jars, version = kafka.connector()
        broker_jars = kafka.broker_jars()
    except KafkaMissingError as error:
        yield LeftOut("far: Kafka", str(error))
        return
    with (
        kafka.start_broker(broker_jars) as broker,
        Distance(broker.behind, broker.proxy) as distance,
        start_spark(jars=jars) as session,
    ):
        table = _from_topic_to_topic(settings, broker, distance, session)
        table.remarks.append(f"Kafka {broker.version}, connector {version}")
        yield table


# Without Spark


def _read(settings: Settings, server: Server, distance: Distance) -> Comparison:
    count = settings.messages
    with server.stream("read.>") as stream:
        server.fill(stream, "read.", count, _SIZE)

        def ours(url: str) -> Sample:
            with timed() as seconds:
                rows = paths.read_stream(url, stream, 1, count + 1)
            if rows != count:
                raise AssertionError(f"{rows} rows were read instead of {count}")
            return Sample(count, seconds())

        def theirs(url: str) -> Sample:
            few = count // _FEW
            with timed() as seconds:
                nats_py.read_stream(url, stream, few, _FETCH)
            return Sample(few, seconds())

        remark = (
            f"nats-py: pull subscription, fetch of {_FETCH}; both with connecting, and making and deleting a consumer"
        )
        return _compare("far: a stream to Arrow, by the round trip", settings, distance, ours, theirs, remark)


def _write(settings: Settings, server: Server, distance: Distance) -> Comparison:
    count, few = settings.published, max(settings.published // _FEW, 20_000)
    subjects, payloads = data.columns(count, _SIZE, "keep.")
    few_subjects, few_payloads = subjects[:few].to_pylist(), payloads[:few].to_pylist()

    def ours(url: str) -> Sample:
        with server.stream("keep.>") as stream:
            seconds = paths.publish_stream(url, stream, subjects, payloads, _BATCH)
            server.check(stream, count)
        return Sample(count, seconds)

    def theirs(url: str) -> Sample:
        with server.stream("keep.>") as stream:
            seconds = nats_py.publish_stream(url, few_subjects, few_payloads)
            server.check(stream, few)
        return Sample(few, seconds)

    remark = "nats-py: publish_async, at most 4000 in flight; ours: at most 8192; both without connecting"
    return _compare("far: Arrow to a stream, acknowledged, by the round trip", settings, distance, ours, theirs, remark)


def _compare(
    title: str,
    settings: Settings,
    distance: Distance,
    ours: Callable[[str], Sample],
    theirs: Callable[[str], Sample],
    remark: str,
) -> Comparison:
    def away(milliseconds: int, work: Callable[[str], Sample]) -> Sample:
        distance.round_trip = milliseconds / 1000
        return work(distance.url)

    contenders = [
        Contender(f"{name}, {milliseconds} ms", partial(away, milliseconds, work))
        for name, work in (("spark-nats", ours), ("nats-py", theirs))
        for milliseconds in _ROUND_TRIPS
    ]
    found = compare(title, "spark-nats, 0 ms", contenders, settings.rounds, [remark])
    distance.round_trip = 0.0
    return found


# With Spark


def _from_stream_to_stream(settings: Settings, server: Server, distance: Distance, session: Session) -> Grid:
    here = options_of_urls(distance.url)
    with server.stream("from.>") as source, server.stream("to.>") as target, connect(server.url) as near:
        publisher = publisher_to(near, source)

        def one_more() -> None:
            publisher.publish(pa.array(["from.message"]), pa.array([b"x" * _SIZE]))
            publisher.wait_for_sent_rows()

        options = {**here, "stream": source, "startingOffsets": "earliest"}
        frame = session.spark.readStream.format("nats").options(**options).load()
        moved = frame.selectExpr("concat('to.', subject) AS subject", "payload")
        query = partial(triggers, frame=moved, target="nats", options={**here, "stream": target})
        table = _micro_batches("spark-nats, stream to stream", settings, distance, session, query, one_more)
        server.check(target, len(_distances(settings)))
    return table


def _from_topic_to_topic(settings: Settings, broker: Broker, distance: Distance, session: Session) -> Grid:
    jvm = session.spark.sparkContext._jvm
    servers = {"kafka.bootstrap.servers": f"127.0.0.1:{distance.port}"}
    with (
        broker.topic(jvm, 1) as source,
        broker.topic(jvm, 1) as target,
        broker.sender(jvm, source) as one_more,
    ):
        options = {**servers, "subscribe": source, "startingOffsets": "earliest"}
        frame = session.spark.readStream.format("kafka").options(**options).load().select("key", "value")
        query = partial(triggers, frame=frame, target="kafka", options={**servers, "topic": target})
        name = "Spark's connector for Kafka, topic to topic"
        return _micro_batches(name, settings, distance, session, query, one_more)


def _distances(settings: Settings) -> list[int]:
    """Return the round trip of each micro-batch in milliseconds: they alternate, forwards and backwards."""
    return _alternating(_WARM + (5 if settings.quick else 20))


def _alternating(times: int) -> list[int]:
    return [at for i in range(times) for at in (_ROUND_TRIPS[::-1] if i % 2 else _ROUND_TRIPS)]


def _micro_batches(
    name: str,
    settings: Settings,
    distance: Distance,
    session: Session,
    query: Callable[..., list[Any]],
    one_more: Callable[[], None],
) -> Grid:
    """Run a query that has one message in each micro-batch, while the distance changes from one to the next.

    Args:
        name: of the table.
        settings: how many.
        distance: what the query is connected by.
        session: where it runs.
        query: runs it, as :func:`triggers` does, whose remaining arguments it takes.
        one_more: stores a message for it.
    """
    title = f"far: a micro-batch of one message, {name}, by the round trip"
    distances = _distances(settings)
    following = iter(distances)

    def change() -> None:
        distance.round_trip = next(following) / 1000
        time.sleep(2 * max(_ROUND_TRIPS) / 1000)  # by then, what the query does began at this distance
        one_more()

    checkpoint = f"{session.directory}/far-{time.time_ns()}"
    found = query(title=title, checkpoint=checkpoint, count=len(distances), before_each=change)
    distance.round_trip = 0.0
    warm = _WARM * len(_ROUND_TRIPS)
    table = _table(title)
    for phase in PHASES:
        taken = [float(progress.durationMs.get(phase, 0)) for progress in found]
        _add(table, phase, distances[warm:], taken[warm:])
    table.remarks = [
        "durationMs of the query's progress; medians",
        "round trips: what it takes longer than its neighbour at 0 ms, by the round trip; medians",
    ]
    return table


def _pings(distance: Distance) -> Grid:
    table = _table("far: the proxy alone")
    found = []
    distances = _alternating(_PINGS)
    with connect(distance.url) as connection:
        for milliseconds in distances:
            distance.round_trip = milliseconds / 1000
            with timed() as seconds:
                connection.flush()
            found.append(seconds() * 1000)
    distance.round_trip = 0.0
    _add(table, "PING to PONG", distances, found)
    return table


def _table(title: str) -> Grid:
    round_trips = [f"round trips at {milliseconds} ms" for milliseconds in _ROUND_TRIPS if milliseconds]
    return Grid(title, [*(f"{milliseconds} ms: p50 ms" for milliseconds in _ROUND_TRIPS), *round_trips])


def _add(table: Grid, name: str, distances: list[int], found: list[float]) -> None:
    """Add a row of what took so many milliseconds at these distances, which are all of them again and again."""
    taken: dict[int, list[float]] = {at: [] for at in _ROUND_TRIPS}
    for at, milliseconds in zip(distances, found, strict=True):
        taken[at].append(milliseconds)
    longer = {at: [far - near for far, near in zip(taken[at], taken[0], strict=True)] for at in _ROUND_TRIPS if at}
    table.rows[name] = [
        *(statistics.median(values) for values in taken.values()),
        *(statistics.median(values) / at for at, values in longer.items()),
    ]
