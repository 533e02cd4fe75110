# Orbit for Go: counters 0.1.2, jetstreamext 0.3.2 (batches), kvcodec 0.1.2, pcgroups 0.2.2; nats.go 1.55.0
#
# Guesses, before it ran:
# 1. counters.Add leaves Nats-Incr ("+5" as "5") and {"val":"5"}.
# 2. A batch's rows have Nats-Batch-Id, -Sequence, and the last one -Commit: 1; the rows of a fast batch none of these.
# 3. kvcodec.Base64Codec: each token of a key by itself, base64 for URLs without padding, values as given with a codec of none.
# 4. kvcodec.PathCodec: /a/b is stored as _root_.a.b.
# 5. A key of ours written as base64 by Spark is read back by its own name.
# 6. A group's stream has rows with Nats-Stream-Source, and their subject is that of the origin with the partition before it.
# Missed: none.
. "$(dirname "$0")/with.sh"
MODULES=("github.com/nats-io/nats.go v1.55.0" "github.com/synadia-io/orbit.go/counters v0.1.2"
    "github.com/synadia-io/orbit.go/jetstreamext v0.3.2" "github.com/synadia-io/orbit.go/kvcodec v0.1.2"
    "github.com/synadia-io/orbit.go/pcgroups v0.2.2")

ours stream C 'c.>' allow_msg_counter=true allow_direct=true
ours stream S 's.>' allow_atomic=true allow_batched=true
ours stream ORDERS 'orders.*'
go_with "${MODULES[@]}" <<'GO'
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/synadia-io/orbit.go/counters"
	"github.com/synadia-io/orbit.go/jetstreamext"
	"github.com/synadia-io/orbit.go/kvcodec"
	"github.com/synadia-io/orbit.go/pcgroups"
)

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func main() {
	nc := must(nats.Connect(os.Getenv("NATS_URL")))
	js := must(jetstream.New(nc))
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c := must(counters.GetCounter(ctx, js, "C"))
	must(c.AddInt(ctx, "c.a", 5))
	fmt.Println("counter:", must(c.AddInt(ctx, "c.a", -2)))
	b := must(jetstreamext.NewBatchPublisher(js))
	must(0, b.Add("s.batch", []byte("1")))
	must(b.Commit(ctx, "s.batch", []byte("2")))
	f := must(jetstreamext.NewFastPublisher(js))
	must(f.Add("s.fast", []byte("1")))
	must(f.Commit(ctx, "s.fast", []byte("2")))
	kv := must(js.CreateKeyValue(ctx, jetstream.KeyValueConfig{Bucket: "B64"}))
	must(kvcodec.New(kv, kvcodec.Base64Codec(), kvcodec.NoOpCodec()).PutString(ctx, "eu.acme corp", "v"))
	kv = must(js.CreateKeyValue(ctx, jetstream.KeyValueConfig{Bucket: "PATHS"}))
	must(kvcodec.New(kv, kvcodec.PathCodec(), kvcodec.NoOpCodec()).PutString(ctx, "/a/b", "v"))
	filters := []pcgroups.PartitioningFilter{{Filter: "orders.*", PartitioningWildcards: []int{1}}}
	must(pcgroups.CreateElastic(ctx, js, "ORDERS", "cg", 4, filters, 0, 0))
	must(js.Publish(ctx, "orders.a", []byte("1")))
	group := must(js.Stream(ctx, "ORDERS-cg"))
	for must(group.Info(ctx)).State.Msgs == 0 {
		time.Sleep(50 * time.Millisecond)
	}
	nc.Close()
}
GO
say counters
ours read stream=C
say batches
ours read stream=S
say codecs
ours read bucket=B64
ours read bucket=PATHS
say a group
ours read stream=ORDERS-cg peek=true
ours config ORDERS-cg retention discard
ours config ORDERS subjects retention
ours write bucket=B64 <<'ROWS'
{"key": "dXM.b3Vycw", "value": "v"}
ROWS
ours write stream=C <<'ROWS'
{"subject": "c.a", "increment": "7"}
ROWS
say what it reads of ours
go_with "${MODULES[@]}" <<'GO'
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/synadia-io/orbit.go/counters"
	"github.com/synadia-io/orbit.go/kvcodec"
)

func main() {
	nc, err := nats.Connect(os.Getenv("NATS_URL"))
	if err != nil {
		panic(err)
	}
	js, _ := jetstream.New(nc)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	kv, err := js.KeyValue(ctx, "B64")
	if err != nil {
		panic(err)
	}
	entry, err := kvcodec.New(kv, kvcodec.Base64Codec(), kvcodec.NoOpCodec()).Get(ctx, "us.ours")
	if err != nil {
		panic(err)
	}
	fmt.Println(entry.Key(), string(entry.Value()))
	c, err := counters.GetCounter(ctx, js, "C")
	if err != nil {
		panic(err)
	}
	fmt.Println(c.Load(ctx, "c.a"))
}
GO
