"""The values of options, before the kind of the query is known.

The driver reads them once, when Spark makes a source or sink. It also reads the files that options name, so executors
need no copies of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from spark_nats.client.auth import Credentials
from spark_nats.client.options import ConnectionOptions, RetryOptions
from spark_nats.client.servers import Server, parse_servers
from spark_nats.conditions.queries import INVALID_CONTEXT, OPTION_NEEDS_OPTION, OPTIONS_CONTRADICT, UNKNOWN_OPTION
from spark_nats.errors import OptionError
from spark_nats.options.connecting import (
    AUTHORITIES,
    CERTIFICATES,
    GROUPS,
    KEYS,
    LOGINS,
    Echo,
    make_connection_and_retry_options,
)
from spark_nats.options.files import is_plain, may_file_name_be_shown
from spark_nats.options.nearest import advise_on_unknown, describe_unused_path, is_table_option
from spark_nats.options.option import Group, Option, read_option_value
from spark_nats.options.query import JetStreamQuery
from spark_nats.protocol.api import prefix_of_domain

Known = Mapping[str, Option]
"""The options that may be set, by their names in lower case."""

_GROUPS: tuple[type[Group], ...] = (*GROUPS, JetStreamQuery)

CONNECTION: Known = {row.name.lower(): row for group in _GROUPS for row in group.options.values()}
"""The options of a connection, for any purpose."""

TOGETHER = ((*LOGINS, "password"), AUTHORITIES, (*CERTIFICATES, *KEYS), ("domain", "apiPrefix"))
"""Options that are taken from a context together or not at all."""

# Options that Spark itself understands and passes to every source and sink.
SPARKS_OWN = frozenset({"checkpointlocation", "queryname", "outputmode", "mergeschema", "numrows", "truncate"})


@dataclass(frozen=True, slots=True)
class Settings:
    """The values of options."""

    given: Mapping[str, Any] = field(repr=False)  # of the options that were set, by name
    # of these and of a context, by name; with ``apiPrefix`` where ``domain`` is among them
    values: Mapping[str, Any] = field(repr=False)
    connection: ConnectionOptions  # how to connect
    retries: RetryOptions  # how long and how often to retry

    @property
    def api_prefix(self) -> str:
        """Subject prefix of the JetStream API."""
        return JetStreamQuery.of(self.values).api_prefix


def parse_options(options: Mapping[str, str], known: Known) -> Settings:
    """Read the values of options, and the files that they name.

    Raises:
        OptionError: an option is unknown, has an invalid value, needs an option that is missing, or contradicts
            another one, whatever the kind of the query.
    """
    given: dict[str, Any] = {}
    for name in sorted(options, key=is_table_option, reverse=True):  # a table is an error before any other
        option = known.get(name.lower())
        value = options[name]
        if option is not None:
            given[option.name] = read_option_value(option.name, value, option.read)
        elif name.lower() in ("path", "paths"):
            raise OptionError(describe_unused_path(value))
        elif name.lower() not in SPARKS_OWN:
            raise OptionError(UNKNOWN_OPTION(option=name, hint=advise_on_unknown(name, known)))
    values = {**given, **_values_of_context(given)} if "context" in given else given
    for name in values:
        for other in known[name.lower()].excludes:
            if other in values:
                raise OptionError(OPTIONS_CONTRADICT(option=other, other=name))
    for name in values:
        needed = known[name.lower()].needs
        if needed and not any(other in values for other in needed):
            either = " or ".join(f"'{other}'" for other in needed)
            raise OptionError(OPTION_NEEDS_OPTION(option=name, needed=either))
    if "domain" in values:
        values = {**values, "apiPrefix": prefix_of_domain(values["domain"])}
    return Settings(given, values, *make_connection_and_retry_options(values))


def connection_options(**options: str) -> ConnectionOptions:
    """Return the settings of a connection from options, named as in docs/options.md, for use without Spark.

    Raises:
        OptionError: an option is unknown, is not about the connection, has an invalid value, or contradicts another.
    """
    return parse_options(options, {**CONNECTION, **Echo.options}).connection


def options_of_urls(urls: str) -> dict[str, str]:
    """Return server URLs as options; the credentials of the first URL become options of their own.

    Spark's plans hide the ``password`` and the ``token`` among them.

    Raises:
        ValueError: a URL is invalid, or a later URL has other credentials.
    """
    servers = parse_servers(urls)
    login = servers[0].credentials
    if any(server.credentials and server.credentials != login for server in servers):
        raise ValueError("log in in different ways; give every server the same user and password, or the same token")
    named = {"user": login.user, "password": login.password, "token": login.token}
    return {"servers": ",".join(map(str, servers)), **{name: value for name, value in named.items() if value}}


def _values_of_context(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a context by option name, without those that options override."""
    found = given["context"]
    for group in TOGETHER:
        if any(name in given for name in group):
            found = {name: text for name, text in found.items() if name not in group}
    values: dict[str, Any] = {}
    for name, text in found.items():
        try:
            if name == "servers":
                values[name] = _servers_of_context(text, given)
            elif name not in given:
                values[name] = CONNECTION[name.lower()].read(text)
            continue
        except ValueError as error:
            problem = str(error)
        # Not below the error that has the value: it may be a secret in a wrong place.
        if not (is_plain(text) or may_file_name_be_shown(text)):
            problem = problem.replace(repr(text), "what is not shown here")
        raise OptionError(INVALID_CONTEXT(option=name, problem=problem))
    return values


def _servers_of_context(url: str, given: Mapping[str, Any]) -> tuple[Server, ...]:
    """Return the servers in a context's URL, which, unlike the option ``servers``, may have a login: no plan shows it.

    Options for the login replace that login. If the option ``servers`` is set, return its servers, with the login of
    the context's URL, and with TLS if that URL demands it.
    """
    servers = parse_servers(url)
    if any(name in given for name in LOGINS):
        servers = tuple(replace(server, credentials=Credentials()) for server in servers)
    if "servers" not in given:
        return servers
    login, tls = servers[0].credentials, servers[0].tls  # TLS is demanded of all servers or of none
    return tuple(replace(server, credentials=login, tls=server.tls or tls) for server in given["servers"])
