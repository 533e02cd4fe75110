# kine 0.17.5 (github.com/k3s-io/kine), Kubernetes' store on a bucket
#
# Guesses, before it ran:
# 1. The bucket is named kine; a key such as /registry/pods/a is stored in parts, each base58: `key` is not readable as it is.
# 2. The value is compressed (s2) JSON or protobuf, so `string(value)` is not what Kubernetes stored.
# 3. A deletion leaves a row of operation DEL.
# 4. The bucket keeps a history of 10 revisions, so `history` has older objects.
# Missed: 3: before the DEL there is a PUT whose value says that it deletes.
. "$(dirname "$0")/with.sh"

go_with "github.com/k3s-io/kine v0.17.5" <<'GO'
package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/k3s-io/kine/pkg/client"
	_ "github.com/k3s-io/kine/pkg/drivers/nats"
	"github.com/k3s-io/kine/pkg/endpoint"
	"github.com/sirupsen/logrus"
)

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func main() {
	logrus.SetLevel(logrus.ErrorLevel)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	etcd := must(endpoint.Listen(ctx, endpoint.Config{
		Listener: "unix://" + os.Getenv("WORK") + "/kine.sock",
		Endpoint: os.Getenv("NATS_URL") + "?noEmbed", NotifyInterval: 5 * time.Second, EmulatedETCDVersion: "3.5.13",
		CompactInterval: time.Hour, CompactTimeout: time.Minute, CompactMinRetain: 1000, CompactBatchSize: 1000, PollBatchSize: 500,
		PollInterval: time.Second,
	}))
	c := must(client.New(etcd))
	must(0, c.Create(ctx, "/registry/pods/a", []byte(`{"kind":"Pod"}`)))
	must(0, c.Put(ctx, "/registry/pods/a", []byte(`{"kind":"Pod","v":2}`)))
	must(0, c.Create(ctx, "/registry/pods/b", []byte(`{"kind":"Pod"}`)))
	must(0, c.Delete(ctx, "/registry/pods/b", must(c.Get(ctx, "/registry/pods/b")).Modified))
	for _, v := range must(c.List(ctx, "/registry/pods/", 0)) {
		fmt.Println(string(v.Key), strings.TrimSpace(string(v.Data)))
	}
}
GO
say bucket
ours read bucket=kine history=true ignoreDeletes=false
ours config KV_kine allow_direct deny_delete discard max_msgs_per_subject max_age
