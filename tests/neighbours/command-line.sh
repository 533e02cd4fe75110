# The command line: natscli 0.5.0
#
# Guesses, before it ran:
# 1. `nats pub` without --jetstream stores a row without headers; -H a:1 -H a:2 keeps both values.
# 2. `nats pub --count 2 s.x '{{Count}}'` gives payloads 1 and 2.
# 3. `nats kv create` leaves `Nats-Expected-Last-Subject-Sequence: 0`; `nats kv add` makes nats.go's bucket.
# 4. `nats object put FILE` names the object by its path as given, with a description header of none.
# 5. `nats schedule add` leaves a row with Nats-Schedule and Nats-Schedule-Target in the stream.
# 6. `nats counter incr` leaves Nats-Incr and {"val":"5"}.
# Missed: 4: the name is a.txt. Not looked at: 5.
. "$(dirname "$0")/with.sh"
module=$(place natscli 0.5.0)
printf 'module nats-cli\n\ngo 1.26.0\n\nrequire github.com/nats-io/natscli v0.5.0\n' >"$module/go.mod"
installed "$module" env GOFLAGS=-mod=mod CGO_ENABLED=0 go build -ldflags '-X main.version=0.5.0' -o nats github.com/nats-io/natscli/nats
export HOME=$WORK XDG_CONFIG_HOME=$WORK
nats() { "$module/nats" --server "$NATS_URL" "$@" </dev/null >"$WORK/out" 2>&1 || { cat "$WORK/out"; exit 1; }; }

ours stream S 's.>' allow_msg_ttl=true allow_msg_schedules=true
ours stream C 'c.>' allow_msg_counter=true allow_direct=true
nats pub s.headers hello -H a:1 -H a:2
nats pub s.ttl hello -H Nats-TTL:10m --jetstream
nats pub --count 2 s.count '{"n": {{Count}}, "id": "{{ID}}"}'
nats pub s.stdin --force-stdin
nats counter incr c.a 5
nats counter incr c.a -- -2
nats kv add B --history 5
nats kv put B put v
nats kv create B created v
nats kv update B put w 1
nats kv put B deleted v
nats kv del B deleted --force
nats kv put B purged v
nats kv purge B purged --force
nats object add O
echo hello >"$WORK/a.txt"
(cd "$WORK" && nats object put O ./a.txt --description text -H a:b --no-progress --force)
say counters
ours read stream=C
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
show() { nats "$@"; cat "$WORK/out"; }
show stream get S -S s.ours
show kv get B ours --raw
echo
show kv ls B
