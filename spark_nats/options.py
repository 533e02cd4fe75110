"""The options of ``format("nats")``: one table of names, how each value is read, and which of them go together.

Names are case-insensitive and, where Spark's Kafka connector has the same thing, are its names. Whatever is unknown,
has a bad value or contradicts another is an :class:`~spark_nats.errors.OptionError` that names the option, the value
(never a secret's) and what to do.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import combinations
from typing import Any, Literal

from spark_nats.client.auth import Credentials, key_pair, parse_creds, parse_seed
from spark_nats.client.connection import ConnectionOptions
from spark_nats.client.servers import Server, parse_servers
from spark_nats.client.tls import TlsOptions
from spark_nats.contexts import read_context, read_file
from spark_nats.errors import AuthorizationError, OptionError
from spark_nats.jetstream.api import api_prefix
from spark_nats.protocol.subjects import (
    filter_violation,
    name_violation,
    overlap,
    queue_violation,
    subject_violation,
)

EARLIEST = "earliest"
LATEST = "latest"
Offsets = str | dict[str, int | str]
"""``earliest``, ``latest``, or one of these or a sequence for each stream."""

# Options that Spark itself understands and hands to every source and sink.
_SPARKS_OWN = frozenset(
    {"path", "paths", "checkpointlocation", "queryname", "outputmode", "mergeschema", "numrows", "truncate"}
)


# How values are read. Each reader returns the value or raises ValueError with what follows "option 'x' ".


def _whole_number(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise ValueError(f"is {text!r}; it must be a whole number of at least 1")
    return int(text)


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(f"is {text!r}; it must be true or false")
    return text.lower() == "true"


_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_LONGEST = 500 * 3600.0  # seconds; the system counts a wait in milliseconds of 31 bits


def _duration(text: str) -> float:
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?(ms|s|m|h)", text)
    seconds = float(found[1]) * _UNITS[found[2]] if found else 0.0
    if not 0 < seconds <= _LONGEST:
        raise ValueError(
            f"is {text!r}; it must be a time above zero, of 500h at most, with its unit, such as 500ms, 5s or 2m"
        )
    return seconds


def _timestamp(text: str) -> datetime:
    try:
        if text.isascii() and text.isdigit():
            return datetime.fromtimestamp(int(text) / 1000, UTC)
        parsed = datetime.fromisoformat(text)
        return parsed.astimezone(UTC) if parsed.tzinfo else parsed.replace(tzinfo=UTC)
    except (ValueError, OverflowError, OSError):
        raise ValueError(
            f"is {text!r}; it must be ISO 8601, such as 2026-11-01T00:00:00Z, or milliseconds since 1970"
        ) from None


def _offsets(text: str) -> Offsets:
    if text.lower() in (EARLIEST, LATEST):
        return text.lower()
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError):
        parsed = None
    if not isinstance(parsed, dict) or not all(_is_offset(value) for value in parsed.values()):
        raise ValueError(
            f"is {text!r}; it must be earliest, latest, or JSON with the next sequence of each stream, such as "
            '{"ORDERS": 1200}'
        )
    return parsed


def _is_offset(value: object) -> bool:
    is_sequence = isinstance(value, int) and not isinstance(value, bool) and value >= 1
    return is_sequence or value in (EARLIEST, LATEST)


def _text(text: str) -> str:
    if not text or re.search(r"[\x00-\x1f\x7f]", text):
        raise ValueError("is empty or contains a control character")
    return text


def _secret(text: str) -> str:
    if not text:
        raise ValueError("is empty")
    return text


def _servers(text: str) -> tuple[Server, ...]:
    if "@" in text:
        raise ValueError(
            "has a user, password or token in a URL, where Spark's plans would show it; "
            "use the options 'user' and 'password', or 'token'"
        )
    return parse_servers(text)


# What a seed, a JWT and anything in PEM have in them, and the name of a file has not.
_CONTENT = re.compile(r"\n|-----|\bS[A-Z2-7]{50,}|\beyJ")


def _file(text: str) -> str:
    """Return what a file holds. Files are read here, on the driver, and nowhere else."""
    if _CONTENT.search(text):
        raise ValueError("must be the name of a file, and looks like what such a file holds")
    try:
        content = read_file(text).decode("utf-8", "replace")
    except ValueError as error:
        raise ValueError(f"is {text!r}, which {error}") from None
    if "\ufffd" in content:
        raise ValueError(f"is {text!r}, which is no text file")
    return content


def _certificates(text: str) -> str:
    content = _file(text)
    if "-----BEGIN " not in content:
        raise ValueError(f"is {text!r}, which is no file in PEM format")
    return content


def _seed(text: str) -> Credentials:
    return _usable(parse_seed(text))


def _seed_file(text: str) -> Credentials:
    return _from_file(text, parse_seed)


def _credentials_file(text: str) -> Credentials:
    return _from_file(text, parse_creds)


def _from_file(text: str, parse: Callable[[str], Credentials]) -> Credentials:
    content = _file(text)
    try:
        return _usable(parse(content))
    except ValueError as error:
        raise ValueError(f"is {text!r}, which {error}") from None


def _usable(credentials: Credentials) -> Credentials:
    try:
        key_pair(credentials.nkey_seed or "")
    except AuthorizationError as error:
        raise ValueError(f"cannot be used: {error}") from None
    return credentials


def _place(text: str) -> str:
    if re.match(r"[^/]*://[^/]*@", text):
        raise ValueError(
            "has a user or a key in its URI, where Spark's plans would show it; leave it to the environment"
        )
    return _text(text)


def _names(text: str) -> tuple[str, ...]:
    return _each(text, name_violation)


def _filters(text: str) -> tuple[str, ...]:
    filters = _each(text, filter_violation)
    for one, other in combinations(filters, 2):
        if overlap(one, other):
            raise ValueError(f"names {one!r} and {other!r}, which overlap; name each subject once")
    return filters


def _queue(text: str) -> str:
    if violation := queue_violation(text):
        raise ValueError(f"is {text!r}; it {violation}")
    return text


def _subjects(text: str) -> tuple[str, ...]:
    return _each(text, filter_violation)


def _each(text: str, violation_of: Callable[[str], str | None]) -> tuple[str, ...]:
    parts = tuple(part.strip() for part in text.split(","))
    for part in parts:
        if violation := violation_of(part):
            raise ValueError(f"is {text!r}; {part!r} {violation}")
    if len(set(parts)) < len(parts):
        raise ValueError(f"is {text!r}; it names the same thing twice")
    return parts


def _tokens(text: str) -> str:
    """Read a subject prefix: literal tokens, with or without a last dot."""
    stripped = text.removesuffix(".")
    if violation := subject_violation(stripped):
        raise ValueError(f"is {text!r}; it {violation}")
    return stripped


def _domain(text: str) -> str:
    if violation := name_violation(text):
        raise ValueError(f"is {text!r}; it {violation}")
    return text


def _create_stream(text: str) -> bool | dict[str, Any]:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        config = json.loads(text)
    except (ValueError, RecursionError):
        config = None
    if not isinstance(config, dict):
        raise ValueError(
            "must be true, false or a stream configuration in JSON, such as "
            '{"subjects": ["orders.>"], "max_age": 86400000000000}'
        )
    return config


Scope = Literal["both", "read", "write"]


@dataclass(frozen=True, slots=True)
class Option:
    """One row of the table.

    Attributes:
        name: as documented.
        scope: whether it is for reading, writing or both.
        read: parses the value; raises ValueError.
        default: the value when it is not given, as text for the documentation; empty when there is none.
        meaning: what it does, for the documentation.
    """

    name: str
    scope: Scope
    read: Callable[[str], Any]
    default: str
    meaning: str


OPTIONS: tuple[Option, ...] = (
    Option(
        "servers",
        "both",
        _servers,
        "nats://localhost:4222",
        "servers to try in turn, comma-separated URLs; `tls://` asks for TLS",
    ),
    Option("context", "both", read_context, "", "context of the `nats` command line, by name or path; options win"),
    Option("user", "both", _text, "", "user name"),
    Option("password", "both", _secret, "", "password of `user`"),
    Option("token", "both", _secret, "", "authentication token, instead of `user`"),
    Option("nkeySeedFile", "both", _seed_file, "", "file with the seed of an nkey (`SU…`) to log in with"),
    Option("nkeySeedSecret", "both", _seed, "", "the seed itself, under a name that Spark's plans hide"),
    Option("credentialsFile", "both", _credentials_file, "", "`.creds` file, with JWT and seed, to log in with"),
    Option("tlsCaFile", "both", _certificates, "", "certificates (PEM) to trust instead of the system's; asks for TLS"),
    Option("tlsCertFile", "both", _certificates, "", "the client's certificate (PEM) for mutual TLS; asks for TLS"),
    Option("tlsKeyFile", "both", _certificates, "", "key of `tlsCertFile` (PEM, not encrypted), unless that holds it"),
    Option(
        "tlsServerName",
        "both",
        _text,
        "",
        "name that the server's certificate must have, instead of the URL's host; asks for TLS",
    ),
    Option(
        "tlsHandshakeFirst",
        "both",
        _boolean,
        "false",
        "do TLS before anything else, as the server's `handshake_first` demands; asks for TLS",
    ),
    Option("connectionName", "both", _text, "spark-nats", "name of our connections in the server's monitoring"),
    Option("connectTimeout", "both", _duration, "5s", "time for connecting and logging in to one server"),
    Option("requestTimeout", "both", _duration, "5s", "time for an answer of the server"),
    Option("pingInterval", "both", _duration, "2m", "silence after which the server is pinged"),
    Option("inboxPrefix", "both", _tokens, "_INBOX", "first tokens of the subjects for answers to us"),
    Option("domain", "both", _domain, "", "JetStream domain"),
    Option("apiPrefix", "both", _tokens, "$JS.API", "subject prefix of the JetStream API, instead of `domain`"),
    Option(
        "stream",
        "both",
        _names,
        "",
        "stream to read (several: comma-separated) or to write to; without it, core NATS is read or written",
    ),
    Option(
        "createStream",
        "both",
        _create_stream,
        "false",
        "make the stream if it is missing: `true` (listening on `subject`) or its configuration in JSON",
    ),
    Option(
        "subject",
        "both",
        _text,
        "",
        "reading: only these subjects, wildcards allowed, comma-separated; writing: the subject of every row",
    ),
    Option(
        "startingOffsets",
        "read",
        _offsets,
        "latest in streaming, earliest in batch",
        "where to begin: `earliest`, `latest` or the first sequence of each stream in JSON",
    ),
    Option(
        "endingOffsets",
        "read",
        _offsets,
        "latest",
        "batch: where to end: `latest` or the sequence before which to stop, of each stream in JSON",
    ),
    Option(
        "startingTimestamp",
        "read",
        _timestamp,
        "",
        "begin with the first message stored at or after this time; in streaming, if there is none, with the next one",
    ),
    Option("endingTimestamp", "read", _timestamp, "", "batch: end before the first message stored at or after it"),
    Option(
        "maxOffsetsPerTrigger",
        "read",
        _whole_number,
        "",
        "most sequences, or messages of core NATS, in one micro-batch",
    ),
    Option("minPartitions", "read", _whole_number, "1", "least number of partitions, if there is enough to read"),
    Option("maxRecordsPerPartition", "read", _whole_number, "500000", "most sequences in one partition"),
    Option("failOnDataLoss", "read", _boolean, "true", "fail when messages to be read are gone, else warn and go on"),
    Option(
        "filterPushdown",
        "read",
        _boolean,
        "false",
        "batch: let filters on subject, sequence and timestamp narrow what is read; "
        "needs `spark.sql.python.filterPushdown.enabled`",
    ),
    Option("queueGroup", "read", _queue, "", "core NATS: share the messages with all that subscribe in this group"),
    Option("readTimeout", "read", _duration, "10s", "core NATS, batch: time for which to read"),
    Option("maxMessages", "read", _whole_number, "", "core NATS, batch: end after so many messages"),
    Option(
        "maxBufferedBytes",
        "read",
        _whole_number,
        "268435456",
        "core NATS, streaming: most bytes that wait for a micro-batch; beyond it the newest messages are dropped",
    ),
    Option("receivers", "read", _whole_number, "1", "core NATS, streaming: connections that share the messages"),
    Option(
        "spoolLocation",
        "read",
        _place,
        "",
        "core NATS, streaming: directory or URI where micro-batches are kept until they are processed",
    ),
    Option(
        "maxInFlight",
        "write",
        _whole_number,
        "8192",
        "most rows sent and not yet acknowledged, per task; fewer while the stream is given too much",
    ),
    Option("ackTimeout", "write", _duration, "10s", "time without any row being stored after which a task fails"),
    Option(
        "deduplicate",
        "write",
        _boolean,
        "true in streaming, false in batch",
        "give every row a message id, so that a replay is not stored twice",
    ),
    Option(
        "controlHeaders",
        "write",
        _boolean,
        "false",
        "send headers whose names begin with `Nats-` too, on which servers act; else they are left out",
    ),
    Option(
        "echo", "write", _boolean, "true", "core NATS: whether a connection may be sent what it has itself published"
    ),
)

_BY_NAME = {option.name.lower(): option for option in OPTIONS}

_LOGINS = ("user", "token", "nkeySeedFile", "nkeySeedSecret", "credentialsFile")

_CONTRADICTIONS = (
    *combinations(_LOGINS, 2),
    ("domain", "apiPrefix"),
    ("startingOffsets", "startingTimestamp"),
    ("endingOffsets", "endingTimestamp"),
)


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What to read and how. See :data:`OPTIONS` for the meaning of each."""

    connection: ConnectionOptions
    api_prefix: str
    streams: tuple[str, ...]
    filters: tuple[str, ...] = ()
    starting: Offsets | datetime = EARLIEST
    ending: Offsets | datetime = LATEST
    max_offsets_per_trigger: int | None = None
    min_partitions: int = 1
    max_records_per_partition: int = 500_000
    fail_on_data_loss: bool = True
    filter_pushdown: bool = False
    create_stream: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class CoreReadOptions:
    """What to read of core NATS and how. See :data:`OPTIONS` for the meaning of each."""

    connection: ConnectionOptions
    subjects: tuple[str, ...]
    queue_group: str | None = None
    min_partitions: int = 1
    read_timeout: float = 10.0
    max_messages: int | None = None
    max_offsets_per_trigger: int | None = None
    max_buffered_bytes: int = 256 << 20
    receivers: int = 1
    spool_location: str | None = None
    fail_on_data_loss: bool = True


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Where to write and how. See :data:`OPTIONS` for the meaning of each."""

    connection: ConnectionOptions
    api_prefix: str
    stream: str | None = None
    subject: str | None = None
    max_in_flight: int = 8192
    ack_timeout: float = 10.0
    deduplicate: bool = False
    control_headers: bool = False
    create_stream: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Settings:
    """Options with their values read, before it is known whether they are for reading or writing.

    Attributes:
        given: values by name, of the options that were given.
        connection: how to connect. All files that options name were read for it.
        api_prefix: subject prefix of the JetStream API.
    """

    given: Mapping[str, Any] = field(repr=False)
    connection: ConnectionOptions
    api_prefix: str


def parse(options: Mapping[str, str]) -> Settings:
    """Read the values, and the files that they name.

    Raises:
        OptionError: one is unknown, has a bad value, or contradicts another in any case.
    """
    given = {}
    for name, value in options.items():
        option = _BY_NAME.get(name.lower())
        if option is not None:
            given[option.name] = _value(option.name, value, option.read)
        elif name.lower() not in _SPARKS_OWN:
            raise _unknown(name)
    _contradict(given)
    everything = given
    if "context" in given:
        everything = {**given, **_of_context(given)}
        _contradict(everything)
    if "password" in everything and "user" not in everything:
        raise OptionError("option 'password' needs the option 'user'")
    if "tlsKeyFile" in everything and "tlsCertFile" not in everything:
        raise OptionError("option 'tlsKeyFile' needs the option 'tlsCertFile'")
    return Settings(given, _connection(everything), api_prefix(everything.get("domain"), everything.get("apiPrefix")))


def options_of_urls(urls: str) -> dict[str, str]:
    """Return server URLs as options: with the first one's credentials in options that Spark's plans do not show.

    Raises:
        ValueError: a URL is not one, or another one has other credentials.
    """
    servers = parse_servers(urls)
    login = servers[0].credentials
    if any(server.credentials and server.credentials != login for server in servers):
        raise ValueError("log in in different ways; give every server the same user and password, or the same token")
    named = {"user": login.user, "password": login.password, "token": login.token}
    return {"servers": ",".join(map(str, servers)), **{name: value for name, value in named.items() if value}}


def _contradict(given: Mapping[str, Any]) -> None:
    for one, other in _CONTRADICTIONS:
        if one in given and other in given:
            raise OptionError(f"options '{one}' and '{other}' contradict each other; set one of them")


# What is taken from a context together or not at all.
_TOGETHER = ((*_LOGINS, "password"), ("tlsCertFile", "tlsKeyFile"), ("domain", "apiPrefix"))


def _of_context(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a context's fields by the names of options, without those that options stand above."""
    found = dict(given["context"])
    for group in _TOGETHER:
        if any(name in given for name in group):
            found = {name: text for name, text in found.items() if name not in group}
    values = {}
    for name, text in found.items():
        try:
            if name == "servers":
                values[name] = _servers_of_context(text, given)
            elif name not in given:
                values[name] = _BY_NAME[name.lower()].read(text)
        except ValueError as error:
            raise OptionError(f"option 'context' sets '{name}', which {error}") from None
    return values


def _servers_of_context(url: str, given: Mapping[str, Any]) -> tuple[Server, ...]:
    """Return where a context connects; its URL may log in, since no plan shows it.

    Servers of the option ``servers`` take its place, with the login and the wish for TLS that the URL has.
    """
    servers = parse_servers(url)
    if any(name in given for name in _LOGINS):
        servers = tuple(replace(server, credentials=Credentials()) for server in servers)
    if "servers" not in given:
        return servers
    login, tls = servers[0].credentials, servers[0].tls  # which is the same for all of them
    return tuple(replace(server, credentials=login, tls=server.tls or tls) for server in given["servers"])


_STREAM_ONLY = (
    "createStream",
    "domain",
    "apiPrefix",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "maxRecordsPerPartition",
    "filterPushdown",
)
_CORE_BATCH_ONLY = ("readTimeout", "maxMessages")
_CORE_STREAMING_ONLY = ("maxBufferedBytes", "receivers", "spoolLocation", "maxOffsetsPerTrigger", "failOnDataLoss")
_CORE_ONLY = ("queueGroup", *_CORE_BATCH_ONLY, "maxBufferedBytes", "receivers", "spoolLocation")


def parse_read(options: Mapping[str, str] | Settings, streaming: bool) -> ReadOptions | CoreReadOptions:
    """Return the options of a read: of streams when the option ``stream`` is set, else of core NATS.

    Raises:
        OptionError: one of them is wrong, or two contradict each other.
    """
    settings = _settings(options, "read")
    given = settings.given
    streams = given.get("stream", ())
    if not streams:
        if "subject" in given:
            return _core_read(settings, streaming)
        raise OptionError(
            "nothing to read is named: set the option 'stream', or 'subject' alone to read core NATS as it is published"
        )
    for name in _CORE_ONLY:
        if name in given:
            raise OptionError(f"option '{name}' is for reading core NATS, and contradicts the option 'stream'")
    starting = given.get("startingTimestamp", given.get("startingOffsets", LATEST if streaming else EARLIEST))
    ending = given.get("endingTimestamp", given.get("endingOffsets", LATEST))
    if streaming:
        for name in ("endingOffsets", "endingTimestamp", "filterPushdown"):
            if name in given:
                raise OptionError(f"option '{name}' is for batch reads (spark.read), not for streaming")
    else:
        if "maxOffsetsPerTrigger" in given:
            raise OptionError("option 'maxOffsetsPerTrigger' is for streaming (spark.readStream), not for batch reads")
        if _mentions(starting, LATEST):
            raise OptionError(
                "option 'startingOffsets' is latest, where a batch read has nothing to read; use earliest"
            )
        if _mentions(ending, EARLIEST):
            raise OptionError("option 'endingOffsets' is earliest, where a batch read has nothing to read; use latest")
    _check_streams("startingOffsets", starting, streams)
    _check_streams("endingOffsets", ending, streams)
    _check_order(starting, ending)
    filters = _value("subject", given["subject"], _filters) if "subject" in given else ()
    return ReadOptions(
        connection=settings.connection,
        api_prefix=settings.api_prefix,
        streams=streams,
        filters=filters,
        starting=starting,
        ending=ending,
        max_offsets_per_trigger=given.get("maxOffsetsPerTrigger"),
        min_partitions=given.get("minPartitions", 1),
        max_records_per_partition=given.get("maxRecordsPerPartition", 500_000),
        fail_on_data_loss=given.get("failOnDataLoss", True),
        filter_pushdown=given.get("filterPushdown", False),
        create_stream=_stream_config(given, streams, filters),
    )


def _core_read(settings: Settings, streaming: bool) -> CoreReadOptions:
    given = settings.given
    for name in _STREAM_ONLY:
        if name in given:
            raise OptionError(
                f"option '{name}' needs the option 'stream'; without it the subjects of core NATS are read"
            )
    for name in _CORE_BATCH_ONLY if streaming else _CORE_STREAMING_ONLY:
        if name in given:
            mine, other = "streaming (spark.readStream)", "batch reads (spark.read)"
            raise OptionError(
                f"option '{name}' is for {other if streaming else mine} of core NATS, "
                f"not for {mine if streaming else other}"
            )
    defaults = CoreReadOptions(settings.connection, _value("subject", given["subject"], _subjects))
    return CoreReadOptions(
        connection=defaults.connection,
        subjects=defaults.subjects,
        queue_group=given.get("queueGroup"),
        min_partitions=given.get("minPartitions", defaults.min_partitions),
        read_timeout=given.get("readTimeout", defaults.read_timeout),
        max_messages=given.get("maxMessages"),
        max_offsets_per_trigger=given.get("maxOffsetsPerTrigger"),
        max_buffered_bytes=given.get("maxBufferedBytes", defaults.max_buffered_bytes),
        receivers=given.get("receivers", defaults.receivers),
        spool_location=given.get("spoolLocation"),
        fail_on_data_loss=given.get("failOnDataLoss", defaults.fail_on_data_loss),
    )


def parse_write(options: Mapping[str, str] | Settings, streaming: bool) -> WriteOptions:
    """Return the options of a write.

    Raises:
        OptionError: one of them is wrong, or two contradict each other.
    """
    settings = _settings(options, "write")
    given = settings.given
    streams = given.get("stream", ())
    if len(streams) > 1:
        raise OptionError(f"option 'stream' names {len(streams)} streams; a query writes to one")
    subject = given.get("subject")
    if subject is not None and (violation := subject_violation(subject)):
        raise OptionError(f"option 'subject' is {subject!r}; for writing it must be one subject, but it {violation}")
    if not streams:
        for name in ("maxInFlight", "ackTimeout", "deduplicate", "createStream", "domain", "apiPrefix"):
            if name in given:
                raise OptionError(f"option '{name}' needs the option 'stream'; without it rows go to core NATS")
    elif "echo" in given:
        raise OptionError("option 'echo' is for writing to core NATS, and contradicts the option 'stream'")
    return WriteOptions(
        connection=settings.connection,
        api_prefix=settings.api_prefix,
        stream=streams[0] if streams else None,
        subject=subject,
        max_in_flight=given.get("maxInFlight", 8192),
        ack_timeout=given.get("ackTimeout", 10.0),
        deduplicate=given.get("deduplicate", streaming and bool(streams)),
        control_headers=given.get("controlHeaders", False),
        create_stream=_stream_config(given, streams, (subject,) if subject else ()),
    )


def _settings(options: Mapping[str, str] | Settings, scope: Scope) -> Settings:
    settings = options if isinstance(options, Settings) else parse(options)
    for name in settings.given:
        if _BY_NAME[name.lower()].scope not in ("both", scope):
            raise OptionError(f"option '{name}' is only for {'reading' if scope == 'write' else 'writing'}")
    return settings


def _value(name: str, text: str, read: Callable[[str], Any]) -> Any:
    try:
        return read(text)
    except ValueError as error:
        raise OptionError(f"option '{name}' {error}") from None


def _unknown(name: str) -> OptionError:
    if name.lower() == "nkeyseed":
        return OptionError(
            "option 'nkeySeed' is not taken, because Spark's plans would show its value; use 'nkeySeedFile', or "
            "'nkeySeedSecret', which they hide"
        )
    near = difflib.get_close_matches(name.lower(), _BY_NAME, n=1, cutoff=0.5)
    hint = f"did you mean '{_BY_NAME[near[0]].name}'?" if near else "see the table of options in the README"
    return OptionError(f"unknown option '{name}'; {hint}")


def _mentions(offsets: Offsets | datetime, word: str) -> bool:
    return offsets == word or (isinstance(offsets, dict) and word in offsets.values())


def _check_streams(name: str, offsets: Offsets | datetime, streams: tuple[str, ...]) -> None:
    if isinstance(offsets, dict) and set(offsets) != set(streams):
        raise OptionError(
            f"option '{name}' has offsets for {', '.join(sorted(offsets)) or 'no stream'}, "
            f"but the streams to read are {', '.join(streams)}"
        )


def _check_order(starting: Offsets | datetime, ending: Offsets | datetime) -> None:
    if isinstance(starting, datetime) and isinstance(ending, datetime) and ending < starting:
        raise OptionError(
            f"option 'endingTimestamp' is {ending.isoformat()}, which is before 'startingTimestamp', "
            f"{starting.isoformat()}; nothing can be read, so exchange or correct them"
        )
    if isinstance(starting, dict) and isinstance(ending, dict):
        for name, end in ending.items():
            start = starting[name]
            if isinstance(start, int) and isinstance(end, int) and end < start:
                raise OptionError(
                    f"option 'endingOffsets' has {end} for the stream {name!r}, which is below its {start} in "
                    "'startingOffsets'; nothing can be read, so exchange or correct them"
                )


def _connection(given: Mapping[str, Any]) -> ConnectionOptions:
    defaults = ConnectionOptions()
    keys = [given[name] for name in _LOGINS if isinstance(given.get(name), Credentials)]
    return ConnectionOptions(
        servers=given.get("servers", defaults.servers),
        credentials=keys[0] if keys else Credentials(given.get("user"), given.get("password"), given.get("token")),
        tls=_tls(given),
        name=given.get("connectionName", defaults.name),
        connect_timeout=given.get("connectTimeout", defaults.connect_timeout),
        request_timeout=given.get("requestTimeout", defaults.request_timeout),
        ping_interval=given.get("pingInterval", defaults.ping_interval),
        inbox_prefix=given.get("inboxPrefix", defaults.inbox_prefix),
        echo=given.get("echo", defaults.echo),
    )


def _tls(given: Mapping[str, Any]) -> TlsOptions | None:
    """Return what is asked of TLS; None when no option asks for it."""
    tls = TlsOptions(
        ca=given.get("tlsCaFile"),
        certificate=given.get("tlsCertFile"),
        key=given.get("tlsKeyFile"),
        server_name=given.get("tlsServerName"),
        handshake_first=given.get("tlsHandshakeFirst", False),
    )
    if tls == TlsOptions():
        return None
    try:
        tls.context()
    except ValueError as error:
        raise OptionError(f"options 'tlsCaFile', 'tlsCertFile' and 'tlsKeyFile' do not fit: {error}") from None
    return tls


def _stream_config(
    given: Mapping[str, Any], streams: tuple[str, ...], subjects: tuple[str, ...]
) -> dict[str, Any] | None:
    """Return the configuration with which to make a missing stream, None when it must exist."""
    wish = given.get("createStream", False)
    if wish is False:
        return None
    if len(streams) > 1:
        raise OptionError(f"option 'createStream' makes one stream, but 'stream' names {', '.join(streams)}")
    if wish is True:
        if not subjects:
            raise OptionError(
                "option 'createStream' is true, but what the stream shall listen on is not known: set the option "
                '\'subject\', or give the stream\'s configuration, such as {"subjects": ["orders.>"]}'
            )
        return {"name": streams[0], "subjects": list(subjects)}
    if wish.get("name", streams[0]) != streams[0]:
        raise OptionError(f"option 'createStream' has the name {wish['name']!r}, but 'stream' is {streams[0]!r}")
    return {**wish, "name": streams[0]}
