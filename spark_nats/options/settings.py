"""Options with their values read, before it is known what they are for.

This is done once, on the driver, when a source or sink is made: files that options name are read here, so executors
need no copy of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from spark_nats.client.auth import Credentials
from spark_nats.client.options import ConnectionOptions, RetryOptions, TlsOptions
from spark_nats.client.servers import Server, parse_servers
from spark_nats.errors import OptionError
from spark_nats.options.hints import hint, instead_of_path, of_a_table
from spark_nats.options.table import (
    ANY,
    AUTHORITIES,
    BY_NAME,
    CERTIFICATES,
    CONTRADICTIONS,
    KEYS,
    LOGINS,
    OPTIONS,
    REQUIREMENTS,
    SPARKS_OWN,
    TOGETHER,
    Use,
)
from spark_nats.protocol.api import prefix_of_domain


@dataclass(frozen=True, slots=True)
class Settings:
    """Values of options.

    Attributes:
        given: by name, of the options that were set.
        connection: how to connect.
        api_prefix: subject prefix of the JetStream API.
    """

    given: Mapping[str, Any] = field(repr=False)
    connection: ConnectionOptions
    api_prefix: str

    def values(self, use: Use) -> dict[str, Any]:
        """Return the values of all options in a query: what was set, else the default; None where there is none.

        Raises:
            OptionError: an option was set that is not for such a query.
        """
        for name in self.given:
            if misuse := BY_NAME[name.lower()].misuse(use):
                raise OptionError(misuse)
        return {option.name: self.given.get(option.name, option.default_for(use)) for option in OPTIONS}


def parse(options: Mapping[str, str] | Settings) -> Settings:
    """Read the values, and the files that they name; what was read already is returned as it is.

    Raises:
        OptionError: one is unknown, has an invalid value, or contradicts another in any case.
    """
    if isinstance(options, Settings):
        return options
    given = {}
    if (name := of_a_table(options)) is not None:  # whatever else is wrong
        raise OptionError(f"unknown option '{name}'; {hint(name)}")
    for name, value in options.items():
        option = BY_NAME.get(name.lower())
        if option is not None:
            given[option.name] = value_of(option.name, value, option.read)
        elif name.lower() in ("path", "paths"):
            raise OptionError(instead_of_path(value))
        elif name.lower() not in SPARKS_OWN:
            raise OptionError(f"unknown option '{name}'; {hint(name)}")
    _contradict(given)
    everything = given
    if "context" in given:
        everything = {**given, **_of_context(given)}
        _contradict(everything)
    for name, needed in REQUIREMENTS:
        if name in everything and not any(other in everything for other in needed):
            either = " or ".join(f"'{other}'" for other in needed)
            raise OptionError(f"option '{name}' needs the option {either}")
    return Settings(given, _connection(everything), _api_prefix(everything))


def connection_options(**options: str) -> ConnectionOptions:
    """Return how to connect, of options by their names in docs/options.md, for whoever works without Spark.

    Raises:
        OptionError: one is unknown, has an invalid value, or contradicts another.
    """
    return parse(options).connection


def value_of(name: str, text: str, read: Callable[[str], Any]) -> Any:
    """Return the value of an option.

    Raises:
        OptionError: it is invalid.
    """
    try:
        return read(text)
    except ValueError as error:
        raise OptionError(f"option '{name}' {error}") from None


def options_of_urls(urls: str) -> dict[str, str]:
    """Return server URLs as options: with the first one's credentials in options that Spark's plans do not show.

    Raises:
        ValueError: a URL is not one, or another one has other credentials.
    """
    servers = parse_servers(urls)
    login = servers[0].credentials
    if any(server.credentials and server.credentials != login for server in servers):
        raise ValueError("log in in different ways; give every server the same user and password, or the same token")
    named = {"user": login.user, "password": login.password, "token": login.token}
    return {"servers": ",".join(map(str, servers)), **{name: value for name, value in named.items() if value}}


_JITTER, _TLS_JITTER = 0.1, 1.0  # seconds, those of ADR-40


def retry_options(values: Mapping[str, Any], connection: ConnectionOptions) -> RetryOptions:
    """Return how long and how often to try again, of the values of all options."""
    encrypted = connection.tls is not None or any(server.tls for server in connection.servers)
    return RetryOptions(
        timeout=values["retryTimeout"],
        wait=values["reconnectWait"],
        jitter=_TLS_JITTER if encrypted else _JITTER,
        attempts=values["maxReconnects"],
    )


def _contradict(given: Mapping[str, Any]) -> None:
    for one, other in CONTRADICTIONS:
        if one in given and other in given:
            raise OptionError(f"options '{one}' and '{other}' contradict each other; set one of them")


def _of_context(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a context's fields by the names of options, without those that options stand above."""
    found = dict(given["context"])
    for group in TOGETHER:
        if any(name in given for name in group):
            found = {name: text for name, text in found.items() if name not in group}
    values = {}
    for name, text in found.items():
        try:
            if name == "servers":
                values[name] = _servers_of_context(text, given)
            elif name not in given:
                values[name] = BY_NAME[name.lower()].read(text)
        except ValueError as error:
            raise OptionError(f"option 'context' sets '{name}', which {error}") from None
    return values


def _servers_of_context(url: str, given: Mapping[str, Any]) -> tuple[Server, ...]:
    """Return where a context connects; its URL may log in, since no plan shows it.

    Servers of the option ``servers`` take its place, with the login and the wish for TLS that the URL has.
    """
    servers = parse_servers(url)
    if any(name in given for name in LOGINS):
        servers = tuple(replace(server, credentials=Credentials()) for server in servers)
    if "servers" not in given:
        return servers
    login, tls = servers[0].credentials, servers[0].tls  # which is the same for all of them
    return tuple(replace(server, credentials=login, tls=server.tls or tls) for server in given["servers"])


def _connection(everything: Mapping[str, Any]) -> ConnectionOptions:
    values = {option.name: everything.get(option.name, option.default_for(option.applies)) for option in OPTIONS}
    keys = [values[name] for name in LOGINS if isinstance(values[name], Credentials)]
    return ConnectionOptions(
        servers=values["servers"],
        discover=values["discoverServers"],
        credentials=keys[0] if keys else Credentials(values["user"], values["password"], values["token"]),
        tls=_tls(values),
        name=values["connectionName"],
        connect_timeout=values["connectTimeout"],
        request_timeout=values["requestTimeout"],
        idle_timeout=values["idleTimeout"],
        ping_interval=values["pingInterval"],
        inbox_prefix=values["inboxPrefix"],
        echo=values["echo"],
    )


def _api_prefix(everything: Mapping[str, Any]) -> str:
    if "domain" in everything:
        return prefix_of_domain(everything["domain"])
    option = BY_NAME["apiprefix"]
    prefix: str = everything.get(option.name, option.default_for(ANY & option.applies))
    return prefix


def _tls(values: Mapping[str, Any]) -> TlsOptions | None:
    """Return what is asked of TLS; None when no option asks for it."""

    def of(names: tuple[str, ...]) -> str | None:
        return next((values[name] for name in names if values[name] is not None), None)

    tls = TlsOptions(
        ca=of(AUTHORITIES),
        certificate=of(CERTIFICATES),
        key=of(KEYS),
        server_name=values["tlsServerName"],
        handshake_first=values["tlsHandshakeFirst"],
    )
    if tls == TlsOptions():
        return None
    from spark_nats.client.tls import context_of  # costs much to import, and few need it

    try:
        context_of(tls)
    except ValueError as error:
        given = [f"'{name}'" for name in (*AUTHORITIES, *CERTIFICATES, *KEYS) if values[name] is not None]
        raise OptionError(f"the options for TLS ({', '.join(given)}) cannot be used: {error}") from None
    return tls
