"""What servers that trace messages make of the header that names a trace, as docs/metrics.md says."""

from __future__ import annotations

import pytest

from spark_nats.embedded import NatsServer
from tests.integration.support import read
from tests.nats_py import NatsPy
from tests.needs import since
from tests.servers import BINARY_2_12

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
TRACED = 'msg_trace: {dest: "traces", sampling: "100%"}'


@pytest.mark.parametrize(
    ("binary", "stored"),
    [
        (None, {"traceparent": [TRACE], "Nats-Trace-Dest": ["trace disabled"]}),
        pytest.param(
            BINARY_2_12,
            {"Xraceparent": [TRACE]},
            marks=pytest.mark.skipif(not BINARY_2_12.exists(), reason="make test brings it"),
        ),
    ],
    ids=["2.15", "2.12"],
)
@since(2, 14)
def test_servers_before_2_14_rename_the_header_of_a_trace(binary: object, stored: dict[str, list[str]]) -> None:
    config = f"accounts {{ A: {{ jetstream: enabled, users: [{{user: u, password: p}}], {TRACED} }} }}"
    arguments = {} if binary is None else {"binary": binary}
    with NatsServer(config, **arguments) as server, NatsPy(server.url, user="u", password="p") as client:
        client.create_stream("S", ["s"])
        client.publish_acked([("s", b"x", {"traceparent": TRACE})])
        (row,) = read(server, stream="S", user="u", password="p", startingOffsets="earliest")
        assert dict(row["headers"]) == stored
