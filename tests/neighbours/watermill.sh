# Watermill: github.com/ThreeDotsLabs/watermill-nats/v2 2.1.3 with watermill 1.5.1
#
# Guesses, before it ran:
# 1. A message has the headers _watermill_message_uuid and one for each of its metadata; the payload is as given.
# 2. With TrackMsgId it has Nats-Msg-Id too.
# 3. A topic is the subject, unless SubjectCalculator says otherwise.
# 4. The GobMarshaler stores Go's binary form: no headers, payload not readable in Spark.
# 5. A row of ours without _watermill_message_uuid is delivered with an empty uuid.
# 6. A row of ours with two values of one header is never delivered (as seen before).
# Missed: none.
. "$(dirname "$0")/with.sh"

go_with "github.com/ThreeDotsLabs/watermill v1.5.1" "github.com/ThreeDotsLabs/watermill-nats/v2 v2.1.3" \
    "github.com/nats-io/nats.go v1.55.0" <<'GO'
package main

import (
	"os"

	"github.com/ThreeDotsLabs/watermill"
	wnats "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/nats"
	"github.com/ThreeDotsLabs/watermill/message"
)

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func main() {
	for _, each := range []struct {
		marshaler wnats.Marshaler
		track     bool
	}{{&wnats.NATSMarshaler{}, true}, {&wnats.JSONMarshaler{}, false}, {&wnats.GobMarshaler{}, false}} {
		p, err := wnats.NewPublisher(wnats.PublisherConfig{URL: os.Getenv("NATS_URL"), Marshaler: each.marshaler,
			JetStream: wnats.JetStreamConfig{AutoProvision: true, TrackMsgId: each.track}}, watermill.NopLogger{})
		must(err)
		m := message.NewMessage("0b3f1c1e-8f7e-4d3e-9a51-3f5f2d6a7c10", []byte(`{"a":1}`))
		m.Metadata.Set("tenant", "eu")
		must(p.Publish("t", m))
		must(p.Close())
	}
}
GO
say stream
ours read stream=t
ours config t subjects retention
ours write stream=t <<'ROWS'
{"subject": "t", "payload": "none", "headers": {"tenant": ["eu"]}}
{"subject": "t", "payload": "two", "headers": {"tenant": ["eu", "us"]}}
{"subject": "t", "payload": "uuid", "headers": {"_watermill_message_uuid": ["42"]}}
ROWS
say what it reads of ours
go_with "github.com/ThreeDotsLabs/watermill v1.5.1" "github.com/ThreeDotsLabs/watermill-nats/v2 v2.1.3" \
    "github.com/nats-io/nats.go v1.55.0" <<'GO'
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wnats "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/nats"
	"github.com/nats-io/nats.go"
)

func main() {
	sub, err := wnats.NewSubscriber(wnats.SubscriberConfig{URL: os.Getenv("NATS_URL"),
		JetStream: wnats.JetStreamConfig{SubscribeOptions: []nats.SubOpt{nats.StartSequence(4)}}}, watermill.NopLogger{})
	if err != nil {
		panic(err)
	}
	messages, err := sub.Subscribe(context.Background(), "t")
	if err != nil {
		panic(err)
	}
	for last := ""; last != "uuid"; {
		select {
		case m := <-messages:
			last = string(m.Payload)
			fmt.Printf("%q %s %v\n", m.UUID, m.Payload, m.Metadata)
			m.Ack()
		case <-time.After(20 * time.Second):
			panic("nothing came")
		}
	}
	sub.Close()
}
GO
