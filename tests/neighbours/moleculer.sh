# Moleculer 0.14.36, @moleculer/channels 0.1.8 with nats 2.29.3
#
# Guesses, before it ran:
# 1. The payload is JSON, the subject is the channel, headers are those given; no message id. It waits for acknowledgements:
#    a refusal is an error for the sender.
# 2. A stream is made for each channel, with _ for dots; the consumer is a push durable with the group's name, explicit, deliver
#    all; it stays.
# 3. A handler that throws refuses the message; it comes four times (`maxRetries` 3), and is dropped with a line in the log.
#    So is text that is no JSON, and an empty payload.
# 4. Of two values of a header the handler sees the first.
# Missed: 2: deliver new: rows from before its first start never come. 3: it comes three times, within milliseconds. 4: both.
#    And nobody had guessed that a message which the dead letters refuse is acknowledged.
. "$(dirname "$0")/with.sh"
PACKAGES=(@moleculer/channels@0.1.8 moleculer@0.14.36 nats@2.29.3)

moleculer() { # a service that hears orders.new, after it has sent some; ends when it has handled `last`
    SEND=$1 node_with "${PACKAGES[@]}" 2>/dev/null <<'JS' | grep -E '^(handled|failed)' | sed -E 's/("Nats-Msg-Id",\[")[^"]*/\1<id>/' | sort
import { createRequire } from "node:module";
const require = createRequire(import.meta.url);
const { ServiceBroker } = require("moleculer");
const { Middleware } = require("@moleculer/channels");
const connectionOptions = { servers: process.env.NATS_URL };
const middleware = Middleware({ adapter: { type: "NATS", options: { nats: { connectionOptions } } } });
const broker = new ServiceBroker({ nodeID: "node", logger: false, middlewares: [middleware] });
let last = false;
broker.createService({
	name: "worker",
	channels: {
		"orders.new": {
			group: "g",
			context: false,
			async handler(payload, raw) {
				console.log("handled", JSON.stringify(payload), raw.headers ? JSON.stringify([...raw.headers]) : "");
				if (payload.fails) throw new Error("cannot take it");
				if (payload.last) last = true;
			}
		}
	}
});
await broker.start();
for (const [channel, payload, options] of JSON.parse(process.env.SEND))
	await broker.sendToChannel(channel, payload, options).catch(e => console.log("failed", channel, e.chainedError?.message ?? e.message));
for (let i = 0; i < 300 && !last; i++) await new Promise(resolve => setTimeout(resolve, 100));
await broker.stop();
process.exit(0);
JS
}

ours stream F 'f.>' max_msgs=1 discard='"new"'
moleculer '[["orders.new", {"a": 1}, {"headers": {"tenant": "eu"}}], ["orders.new", {"fails": true}, {}], ["f.a", 1, {}], ["f.a", 2, {}],
    ["nowhere", 1, {}], ["orders.new", {"last": true}, {}]]'
say stream
ours read stream=orders_new
ours consumers orders_new
ours write stream=orders_new <<'ROWS'
{"subject": "orders.new", "payload": "{\"a\":2}", "headers": {"tenant": ["eu", "us"]}}
{"subject": "orders.new", "payload": "no JSON"}
{"subject": "orders.new", "payload": ""}
{"subject": "orders.new", "payload": "{\"last\":true}"}
ROWS
say what it reads of ours
moleculer '[]'
ours consumers orders_new
