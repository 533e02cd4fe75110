# FastStream 0.7.8, with its middleware for OpenTelemetry (opentelemetry-sdk 1.45.2)
#
# Guesses, before it ran:
# 1. A dict is JSON with the header content-type application/json, a text text/plain, bytes none; each has correlation_id.
# 2. `reply_to` is lost in a stream; a header of the program's is there as given.
# 3. With the middleware there is `traceparent` (and `baggage` where there is one).
# 4. A row of ours without content-type reaches a handler of a dict when it is JSON, and one of str when it is text.
# 5. A row of ours with `traceparent` begins a new trace with a link to it.
# 6. A handler of a pydantic model that a row does not fit: an error is logged, and the row is delivered again and again,
#    since FastStream 0.6 on does not acknowledge it.
# Missed: 1: bytes have an empty content-type, and all have Nats-Expected-Stream. 5: the trace goes on. 6: it is terminated,
#    and never delivered again.
. "$(dirname "$0")/with.sh"
PACKAGES=('faststream[nats,otel]==0.7.8' nats-py==2.16.0 opentelemetry-sdk==1.45.2)

ours stream S 's.>'
python_with "${PACKAGES[@]}" <<'PY'
import asyncio, os
from faststream.nats import NatsBroker
from faststream.nats.opentelemetry import NatsTelemetryMiddleware
from opentelemetry.sdk.trace import TracerProvider

async def publish(**options):
    async with NatsBroker(os.environ["NATS_URL"], **options) as broker:
        yield broker

async def main():
    async with NatsBroker(os.environ["NATS_URL"]) as broker:
        for name, body in {"dict": {"a": 1}, "text": "hello", "bytes": b"hello", "number": 5}.items():
            await broker.publish(body, f"s.{name}", stream="S", correlation_id="c")
        await broker.publish({"a": 1}, "s.headers", stream="S", correlation_id="c", headers={"tenant": "eu"})
    async with NatsBroker(os.environ["NATS_URL"], middlewares=[NatsTelemetryMiddleware(tracer_provider=TracerProvider())]) as broker:
        await broker.publish({"a": 1}, "s.traced", stream="S", correlation_id="c")

asyncio.run(main())
PY
say stream
ours read stream=S

ours stream T 't.>'
ours write stream=T <<'ROWS'
{"subject": "t.json", "payload": "{\"a\": 1}"}
{"subject": "t.text", "payload": "hello"}
{"subject": "t.typed", "payload": "hello", "headers": {"content-type": ["application/json"]}}
{"subject": "t.traced", "payload": "{}", "headers": {"traceparent": ["00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"]}}
ROWS
say what it reads of ours
python_with "${PACKAGES[@]}" <<'PY'
import asyncio, logging, os
from faststream.nats import JStream, NatsBroker

logging.disable(logging.CRITICAL)
from faststream.nats.opentelemetry import NatsTelemetryMiddleware
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

seen = []
broker = NatsBroker(os.environ["NATS_URL"], middlewares=[NatsTelemetryMiddleware(tracer_provider=TracerProvider())])
stream = JStream("T", declare=False)

@broker.subscriber("t.json", stream=stream, durable="json", deliver_policy="all")
async def on_dict(body: dict):
    seen.append(("dict", body))

@broker.subscriber("t.text", stream=stream, durable="text", deliver_policy="all")
async def on_text(body: str):
    seen.append(("text", body))

@broker.subscriber("t.typed", stream=stream, durable="typed", deliver_policy="all")
async def on_typed(body: dict):
    seen.append(("typed", body))

@broker.subscriber("t.traced", stream=stream, durable="traced", deliver_policy="all")
async def on_traced(body: dict):
    of = trace.get_current_span().get_span_context().trace_id
    seen.append(("traced", "continues" if of == 0x0AF7651916CD43DD8448EB211C80319C else "another trace"))

async def main():
    await broker.start()
    js = broker.config.broker_config.connection_state.stream
    for _ in range(200):
        if len(seen) >= 3:
            break
        await asyncio.sleep(0.1)
    await asyncio.sleep(2)
    for name in ("json", "text", "typed"):
        info = await js.consumer_info("T", name)
        seen.append((name, "waiting", info.num_ack_pending, "redelivered", info.num_redelivered, "acknowledged up to", info.ack_floor.consumer_seq))
    await broker.stop()
    for each in sorted(map(str, seen)):
        print(each)

asyncio.run(main())
PY
