"""What is promised, as functions over the ledger of a history: each returns the promises that were broken.

The ledger says what happened as the world knows it: what outsiders and programs offered, what each attempt of a task
handed on or was given, what streams acknowledged and what became of it, what errors and the log have said, how long
calls took. The pages of docs/ say what may be expected of that.
"""

from __future__ import annotations

import json
import pickle
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

from spark_nats.errors import DataLossError, NatsError
from spark_nats.kinds.streams.read.planning import SeveralRanges
from spark_nats.kinds.streams.read.positions import from_json
from spark_nats.options.values import read_duration
from tests.simulation.store import Stored, matcher
from tests.simulation.world import EPOCH

if TYPE_CHECKING:
    from tests.simulation.history import History, Plan
    from tests.simulation.spark import Attempt, Job, QuerySpec
    from tests.simulation.world import World

KEPT, LOST, DELETED = "kept", "lost", "deleted"
BY_LIMITS = frozenset({"max_msgs", "max_age", "max_bytes", "purge"})
"""What takes messages from the beginning of a stream on, so that a reader can tell."""
ORDERLY = frozenset(
    {
        "cut",
        "cut-all",
        "silence-in",
        "silence-out",
        "slow",
        "answers-twice",
        "acks-never",
        "no-consumers",
        "clients-clock",
        "locked-out",
        "denied",
        "driver killed",
        "driver killed, executors live on",
        "stream reader killed",
        "executor killed",
        "worker killed",
        "second attempt",
        "slow sink",
    }
)
"""Faults that are no reason for a stream to store rows in another order than that in which they were given."""
FORGETTING = frozenset(
    {"kill", "kill-leader", "power", "power-of-all", "lame-duck", "restore-older"}
    | {"restart", "roll", "restored", "scaled", "edited"}
)
"""Faults after which a stream may know no ids of messages that it has removed."""
_AGAIN_TO_BE_LAST = "NATS_LAST_ROWS_STORED_AGAIN"
UNDER_WAY = 1.0
"""Seconds for which an answer may have been under way when an error or a line in the log says what it has said."""
LATE = 13.0
"""The same where a fault has answers come late."""
STOPPING = frozenset({"pause", "pause-leader", "silence-in", "silence-out", "route", "isolate", "lag", "slow"})
"""Faults that may keep rows under way for as long as they last."""


# The ledger


class Truth(NamedTuple):
    """A message that a stream has stored.

    Attributes:
        at: when it was acknowledged, by the world's time.
        stored: when it was stored, by its leader's clock.
        fate: what became of it.
    """

    at: float
    sequence: int
    subject: str
    payload: bytes
    stored: int
    fate: str

    @property
    def since(self) -> float:
        """When it was there, by the world's time; what was acknowledged to nobody has only its leader's clock."""
        return self.at or self.stored / 1e9 - EPOCH


@dataclass
class Offered:
    """A message that an outsider has published."""

    stream: str
    subject: str
    payload: bytes
    message_id: str
    first: float
    tries: int = 0
    sequence: int | None = None
    acknowledged: float | None = None
    refused: str = ""
    done: bool = False


@dataclass
class MicroBatch:
    """A micro-batch that was run; one that is run again is another one of the same number."""

    query: str
    number: int
    start: str
    end: str
    partitions: list[bytes]
    at: float
    attempts: list[Attempt] = field(default_factory=list)
    read: list[Attempt] = field(default_factory=list)
    written: list[Attempt] = field(default_factory=list)
    committed: bool = False


@dataclass
class Failure:
    """An error that a task or a query has ended with; an orphan's driver is gone, and nobody hears of it."""

    at: float
    who: str
    error: BaseException
    job: Job | None
    attempt: Attempt | None
    orphan: bool = False


class Call(NamedTuple):
    """How long something took."""

    what: str
    where: str
    began: float
    ended: float
    options: dict[str, str]


@dataclass
class Chunk:
    """Rows that a program has written at once."""

    program: str
    kind: str
    stream: str
    subjects: list[str]
    payloads: list[bytes]
    began: float
    options: dict[str, str]
    ids: bool
    ended: float | None = None
    error: BaseException | None = None
    confirmed: int | None = None
    duplicates: int = 0
    attempts: list[Attempt] = field(default_factory=list)


@dataclass
class Snapshot:
    """What a batch has read."""

    program: str
    stream: str
    options: dict[str, str]
    began: float
    before: list[Stored] = field(default_factory=list)
    after: list[Stored] = field(default_factory=list)
    rows: list[list[tuple[str, int, bytes]]] = field(default_factory=list)
    error: BaseException | None = None
    ended: float | None = None


class Ledger:
    """What happened."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.offered: list[Offered] = []
        self.attempts: list[tuple[Job, Attempt]] = []
        self.micro_batches: dict[tuple[str, int], list[MicroBatch]] = {}
        self.failures: list[Failure] = []
        self.calls: list[Call] = []
        self.chunks: list[Chunk] = []
        self.snapshots: list[Snapshot] = []
        self.faults: list[tuple[float, str, float]] = []
        self.denials: set[str] = set()  # permissions that were lacking at some time
        self.unmet: list[str] = []
        self.figures: Counter[str] = Counter()
        self.deleted: set[tuple[str, int]] = set()  # messages that outsiders have deleted, by stream and sequence
        self.given_up: set[str] = set()  # queries that need a new checkpoint, since a stream has lost what it had
        self.healed = 0.0
        self.truth: dict[str, list[Truth]] = {}
        self.back: dict[tuple[str, int, bytes], float] = {}  # messages that are there again, and when they were removed
        self.losses: dict[str, list[float]] = {}  # by stream when a replica has lost something
        self.configs: dict[str, dict[str, Any]] = {}
        self.notes: list[str] = []  # conditions of the documentation that were violated
        self._mistakes: list[tuple[str, BaseException]] = []

    def mistaken(self, who: str, error: BaseException) -> None:
        """Note an error that is none of the package's own."""
        self._mistakes.append((who, error))

    def mistakes(self) -> list[BaseException]:
        """Return the errors that are none of the package's own."""
        from tests.simulation.spark import Died, FetchFailed, Restarted
        from tests.simulation.world import Killed

        known = NatsError | Killed | Died | FetchFailed | Restarted
        found = [each.error for each in self.failures if not isinstance(each.error, known)]
        return found + [error for _, error in self._mistakes if not isinstance(error, known)]

    def take(self, history: History) -> None:
        """Take over what the servers know at the end."""
        self.denials = history.cluster.denials
        for name, group in history.cluster.groups.items():
            self.configs[name] = group.config
            self.losses[name] = group.losses
            found = [
                Truth(at, message.sequence, message.subject, message.payload, message.time, fate)
                for at, message, fate in history.cluster.ledger(name)
            ]
            known = {(each.sequence, each.payload) for each in found if each.fate == KEPT}
            found += [  # stored without anybody having been told
                Truth(0.0, each.sequence, each.subject, each.payload, each.time, KEPT)
                for each in history.cluster.contents(name)
                if (each.sequence, each.payload) not in known
            ]
            self.truth[name] = found
            for each in history.cluster.contents(name):  # a stream that loses its end has again what it had removed
                if (removed := group.removals.get(each.entry)) is not None:
                    self.back[name, each.sequence, each.payload] = removed

    def had(self, *names: str) -> bool:
        """Tell whether there was such a fault."""
        return any(name in names for _, name, _ in self.faults)

    def stopped(self, first: float, last: float) -> float:
        """Return for how many seconds, all faults together, rows may have been kept under way between two times."""
        return sum(
            seconds
            for at, name, seconds in self.faults
            if name in STOPPING and at <= last and at + seconds >= first - 5.0
        )

    def forgot(self, first: float, last: float) -> bool:
        """Tell whether a server may have forgotten ids between two times, which it knows while it runs."""
        return any(name in FORGETTING and first - 10.0 <= at <= last for at, name, _ in self.faults)

    def lost_before(self, stream: str, stored: float, ended: float) -> bool:
        """Tell whether a stream was made to lose messages between two times, and all of that well before the second.

        A message that is gone may have gone after both, if the stream was made to lose any then.
        """
        if any(lost >= ended for lost in self.losses[stream]):
            return False
        over = [
            at + seconds
            for at, name, seconds in self.faults
            if name in ("restore-older", "power-of-all") and stored < at < ended
            if any(at <= lost <= at + seconds for lost in self.losses[stream])
        ]
        return stored > 0 and bool(over) and max(over) + 5.0 < ended

    def lost_anything(self) -> bool:
        """Tell whether a stream has lost what it had acknowledged."""
        return any(each.fate == LOST for truth in self.truth.values() for each in truth)

    def said(self, who: str) -> list[tuple[float, str]]:
        """Return the warnings and errors of a query or program."""
        own = re.compile(re.escape(who) + r"([./ ]|$)")
        found = [(at, text) for at, name, text in self.world.warnings if own.match(name)]
        found += [(each.at, str(each.error)) for each in self.failures if own.match(each.who)]
        for job, _ in self.attempts:
            if own.match(job.application.name):
                break
        found += [
            (each.at, str(each.error))
            for each in self.failures
            if each.job is not None and own.match(each.job.application.name)
        ]
        return sorted(set(found))


# What was said


class Named(NamedTuple):
    """Sequences that were said to be gone."""

    at: float
    stream: str
    first: int
    last: int
    text: str


_STREAM = re.compile(r"stream '?([A-Za-z0-9_-]+)'?")
_RANGES = re.compile(r"[Ss]equences? ((?:[0-9]+(?: to [0-9]+)?(?:, | and )?)+)(?:, which| were removed)")
_MORE_GAPS = re.compile(r"now begins at sequence ([0-9]+); sequences ([0-9]+).* more gaps, ([0-9]+) sequences in all")
_RANGE = re.compile(r"([0-9]+)(?: to ([0-9]+))?")


def named(said: Iterable[tuple[float, str]]) -> list[Named]:
    """Return the sequences that errors and warnings say are gone."""
    found = []
    for at, text in said:
        if not ("are lost" in text or "were removed before" in text or "do not exist" in text):
            continue
        stream = _STREAM.search(text)
        if stream is None:
            continue
        if (more := _MORE_GAPS.search(text)) is not None:  # not all are named
            found.append(Named(at, stream[1], int(more[2]), int(more[1]) - 1, ""))
            continue
        for part in _RANGES.finditer(text):
            for first, last in _RANGE.findall(part[1]):
                found.append(Named(at, stream[1], int(first), int(last or first), text))
        if (hole := re.search(r"ends at sequence ([0-9]+), but the query is to resume at ([0-9]+)", text)) is not None:
            found.append(Named(at, stream[1], int(hole[1]) + 1, int(hole[2]) - 1, text))
    return found


# Judging


def judge(ledger: Ledger, plan: Plan) -> list[str]:
    """Return the promises that were broken."""
    found = list(ledger.unmet)
    for error in ledger.mistakes():
        found.append(f"an error that is none of ours: {type(error).__name__}: {error}")
    found += check_secrets(ledger)
    found += check_waits(ledger, plan)
    found += check_passing(ledger, plan)
    found += check_strangers(ledger)
    found += check_targets(ledger, plan)
    for query in plan.queries:
        found += check_query(ledger, plan, query)
    found += check_chunks(ledger)
    found += check_snapshots(ledger)
    return found


def _seconds(options: dict[str, str], name: str, default: float) -> float:
    text = options.get(name)
    return default if text is None else (0.0 if text.startswith("0") else float(read_duration(text)))


def check_secrets(ledger: Ledger) -> list[str]:
    """A password is in no message, log line or ``repr``."""
    from tests.simulation.history import PASSWORD

    texts = [text for *_, text in ledger.world.story] + [repr(each.error) for each in ledger.failures]
    return ["the password is shown: " + text[:200] for text in texts if PASSWORD in text][:1]


def check_waits(ledger: Ledger, plan: Plan) -> list[str]:
    """No call takes longer than its options say, with slack for an attempt that was under way."""
    found = []
    for call in ledger.calls:
        took = call.ended - call.began
        if took < 30.0:
            continue
        longest = _longest(call.options, plan)
        if call.where == "program":
            longest *= 4  # of several tasks and attempts, with progress in between
        if took > longest:
            found.append(f"{call.what} took {took:.1f} s, and its options say {longest:.1f} s at most")
    for job, attempt in ledger.attempts:
        ended = attempt.ended
        if ended is None:
            continue
        options = next((each for each in plan.queries if job.application.name.startswith(each.name + ".")), None)
        if options is None:
            continue
        reading = _longest(options.read, plan)
        writing = _longest(options.write, plan) if options.write else 0.0
        window = max((each.get("duplicate_window", 120 * 10**9) for each in plan.streams), default=0) / 1e9
        slow = sum(seconds for _, name, seconds in ledger.faults if name == "slow sink")
        longest = 3 * (reading + writing) + 2 * window + slow
        if ended - attempt.began > longest:
            found.append(
                f"an attempt of task {attempt.partition} took {ended - attempt.began:.1f} s, and the options say "
                f"{longest:.1f} s at most"
            )
    return found


_PASSING = re.compile(
    r"no stream listens on it|\b(10008|10009|10118|10158|10163|10189|10194)\b|onsumer deleted|server shutdown|"
    r"something other than JetStream",
    re.IGNORECASE,
)
"""What errors say that pass by themselves."""


def check_passing(ledger: Ledger, plan: Plan) -> list[str]:
    """No task, and no query, ends with an error that passes before it has waited as long as its options say."""
    found = []
    for failure in ledger.failures:
        said = _PASSING.search(str(failure.error))
        who = failure.job.application.name if failure.job is not None else failure.who
        query = next((each for each in plan.queries if who.partition(".")[0] == each.name), None)
        program = next((each for each in plan.programs if who == each.name), None)
        if said is None or "tried for" in str(failure.error) or (query is None and program is None):
            continue
        if program is not None and len({each.partition(".")[0] for each in program.subjects}) > 1:
            continue  # some are for another stream, whatever passes
        options = [query.read, query.write or {}] if query is not None else [program.options] if program else []
        if any(each.get("deduplicate") == "false" for each in options):
            continue  # what cannot be told apart may not be sent again
        if failure.attempt is not None:
            began = failure.attempt.began
        else:
            began = max((each.began for each in ledger.calls if each.ended == failure.at), default=0.0)
        least = min(min(_seconds(each, "retryTimeout", 300.0), _seconds(each, "ackTimeout", 30.0)) for each in options)
        if failure.at - began < least * 0.5:
            found.append(
                f"{who} ended after {failure.at - began:.1f} s with an error that passes, {said[0]!r}: {failure.error}"
            )
    for chunk in ledger.chunks:
        said = _PASSING.search(str(chunk.error)) if chunk.error is not None and chunk.ids else None
        if (
            said is None
            or chunk.ended is None
            or chunk.kind != "publisher"
            or len({each[:4] for each in chunk.subjects}) > 1
        ):
            continue
        took = chunk.ended - chunk.began
        if "of this task's rows" in str(chunk.error) and took < _seconds(chunk.options, "ackTimeout", 30.0) * 0.5:
            found.append(f"{chunk.program} ended after {took:.1f} s with an error that passes: {chunk.error}")
    return _few(found)


def check_strangers(ledger: Ledger) -> list[str]:
    """What mirrors say, and what somebody else answers to requests, ends nothing while nothing else goes wrong."""
    if any(name != "strangers-answer" for _, name, _ in ledger.faults):
        return []
    errors = [each.error for each in (*ledger.failures, *ledger.chunks, *ledger.snapshots) if each.error is not None]
    return _few(
        [
            f"others have answered, and nothing else was wrong: {error}"
            for error in errors
            # A stream lets messages go, and another one has the subjects of some rows, whoever answers.
            if not isinstance(error, DataLossError) and "refused row" not in str(error)
        ]
    )


def check_targets(ledger: Ledger, plan: Plan) -> list[str]:
    """Rows are stored in the stream that was named, and in no other one."""
    found = []
    for chunk in ledger.chunks:
        if not chunk.ids or chunk.kind == "bucket" or chunk.options.get("deduplicate") == "false":
            continue  # only what names its stream is refused by another one
        payloads = set(chunk.payloads)
        for name, truth in ledger.truth.items():
            astray = [each for each in truth if each.payload in payloads] if name != chunk.stream else []
            if astray:
                found.append(f"{len(astray)} rows of {chunk.program} for {chunk.stream} are stored in {name}")
    return _few(found)


def _longest(options: dict[str, str] | None, plan: Plan) -> float:
    options = options or {}
    retry = _seconds(options, "retryTimeout", 300.0)
    connect = _seconds(options, "connectTimeout", 5.0) * plan.servers
    request = _seconds(options, "requestTimeout", 5.0)
    acknowledgement = _seconds(options, "ackTimeout", 30.0)
    return 2 * retry + 2 * connect + 6 * request + acknowledgement + 45.0


def _streams_of(ledger: Ledger, spec: QuerySpec) -> list[str]:
    if "streamPattern" in spec.read:
        return [name for name in ledger.truth if re.fullmatch(spec.read["streamPattern"], name)]
    if "bucket" in spec.read:
        return [f"KV_{spec.read['bucket']}"]
    return spec.read["stream"].split(",")


def _targets_of(ledger: Ledger, spec: QuerySpec) -> list[str]:
    """Return the streams that a query writes to."""
    if spec.write is None:
        return []
    if "streamPattern" in spec.write:
        return [name for name in ledger.truth if re.fullmatch(spec.write["streamPattern"], name)]
    return [f"KV_{spec.write['bucket']}"] if "bucket" in spec.write else spec.write["stream"].split(",")


def _filter_of(options: dict[str, str]) -> Callable[[str], bool]:
    return matcher([each for each in options.get("subject", "").split(",") if each])


def check_query(ledger: Ledger, plan: Plan, spec: QuerySpec) -> list[str]:
    """Everything that is promised to a streaming query."""
    runs = [ledger.micro_batches[key] for key in sorted(ledger.micro_batches) if key[0] == spec.name]
    committed = [each[-1] for each in runs if each[-1].committed]
    found = [f"{spec.name}: {each}" for each in _check_replays(ledger, spec, runs)]
    found += [f"{spec.name}: {each}" for each in _check_rows(ledger, plan, spec, runs, committed)]
    found += [f"{spec.name}: {each}" for each in _check_sizes(spec, runs, len(_streams_of(ledger, spec)))]
    targets = _targets_of(ledger, spec)
    if spec.write is not None and "bucket" not in spec.write:
        if spec.counts:
            found += [f"{spec.name}: {each}" for each in _check_counters(ledger, spec, runs, committed)]
        else:
            found += [f"{spec.name}: {each}" for each in _check_written(ledger, spec, runs, committed)]
            found += [
                f"{spec.name}: {each}" for name in targets for each in _check_order(ledger, spec, committed, name)
            ]
    if spec.write is not None and not spec.counts and not spec.shuffle:
        for name in targets:
            found += [f"{spec.name}: {each}" for each in _check_last_values(ledger, spec, committed, name)]
            found += [f"{spec.name}: {each}" for each in _check_values_of_others(ledger, spec, runs, name)]
    found += [f"{spec.name}: {each}" for each in _check_counts(ledger, spec) if not spec.counts]
    found += [f"{spec.name}: {each}" for each in _check_no_loss(ledger, plan, spec)]
    found += [f"{spec.name}: {each}" for each in _check_heads(ledger, spec, runs)]
    found += [f"{spec.name}: {each}" for each in _check_strangers(ledger, spec, runs)]
    return found


def _check_strangers(ledger: Ledger, spec: QuerySpec, batches: list[list[MicroBatch]]) -> list[str]:
    """That a micro-batch is split otherwise than before is said only where rows of it have gone meanwhile."""
    if spec.fewer or not any("split into other partitions" in text for _, text in ledger.said(spec.name)):
        return []
    streams = _streams_of(ledger, spec)
    if any(each.fate == LOST for name in streams for each in ledger.truth.get(name, ())):
        ledger.notes.append("a micro-batch that was run again had fewer rows: some were lost meanwhile")
        return []
    fates = _fates(ledger, streams)
    for runs in batches:
        for row in {row for run in runs for attempt in run.attempts for row in attempt.rows}:
            if all(each.fate != KEPT for each in fates.get(row, ())):
                ledger.notes.append("a micro-batch that was run again had fewer rows: some were deleted meanwhile")
                return []
    return ["it was said that a micro-batch is not split as before, and it is"]


def _check_no_loss(ledger: Ledger, plan: Plan, spec: QuerySpec) -> list[str]:
    """Where nothing could be lost, no loss is reported."""
    from tests.simulation.faults import FAULTS

    limits = ("max_msgs", "max_age", "max_bytes", "max_msgs_per_subject")
    if (
        plan.acts
        or any(limit in stream for stream in plan.streams for limit in limits)
        or any(name in FAULTS and FAULTS[name].loses for _, name, _ in ledger.faults)
    ):
        return []
    for failure in ledger.failures:
        who = failure.job.application.name if failure.job is not None else failure.who
        said = type(failure.error).__name__ in ("DataLossError", "StreamNotFoundError")
        if spec.fewer and "has the query run without deduplicate=exact meanwhile" in str(failure.error):
            continue  # it has, to get over a micro-batch in fewer partitions
        if ledger.had("clock") and "has lost its end" in str(failure.error):
            continue  # where the last message was removed, others tell by their times, which went back
        if ledger.had("clients-clock") and "is older than the query's checkpoint" in str(failure.error):
            continue  # by the driver's clock, an attempt of a former run was one of a later run
        if said and not failure.orphan and who.partition(".")[0] == spec.name:
            return [f"nothing was lost, and it was said: {failure.error}"]
    return []


def _check_heads(ledger: Ledger, spec: QuerySpec, batches: list[list[MicroBatch]]) -> list[str]:
    """What is gone before the first message of a query that begins with whatever there is is no loss."""
    said = [(at, text) for at, text in ledger.said(spec.name) if "removed" in text and "begins after them" not in text]
    gone = named(said)
    for name in _streams_of(ledger, spec):
        until = 0.0
        head = None
        for runs in batches:
            start = from_json(json.loads(runs[0].start)).get(name)
            if start is None or not start.end.earliest:
                until = runs[0].at
                break
            head = start.end.next
        else:
            until = ledger.world.now
        for each in gone:
            if head is not None and each.stream == name and each.text and each.first == head and each.at < until:
                return [f"the query begins with whatever there is, and it was said: {each.text}"]
    return []


Key = tuple[str, int, bytes]


def _fates(ledger: Ledger, streams: list[str]) -> dict[Key, list[Truth]]:
    fates: dict[Key, list[Truth]] = defaultdict(list)
    for name in streams:
        for each in ledger.truth.get(name, ()):
            fates[name, each.sequence, each.payload].append(each)
    return fates


def _reading_attempts(run: MicroBatch) -> list[Attempt]:
    return [each for each in run.attempts if not (each.given and not each.rows)]


def _check_replays(ledger: Ledger, spec: QuerySpec, batches: list[list[MicroBatch]]) -> list[str]:
    """A micro-batch that is run again has the same partitions with the same rows, in sequence order."""
    found = []
    streams = _streams_of(ledger, spec)
    fates: dict[Key, list[Truth]] | None = None

    def is_kept(row: Key, by: Attempt) -> bool:
        nonlocal fates
        if fates is None:
            fates = _fates(ledger, streams)
        ended = by.ended if by.ended is not None else ledger.world.now
        if (
            refilled
        ):  # what was stored since is another message, of which the first attempt to read it may have had some
            ended = min(ended, planned)
        if set_back:  # times do not tell what was stored since: it may be read with the next micro-batch
            return False
        if row in ledger.back:  # it was gone for a while
            return False
        return any(each.fate == KEPT and each.since <= ended for each in fates.get(row, ()))

    shared = spec.read.get("consume") == "true"
    refilled = any("has lost its end" in text for _, text in ledger.said(spec.name))
    set_back = ledger.had("clock") and any("was stored later" in text for _, text in ledger.said(spec.name))
    for runs in batches:
        number, planned = runs[0].number, runs[0].at
        if any(run.end != runs[0].end for run in runs):
            found.append(f"micro-batch {number} ended elsewhere when it was run again")
        plans = [_plan_of(run) for run in runs]
        if any(each != plans[0] for each in plans) and not ledger.lost_anything():
            found.append(f"micro-batch {number} was cut into other partitions when it was run again")
        attempts: dict[tuple[Any, ...], list[Attempt]] = defaultdict(list)
        for run, cut in zip(runs, plans, strict=True):
            reading = [each for each in run.attempts if each.rows or (each in run.read)]
            for each in reading:
                for (name, before, _), (other_name, after, _) in pairwise(each.rows):
                    if name == other_name and after <= before:
                        found.append(f"micro-batch {number}: sequence {after} came after {before} in a partition")
                if each.partition < len(cut):
                    attempts[cut[each.partition]].append(each)
        for place, tried in attempts.items():
            whole = [each for each in tried if each.done]
            if not whole or len(tried) < 2:
                continue
            base = set(whole[-1].rows)
            for other in tried:
                if other is whole[-1]:
                    continue
                rows = set(other.rows)
                more = [row for row in rows - base if is_kept(row, other)]
                fewer = [row for row in base - rows if is_kept(row, whole[-1])] if other.done else []
                if (more or fewer) and not shared:  # what others take from a queue is gone for all
                    ranges = "; ".join(_few([str(each[:3]) for each in place]))
                    found.append(
                        f"micro-batch {number}, {ranges}: another attempt had other rows: "
                        f"{[row[:2] for row in sorted(more)[:3]]} more, {[row[:2] for row in sorted(fewer)[:3]]} fewer"
                    )
    return found


def _plan_of(run: MicroBatch) -> list[tuple[tuple[Any, ...], ...]]:
    """Return the ranges of each partition."""
    partitions = [pickle.loads(each) for each in run.partitions]
    ranges = [each.ranges if isinstance(each, SeveralRanges) else (each,) for each in partitions]
    return [tuple((each.stream, each.start, each.end, each.filters, each.created) for each in pack) for pack in ranges]


_PERHAPS_AGAIN = re.compile(r"^\[NATS_CLOCK_BEHIND\] .* leads stream '([^']+)' .* from sequence ([0-9]+) to ([0-9]+) ")


def _check_rows(
    ledger: Ledger, plan: Plan, spec: QuerySpec, batches: list[list[MicroBatch]], committed: list[MicroBatch]
) -> list[str]:
    """Every stored message exactly once; what is gone is named, and nothing else is."""
    found = []
    streams = _streams_of(ledger, spec)
    wanted = _filter_of(spec.read)
    rows = Counter(row for run in committed for attempt in run.read for row in attempt.rows)
    ended_early = spec.name in ledger.given_up or (
        spec.on_loss == "end"
        and any(each.who == spec.name and type(each.error).__name__ == "DataLossError" for each in ledger.failures)
    )
    said = ledger.said(spec.name)
    gone = named(said)
    again = [(m[1], int(m[2]), int(m[3])) for _, text in said if (m := _PERHAPS_AGAIN.search(text))]
    # A clock that goes back brings back what was too old, once the store is read anew.
    ages = any(ledger.configs.get(name, {}).get("max_age") for name in streams)
    clocks = ledger.had("clock") and (ledger.lost_anything() or ages)
    purged = {act.stream for act in plan.acts if act.what == "purge"}
    begins: dict[str, int] = {}
    if batches:
        start = from_json(json.loads(batches[0][0].start))
        begins = {name: entry.end.next for name, entry in start.items()}
    for name in streams:
        truth = ledger.truth.get(name, [])
        begin = begins.get(name, 1)
        number_of = Counter((each.sequence, each.payload) for each in truth)
        for each in truth:
            if not wanted(each.subject) or each.sequence < begin:
                continue
            count = rows[name, each.sequence, each.payload]
            doubted = any(n == name and first <= each.sequence <= last for n, first, last in again)
            if count > number_of[each.sequence, each.payload] and not (clocks or doubted):
                found.append(f"sequence {each.sequence} of {name} ({_short(each.payload)}) was read {count} times")
            if count or ended_early or clocks:
                continue
            if each.fate == KEPT and (name, each.sequence) in ledger.deleted:
                continue  # it came back with an older copy
            if each.fate == KEPT:
                removed = ledger.back.get((name, each.sequence, each.payload))
                if removed is not None and (
                    _was_passed(committed, name, each.sequence, removed)
                    or any(n.stream == name and n.first <= each.sequence <= n.last and n.at > removed for n in gone)
                ):
                    ledger.notes.append(f"sequence {each.sequence} of {name} was gone when it was to be read")
                    continue
                found.append(
                    f"sequence {each.sequence} of {name} ({_short(each.payload)}) is there, and was never read"
                )
            elif each.fate == "purge" and name not in purged and spec.read.get("consume") == "true":
                found.append(f"sequence {each.sequence} of {name} ({_short(each.payload)}) was purged, and never read")
            elif (
                each.fate in BY_LIMITS
                and not _is_free(ledger, spec, name)
                and not any(n.stream == name and n.first <= each.sequence <= n.last for n in gone)
            ):
                found.append(
                    f"sequence {each.sequence} of {name} was taken ({each.fate}) before it was read, "
                    "and nothing was said"
                )
        late = any(each.name in ("answers-late", "slow") for each in plan.faults)
        under_way = LATE if late else UNDER_WAY
        for each_named in gone:
            if each_named.stream != name or not each_named.text or "created again" in each_named.text:
                continue  # of a stream that was made again others have the same sequences
            there = [
                each.sequence
                for each in truth
                if each.fate == KEPT
                and each_named.first <= each.sequence <= each_named.last
                and each.since < each_named.at - under_way
                and ledger.back.get((name, each.sequence, each.payload), inf) > each_named.at
                and wanted(each.subject)
            ]
            if there and not clocks:
                found.append(f"sequence {there[0]} of {name} is there, and it was said: {each_named.text}")
    payloads = {each.payload for each in ledger.offered} | {p for c in ledger.chunks for p in c.payloads}
    for run in (run for runs in batches for run in runs):
        for attempt in run.attempts:
            for stream, sequence, payload in attempt.rows:
                if payload not in payloads:
                    found.append(
                        f"sequence {sequence} of {stream} was read as {_short(payload)}, which nobody has published"
                    )
    return _few(found)


def _was_passed(committed: list[MicroBatch], stream: str, sequence: int, since: float) -> bool:
    """Tell whether a micro-batch that is done has read past a sequence after a time."""
    for run in committed:
        entry = from_json(json.loads(run.end)).get(stream)
        if entry is None or not entry.first <= sequence < entry.end.next:
            continue
        if any(each.ended is not None and each.ended > since for each in run.read):
            return True
    return False


def _is_free(ledger: Ledger, spec: QuerySpec, stream: str) -> bool:
    """Tell whether what a stream removes is no loss for a query."""
    retention = ledger.configs[stream].get("retention", "limits")
    return "bucket" in spec.read or (retention != "limits" and "subject" in spec.read)


def _short(payload: bytes) -> str:
    return payload.rstrip(b".").decode("utf-8", "replace")[:40]


def _few(found: list[str]) -> list[str]:
    return found[:4] + ([f"and {len(found) - 4} more like these"] if len(found) > 4 else [])


def _check_sizes(spec: QuerySpec, batches: list[list[MicroBatch]], streams: int) -> list[str]:
    """A micro-batch has no more rows than its limit, beside one of each stream."""
    most = spec.read.get("maxOffsetsPerTrigger")
    if most is None:
        return []
    found = []
    for run in (run for runs in batches for run in runs):
        rows = sum(len(attempt.rows) for attempt in run.read)
        if rows > int(most) + streams:
            found.append(f"micro-batch {run.number} has {rows} rows, and maxOffsetsPerTrigger is {most}")
    return found


def _check_written(
    ledger: Ledger, spec: QuerySpec, batches: list[list[MicroBatch]], committed: list[MicroBatch]
) -> list[str]:
    """Every row of every micro-batch that is done is stored, once."""
    assert spec.write is not None
    targets = _targets_of(ledger, spec)
    target = ", ".join(targets)
    expected = Counter(row[2] for run in committed for attempt in run.read for row in attempt.rows)
    possible = Counter(expected)
    fates = _fates(ledger, _streams_of(ledger, spec))
    for runs in batches:  # what an earlier attempt has read and stored, and is gone since, or is not done yet
        tried = {row for run in runs for each in run.attempts for row in each.rows}
        done = {row for each in runs[-1].read for row in each.rows} if runs[-1].committed else set()
        for row in tried - done:
            if not runs[-1].committed or all(each.fate != KEPT for each in fates.get(row, ())):
                possible[row[2]] += 1
    places = [*targets, spec.write.get("badRowsStream", "")]  # a row is in one of them
    truth = [each for name in places for each in ledger.truth.get(name, ())]
    stored: Counter[bytes] = Counter(each.payload for each in truth if each.fate != LOST)
    lost: Counter[bytes] = Counter(each.payload for each in truth if each.fate == LOST)
    found = []
    unstored = sum(stored[payload] + lost[payload] == 0 for payload in expected)
    replaced = unstored <= sum(_said_replaced(ledger, spec.name, name) for name in targets)
    for payload, count in expected.items():
        count = 1 if spec.own_ids else count  # a row that is read again keeps its id
        if stored[payload] + lost[payload] == 0 and replaced:
            continue
        if stored[payload] + lost[payload] < count:
            found.append(f"{_short(payload)} was to be stored in {target}, and was not")
        elif stored[payload] < count and not lost[payload]:
            found.append(
                f"{_short(payload)} was to be stored {count} times in {target}, and was {stored[payload]} times"
            )
    theirs = {each.payload for each in ledger.offered if each.stream in targets}
    doubled = [payload for payload, count in stored.items() if count > possible[payload] and payload not in theirs]
    if doubled:
        by_payload: dict[bytes, list[Truth]] = defaultdict(list)
        for each in truth:
            by_payload[each.payload].append(each)
        for payload in doubled:
            why = _excuse(ledger, spec, by_payload[payload], batches)
            if why:
                ledger.notes.append(f"{_short(payload)} is stored twice, as documented: {why}")
            else:
                times = ", ".join(f"sequence {e.sequence} at {e.at:.3f} s" for e in by_payload[payload])
                found.append(f"{_short(payload)} is stored {stored[payload]} times in {target}: {times}")
    return _few(found)


def _check_counters(
    ledger: Ledger, spec: QuerySpec, batches: list[list[MicroBatch]], committed: list[MicroBatch]
) -> list[str]:
    """A row of a micro-batch that is done is counted once; one of another micro-batch at most once."""
    assert spec.write is not None
    truth = ledger.truth.get(spec.write["stream"], ())
    if any(each.fate == LOST for each in truth):
        return []
    counted = len(truth)
    done = sum(len(attempt.rows) for run in committed for attempt in run.read)
    most = done + sum(
        max((len({row for each in run.attempts for row in each.rows}) for run in runs), default=0)
        for runs in batches
        if not runs[-1].committed
    )
    if counted < done:
        return [f"{done} rows were to be counted in {spec.write['stream']}, and {counted} were"]
    if counted > most and not _says_twice(ledger, spec):
        times = ", ".join(f"{each.since:.3f} s" for each in truth[-5:])
        return [f"{most} rows were to be counted in {spec.write['stream']}, and {counted} were, the last at {times}"]
    return []


def _says_twice(ledger: Ledger, spec: QuerySpec) -> bool:
    """Tell whether a query stores rows twice as it says, or as it may."""
    assert spec.write is not None
    if spec.write.get("deduplicate", "exact") == "window" and ledger.forgot(0.0, ledger.world.now):
        return True
    return _says_so(ledger, spec)


def _says_so(ledger: Ledger, spec: QuerySpec) -> bool:
    return any("stored twice" in text or "stored a second time" in text for _, text in ledger.said(spec.name))


def _check_last_values(ledger: Ledger, spec: QuerySpec, committed: list[MicroBatch], name: str) -> list[str]:
    """The last one of a query's rows in a stream that keeps last values is one that a partition has given last."""
    truth = ledger.truth.get(name, ())
    if ledger.configs[name].get("max_msgs_per_subject", -1) < 1 or any(each.fate == LOST for each in truth):
        return []
    places: dict[bytes, list[Truth]] = defaultdict(list)
    for each in truth:
        places[each.payload].append(each)
    last: dict[str, set[bytes]] = {}
    rows: dict[str, set[bytes]] = defaultdict(set)
    for run in committed:
        ends: dict[str, set[bytes]] = defaultdict(set)
        for attempt in run.written:
            of_attempt: dict[str, bytes] = {}
            for payload in attempt.given:
                for subject in {each.subject for each in places.get(payload, ())}:
                    of_attempt[subject] = payload
                    rows[subject].add(payload)
            for subject, payload in of_attempt.items():
                ends[subject].add(payload)
        last |= ends
    found = []
    for subject, ends_of in last.items():
        copies = [each for payload in rows[subject] for each in places[payload] if each.subject == subject]
        final = max(copies, key=lambda each: each.sequence)
        if any(each.subject == subject and each.sequence > final.sequence for each in truth):
            continue  # somebody else's is the last one, and stays
        if final.payload not in ends_of:
            due = ", ".join(sorted(map(_short, ends_of)))
            found.append(
                f"the last row under {subject} in {name} is {_short(final.payload)}, sequence {final.sequence} at "
                f"{final.since:.3f} s, and {due} was given later"
            )
    return _few(found)


def _check_values_of_others(ledger: Ledger, spec: QuerySpec, batches: list[list[MicroBatch]], name: str) -> list[str]:
    """What somebody else has stored behind a row is not replaced by that row, which is stored again.

    The pages except buckets, what is run again with ``window``, and what is stored twice as the log says.
    """
    assert spec.write is not None
    if "bucket" in spec.write or _says_so(ledger, spec):
        return []
    truth = ledger.truth.get(name, ())
    if ledger.configs[name].get("max_msgs_per_subject", -1) < 1 or any(each.fate == LOST for each in truth):
        return []
    given = Counter(
        payload for runs in batches for run in runs for attempt in run.attempts for payload in set(attempt.given)
    )
    is_exact = spec.write.get("deduplicate", "exact") == "exact"
    theirs = {each.payload for each in ledger.offered if each.stream == name}
    of_subject: dict[str, list[Truth]] = defaultdict(list)
    for each in sorted(truth, key=lambda each: each.sequence):
        of_subject[each.subject].append(each)
    found = []
    for subject, there in of_subject.items():
        first: dict[bytes, int] = {}
        for place, each in enumerate(there):
            began = first.setdefault(each.payload, place)
            between = [one for one in there[began + 1 : place] if one.payload in theirs]
            if each.payload in theirs or not between or not (is_exact or given[each.payload] == 1):
                continue
            found.append(
                f"{_short(between[-1].payload)} of somebody else, sequence {between[-1].sequence} at "
                f"{between[-1].since:.3f} s under {subject}, was replaced by {_short(each.payload)}, which was stored "
                f"before at {there[began].sequence} and again at {each.sequence}, at {each.since:.3f} s"
            )
    return _few(found)


def _excuse(ledger: Ledger, spec: QuerySpec, copies: list[Truth], batches: list[list[MicroBatch]]) -> str:
    """Return the condition of the documentation that was violated, so that a row may be stored twice."""
    assert spec.write is not None
    deduplicate = spec.write.get("deduplicate", "exact")
    places = [*_targets_of(ledger, spec), spec.write.get("badRowsStream", "")]
    window = min(ledger.configs[name].get("duplicate_window", 120 * 10**9) for name in places if name) / 1e9
    times = sorted(each.since for each in copies)
    apart = max((b - a for a, b in pairwise(times)), default=0.0)
    if deduplicate == "false":
        tried_again = any(len(runs) > 1 or any(a.number for run in runs for a in run.attempts) for runs in batches)
        return "deduplicate is false, and something was run again" if tried_again else ""
    if ledger.had("clock"):
        return "the clock of a server has jumped"
    if _says_so(ledger, spec):
        return "the log says so"
    if deduplicate == "window" and apart >= window * 0.95:
        return f"deduplicate is window, {window:g} s, and it was run again after {apart:.1f} s"
    if deduplicate == "window" and ledger.forgot(times[0], times[-1]):
        return "deduplicate is window, which holds while the server runs"
    if any(_AGAIN_TO_BE_LAST in text for _, text in ledger.said(spec.name)):
        return "the log says that it is to be the last value"
    notes = ledger.truth.get(f"KV_{spec.write.get('stateBucket', 'SPARK_NATS')}", ())
    if spec.fewer and any(each.fate == LOST for each in notes):
        return "the state bucket has lost notes, and there are fewer partitions"
    stopped = ledger.stopped(times[0], times[-1])
    if stopped > window / 2:
        return f"something was stopped for {stopped:.1f} s, and duplicate_window is {window:g} s"
    lives_on = max((s for _, name, s in ledger.faults if "live on" in name or name == "slow sink"), default=0.0)
    if lives_on > window / 2:
        return f"an executor lived on for {lives_on:.1f} s, and duplicate_window is {window:g} s"
    return ""


def _check_order(ledger: Ledger, spec: QuerySpec, committed: list[MicroBatch], name: str) -> list[str]:
    """Rows of a task are stored in their order in a stream, but for what JetStream itself does."""
    if spec.shuffle or any(name not in ORDERLY for _, name, _ in ledger.faults):
        return []
    place: dict[bytes, int] = {}
    for each in ledger.truth.get(name, []):
        if each.fate != LOST:
            if each.payload in place:
                return []  # equal rows, which cannot be told apart
            place[each.payload] = each.sequence
    for run in committed:
        for attempt in run.written:
            places = [place[payload] for payload in attempt.given if payload in place]
            for before, after in pairwise(places):
                if after <= before and Counter(attempt.given).most_common(1)[0][1] == 1:
                    return [f"micro-batch {run.number}: a row was stored at {before}, and the one behind it at {after}"]
    return []


_STORED = re.compile(r"of this task's rows (?:for stream '(\w+)' )?([0-9]+) were stored")
_UNANSWERED = re.compile(r"and ([0-9]+) were sent and not answered")
_HAS_LOST = re.compile(r"has lost (at most )?([0-9]+) rows")
_REPLACED = re.compile(r"NATS_ROWS_REPLACED\].*: ([0-9]+) rows")


def _check_counts(ledger: Ledger, spec: QuerySpec) -> list[str]:
    """What errors say of a task's rows is true."""
    found: list[str] = []
    if spec.write is None or "bucket" in spec.write:
        return found
    for failure in ledger.failures:
        attempt = failure.attempt
        if attempt is None or failure.job is None or not failure.job.application.name.startswith(spec.name + "."):
            continue
        said = _STORED.search(str(failure.error))
        if said is not None:
            names = [said[1]] if said[1] else _targets_of(ledger, spec)
            stored: set[bytes] = {each.payload for name in names for each in ledger.truth.get(name, [])}
            there = sum(payload in stored for payload in attempt.given)
            if int(said[2]) > there:
                found.append(f"an error says that {said[2]} rows were stored, and {there} are: {failure.error}")
    return found


def check_chunks(ledger: Ledger) -> list[str]:
    """What is promised to programs that write: acknowledged rows are stored, once; counts are true."""
    found: list[str] = []
    by_stream: dict[str, dict[bytes, list[Truth]]] = {}
    for chunk in ledger.chunks:
        if chunk.stream not in by_stream:
            places: dict[bytes, list[Truth]] = defaultdict(list)
            for each in ledger.truth.get(chunk.stream, []):
                places[each.payload].append(each)
            by_stream[chunk.stream] = places
        found += [
            f"{chunk.program}, rows {chunk.payloads[0].decode()[:40]}…: {each}"
            for each in _check_chunk(ledger, chunk, by_stream[chunk.stream])
        ]
    return _few(found)


def _said_replaced(ledger: Ledger, who: str, stream: str) -> int:
    """Return of how many rows a log says that later rows of their subjects are stored, so that they need not be."""
    if ledger.configs[stream].get("max_msgs_per_subject", -1) < 1:
        return 0
    return sum(int(said[1]) for _, text in ledger.said(who) if (said := _REPLACED.search(text)) is not None)


def _check_chunk(ledger: Ledger, chunk: Chunk, there: dict[bytes, list[Truth]]) -> list[str]:
    if chunk.ended is None:
        return []
    found = []
    copies = [there.get(payload, []) for payload in chunk.payloads]
    stored = sum(bool(each) for each in copies)
    rows = len(copies)
    config = ledger.configs[chunk.stream]
    window = config.get("duplicate_window", 120 * 10**9) / 1e9
    text = str(chunk.error) if chunk.error is not None else ""
    if chunk.kind == "publisher":
        text = text.replace("none of this task's rows was stored", "of this task's rows 0 were stored")
    if chunk.error is None and stored < rows:
        later = {subject: i for i, subject in enumerate(chunk.subjects) if copies[i]}
        replaced = all(copies[i] or i < later.get(subject, -1) for i, subject in enumerate(chunk.subjects))
        if not (replaced and rows - stored <= _said_replaced(ledger, chunk.program, chunk.stream)):
            found.append(f"all {rows} rows were acknowledged, and {rows - stored} were never stored")
    # Who may not ask for messages notices only by the sequences that rows are lost.
    compares = "$JS.API.STREAM.MSG.GET.*" not in ledger.denials
    if chunk.error is None and chunk.kind in ("publisher", "save") and compares:
        gone = [
            each[0]
            for each in copies
            if each and all(one.fate == LOST and ledger.lost_before(chunk.stream, one.at, chunk.ended) for one in each)
        ]
        if gone:
            found.append(
                f"{len(gone)} rows were lost before it ended, such as {_short(gone[0].payload)}, sequence "
                f"{gone[0].sequence} at {gone[0].at:.3f} s, and nothing was said"
            )
    deduplicate = chunk.options.get("deduplicate", "false")
    protected = chunk.ids if chunk.kind in ("publisher", "atomic") else deduplicate != "false"
    doubled = [each for each in copies if sum(one.fate != LOST for one in each) > 1]
    if doubled and (protected or chunk.kind in ("publisher", "atomic") or len(chunk.attempts) <= 1):
        why = ""
        apart = max(abs(b.since - a.since) for each in doubled for a, b in pairwise(each))
        if chunk.kind == "bucket" and len(chunk.attempts) > 1 and apart >= window * 0.95:
            why = "the same value is put again later"
        elif ledger.had("clock"):
            why = "the clock of a server has jumped"
        elif any(_AGAIN_TO_BE_LAST in said for _, said in ledger.said(chunk.program)):
            why = "the log says that it is to be the last value"
        elif "stored twice" in text or any("stored twice" in said for _, said in ledger.said(chunk.program)):
            why = "it was said"
        elif protected:
            stopped = max(ledger.stopped(min(e.since for e in each), max(e.since for e in each)) for each in doubled)
            if deduplicate == "window" and apart >= window * 0.95:
                why = "deduplicate is window"
            elif stopped > window / 2:
                why = f"something was stopped for {stopped:.1f} s"
        elif ledger.had("too-many") and ledger.stopped(chunk.began, chunk.ended):
            why = "a leader that was stopped refuses as too many what the next one stores"
        if why:
            ledger.notes.append(f"{len(doubled)} rows of {chunk.program} are stored twice, as documented: {why}")
        else:
            row = doubled[0]
            times = ", ".join(f"sequence {e.sequence} at {e.at:.3f} s" for e in row)
            found.append(f"{len(doubled)} rows are stored twice, such as {_short(row[0].payload)}: {times}")
    if chunk.kind == "atomic":
        if 0 < stored < rows and not any(one.fate == LOST for each in copies for one in each):
            found.append(f"{stored} of {rows} rows that were to be stored together are stored")
        there_now = sum(any(one.fate != LOST for one in each) for each in copies)
        if "none of this task's" in text and there_now:
            found.append(f"it was said that none was stored, and {there_now} are: {text}")
    elif chunk.kind == "publisher" and (said := _STORED.search(text)) is not None:
        open_ = _UNANSWERED.search(text)
        least, most = int(said[2]), int(said[2]) + (int(open_[1]) if open_ else 0)
        whole = "has lost" not in text
        if stored < least or (whole and stored > most):
            found.append(f"it was said that {least} to {most} rows were stored, and {stored} are: {text}")
    return found


def check_snapshots(ledger: Ledger) -> list[str]:
    """What is promised to a batch that reads: all that there was, once, in order."""
    found = []
    for snapshot in ledger.snapshots:
        if snapshot.ended is None or snapshot.error is not None:
            continue
        wanted = _filter_of(snapshot.options)
        bucket = snapshot.options.get("bucket")
        after = {(each.sequence, each.payload) for each in snapshot.after}
        rows = Counter(row for part in snapshot.rows for row in part)
        if bucket:
            last = {each.subject: each for each in snapshot.before}
            now = {each.subject: each for each in snapshot.after}
            expected = [
                (each.subject.removeprefix(f"$KV.{bucket}."), each.sequence, each.payload)
                for subject, each in last.items()
                if now.get(subject) == each and b"KV-Operation" not in each.header
            ]
        else:
            expected = [
                (snapshot.stream, each.sequence, each.payload)
                for each in snapshot.before
                if wanted(each.subject) and (each.sequence, each.payload) in after
            ]
        for row in expected:
            if rows[row] != 1:
                found.append(f"{snapshot.program}: {row} was read {rows[row]} times")
        for part in snapshot.rows if not bucket else ():
            for (_, before, _), (_, behind, _) in pairwise(part):
                if behind <= before:
                    found.append(f"{snapshot.program}: sequence {behind} came behind {before} in a partition")
    return _few(found)
