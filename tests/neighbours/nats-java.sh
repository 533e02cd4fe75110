# nats.java: io.nats:jnats 2.26.0
#
# Guesses, before it ran:
# 1. PublishOptions give Nats-Msg-Id, Nats-Expected-Stream, Nats-Expected-Last-Sequence; a message ttl Nats-TTL as "600s".
# 2. `create` leaves `Nats-Expected-Last-Subject-Sequence: 0`.
# 3. jnats refuses a header with an underscore or a space in its name; header values are trimmed.
# 4. An object's chunk size is 128 KiB; its description has `options` with max_chunk_size.
# 5. It reads a key, an object and a deletion of ours as its own; `get` of a deleted key is null.
# Missed: 3: an underscore is taken; blanks around values are lost. Not looked at: 4.
. "$(dirname "$0")/with.sh"
PACKAGES=(io.nats:jnats:2.26.0)

java_with "${PACKAGES[@]}" <<'JAVA'
import io.nats.client.*;
import io.nats.client.api.*;
import io.nats.client.impl.*;
import java.time.Duration;

class Program {
    public static void main(String[] args) throws Exception {
        Connection nc = Nats.connect(System.getenv("NATS_URL"));
        nc.jetStreamManagement().addStream(StreamConfiguration.builder().name("S").subjects("s.>").allowMessageTtl(true).build());
        JetStream js = nc.jetStream();
        js.publish("s.plain", "1".getBytes());
        Headers h = new Headers().add("a", "1", "2").add("b_c", " spaced ");
        js.publish("s.headers", h, null, PublishOptions.builder().messageId("m1").expectedStream("S").expectedLastSequence(1).messageTtlSeconds(600).build());
        nc.keyValueManagement().create(KeyValueConfiguration.builder().name("B").maxHistoryPerKey(5).limitMarker(Duration.ofMinutes(10)).build());
        KeyValue kv = nc.keyValue("B");
        kv.put("put", "v");
        kv.create("created", "v".getBytes(), MessageTtl.seconds(600));
        kv.update("put", "w".getBytes(), 1);
        kv.put("number", 7);
        kv.put("deleted", "v"); kv.delete("deleted");
        kv.put("purged", "v"); kv.purge("purged");
        nc.objectStoreManagement().create(ObjectStoreConfiguration.builder().name("O").build());
        ObjectStore o = nc.objectStore("O");
        ObjectInfo info = o.put(ObjectMeta.builder("a.txt").description("text").headers(new Headers().add("a", "b")).build(),
            new java.io.ByteArrayInputStream("hello".getBytes()));
        o.addLink("link", info);
        nc.close();
    }
}
JAVA
say stream
ours read stream=S
say bucket
ours read bucket=B history=true ignoreDeletes=false
ours config KV_B allow_direct allow_msg_ttl deny_delete deny_purge discard duplicate_window max_msgs_per_subject
say objects
ours read objectStore=O
ours config OBJ_O allow_direct discard max_msg_size allow_rollup_hdrs

ours write stream=S <<'ROWS'
{"subject": "s.ours", "payload": "text", "headers": {"two": ["1", "2"]}, "msg_id": "id"}
ROWS
ours write bucket=B <<'ROWS'
{"key": "ours", "value": "v"}
{"key": "put", "operation": "DEL"}
ROWS
ours write objectStore=O <<'ROWS'
{"name": "ours.txt", "content": "hello"}
ROWS
say what it reads of ours
java_with "${PACKAGES[@]}" <<'JAVA'
import io.nats.client.*;
import io.nats.client.api.*;
import java.util.*;

class Program {
    public static void main(String[] args) throws Exception {
        Connection nc = Nats.connect(System.getenv("NATS_URL"));
        MessageInfo m = nc.jetStreamManagement().getLastMessage("S", "s.ours");
        System.out.println(m.getSubject() + " " + new String(m.getData()) + " " + m.getHeaders().get("two") + " " + m.getHeaders().get("Nats-Msg-Id"));
        KeyValue kv = nc.keyValue("B");
        System.out.println(kv.get("ours").getValueAsString() + " " + new TreeSet<>(kv.keys()) + " put: " + kv.get("put"));
        java.io.ByteArrayOutputStream out = new java.io.ByteArrayOutputStream();
        ObjectInfo info = nc.objectStore("O").get("ours.txt", out);
        System.out.println(out + " " + info.getDigest());
        nc.close();
    }
}
JAVA
