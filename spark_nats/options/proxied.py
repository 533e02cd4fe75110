"""The options of a proxy."""

from dataclasses import replace

from spark_nats.client.proxy import ByProxy, Proxy, parse_proxy
from spark_nats.options import values
from spark_nats.options.option import Group, option


def read_proxy(text: str) -> Proxy:
    """Read the URL of a proxy without user and password."""
    if "@" in text:
        raise ValueError(
            "has a user or password in its URL, where Spark's plans would show it; use the options 'proxyUser' and "
            "'proxyPassword'"
        )
    return parse_proxy(text)


class Proxied(Group, section="Connecting"):
    """The options for a proxy between the client and all servers."""

    proxy: Proxy | None = option(
        read_proxy,
        "proxy for the connections to all servers, `http://host:port` or `socks5://host:port`; when not set, `ws://` "
        "and `wss://` follow `HTTP_PROXY`, `HTTPS_PROXY`, `ALL_PROXY` and `NO_PROXY` in the environment",
    )
    proxy_user: str | None = option(values.read_text, "user name for `proxy`", needs=("proxy",))
    proxy_password: str | None = option(values.read_secret, "password of `proxyUser`", needs=("proxyUser",))

    @property
    def reach(self) -> ByProxy:
        """The way to servers: through the proxy that is set or, for a WebSocket, that of the environment, if any."""
        return ByProxy(self.proxy and replace(self.proxy, user=self.proxy_user, password=self.proxy_password))
