# Devices by MQTT: paho-mqtt 2.2.0 to the server's own MQTT
#
# Guesses, before it ran:
# 1. Topic a/b is subject a.b; `a//b` is a./.b; `/a` is /.a; a dot in a topic is `//`.
# 2. Rows of QoS 0, 1 and 2 have the header Nmqtt-Pub, with their QoS.
# 3. A retained value is one more row in $MQTT_rmsgs, as the topic's last.
# 4. A device that is connected receives our rows, on stream or not, with topic a/b and QoS 0.
# 5. A device with a session (clean_session False, QoS 1) that is away misses our rows: only MQTT's own publishes are kept.
# 6. Our headers do not reach a device.
# Missed: none.
. "$(dirname "$0")/with.sh"
PACKAGES=(paho-mqtt==2.2.0)

ours stream DEVICES 'a.>' '/.>'
python_with "${PACKAGES[@]}" <<'PY'
import os
import paho.mqtt.client as mqtt
import paho.mqtt.publish as publish
port = int(os.environ["MQTT_PORT"])
for topic, qos, retain in [("a/b", 0, False), ("a/b", 1, False), ("a/b", 2, False), ("a/b", 1, True), ("a//b", 1, False),
                           ("/a", 1, False), ("a/b.c", 1, False)]:
    publish.single(topic, f"{topic} qos {qos}{' retained' if retain else ''}", qos=qos, retain=retain, hostname="127.0.0.1", port=port)
PY
say stream
ours read stream=DEVICES
say retained values
ours read 'stream=$MQTT_rmsgs' | sed -E 's/"sequence": [0-9]+/"sequence": n/; s/(ROrigin": ")[^"]*/\1<id>/'
say a device that is there, and one that comes back
python_with "${PACKAGES[@]}" <<'PY'
import os, time, subprocess
import paho.mqtt.client as mqtt
port = int(os.environ["MQTT_PORT"])
got = {"there": [], "away": []}

def device(name, clean):
    client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, client_id=name, clean_session=clean)
    subscribed = []
    client.on_subscribe = lambda *_: subscribed.append(1)
    client.on_message = lambda _c, _u, m: got[name].append((m.topic, m.payload.decode(), m.qos, m.retain))
    client.on_connect = lambda c, *_: c.subscribe("a/new", qos=1)
    client.connect("127.0.0.1", port)
    client.loop_start()
    for _ in range(100):
        if subscribed:
            return client
        time.sleep(0.1)
    raise SystemExit("not subscribed")

there, away = device("there", True), device("away", False)
away.disconnect(); away.loop_stop()
write = [os.environ["PYTHON"], "-m", "tests.neighbours.ours", os.environ["NATS_URL"], "write"]
row = b'{"subject": "a.new", "payload": "ours", "headers": {"k": ["v"]}}'
subprocess.run([*write, "stream=DEVICES"], input=row, check=True, cwd=os.environ["ROOT"], stdout=subprocess.DEVNULL)
import paho.mqtt.publish as publish
publish.single("a/new", "a device's", qos=1, hostname="127.0.0.1", port=port)
for _ in range(100):
    if len(got["there"]) == 2:
        break
    time.sleep(0.1)
away = device("away", False)
for _ in range(30):
    if len(got["away"]) == 2:
        break
    time.sleep(0.1)
print(got)
there.disconnect(); away.disconnect()
PY
