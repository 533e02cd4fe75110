"""The conditions of a WebSocket."""

from spark_nats.conditions import Condition, Topic, Transient, passing

WEBSOCKET_REFUSED = Condition(
    "[NATS_WEBSOCKET_REFUSED] answers the request for a WebSocket with {reason}",
    Topic.WEBSOCKET,
    transient=Transient.ONCE_ESTABLISHED,
)
WEBSOCKET_NOT_SPOKEN = Condition(
    "[NATS_WEBSOCKET_NOT_SPOKEN] speaks NATS without a WebSocket there: its URL begins with nats:// or tls://",
    Topic.WEBSOCKET,
    transient=Transient.ONCE_ESTABLISHED,
)
WEBSOCKET_FAILED = Condition(
    "[NATS_WEBSOCKET_FAILED] the handshake for a WebSocket failed: {reason}",
    Topic.WEBSOCKET,
    transient=Transient.ONCE_ESTABLISHED,
)
WEBSOCKET_TIMEOUT = passing(
    "[NATS_WEBSOCKET_TIMEOUT] did not answer the request for a WebSocket in {timeout:g} s", Topic.WEBSOCKET
)
WEBSOCKET_NOT_INSTALLED = Condition(
    "[NATS_WEBSOCKET_NOT_INSTALLED] to connect through a WebSocket the package 'wsproto' is needed, on the driver and "
    'on every executor: install it with: pip install "spark-nats[websocket]"'
)
