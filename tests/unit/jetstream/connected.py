"""What stands in for a connection where a test answers the requests itself."""

from __future__ import annotations

from spark_nats.protocol.control import ServerInfo


class Connected:
    """A connection to a server, of a cluster or not; it notes what it is to wait."""

    def __init__(self, client_id: int = 1, cluster: str = "") -> None:
        self.info = ServerInfo(server_id="A", client_id=client_id, cluster=cluster)
        self.waits: list[float] = []

    def wait_while_receiving(self, seconds: float) -> None:
        self.waits.append(seconds)
