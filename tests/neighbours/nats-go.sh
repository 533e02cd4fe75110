# nats.go 1.55.0, its packages jetstream and, for core, nats
#
# Guesses, before it ran:
# 1. `PublishMsg` with options gives Nats-Msg-Id, Nats-Expected-Stream, Nats-Expected-Last-Sequence, Nats-TTL (as "10m0s").
# 2. A header set by `Header.Set` keeps its case; the API of Go's net/http would have made `a` to `A`.
# 3. `Create` of a key leaves `Nats-Expected-Last-Subject-Sequence: 0`; with KeyTTL also Nats-TTL.
# 4. `Create` over a deleted key leaves the deletion's sequence in that header, not 0.
# 5. `PurgeDeletes` removes the DEL rows: they are gone here too, without a row of their own.
# 6. `Object.AddLink` gives link {bucket, name}; `Seal` seals the stream, so that our write is refused with its name.
# Missed: none.
. "$(dirname "$0")/with.sh"
PACKAGES=("github.com/nats-io/nats.go v1.55.0")

go_with "${PACKAGES[@]}" <<'GO'
package main

import (
	"context"
	"os"
	"strings"
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
	nc := must(nats.Connect(os.Getenv("NATS_URL")))
	js := must(jetstream.New(nc))
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	must(js.CreateStream(ctx, jetstream.StreamConfig{Name: "S", Subjects: []string{"s.>"}, AllowMsgTTL: true}))
	must(js.Publish(ctx, "s.plain", []byte("1")))
	m := nats.NewMsg("s.headers")
	m.Header.Set("a", "1")
	m.Header.Add("a", "2")
	must(js.PublishMsg(ctx, m, jetstream.WithMsgID("m1"), jetstream.WithExpectStream("S"),
		jetstream.WithExpectLastSequence(1), jetstream.WithMsgTTL(10*time.Minute)))
	kv := must(js.CreateKeyValue(ctx, jetstream.KeyValueConfig{Bucket: "B", History: 5, LimitMarkerTTL: 10 * time.Minute}))
	must(kv.PutString(ctx, "put", "v"))
	must(kv.Create(ctx, "created", []byte("v"), jetstream.KeyTTL(10*time.Minute)))
	must(kv.Update(ctx, "put", []byte("w"), 1))
	must(kv.PutString(ctx, "deleted", "v"))
	must(0, kv.Delete(ctx, "deleted"))
	must(kv.PutString(ctx, "again", "v"))
	must(0, kv.Delete(ctx, "again"))
	must(kv.Create(ctx, "again", []byte("w")))
	must(kv.PutString(ctx, "purged", "v"))
	must(0, kv.Purge(ctx, "purged"))
	o := must(js.CreateObjectStore(ctx, jetstream.ObjectStoreConfig{Bucket: "O"}))
	meta := jetstream.ObjectMeta{Name: "a.txt", Description: "text", Headers: nats.Header{"a": {"b"}}, Metadata: map[string]string{"k": "v"}}
	meta.Opts = &jetstream.ObjectMetaOptions{ChunkSize: 4}
	info := must(o.Put(ctx, meta, strings.NewReader("0123456789")))
	must(o.AddLink(ctx, "link", info))
	must(o.PutBytes(ctx, "gone", []byte("x")))
	must(0, o.Delete(ctx, "gone"))
	nc.Close()
}
GO
say stream
ours read stream=S
say bucket
ours read bucket=B history=true ignoreDeletes=false
ours config KV_B allow_direct allow_msg_ttl deny_delete deny_purge discard duplicate_window max_msgs_per_subject
say objects
ours read objectStore=O
ours config OBJ_O allow_direct discard max_msg_size allow_rollup_hdrs

ours write stream=S <<'ROWS'
{"subject": "s.ours", "payload": "text", "headers": {"two": ["1", "2"]}, "msg_id": "id"}
ROWS
ours write bucket=B <<'ROWS'
{"key": "ours", "value": "v"}
{"key": "put", "operation": "DEL"}
ROWS
ours write objectStore=O <<'ROWS'
{"name": "ours.txt", "content": "hello"}
ROWS
say what it reads of ours
go_with "${PACKAGES[@]}" <<'GO'
package main

import (
	"context"
	"fmt"
	"os"
	"sort"
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
	nc := must(nats.Connect(os.Getenv("NATS_URL")))
	js := must(jetstream.New(nc))
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	s := must(js.Stream(ctx, "S"))
	m := must(s.GetLastMsgForSubject(ctx, "s.ours"))
	fmt.Println(m.Subject, string(m.Data), m.Header["two"], m.Header["Nats-Msg-Id"], m.Header["Nats-Expected-Stream"])
	kv := must(js.KeyValue(ctx, "B"))
	keys := must(kv.Keys(ctx))
	sort.Strings(keys)
	_, gone := kv.Get(ctx, "put")
	fmt.Println(string(must(kv.Get(ctx, "ours")).Value()), keys, "put:", gone)
	o := must(js.ObjectStore(ctx, "O"))
	fmt.Println(must(o.GetString(ctx, "ours.txt")), must(o.GetInfo(ctx, "ours.txt")).Digest)
	must(0, kv.PurgeDeletes(ctx, jetstream.DeleteMarkersOlderThan(-1)))
	must(0, o.Seal(ctx))
	nc.Close()
}
GO
say after PurgeDeletes and Seal
ours read bucket=B history=true ignoreDeletes=false
refused '{"name": "late.txt", "content": "x"}' objectStore=O
