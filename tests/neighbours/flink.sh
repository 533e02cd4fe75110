# Flink 1.20.0 with Synadia's connector, flink-connector-nats 2.1.4
#
# Guesses, before it ran:
# 1. NatsSink publishes and does not wait. JetStreamSink waits for each acknowledgement; a refusal fails the job.
# 2. No headers, no message id: a job that goes on from a checkpoint stores twice. A row for two subjects is published to both.
# 3. JetStreamSource by default: an ordered consumer, nothing is acknowledged, nothing stays.
# 4. With AckAll: a durable consumer, which stays; acknowledged when a checkpoint is complete.
# 5. It hands on the payload only; an empty payload is an empty text.
# Missed: 4: it has no name that stays, and goes five seconds after the job. And nobody had guessed that rows come again every
#    30 s between checkpoints.
. "$(dirname "$0")/with.sh"
PACKAGES=(io.synadia:flink-connector-nats:2.1.4 org.apache.flink:flink-connector-base:1.20.0 org.slf4j:slf4j-nop:2.0.17)
export JDK_JAVA_OPTIONS="--add-opens java.base/java.util=ALL-UNNAMED --add-opens java.base/java.lang=ALL-UNNAMED"

ours stream S 's.>'
ours stream F 'f.>' max_msgs=1 discard='"new"'
java_with "${PACKAGES[@]}" <<'JAVA' 2>"$WORK/err" || { cat "$WORK/err"; exit 1; }
import io.synadia.flink.message.Utf8StringSinkConverter;
import io.synadia.flink.sink.*;
import java.util.*;
import org.apache.flink.api.connector.sink2.Sink;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;

public class Program {
    static Properties connection() {
        Properties properties = new Properties();
        properties.setProperty("io.nats.client.url", System.getenv("NATS_URL"));
        return properties;
    }

    static Sink<String> acknowledged(String... subjects) {
        return new JetStreamSinkBuilder<String>().connectionProperties(connection()).subjects(subjects)
            .sinkConverter(new Utf8StringSinkConverter()).build();
    }

    static Sink<String> core(String... subjects) {
        return new NatsSinkBuilder<String>().connectionProperties(connection()).subjects(subjects)
            .sinkConverter(new Utf8StringSinkConverter()).build();
    }

    static void run(String name, Sink<String> sink) {
        StreamExecutionEnvironment job = StreamExecutionEnvironment.createLocalEnvironment(1, new Configuration());
        job.fromData("row", "").sinkTo(sink);
        try {
            job.execute();
            System.out.println(name + ": finished");
        } catch (Exception e) {
            Throwable cause = e;
            while (cause.getCause() != null) cause = cause.getCause();
            System.out.println(name + ": failed, " + cause.getMessage().replaceFirst("^[\\w.]+: ", ""));
        }
    }

    public static void main(String[] arguments) {
        run("to two subjects", acknowledged("s.a", "s.b"));
        run("to a full stream", acknowledged("f.a"));
        run("to a full stream, core", core("f.a"));
        run("to no stream", acknowledged("nowhere"));
        System.exit(0);
    }
}
JAVA
say stream
ours read stream=S

ours stream T 't.>'
ours write stream=T <<'ROWS'
{"subject": "t.a", "payload": "two", "headers": {"tenant": ["eu", "us"]}}
{"subject": "t.a", "payload": ""}
{"subject": "t.a", "payload": "last"}
ROWS
ours stream Q 'q.>' retention='"workqueue"'
say what it reads of ours
java_with "${PACKAGES[@]}" <<'JAVA' 2>"$WORK/err" || { cat "$WORK/err"; exit 1; }
import io.synadia.flink.message.Utf8StringSourceConverter;
import io.synadia.flink.source.*;
import java.util.*;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;

public class Program {
    static void run(String stream, AckBehavior of) {
        Properties connection = new Properties();
        connection.setProperty("io.nats.client.url", System.getenv("NATS_URL"));
        StreamExecutionEnvironment job = StreamExecutionEnvironment.createLocalEnvironment(1, new Configuration());
        if (stream.equals("T")) job.enableCheckpointing(500); // with checkpoints, a job that fails is started again for ever
        job.fromSource(new JetStreamSourceBuilder<String>().connectionProperties(connection)
            .sourceConverter(new Utf8StringSourceConverter())
            .setSubjectConfigurations(new JetStreamSubjectConfiguration.Builder().streamName(stream)
                .subject(stream.toLowerCase() + ".>").ackBehavior(of).maxMessagesToRead(3).build())
            .build(), WatermarkStrategy.noWatermarks(), "nats").print(of.toString());
        try {
            job.execute();
        } catch (Exception e) {
            Throwable cause = e;
            while (cause.getCause() != null) cause = cause.getCause();
            System.out.println(stream + ": failed, " + cause.getMessage().replaceFirst("^[\\w.]+: ", ""));
        }
    }

    public static void main(String[] arguments) {
        run("T", AckBehavior.NoAck);
        run("Q", AckBehavior.AckAll);
        run("T", AckBehavior.AckAll);
        System.exit(0);
    }
}
JAVA
ours consumers T
