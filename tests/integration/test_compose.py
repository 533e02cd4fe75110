"""docker-compose.yml: what it says is valid, and its NATS cluster works."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.integration.jobs import ROOT, run
from tests.integration.support import numbered_rows, read_payloads, write
from tests.nats_py import NatsPy
from tests.servers import IMAGE, IN_DOCKER

Compose = Callable[..., str]

URLS = "nats://localhost:4222,nats://localhost:4223,nats://localhost:4224"
NODES = ("nats1", "nats2", "nats3")
LEFT = ("container", "volume", "network")

pytestmark = pytest.mark.docker


@pytest.fixture
def compose(unique: str) -> Iterator[Compose]:
    """Compose, in a project of its own, of which nothing is left afterwards."""
    if not IN_DOCKER:
        pytest.skip("needs a Docker engine: NATS_TEST_SERVER=docker")
    project = unique.lower()

    def call(*arguments: str) -> str:
        return run(ROOT / "scripts" / "compose", "--project-name", project, *arguments, cwd=ROOT, NATS_IMAGE=IMAGE)

    yield call
    call("down", "--volumes", "--timeout", "5")
    of_project = f"label=com.docker.compose.project={project}"
    assert {kind: run("docker", kind, "ls", "--quiet", "--filter", of_project) for kind in LEFT} == dict.fromkeys(
        LEFT, ""
    )


def test_compose_understands_the_file_and_starts_nats_alone_unless_asked_for_more(compose: Compose):
    assert sorted(compose("config", "--services").split()) == [*NODES]
    everything = compose("--profile", "spark", "config", "--services").split()
    assert sorted(everything) == ["jupyter", *NODES, "spark-master", "spark-worker"]


@pytest.mark.timeout(400)
def test_its_three_nodes_keep_a_stream_with_three_replicas_while_the_leader_is_stopped(compose: Compose, unique: str):
    compose("up", "--detach", "--wait", *NODES)
    to = {"stream": unique, "createStream": f'{{"subjects": ["{unique}.>"], "num_replicas": 3}}'}
    write(URLS, numbered_rows(unique, range(500)), **to)

    with NatsPy(URLS.split(",")) as client:
        info = client.stream_info(unique)
    assert info["config"]["num_replicas"] == 3
    leader = info["cluster"]["leader"]
    compose("stop", "--timeout", "10", f"nats{leader.removeprefix('n')}")

    write(URLS, numbered_rows(unique, range(500, 1000)), **to)
    assert read_payloads(URLS, stream=unique) == [b"%d" % i for i in range(1000)]

    compose("up", "--detach", "--wait")
    assert read_payloads(URLS, stream=unique) == [b"%d" % i for i in range(1000)]
