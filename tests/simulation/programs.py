"""Programs other than streaming queries: plain publishers, batch writes and reads, and users of KV buckets."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from spark_nats.client.pool import leased
from spark_nats.errors import NatsError
from spark_nats.jetstream.api import JetStream, JetStreamLease
from spark_nats.jetstream.publishing.batches import BatchPublisher
from spark_nats.jetstream.publishing.publisher import Publisher
from spark_nats.jetstream.views import ask_stream_info
from spark_nats.kinds.queries import parse_write_options
from spark_nats.protocol.headers import encode_block
from tests.simulation.spark import ENTRIES, WRITE_ENTRIES, Application, Attempt, Batches, Died
from tests.simulation.verdict import Chunk, Snapshot
from tests.simulation.world import Killed, Process, World

if TYPE_CHECKING:
    from tests.simulation.history import History


@dataclass
class ProgramSpec:
    """A program, as plain data.

    Attributes:
        kind: ``publisher``, ``atomic``, ``save``, ``read``, ``bucket`` or ``entries``.
        times: when it does something.
        chunk: rows at a time.
    """

    name: str
    kind: str
    options: dict[str, str]
    stream: str
    subjects: list[str]
    times: list[float]
    chunk: int = 0
    ids: bool = True
    speculation: float = 0.0
    parts: int = 2
    size: int = 0
    extra: dict[str, str] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """How many rows it has."""
        return self.chunk * len(self.times)


class Program:
    """A program that runs."""

    def __init__(self, world: World, spec: ProgramSpec, history: History, seed: str) -> None:
        self.world = world
        self.spec = spec
        self.history = history
        self.ended = False
        self.application: Application | None = None
        self._random = random.Random(seed)
        self._batches: Batches | None = None
        if spec.kind in ("save", "read", "bucket", "entries"):
            self._batches = Batches(world, spec.name, history, seed)
            self.application = self._batches.application
            process = self.application.driver
        else:
            process = Process(world, spec.name)
        world.spawn(process, spec.name, self._body)

    # Faults

    def speculate(self) -> bool:
        return self._batches is not None and self._batches.speculate()

    def kill_worker(self) -> bool:
        return self._batches is not None and self._batches.kill_worker()

    def be_slow(self, seconds: float) -> bool:
        if self._batches is None or not any(job.stages for job in self._batches.jobs):
            return False
        self._batches.slow_until = self.world.now + seconds
        return True

    # What it does

    def _body(self) -> None:
        steps = {
            "publisher": self._publish,
            "atomic": self._publish_together,
            "save": self._save,
            "read": self._read,
            "bucket": self._put,
            "entries": self._list,
        }
        try:
            for number, time in enumerate(self.spec.times):
                if time > self.world.now:
                    self.world.current.block(time)
                began = self.world.now
                self.history._active()
                steps[self.spec.kind](number)
                self.history.called(f"{self.spec.name} {number}", "program", began, self.spec.options)
        except BaseException as error:
            if not isinstance(error, Killed):
                self.history.ledger.mistaken(self.spec.name, error)
            raise
        finally:
            self.ended = True

    def _payloads(self, number: int) -> list[bytes]:
        spec = self.spec
        first = number * spec.chunk
        return [f"{spec.name}-{i}".encode().ljust(spec.size, b".") for i in range(first, first + spec.chunk)]

    def _chunk(self, number: int) -> tuple[Chunk, list[str]]:
        spec = self.spec
        payloads = self._payloads(number)
        subjects = [spec.subjects[i % len(spec.subjects)] for i in range(len(payloads))]
        chunk = Chunk(spec.name, spec.kind, spec.stream, subjects, payloads, self.world.now, spec.options, spec.ids)
        self.history.ledger.chunks.append(chunk)
        return chunk, subjects

    def _finished(self, chunk: Chunk, error: BaseException | None) -> None:
        chunk.ended = self.world.now
        chunk.error = error
        if error is not None:
            self.world.tell(self.spec.name, f"{type(error).__name__}: {error}")
            if not isinstance(error, NatsError | Died):
                raise error

    def _publish(self, number: int) -> None:
        """Publish rows as a plain program does."""
        spec = self.spec
        chunk, subjects = self._chunk(number)
        options = parse_write_options({**spec.options, "stream": spec.stream}, streaming=False)
        error: BaseException | None = None
        try:
            with leased(options.connection, options.retries, f"writing to {spec.stream}") as lease:
                began = lease.ask_with_retries(lambda connection: ask_stream_info(JetStream(connection), spec.stream))
                publisher = Publisher(lease.connection, began, options.max_in_flight, options.ack_timeout, lease=lease)
                ids, headers = self._ids(number)
                half = len(subjects) // 2
                for part in (slice(0, half), slice(half, None)):
                    if len(subjects[part]):
                        publisher.publish(
                            pa.array(subjects[part]),
                            pa.array(chunk.payloads[part], pa.binary()),
                            headers[part] if headers is not None else None,
                            None,
                            ids[part] if ids is not None else None,
                        )
                publisher.wait_for_sent_rows()
                publisher.check_nothing_lost()
                publisher.close()
                chunk.duplicates = publisher.duplicates
                chunk.confirmed = publisher.stored
        except NatsError as failure:
            error = failure
        self._finished(chunk, error)

    def _ids(self, number: int) -> tuple[pa.Array | None, pa.Array | None]:
        spec = self.spec
        if not spec.ids:
            return None, None
        names = [f"{spec.name}-{number}-{i}" for i in range(spec.chunk)]
        blocks = [encode_block({"Nats-Msg-Id": name, "Nats-Expected-Stream": spec.stream}) for name in names]
        return pa.array(names), pa.array(blocks, pa.binary())

    def _publish_together(self, number: int) -> None:
        """Store rows together or not at all."""
        spec = self.spec
        chunk, subjects = self._chunk(number)
        options = parse_write_options({**spec.options, "stream": spec.stream}, streaming=False)
        error: BaseException | None = None
        try:
            with leased(options.connection, options.retries, f"writing to {spec.stream}") as lease:
                initial = lease.ask_with_retries(lambda connection: ask_stream_info(JetStream(connection), spec.stream))
                ids, headers = self._ids(number)
                publisher = BatchPublisher(JetStreamLease(lease), initial, options.ack_timeout)
                publisher.publish_and_wait(
                    pa.array(subjects),
                    pa.array(chunk.payloads, pa.binary()),
                    headers,
                    ids if ids is not None else pa.nulls(len(subjects), pa.string()),
                )
                chunk.duplicates = publisher.duplicates
                chunk.confirmed = len(subjects)
        except NatsError as failure:
            error = failure
        self._finished(chunk, error)

    def _save(self, number: int) -> None:
        """Write a batch."""
        spec = self.spec
        assert self._batches is not None
        chunk, subjects = self._chunk(number)
        rows = -(-len(subjects) // spec.parts)
        parts = [
            pa.RecordBatch.from_arrays(
                [pa.array(subjects[i : i + rows]), pa.array(chunk.payloads[i : i + rows], pa.binary())],
                ["subject", "payload"],
            )
            for i in range(0, len(subjects), rows)
        ]
        error: BaseException | None = None
        try:
            self._batches.save(spec.options, parts, speculation=spec.speculation)
        except (NatsError, Died) as failure:
            error = failure
        chunk.attempts = self._batches.job.attempts if self._batches.job is not None else []
        self._finished(chunk, error)

    def _put(self, number: int) -> None:
        """Put values under keys of a bucket."""
        spec = self.spec
        assert self._batches is not None
        chunk, subjects = self._chunk(number)
        rows = pa.RecordBatch.from_arrays([pa.array(subjects), pa.array(chunk.payloads, pa.binary())], ["key", "value"])
        error: BaseException | None = None
        try:
            self._batches.save(spec.options, [rows], WRITE_ENTRIES, spec.speculation)
        except (NatsError, Died) as failure:
            error = failure
        chunk.attempts = self._batches.job.attempts if self._batches.job is not None else []
        self._finished(chunk, error)

    def _read(self, number: int) -> None:
        self._look(number, entries=False)

    def _list(self, number: int) -> None:
        self._look(number, entries=True)

    def _look(self, number: int, entries: bool) -> None:
        """Read a batch."""
        spec = self.spec
        assert self._batches is not None
        found = Snapshot(spec.name, spec.stream, spec.options, self.world.now)
        self.history.ledger.snapshots.append(found)
        found.before = self.history.cluster.contents(spec.stream)
        try:
            results: list[Attempt] = (
                self._batches.read(spec.options, ENTRIES) if entries else self._batches.read(spec.options)
            )
            found.rows = [result.rows for result in results]
        except (NatsError, Died) as error:
            found.error = error
            self.world.tell(spec.name, f"{type(error).__name__}: {error}")
        found.ended = self.world.now
        found.after = self.history.cluster.contents(spec.stream)
