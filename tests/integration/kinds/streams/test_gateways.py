"""A stream that is moved from one cluster to another, joined by gateways, while it is written and read."""

from __future__ import annotations

import json
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_nats.client import connect
from spark_nats.embedded import NatsServer
from spark_nats.errors import NatsError
from tests.connections import options_for
from tests.integration.support import PAYLOAD, Query, numbers_of, read, run_task, stream_reader
from tests.nats_py import wait_until
from tests.servers import free_ports

CLUSTERS = {"a0": "A", "b0": "B", "b1": "B"}


def joined_servers(directory: Path) -> dict[str, NatsServer]:
    """Three servers of two clusters, by name; not started."""
    ports = free_ports(9)
    routes, gateways, listens = (dict(zip(CLUSTERS, ports[i : i + 3], strict=True)) for i in (0, 3, 6))

    def urls(of: dict[str, int], cluster: str) -> str:
        return ", ".join(f'"nats://127.0.0.1:{of[name]}"' for name in CLUSTERS if CLUSTERS[name] == cluster)

    remotes = ", ".join(f"{{ name: {cluster}, urls: [{urls(gateways, cluster)}] }}" for cluster in "AB")
    return {
        name: NatsServer(
            f"server_name: {name}\n"
            f'cluster {{ name: {cluster}, listen: "127.0.0.1:{routes[name]}", routes: [{urls(routes, cluster)}] }}\n'
            f'gateway {{ name: {cluster}, listen: "127.0.0.1:{gateways[name]}", gateways: [{remotes}] }}\n',
            port=listens[name],
            store_dir=directory / name,
            ready_timeout=60,
        )
        for name, cluster in CLUSTERS.items()
    }


@pytest.mark.long
def test_a_stream_that_moves_to_another_cluster_is_written_and_read_on(tmp_path: Path) -> None:
    servers = joined_servers(tmp_path)

    def knows_all_servers(server: NatsServer) -> bool:
        with urllib.request.urlopen(f"{server.monitoring_url}/jsz", timeout=5) as answer:
            meta = json.load(answer).get("meta_cluster", {})
        return bool(meta.get("leader")) and meta.get("cluster_size") == len(servers)

    def ask(subject: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """What the API answers at B; nothing while it does not."""
        payload = b"" if body is None else json.dumps(body).encode()
        try:
            with connect(options_for(servers["b0"].url)) as connection:
                answer: dict[str, Any] = json.loads(connection.request(f"$JS.API.{subject}", payload, 5.0).payload)
                return answer
        except NatsError:
            return {}

    def is_at(cluster: str) -> bool:
        found = ask("STREAM.INFO.S").get("cluster", {})
        is_led = found.get("name") == cluster and bool(found.get("leader"))
        return is_led and "desired" not in found and not found.get("replicas")

    try:
        with ThreadPoolExecutor() as pool:
            list(pool.map(NatsServer.start, servers.values()))
        wait_until(lambda: all(map(knows_all_servers, servers.values())), timeout=60)
        config = {"name": "S", "subjects": ["s"], "num_replicas": 1, "allow_direct": True, "storage": "file"}
        config |= {"placement": {"cluster": "A"}}
        wait_until(lambda: "config" in ask("STREAM.CREATE.S", config) or is_at("A"), timeout=60)
        wait_until(lambda: is_at("A"), timeout=60)
        created, ends = wait_until(lambda: ask("STREAM.INFO.S").get("created")), ["a0", "b0"]
        queries = {name: Query(stream_reader(servers[name].url, PAYLOAD, stream="S")) for name in ends}
        seen: dict[str, list[int]] = {name: numbers_of(query.micro_batch()) for name, query in queries.items()}
        written = 0

        def write() -> int:
            numbers = range(written, written + 50)
            rows = pa.table({"subject": ["s"] * 50, "payload": [str(i) for i in numbers]})
            run_task(servers["a0"].url, rows, str(written), prepared=not written, stream="S")
            return numbers.stop

        written = write()  # and prepare the query, which is not tried again
        for cluster in "BA":
            config["placement"] = {"cluster": cluster}
            wait_until(lambda: "config" in ask("STREAM.UPDATE.S", config), timeout=60)
            while not is_at(cluster) or written % 200:
                written = write()
                for name, query in queries.items():
                    seen[name] += numbers_of(query.micro_batch())
        for name, query in queries.items():
            seen[name] += numbers_of(query.rows(written - len(seen[name])))
            assert seen[name] == list(range(written))
            assert numbers_of(read(servers[name].url, PAYLOAD, stream="S")) == list(range(written))
        assert wait_until(lambda: ask("STREAM.INFO.S").get("created")) == created
    finally:
        for server in servers.values():
            server.kill()
            server.stop()
