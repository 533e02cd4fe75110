"""The options of a connection, and the settings of the client that they result in."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from spark_nats.client.auth import Credentials
from spark_nats.client.options import ConnectionOptions, RetryOptions, TlsOptions
from spark_nats.client.servers import Server
from spark_nats.conditions.queries import INVALID_TLS_OPTIONS
from spark_nats.errors import OptionError
from spark_nats.options import values
from spark_nats.options.context import read_context
from spark_nats.options.option import Group, option
from spark_nats.options.proxied import Proxied
from spark_nats.options.websocket import WebSocket
from spark_nats.protocol.subjects import INBOX_PREFIX

NKEYS = ("nkeySeedFile", "nkeySeedSecret")
LOGINS = ("user", "token", *NKEYS, "jwtSecret", "credentialsFile", "credentialsSecret")
"""The options that log in."""

AUTHORITIES = ("tlsCaFile", "tlsCaPem")
CERTIFICATES = ("tlsCertFile", "tlsCertPem")
KEYS = ("tlsKeyFile", "tlsKeySecret")
"""The options for each of the three texts that TLS may need; only one option of each tuple may be set."""

_JITTER, _TLS_JITTER = 0.1, 1.0  # seconds, as in ADR-40


class Servers(Group, section="Connecting"):
    """The options for the servers and the way to them."""

    servers: tuple[Server, ...] = option(
        values.read_servers,
        "URLs of the servers, comma-separated, tried in random order until one accepts the login; `tls://` and "
        "`wss://` demand TLS, `ws://` and `wss://` go through a WebSocket",
        default="nats://localhost:4222",
    )
    discover_servers: bool = option(
        values.read_boolean,
        "also try the servers that those in `servers` announce, with the same login and the same TLS",
        default="false",
    )
    context: dict[str, str] | None = option(
        read_context,
        "context of the `nats` command line, by name or path; an option that is set takes precedence over it",
    )
    connection_name: str = option(
        values.read_text, "name of the connections, as the server's monitoring shows it", default="spark-nats"
    )
    inbox_prefix: str = option(
        values.read_subject_prefix,
        "first tokens of the subjects on which the connector receives answers",
        default=INBOX_PREFIX,
    )


class Login(Group, section="Login"):
    """The options for the login."""

    user: str | None = option(values.read_text, "user name")
    password: str | None = option(values.read_secret, "password of `user`", needs=("user",))
    token: str | None = option(
        values.read_secret,
        "authentication token, instead of `user`; also together with an nkey or a JWT, for an auth callout",
        excludes=("user",),
    )
    nkey_seed_file: Credentials | None = option(
        values.read_seed_file, "file with the seed of an nkey (`SU…`) to log in with", excludes=("user",)
    )
    nkey_seed_secret: Credentials | None = option(
        values.read_seed,
        "the seed itself, instead of a file; Spark hides the value in its plans",
        excludes=("user", *NKEYS[:1]),
    )
    jwt_secret: str | None = option(
        values.read_jwt,
        "JWT of the user whose seed `nkeySeedFile` or `nkeySeedSecret` has; Spark hides the value in its plans",
        needs=NKEYS,
    )
    credentials_file: Credentials | None = option(
        values.read_credentials_file,
        "`.creds` file, with a JWT and a seed, to log in with; read again before each login",
        excludes=("user", *NKEYS),
    )
    credentials_secret: Credentials | None = option(
        values.read_credentials,
        "the text of a `.creds` file, instead of the file; Spark hides the value in its plans",
        excludes=("user", *NKEYS, "credentialsFile"),
    )

    @property
    def credentials(self) -> Credentials:
        """What logs in."""
        key = self.nkey_seed_file or self.nkey_seed_secret or self.credentials_file or self.credentials_secret
        if key is None:
            return Credentials(self.user, self.password, self.token)
        return replace(key, token=self.token, jwt=self.jwt_secret or key.jwt)


class Tls(Group, section="TLS"):
    """The options for TLS."""

    tls_ca_file: str | None = option(
        values.read_pem_file, "file with the certificates (PEM) to trust instead of the system's; demands TLS"
    )
    tls_ca_pem: str | None = option(
        values.read_certificates_pem, "the text of such a file, instead of `tlsCaFile`", excludes=AUTHORITIES[:1]
    )
    tls_cert_file: str | None = option(
        values.read_pem_file, "file with the client's certificate (PEM), for mutual TLS; demands TLS"
    )
    tls_cert_pem: str | None = option(
        values.read_certificates_pem,
        "the text of such a file without the key, instead of `tlsCertFile`",
        needs=KEYS,
        excludes=CERTIFICATES[:1],
    )
    tls_key_file: str | None = option(
        values.read_pem_file,
        "file with the key of the certificate (PEM, not encrypted), unless `tlsCertFile` has it too",
        needs=CERTIFICATES,
    )
    tls_key_secret: str | None = option(
        values.read_key_pem,
        "the text of such a file, instead of `tlsKeyFile`; Spark hides the value in its plans",
        needs=CERTIFICATES,
        excludes=KEYS[:1],
    )
    tls_server_name: str | None = option(
        values.read_text, "name that the server's certificate must have, instead of the host in the URL; demands TLS"
    )
    tls_handshake_first: bool = option(
        values.read_boolean,
        "begin with the TLS handshake, for servers with `handshake_first`; demands TLS",
        default="false",
    )

    def check_and_make_tls_options(self, given: Collection[str]) -> TlsOptions | None:
        """Return the settings of TLS; None when no option demands TLS.

        Args:
            given: names of the options that were set, for errors.

        Raises:
            OptionError: the options cannot be used.
        """
        tls = TlsOptions(
            ca=self.tls_ca_file or self.tls_ca_pem,
            certificate=self.tls_cert_file or self.tls_cert_pem,
            key=self.tls_key_file or self.tls_key_secret,
            server_name=self.tls_server_name,
            handshake_first=self.tls_handshake_first,
        )
        if tls == TlsOptions():
            return None
        from spark_nats.client.tls import make_tls_context  # slow to import, and rarely needed

        try:
            make_tls_context(tls)
        except ValueError as error:
            named = [f"'{name}'" for name in (*AUTHORITIES, *CERTIFICATES, *KEYS) if name in given]
            raise OptionError(INVALID_TLS_OPTIONS(options=", ".join(named), reason=error)) from None
        return tls


class TimeLimits(Group, section="Time limits and reconnecting"):
    """The options for timeouts and retries."""

    connect_timeout: float = option(
        values.read_duration, "how long connecting and logging in to one server may take", default="5s"
    )
    request_timeout: float = option(
        values.read_duration, "how long the server's answer to a request may take", default="5s"
    )
    retry_timeout: float = option(
        values.read_duration_or_zero,
        "how long tasks, and the driver of a streaming query, keep trying while no server can be reached; `0s`: do not "
        "try again",
        default="5m",
    )
    reconnect_wait: float = option(
        values.read_duration,
        "wait before the second attempt to reconnect; doubled before each further attempt, up to 10s",
        default="2s",
    )
    max_reconnects: int | None = option(
        values.read_whole_number,
        "most attempts to reconnect in a row, within `retryTimeout`; when not set, 60 in a task and any number on the "
        "driver",
    )
    idle_timeout: float = option(
        values.read_duration, "how long a connection that nobody uses is kept open", default="30s"
    )
    ping_interval: float = option(
        values.read_duration, "how long a server may be silent before it is pinged", default="2m"
    )


class Echo(Group, section="Core NATS"):
    """The option of a connection that writes to core NATS."""

    echo: bool = option(
        values.read_boolean,
        "core NATS: whether the server may send a connection what the same connection published",
        default="true",
    )


GROUPS: tuple[type[Group], ...] = (Servers, WebSocket, Proxied, Login, Tls, TimeLimits)
"""The options of a connection, in the order of the documentation."""


def make_connection_and_retry_options(given: Mapping[str, Any]) -> tuple[ConnectionOptions, RetryOptions]:
    """Return the settings of the client, and how long and how often to retry, from the options of all groups.

    Args:
        given: values of the options that were set, also by a context.

    Raises:
        OptionError: the options for TLS cannot be used.
    """
    servers, limits = Servers.of(given), TimeLimits.of(given)
    connection = ConnectionOptions(
        servers=servers.servers,
        discover=servers.discover_servers,
        credentials=Login.of(given).credentials,
        tls=Tls.of(given).check_and_make_tls_options(given),
        name=servers.connection_name,
        connect_timeout=limits.connect_timeout,
        request_timeout=limits.request_timeout,
        idle_timeout=limits.idle_timeout,
        ping_interval=limits.ping_interval,
        inbox_prefix=servers.inbox_prefix,
        reach=Proxied.of(given).reach,
        opening=WebSocket.of(given).opening,
        echo=Echo.of(given).echo,
    )
    encrypted = connection.tls is not None or any(server.tls for server in connection.servers)
    jitter = _TLS_JITTER if encrypted else _JITTER
    return connection, RetryOptions(limits.retry_timeout, limits.reconnect_wait, jitter, limits.max_reconnects)
