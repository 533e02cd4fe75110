"""Advice for options that do not exist: what to set instead, for users of other connectors and clients."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping

from spark_nats.conditions import ConditionText
from spark_nats.conditions.queries import PATH_UNUSED
from spark_nats.options.option import Option

_STREAMS = "name a stream in the option 'stream', and subjects in 'subject'"
_SERVERS = "name the servers in the option 'servers', such as nats://localhost:4222"
_POSITION = (
    "a query keeps its position in its checkpoint (checkpointLocation) and needs no {}; for core NATS, the option "
    "'queueGroup' shares messages"
)
VIEW = "use CREATE TEMPORARY VIEW ... USING nats OPTIONS (...)"
"""What to do instead of creating a table."""
_TABLE = f"Spark sets it for tables, and does not hand on a table's options to its readers; {VIEW}"
_SHOWN = "Spark's plans would show its value; use '{0}File', or '{0}Secret', which they hide"
_PINGS = "use the option 'pingInterval'"
_ANSWERS = "use the options 'requestTimeout' and 'connectTimeout'"

# By option name in lower case. Options of Spark's Kafka connector with the same meaning here have the same name here.
_HINTS = {
    **dict.fromkeys(("subscribe", "topic", "topics"), _STREAMS),
    "subscribepattern": "use the option 'streamPattern', a regular expression for names of streams; for subjects, "
    "wildcards in 'subject'",
    "assign": "name a stream in the option 'stream'; tasks share its sequences by themselves (see 'minPartitions')",
    **dict.fromkeys(("bootstrap.servers", "kafka.bootstrap.servers", "url", "urls", "host", "port"), _SERVERS),
    **dict.fromkeys(("groupid", "group.id", "groupidprefix", "kafka.group.id"), _POSITION.format("consumer group")),
    **dict.fromkeys(
        ("durable", "durablename"),
        f"{_POSITION.format('durable consumer')}; to show its position, or to read work queues, use 'consume'",
    ),
    "startingoffsetsbytimestamp": "use the option 'startingTimestamp', one time for all streams",
    "endingoffsetsbytimestamp": "use the option 'endingTimestamp', one time for all streams",
    **dict.fromkeys(
        (
            *("fetchoffset.numretries", "fetchoffset.retryintervalms", "kafkaconsumer.polltimeoutms"),
            *("kafka.retries", "kafka.retry.backoff.ms"),
        ),
        "use the option 'retryTimeout', the time to wait for servers that are away",
    ),
    "includeheaders": "leave it out: the column 'headers' is always there",
    "kafka.auto.offset.reset": "use the option 'startingOffsets'",
    "kafka.client.id": "use the option 'connectionName'",
    "kafka.session.timeout.ms": _PINGS,
    "kafka.heartbeat.interval.ms": _PINGS,
    "kafka.request.timeout.ms": _ANSWERS,
    "kafka.default.api.timeout.ms": _ANSWERS,
    "kafka.acks": "leave it out: rows for a stream are always acknowledged",
    "kafka.enable.idempotence": "use the option 'deduplicate', which by default keeps rows from being stored twice",
    "kafka.transactional.id": "use the option 'atomic', which stores a task's rows together or not at all",
    "kafka.delivery.timeout.ms": "use the option 'ackTimeout', the time without any row stored",
    **dict.fromkeys(
        ("kafka.max.in.flight.requests.per.connection", "kafka.batch.size", "kafka.linger.ms", "kafka.buffer.memory"),
        "use the option 'maxInFlight', the most rows of a task that wait for an acknowledgement; leave it out at first",
    ),
    "kafka.ssl.endpoint.identification.algorithm": "the server's name is always verified; 'tlsServerName' sets it",
    "kafka.security.protocol": "begin the URLs in the option 'servers' with tls://, or let the server ask for TLS",
    **dict.fromkeys(
        ("kafka.sasl.mechanism", "kafka.sasl.jaas.config"),
        "use the options 'user' and 'password', 'token', or 'credentialsFile'",
    ),
    "creds": "use the option 'credentialsFile', or 'credentialsSecret' for the text itself",
    "nkeyseed": _SHOWN.format("nkeySeed"),
    **dict.fromkeys(("tlskey", "tlskeypem"), _SHOWN.format("tlsKey")),
    "credentials": _SHOWN.format("credentials"),
}
_OF_CLIENT = "options of Kafka's client mean nothing here; see Options, and Login, in the documentation"
_OF_CONNECTOR = "that is one of nats-spark-connector's; see Coming from nats-spark-connector, in the documentation"


def advise_on_unknown(name: str, known: Mapping[str, Option]) -> str:
    """Return what to do instead of setting an option that does not exist.

    Args:
        name: the name that was set.
        known: all options, by name in lower case.
    """
    lower = name.lower()
    if lower in _HINTS:
        return _HINTS[lower]
    if is_table_option(name):
        return _TABLE
    if lower.startswith("kafka.ssl.truststore."):
        return "use the option 'tlsCaFile', or 'tlsCaPem' for the text itself; both are PEM, not JKS"
    if lower.startswith(("kafka.ssl.keystore.", "kafka.ssl.key.")):
        return "use the options 'tlsCertFile' and 'tlsKeyFile', which are PEM; the key must not be encrypted"
    if lower.startswith(("kafka.", "kafkaconsumer.")):
        return _OF_CLIENT
    if lower.startswith("nats."):
        return _OF_CONNECTOR
    near = difflib.get_close_matches(lower, known, n=1, cutoff=0.6)
    return f"did you mean '{known[near[0]].name}'?" if near else "`spark-nats options` lists them"


def is_table_option(name: str) -> bool:
    """Return whether Spark sets an option only when it creates a table."""
    # Spark passes the options of a table a second time, with a prefix.
    return name.lower() in ("provider", "owner") or name.lower().startswith("option.")


def describe_unused_path(path: str) -> ConditionText:
    """Return the error text for a path, with what to do instead."""
    shown = re.sub("//[^/]*@", "//…@", path)  # without a password
    table = f"; if that is where Spark keeps a table, {VIEW}" if "/" in path else ""
    return PATH_UNUSED(path=shown, hint=table)
