"""The conditions of errors and log lines, as data; those of only one kind, or of a command, are in its folder.

Calling a condition puts its values into its sentence: ``raise StreamNotFoundError(STREAM_NOT_FOUND(stream=name))``.
docs/operating.md has the remedies that the sentences do not name.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum, StrEnum
from functools import partial


class Transient(IntEnum):
    """Whether a condition may pass without a repair, so that a retry may succeed."""

    NEVER = 0  # needs a repair
    ONCE_ESTABLISHED = 1  # if the work has succeeded before; else it counts as a mistake, even while a server starts
    ALWAYS = 2


class Hint(StrEnum):
    """The options to check, which an error shows to users of Spark after its sentence.

    The client and the JetStream layer know no options, so their errors show no options to other users.
    """

    SERVERS = "check the option 'servers' and that a nats-server listens there"
    TLS = "check the option 'servers' (tls://) and those that ask for TLS, such as 'tlsCaFile'"
    TLS_FIRST = "check the option 'tlsHandshakeFirst', which must match the server's handshake_first"
    WEBSOCKET = (
        "check the option 'servers' (ws:// or wss://, port and path), and 'websocketHeadersSecret' if a gateway wants "
        "a login"
    )
    PROXY = (
        "check the options 'proxy', 'proxyUser' and 'proxyPassword', or HTTP_PROXY, HTTPS_PROXY and ALL_PROXY in the "
        "environment"
    )
    TRUST = "check the options 'tlsCaFile' (or 'tlsCaPem') and 'tlsServerName'"
    CLIENT_CERTIFICATE = "check the options 'tlsCertFile' and 'tlsKeyFile' (or 'tlsCertPem' and 'tlsKeySecret')"
    CREDENTIALS = (
        "check the options 'user' and 'password', 'token', 'nkeySeedFile' (or 'nkeySeedSecret'), 'credentialsFile' (or "
        "'credentialsSecret') or 'context', or the client certificate"
    )
    API_PREFIX = "check the options 'domain' and 'apiPrefix'"
    CREATE_STREAM = "create it, or set the option 'createStream'"
    CREATE_BUCKET = "create it, or set the option 'createBucket'"
    MESSAGE_IDS = "set the option 'deduplicate'"
    STATE_BUCKET = (
        "let the user make and use the bucket that the option 'stateBucket' names (see Permissions in the "
        "documentation), or set the option 'deduplicate' to window, which needs none"
    )
    READ_BACK = (
        "let the user read the stream (see Permissions in the documentation), or set the option 'deduplicate' to "
        "window, which reads nothing back"
    )
    ON_CONFLICT = "read the key again and decide anew, or set the option 'onConflict' to skip to leave such rows out"
    ROW = "mend the row, or set the option 'badRows' to stream or drop, so that the other rows are stored"
    SUBJECT = "correct the option 'subject', or add it to the subjects of the stream"
    PROGRESS_CONSUMER = "set the option 'progressConsumer' to another name if this one is taken, or leave it out"
    CONSUMER = "give each query a durable consumer of its own with the option 'consumer'"


class ConditionText(str):
    """The sentence of a condition.

    Attributes:
        condition: the code of the condition.
        parameters: the values in the sentence, by name.
        hints: the options to check.
        transient: whether the condition may pass without a repair.
    """

    condition: str
    parameters: Mapping[str, object]
    hints: tuple[Hint, ...]
    transient: Transient

    @property
    def with_code(self) -> str:
        """The sentence with the code before it, in brackets; the same sentence when it has the code already."""
        before = f"[{self.condition}] "
        return self if self.startswith(before) else with_text(self, before + self)


def with_text(said: str, text: str) -> str:
    """Return ``text`` with the condition of ``said``; unchanged when ``said`` has none or ``text`` has its own."""
    if not isinstance(said, ConditionText) or isinstance(text, ConditionText):
        return text
    found = ConditionText(text)
    vars(found).update(vars(said))
    return found


class Condition:
    """The code and the sentence of an error or a log line, as a constant with the name of the code.

    Args:
        text: the code in brackets, which alerts and programs use, and the sentence, for :meth:`str.format` with names.
            Secrets are never put in.
        hints: the options to check, unless the error has others.
        transient: whether it may pass without a repair, unless the error decides, for example by the server's code.
    """

    def __init__(self, text: str, *hints: Hint, transient: Transient = Transient.NEVER) -> None:
        self.code, self.template = text.removeprefix("[").split("] ", 1)
        self.hints, self.transient = hints, transient

    def __call__(self, /, **parameters: object) -> ConditionText:
        """Return the sentence with these values; one that is not text, bytes or a number is kept as its text."""
        plain = (str, bytes, int, float)
        kept = {name: it if isinstance(it, plain) else str(it) for name, it in parameters.items()}
        said = ConditionText(self.template.format(**kept))
        said.condition, said.parameters, said.hints, said.transient = self.code, kept, self.hints, self.transient
        return said


passing = partial(Condition, transient=Transient.ALWAYS)
"""Makes a condition that may pass without a repair."""
