# CloudEvents: github.com/cloudevents/sdk-go/protocol/nats_jetstream/v2 2.16.2, and .../nats/v2 2.16.2 for core NATS
#
# Guesses, before it ran:
# 1. The JetStream sender, by default, is structured: the payload is the event as JSON, with the header
#    content-type application/cloudevents+json.
# 2. In binary mode attributes are headers ce-id, ce-type, ce-source, ce-specversion, and the payload is the data.
# 3. There is no Nats-Msg-Id: an event that is sent twice is two rows.
# 4. The core protocol stores no headers at all, always structured.
# 5. A row of ours with the headers ce-specversion, ce-id, ce-type, ce-source is received as an event; one without
#    is an error that the receiver gets, and is acknowledged.
# Missed: 1: the default is binary, and structured events have no content-type. Not looked at: whether 5 is acknowledged.
. "$(dirname "$0")/with.sh"
MODULES=("github.com/cloudevents/sdk-go/protocol/nats_jetstream/v2 v2.16.2" "github.com/cloudevents/sdk-go/protocol/nats/v2 v2.16.2"
    "github.com/cloudevents/sdk-go/v2 v2.16.2" "github.com/nats-io/nats.go v1.55.0")

ours stream S 's.>'
go_with "${MODULES[@]}" <<'GO'
package main

import (
	"context"
	"os"

	cenats "github.com/cloudevents/sdk-go/protocol/nats/v2"
	cejs "github.com/cloudevents/sdk-go/protocol/nats_jetstream/v2"
	cloudevents "github.com/cloudevents/sdk-go/v2"
	"github.com/cloudevents/sdk-go/v2/binding"
)

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func main() {
	e := cloudevents.NewEvent()
	e.SetID("1")
	e.SetType("order.made")
	e.SetSource("https://example.com/shop")
	e.SetSubject("é")
	e.SetExtension("tenant", "eu")
	must(0, e.SetData(cloudevents.ApplicationJSON, map[string]int{"a": 1}))
	ctx := context.Background()
	url := os.Getenv("NATS_URL")
	js := must(cejs.NewSender(url, "S", "s.js", nil, nil))
	c := must(cloudevents.NewClient(js))
	for _, mode := range []context.Context{ctx, binding.WithForceBinary(ctx), binding.WithForceStructured(ctx)} {
		if result := c.Send(mode, e); cloudevents.IsUndelivered(result) {
			panic(result)
		}
	}
	core := must(cenats.NewSender(url, "s.core", nil))
	c = must(cloudevents.NewClient(core))
	if result := c.Send(ctx, e); cloudevents.IsUndelivered(result) {
		panic(result)
	}
	core.Close(ctx)
	js.Close(ctx)
}
GO
say stream
ours read stream=S
ours stream T 't.>'
ours write stream=T <<'ROWS'
{"subject": "t.js", "payload": "none"}
{"subject": "t.js", "payload": "{\"a\": 1}", "headers": {"ce-specversion": ["1.0"], "ce-id": ["1"], "ce-type": ["t"], "ce-source": ["spark"], "content-type": ["application/json"]}}
{"subject": "t.js", "payload": "{\"specversion\": \"1.0\", \"id\": \"2\", \"type\": \"t\", \"source\": \"spark\"}", "headers": {"content-type": ["application/cloudevents+json"]}}
{"subject": "t.js", "payload": "{\"specversion\": \"1.0\", \"id\": \"3\", \"type\": \"t\", \"source\": \"spark\"}"}
ROWS
say what it reads of ours
go_with "${MODULES[@]}" <<'GO'
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	cejs "github.com/cloudevents/sdk-go/protocol/nats_jetstream/v2"
	"github.com/cloudevents/sdk-go/v2/binding"
	"github.com/nats-io/nats.go"
)

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	c, err := cejs.NewConsumer(os.Getenv("NATS_URL"), "T", "t.js", nil, nil, []nats.SubOpt{nats.DeliverAll()})
	if err != nil {
		panic(err)
	}
	go c.OpenInbound(ctx)
	for i := 0; i < 4; i++ {
		m, err := c.Receive(ctx)
		if err != nil {
			fmt.Println("receive:", err)
			break
		}
		e, err := binding.ToEvent(ctx, m)
		if err != nil {
			fmt.Println("no event:", err)
		} else {
			fmt.Println("event", e.ID(), e.Source(), string(e.Data()))
		}
		m.Finish(nil)
	}
}
GO
