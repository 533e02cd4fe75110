"""``spark-nats check``: connects as Spark would, and says what it has reached, what is there, and what the user may do.

Nothing is changed, and every request has its limit (``requestTimeout``).
"""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from datetime import datetime

from spark_nats.client.connection import Connection, connect
from spark_nats.client.retrying import Result
from spark_nats.commands.console import Console, bytes_shown, rate_shown, seconds_shown, time_shown
from spark_nats.commands.permissions import (
    COMPARE,
    CONSUME,
    CREATE,
    EXACT,
    PEEK,
    READ,
    WRITE,
    Ability,
    Needs,
    Rights,
    needs_of_bucket,
    needs_of_core,
    needs_of_stream,
)
from spark_nats.errors import (
    NatsConnectionError,
    NatsError,
    OptionError,
    PermissionsError,
    StreamNotFoundError,
    UnsupportedStreamError,
)
from spark_nats.jetstream.account import AccountInfo, Quota, account_info
from spark_nats.jetstream.api import JetStream
from spark_nats.jetstream.holding import check_direct, check_releasable
from spark_nats.jetstream.keyvalue import naming_bucket
from spark_nats.jetstream.matching import matching_names, unmatched_filters
from spark_nats.jetstream.streams import ASYNC, LIMITS, MEMORY, WORK_QUEUE, StreamInfo, list_streams, stream_info
from spark_nats.options.remedies import naming_options
from spark_nats.options.settings import Settings, value_of
from spark_nats.options.table import BY_NAME, Use
from spark_nats.options.values import read_subjects
from spark_nats.protocol.api import API_PREFIX, prefix_of_domain
from spark_nats.protocol.documents import moment
from spark_nats.protocol.keyvalue import bucket_of, stream_of
from spark_nats.protocol.users import USER_INFO, UserInfo, parse_user_info

ROUND_TRIPS = 5
LOOK_AGAIN = 1.0
"""Seconds between two looks at the streams, to know how fast they grow."""
MOST_TRIED = 20
"""Streams of which it is found out what a user may do with them, when none are named."""
MISSING = "does not exist"


@dataclass(frozen=True, slots=True)
class ServerReached:
    """The server that let us in.

    Attributes:
        url: where it is.
        name: as it calls itself; empty when it was given no name.
        version: its version.
        cluster: name of its cluster; empty when it has none.
        domain: its JetStream domain; empty when it has none.
        encrypted: whether the connection goes through TLS.
        max_payload: most bytes of a message.
        round_trip: seconds from a PING to its PONG, the median of :data:`ROUND_TRIPS`.
    """

    url: str
    name: str
    version: str
    cluster: str
    domain: str
    encrypted: bool
    max_payload: int
    round_trip: float


@dataclass(frozen=True, slots=True)
class StreamChecked:
    """A stream, or the one that a KV bucket is.

    Attributes:
        name: its name.
        bucket: name of the bucket, if that was asked for; else empty.
        problem: why nothing more is known of it; empty when it is.
        retention: ``limits``, ``interest`` or ``workqueue``.
        subjects: what it listens on.
        first_sequence: sequence of its first message.
        last_sequence: sequence of the last message that it was ever given.
        first_time: when its first message was stored; None when it is empty.
        last_time: when its last message was stored.
        messages: how many it holds.
        bytes: how many bytes they take.
        rate: messages a second that it was given while we looked.
        storage: ``file`` or ``memory``.
        replicas: how many servers keep it.
        persist_mode: ``default``, or ``async`` where it is written to its file after it is acknowledged.
        duplicate_window: seconds for which it knows message ids again.
        outlasts: whether it certainly knows them again when tasks have waited for all of ``retryTimeout``.
        max_age: seconds after which it removes messages; None when age is no reason.
        warnings: what endangers what is written to it, or leaves a read without rows; of streams that were asked for.
        abilities: what the user may do with it; empty when that was not looked at.
        missing: whether the problem is that it does not exist.
    """

    name: str
    bucket: str = ""
    problem: str = ""
    retention: str = ""
    subjects: tuple[str, ...] = ()
    first_sequence: int = 0
    last_sequence: int = 0
    first_time: datetime | None = None
    last_time: datetime | None = None
    messages: int = 0
    bytes: int = 0
    rate: float = 0.0
    storage: str = ""
    replicas: int = 0
    persist_mode: str = ""
    duplicate_window: float = 0.0
    outlasts: bool = False
    max_age: float | None = None
    warnings: tuple[str, ...] = ()
    abilities: tuple[Ability, ...] = ()
    missing: bool = False

    @property
    def kind(self) -> str:
        """What its user calls it."""
        return "bucket" if self.bucket else "stream"

    @property
    def title(self) -> str:
        """Its name to its user."""
        return self.bucket or self.name


@dataclass(frozen=True, slots=True)
class Report:
    """What a check has found.

    Attributes:
        server: the server that let us in.
        user: who we are to it; None when it does not say.
        inbox: wildcard of the subjects on which answers are awaited.
        hears_answers: whether the user may subscribe to it; without that nothing of JetStream works.
        jetstream: what the account uses and may use; None when that cannot be known.
        problems: what could not be found out, and why.
        streams: the streams that were asked for, or the bucket, or else all streams that the account has.
        core: what the user may do with subjects of core NATS, when those were asked for.
        retry_timeout: seconds for which tasks wait for servers that are away, as the options have it.
        chosen: whether streams were asked for, or a bucket.
    """

    server: ServerReached
    user: UserInfo | None
    inbox: str
    hears_answers: bool
    jetstream: AccountInfo | None
    problems: tuple[str, ...]
    streams: tuple[StreamChecked, ...]
    core: tuple[Ability, ...]
    retry_timeout: float
    chosen: bool

    def failures(self, required: Collection[str]) -> list[str]:
        """Return in sentences what is not as it has to be.

        Args:
            required: what must be possible with each stream, or with the subjects of core NATS.
        """
        found = [f"{stream.kind} {stream.title}: {stream.problem}" for stream in self.streams if stream.problem]
        abilities = [(f"{stream.kind} {stream.title}", stream.abilities) for stream in self.streams]
        if self.core:
            abilities.append(("core NATS", self.core))
        for what, known in abilities:
            for ability in known:
                if ability.to in required and not ability.possible:
                    reasons = [ability.obstacle] if ability.obstacle else []
                    reasons += [f"may not {each}" for each in ability.lacks]
                    reasons += [f"maybe not allowed to {each}" for each in ability.unknown]
                    found.append(f"{what}, {ability.to}: {', '.join(reasons)}")
        return found


def check(settings: Settings, look_again: float = LOOK_AGAIN) -> Report:
    """Connect once, and find out.

    Args:
        settings: how to connect; ``stream`` or ``streamPattern`` name the streams to look at, ``subject`` what is to be
            published to them or, without these, what is read and written of core NATS; ``stateBucket`` is that of the
            sink; ``bucket`` names a KV bucket to look at instead, and ``keys`` what is to be written in it.
        look_again: seconds between two looks at the streams.

    Raises:
        OptionError: one of these is not for a bucket, or only for one.
        NatsError: no server let us in, or the connection was lost.
    """
    use = Use.READ_BUCKET_IN_STREAMING if "bucket" in settings.given else Use.READ_STREAM_IN_STREAMING
    for name in ("subject", "keys"):
        if name in settings.given and (misuse := BY_NAME[name].misuse(use)):
            raise OptionError(misuse)
    with naming_options(), connect(settings.connection) as connection:
        return _Check(settings, connection).run(look_again)


class _Check:
    """One check over one connection."""

    def __init__(self, settings: Settings, connection: Connection) -> None:
        self._connection = connection
        self._js = JetStream(connection, settings.api_prefix)
        # A server maps the subjects of its own domain before it looks at permissions.
        here = prefix_of_domain(connection.info.domain) == settings.api_prefix
        self._prefix = API_PREFIX if here else settings.api_prefix
        self._inbox = f"{settings.connection.inbox_prefix}.>"
        self._bucket: str = settings.given.get("bucket", "")
        self._keys: tuple[str, ...] = settings.given.get("keys", (">",))
        self._names: tuple[str, ...] = (stream_of(self._bucket),) if self._bucket else settings.given.get("stream", ())
        self._pattern: re.Pattern[str] | None = settings.given.get("streamPattern")
        self._chosen = bool(self._names or self._pattern)
        subject = settings.given.get("subject")
        self._subjects = value_of("subject", subject, read_subjects) if subject else ()
        patience = BY_NAME["retrytimeout"].default_for(Use.WRITE_STREAM_IN_STREAMING)
        self._patience: float = settings.given.get("retryTimeout", patience)
        self._state_bucket: str = settings.given.get("stateBucket") or str(BY_NAME["statebucket"].default)
        self._unheard: tuple[str, ...] = ()  # of the subjects, those that no message of the streams can have
        self._problems: list[str] = []

    def run(self, look_again: float) -> Report:
        server = self._server()
        hears = Rights(self._connection, None, self._prefix).ability(READ, Needs(subscribe=(self._inbox,)))
        user = account = None
        infos: dict[str, StreamInfo | NatsError] = {}
        rates: dict[str, float] = {}
        if hears.possible:
            user = self._user()
            account = self._asked(lambda: account_info(self._js), "what JetStream is used for")
            if self._chosen or not self._subjects:
                infos = self._streams()
                rates = self._rates(infos, look_again)
        elif self._chosen or not self._subjects:
            self._problems.append(
                f"the user may not subscribe to {self._inbox}, where answers are awaited, so nothing can be asked"
            )
            unknown = (self._pattern.pattern,) if self._pattern else self._names
            infos = dict.fromkeys(unknown, NatsError("cannot be asked for"))
        rights = Rights(self._connection, user, self._prefix)
        tried = self._names if self._chosen else list(infos)[:MOST_TRIED]
        state = self._state() if hears.possible and tried and not self._bucket else None
        known = [info for info in infos.values() if isinstance(info, StreamInfo)]
        self._unheard = unmatched_filters(self._subjects, known)
        streams = tuple(
            self._stream(name, info, rates.get(name, 0.0), rights if name in tried else None, state)
            for name, info in infos.items()
        )
        core = needs_of_core(self._subjects) if self._subjects and not self._chosen else {}
        return Report(
            server,
            user,
            self._inbox,
            bool(hears.possible),
            account,
            tuple(self._problems),
            streams,
            tuple(rights.ability(activity, needs) for activity, needs in core.items()),
            self._patience,
            self._chosen,
        )

    def _server(self) -> ServerReached:
        times = []
        for _ in range(ROUND_TRIPS):
            began = time.monotonic()
            self._connection.flush()
            times.append(time.monotonic() - began)
        info = self._connection.info
        return ServerReached(
            url=str(self._connection.server),
            name=info.server_name if info.server_name != info.server_id else "",
            version=info.version,
            cluster=info.cluster,
            domain=info.domain,
            encrypted=self._connection.encrypted,
            max_payload=info.max_payload,
            round_trip=statistics.median(times),
        )

    def _user(self) -> UserInfo | None:
        """Return who we are, to a user who may ask; that one may not is nothing to report."""
        try:
            user = parse_user_info(self._connection.request(USER_INFO, b"").payload)
        except NatsConnectionError:
            raise
        except (NatsError, ValueError):
            return None
        login = self._connection.server.credentials or self._connection.options.credentials
        return replace(user, name="") if login.token is not None else user

    def _asked(self, question: Callable[[], Result], what: str) -> Result | None:
        """Return an answer; None when there is none, which is then among the problems."""
        try:
            return question()
        except NatsConnectionError:
            raise
        except PermissionsError as error:
            self._problems.append(f"{what}: this user may not ask ({error.text})")
        except NatsError as error:
            self._problems.append(f"{what}: {error}")
        return None

    def _streams(self) -> dict[str, StreamInfo | NatsError]:
        """Return streams, those that were chosen or else all, each with its state or why that is unknown."""
        if self._pattern and not self._names:
            try:
                self._names = matching_names(self._js, self._pattern)
            except NatsConnectionError:
                raise
            except NatsError as error:
                return {self._pattern.pattern: error}
            if not self._names:
                return {self._pattern.pattern: NatsError("matches the name of no stream")}
        if not self._names:
            listed = self._asked(lambda: list_streams(self._js), "which streams there are (name some with --stream)")
            return {info.name: info for info in listed or ()}
        found: dict[str, StreamInfo | NatsError] = {}
        for name in self._names:
            try:
                with naming_bucket(self._js, self._bucket) if self._bucket else nullcontext():
                    found[name] = stream_info(self._js, name)
            except NatsConnectionError:
                raise
            except NatsError as error:
                found[name] = error
        return found

    def _rates(self, infos: dict[str, StreamInfo | NatsError], wait: float) -> dict[str, float]:
        """Look at the streams again, and return how many messages each was given a second in between."""
        before = {name: info for name, info in infos.items() if isinstance(info, StreamInfo)}
        if not before:
            return {}
        looked = time.monotonic()
        time.sleep(wait)
        problems = len(self._problems)
        again = self._streams()
        del self._problems[problems:]  # the first look counts
        seconds = time.monotonic() - looked
        rates = {}
        for name, info in before.items():
            now = again.get(name)
            if isinstance(now, StreamInfo) and now.created == info.created:
                between = (now.time - info.time) / 1e9 if now.time > info.time > 0 else seconds
                rates[name] = max(0, now.last_sequence - info.last_sequence) / between
        return rates

    def _state(self) -> StreamInfo | None:
        """Return the state of the bucket for ``deduplicate=exact``, if it is there and the user may know it."""
        try:
            return stream_info(self._js, stream_of(self._state_bucket))
        except NatsConnectionError:
            raise
        except NatsError:
            return None

    def _stream(
        self, name: str, info: StreamInfo | NatsError, rate: float, rights: Rights | None, state: StreamInfo | None
    ) -> StreamChecked:
        known = info if isinstance(info, StreamInfo) else None
        missing = isinstance(info, StreamNotFoundError)
        abilities: tuple[Ability, ...] = ()
        if rights is not None:
            subjects = self._subjects or (known.subjects if known else ())
            retention = known.retention if known else LIMITS
            prefix, inbox, by_pattern = self._prefix, self._inbox, self._pattern is not None
            needs = (
                needs_of_bucket(prefix, inbox, self._bucket, self._keys)
                if self._bucket
                else needs_of_stream(
                    prefix, inbox, name, retention, subjects, self._state_bucket, state is not None, by_pattern
                )
            )
            abilities = tuple(
                rights.ability(to, each, MISSING if missing and to != CREATE else _obstacle(self._js, to, known))
                for to, each in needs.items()
            )
        if known is None:
            return StreamChecked(name, self._bucket, problem=str(info), abilities=abilities, missing=missing)
        warnings = (*_risks(known, state), *_misses(known, self._unheard)) if self._chosen and not self._bucket else ()
        return StreamChecked(
            name=name,
            bucket=self._bucket,
            retention=known.retention,
            subjects=known.subjects,
            first_sequence=known.first_sequence,
            last_sequence=known.last_sequence,
            first_time=_time(known.first_time),
            last_time=_time(known.last_time),
            messages=known.messages,
            bytes=known.bytes,
            rate=rate,
            storage=known.storage,
            replicas=known.replicas,
            persist_mode=known.persist_mode,
            duplicate_window=known.duplicate_window,
            outlasts=known.knows_again(self._patience),
            max_age=known.max_age,
            warnings=warnings,
            abilities=abilities,
        )


def _risks(stream: StreamInfo, state: StreamInfo | None) -> list[str]:
    """Say what a stream may lose of what it has acknowledged, and so an exact write too.

    Args:
        stream: its state.
        state: that of the bucket in which exact writes note what they begin; None when it is not there.
    """
    if stream.storage == MEMORY:
        of_all = "all of its servers" if stream.replicas > 1 else "its server"
        risk = f"it is kept in memory, so a restart of {of_all} takes all that it has acknowledged"
    elif stream.replicas > 1:
        risk = ""
    elif stream.persist_mode == ASYNC:
        risk = "its persist_mode is async, so a server that is killed takes what it has acknowledged last"
    else:
        risk = (
            "it has one replica, so a broken disk takes all of it, and a power failure what it has acknowledged in the "
            "last minutes, unless its server has sync_interval: always"
        )
    found = [f"{risk}. A write with deduplicate=exact, the default in streaming, is no safer than that"] if risk else []
    if state is not None and (state.replicas < stream.replicas or state.storage == MEMORY != stream.storage):
        found.append(
            f"it has {stream.replicas} replicas in {stream.storage}, and the bucket where exact writes note what they "
            f"begin, {bucket_of(state.name)}, has {state.replicas} in {state.storage}"
        )
    return found


def _misses(stream: StreamInfo, subjects: Sequence[str]) -> list[str]:
    """Say that no message of a stream can have these subjects."""
    listens = ", ".join(stream.subjects) or "nothing"
    return [f"no message of it has the subject {subject}: it listens on {listens}" for subject in subjects]


def _obstacle(js: JetStream, activity: str, stream: StreamInfo | None) -> str:
    """Say what keeps everybody from doing something with a stream; empty when nothing does."""
    if stream is None:
        return ""
    try:
        if activity == CONSUME:
            check_releasable(js, stream)
        elif activity == PEEK and stream.retention == WORK_QUEUE:
            check_direct(js, stream)
    except UnsupportedStreamError as error:
        return str(error)
    if activity == READ and stream.retention != LIMITS:
        return f"{stream.retention} retention: to be consumed, or peeked at"
    if activity in (WRITE, EXACT, COMPARE) and stream.config.get("no_ack"):
        return "the stream does not acknowledge what it stores (no_ack)"
    return ""


def _time(nanoseconds: int) -> datetime | None:
    return moment(nanoseconds) if nanoseconds > 0 else None


# For people


def show(report: Report, console: Console) -> None:
    """Print a report."""
    console.facts(_facts(report))
    for problem in report.problems:
        console.line(f"unknown: {problem}")
    known = [stream for stream in report.streams if not stream.problem]
    kind = report.streams[0].kind if report.streams else "stream"
    if listed := [stream for stream in report.streams if stream.missing or not stream.problem]:
        console.line()
        console.table(
            (kind, "messages", "sequences", "first stored", "last stored", "bytes", "rate"),
            [
                (
                    stream.title,
                    f"{stream.messages:,}",
                    f"{stream.first_sequence:,} to {stream.last_sequence:,}" if stream.messages else "empty",
                    time_shown(stream.first_time) if stream.first_time else "",
                    time_shown(stream.last_time) if stream.last_time else "",
                    bytes_shown(stream.bytes),
                    rate_shown(stream.rate),
                )
                if not stream.missing
                else (stream.title, "", MISSING, "", "", "", "")
                for stream in listed
            ],
            numbers=("messages", "bytes", "rate"),
        )
    if known:
        console.line()
        console.table(
            (kind, "kept in", "replicas", "message ids known for", "messages kept for"),
            [
                (
                    stream.title,
                    f"{stream.storage}, {stream.persist_mode}" if stream.persist_mode == ASYNC else stream.storage,
                    f"{stream.replicas}",
                    seconds_shown(stream.duplicate_window),
                    seconds_shown(stream.max_age) if stream.max_age is not None else "",
                )
                for stream in known
            ],
            numbers=("replicas",),
        )
        for stream in known:
            for warning in stream.warnings:
                console.line(f"warning: {stream.kind} {stream.title}: {warning}")
        if report.chosen and kind == "stream" and not all(stream.outlasts for stream in known):
            console.line(
                f"message ids: tasks wait for servers for up to {seconds_shown(report.retry_timeout)} (retryTimeout); "
                "later than half the time for which ids are known, only deduplicate=exact keeps a task that is run "
                "again from storing rows twice"
            )
    rows = [row for stream in report.streams for row in _rows(stream.title, stream.abilities)]
    rows += _rows("core NATS", report.core)
    if rows:
        console.line()
        console.table((kind, "activity", "allowed", "lacks"), rows)
        if any("?" in row for row in rows):
            console.line(f"maybe: only publishing would tell, or the server, if the user might publish to {USER_INFO}")
    if (left := len([stream for stream in known if not stream.abilities])) > 0:
        console.line(f"and {left} more; name streams with --stream to see what the user may do with them")


def _facts(report: Report) -> dict[str, str]:
    server, user = report.server, report.user
    described = [server.url, f"nats-server {server.version}"]
    if server.name:
        described.append(f"name {server.name}")
    described += [f"cluster {server.cluster}"] if server.cluster else []
    described += [f"domain {server.domain}"] if server.domain else []
    described.append("TLS" if server.encrypted else "no TLS")
    facts = {"server": ", ".join(described)}
    if user:
        ends = f", for another {seconds_shown(user.expires)}" if user.expires is not None else ""
        facts["login"] = f"{user.name or 'without a user name'}, account {user.account}{ends}"
    facts["round trip"] = f"{server.round_trip * 1000:.2f} ms, the median of {ROUND_TRIPS}"
    facts["payload"] = f"at most {bytes_shown(server.max_payload)}"
    if account := report.jetstream:
        facts["JetStream"] = ", ".join(
            (
                _used(account.streams, str, "streams"),
                _used(account.consumers, str, "consumers"),
                _used(account.storage, bytes_shown, "in files"),
                _used(account.memory, bytes_shown, "in memory"),
            )
        )
    return facts


def _used(quota: Quota, shown: Callable[[int], str], what: str) -> str:
    limit = "" if quota.limit is None else f" of {shown(quota.limit)}"
    return f"{shown(quota.used)}{limit} {what}"


def _rows(name: str, abilities: Sequence[Ability]) -> list[tuple[str, str, str, str]]:
    """Return rows of the table of permissions: what has the same answer is in one, what is lacking below each other."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for ability in abilities:
        answer = {True: "yes", False: "no", None: "?"}[ability.possible]
        lacks = [ability.obstacle] if ability.obstacle else []
        lacks += [*ability.lacks, *(f"maybe {each}" for each in ability.unknown)]
        groups.setdefault((answer, *lacks), []).append(ability.to)
    rows = []
    for (answer, *lacks), activities in groups.items():
        first, *others = lacks or [""]
        rows.append((name, ", ".join(activities), answer, first))
        rows += [("", "", "", other) for other in others]
        name = ""
    return rows
