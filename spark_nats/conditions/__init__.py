"""What can go wrong, and what the log says, as data. What only one kind of query says stands in its folder.

Calling a condition puts its values into its sentence: ``raise StreamNotFoundError(STREAM_NOT_FOUND(stream=name))``.
What to do then, as far as the sentence does not say it, is said in docs/operating.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum, StrEnum


class Transient(IntEnum):
    """Whether what has happened may pass by itself, so that trying again helps."""

    NEVER = 0  # somebody has to repair it
    ONCE_ESTABLISHED = 1  # where it has worked before; else it is a mistake, though a restarting server says the same
    ALWAYS = 2


class Hint(StrEnum):
    """What to look at, in the words of the options: what an error says to users of Spark behind its sentence.

    The client and the JetStream layer know no options, and their errors say none to others.
    """

    SERVERS = "check the option 'servers' and that a nats-server listens there"
    TLS = "check the option 'servers' (tls://) and those that ask for TLS, such as 'tlsCaFile'"
    TLS_FIRST = "check the option 'tlsHandshakeFirst', which must be what the server does"
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
        "check the options 'user' and 'password', 'token', 'nkeySeedFile', 'credentialsFile' (or 'credentialsSecret') "
        "or 'context', or the client certificate"
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
        "window, which never has to"
    )
    ON_CONFLICT = "read the key again and decide anew, or set the option 'onConflict' to skip to leave such rows out"
    ROW = "mend the row, or set the option 'badRows' to stream or drop, so that the other rows are stored"
    SUBJECT = "correct the option 'subject', or add it to the subjects of the stream"
    PROGRESS_CONSUMER = "set the option 'progressConsumer' to another name, or leave it out"
    CONSUMER = "give each query a durable consumer of its own with the option 'consumer'"


class ConditionText(str):
    """The sentence of a condition.

    Attributes:
        condition: the condition's code.
        parameters: what was put in, by name.
        hints: what to look at.
        transient: whether it passes by itself.
    """

    condition: str
    parameters: Mapping[str, object]
    hints: tuple[Hint, ...]
    transient: Transient

    @property
    def with_code(self) -> ConditionText:
        """The sentence with the code before it, in brackets; the same again when it has that already."""
        before = f"[{self.condition}] "
        return self if self.startswith(before) else _with_text(before + self, self)


def _with_text(text: str, same: ConditionText) -> ConditionText:
    said = ConditionText(text)
    vars(said).update(vars(same))
    return said


def with_text(said: str, text: str) -> str:
    """Return another sentence about the same condition, unless it is of a condition itself."""
    if isinstance(said, ConditionText) and not isinstance(text, ConditionText):
        return _with_text(text, said)
    return text


class Condition:
    """Something that can go wrong, or that the log says: a constant with the name of its code.

    Args:
        text: its code, by which alerts and programs name it, in brackets, and its sentence, for :meth:`str.format` with
            names. Secrets are never put in.
        hints: what to look at, unless the error knows better.
        transient: whether it passes by itself, unless the error knows better, as from the server's code.
    """

    def __init__(self, text: str, *hints: Hint, transient: Transient = Transient.NEVER) -> None:
        self.code, self.template = text.removeprefix("[").split("] ", 1)
        self.hints, self.transient = hints, transient

    def __call__(self, /, **parameters: object) -> ConditionText:
        """Return the sentence; of what is put in and is neither text nor a number, the text is kept."""
        plain = (str, bytes, int, float)
        kept = {name: it if isinstance(it, plain) else str(it) for name, it in parameters.items()}
        said = ConditionText(self.template.format(**kept))
        said.condition, said.parameters, said.hints, said.transient = self.code, kept, self.hints, self.transient
        return said
