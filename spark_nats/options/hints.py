"""The form in which errors reach Spark: with their code and the options to check, and shown before any traceback.

:func:`errors_for_spark` wraps every method that Spark calls and that can fail, and requests for users outside of Spark.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

from spark_nats.conditions import Topic
from spark_nats.errors import NatsError

logger = logging.getLogger(__name__)

HINTS = {
    Topic.SERVERS: "check the option 'servers' and that a nats-server listens there",
    Topic.TLS: "check the option 'servers' (tls://) and those that ask for TLS, such as 'tlsCaFile'",
    Topic.TLS_FIRST: "check the option 'tlsHandshakeFirst', which must match the server's handshake_first",
    Topic.WEBSOCKET: (
        "check the option 'servers' (ws:// or wss://, port and path), and 'websocketHeadersSecret' if a gateway wants "
        "a login"
    ),
    Topic.PROXY: (
        "check the options 'proxy', 'proxyUser' and 'proxyPassword', or HTTP_PROXY, HTTPS_PROXY and ALL_PROXY in the "
        "environment"
    ),
    Topic.TRUST: "check the options 'tlsCaFile' (or 'tlsCaPem') and 'tlsServerName'",
    Topic.CLIENT_CERTIFICATE: "check the options 'tlsCertFile' and 'tlsKeyFile' (or 'tlsCertPem' and 'tlsKeySecret')",
    Topic.CREDENTIALS: (
        "check the options 'user' and 'password', 'token', 'nkeySeedFile' (or 'nkeySeedSecret'), 'credentialsFile' (or "
        "'credentialsSecret') or 'context', or the client certificate"
    ),
    Topic.PASSWORD: "the option 'password' is not set",
    Topic.API_PREFIX: "check the options 'domain' and 'apiPrefix'",
    Topic.MISSING_STREAM: "create it, or set the option 'createStream'",
    Topic.MISSING_BUCKET: "create it, or set the option 'createBucket'",
    Topic.MESSAGE_IDS: "set the option 'deduplicate'",
    Topic.STATE_BUCKET: (
        "let the user make and use the bucket that the option 'stateBucket' names (see Permissions in the "
        "documentation), or set the option 'deduplicate' to window, which needs none"
    ),
    Topic.READING_BACK: (
        "let the user read the stream (see Permissions in the documentation), or set the option 'deduplicate' to "
        "window, which reads nothing back"
    ),
    Topic.CONFLICT: "read the key again and decide anew, or set the option 'onConflict' to skip to leave such rows out",
    Topic.ROW: "mend the row, or set the option 'badRows' to stream or drop, so that the other rows are stored",
    Topic.SUBJECT: "correct the option 'subject', or add it to the subjects of the stream",
    Topic.PROGRESS: "set the option 'progressConsumer' to another name if this one is taken, or leave it out",
    Topic.DURABLE: "give each query a durable consumer of its own with the option 'consumer'",
}
"""The options to check, by what an error is about."""


@contextlib.contextmanager
def errors_for_spark() -> Iterator[None]:
    """Add the code and the options to check to the message of an error, and have Spark show the message first.

    Spark shows an error of Python as Python prints it, with the message last, below all frames. Python prints the cause
    of an error above it, so the cause here is the same error without frames. The frames are in the log (DEBUG). An
    error that is no :class:`NatsError` is a defect of this package, and passes with its traceback.
    """
    try:
        yield
    except NatsError as error:
        logger.debug("this error is handed to Spark", exc_info=error)
        hints = [HINTS[topic] for topic in error.topics]
        named = error.with_message("; ".join([str(error), *hints])).with_code().with_topics()
        raise named from named.with_message(str(named))
