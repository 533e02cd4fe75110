"""Spark's connector for Kafka with one broker, beside ours with one server: the same rows in the same Spark."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from benchmarks.environment import CpuMeter, Server, start_server
from benchmarks.measure import Comparison, Contender, LeftOut, Sample, Table, compare, progress, timed
from benchmarks.peers import kafka
from benchmarks.peers.kafka import Broker, KafkaMissingError
from benchmarks.session import Session, start_spark
from benchmarks.settings import Settings
from benchmarks.spark import message_frame, noop

_PARTITIONS = 2
_MANY = 10_000_000
_PATIENCE = 600
_NATS, _KAFKA = "NATS, spark-nats", "Kafka, Spark's connector"


def run(settings: Settings) -> Iterator[Table]:
    """Measure everything, where Kafka can be had."""
    if settings.quick:
        settings = replace(settings, rounds=1)
    try:
        progress("kafka: Maven looks for Spark's connector and a broker")
        jars, version = kafka.connector()
        broker_jars = kafka.broker_jars()
    except KafkaMissingError as error:
        yield LeftOut("kafka", str(error))
        return
    with (
        start_server(settings) as server,
        kafka.start_broker(broker_jars) as broker,
        start_spark(jars=jars) as session,
    ):
        versions = f"Kafka {broker.version}, connector {version}"
        sides = _Sides(server, broker, session, versions, settings.rounds)
        yield from sides.read(settings.messages)
        yield sides.write(settings.published)
        if not settings.quick:
            # Each of these runs is long, and all is warm by now.
            sides = _Sides(server, broker, session, versions, min(settings.rounds, 2), warm=True)
            yield from sides.read(_MANY)
            yield sides.write(_MANY)


class _Sides:
    """What both are asked to do.

    Args:
        server: the server of NATS.
        broker: the broker of Kafka.
        session: where both connectors are.
        versions: a remark.
        rounds: how often.
        warm: whether both have done the same before.
    """

    def __init__(
        self, server: Server, broker: Broker, session: Session, versions: str, rounds: int, warm: bool = False
    ) -> None:
        self._server = server
        self._broker = broker
        self._session = session
        self._versions = versions
        self._rounds = rounds
        self._warm = warm
        self._spark = session.spark

    def read(self, count: int) -> Iterator[Comparison]:
        """Read everything there is into rows with all columns: as a batch, and with a streaming query that ends."""
        with self._server.stream("keep.>") as stream, self._broker.topic(self._jvm, _PARTITIONS) as topic:
            frame = self._frame(count)
            ours = {**self._server.options, "stream": stream}
            frame.write.format("nats").options(**ours).mode("append").save()
            self._server.check(stream, count)
            keyed = frame.selectExpr("subject AS key", "payload AS value")
            keyed.write.format("kafka").options(**self._kafka, topic=topic).save()
            ours |= {"startingOffsets": "earliest", "minPartitions": str(_PARTITIONS)}
            ours |= {"maxRecordsPerPartition": str(count // _PARTITIONS)}
            theirs = {**self._kafka, "subscribe": topic, "startingOffsets": "earliest"}

            def batch(form: str, options: dict[str, str]) -> None:
                noop(self._spark.read.format(form).options(**options).load())

            def query(form: str, options: dict[str, str]) -> None:
                frame = self._spark.readStream.format(form).options(**options).load()
                checkpoint = f"{self._session.directory}/kafka-{time.time_ns()}"
                writer = frame.writeStream.format("noop").option("checkpointLocation", checkpoint)
                if not writer.trigger(availableNow=True).start().awaitTermination(_PATIENCE):
                    raise TimeoutError("the query did not end")

            remark = f"{_PARTITIONS} partitions, all columns, noop sink"
            for name, work, more in (
                ("batch read", batch, "load() and planning included"),
                ("streaming read, trigger availableNow", query, "one micro-batch; whole queries, from start to end"),
            ):
                yield self._compare(
                    name,
                    count,
                    partial(self._sample, self._server, count, partial(work, "nats", ours)),
                    partial(self._sample, self._broker, count, partial(work, "kafka", theirs)),
                    f"{remark}; {more}",
                )

    def write(self, count: int) -> Comparison:
        """Write rows that Spark has in its memory."""
        frame = self._frame(count).persist()
        frame.count()  # now its rows are in memory
        keyed = frame.selectExpr("subject AS key", "payload AS value")

        def to_nats() -> Sample:
            with self._server.stream("keep.>") as stream:
                options = {**self._server.options, "stream": stream}
                work = frame.write.format("nats").options(**options).mode("append").save
                taken = self._sample(self._server, count, work)
                self._server.check(stream, count)
            return taken

        def to_kafka() -> Sample:
            with self._broker.topic(self._jvm, _PARTITIONS) as topic:
                work = keyed.write.format("kafka").options(**self._kafka, topic=topic).save
                taken = self._sample(self._broker, count, work)
                found = self._spark.read.format("kafka").options(**self._kafka, subscribe=topic).load().count()
                if found != count:
                    raise AssertionError(f"topic {topic} holds {found} messages instead of {count}")
            return taken

        remark = (
            f"{_PARTITIONS} tasks; acknowledged, without message ids; Kafka's producer as it is by default: acks=all, "
            "idempotent"
        )
        try:
            return self._compare("write", count, to_nats, to_kafka, remark)
        finally:
            frame.unpersist()

    def _compare(
        self, name: str, count: int, nats: Callable[[], Sample], kafka: Callable[[], Sample], remark: str
    ) -> Comparison:
        contenders = [Contender(_NATS, nats), Contender(_KAFKA, kafka)]
        remarks = [self._versions, remark, "server: nats-server, or Kafka's broker"]
        return compare(f"kafka: {name}, {count:,} messages", _KAFKA, contenders, self._rounds, remarks, self._warm)

    def _sample(self, server: Server | Broker, count: int, work: Callable[[], object]) -> Sample:
        other = self._broker if server is self._server else self._server
        meter = CpuMeter(server, ignored=other.pid)
        with timed() as seconds:
            work()
        spent = meter.per_message(count)
        return Sample(count, seconds(), extra={**spent, "all \u00b5s": sum(spent.values())} if spent else {})

    def _frame(self, count: int) -> Any:
        return message_frame(self._session, count, "keep.", _PARTITIONS)

    @property
    def _jvm(self) -> Any:
        return self._spark.sparkContext._jvm

    @property
    def _kafka(self) -> dict[str, str]:
        return {"kafka.bootstrap.servers": self._broker.address}
