"""What a server that traces messages itself makes of the header `traceparent` (docs/metrics.md, Traces)."""

import pytest

from tests.integration.support import read, table, write
from tests.nats_py import NatsPy
from tests.needs import since
from tests.servers import OLDER_BINARY, ServerFactory

SAMPLED = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
CONFIG = """
    accounts: { A: {
        jetstream: enabled, users: [{ user: a, password: a }], msg_trace: { dest: "traces", sampling: 100 }
    } }
"""


@pytest.mark.parametrize(
    ("binary", "marked"),
    [
        (OLDER_BINARY, {"Xraceparent": [SAMPLED]}),
        (None, {"traceparent": [SAMPLED], "Nats-Trace-Dest": ["trace disabled"]}),
    ],
    ids=["2.11", "newest"],
)
@since(2, 14)
def test_a_server_that_traces_marks_what_it_has_traced(
    server_factory: ServerFactory, binary: object, marked: dict[str, list[str]]
) -> None:
    server = server_factory(CONFIG, **({"binary": binary} if binary else {}))
    login = {"user": "a", "password": "a"}
    with NatsPy(server.url, **login) as client:
        client.create_stream("S", ["s"])
        rows = table(subject=["s"], payload=[b"1"], headers=[{"traceparent": SAMPLED}])
        write(server, rows, stream="S", **login)
    (row,) = read(server, stream="S", user="a", password="a")
    assert {name: values for name, values in row["headers"] if "trace" in name.lower() or "Xrace" in name} == marked
