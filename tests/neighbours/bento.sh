# Bento 1.10.0, github.com/warpstreamlabs/bento, of the line of Benthos
#
# Guesses, before it ran:
# 1. `nats_jetstream` stores the payload as it is, without headers; those of `headers`, with one value each, and metadata only
#    if `metadata.include_patterns` names it. Never Nats-Msg-Id of its own.
# 2. It waits for the acknowledgement, and sends a refused message again for ever. `nats` does not wait.
# 3. The input with `durable` makes a push consumer, deliver all, explicit; its orderly end deletes it.
# 4. Of two values of a header the metadata has the first; an empty value is left out. Empty and binary payloads are as they are.
# 5. A mapping that throws lets the message go on unchanged, and it is acknowledged. `reject_errored`: refused at once, for ever.
# 6. `nats_kv`: deletions with an empty payload and their operation; an expiry is a purge. Each start has all last values again.
# 7. Copying with `.*` copies Nats-Msg-Id and Nats-Expected-…, and the input's own nats_… as headers.
# 8. A work queue that another consumer reads: it logs, and tries again for ever.
# Missed: 3: it stays. 6: an expiry is a put with an empty payload. 7: so no other stream takes rows of ours. And nobody had
#    guessed that rows are stored in another order than they came in, where `max_in_flight` is not 1.
. "$(dirname "$0")/with.sh"

bento() { # runs a pipeline, which comes on standard input, for some seconds or until its input ends
    { echo 'http: {enabled: false}'; cat; } >"$WORK/bento.yaml"
    grep -q '^logger' "$WORK/bento.yaml" || echo 'logger: {level: "OFF"}' >>"$WORK/bento.yaml"
    CONFIG=$WORK/bento.yaml SECONDS_TO_RUN=$1 go_with "github.com/warpstreamlabs/bento v1.10.0" <<'GO'
package main

import (
	"context"
	"os"
	"strconv"
	"syscall"
	"time"

	_ "github.com/warpstreamlabs/bento/public/components/io"
	_ "github.com/warpstreamlabs/bento/public/components/nats"
	_ "github.com/warpstreamlabs/bento/public/components/pure"
	"github.com/warpstreamlabs/bento/public/service"
)

func main() {
	seconds, _ := strconv.Atoi(os.Getenv("SECONDS_TO_RUN"))
	time.AfterFunc(time.Duration(seconds)*time.Second, func() { syscall.Kill(os.Getpid(), syscall.SIGINT) })
	os.Args = []string{"bento", "-c", os.Getenv("CONFIG")}
	service.RunCLI(context.Background())
}
GO
}
shown() { # what a pipeline prints, without what each run has of its own
    sed -E 's/"nats_(timestamp_unix_nano|kv_created|kv_delta|num_pending|sequence_consumer)":("[^"]*"|[0-9]+),?//g; s/("Nats-Msg-Id":")[^"]{31}"/\1<id>"/g'
}

ours stream B 'b.>'
bento 20 <<YAML
input: {generate: {count: 3, interval: "", mapping: 'root = if counter() == 3 { "" } else { "{\"a\":1}" }'}}
output: {nats_jetstream: {urls: ["$NATS_URL"], subject: b.plain, max_in_flight: 1}}
YAML
bento 20 <<YAML
input: {generate: {count: 1, interval: "", mapping: 'root = "x"

        meta tenant = "eu"'}}
output: {nats_jetstream: {urls: ["$NATS_URL"], subject: b.headers, headers: {Content-Type: text}, metadata: {include_patterns: [tenant]}}}
YAML
say stream
ours read stream=B

ours stream T 't.>'
ours write stream=T <<'ROWS'
{"subject": "t.a", "payload": "plain"}
{"subject": "t.a", "payload": "two", "headers": {"tenant": ["eu", "us"], "empty": [""]}, "msg_id": "7"}
{"subject": "t.a", "payload": ""}
ROWS
say what it reads of ours
bento 4 <<YAML | shown
input: {nats_jetstream: {urls: ["$NATS_URL"], subject: 't.>', durable: d}}
pipeline: {threads: 1, processors: [{mapping: 'root = {"payload": content().string(), "metadata": @}'}]}
output: {stdout: {}}
YAML
ours consumers T
say what a mapping that throws lets through
bento 4 <<YAML
input: {nats_jetstream: {urls: ["$NATS_URL"], subject: 't.>', durable: e}}
pipeline: {threads: 1, processors: [{mapping: 'root = {"v": content().string().number()}'}]}
output: {stdout: {}}
YAML
ours stream C 'c.>'
say a copy with all headers: what another stream answers
bento 4 <<YAML | grep -o 'nats: .*stream does not match' | sort -u
logger: {level: ERROR}
input: {nats_jetstream: {urls: ["$NATS_URL"], subject: 't.>'}}
output: {nats_jetstream: {urls: ["$NATS_URL"], subject: c.copy, max_in_flight: 1, metadata: {include_patterns: ['.*']}}}
YAML
bento 4 <<YAML
input: {nats_jetstream: {urls: ["$NATS_URL"], subject: 't.>'}}
output: {nats_jetstream: {urls: ["$NATS_URL"], subject: c.copy, max_in_flight: 1, metadata: {include_patterns: [Nats-Msg-Id, tenant, nats_subject]}}}
YAML
say a copy with three
ours read stream=C

ours stream KV_BM '$KV.BM.>' max_msgs_per_subject=1 allow_rollup_hdrs=true allow_msg_ttl=true subject_delete_marker_ttl=60000000000
ours write bucket=BM <<'ROWS'
{"key": "a", "value": "1", "operation": "PUT"}
{"key": "b", "value": "", "operation": "PUT"}
{"key": "c", "value": "", "operation": "DEL"}
ROWS
bento 20 <<YAML
input: {generate: {count: 1, interval: "", mapping: 'root = "short"'}}
output: {nats_jetstream: {urls: ["$NATS_URL"], subject: '\$KV.BM.expires', headers: {Nats-TTL: 1s}}}
YAML
sleep 3
say a bucket, and its deletions: one of ours, one that the server has written when a value expired
ours read bucket=BM
bento 4 <<YAML | shown
input: {nats_kv: {urls: ["$NATS_URL"], bucket: BM}}
pipeline: {threads: 1, processors: [{mapping: 'root = {"value": content().string(), "metadata": @}'}]}
output: {stdout: {}}
YAML
