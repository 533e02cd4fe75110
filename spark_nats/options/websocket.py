"""The option of a WebSocket."""

import re
from dataclasses import dataclass, field
from functools import partial

from spark_nats.client.options import Opening
from spark_nats.conditions import Topic
from spark_nats.conditions.websocket import WEBSOCKET_NOT_INSTALLED
from spark_nats.errors import NatsError
from spark_nats.options import values
from spark_nats.options.option import Group, option


@dataclass(frozen=True, slots=True)
class ByWebSocket:
    """Loads the WebSocket as an :class:`~spark_nats.client.options.Opening`."""

    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)  # of the request, such as a gateway's login

    def __call__(self) -> Opening:
        """Return the WebSocket; raise NatsError if its package is missing."""
        try:
            from spark_nats.client.websocket import start_websocket as start
        except ModuleNotFoundError as error:
            if error.name != "wsproto":
                raise
            raise NatsError(WEBSOCKET_NOT_INSTALLED()) from None
        return Opening(partial(start, self.headers), "does the WebSocket lead to a nats-server?", Topic.WEBSOCKET)


_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110, section 5.6.2
_HEADER_VALUE = re.compile(r"[!-~]([ \t!-~]*[!-~])?")
_OF_THE_HANDSHAKE = re.compile(r"host|upgrade|connection|content-length|transfer-encoding|sec-websocket-.*", re.I)


def read_websocket_headers(text: str) -> ByWebSocket:
    """Read a JSON object with the headers of a request; no error shows a value."""
    found = values.parse_object_or_none(text)
    if found is None:
        raise ValueError('must be a JSON object with the headers, such as {"Authorization": "Bearer …"}')
    for name, value in found.items():
        if not _HEADER_NAME.fullmatch(name):
            raise ValueError("has a name that cannot be that of a header")
        if _OF_THE_HANDSHAKE.fullmatch(name):
            raise ValueError(f"has the header {name!r}, which the handshake itself sets")
        if not isinstance(value, str) or not _HEADER_VALUE.fullmatch(value):
            raise ValueError(f"has a value of {name!r} that is no text of printable ASCII characters")
    return ByWebSocket(tuple(found.items()))


class WebSocket(Group, section="Connecting"):
    """The option for servers that are reached through a WebSocket."""

    opening: ByWebSocket = option(
        read_websocket_headers,
        "headers of the request for a WebSocket, as a JSON object, such as a gateway's login; Spark hides the value in "
        "its plans",
        name="websocketHeadersSecret",
        absent=ByWebSocket(),
    )
