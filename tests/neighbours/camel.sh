# Apache Camel, camel-nats 4.17.0 and camel-core 4.17.0
#
# Guesses, before it ran:
# 1. A producer with `jetstreamEnabled` does not notice a refusal, since `jetstreamAsync` is its default.
# 2. Camel's headers become headers of the row, without those of its own; a list is one text, `[a, b]`. No message id of its own.
# 3. A map as the body is an exception; no body is an empty payload.
# 4. The consumer is a pull durable of the given name, explicit; a route that throws refuses the message, which comes again.
# 5. A missing stream is created. Two values of a header of ours are a list.
# Missed: 1: the route gets the exception. 3: the other way round: a map is stored as Java's text of it. 4: a pull consumer gets
#    nothing; a push consumer acknowledges, whatever the route does; and the name has -durable behind it. 5: by consumers only.
. "$(dirname "$0")/with.sh"
PACKAGES=(org.apache.camel:camel-nats:4.17.0 org.apache.camel:camel-core:4.17.0 org.slf4j:slf4j-nop:2.0.17)

ours stream S 's.>'
ours stream F 'f.>' max_msgs=1 discard='"new"'
java_with "${PACKAGES[@]}" <<'JAVA'
import java.util.*;
import org.apache.camel.ProducerTemplate;
import org.apache.camel.impl.DefaultCamelContext;

public class Program {
    public static void main(String[] arguments) throws Exception {
        String options = "?servers=" + System.getenv("NATS_URL").substring(7) + "&jetstreamEnabled=true&jetstreamName=";
        DefaultCamelContext camel = new DefaultCamelContext();
        camel.start();
        ProducerTemplate template = camel.createProducerTemplate();
        Map<String, Object> headers = Map.of("tenant", "eu", "list", List.of("a", "b"), "Nats-Msg-Id", "7");
        Object[][] all = {{"s.text", "S", "text", headers}, {"s.map", "S", Map.of("a", 1), Map.of()}, {"s.none", "S", null, Map.of()},
            {"s.bytes", "S", new byte[] {0, (byte) 255}, Map.of()}, {"f.a", "F", "first", Map.of()}, {"f.a", "F", "refused", Map.of()},
            {"s.other", "F", "another stream", Map.of()}, {"nowhere", "S", "nowhere", Map.of()}};
        for (Object[] each : all) {
            try {
                template.sendBodyAndHeaders("nats:" + each[0] + options + each[1], each[2], (Map<String, Object>) each[3]);
            } catch (Exception e) {
                Throwable cause = e;
                while (cause.getCause() != null) cause = cause.getCause();
                System.out.println(each[0] + ": " + cause.getMessage());
            }
        }
        camel.stop();
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
{"subject": "t.a", "payload": "throws"}
{"subject": "t.a", "payload": "last"}
ROWS
say what it reads of ours, as a pull consumer and as a push consumer
java_with "${PACKAGES[@]}" <<'JAVA'
import java.util.*;
import org.apache.camel.builder.RouteBuilder;
import org.apache.camel.impl.DefaultCamelContext;

public class Program {
    static volatile boolean last;

    static DefaultCamelContext route(String options) throws Exception {
        DefaultCamelContext camel = new DefaultCamelContext();
        camel.addRoutes(new RouteBuilder() {
            public void configure() {
                from("nats:t.>?servers=" + System.getenv("NATS_URL").substring(7) + "&jetstreamEnabled=true&jetstreamName=T" + options)
                    .process(exchange -> {
                        String text = exchange.getMessage().getBody(String.class);
                        System.out.println(options + " " + text + " " + exchange.getMessage().getHeader("tenant"));
                        last = text.equals("last");
                        if (text.equals("throws")) throw new IllegalStateException();
                    });
            }
        });
        camel.start();
        return camel;
    }

    public static void main(String[] arguments) throws Exception {
        DefaultCamelContext pull = route("&durableName=pull"), push = route("&durableName=push&pullSubscription=false");
        for (int i = 0; i < 300 && !last; i++) Thread.sleep(100);
        Thread.sleep(2000);
        pull.stop();
        push.stop();
        System.exit(0);
    }
}
JAVA
ours consumers T
