"""Options with their values read, before it is known what they are for.

This is done once, on the driver, when a source or sink is made: files that options name are read here, so executors
need no copy of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from spark_nats.client.auth import Credentials
from spark_nats.client.options import ConnectionOptions, RetryOptions
from spark_nats.client.servers import Server, parse_servers
from spark_nats.conditions.options import INVALID_CONTEXT, OPTION_NEEDS_OPTION, OPTIONS_CONTRADICT, UNKNOWN_OPTION
from spark_nats.errors import OptionError
from spark_nats.options.connecting import LOGINS, Connecting
from spark_nats.options.nearest import hint, instead_of_path, of_a_table
from spark_nats.options.query import Query, Target
from spark_nats.options.read import TriggerLimits
from spark_nats.options.rows import ANY, Use, value_of
from spark_nats.options.table import BY_NAME, CONTRADICTIONS, REQUIREMENTS, ROWS, SPARKS_OWN, TOGETHER

Group = TypeVar("Group", Target, TriggerLimits)


@dataclass(frozen=True, slots=True)
class Settings:
    """Values of options."""

    given: Mapping[str, Any] = field(repr=False)  # by name, of the options that were set
    connection: ConnectionOptions  # how to connect
    retries: RetryOptions  # how long and how often to try again
    api_prefix: str  # subject prefix of the JetStream API

    def check(self, use: Use, names: Iterable[str] | None = None) -> None:
        """Check that what was set, or these options if they were, is for such a query.

        Raises:
            OptionError: it is not.
        """
        for name in self.given if names is None else names:
            if name in self.given and (misuse := BY_NAME[name.lower()].misuse(use)):
                raise OptionError(misuse)

    def of(self, group: type[Group], use: Use = ANY) -> Group:
        """Return these options: what was set, else the default in such a query."""
        return group(**_filled(group, self.given, use))

    def values(self, query: type[Query], use: Use) -> dict[str, Any]:
        """Return what a query has of options and of nothing else, by the names of its fields."""
        own = _filled(query, self.given, use)
        return {"connection": self.connection, "api_prefix": self.api_prefix, "retries": self.retries, **own}


def _filled(group: type[Any], given: Mapping[str, Any], use: Use = ANY) -> dict[str, Any]:
    rows = ROWS[group].items()
    return {field: given[row.name] if row.name in given else row.default_for(use) for field, row in rows}


def parse(options: Mapping[str, str] | Settings) -> Settings:
    """Read the values, and the files that they name; what was read already is returned as it is.

    Raises:
        OptionError: one is unknown, has an invalid value, or contradicts another in any case.
    """
    if isinstance(options, Settings):
        return options
    given = {}
    if (name := of_a_table(options)) is not None:  # whatever else is wrong
        raise OptionError(UNKNOWN_OPTION(option=name, hint=hint(name)))
    for name, value in options.items():
        option = BY_NAME.get(name.lower())
        if option is not None:
            given[option.name] = value_of(option.name, value, option.read)
        elif name.lower() in ("path", "paths"):
            raise OptionError(instead_of_path(value))
        elif name.lower() not in SPARKS_OWN:
            raise OptionError(UNKNOWN_OPTION(option=name, hint=hint(name)))
    _contradict(given)
    everything = given
    if "context" in given:
        everything = {**given, **_of_context(given)}
        _contradict(everything)
    for name, needed in REQUIREMENTS:
        if name in everything and not any(other in everything for other in needed):
            either = " or ".join(f"'{other}'" for other in needed)
            raise OptionError(OPTION_NEEDS_OPTION(option=name, needed=either))
    connecting = Connecting(**_filled(Connecting, everything))
    connection = connecting.connection(everything)
    return Settings(given, connection, connecting.retries(connection), connecting.prefix())


def connection_options(**options: str) -> ConnectionOptions:
    """Return how to connect, of options by their names in docs/options.md, for whoever works without Spark.

    Raises:
        OptionError: one is unknown, has an invalid value, or contradicts another.
    """
    return parse(options).connection


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


def _contradict(given: Mapping[str, Any]) -> None:
    for one, other in CONTRADICTIONS:
        if one in given and other in given:
            raise OptionError(OPTIONS_CONTRADICT(option=one, other=other))


def _of_context(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a context's fields by the names of options, without those that options stand above."""
    said = Connecting(**_filled(Connecting, given))
    found = said.context or {}
    for group in TOGETHER:
        if any(name in given for name in group):
            found = {name: text for name, text in found.items() if name not in group}
    values: dict[str, Any] = {}
    for name, text in found.items():
        try:
            if name == "servers":
                values[name] = _servers_of_context(text, said, given)
            elif name not in given:
                values[name] = BY_NAME[name.lower()].read(text)
        except ValueError as error:
            raise OptionError(INVALID_CONTEXT(option=name, problem=error)) from None
    return values


def _servers_of_context(url: str, said: Connecting, given: Mapping[str, Any]) -> tuple[Server, ...]:
    """Return where a context connects; its URL may log in, since no plan shows it.

    Servers of the option ``servers`` take its place, with the login and the wish for TLS that the URL has.
    """
    servers = parse_servers(url)
    if any(name in given for name in LOGINS):
        servers = tuple(replace(server, credentials=Credentials()) for server in servers)
    if "servers" not in given:
        return servers
    login, tls = servers[0].credentials, servers[0].tls  # which is the same for all of them
    return tuple(replace(server, credentials=login, tls=server.tls or tls) for server in said.servers)
