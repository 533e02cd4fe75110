# nats-py 2.16.0
#
# Guesses, before it ran:
# 1. A message published with headers, msg id and an expectation has all of them as headers in the row.
# 2. `create` of a key leaves `Nats-Expected-Last-Subject-Sequence: 0` in the row's headers.
# 3. A key put with a ttl has `Nats-TTL` in seconds.
# 4. An object's description (metadata, headers) comes whole; what the user gave as headers is a map of lists.
# 5. It reads a key, an object and a deletion that we wrote as its own.
# 6. A header with two values that we wrote: it shows the last one only.
# Missed: 4: it has no metadata of objects.
. "$(dirname "$0")/with.sh"
PACKAGES=(nats-py==2.16.0)

python_with "${PACKAGES[@]}" <<'PY'
import asyncio, os
import nats
from nats.js.api import KeyValueConfig, ObjectMeta, ObjectStoreConfig

async def main():
    nc = await nats.connect(os.environ["NATS_URL"])
    js = nc.jetstream()
    await js.add_stream(name="S", subjects=["s.>"])
    await js.publish("s.plain", b"1")
    await js.publish("s.empty")
    await js.publish("s.headers", b"2", stream="S", headers={"Nats-Msg-Id": "m1", "Nats-Expected-Last-Sequence": "2", "A": "b"})
    kv = await js.create_key_value(KeyValueConfig(bucket="B", history=5))
    await kv.put("put", b"v")
    await kv.create("created", b"v", msg_ttl=600)
    await kv.update("put", b"w", last=1)
    await kv.create("deleted", b"v")
    await kv.delete("deleted")
    await kv.create("purged", b"v")
    await kv.purge("purged")
    obj = await js.create_object_store("O", ObjectStoreConfig(description="d"))
    await obj.put("a.txt", b"hello", meta=ObjectMeta(name="a.txt", description="text", headers={"A": "b"}))
    await nc.close()

asyncio.run(main())
PY
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
import asyncio, os
import nats

async def main():
    nc = await nats.connect(os.environ["NATS_URL"])
    js = nc.jetstream()
    m = await js.get_last_msg("S", "s.ours")
    print(m.subject, m.data, {k: v for k, v in m.headers.items()})
    kv = await js.key_value("B")
    print((await kv.get("ours")).value, sorted(await kv.keys()))
    try:
        print(await kv.get("put"))
    except Exception as error:
        print("put:", type(error).__name__)
    obj = await js.object_store("O")
    got = await obj.get("ours.txt")
    print(got.data, got.info.digest)
    await nc.close()

asyncio.run(main())
PY
