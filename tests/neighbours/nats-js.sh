# nats.js: @nats-io/jetstream, kv, obj, transport-node 3.4.0
#
# Guesses, before it ran:
# 1. `js.publish(s, undefined, {msgID, expect})` gives the headers Nats-Msg-Id, Nats-Expected-Stream, -Last-Sequence.
# 2. `create` leaves `Nats-Expected-Last-Subject-Sequence: 0`; `update` its revision; `put` no header.
# 3. `purge` has KV-Operation PURGE and Nats-Rollup sub; with a ttl also Nats-TTL.
# 4. A JSON object as a payload must be encoded by the program; a string is stored as UTF-8.
# 5. An object with metadata and headers comes whole; an object of 0 bytes has 0 chunks and content of 0 bytes.
# 6. It reads a key, an object and a deletion that we wrote as its own; `get` of a deleted key is an entry with DEL.
# Missed: none.
. "$(dirname "$0")/with.sh"
PACKAGES=(@nats-io/jetstream@3.4.0 @nats-io/kv@3.4.0 @nats-io/obj@3.4.0 @nats-io/transport-node@3.4.0)

node_with "${PACKAGES[@]}" <<'JS'
import { connect, headers } from "@nats-io/transport-node";
import { jetstream, jetstreamManager } from "@nats-io/jetstream";
import { Kvm } from "@nats-io/kv";
import { Objm } from "@nats-io/obj";
const nc = await connect({ servers: process.env.NATS_URL });
const jsm = await jetstreamManager(nc), js = jetstream(nc);
await jsm.streams.add({ name: "S", subjects: ["s.>"] });
await js.publish("s.text", "é");
await js.publish("s.json", JSON.stringify({ a: 1 }));
const h = headers(); h.append("a", "1"); h.append("a", "2");
await js.publish("s.headers", undefined, { headers: h, msgID: "m1", expect: { streamName: "S", lastSequence: 2 } });
const kv = await new Kvm(nc).create("B", { history: 5, markerTTL: 600_000 });
await kv.put("put", "v");
await kv.create("created", "v", "10m");
await kv.update("put", "w", 1);
await kv.put("deleted", "v"); await kv.delete("deleted");
await kv.put("purged", "v"); await kv.purge("purged", { ttl: "10m" });
const obj = await new Objm(nc).create("O", {});
const oh = headers(); oh.append("a", "b");
await obj.putBlob({ name: "a.txt", description: "text", headers: oh, metadata: { k: "v" } }, new TextEncoder().encode("hello"));
await obj.putBlob({ name: "empty" }, new Uint8Array());
await nc.close();
JS
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
node_with "${PACKAGES[@]}" <<'JS'
import { connect } from "@nats-io/transport-node";
import { jetstreamManager } from "@nats-io/jetstream";
import { Kvm } from "@nats-io/kv";
import { Objm } from "@nats-io/obj";
const nc = await connect({ servers: process.env.NATS_URL });
const m = await (await jetstreamManager(nc)).streams.getMessage("S", { last_by_subj: "s.ours" });
console.log(m.subject, m.string(), m.header.keys().map((k) => `${k}=${m.header.values(k)}`).join(" "));
const kv = await new Kvm(nc).open("B");
const keys = [];
for await (const k of await kv.keys()) keys.push(k);
console.log((await kv.get("ours")).string(), keys.sort().join(" "), "put:", (await kv.get("put")).operation);
const obj = await new Objm(nc).open("O");
console.log(new TextDecoder().decode(await obj.getBlob("ours.txt")), (await obj.info("ours.txt")).digest);
await nc.close();
JS
