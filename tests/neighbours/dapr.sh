# Dapr: its component for JetStream, github.com/dapr/components-contrib 1.18.0, with the envelope that daprd makes
#
# Guesses, before it ran:
# 1. The payload is a CloudEvent as JSON, whose `data` has the program's JSON, not a text of it; binary data is `data_base64`.
# 2. The headers are Nats-Msg-Id only, the CloudEvent's id.
# 3. With rawPayload the payload is as given, and there is no Nats-Msg-Id.
# 4. A row of ours without an envelope reaches a subscriber as it is.
# Missed: none.
. "$(dirname "$0")/with.sh"

ours stream ORDERS orders
go_with "github.com/dapr/components-contrib v1.18.0" "github.com/dapr/kit v0.18.0" <<'GO'
package main

import (
	"context"
	"os"
	"time"

	"github.com/dapr/components-contrib/metadata"
	"github.com/dapr/components-contrib/pubsub"
	"github.com/dapr/components-contrib/pubsub/jetstream"
	"github.com/dapr/kit/logger"
	"encoding/json"
)

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	log := logger.NewLogger("x")
	log.SetOutputLevel(logger.ErrorLevel)
	js := jetstream.NewJetStream(log)
	must(js.Init(ctx, pubsub.Metadata{Base: metadata.Base{Properties: map[string]string{
		"natsURL": os.Getenv("NATS_URL"), "name": "n", "streamName": "ORDERS", "durableName": "d"}}}))
	for _, each := range []struct{ kind, data string }{{"application/json", `{"a":1}`}, {"text/plain", "hello"}, {"application/octet-stream", "\x00\xff"}} {
		envelope := pubsub.NewCloudEventsEnvelope("", "app", "", "", "orders", "pubsub", each.kind, []byte(each.data), "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "")
		data, err := json.Marshal(envelope)
		must(err)
		must(js.Publish(ctx, &pubsub.PublishRequest{Data: data, Topic: "orders", PubsubName: "pubsub"}))
	}
	must(js.Publish(ctx, &pubsub.PublishRequest{Data: []byte(`{"raw":true}`), Topic: "orders", Metadata: map[string]string{"rawPayload": "true"}}))
	must(js.Close())
}
GO
say stream
ours read stream=ORDERS
ours write stream=ORDERS <<'ROWS'
{"subject": "orders", "payload": "plain", "headers": {"k": ["v"]}}
ROWS
say what it reads of ours
go_with "github.com/dapr/components-contrib v1.18.0" "github.com/dapr/kit v0.18.0" <<'GO'
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/dapr/components-contrib/metadata"
	"github.com/dapr/components-contrib/pubsub"
	"github.com/dapr/components-contrib/pubsub/jetstream"
	"github.com/dapr/kit/logger"
)

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	log := logger.NewLogger("x")
	log.SetOutputLevel(logger.ErrorLevel)
	js := jetstream.NewJetStream(log)
	if err := js.Init(ctx, pubsub.Metadata{Base: metadata.Base{Properties: map[string]string{
		"natsURL": os.Getenv("NATS_URL"), "name": "n", "streamName": "ORDERS", "durableName": "r", "startSequence": "5", "deliverPolicy": "sequence"}}}); err != nil {
		panic(err)
	}
	got := make(chan string, 1)
	if err := js.Subscribe(ctx, pubsub.SubscribeRequest{Topic: "orders"}, func(_ context.Context, m *pubsub.NewMessage) error {
		got <- fmt.Sprint(string(m.Data), " ", m.Metadata)
		return nil
	}); err != nil {
		panic(err)
	}
	select {
	case said := <-got:
		fmt.Println(said)
	case <-ctx.Done():
		panic("nothing came")
	}
}
GO
