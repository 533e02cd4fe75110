"""The report of ``spark-nats check``, and how it is shown to people."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime

from spark_nats.commands.console import Console, format_bytes, rate_shown, seconds_shown, time_shown
from spark_nats.commands.permissions import Ability
from spark_nats.jetstream.listing import AccountInfo, Quota
from spark_nats.jetstream.streams import ASYNC
from spark_nats.protocol.users import USER_INFO, UserInfo

ROUND_TRIPS = 5
MISSING = "does not exist"


@dataclass(frozen=True, slots=True)
class ServerReached:
    """The server that accepted the login."""

    url: str  # its URL
    name: str  # its configured name; empty when it has none
    version: str
    cluster: str  # name of its cluster; empty when it has none
    domain: str  # its JetStream domain; empty when it has none
    encrypted: bool  # whether the connection goes through TLS
    max_payload: int  # most bytes of headers and payload of a message
    round_trip: float  # seconds from a PING to its PONG, the median of ROUND_TRIPS


@dataclass(frozen=True, slots=True)
class StreamChecked:
    """A stream, which may be that of a KV bucket."""

    name: str  # its name; the pattern when no stream is known to match it
    bucket: str = ""  # name of the bucket, if one was to be checked; else empty
    problem: str = ""  # why nothing more is known of it; empty when more is known
    retention: str = ""  # `limits`, `interest` or `workqueue`
    subjects: tuple[str, ...] = ()  # what it listens on
    first_sequence: int = 0  # sequence of its first message; `last_sequence + 1` when it is empty
    last_sequence: int = 0  # sequence of the last message that it has ever stored; without one, 0 or `first_seq - 1`
    first_time: datetime | None = None  # when its first message was stored; None when it is empty
    last_time: datetime | None = None  # when the message `last_sequence` was stored; None when there was none
    messages: int = 0  # number of its messages
    bytes: int = 0  # bytes that its messages take
    rate: float = 0.0  # messages a second that it stored during the check; 0 also when that is unknown
    storage: str = ""  # `file` or `memory`
    replicas: int = 0  # number of its replicas
    persist_mode: str = ""  # `default`, or `async`: the server writes a message to the file after acknowledging it
    duplicate_window: float = 0.0  # seconds for which it remembers message ids
    outlasts: bool = False  # whether it certainly still remembers message ids after a whole `retryTimeout`
    max_age: float | None = None  # seconds after which it removes messages; None when it never does for their age
    # risks for what is written to it, streams in other domains that hear the same, and subjects that leave a read
    # without rows; only for named streams, no buckets
    warnings: tuple[str, ...] = ()
    abilities: tuple[Ability, ...] = ()  # what the user may do with it; empty when that was not checked
    missing: bool = False  # whether the problem is that it does not exist

    @property
    def kind(self) -> str:
        """What the report calls it: a bucket or a stream."""
        return "bucket" if self.bucket else "stream"

    @property
    def title(self) -> str:
        """Its name in the report."""
        return self.bucket or self.name


@dataclass(frozen=True, slots=True)
class Report:
    """The result of a check."""

    server: ServerReached
    user: UserInfo | None  # the user that is logged in; None when the server does not say
    inbox: str  # wildcard of the subjects on which answers are awaited
    hears_answers: bool  # whether the user may subscribe to it; otherwise nothing of JetStream works
    jetstream: AccountInfo | None  # what the account uses and may use; None when that is unknown
    problems: tuple[str, ...]  # what could not be found out, and why
    # the streams or the bucket that were named; without any, all of the account, but none if subjects were named
    streams: tuple[StreamChecked, ...]
    core: tuple[Ability, ...]  # what the user may do with subjects of core NATS, when some were named
    retry_timeout: float  # seconds for which tasks wait for servers that are down (`retryTimeout`)
    chosen: bool  # whether streams were named, one by one or by a pattern, or a bucket
    # why JetStream cannot list the streams, if none were named; empty where it can, or is not enabled
    unlisted: str = ""

    def failures(self, required: Collection[str]) -> list[str]:
        """Return the failures of the check as sentences.

        Args:
            required: the activities that must be possible wherever the report has them; an unknown one is a failure.
        """
        found = [f"the streams cannot be listed: {self.unlisted}"] if self.unlisted else []
        found += [f"{stream.kind} {stream.title}: {stream.problem}" for stream in self.streams if stream.problem]
        abilities = [(f"{stream.kind} {stream.title}", stream.abilities) for stream in self.streams]
        for what, known in [*abilities, ("core NATS", self.core)]:
            for ability in known:
                if ability.to in required and not ability.possible:
                    reasons = [ability.obstacle] if ability.obstacle else []
                    reasons += [f"may not {each}" for each in ability.lacks]
                    reasons += [f"maybe not allowed to {each}" for each in ability.unknown]
                    found.append(f"{what}, {ability.to}: {', '.join(reasons)}")
        return found


def print_report(report: Report, console: Console) -> None:
    """Print a report."""
    console.print_table((), [*_describe_server(report).items()])
    for problem in report.problems:
        console.print_line(f"unknown: {problem}")
    known = [stream for stream in report.streams if not stream.problem]
    kind = report.streams[0].kind if report.streams else "stream"
    if listed := [stream for stream in report.streams if stream.missing or not stream.problem]:
        console.print_line()
        console.print_table(
            (kind, "messages", "sequences", "first stored", "last stored", "bytes", "rate"),
            [
                (
                    stream.title,
                    f"{stream.messages:,}",
                    f"{stream.first_sequence:,} to {stream.last_sequence:,}" if stream.messages else "empty",
                    time_shown(stream.first_time) if stream.first_time else "",
                    time_shown(stream.last_time) if stream.last_time else "",
                    format_bytes(stream.bytes),
                    rate_shown(stream.rate),
                )
                if not stream.missing
                else (stream.title, "", MISSING, "", "", "", "")
                for stream in listed
            ],
            numbers=("messages", "bytes", "rate"),
        )
    if known:
        console.print_line()
        console.print_table(
            (kind, "kept in", "replicas", "message ids known for", "messages kept for"),
            [
                (
                    stream.title,
                    f"{stream.storage}, {stream.persist_mode}" if stream.persist_mode == ASYNC else stream.storage,
                    f"{stream.replicas}",
                    seconds_shown(stream.duplicate_window),
                    seconds_shown(stream.max_age) if stream.max_age is not None else "no time limit",
                )
                for stream in known
            ],
            numbers=("replicas",),
        )
        for stream in known:
            for warning in stream.warnings:
                console.print_line(f"warning: {stream.kind} {stream.title}: {warning}")
        if report.chosen and kind == "stream" and not all(stream.outlasts for stream in known):
            console.print_line(
                f"message ids: tasks wait for servers for up to {seconds_shown(report.retry_timeout)} (retryTimeout); "
                "later than half the time for which ids are known, only deduplicate=exact keeps a task that is run "
                "again from storing rows twice"
            )
    rows = [row for stream in report.streams for row in _permission_rows(stream.title, stream.abilities)]
    rows += _permission_rows("core NATS", report.core)
    if rows:
        console.print_line()
        console.print_table((kind, "activity", "allowed", "lacks"), rows)
        if any("?" in row for row in rows):
            console.print_line(
                f"maybe: only publishing would tell, or the server, if the user might publish to {USER_INFO}"
            )
    if left := sum(not stream.abilities for stream in known):
        console.print_line(f"and {left} more; name streams with --stream to see what the user may do with them")


def _describe_server(report: Report) -> dict[str, str]:
    server, user = report.server, report.user
    named = {"name": server.name, "cluster": server.cluster, "domain": server.domain}
    described = [server.url, f"nats-server {server.version}", *(f"{what} {it}" for what, it in named.items() if it)]
    facts = {"server": ", ".join([*described, "TLS" if server.encrypted else "no TLS"])}
    if user:
        ends = f", for another {seconds_shown(user.expires)}" if user.expires is not None else ""
        facts["login"] = f"{user.name or 'without a user name'}, account {user.account}{ends}"
    facts["round trip"] = f"{server.round_trip * 1000:.2f} ms, the median of {ROUND_TRIPS}"
    facts["payload"] = f"at most {format_bytes(server.max_payload)}"
    if account := report.jetstream:
        counts = {"streams": account.streams, "consumers": account.consumers}
        sizes = {"in files": account.storage, "in memory": account.memory}
        usage = [_usage_text(quota, str, what) for what, quota in counts.items()]
        usage += [_usage_text(quota, format_bytes, what) for what, quota in sizes.items()]
        facts["JetStream"] = ", ".join(usage)
    return facts


def _usage_text(quota: Quota, shown: Callable[[int], str], what: str) -> str:
    limit = "" if quota.limit is None else f" of {shown(quota.limit)}"
    used = shown(quota.used) + limit
    return f"{used} {what.removesuffix('s') if used == '1' else what}"


def _permission_rows(name: str, abilities: Sequence[Ability]) -> list[tuple[str, str, str, str]]:
    """Return rows of the table of permissions: one for activities with equal answers, one for each further lack."""
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
