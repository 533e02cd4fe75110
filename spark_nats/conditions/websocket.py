"""The conditions of a WebSocket."""

from spark_nats.conditions import Condition, Topic, once_established, passing, set_codes

WEBSOCKET_REFUSED = once_established("answers the request for a WebSocket with {reason}", Topic.WEBSOCKET)
WEBSOCKET_NOT_SPOKEN = once_established(
    "speaks NATS without a WebSocket there: its URL begins with nats:// or tls://", Topic.WEBSOCKET
)
WEBSOCKET_FAILED = once_established("the handshake for a WebSocket failed: {reason}", Topic.WEBSOCKET)
WEBSOCKET_TIMEOUT = passing("did not answer the request for a WebSocket in {timeout:g} s", Topic.WEBSOCKET)
WEBSOCKET_NOT_INSTALLED = Condition(
    "to connect through a WebSocket the package 'wsproto' is needed, on the driver and on every executor: install the "
    "extra 'websocket' of spark-nats; see Installing in the documentation"
)

set_codes(globals())
