"""Creates streams, without changing those that exist."""

from __future__ import annotations

import contextlib
import logging
import re
from dataclasses import replace
from typing import Any

from spark_nats.client.host_cache import difference_said_fact, run_unless_succeeded_lately
from spark_nats.conditions import Condition, Once
from spark_nats.conditions.jetstream import STREAM_CANNOT_BE_MADE, STREAM_DIFFERS, STREAM_MADE_OTHERWISE
from spark_nats.errors import JetStreamError, StreamNotFoundError
from spark_nats.jetstream.api import JetStream
from spark_nats.jetstream.streams import StreamInfo, describe_stream, parse_stream
from spark_nats.jetstream.views import ask_stream_info
from spark_nats.protocol.api import API_PREFIX, Api, ErrCode
from spark_nats.protocol.stream_configs import RequestedConfig, describe_differences, find_meant_field

logger = logging.getLogger(__name__)

_DEMANDED = "the account demands 'max_bytes' in the configuration of each stream, and this one has none"

_said = Once()  # what this process has logged; other processes of the same query may have logged it too


def create_stream_if_missing(js: JetStream, config: dict[str, Any]) -> StreamInfo:
    """Create a stream, or return the existing one of that name.

    An existing stream is never changed. Where it differs from what the user has requested, the log reports that.

    Args:
        js: the JetStream API.
        config: the server's stream configuration; ``name`` is required. Only a :class:`.RequestedConfig` is compared.

    Raises:
        JetStreamError: the server refuses the configuration.
    """
    name = config["name"]
    with contextlib.suppress(StreamNotFoundError):
        return _log_differences(ask_stream_info(js, name), config, STREAM_DIFFERS)
    try:
        # Direct gets read small ranges, unless the configuration forbids them.
        info = parse_stream(js.request(Api.STREAM_CREATE, name, body={"allow_direct": True, **config}), name)
        if js.connection.info.domain or js.prefix != API_PREFIX:  # the answer names no domain
            info = replace(info, domain=ask_stream_info(js, name).domain)
    except JetStreamError as error:
        code = error.err_code
        if code == ErrCode.STREAM_NAME_IN_USE:  # another task was faster
            return ask_stream_info(js, name)
        if code in (ErrCode.INVALID_JSON, ErrCode.MAX_BYTES_REQUIRED):
            reason = _DEMANDED if code == ErrCode.MAX_BYTES_REQUIRED else _describe_refusal(config, error.description)
            raise error.with_message(STREAM_CANNOT_BE_MADE(stream=name, reason=reason)) from None
        raise
    # Older servers silently leave out fields that they do not know.
    return _log_differences(info, config, STREAM_MADE_OTHERWISE)


def _log_differences(info: StreamInfo, config: dict[str, Any], condition: Condition) -> StreamInfo:
    """Return the state of a stream, and log once where it differs from the requested configuration."""
    if isinstance(config, RequestedConfig) and (found := describe_differences(config, info.config)):
        said, of = describe_stream(info.name), ", ".join(found)
        if _said.add_if_new(fact := difference_said_fact(said, of)):
            run_unless_succeeded_lately(fact, lambda _: logger.warning(condition(stream=said, fields=of).with_code))
    return info


def _describe_refusal(config: dict[str, Any], description: str) -> str:
    """Return in plain words why a server rejects a configuration; the server's own text is its JSON parser's."""
    unknown = re.search(r'unknown field "([^"]*)"', description)
    if unknown is None:
        return f"the server does not take its configuration ({description.removeprefix('invalid JSON: ')})"
    near = find_meant_field(unknown[1], config)
    hint = f"; did you mean {near!r}?" if near else ""
    return f"the server knows no field {unknown[1]!r} of a stream's configuration{hint}"
