# Debezium 3.6.1: its engine with PostgreSQL; what Debezium Server does with each change, in a few lines after its source
# (NatsJetStreamChangeConsumer at debezium-server a2f7135), as Maven Central does not have the server; jnats 2.26.0
#
# Guesses, before it ran:
# 1. The subject is <topic.prefix>.<schema>.<table>.
# 2. The payload is {"schema": …, "payload": {"before", "after", "source", "op", …}}; op is r, c, u or d.
# 3. A deletion is one row with op d and without `after`; the tombstone after it is not written.
# 4. The headers are four of `__debezium.context.…`, each a JSON text with its schema (as seen before).
# 5. The change's key is in no column.
# Missed: none.
. "$(dirname "$0")/with.sh"
bin=$(ls -d /usr/lib/postgresql/*/bin | tail -1)
PG_PORT=$("$PYTHON" -c 'from tests.servers import free_ports; print(free_ports(1)[0])')
export PG_PORT
as_postgres() { if [ "$(id -u)" = 0 ]; then su postgres -c "$*"; else bash -c "$*"; fi; }
store=$(as_postgres mktemp -d)
trap 'as_postgres "$bin/pg_ctl -D $store/data -m immediate stop" >/dev/null 2>&1; rm -rf "$store"' EXIT
as_postgres "$bin/initdb -D $store/data -U postgres -A trust" >/dev/null 2>&1
as_postgres "$bin/pg_ctl -D $store/data -w -o '-p $PG_PORT -h 127.0.0.1 -k $store -c wal_level=logical' start" >/dev/null 2>&1
sql() { "$bin/psql" -q -h 127.0.0.1 -p "$PG_PORT" -U postgres -c "$1"; }
sql 'CREATE TABLE orders (id INT PRIMARY KEY, item TEXT)'
sql "INSERT INTO orders VALUES (1, 'tea')"

ours stream CHANGES 'shop.>'
java_with io.debezium:debezium-embedded:3.6.1.Final io.debezium:debezium-connector-postgres:3.6.1.Final io.nats:jnats:2.26.0 <<'JAVA' 2>"$WORK/log" || { tail -20 "$WORK/log" >&2; exit 1; }
import io.debezium.engine.*;
import io.debezium.engine.format.*;
import io.nats.client.*;
import io.nats.client.impl.Headers;
import java.sql.DriverManager;
import java.util.Properties;
import java.util.concurrent.*;

class Program {
    static CountDownLatch snapshot = new CountDownLatch(1), all = new CountDownLatch(5);

    public static void main(String[] args) throws Exception {
        Connection nc = Nats.connect(System.getenv("NATS_URL"));
        JetStream js = nc.jetStream();
        String port = System.getenv("PG_PORT");
        Properties p = new Properties();
        p.setProperty("name", "shop");
        p.setProperty("connector.class", "io.debezium.connector.postgresql.PostgresConnector");
        p.setProperty("offset.storage", "org.apache.kafka.connect.storage.MemoryOffsetBackingStore");
        p.setProperty("topic.prefix", "shop");
        p.setProperty("plugin.name", "pgoutput");
        p.setProperty("database.hostname", "127.0.0.1");
        p.setProperty("database.port", port);
        p.setProperty("database.user", "postgres");
        p.setProperty("database.password", "x");
        p.setProperty("database.dbname", "postgres");
        var engine = DebeziumEngine.create(KeyValueHeaderChangeEventFormat.of(Json.class, Json.class, Json.class), "io.debezium.embedded.async.ConvertingAsyncEngineBuilderFactory")
            .using(p).notifying((records, committer) -> {
                for (ChangeEvent<String, String> record : records) {
                    if (record.value() != null) {
                        Headers headers = new Headers();
                        for (Header<?> header : record.headers()) headers.add(header.getKey(), (String) header.getValue());
                        try { js.publish(record.destination(), headers, record.value().getBytes()); }
                        catch (Exception e) { throw new RuntimeException(e); }
                    } else {
                        System.out.println("not written: the tombstone of " + record.key().replaceAll(".*\"payload\":", ""));
                    }
                    committer.markProcessed(record);
                    snapshot.countDown();
                    all.countDown();
                }
                committer.markBatchFinished();
            }).build();
        Executors.newSingleThreadExecutor().execute(engine);
        if (!snapshot.await(60, TimeUnit.SECONDS)) throw new IllegalStateException("no snapshot");
        try (var c = DriverManager.getConnection("jdbc:postgresql://127.0.0.1:" + port + "/postgres", "postgres", "x"); var s = c.createStatement()) {
            s.execute("INSERT INTO orders VALUES (2, 'milk')");
            s.execute("UPDATE orders SET item = 'oat milk' WHERE id = 2");
            s.execute("DELETE FROM orders WHERE id = 2");
        }
        if (!all.await(60, TimeUnit.SECONDS)) throw new IllegalStateException("not all changes came");
        engine.close();
        nc.close();
        System.exit(0);
    }
}
JAVA
say stream
ours read stream=CHANGES | "$PYTHON" -c '
import json, sys
for line in sys.stdin:
    row = json.loads(line)
    change = json.loads(row["payload"])
    print(row["subject"], sorted(change), {k: change["payload"][k] for k in ("op", "before", "after")})
    print("  ", {k: json.loads(v)["payload"] for k, v in row["headers"].items()})
'
