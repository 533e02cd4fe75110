"""How an error leaves us: with its code, the options to look at, which are not known below, and its sentence first.

:func:`naming_options` stands around whatever Spark calls of ours that can fail, and nowhere else.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

from spark_nats.errors import Hint, NatsError

logger = logging.getLogger(__name__)

_SENTENCES = {
    Hint.SERVERS: "check the option 'servers' and that a nats-server listens there",
    Hint.TLS: "check the option 'servers' (tls://) and those that ask for TLS, such as 'tlsCaFile'",
    Hint.TLS_FIRST: "check the option 'tlsHandshakeFirst', which must be what the server does",
    Hint.WEBSOCKET: "check the option 'servers' (ws:// or wss://, port and path), and 'websocketHeadersSecret' if a "
    "gateway wants a login",
    Hint.PROXY: "check the options 'proxy', 'proxyUser' and 'proxyPassword', or HTTP_PROXY, HTTPS_PROXY and ALL_PROXY "
    "in the environment",
    Hint.TRUST: "check the options 'tlsCaFile' (or 'tlsCaPem') and 'tlsServerName'",
    Hint.CLIENT_CERTIFICATE: "check the options 'tlsCertFile' and 'tlsKeyFile' (or 'tlsCertPem' and 'tlsKeySecret')",
    Hint.CREDENTIALS: "check the options 'user' and 'password', 'token', 'nkeySeedFile', 'credentialsFile' (or "
    "'credentialsSecret') or 'context', or the client certificate",
    Hint.API_PREFIX: "check the options 'domain' and 'apiPrefix'",
    Hint.CREATE_STREAM: "create it, or set the option 'createStream'",
    Hint.CREATE_BUCKET: "create it, or set the option 'createBucket'",
    Hint.MESSAGE_IDS: "set the option 'deduplicate'",
    Hint.STATE_BUCKET: "let the user make and use the bucket that the option 'stateBucket' names (see "
    "Permissions in the documentation), or set the option 'deduplicate' to window, which needs none",
    Hint.READ_BACK: "let the user read the stream (see Permissions in the documentation), or set the option "
    "'deduplicate' to window, which never has to",
    Hint.ON_CONFLICT: "read the key again and decide anew, or set the option 'onConflict' to skip to leave such rows "
    "out",
    Hint.BAD_ROWS: "mend the row, or set the option 'badRows' to stream or drop, so that the other rows are stored",
    Hint.SUBJECT: "correct the option 'subject', or add it to the subjects of the stream",
    Hint.PROGRESS_CONSUMER: "set the option 'progressConsumer' to another name, or leave it out",
    Hint.CONSUMER: "give each query a durable consumer of its own with the option 'consumer'",
}


@contextlib.contextmanager
def naming_options() -> Iterator[None]:
    """Add to an error's message its code and which options to look at, and have Spark show the message first.

    Spark shows an error of Python as Python prints it, which is the message last, below all frames. What an error was
    raised from is printed above it: that is the same error here, without frames. They are in the log (DEBUG). What is
    no :class:`NatsError` is a mistake of ours, and passes with its traceback.
    """
    try:
        yield
    except NatsError as error:
        logger.debug("this error is handed to Spark", exc_info=error)
        named = error.with_context("; ".join([str(error), *(_SENTENCES[hint] for hint in error.hints)])).coded()
        named.hints = ()
        raise named from named.with_context(str(named))
