"""The model of three servers says of replicated streams what a real cluster says, in a smaller conversation."""

from __future__ import annotations

import json

import pytest

from tests.servers import Cluster
from tests.simulation.conversation import Line, SocketLine, Transcript, steps_in_cluster, transcript
from tests.simulation.line import ModelSite

MODEL = "2.15.1"


def hold(line: Line, seed: int, expected: Transcript | None = None) -> Transcript:
    try:
        return transcript(line, seed, steps_in_cluster(seed), expected)
    finally:
        line.close()


def ask(line: Line, operation: str, **body: object) -> dict[str, object]:
    """Ask once, on a line of its own; nothing when there is no answer."""
    text = json.dumps(body)
    line.send(b'CONNECT {"verbose":false,"headers":true,"no_responders":true}\r\nSUB in.* 1\r\n')
    line.send(f"PUB $JS.API.{operation} in.a {len(text)}\r\n{text}\r\n".encode())
    data = b""
    while not data.endswith(b"}\r\n"):
        more = line.receive(5.0)
        if not more:
            return {}
        data += more
    line.close()
    answer: dict[str, object] = json.loads(data[data.rindex(b"\r\n{", 0, -4) :])
    return answer


@pytest.mark.long("tests/simulation/*", races="when replicas have what was stored")
@pytest.mark.parametrize("seed", range(8))
def test_a_cluster_and_its_model_answer_alike(cluster: Cluster, seed: int) -> None:
    port = cluster.servers[0].port
    model = hold(ModelSite(MODEL, 3).line(), seed)
    for one, other in zip(hold(SocketLine(port), seed, model), model, strict=True):
        assert one == other
        assert "and that was not all that is due" not in one[1]


@pytest.mark.long("tests/simulation/*", races="how soon a cluster answers")
def test_a_replicated_stream_is_described_alike(cluster: Cluster, unique: str) -> None:
    port = cluster.servers[0].port
    config = {"name": unique, "subjects": [unique], "num_replicas": 3}
    real = ask(SocketLine(port), f"STREAM.CREATE.{unique}", **config)["cluster"]
    model = ask(ModelSite(MODEL, 3).line(), f"STREAM.CREATE.{unique}", **config)["cluster"]
    assert isinstance(real, dict)
    assert isinstance(model, dict)
    assert set(model) <= set(real)
    for one in (real, model):
        assert len({one["leader"], *(each["name"] for each in one["replicas"])}) == 3
        assert all({"name", "current", "active"} <= set(each) for each in one["replicas"])
