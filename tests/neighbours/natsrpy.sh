# natsrpy 0.1.4, Python over async-nats
#
# Guesses, before it ran:
# 1. A header may have one value or a list in core publishing; JetStream's publish takes one value for each name.
# 2. `kv.create` leaves `Nats-Expected-Last-Subject-Sequence: 0`; its bucket is that of async-nats.
# 3. `counters.add` gives Nats-Incr and a payload {"val": "…"}.
# 4. Its chunks are of 24 MB by default, more than max_payload: an object of 2 MiB cannot be put, and leaves no row.
# 5. It reads a key and an object of ours as its own; our header with two values as a list.
# Missed: 1: JetStream takes a list as well. 4: its chunks are of 24 KiB, the type stub says 24 MB; the object is put.
. "$(dirname "$0")/with.sh"
PACKAGES=(natsrpy==0.1.4)

python_with "${PACKAGES[@]}" <<'PY'
import asyncio, os
from natsrpy import Nats
from natsrpy.js import CountersConfig, KVConfig, ObjectStoreConfig, StreamConfig

async def main():
    nats = Nats([os.environ["NATS_URL"]])
    await nats.startup()
    js = await nats.jetstream()
    await js.streams.create(StreamConfig(name="S", subjects=["s.>"], allow_direct=True))
    await js.publish("s.headers", "1", headers={"a": "b", "Nats-Msg-Id": "m1"}, wait=True)
    try:
        await js.publish("s.headers", "2", headers={"a": ["1", "2"]}, wait=True)
    except TypeError as error:
        print("two values in JetStream:", type(error).__name__)
    await nats.publish("s.core", b"3", headers={"a": ["1", "2"]})
    await nats.flush()
    kv = await js.kv.create(KVConfig(bucket="B", history=5))
    await kv.put("put", b"v")
    await kv.create("created", b"v")
    await kv.update("put", b"w", 1)
    await kv.put("deleted", b"v")
    await kv.delete("deleted")
    counters = await js.counters.create(CountersConfig(name="C", subjects=["c.>"]))
    print("counter:", await counters.add("c.a", 5), await counters.add("c.a", -2))
    o = await js.object_store.create(ObjectStoreConfig(bucket="O"))
    await o.put("a.txt", b"hello", description="text", headers={"a": "b"}, metadata={"k": "v"})
    try:
        await o.put("big", bytes(2 * 1024 * 1024))
        print("big: put")
    except Exception as error:
        print("big:", type(error).__name__)
    await nats.shutdown()

asyncio.run(main())
PY
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
python_with "${PACKAGES[@]}" <<'PY'
import asyncio, io, os
from natsrpy import Nats

async def main():
    nats = Nats([os.environ["NATS_URL"]])
    await nats.startup()
    js = await nats.jetstream()
    stream = await js.streams.get("S")
    message = await stream.direct_get_last_for_subject("s.ours")
    print(message.subject, message.payload, dict(sorted(message.headers.items())))
    kv = await js.kv.get("B")
    print(await kv.get("ours"), "put:", await kv.get("put"))
    out = io.BytesIO()
    await (await js.object_store.get("O")).get("ours.txt", out)
    print(out.getvalue())
    await nats.shutdown()

asyncio.run(main())
PY
