"""The table of options: for each its name, where it applies, how its value is read, and its default.

This is the one place where any of that stands. Names are case-insensitive and, where Spark's Kafka connector has the
same thing, are its names. The table in docs/options.md is made of this one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Flag, auto
from itertools import combinations
from typing import Any

from spark_nats.options.context import read_context
from spark_nats.options.values import (
    EXACT,
    FAIL,
    LATEST,
    NEVER,
    WINDOW,
    read_boolean,
    read_bucket,
    read_certificates,
    read_certificates_pem,
    read_create_bucket,
    read_create_stream,
    read_credentials,
    read_credentials_file,
    read_deduplicate,
    read_duration,
    read_key_pem,
    read_keys,
    read_location,
    read_name,
    read_names,
    read_offsets,
    read_on_conflict,
    read_patience,
    read_pattern,
    read_queue_group,
    read_secret,
    read_seed,
    read_seed_file,
    read_servers,
    read_strategy,
    read_text,
    read_timestamp,
    read_tokens,
    read_whole_number,
)
from spark_nats.protocol.api import API_PREFIX
from spark_nats.protocol.subjects import INBOX_PREFIX


class Use(Flag):
    """What options are for: reading or writing a stream, a KV bucket or core NATS, in a batch or in streaming.

    One query is one of these; where an option applies is several of them.
    """

    READ_STREAM_IN_BATCH = auto()
    READ_STREAM_IN_STREAMING = auto()
    READ_BUCKET_IN_BATCH = auto()
    READ_BUCKET_IN_STREAMING = auto()
    READ_CORE_IN_BATCH = auto()
    READ_CORE_IN_STREAMING = auto()
    WRITE_STREAM_IN_BATCH = auto()
    WRITE_STREAM_IN_STREAMING = auto()
    WRITE_BUCKET_IN_BATCH = auto()
    WRITE_BUCKET_IN_STREAMING = auto()
    WRITE_CORE_IN_BATCH = auto()
    WRITE_CORE_IN_STREAMING = auto()


def _all(word: str) -> Use:
    uses = Use(0)
    for name, use in Use.__members__.items():
        if word in name.split("_"):
            uses |= use
    return uses


READ, WRITE = _all("READ"), _all("WRITE")
STREAM, BUCKET, CORE = _all("STREAM"), _all("BUCKET"), _all("CORE")
KEPT = STREAM | BUCKET  # what JetStream keeps
BATCH, STREAMING = _all("BATCH"), _all("STREAMING")
ANY = READ | WRITE


@dataclass(frozen=True, slots=True)
class Option:
    """One row of the table.

    Attributes:
        name: as documented.
        applies: what it is for.
        read: reads a value; raises ValueError.
        meaning: what it does, for the documentation.
        default: what it is when it is not set, as a user would write it; None when it is then absent.
        batch_default: what it is then in a batch, where that differs.
        bucket_default: what it is then in streaming for KV buckets, where that differs.
    """

    name: str
    applies: Use
    read: Callable[[str], Any]
    meaning: str
    default: str | None = field(default=None, kw_only=True)
    batch_default: str | None = field(default=None, kw_only=True)
    bucket_default: str | None = field(default=None, kw_only=True)

    def default_for(self, use: Use) -> Any:
        """Return the value that it has in a query where it is not set; None when it has none."""
        if use not in self.applies:
            return None
        text = self.default
        if use in BATCH and self.batch_default is not None:
            text = self.batch_default
        elif use in BUCKET and self.bucket_default is not None:
            text = self.bucket_default
        return None if text is None else self.read(text)

    @property
    def shown_scope(self) -> str:
        """Whether it is for reading, writing or both, for the documentation."""
        return "both" if self.applies & READ and self.applies & WRITE else "read" if self.applies & READ else "write"

    @property
    def shown_default(self) -> str:
        """Its default, for the documentation; empty when it has none."""
        if self.batch_default is not None:
            of_buckets = f" (KV buckets: {self.bucket_default})" if self.bucket_default is not None else ""
            return f"{self.default} in streaming{of_buckets}, {self.batch_default} in batch"
        return self.default or ""

    def misuse(self, use: Use) -> str | None:
        """Say why it cannot be set in such a query; None when it can."""
        if use in self.applies:
            return None
        mine = READ if use in READ else WRITE
        if not self.applies & mine:
            return f"option '{self.name}' is only for {'writing' if mine is READ else 'reading'}"
        kind = next(kind for kind in (STREAM, BUCKET, CORE) if use in kind)
        if self.applies & mine & kind:
            modes = (
                ["streaming (spark.readStream)", "batch reads (spark.read)"]
                if mine is READ
                else ["streaming (df.writeStream)", "batch writes (df.write)"]
            )
            wanted, found = modes if use in BATCH else reversed(modes)
            return f"option '{self.name}' is for {wanted}{_OF[kind]}, not for {found}"
        if kind is BUCKET:
            return f"option '{self.name}' is not for KV buckets, and contradicts the option 'bucket'"
        if not self.applies & mine & (STREAM | CORE):
            return f"option '{self.name}' needs the option 'bucket'; it is for KV buckets"
        if kind is CORE:
            without = "the subjects of core NATS are read" if mine is READ else "rows go to core NATS"
            return f"option '{self.name}' needs the option 'stream'; without it {without}"
        doing = "reading" if mine is READ else "writing to"
        return f"option '{self.name}' is for {doing} core NATS, and contradicts the option 'stream'"


_OF = {STREAM: "", BUCKET: " of KV buckets", CORE: " of core NATS"}

OPTIONS: tuple[Option, ...] = (
    Option(
        "servers",
        ANY,
        read_servers,
        "servers, comma-separated URLs, tried in random order until one lets us in; `tls://` asks for TLS",
        default="nats://localhost:4222",
    ),
    Option(
        "discoverServers",
        ANY,
        read_boolean,
        "try the servers too that those of `servers` announce, with the same login and the same demands on TLS",
        default="false",
    ),
    Option("context", ANY, read_context, "context of the `nats` command line, by name or path; options win"),
    Option("user", ANY, read_text, "user name"),
    Option("password", ANY, read_secret, "password of `user`"),
    Option("token", ANY, read_secret, "authentication token, instead of `user`"),
    Option("nkeySeedFile", ANY, read_seed_file, "file with the seed of an nkey (`SU…`) to log in with"),
    Option("nkeySeedSecret", ANY, read_seed, "the seed itself, under a name that Spark's plans hide"),
    Option("credentialsFile", ANY, read_credentials_file, "`.creds` file, with JWT and seed, to log in with"),
    Option(
        "credentialsSecret",
        ANY,
        read_credentials,
        "the text of such a file itself, under a name that Spark's plans hide",
    ),
    Option("tlsCaFile", ANY, read_certificates, "certificates (PEM) to trust instead of the system's; asks for TLS"),
    Option("tlsCaPem", ANY, read_certificates_pem, "the text of `tlsCaFile` itself, instead of it"),
    Option("tlsCertFile", ANY, read_certificates, "the client's certificate (PEM) for mutual TLS; asks for TLS"),
    Option(
        "tlsCertPem", ANY, read_certificates_pem, "the text of `tlsCertFile` itself, instead of it, without the key"
    ),
    Option("tlsKeyFile", ANY, read_certificates, "key of `tlsCertFile` (PEM, not encrypted), unless that holds it"),
    Option("tlsKeySecret", ANY, read_key_pem, "the text of `tlsKeyFile` itself, under a name that Spark's plans hide"),
    Option(
        "tlsServerName",
        ANY,
        read_text,
        "name that the server's certificate must have, instead of the URL's host; asks for TLS",
    ),
    Option(
        "tlsHandshakeFirst",
        ANY,
        read_boolean,
        "do TLS before anything else, as the server's `handshake_first` demands; asks for TLS",
        default="false",
    ),
    Option(
        "connectionName", ANY, read_text, "name of our connections in the server's monitoring", default="spark-nats"
    ),
    Option("connectTimeout", ANY, read_duration, "time for connecting and logging in to one server", default="5s"),
    Option("requestTimeout", ANY, read_duration, "time for an answer of the server", default="5s"),
    Option(
        "retryTimeout",
        ANY,
        read_patience,
        "time for which tasks, and the driver of a streaming query, wait for servers that are away and try again; "
        "`0s`: none at all",
        default="5m",
    ),
    Option(
        "reconnectWait",
        ANY,
        read_duration,
        "time before the second attempt to connect again, which is doubled before each further one, up to 10s",
        default="2s",
    ),
    Option(
        "maxReconnects",
        ANY,
        read_whole_number,
        "most attempts to connect in a row within `retryTimeout`; when it is not set, 60 in a task and any number on "
        "the driver",
    ),
    Option("idleTimeout", ANY, read_duration, "time for which a connection is kept that nobody uses", default="30s"),
    Option("pingInterval", ANY, read_duration, "silence after which the server is pinged", default="2m"),
    Option("inboxPrefix", ANY, read_tokens, "first tokens of the subjects for answers to us", default=INBOX_PREFIX),
    Option("domain", KEPT, read_name, "JetStream domain"),
    Option(
        "apiPrefix", KEPT, read_tokens, "subject prefix of the JetStream API, instead of `domain`", default=API_PREFIX
    ),
    Option(
        "stream",
        ANY,
        read_names,
        "stream to read (several: comma-separated) or to write to; without it and `bucket`, core NATS is read or "
        "written",
    ),
    Option(
        "streamPattern",
        READ & STREAM,
        read_pattern,
        "regular expression: all streams whose whole names match are read, those included that are made while a query "
        "runs",
    ),
    Option("bucket", ANY, read_bucket, "KV bucket to read or to write to"),
    Option(
        "createStream",
        STREAM,
        read_create_stream,
        "make the stream if it is missing: `true` (listening on `subject`) or its configuration in JSON, such as "
        '`{"subjects": ["orders.>"], "max_age": "48h", "replicas": 3}`',
        default="false",
    ),
    Option(
        "createBucket",
        BUCKET,
        read_create_bucket,
        'make the bucket if it is missing: `true` or its configuration in JSON, such as `{"history": 5}`',
        default="false",
    ),
    Option(
        "keys",
        READ & BUCKET,
        read_keys,
        "only these keys, wildcards allowed, comma-separated; a batch reads those of each comma in parallel",
    ),
    Option(
        "history",
        READ & BUCKET & BATCH,
        read_boolean,
        "batch: every revision that is kept, and not the last one of each key alone",
        default="false",
    ),
    Option(
        "ignoreDeletes",
        READ & BUCKET,
        read_boolean,
        "leave out that a key was deleted, purged or has expired",
        default="false",
        batch_default="true",
    ),
    Option(
        "onConflict",
        WRITE & BUCKET,
        read_on_conflict,
        "what becomes of a row whose key has another revision than `expected_revision`: `fail` the task or `skip` it",
        default=FAIL,
    ),
    Option(
        "subject",
        ANY & ~BUCKET,
        read_text,
        "reading: only these subjects, wildcards allowed, comma-separated; writing: the subject of every row",
    ),
    Option(
        "startingOffsets",
        READ & STREAM | READ & BUCKET & STREAMING,
        read_offsets,
        "where to begin: `earliest` (what is meant with `consume`), `latest` or the first sequence of each stream in "
        "JSON; or what a checkpoint says of it, which is then compared with what the stream has",
        default="latest",
        batch_default="earliest",
    ),
    Option(
        "endingOffsets",
        READ & STREAM & BATCH,
        read_offsets,
        "batch: where to end: `latest` or the sequence before which to stop, of each stream in JSON; or what a "
        "checkpoint says of it",
        default="latest",
    ),
    Option(
        "startingTimestamp",
        READ & STREAM | READ & BUCKET & STREAMING,
        read_timestamp,
        "begin with the first message stored at or after this time; in streaming, if there is none, with the next one",
    ),
    Option(
        "startingOffsetsByTimestampStrategy",
        READ & STREAM | READ & BUCKET & STREAMING,
        read_strategy,
        "with `startingTimestamp`: `error` to fail, before anything is read, where a stream has nothing for the query "
        "since then",
        default=LATEST,
    ),
    Option(
        "endingTimestamp",
        READ & STREAM & BATCH,
        read_timestamp,
        "batch: end before the first message stored at or after it",
    ),
    Option(
        "consume",
        READ & STREAM & STREAMING,
        read_boolean,
        "streaming: release what is processed: it leaves a work queue, or an interest stream when all others have it",
        default="false",
    ),
    Option(
        "consumer",
        READ & STREAM & STREAMING,
        read_name,
        "streaming, with `consume`: name of the durable consumer that holds what is not processed; when it is not set, "
        "one made of the stream and the subjects",
    ),
    Option(
        "peek",
        READ & STREAM & BATCH,
        read_boolean,
        "batch: read a work queue or an interest stream, and remove nothing",
        default="false",
    ),
    Option(
        "maxOffsetsPerTrigger",
        READ & STREAMING,
        read_whole_number,
        "most sequences, or messages of core NATS, in one micro-batch, which has one of each stream with something new "
        "at least",
    ),
    Option(
        "maxBytesPerTrigger",
        READ & STREAMING,
        read_whole_number,
        "most bytes of subjects, headers and payloads in one micro-batch, which has one message of each stream at "
        "least; measured for the first 8,192 sequences of each, and estimated from them for more",
    ),
    Option(
        "minOffsetsPerTrigger",
        READ & STREAMING,
        read_whole_number,
        "fewest new sequences, or messages of core NATS, for which there is a micro-batch; the first one after a start "
        "waits for nothing, and with `Trigger.AvailableNow` none does",
    ),
    Option(
        "maxTriggerDelay",
        READ & STREAMING,
        read_duration,
        "with `minOffsetsPerTrigger`: time since the last micro-batch was planned after which fewer are enough",
        default="15m",
    ),
    Option(
        "minPartitions",
        READ & (STREAM | CORE | STREAMING),
        read_whole_number,
        "least number of partitions, if there is enough to read",
        default="1",
    ),
    Option(
        "maxRecordsPerPartition",
        READ & STREAM | READ & BUCKET & STREAMING,
        read_whole_number,
        "most sequences in one partition",
        default="500000",
    ),
    Option(
        "failOnDataLoss",
        READ & (STREAM | STREAMING) | WRITE & STREAM,
        read_boolean,
        "fail when messages to be read are gone, or those by which `deduplicate=exact` tells what is stored already; "
        "else warn and go on",
        default="true",
    ),
    Option(
        "filterPushdown",
        READ & STREAM & BATCH,
        read_boolean,
        "batch: let filters on subject, sequence and timestamp narrow what is read; "
        "needs PySpark 4.1 and `spark.sql.python.filterPushdown.enabled`",
        default="false",
    ),
    Option(
        "queueGroup",
        READ & CORE,
        read_queue_group,
        "core NATS: share the messages with all that subscribe in this group",
    ),
    Option(
        "readTimeout", READ & CORE & BATCH, read_duration, "core NATS, batch: time for which to read", default="10s"
    ),
    Option("maxMessages", READ & CORE & BATCH, read_whole_number, "core NATS, batch: end after so many messages"),
    Option(
        "maxBufferedBytes",
        READ & CORE & STREAMING,
        read_whole_number,
        "core NATS, streaming: most bytes that wait for a micro-batch; beyond it the newest messages are dropped",
        default="268435456",
    ),
    Option(
        "receivers",
        READ & CORE & STREAMING,
        read_whole_number,
        "core NATS, streaming: connections that share the messages",
        default="1",
    ),
    Option(
        "spoolLocation",
        READ & CORE & STREAMING,
        read_location,
        "core NATS, streaming: directory or URI where micro-batches are kept until they are processed",
    ),
    Option(
        "maxInFlight",
        WRITE & KEPT,
        read_whole_number,
        "most rows sent and not yet acknowledged, per task, up to 32767; fewer while the stream is given too much",
        default="8192",
    ),
    Option(
        "ackTimeout",
        WRITE & KEPT,
        read_duration,
        "time without any row being stored, over a connection that works, after which a task fails",
        default="30s",
    ),
    Option(
        "deduplicate",
        WRITE & KEPT,
        read_deduplicate,
        "keep rows that are written again from being stored twice: `exact` however late, `window` within the stream's "
        "`duplicate_window`, `false` not at all",
        default=EXACT,
        batch_default=NEVER,
        bucket_default=WINDOW,
    ),
    Option(
        "stateBucket",
        WRITE & STREAM & STREAMING,
        read_bucket,
        "streaming: KV bucket in which `deduplicate=exact` notes where each micro-batch begins; made if it is missing",
        default="SPARK_NATS",
    ),
    Option(
        "atomic",
        WRITE & STREAM,
        read_boolean,
        "store the rows of each partition, 1,000 at most, together or not at all; needs a stream with `allow_atomic`",
        default="false",
    ),
    Option(
        "controlHeaders",
        WRITE,
        read_boolean,
        "send headers whose names begin with `Nats-` too, on which servers act; else they are left out",
        default="false",
    ),
    Option(
        "echo",
        WRITE & CORE,
        read_boolean,
        "core NATS: whether a connection may be sent what it has itself published",
        default="true",
    ),
)

CONNECTION = OPTIONS[: [option.name for option in OPTIONS].index("stream")]
"""Those that say how to connect: the ones before ``stream``."""

BY_NAME = {option.name.lower(): option for option in OPTIONS}

# Options that Spark itself understands and hands to every source and sink.
SPARKS_OWN = frozenset({"checkpointlocation", "queryname", "outputmode", "mergeschema", "numrows", "truncate"})

LOGINS = ("user", "token", "nkeySeedFile", "nkeySeedSecret", "credentialsFile", "credentialsSecret")
"""Ways to log in, of which only one may be set."""

AUTHORITIES = ("tlsCaFile", "tlsCaPem")
CERTIFICATES = ("tlsCertFile", "tlsCertPem")
KEYS = ("tlsKeyFile", "tlsKeySecret")
"""Ways to give what TLS needs, of which only one may be set too."""

CONTRADICTIONS = (
    *(pair for group in (LOGINS, AUTHORITIES, CERTIFICATES, KEYS) for pair in combinations(group, 2)),
    *combinations(("stream", "streamPattern", "bucket"), 2),
    ("domain", "apiPrefix"),
    ("startingOffsets", "startingTimestamp"),
    ("endingOffsets", "endingTimestamp"),
)
"""Pairs that cannot both be set."""

REQUIREMENTS = (
    ("password", ("user",)),
    *((key, CERTIFICATES) for key in KEYS),
    ("tlsCertPem", KEYS),
    ("startingOffsetsByTimestampStrategy", ("startingTimestamp",)),
    ("maxTriggerDelay", ("minOffsetsPerTrigger",)),
)
"""Options that mean nothing without one of some others."""

TOGETHER = ((*LOGINS, "password"), AUTHORITIES, (*CERTIFICATES, *KEYS), ("domain", "apiPrefix"))
"""What is taken from a context together or not at all."""
