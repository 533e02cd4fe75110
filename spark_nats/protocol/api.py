"""The wire format of the JetStream API: the subjects of requests and the JSON of answers (ADR-1)."""

from __future__ import annotations

import re
from enum import IntEnum, StrEnum
from typing import Any, NamedTuple

from spark_nats.conditions import Transient
from spark_nats.protocol.documents import begins_like_object, integer_at, parse_limited_object, printable, string_at

API_PREFIX = "$JS.API"  # default first tokens of the API's subjects; an account may import an API under other tokens


def prefix_of_domain(domain: str) -> str:
    """Return the first tokens of the subjects of a JetStream domain's API."""
    return f"$JS.{domain}.API"


def domain_of(prefix: str) -> str:
    """Return the JetStream domain that an API prefix belongs to; empty when it is not that of a domain."""
    found = re.fullmatch(r"\$JS\.([^.]+)\.API", prefix)
    return found[1] if found else ""


def is_of_own_account(prefix: str) -> bool:
    """Return whether an API prefix is that of the login's own account, in any domain, and not of another account."""
    return prefix == API_PREFIX or domain_of(prefix) != ""


def server_version_in(config: dict[str, Any]) -> str:
    """Return the version of the server that has reported this configuration: a stream's leader, or a consumer's.

    It is in the metadata since nats-server 2.11, so that none means an older one.
    """
    metadata = config.get("metadata")
    version = metadata.get("_nats.ver") if isinstance(metadata, dict) else None
    return version if isinstance(version, str) and version else "2.10 or older"


class Api(StrEnum):
    """The operations of the API; names of streams and consumers follow them in the subject."""

    ACCOUNT_INFO = "INFO"
    STREAM_INFO = "STREAM.INFO"
    STREAM_CREATE = "STREAM.CREATE"
    STREAM_DELETE = "STREAM.DELETE"
    STREAM_NAMES = "STREAM.NAMES"
    STREAM_PURGE = "STREAM.PURGE"
    STREAM_LIST = "STREAM.LIST"
    MESSAGE_GET = "STREAM.MSG.GET"
    CONSUMER_CREATE = "CONSUMER.CREATE"
    CONSUMER_DELETE = "CONSUMER.DELETE"
    CONSUMER_INFO = "CONSUMER.INFO"
    CONSUMER_LIST = "CONSUMER.LIST"
    CONSUMER_NEXT = "CONSUMER.MSG.NEXT"
    CONSUMER_RESET = "CONSUMER.RESET"
    DIRECT_GET = "DIRECT.GET"

    def with_names(self, *names: str) -> str:
        """Return the operation with names, as in subjects and error messages, such as ``STREAM.INFO.ORDERS``."""
        return ".".join([self.value, *names])

    @property
    def answer_type(self) -> str:
        """The ``type`` that JetStream sets in each JSON answer to the operation, errors included."""
        name = "account_info" if self is Api.ACCOUNT_INFO else self.value.lower().replace(".", "_")
        return f"io.nats.jetstream.api.v1.{name}_response"


class ErrCode(IntEnum):
    """Values of ``err_code`` that this package distinguishes (the server's ``errors.json``)."""

    NO_PEERS = 10005
    CLUSTER_NOT_ASSIGNED = 10007
    CLUSTER_NOT_AVAILABLE = 10008
    CLUSTER_NOT_LEADER = 10009
    CONSUMER_NOT_FOUND = 10014
    INVALID_JSON = 10025
    MAXIMUM_CONSUMERS = 10026
    NO_MESSAGE_FOUND = 10037
    NOT_ENABLED_FOR_ACCOUNT = 10039
    MESSAGE_TOO_LARGE = 10054
    STREAM_NAME_IN_USE = 10058
    STREAM_NOT_FOUND = 10059
    WRONG_STREAM = 10060
    WRONG_LAST_ID = 10070
    WRONG_LAST_SEQUENCE = 10071
    REPLICAS_NEED_CLUSTER = 10074
    NOT_ENABLED = 10076
    STORE_FAILED = 10077
    HEADERS_TOO_LARGE = 10097
    MULTIPLE_UNFILTERED = 10099
    CONSUMER_NOT_UNIQUE = 10100
    ROLLUP_FAILED = 10111
    MAX_BYTES_REQUIRED = 10113
    STREAM_OFFLINE = 10118
    CONSUMER_OFFLINE = 10119
    REPLICAS_MUST_MATCH = 10134
    CONSUMER_EXISTS = 10148
    CONSUMER_DOES_NOT_EXIST = 10149
    INACTIVE_THRESHOLD_EXCESS = 10153
    DUPLICATE_IN_PROCESS = 10158
    LAST_SEQUENCE_NOT_READY = 10163
    SUBJECT_IN_PROCESS = 10164
    TTL_INVALID = 10165
    TTL_DISABLED = 10166
    COUNTER_DISABLED = 10168
    INCREMENT_MISSING = 10169
    COUNTER_HAS_PAYLOAD = 10170
    INCREMENT_INVALID = 10171
    COUNTER_BROKEN = 10172
    BATCH_INCOMPLETE = 10176
    REQUIRED_API_LEVEL = 10185
    SCHEDULES_DISABLED = 10188
    SCHEDULE_INVALID = 10189
    SCHEDULE_TARGET_INVALID = 10190
    SCHEDULE_TTL_INVALID = 10191
    SCHEDULE_ROLLUP_INVALID = 10192
    LAST_SEQUENCE_MISSING = 10193
    STREAM_OFFLINE_REASON = 10194
    CONSUMER_OFFLINE_REASON = 10195
    BATCH_HAS_DUPLICATE = 10201
    SCHEDULE_SOURCE_INVALID = 10203
    SCHEDULER_INVALID = 10212
    SCHEDULE_TIME_ZONE_INVALID = 10223
    SOURCE_HEADER_NOT_ALLOWED = 10227


NOT_READY = frozenset(
    {
        ErrCode.CLUSTER_NOT_ASSIGNED,
        ErrCode.CLUSTER_NOT_AVAILABLE,
        ErrCode.CLUSTER_NOT_LEADER,
        ErrCode.STREAM_OFFLINE,
        ErrCode.STREAM_OFFLINE_REASON,
        ErrCode.CONSUMER_OFFLINE,
        ErrCode.CONSUMER_OFFLINE_REASON,
        ErrCode.LAST_SEQUENCE_NOT_READY,
    }
)
"""Errors that a server returns while it starts, a leader is elected, or a stream or consumer is offline."""
NOT_ENABLED = frozenset({ErrCode.NOT_ENABLED, ErrCode.NOT_ENABLED_FOR_ACCOUNT})
"""JetStream is off: it is not enabled, has not started yet, or the server stopped it because its disk is full."""


UNAVAILABLE = 503
"""Class of the errors of a server while JetStream is not ready, a stream has no leader, or resources are lacking."""


class ApiError(NamedTuple):
    """The error object of an answer."""

    code: int  # class of the error, as in HTTP
    err_code: int  # the exact error; 0 when an old server omits it
    description: str  # the server's text, made printable

    @property
    def transient(self) -> Transient:
        """Whether the error passes by itself, as while servers start, or a stream or consumer has no leader."""
        if self.err_code in NOT_READY or (self.code == UNAVAILABLE and not self.err_code):
            return Transient.ALWAYS
        if self.err_code == ErrCode.NO_PEERS and "offline" in self.description:  # the text alone tells the reason
            return Transient.ALWAYS
        if self.err_code in NOT_ENABLED or self.code == UNAVAILABLE:
            return Transient.ONCE_ESTABLISHED
        return Transient.NEVER


def parse_answer(payload: bytes) -> dict[str, Any] | ApiError:
    """Return an answer's JSON object, or the error in it; ValueError when it is no object or the error is malformed."""
    return _error_or_answer(parse_limited_object(payload))


def parse_api_answer(payload: bytes, operation: Api) -> dict[str, Any] | ApiError | None:
    """Return JetStream's answer to an operation, as :func:`parse_answer` does; None if another client has answered."""
    if not begins_like_object(payload):
        return None
    answer = parse_limited_object(payload)
    return _error_or_answer(answer) if answer.get("type") == operation.answer_type else None


def _error_or_answer(answer: dict[str, Any]) -> dict[str, Any] | ApiError:
    error = answer.get("error")
    if error is None:
        return answer
    return ApiError(
        code=integer_at(error, "code"),
        err_code=integer_at(error, "err_code") if "err_code" in error else 0,
        description=printable(string_at(error, "description")) if "description" in error else "",
    )


def subject_counts_body(pattern: str) -> dict[str, Any]:
    """Return the body of a request for a stream's state with the number of messages of each matching subject."""
    return {"subjects_filter": pattern}


def message_get_body(sequence: int | None, subject: str, with_headers: bool) -> dict[str, Any]:
    """Return the body of a request for the first message that matches a filter from a sequence on, or for the last.

    A ``sequence`` of None requests the last match. The message includes its headers only ``with_headers``.
    """
    what = {"last_by_subj": subject} if sequence is None else {"seq": sequence, "next_by_subj": subject}
    return what if with_headers else {**what, "no_hdr": True}
