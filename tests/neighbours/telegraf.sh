# Telegraf 1.37.2, built with its NATS plugins only
#
# Guesses, before it ran:
# 1. The output stores one message for each metric, as a line with its newline, without headers; with `use_batch_format` one for
#    all. Without `jetstream` nobody waits.
# 2. `jetstream` creates the stream, and changes one that is there: its subjects, limits and window become Telegraf's.
# 3. It waits for acknowledgements and sets no message id: after a refusal it sends the whole batch again, twice stored.
# 4. The input's consumer is a push durable with the name of its queue group; an orderly end deletes it, and the next start
#    reads all again. Another Telegraf of the group gets nothing any more then, and says nothing.
# 5. A row that it cannot parse: logged, and never acknowledged. An empty payload: no metric, acknowledged.
# Missed: 1: with `jetstream` there is Nats-Expected-Stream. 5: acknowledged, and gone.
. "$(dirname "$0")/with.sh"

FOLDER=$(place go telegraf v1.37.2)
TAGS=custom,outputs.nats,outputs.file,inputs.nats_consumer,inputs.file,parsers.influx,serializers.influx
installed "$FOLDER" env GOBIN="$FOLDER" go install -p 2 -tags "$TAGS" github.com/influxdata/telegraf/cmd/telegraf@v1.37.2
telegraf() { # runs it with a configuration, which comes on standard input: once, or for some seconds
    { printf '[agent]\ninterval = "1s"\nflush_interval = "1s"\nomit_hostname = true\n'; cat; } >"$WORK/telegraf.conf"
    if [ "$1" = once ]; then
        timeout 60 "$FOLDER/telegraf" --config "$WORK/telegraf.conf" --once 2>/dev/null
    else
        timeout -s INT "$1" "$FOLDER/telegraf" --config "$WORK/telegraf.conf" 2>"$WORK/telegraf.log" || true
    fi
}
output() { # writes two metrics
    printf 'cpu,host=a v=1 1700000000000000000\ncpu,host=b v=2 1700000001000000000\n' >"$WORK/lines"
    { printf '[[inputs.file]]\nfiles = ["%s"]\ndata_format = "influx"\n' "$WORK/lines"
      printf '[[outputs.nats]]\nservers = ["%s"]\ndata_format = "influx"\n' "$NATS_URL"; printf '%s\n' "$@"; } | telegraf once
}
input() {
    { printf '[[inputs.nats_consumer]]\nservers = ["%s"]\nsubjects = []\njetstream_subjects = ["t.>"]\n' "$NATS_URL"
      printf 'data_format = "influx"\n[[outputs.file]]\nfiles = ["stdout"]\ndata_format = "influx"\n'; } | telegraf "$1"
    grep -o 'metric parse error' "$WORK/telegraf.log" || true
}

ours stream S 's.>'
output 'subject = "s.each"'
output 'subject = "s.batch"' 'use_batch_format = true'
ours stream J 'j.>' 'others.>' duplicate_window=3600000000000 max_msgs=1000 discard='"new"' allow_direct=true
ours config J subjects duplicate_window max_msgs discard allow_direct
output 'subject = "j.each"' '[outputs.nats.jetstream]' 'name = "J"'
say the same stream afterwards
ours config J subjects duplicate_window max_msgs discard allow_direct
say streams
ours read stream=S
ours read stream=J

ours stream T 't.>'
ours write stream=T <<'ROWS'
{"subject": "t.line", "payload": "cpu v=1 1700000000000000000", "headers": {"tenant": ["eu", "us"]}}
{"subject": "t.text", "payload": "not a line"}
{"subject": "t.empty", "payload": ""}
{"subject": "t.line", "payload": "cpu v=2 1700000000000000000"}
ROWS
say what it reads of ours
input 25 >"$WORK/read" &
for _ in $(seq 200); do ours consumers T 2>/dev/null | grep '"acknowledged": 4' && break; sleep 0.2; done
wait
cat "$WORK/read"
say after an orderly end, and at the next start
ours consumers T
input 8
