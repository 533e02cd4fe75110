# nats.rs: async-nats 0.51.0
#
# Guesses, before it ran:
# 1. `Publish` with message_id, expected_stream, expected_last_sequence gives these three headers; ttl "600".
# 2. `kv.create` leaves `Nats-Expected-Last-Subject-Sequence: 0`; with create_with_ttl also Nats-TTL.
# 3. The default bucket has deny_delete, discard new and a window of two minutes.
# 4. An object put from a reader has chunks of 128 KiB; `add_link` a link with bucket and name.
# 5. It reads a key, an object and a deletion of ours as its own; `get` of a deleted key is None.
# Missed: none.
. "$(dirname "$0")/with.sh"
CRATES=('async-nats = "=0.51.0"' 'futures = "0.3"' 'bytes = "1"'
    'tokio = { version = "1", features = ["rt", "macros", "time", "io-util"] }')

rust_with "${CRATES[@]}" <<'RUST'
use async_nats::jetstream::{self, kv, object_store, stream};
use async_nats::HeaderMap;
use std::time::Duration;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let client = async_nats::connect(std::env::var("NATS_URL")?).await?;
    let js = jetstream::new(client);
    js.create_stream(stream::Config { name: "S".into(), subjects: vec!["s.>".into()], allow_message_ttl: true, ..Default::default() }).await?;
    js.publish("s.plain", "1".into()).await?.await?;
    let mut headers = HeaderMap::new();
    headers.append("a", "1");
    headers.append("a", "2");
    let publish = jetstream::message::PublishMessage::build().headers(headers).payload("2".into()).message_id("m1")
        .expected_stream("S").expected_last_sequence(1).ttl(Duration::from_secs(600));
    js.send_publish("s.headers", publish).await?.await?;
    let kv = js.create_key_value(kv::Config { bucket: "B".into(), history: 5, limit_markers: Some(Duration::from_secs(600)), ..Default::default() }).await?;
    kv.put("put", "v".into()).await?;
    kv.create_with_ttl("created", "v".into(), Duration::from_secs(600)).await?;
    kv.update("put", "w".into(), 1).await?;
    kv.put("deleted", "v".into()).await?;
    kv.delete("deleted").await?;
    kv.put("purged", "v".into()).await?;
    kv.purge("purged").await?;
    let o = js.create_object_store(object_store::Config { bucket: "O".into(), ..Default::default() }).await?;
    let meta = object_store::ObjectMetadata { name: "a.txt".into(), description: Some("text".into()),
        headers: Some({ let mut h = HeaderMap::new(); h.append("a", "b"); h }), metadata: [("k".to_string(), "v".to_string())].into(), ..Default::default() };
    let info = o.put(meta, &mut "hello".as_bytes()).await?;
    o.add_link("link", &info).await?;
    Ok(())
}
RUST
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
rust_with "${CRATES[@]}" <<'RUST'
use async_nats::jetstream;
use futures::TryStreamExt;
use tokio::io::AsyncReadExt;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let client = async_nats::connect(std::env::var("NATS_URL")?).await?;
    let js = jetstream::new(client);
    let m = js.get_stream("S").await?.get_last_raw_message_by_subject("s.ours").await?;
    println!("{} {:?} {:?} {:?}", m.subject, m.payload, m.headers.get_all("two").map(|v| v.as_str()).collect::<Vec<_>>(), m.headers.get("Nats-Msg-Id").map(|v| v.as_str()));
    let kv = js.get_key_value("B").await?;
    let mut keys: Vec<String> = kv.keys().await?.try_collect().await?;
    keys.sort();
    println!("{:?} {:?} put: {:?}", kv.get("ours").await?, keys, kv.get("put").await?);
    let mut object = js.get_object_store("O").await?.get("ours.txt").await?;
    let mut content = String::new();
    object.read_to_string(&mut content).await?;
    println!("{} {:?}", content, object.info.digest);
    Ok(())
}
RUST
