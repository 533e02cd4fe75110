"""``spark-nats check``: connects as Spark would, and reports the server, the streams and the user's permissions.

It changes nothing, and every request has a timeout (``requestTimeout``).
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial

from spark_nats import clock
from spark_nats.client.connection import Connection, connect
from spark_nats.client.retrying import Result
from spark_nats.commands import COMPARE, CONSUME, CREATE, EXACT, LOOK_AGAIN, PEEK, READ, WRITE
from spark_nats.commands.permissions import Ability, Rights, publish_needs_of_bucket, publish_needs_of_stream
from spark_nats.commands.report import MISSING, ROUND_TRIPS, Report, ServerReached, StreamChecked
from spark_nats.conditions.others import LISTED_WITHOUT_STATE, MAY_NOT_ASK, PATTERN_MATCHES_NONE
from spark_nats.errors import (
    JetStreamError,
    JetStreamUnavailableError,
    NatsConnectionError,
    NatsError,
    PermissionsError,
    StreamNotFoundError,
    UnsupportedStreamError,
)
from spark_nats.jetstream import listing
from spark_nats.jetstream.api import JetStream
from spark_nats.jetstream.consuming import durables
from spark_nats.jetstream.keyvalue import reporting_missing_bucket
from spark_nats.jetstream.streams import ASYNC, LIMITS, MEMORY, WORK_QUEUE, StreamInfo, parse_stream
from spark_nats.jetstream.views import ask_stream_info
from spark_nats.kinds.buckets import BUCKETS
from spark_nats.kinds.queries import check_options_apply
from spark_nats.kinds.streams import STREAMS
from spark_nats.kinds.streams.options import WriteOptions
from spark_nats.options.hints import errors_for_spark
from spark_nats.options.option import read_option_value
from spark_nats.options.settings import Settings
from spark_nats.options.values import read_subjects
from spark_nats.protocol.api import API_PREFIX, is_of_own_account, prefix_of_domain
from spark_nats.protocol.control import is_older
from spark_nats.protocol.documents import positive_or_none_at, to_datetime
from spark_nats.protocol.keyvalue import bucket_of, stream_of
from spark_nats.protocol.subjects import covers, overlap
from spark_nats.protocol.users import USER_INFO, UserInfo, parse_user_info

MAX_TRIED = 20
"""Maximum number of streams for which permissions are checked, when none are named."""
_OF_STATE = (
    *("retention", "subjects", "first_sequence", "last_sequence", "messages", "bytes"),
    *("storage", "replicas", "persist_mode", "duplicate_window", "max_age"),
)
"""What the report has of a stream's state, by the names that the state has for it."""


def check(settings: Settings) -> Report:
    """Connect once, and return a report.

    Args:
        settings: how to connect; ``stream`` or ``streamPattern`` name the streams to check, ``subject`` the subjects to
            publish to them or, when no stream is named, to read and write in core NATS; ``stateBucket`` is that of
            exact writes; ``bucket`` names a KV bucket to check instead, and ``keys`` the keys to write in it. When no
            stream, subject or bucket is named, all streams are checked.

    Raises:
        OptionError: ``subject`` is invalid or set with a bucket, or ``keys`` is set without one.
        NatsError: no server accepts the login, the connection was lost, or a PING was not answered.
    """
    check_options_apply(settings, BUCKETS if "bucket" in settings.given else STREAMS, False, True, ("subject", "keys"))
    with errors_for_spark(), connect(settings.connection) as connection:
        return _Check(settings, connection).run()


def _answer_or_error(question: Callable[[], Result]) -> Result | NatsError:
    """Return an answer, or the error in its place; a lost connection is raised."""
    try:
        return question()
    except NatsConnectionError:
        raise
    except NatsError as error:
        return error


class _Check:
    """One check over one connection."""

    def __init__(self, settings: Settings, connection: Connection) -> None:
        self._connection = connection
        self._js = JetStream(connection, settings.api_prefix)
        # A server maps the subjects of its own domain before it checks permissions.
        here = prefix_of_domain(connection.info.domain) == settings.api_prefix
        self._prefix = API_PREFIX if here else settings.api_prefix
        self._inbox = f"{settings.connection.inbox_prefix}.>"
        given = settings.given
        self._bucket = given.get("bucket", "")
        self._keys = given.get("keys", (">",))
        self._names = (stream_of(self._bucket),) if self._bucket else given.get("stream", ())
        self._pattern = given.get("streamPattern")
        self._chosen = bool(self._names or self._pattern)
        subject = given.get("subject")
        self._subjects = read_option_value("subject", subject, read_subjects) if subject else ()
        self._retry_timeout = settings.retries.timeout
        self._state_bucket = str(WriteOptions.options["state_bucket"].value(given, streaming=True))
        self._unmatched_subjects: tuple[str, ...] = ()  # the subjects that no new message of the streams can have
        self._heard_here: list[StreamInfo] = []  # streams of the server's own domain, if another one is asked
        self._problems: list[str] = []
        self._unlisted = ""  # why the streams cannot be listed, if JetStream says so itself

    def run(self) -> Report:
        server = self._measure_server()
        hears = Rights(self._connection, None, self._prefix).ask_ability(READ, subscribe=(self._inbox,))
        user = account = None
        infos: dict[str, StreamInfo | NatsError] = {}
        if hears.possible:
            user = self._ask_user_or_none()
            wanted = "how much of JetStream the account uses"
            account = self._ask_or_note_problem(partial(listing.ask_account_info, self._js), wanted)
            if self._chosen or not self._subjects:
                infos = self._ask_streams()
        elif self._chosen or not self._subjects:
            self._problems.append(
                f"the user may not subscribe to {self._inbox}, where answers are awaited, so nothing can be asked"
            )
            unknown = (self._pattern.pattern,) if self._pattern else self._names
            infos = dict.fromkeys(unknown, NatsError(MAY_NOT_ASK()))
        known = {name: info for name, info in infos.items() if isinstance(info, StreamInfo)}
        rates = self._wait_and_measure_rates(known) if known else {}
        rights = Rights(self._connection, user, self._prefix)
        tried = self._names if self._chosen else list(infos)[:MAX_TRIED]
        state = self._ask_state_bucket() if hears.possible and tried and not self._bucket else None
        self._unmatched_subjects = listing.unmatched_filters(self._subjects, known.values())
        self._heard_here = self._ask_streams_of_server_domain(known)
        streams = tuple(
            self._check_stream(name, info, rates.get(name, 0.0), rights if name in tried else None, state)
            for name, info in infos.items()
        )
        core: tuple[Ability, ...] = ()
        if self._subjects and not self._chosen:
            reading = rights.ask_ability(READ, subscribe=self._subjects)
            core = (reading, rights.ask_ability(WRITE, publish=self._subjects))
        return Report(
            server,
            user,
            self._inbox,
            bool(hears.possible),
            account,
            tuple(self._problems),
            streams,
            core,
            self._retry_timeout,
            self._chosen,
            self._unlisted,
        )

    def _measure_server(self) -> ServerReached:
        times = []
        for _ in range(ROUND_TRIPS):
            began = clock.monotonic()
            self._connection.flush()
            times.append(clock.monotonic() - began)
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

    def _ask_user_or_none(self) -> UserInfo | None:
        """Return the user that is logged in; None when the server does not say, which is no problem."""
        try:
            user = parse_user_info(self._connection.request(USER_INFO, b"").payload)
        except NatsConnectionError:
            raise
        except (NatsError, ValueError):
            return None
        login = self._connection.server.credentials or self._connection.options.credentials
        return replace(user, name="") if login.token is not None else user

    def _ask_or_note_problem(self, question: Callable[[], Result], what: str) -> Result | None:
        """Return an answer; None on an error, which is then among the problems."""
        answer = _answer_or_error(question)
        if not isinstance(answer, NatsError):
            return answer
        why = f"this user may not ask ({answer.text})" if isinstance(answer, PermissionsError) else str(answer)
        self._problems.append(f"{what}: {why}")
        return None

    def _ask_streams(self) -> dict[str, StreamInfo | NatsError]:
        """Return the streams that were chosen, or else all, each with its state or why that is unknown.

        A pattern stands in place of its streams when none matches, or when their names are unknown.
        """
        if self._pattern and not self._names:
            names = _answer_or_error(partial(listing.ask_matching_names, self._js, self._pattern))
            if isinstance(names, NatsError):
                return {self._pattern.pattern: names}
            if not names:
                return {self._pattern.pattern: NatsError(PATTERN_MATCHES_NONE())}
            self._names = names
        if not self._names:
            wanted = "which streams there are (name some with --stream)"
            listed = self._ask_or_note_problem(self._list_all_noting_error, wanted)
            return {each.name: self._parse_listed_state(each) for each in listed or ()}
        return {name: _answer_or_error(partial(self._ask_stream_info, name)) for name in self._names}

    def _list_all_noting_error(self) -> list[listing.Listed]:
        try:
            return listing.ask_all_streams(self._js)
        except JetStreamUnavailableError:  # it is not enabled, and so there are no streams
            raise
        except JetStreamError as error:
            self._unlisted = str(error)
            raise

    def _parse_listed_state(self, listed: listing.Listed) -> StreamInfo | NatsError:
        if listed.problem is not None or listed.entry is None:
            return NatsError(LISTED_WITHOUT_STATE(problem=listed.problem))
        return parse_stream(listed.entry, listed.name)

    def _ask_stream_info(self, name: str) -> StreamInfo:
        with reporting_missing_bucket(self._js, self._bucket) if self._bucket else nullcontext():
            return ask_stream_info(self._js, name)

    def _wait_and_measure_rates(self, before: dict[str, StreamInfo]) -> dict[str, float]:
        """Request the state of the streams again, and return how many messages a second each got in between.

        A stream that was recreated, or has no state now, is left out.
        """
        looked = clock.monotonic()
        clock.sleep(LOOK_AGAIN)
        problems = len(self._problems)
        again = self._ask_streams()
        del self._problems[problems:]  # only those of the first request are reported
        seconds = clock.monotonic() - looked
        rates = {}
        for name, info in before.items():
            now = again.get(name)
            if isinstance(now, StreamInfo) and now.created == info.created:
                between = (now.time - info.time) / 1e9 if now.time > info.time > 0 else seconds
                rates[name] = max(0, now.last_sequence - info.last_sequence) / between
        return rates

    def _ask_state_bucket(self) -> StreamInfo | None:
        """Return the state of the bucket for ``deduplicate=exact``, if it exists and the user may request it."""
        state = _answer_or_error(lambda: ask_stream_info(self._js, stream_of(self._state_bucket)))
        return state if isinstance(state, StreamInfo) else None

    def _ask_streams_of_server_domain(self, streams: dict[str, StreamInfo]) -> list[StreamInfo]:
        """Return the streams of the server's own domain, if these streams are in another one."""
        here, elsewhere = self._connection.info.domain, self._prefix != API_PREFIX and is_of_own_account(self._prefix)
        if not elsewhere or not self._chosen or self._bucket or all(each.domain == here for each in streams.values()):
            return []

        def ask() -> list[StreamInfo]:
            with suppress(JetStreamUnavailableError):  # there is no JetStream here
                return listing.ask_all_stream_states(JetStream(self._connection))
            return []

        return self._ask_or_note_problem(ask, "which streams of the server's own domain hear the same subjects") or []

    def _check_stream(
        self, name: str, info: StreamInfo | NatsError, rate: float, rights: Rights | None, state: StreamInfo | None
    ) -> StreamChecked:
        known = info if isinstance(info, StreamInfo) else None
        missing = isinstance(info, StreamNotFoundError)
        abilities: tuple[Ability, ...] = ()
        if rights is not None:
            if self._bucket:
                needs = publish_needs_of_bucket(self._prefix, self._bucket, self._keys)
            else:
                subjects = self._subjects or (known.subjects if known else ())
                retention, by_pattern = known.retention if known else LIMITS, self._pattern is not None
                needs = publish_needs_of_stream(
                    self._prefix,
                    name,
                    retention,
                    subjects,
                    self._state_bucket,
                    state is not None,
                    by_pattern,
                    is_shared=known is not None and known.consumers > 1,
                )
            abilities = tuple(
                rights.ask_ability(
                    activity,
                    publish,
                    (self._inbox,),
                    MISSING
                    if missing and activity != CREATE
                    else _ask_and_describe_obstacle(self._js, activity, known, state),
                )
                for activity, publish in needs.items()
            )
        if known is None:
            return StreamChecked(name, self._bucket, problem=str(info), abilities=abilities, missing=missing)
        warnings: list[str] = []
        if self._chosen and not self._bucket:
            listens, stores = ", ".join(known.subjects) or "nothing", listing.subjects_to_store(known)
            if stores and stores != known.subjects:
                listens += f" and stores what comes as {', '.join(stores)}"
            misses = [
                f"it stores no message with subject {each}: it listens on {listens}"
                for each in self._unmatched_subjects
            ]
            others = _describe_streams_hearing_too(known, self._heard_here)
            warnings = [*_describe_risks(known, state), *self._ask_and_describe_waiting_copies(known), *misses, *others]
        return StreamChecked(
            name=name,
            bucket=self._bucket,
            **{field: getattr(known, field) for field in _OF_STATE},
            first_time=to_datetime(known.first_time) if known.first_time > 0 else None,
            last_time=to_datetime(known.last_time) if known.last_time > 0 else None,
            rate=rate,
            outlasts=self._retry_timeout < known.id_lifetime,
            warnings=tuple(warnings),
            abilities=abilities,
        )

    def _ask_and_describe_waiting_copies(self, stream: StreamInfo) -> list[str]:
        """Describe which streams copy a work queue or an interest stream, and what it keeps for them."""
        if stream.retention == LIMITS or not stream.consumers:
            return []
        listed = _answer_or_error(lambda: listing.ask_all_consumers(self._js, stream.name))
        if isinstance(listed, NatsError):  # the user may not ask
            return []
        sourcing = [*filter(durables.is_sourcing, listed)]
        left = {durables.describe_consumer(each): durables.count_left_to_acknowledge(each) for each in sourcing}
        found = [
            f"it keeps {'messages' if count is None else f'{count:,} messages'} until {whom} has them, also those that "
            "are processed"
            for whom, count in left.items()
            if count != 0
        ]
        version = stream.server_version
        if sourcing and stream.retention == WORK_QUEUE and not is_older(version, 2, 14) and is_older(version, 2, 14, 6):
            claimed = [subject for each in listed for subject in durables.subjects_taken(each)]
            unclaimed = [each for each in stream.subjects if not any(covers(wider, each) for wider in claimed)]
            if unclaimed:
                found.append(
                    f"nats-server {version} removes messages with subject {', '.join(unclaimed)} unread, because a "
                    "stream copies only others, and no consumer has these. Upgrade to 2.14.6 or newer, or start a "
                    "query that consumes them"
                )
        return found


def _describe_risks(stream: StreamInfo, state: StreamInfo | None) -> list[str]:
    """Describe which acknowledged messages a stream, and so an exact write, may lose.

    Args:
        stream: state of the stream.
        state: state of the bucket where exact writes note what they begin; None when it does not exist or is unknown.
    """
    if stream.storage == MEMORY:
        of_all = "all of its servers" if stream.replicas > 1 else "its server"
        risk = f"it is kept in memory, so a restart of {of_all} loses all that it has acknowledged"
    elif stream.replicas > 1:
        risk = ""
    elif stream.persist_mode == ASYNC:
        risk = "its persist_mode is async, so a server that is killed loses what it has acknowledged last"
    else:
        risk = (
            "it has one replica, so a broken disk loses all of it, and a power failure what it has acknowledged in the "
            "last minutes, unless its server has sync_interval: always"
        )
    found = [f"{risk}. A write with deduplicate=exact, the default in streaming, is no safer than that"] if risk else []
    if state is not None and (state.replicas < stream.replicas or state.storage == MEMORY != stream.storage):
        found.append(
            f"it has {stream.replicas} replicas in {stream.storage}, and the bucket where exact writes note what they "
            f"begin, {bucket_of(state.name)}, has {state.replicas} in {state.storage}"
        )
    if (begins := positive_or_none_at(stream.config, "first_seq") or 0) > stream.first_sequence:
        found.append(
            f"its first_seq was edited to {begins:,}. The next start of its server removes every message before that "
            "sequence, unless you set it back"
        )
    limited = any(positive_or_none_at(stream.config, name) for name in ("max_msgs", "max_bytes"))
    if stream.mirror_origin and stream.config.get("discard") == "new" and limited:
        found.append(
            "it is a mirror with discard: new. Once it is full, it lacks messages for good, has others under other "
            "sequences than its origin, and says that it lags by 0"
        )
    return found


def _describe_streams_hearing_too(stream: StreamInfo, others: list[StreamInfo]) -> list[str]:
    """Describe which of these streams, which are in another domain, hear what is written to a stream."""
    found = []
    for other in others:
        same = [each for each in stream.subjects if any(overlap(each, subject) for subject in other.subjects)]
        if same and other.domain != stream.domain:
            where = f"in domain {other.domain!r}" if other.domain else "outside any domain"
            found.append(
                f"stream {other.name!r} {where} hears {', '.join(same)} too: it stores what is written here, and "
                "answers it. Give the two different subjects"
            )
    return found


def _ask_and_describe_obstacle(
    js: JetStream, activity: str, stream: StreamInfo | None, state: StreamInfo | None
) -> str:
    """Return what keeps every user from an activity with a stream; empty when nothing does or the stream is unknown."""
    if stream is None:
        return ""
    try:
        if activity == CONSUME:
            durables.check_releasable(js, stream)
        elif activity == PEEK and stream.retention == WORK_QUEUE:
            durables.check_direct_gets_possible(stream)
    except UnsupportedStreamError as error:
        return str(error)
    if activity == READ and stream.retention != LIMITS:
        return f"{stream.retention} retention: to be consumed, or peeked at"
    if activity in (WRITE, EXACT, COMPARE) and stream.mirror_origin:
        return f"it is a mirror of {stream.mirror_origin}, and stores only messages from there"
    if activity == EXACT and state is not None and state.mirror_origin:
        return f"the state bucket is a mirror of {state.mirror_origin}, and stores only messages from there"
    if activity in (WRITE, EXACT, COMPARE) and stream.config.get("no_ack"):
        return "the stream does not acknowledge what it stores (no_ack)"
    return ""
