"""All options, as the dataclasses have them whose fields they are, and which of them do not go together.

Names are case-insensitive and, where Spark's Kafka connector has the same thing, are its names. The tables in
docs/options.md are made of this one.
"""

from __future__ import annotations

from itertools import combinations
from typing import Any

from spark_nats.options.connecting import AUTHORITIES, CERTIFICATES, KEYS, LOGINS, Connecting
from spark_nats.options.query import Target
from spark_nats.options.read import (
    BucketReadOptions,
    CoreReadOptions,
    ObjectReadOptions,
    ReadOptions,
    TableReadOptions,
    TriggerLimits,
)
from spark_nats.options.rows import READ, Option, rows_of
from spark_nats.options.write import ObjectWriteOptions, WriteOptions

GROUPS = (
    Connecting,
    Target,
    TriggerLimits,
    ReadOptions,
    BucketReadOptions,
    TableReadOptions,
    ObjectReadOptions,
    CoreReadOptions,
    WriteOptions,
    ObjectWriteOptions,
)

ROWS: dict[type[Any], dict[str, Option]] = {group: rows_of(group) for group in GROUPS}
"""The options of each class, by the names of its fields."""

OPTIONS = tuple(dict.fromkeys(row for rows in ROWS.values() for row in rows.values()))

CONNECTION = tuple(row for row in ROWS[Connecting].values() if row.applies & READ)
"""Those that say how to connect, whatever for."""

BY_NAME = {option.name.lower(): option for option in OPTIONS}

_SECTIONS = {
    "Connecting": "servers discoverServers context connectionName domain apiPrefix inboxPrefix "
    "websocketHeadersSecret proxy proxyUser proxyPassword",
    "Login": "user password token nkeySeedFile nkeySeedSecret credentialsFile credentialsSecret",
    "TLS": "tlsCaFile tlsCaPem tlsCertFile tlsCertPem tlsKeyFile tlsKeySecret tlsServerName tlsHandshakeFirst",
    "Time limits and reconnecting": "connectTimeout requestTimeout retryTimeout reconnectWait maxReconnects "
    "idleTimeout pingInterval",
    "What is read or written": "stream streamPattern bucket objectStore table subject createStream "
    "createBucket createObjectStore",
    "Where a read begins and ends": "startingOffsets startingTimestamp startingOffsetsByTimestampStrategy "
    "endingOffsets endingTimestamp limit limitPushdown filterPushdown",
    "Micro-batches and partitions": "maxOffsetsPerTrigger maxBytesPerTrigger minOffsetsPerTrigger maxTriggerDelay "
    "minPartitions maxRecordsPerPartition progressConsumer",
    "Work queues and interest streams": "consume consumer peek",
    "KV buckets": "keys history asOf ignoreDeletes onConflict",
    "Object stores": "objectPattern maxObjectBytes",
    "Core NATS": "queueGroup readTimeout maxMessages receivers maxBufferedBytes spoolLocation echo",
    "Writing": "maxInFlight ackTimeout atomic badRows badRowsStream controlHeaders",
    "Exactly once, and lost messages": "deduplicate stateBucket failOnDataLoss",
}
SECTIONS = {title: tuple(BY_NAME[name.lower()] for name in names.split()) for title, names in _SECTIONS.items()}
"""All options, in the sections and the order in which docs/options.md and the command line show them."""

# Options that Spark itself understands and hands to every source and sink.
SPARKS_OWN = frozenset({"checkpointlocation", "queryname", "outputmode", "mergeschema", "numrows", "truncate"})

CONTRADICTIONS = (
    *(pair for group in (LOGINS, AUTHORITIES, CERTIFICATES, KEYS) for pair in combinations(group, 2)),
    *combinations(("stream", "streamPattern", "bucket", "objectStore"), 2),
    ("table", "objectStore"),
    ("domain", "apiPrefix"),
    ("startingOffsets", "startingTimestamp"),
    ("endingOffsets", "endingTimestamp"),
    ("limit", "minPartitions"),
    ("asOf", "history"),
)
"""Pairs that cannot both be set."""

REQUIREMENTS = (
    ("password", ("user",)),
    ("proxyUser", ("proxy",)),
    ("proxyPassword", ("proxyUser",)),
    *((key, CERTIFICATES) for key in KEYS),
    ("tlsCertPem", KEYS),
    ("startingOffsetsByTimestampStrategy", ("startingTimestamp",)),
    ("maxTriggerDelay", ("minOffsetsPerTrigger",)),
)
"""Options that mean nothing without one of some others."""

TOGETHER = ((*LOGINS, "password"), AUTHORITIES, (*CERTIFICATES, *KEYS), ("domain", "apiPrefix"))
"""What is taken from a context together or not at all."""
