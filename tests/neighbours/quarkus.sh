# Quarkus 3.33.2 with its extension for NATS JetStream, quarkus-messaging-nats-jetstream 3.30.3
#
# Guesses, before it ran:
# 1. The payload is JSON, bytes as they are; a header says the type. Nats-Msg-Id is an id of its own, and the same when it sends
#    again.
# 2. A refused row fails the sender's stage, and the rest goes on.
# 3. Streams that it makes keep what their limits say.
# 4. The consumer is a pull durable, explicit, of its configured name; it stays.
# 5. A row of ours without the type is handed on as bytes, or refused by itself.
# Missed: 1: another id each time. 3: they are interest streams: without a consumer a row is acknowledged and not kept. 5: it
#    stops the channel, and what is behind it waits.
. "$(dirname "$0")/with.sh"

quarkus() { # builds the program once, and runs it for some seconds
    local folder pom program
    pom='<project><modelVersion>4.0.0</modelVersion><groupId>x</groupId><artifactId>q</artifactId><version>1</version>
<properties><maven.compiler.source>17</maven.compiler.source><maven.compiler.target>17</maven.compiler.target>
<project.build.sourceEncoding>UTF-8</project.build.sourceEncoding></properties>
<dependencyManagement><dependencies><dependency><groupId>io.quarkus</groupId><artifactId>quarkus-bom</artifactId>
<version>3.33.2</version><type>pom</type><scope>import</scope></dependency></dependencies></dependencyManagement>
<dependencies><dependency><groupId>io.quarkiverse.reactivemessaging.nats-jetstream</groupId>
<artifactId>quarkus-messaging-nats-jetstream</artifactId><version>3.30.3</version></dependency></dependencies>
<build><plugins><plugin><groupId>io.quarkus</groupId><artifactId>quarkus-maven-plugin</artifactId><version>3.33.2</version>
<extensions>true</extensions><executions><execution><goals><goal>build</goal></goals></execution></executions></plugin></plugins></build>
</project>'
    program=$(cat)
    folder=$(place quarkus "$pom" "$program")
    mkdir -p "$folder/src/main/java" "$folder/src/main/resources"
    echo "$pom" >"$folder/pom.xml"
    echo "$program" >"$folder/src/main/java/Program.java"
    cat >"$folder/src/main/resources/application.properties" <<'PROPERTIES'
quarkus.messaging.nats.connection.servers=${NATS_URL}
quarkus.messaging.nats.trace=false
quarkus.otel.sdk.disabled=true
quarkus.log.level=OFF
quarkus.banner.enabled=false
quarkus.messaging.nats.streams.MADE.subjects=made
quarkus.messaging.nats.streams.S.subjects=s.a
quarkus.messaging.nats.streams.F.subjects=f.a
quarkus.messaging.nats.streams.T.subjects=t.a
quarkus.messaging.nats.streams.T.pull-consumers.c.consumer-configuration.durable=true
quarkus.messaging.nats.streams.T.pull-consumers.c.consumer-configuration.ack-wait=2s
mp.messaging.outgoing.out.connector=quarkus-jetstream
mp.messaging.outgoing.out.stream=S
mp.messaging.outgoing.out.subject=s.a
mp.messaging.outgoing.full.connector=quarkus-jetstream
mp.messaging.outgoing.full.stream=F
mp.messaging.outgoing.full.subject=f.a
mp.messaging.incoming.in.connector=quarkus-jetstream
mp.messaging.incoming.in.stream=T
mp.messaging.incoming.in.consumer=c
mp.messaging.incoming.in.retry-backoff=1000
PROPERTIES
    installed "$folder" mvn -q -B package
    timeout 200 java -jar "$folder/target/quarkus-app/quarkus-run.jar"
}

ours stream S s.a
ours stream F f.a max_msgs=1 discard='"new"'
ours stream T t.a
ours write stream=T <<'ROWS'
{"subject": "t.a", "payload": "\"typed\"", "headers": {"message.type": ["java.lang.String"], "tenant": ["eu", "us"]}}
{"subject": "t.a", "payload": "\"without\""}
{"subject": "t.a", "payload": "\"behind\"", "headers": {"message.type": ["java.lang.String"]}}
ROWS
quarkus <<'JAVA'
import io.quarkus.runtime.QuarkusApplication;
import io.quarkus.runtime.annotations.QuarkusMain;
import jakarta.enterprise.context.ApplicationScoped;
import jakarta.inject.Inject;
import java.util.*;
import java.util.concurrent.CompletionStage;
import org.eclipse.microprofile.reactive.messaging.*;

@QuarkusMain
public class Program implements QuarkusApplication {
    static final Set<String> handled = Collections.synchronizedSet(new TreeSet<>());
    @Inject @Channel("out") Emitter<Object> out;
    @Inject @Channel("full") Emitter<String> full;

    @ApplicationScoped
    public static class Handler {
        @Incoming("in")
        public void on(String text) {
            handled.add(text);
        }
    }

    static void sent(String name, CompletionStage<Void> stage) {
        try {
            stage.toCompletableFuture().join();
            System.out.println(name + ": sent");
        } catch (Exception e) {
            Throwable cause = e;
            while (cause.getCause() != null) cause = cause.getCause();
            System.out.println(name + ": failed, " + cause.getMessage());
        }
    }

    public int run(String... arguments) throws Exception {
        sent("map", out.send(Map.of("a", 1)));
        sent("text", out.send("hello"));
        sent("bytes", out.send(new byte[] {0, (byte) 255}));
        sent("first", full.send("first"));
        sent("refused", full.send("refused"));
        Thread.sleep(12_000); // six times the acknowledgement wait
        System.out.println("handled of ours: " + handled);
        return 0;
    }
}
JAVA
say stream
ours read stream=S
ours config MADE retention
ours consumers T
