"""The options that say how to connect, and what a client connects with."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from spark_nats.client.auth import Credentials
from spark_nats.client.options import ConnectionOptions, RetryOptions, TlsOptions
from spark_nats.client.proxy import Proxy
from spark_nats.client.servers import Server
from spark_nats.conditions.options import INVALID_TLS_OPTIONS
from spark_nats.errors import OptionError
from spark_nats.options import values
from spark_nats.options.context import read_context
from spark_nats.options.rows import ANY, CORE, KEPT, WRITE, option
from spark_nats.protocol.api import API_PREFIX, prefix_of_domain
from spark_nats.protocol.subjects import INBOX_PREFIX

LOGINS = ("user", "token", "nkeySeedFile", "nkeySeedSecret", "credentialsFile", "credentialsSecret")
"""Ways to log in, of which only one may be set."""

AUTHORITIES = ("tlsCaFile", "tlsCaPem")
CERTIFICATES = ("tlsCertFile", "tlsCertPem")
KEYS = ("tlsKeyFile", "tlsKeySecret")
"""Ways to give what TLS needs, of which only one may be set too."""

_JITTER, _TLS_JITTER = 0.1, 1.0  # seconds, those of ADR-40


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Connecting:
    """How to connect, as options say it. The client has what it needs of that, and no names of options."""

    servers: tuple[Server, ...] = option(
        ANY,
        values.read_servers,
        "URLs of the servers, comma-separated, tried in random order until one accepts the login; `tls://` and "
        "`wss://` demand TLS, `ws://` and `wss://` go through a WebSocket",
        default="nats://localhost:4222",
    )
    discover_servers: bool = option(
        ANY,
        values.read_boolean,
        "also try the servers that those in `servers` announce, with the same login and the same TLS",
        default="false",
    )
    context: dict[str, str] | None = option(
        ANY,
        read_context,
        "context of the `nats` command line, by name or path; an option that is set takes precedence over it",
    )
    user: str | None = option(ANY, values.read_text, "user name")
    password: str | None = option(ANY, values.read_secret, "password of `user`")
    token: str | None = option(ANY, values.read_secret, "authentication token, instead of `user`")
    nkey_seed_file: Credentials | None = option(
        ANY, values.read_seed_file, "file with the seed of an nkey (`SU…`) to log in with"
    )
    nkey_seed_secret: Credentials | None = option(
        ANY, values.read_seed, "the seed itself, instead of a file; Spark hides the value in its plans"
    )
    credentials_file: Credentials | None = option(
        ANY, values.read_credentials_file, "`.creds` file, with a JWT and a seed, to log in with"
    )
    credentials_secret: Credentials | None = option(
        ANY,
        values.read_credentials,
        "the text of a `.creds` file, instead of the file; Spark hides the value in its plans",
    )
    tls_ca_file: str | None = option(
        ANY, values.read_certificates, "file with the certificates (PEM) to trust instead of the system's; demands TLS"
    )
    tls_ca_pem: str | None = option(
        ANY, values.read_certificates_pem, "the text of such a file, instead of `tlsCaFile`"
    )
    tls_cert_file: str | None = option(
        ANY, values.read_certificates, "file with the client's certificate (PEM), for mutual TLS; demands TLS"
    )
    tls_cert_pem: str | None = option(
        ANY, values.read_certificates_pem, "the text of such a file without the key, instead of `tlsCertFile`"
    )
    tls_key_file: str | None = option(
        ANY,
        values.read_certificates,
        "file with the key of `tlsCertFile` (PEM, not encrypted), unless `tlsCertFile` has it too",
    )
    tls_key_secret: str | None = option(
        ANY, values.read_key_pem, "the text of such a file, instead of `tlsKeyFile`; Spark hides the value in its plans"
    )
    tls_server_name: str | None = option(
        ANY,
        values.read_text,
        "name that the server's certificate must have, instead of the host in the URL; demands TLS",
    )
    tls_handshake_first: bool = option(
        ANY,
        values.read_boolean,
        "begin with the TLS handshake, for servers with `handshake_first`; demands TLS",
        default="false",
    )
    websocket_headers_secret: tuple[tuple[str, str], ...] | None = option(
        ANY,
        values.read_http_headers,
        "headers of the request for a WebSocket, as a JSON object, such as a gateway's login; Spark hides the value in "
        "its plans",
    )
    proxy: Proxy | None = option(
        ANY,
        values.read_proxy,
        "proxy for the connections to all servers, `http://host:port` or `socks5://host:port`; when not set, `ws://` "
        "and `wss://` follow `HTTP_PROXY`, `HTTPS_PROXY`, `ALL_PROXY` and `NO_PROXY` in the environment",
    )
    proxy_user: str | None = option(ANY, values.read_text, "user name for `proxy`")
    proxy_password: str | None = option(ANY, values.read_secret, "password of `proxyUser`")
    connection_name: str = option(
        ANY, values.read_text, "name of the connections, as the server's monitoring shows it", default="spark-nats"
    )
    connect_timeout: float = option(
        ANY, values.read_duration, "how long connecting and logging in to one server may take", default="5s"
    )
    request_timeout: float = option(
        ANY, values.read_duration, "how long the server's answer to a request may take", default="5s"
    )
    retry_timeout: float = option(
        ANY,
        values.read_patience,
        "how long tasks, and the driver of a streaming query, keep trying while no server can be reached; `0s`: do not "
        "try again",
        default="5m",
    )
    reconnect_wait: float = option(
        ANY,
        values.read_duration,
        "wait before the second attempt to reconnect; doubled before each further attempt, up to 10s",
        default="2s",
    )
    max_reconnects: int | None = option(
        ANY,
        values.read_whole_number,
        "most attempts to reconnect in a row, within `retryTimeout`; when not set, 60 in a task and any number on the "
        "driver",
    )
    idle_timeout: float = option(
        ANY, values.read_duration, "how long a connection that nobody uses is kept open", default="30s"
    )
    ping_interval: float = option(
        ANY, values.read_duration, "how long a server may be silent before it is pinged", default="2m"
    )
    inbox_prefix: str = option(
        ANY,
        values.read_tokens,
        "first tokens of the subjects on which the connector receives answers",
        default=INBOX_PREFIX,
    )
    echo: bool = option(
        WRITE & CORE,
        values.read_boolean,
        "core NATS: whether the server may send a connection what the same connection published",
        default="true",
    )
    domain: str | None = option(KEPT, values.read_name, "JetStream domain in which the streams are")
    api_prefix: str = option(
        KEPT, values.read_tokens, "subject prefix of the JetStream API, instead of `domain`", default=API_PREFIX
    )

    def connection(self, given: Collection[str]) -> ConnectionOptions:
        """Return what a client connects with.

        Args:
            given: names of the options that were set, for errors.

        Raises:
            OptionError: what is asked of TLS cannot be used.
        """
        key = self.nkey_seed_file or self.nkey_seed_secret or self.credentials_file or self.credentials_secret
        return ConnectionOptions(
            servers=self.servers,
            discover=self.discover_servers,
            credentials=key or Credentials(self.user, self.password, self.token),
            tls=self._tls(given),
            name=self.connection_name,
            connect_timeout=self.connect_timeout,
            request_timeout=self.request_timeout,
            idle_timeout=self.idle_timeout,
            ping_interval=self.ping_interval,
            inbox_prefix=self.inbox_prefix,
            websocket_headers=self.websocket_headers_secret or (),
            proxy=self.proxy and replace(self.proxy, user=self.proxy_user, password=self.proxy_password),
            echo=self.echo,
        )

    def retries(self, connection: ConnectionOptions) -> RetryOptions:
        """Return how long and how often to try again."""
        encrypted = connection.tls is not None or any(server.tls for server in connection.servers)
        jitter = _TLS_JITTER if encrypted else _JITTER
        return RetryOptions(self.retry_timeout, self.reconnect_wait, jitter, self.max_reconnects)

    def prefix(self) -> str:
        """Return the subject prefix of the JetStream API."""
        return self.api_prefix if self.domain is None else prefix_of_domain(self.domain)

    def _tls(self, given: Collection[str]) -> TlsOptions | None:
        """Return what is asked of TLS; None when no option asks for it."""
        tls = TlsOptions(
            ca=self.tls_ca_file or self.tls_ca_pem,
            certificate=self.tls_cert_file or self.tls_cert_pem,
            key=self.tls_key_file or self.tls_key_secret,
            server_name=self.tls_server_name,
            handshake_first=self.tls_handshake_first,
        )
        if tls == TlsOptions():
            return None
        from spark_nats.client.tls import context_of  # costs much to import, and few need it

        try:
            context_of(tls)
        except ValueError as error:
            named = [f"'{name}'" for name in (*AUTHORITIES, *CERTIFICATES, *KEYS) if name in given]
            raise OptionError(INVALID_TLS_OPTIONS(options=", ".join(named), reason=error)) from None
        return tls
