# NestJS: @nestjs/microservices, core, common 12.1.1
#
# Guesses, before it ran:
# 1. `client.emit('o.x', {a: 1})` stores {"pattern":"o.x","data":{"a":1}} without headers: the program's object is in `data`.
# 2. `client.send` stores {"pattern":…,"data":…,"id":…}; its reply subject is not in a stream's row.
# 3. NatsRecordBuilder's headers are headers of the row.
# 4. A row of ours with a JSON object reaches an event handler as it is; {"data": …, "id": …} is unwrapped; a text is
#    an error of the log only (as seen before).
# Missed: none of these; but nobody had guessed that `send` is answered by the stream.
. "$(dirname "$0")/with.sh"
PACKAGES=(@nestjs/microservices@12.1.1 @nestjs/core@12.1.1 @nestjs/common@12.1.1 @nats-io/transport-node@3.4.0
    reflect-metadata@0.2.2 rxjs@7.8.2)

ours stream O 'o.>'
node_with "${PACKAGES[@]}" <<'JS'
import "reflect-metadata";
import { ClientProxyFactory, Transport, NatsRecordBuilder } from "@nestjs/microservices";
import { headers } from "@nats-io/transport-node";
import { firstValueFrom, catchError, of, timeout } from "rxjs";
const client = ClientProxyFactory.create({ transport: Transport.NATS, options: { servers: [process.env.NATS_URL] } });
await client.connect();
await firstValueFrom(client.emit("o.event", { a: 1 }), { defaultValue: null });
const h = headers(); h.set("tenant", "eu");
await firstValueFrom(client.emit("o.headers", new NatsRecordBuilder({ a: 2 }).setHeaders(h).build()), { defaultValue: null });
await firstValueFrom(client.emit("o.text", "hello"), { defaultValue: null });
await firstValueFrom(client.emit({ cmd: "x" }, { a: 3 }), { defaultValue: null });
console.log("answer:", JSON.stringify(await firstValueFrom(client.send("o.request", { a: 4 }).pipe(timeout(3000), catchError((e) => of(String(e.message ?? e)))))));
client.close();
process.exit(0);
JS
say stream
ours read stream=O
say what it reads of ours
node_with "${PACKAGES[@]}" <<'JS' 2>&1 | sed -E 's/.*(SyntaxError: [^,]*),.*/\1/'
import "reflect-metadata";
import { createRequire } from "node:module";
import { spawnSync } from "node:child_process";
const require = createRequire(import.meta.url);
const { NestFactory } = require("@nestjs/core");
const { Module, Controller } = require("@nestjs/common");
const { Transport, EventPattern, Payload } = require("@nestjs/microservices");
let last;
const done = new Promise((resolve) => (last = resolve));
class Events { onEvent(p) { console.log("handler:", JSON.stringify(p)); if (p.last) last(); } }
Reflect.decorate([EventPattern("o.ours")], Events.prototype, "onEvent", Object.getOwnPropertyDescriptor(Events.prototype, "onEvent"));
Payload()(Events.prototype, "onEvent", 0);
Reflect.decorate([Controller()], Events);
class App {}
Reflect.decorate([Module({ controllers: [Events] })], App);
const app = await NestFactory.createMicroservice(App, { transport: Transport.NATS, options: { servers: [process.env.NATS_URL] }, logger: false });
await app.listen();
const rows = ['{"id":7,"amount":5}', '{"id":7,"data":{"amount":6}}', '{"pattern":"other","data":1}', "hello", '{"last":1}'];
const input = rows.map((payload) => JSON.stringify({ subject: "o.ours", payload })).join("\n");
const write = ["-m", "tests.neighbours.ours", process.env.NATS_URL, "write", "stream=O"];
spawnSync(process.env.PYTHON, write, { input, cwd: process.env.ROOT, stdio: ["pipe", "ignore", "inherit"] });
await done;
process.exit(0);
JS
