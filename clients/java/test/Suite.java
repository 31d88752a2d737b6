import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Objects;
import java.util.UUID;
import java.util.concurrent.atomic.AtomicBoolean;
import org.postgresql.PGConnection;
import outbox.Message;
import outbox.Outbox;
import outbox.Outbox.New;
import outbox.Outbox.Options;
import outbox.Worker;

/** The suite of the Java client: Suite produce | send | drain | worker; see ../../test/run.py. */
public class Suite {
    static final UUID TENANT = UUID.fromString("00000000-0000-4000-8000-0000000000aa");
    static final UUID GIVEN = UUID.fromString("01234567-0000-4000-8000-000000000042");
    static final UUID STREAM = UUID.fromString("00000000-0000-4000-8000-000000000007");

    static synchronized void say(Object... words) {
        StringBuilder line = new StringBuilder();
        for (Object word : words) line.append(line.length() > 0 ? " " : "").append(word);
        System.out.println(line);
        System.out.flush();
    }

    static void check(String name, Object got, Object expected) {
        say(Objects.equals(got, expected) ? "ok" : "not ok", "-", name);
        if (!Objects.equals(got, expected)) say("# got", got, "not", expected);
    }

    static String env(String name, String otherwise) {
        return Objects.requireNonNullElse(System.getenv(name), otherwise);
    }

    static Connection connect() throws SQLException {
        return DriverManager.getConnection("jdbc:postgresql://" + env("PGHOST", "localhost") + ":" + env("PGPORT", "5432")
            + "/" + env("PGDATABASE", "postgres"), env("PGUSER", "postgres"), "");
    }

    static void execute(Connection conn, String sql) throws SQLException {
        try (Statement statement = conn.createStatement()) {
            statement.execute(sql);
        }
    }

    static void produce() throws Exception {
        Connection conn = connect();
        conn.setAutoCommit(false);
        Outbox.enqueue(conn, "p.rolled-back", "x");
        conn.rollback();
        execute(conn, "INSERT INTO orders VALUES ('java')");
        Outbox.enqueue(conn, "p.committed", "{\"order\": 7}");
        Outbox.enqueue(conn, "p.text", "plain \"text\" é");
        UUID made = Outbox.enqueue(conn, "p.options", "x", new Options().correlationId("c-1").namespace("shop")
            .tenantId(TENANT).dueTime(Instant.parse("2030-01-02T03:04:05Z"))
            .expiresAt(Instant.parse("2031-01-02T03:04:05Z"))
            .dedupeKey(TENANT.toString().replace("-", "") + "/k").streamId(STREAM).messageId(GIVEN)
            .header("region", "eu").dedupeFor(Duration.ofHours(1)).onDuplicate("keep").priority(1)
            .traceparent("00-argument"));
        Outbox.enqueue(conn, "p.trace", "x");
        Outbox.enqueue(conn, "p.own", "x", new Options().header("traceparent", "own"));
        conn.commit();
        check("enqueue answers the message_id", made, GIVEN);
        List<Outbox.Result> rows = Outbox.enqueueBatch(conn, List.of(new New("p.batch", "one"),
            new New("p.batch", "{\"n\": 2}", new Options().dedupeKey("twin")),
            new New("p.batch", "three", new Options().dedupeKey("twin"))));
        check("a batch says what is new", rows.get(1).enqueued() + rows.get(1).outcome() + rows.get(2).enqueued()
            + rows.get(2).outcome(), "trueenqueuedfalsekept");
        check("and whose a key is", rows.get(1).messageId(), rows.get(2).messageId());
        Outbox.publish(conn, "p.news", "first");
        rows = Outbox.publishBatch(conn, List.of(new New("p.news", "2"), new New("p.news", "3")));
        check("publishBatch counts deliveries", rows.get(0).deliveries() + rows.get(1).deliveries(), 2);
        conn.commit();
        conn.close();
    }

    /** Lines of run.py: how a transaction ends, and its messages, as topic,payload,stream. */
    static void send() throws Exception {
        Connection conn = null;
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split(" ");
            List<New> messages = new ArrayList<>();
            for (int i = 1; i < words.length; i++) {
                String[] parts = words[i].split(",");
                Options options = new Options();
                messages.add(new New(parts[0], parts[1],
                    parts[2].equals("-") ? options : options.streamId(UUID.fromString(parts[2]))));
            }
            try {
                if (conn == null) {
                    conn = connect();
                    // otherwise the driver prepares COMMIT after some time, which PgBouncer does not bear
                    conn.unwrap(PGConnection.class).setPrepareThreshold(0);
                    conn.setAutoCommit(false);
                }
                New first = messages.remove(0);
                if (first.topic().startsWith("pub.")) {
                    Outbox.publish(conn, first.topic(), first.payload(), first.options());
                    Outbox.publishBatch(conn, messages);
                } else {
                    Outbox.enqueue(conn, first.topic(), first.payload(), first.options());
                    Outbox.enqueueBatch(conn, messages);
                }
                if (words[0].equals("commit")) conn.commit();
                else conn.rollback();
            } catch (SQLException error) {
                say("failed", error.getSQLState());
                conn = null;
            }
        }
    }

    static void drain() throws Exception {
        Connection conn = connect();
        List<String> seen = Collections.synchronizedList(new ArrayList<>()), order = new ArrayList<>();
        Worker.Options options = new Worker.Options();
        options.concurrency = 2;
        Worker worker = new Worker(Suite::connect, options);
        worker.handle("d.ok", message -> seen.add(message.payload));
        worker.handle("d.fail", message -> { throw new Worker.Permanent("no such order", 4); });
        worker.handle("d.retry", message -> { if (message.attempts == 1) throw new Worker.Retry("later", 3600.0); });
        worker.handle("d.stream", message -> {
            order.add(message.payload);
            if (order.size() == 1) throw new Worker.Retry("again", 0.0);
        });
        for (String payload : List.of("1", "2")) Outbox.enqueue(conn, "d.stream", payload, new Options().streamId(STREAM));
        for (String payload : List.of("0", "1", "2")) Outbox.enqueue(conn, "d.ok", payload);
        Outbox.enqueue(conn, "d.ok", "in an hour", new Options().dueTime(Instant.now().plusSeconds(3600)));
        Outbox.enqueue(conn, "d.fail", "x");
        Outbox.enqueue(conn, "d.retry", "x");
        check("drain handles what is due", worker.drain(), 6);
        check("and nothing else", seen.stream().sorted().toList(), List.of("0", "1", "2"));
        try (Statement statement = conn.createStatement(); ResultSet row = statement.executeQuery(
                "SELECT last_error || failure_reason FROM outbox.messages WHERE topic = 'd.fail'")) {
            row.next();
            check("what is dead says why", row.getString(1), "no such order4");
        }
        check("a message once, and none of its stream after one that goes back", order, List.of("1"));
        check("the next drain goes on", worker.drain(), 2);
        check("in order", order, List.of("1", "1", "2"));
        check("time does not pass by itself", worker.drain(), 0);
        check("advance moves it", Outbox.advance(conn, Duration.ofSeconds(3660)), 2);
        check("and drain follows", worker.drain(), 2);
        check("to the end", seen.get(3), "in an hour");
        conn.close();
    }

    static void slow(Message message, double seconds) throws InterruptedException {
        try {
            Thread.sleep((long) (1000 * seconds));
        } catch (InterruptedException interrupted) {
            say("cancelled", message.id);
            throw interrupted;
        }
        say("handled", message.messageId, message.topic, message.attempts);
    }

    static Worker.Handler first(Worker.Handler otherwise) {
        return message -> {
            if (message.attempts == 1) otherwise.handle(message);
            else slow(message, 0);
        };
    }

    static void effect(Message message, Connection conn) throws SQLException {
        execute(conn, "INSERT INTO effects VALUES ('" + message.messageId + "', " + message.attempts + ")");
    }

    static void handlers(Worker worker) {
        AtomicBoolean repeated = new AtomicBoolean();
        worker.handle("w.ok", message -> slow(message, 0));
        worker.handle("w.trace", message -> say("trace", message.traceparent));
        worker.handleInTransaction("w.tx", Suite::effect, 0);
        worker.handleInTransaction("w.serial", (message, conn) -> {
            effect(message, conn);
            if (!repeated.getAndSet(true)) execute(conn, "DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = '40001'; END $$");
        }, 0);
        worker.handleInTransaction("w.txfail", (message, conn) -> {
            effect(message, conn);
            if (message.attempts == 1) throw new IllegalStateException(message.payload);
        }, 0);
        worker.handle("w.text", message -> {
            throw new Worker.Permanent("\0" + "é".repeat(499) + "\ud800" + "é".repeat(1000), 4);
        });
        worker.handle("w.reason", message -> { throw new Worker.Permanent("no such reason", 1_000_000_000); });
        worker.handle("w.odd", first(message -> { throw new StackOverflowError(); }));
        worker.handle("w.permanent", message -> { throw new Worker.Permanent("no such order", 4); });
        worker.handle("w.retry", first(message -> { throw new Worker.Retry("later", 0.2); }));
        worker.handle("w.error", first(message -> { throw new IllegalStateException(message.payload); }));
        worker.handle("w.slow", message -> slow(message, Double.parseDouble(message.payload.replaceAll("[^0-9.]", ""))));
        worker.handle("w.timeout", first(message -> slow(message, 5)),
            Double.parseDouble(env("TIMEOUT_SECONDS", "0.3")));
        worker.handle("w.stream", message -> {
            say("stream", message.payload);
            Thread.sleep(20);
            if (message.payload.equals("3") && message.attempts == 1) throw new Worker.Retry("again", 0.0);
            say("passed", message.payload);
        });
    }

    static void hook(Worker.Event e) {
        switch (e.name()) {
            case "claimed" -> say("event claimed", e.count(), e.asked());
            case "settled" -> say("event settled", e.count(), e.lost());
            case "finished" -> say("event finished", e.message().id, e.outcome());
            case "lost" -> say("event lost", e.message().id);
            default -> say("event", e.name(), e.error());
        }
    }

    static void work() throws Exception {
        Worker.Options options = new Worker.Options();
        options.concurrency = Integer.parseInt(env("CONCURRENCY", "4"));
        options.leaseSeconds = Integer.parseInt(env("LEASE_SECONDS", "30"));
        options.shutdownSeconds = Double.parseDouble(env("SHUTDOWN_SECONDS", "10"));
        options.subscription = System.getenv("SUBSCRIPTION");
        options.hook = Suite::hook;
        options.wrap = (message, call) -> {
            say("begin", message.id, message.topic);
            call.call();
        };
        Worker worker = new Worker(Suite::connect, options);
        if (options.subscription == null) handlers(worker);
        else worker.handle("*", m -> say("delivered", m.subscription, m.publishedId, m.payload));
        worker.run();
        say("ended");
        Runtime.getRuntime().halt(0);   // a virtual machine that was ended by SIGTERM says 143
    }

    public static void main(String[] arguments) throws Exception {
        switch (arguments[0]) {
            case "produce" -> produce();
            case "send" -> send();
            case "drain" -> drain();
            default -> work();
        }
    }
}
