package outbox;

import java.sql.Connection;
import java.sql.PreparedStatement;
import java.sql.SQLException;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Deque;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.ConcurrentLinkedDeque;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import java.util.function.Function;
import java.util.function.Predicate;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.postgresql.PGConnection;

/**
 * Runs handlers in threads. One whose lease is lost, or that takes too long, is interrupted.
 *
 * The thread that calls run settles and renews, and is the only one that changes what is in
 * hand; the thread that claims and those of handlers post to it what is to be done there.
 */
@SuppressWarnings("serial")
public final class Worker {
    /** Makes a new connection. */
    public interface Connector { Connection connect() throws SQLException; }

    public interface Handler { void handle(Message message) throws Exception; }

    /** Gets a connection in a transaction, in which the message is then acknowledged. */
    public interface TransactionHandler { void handle(Message message, Connection conn) throws Exception; }

    /** What happens; ../../README.md says which fields each event has. */
    public record Event(String name, Message message, String outcome, double seconds, int count, int asked,
                        int lost, String error) {}

    public interface Hook { void event(Event event); }

    public interface Call { void call() throws Exception; }

    public interface Wrap { void wrap(Message message, Call call) throws Exception; }

    /** The message can never be handled: it becomes a dead letter with this text. */
    public static final class Permanent extends Exception {
        final Integer reason;

        public Permanent(String text) { this(text, null); }

        public Permanent(String text, Integer reason) {
            super(text);
            this.reason = reason;
        }
    }

    /** The message is handed out again after so many seconds, or the server's backoff. */
    public static final class Retry extends Exception {
        final Double after;

        public Retry(String text) { this(text, null); }

        public Retry(String text, Double after) {
            super(text);
            this.after = after;
        }
    }

    /** Another worker has the message, or soon will have. */
    public static final class LeaseLost extends Exception {}

    private static final class TimedOut extends Exception {}

    /** The options, with their defaults. */
    public static final class Options {
        public int concurrency = 10, leaseSeconds = 30, waitMs = 20000, maxBatch = 100;
        public Integer maxAttempts;
        public String subscription, namespace;
        public UUID tenantId;
        public double shutdownSeconds = 25;
        public Hook hook = event -> {};
        public Wrap wrap = (message, call) -> call.call();
    }

    private static final String CLAIM = "SELECT " + Message.COLUMNS + " FROM outbox.claim(?::text::uuid,"
        + " ?::text::int, ?::text::int, ?::text, ?::text::text[], ?::text::uuid, ?::text::int,"
        + " ?::text::int, ?::text)";
    private static final String HELD =
        "unnest(?::text::uuid[], ?::text::bigint[], ?::text::int[]) AS held(owner, id, attempt)";
    private static final String ACK = "SELECT coalesce(sum(outbox.ack(owner, ids, attempts)), 0)"
        + " FROM (SELECT owner, array_agg(id), array_agg(attempt) FROM " + HELD + " GROUP BY owner)"
        + " AS own(owner, ids, attempts)";
    private static final String ACK_ONE =
        "SELECT outbox.ack_one(?::text::uuid, ?::text::bigint, ?::text::int, strict => true)";
    private static final String NACK = "SELECT outbox.nack_one(?::text::uuid, ?::text::bigint,"
        + " attempt => ?::text::int, error => ?::text, delay => ?::text::interval)";
    private static final String FAIL = "SELECT outbox.fail_one(?::text::uuid, ?::text::bigint,"
        + " attempt => ?::text::int, error => ?::text, reason => ?::text::int)";
    /** Renews; its rows are the leases that are lost. */
    private static final String RENEW = "SELECT id, attempt FROM " + HELD
        + " WHERE outbox.renew_one(owner, id, ?::text::int, attempt) = 0";
    private static final String RELEASE = "SELECT outbox.release_one(owner, id) FROM " + HELD;
    private static final String RELEASE_ALL = "SELECT outbox.release(?::text::uuid)";
    private static final Pattern REPEATABLE = Pattern.compile("08.*|40001|40P01|53300|57P0[123]");
    private static final long MS = 1_000_000;
    private static final int ACK_IDS = 100, MOST_UNSETTLED = 1000, TRANSACTION_TRIES = 3;

    private record Entry(Handler plain, TransactionHandler inTransaction, double timeoutSeconds) {}

    private record Statement(String sql, Object... values) {}

    /** A time to wait before another try, which becomes longer. */
    private static final class Delay {
        private long ms = 100;

        long next(boolean stopping) {
            long now = ThreadLocalRandom.current().nextLong(ms / 2, ms);
            ms = stopping ? 500 : Math.min(2 * ms, 5000);
            return now * MS;
        }
    }

    private final Connector connector;
    private final Options options;
    private final Map<String, Entry> handlers = new HashMap<>();
    private final LinkedBlockingQueue<Runnable> posts = new LinkedBlockingQueue<>();
    private final ConcurrentLinkedDeque<Connection> free = new ConcurrentLinkedDeque<>();
    private ExecutorService threads;
    private volatile Connection claimer;
    private volatile PreparedStatement claiming;
    private Connection settler;
    private String owner;
    private List<String> strays;        // owners of claims without an answer
    private List<Message> waiting, acks;
    private Set<Message> running;
    private Deque<Statement> calls;     // what fails or goes back
    private Set<String> retried;        // ids and streams, while draining
    private Delay claimDelay, settleDelay;
    private int target, handled;
    private boolean full, inClaim, draining, acksRepeated;
    private long claimedAt, claimAfter, acksSince, settleAfter, renewAt;
    private volatile long deadline;
    private volatile boolean stopping;
    private Exception error;

    public Worker(Connector connector, Options options) {
        this.connector = connector;
        this.options = options;
        options.maxBatch = Math.max(options.maxBatch, options.concurrency);
    }

    /** Have the handler run for the topic, or for all others if it is "*". A timeout of 0 is none. */
    public Worker handle(String topic, Handler handler, double timeoutSeconds) {
        handlers.put(topic, new Entry(handler, null, timeoutSeconds));
        return this;
    }

    public Worker handle(String topic, Handler handler) { return handle(topic, handler, 0); }

    /** The same in a transaction, with which the message is acknowledged. */
    public Worker handleInTransaction(String topic, TransactionHandler handler, double timeoutSeconds) {
        handlers.put(topic, new Entry(null, handler, timeoutSeconds));
        return this;
    }

    /** Work until SIGTERM, SIGINT or stop(). The virtual machine waits for it before it ends. */
    public void run() throws Exception {
        Thread main = Thread.currentThread();
        Thread hook = new Thread(() -> {
            stop();
            try {
                main.join((long) (1000 * options.shutdownSeconds) + 5000);
            } catch (InterruptedException ignored) {
                return;
            }
        });
        Runtime.getRuntime().addShutdownHook(hook);
        work(false);
        try {
            Runtime.getRuntime().removeShutdownHook(hook);
        } catch (IllegalStateException ending) {
            return;
        }
    }

    /** For tests: work until nothing is due, without waiting; how many were handled. */
    public int drain() throws Exception {
        work(true);
        return handled;
    }

    /** Begin to end run(), from any thread. Called twice, do not wait for handlers. */
    public void stop() {
        deadline = stopping ? 0 : System.nanoTime() + (long) (1000 * MS * options.shutdownSeconds);
        stopping = true;
        posts.add(() -> {});
    }

    private void work(boolean draining) throws Exception {
        if (handlers.isEmpty()) throw new IllegalStateException("no topic has a handler");
        this.draining = draining;
        owner = UUID.randomUUID().toString();
        strays = new ArrayList<>();
        waiting = new ArrayList<>();
        acks = new ArrayList<>();
        calls = new ArrayDeque<>();
        running = new LinkedHashSet<>();
        retried = new HashSet<>();
        claimDelay = new Delay();
        settleDelay = new Delay();
        target = options.concurrency;
        handled = 0;
        full = inClaim = acksRepeated = stopping = false;
        claimAfter = settleAfter = 0;
        deadline = Long.MAX_VALUE;
        error = null;
        posts.clear();
        renewAt = System.nanoTime() + third();
        threads = Executors.newCachedThreadPool(body -> {
            Thread thread = new Thread(body, "outbox");
            thread.setDaemon(true);
            return thread;
        });
        try {
            claimer = open();
            settler = open();
            while (!stopping || ((inClaim || !running.isEmpty()) && System.nanoTime() < deadline)) turn();
            leave();
        } finally {
            threads.shutdownNow();
            for (Connection conn : free) close(conn);
            free.clear();
            close(claimer);
            close(settler);
        }
        if (error != null) throw error;
    }

    private long third() { return 1000 * MS * options.leaseSeconds / 3; }

    /** One turn of the loop: begin what can be begun, send what is due, sleep until something is. */
    private void turn() throws InterruptedException {
        if (stopping) shutDown();
        expire();
        start();
        claimMore();
        settle();
        long due = acks.isEmpty() ? renewAt : Math.min(renewAt, acksSince + 5 * MS);
        due = Math.max(calls.isEmpty() ? due : 0, settleAfter);
        if (claimAfter > 0) due = Math.min(due, claimAfter);
        if (stopping) due = Math.min(due, System.nanoTime() + 50 * MS);
        for (Message message : running) if (message.outcome.get() == null) due = Math.min(due, message.deadline);
        Runnable post = posts.poll(Math.max(due - System.nanoTime(), 0), TimeUnit.NANOSECONDS);
        for (; post != null; post = posts.poll()) post.run();
    }

    private void fail(Exception failed) {
        if (error == null) error = failed;
        if (!stopping) stop();
    }

    /** End the waiting claim, and have what no handler has begun released. */
    private void shutDown() {
        PreparedStatement claim = claiming;
        if (claim != null) {
            try {
                claim.cancel();
            } catch (SQLException ignored) {
                abort(claimer);
            }
        }
        List<Message> left = drop(message -> true);
        if (!left.isEmpty()) calls.add(new Statement(RELEASE, parts(left)));
    }

    /** Cancel what has not ended, send what is left, and release all. */
    private void leave() throws InterruptedException {
        abort(inClaim ? claimer : null);
        for (Message message : running) if (judge(message, new LeaseLost())) message.cancel();
        acksSince = 0;
        for (boolean releasing = false; System.nanoTime() < deadline + 2000 * MS; ) {
            if (acks.isEmpty() && calls.isEmpty()) {
                if (releasing) return;
                releasing = true;
                strays.add(owner);
                for (String stray : strays) calls.add(new Statement(RELEASE_ALL, stray));
                strays.clear();
            }
            settle();
            if (System.nanoTime() < settleAfter) Thread.sleep(20);
        }
        fail(new SQLException("the server did not answer in time", "08006"));
    }

    private Connection open() throws SQLException {
        Connection conn = connector.connect();
        conn.setAutoCommit(true);
        // also of BEGIN and COMMIT: a prepared statement of the server is not there for the next client of PgBouncer
        conn.unwrap(PGConnection.class).setPrepareThreshold(0);
        return conn;
    }

    private static void close(Connection conn) {
        try {
            if (conn != null) conn.close();
        } catch (SQLException ignored) {
            return; // it has gone
        }
    }

    private static void abort(Connection conn) {
        try {
            if (conn != null) conn.abort(Runnable::run);
        } catch (SQLException ignored) {
            return;
        }
    }

    private synchronized void emit(Event event) { options.hook.event(event); }

    private static String state(Throwable error) {
        return error instanceof SQLException failed && failed.getSQLState() != null ? failed.getSQLState() : "";
    }

    /** What is recorded of an error: never a text that may quote the payload. */
    private static String describe(Throwable error) {
        if (!(error instanceof Permanent || error instanceof Retry)) {
            return error == null ? null : (error.getClass().getName() + " " + state(error)).trim();
        }
        return String.valueOf(error.getMessage()).codePoints().filter(c -> c != 0).limit(500)
            .map(c -> c >= 0xD800 && c < 0xE000 ? '?' : c)
            .collect(StringBuilder::new, StringBuilder::appendCodePoint, StringBuilder::append).toString();
    }

    private static String list(Stream<String> values) {
        return values.map(value -> '"' + value.replace("\\", "\\\\").replace("\"", "\\\"") + '"')
            .collect(Collectors.joining(",", "{", "}"));
    }

    /** Owners, ids and attempts, as statements take them. */
    private static Object[] parts(List<Message> messages) {
        List<Function<Message, Object>> columns = List.of(m -> m.ownerToken, m -> m.id, m -> m.attempts);
        return columns.stream().map(column -> list(messages.stream().map(column).map(String::valueOf))).toArray();
    }

    // Claim

    private void claimMore() {
        if (System.nanoTime() >= claimAfter) claimAfter = 0;
        int unsettled = acks.size() + calls.size();
        int asked = stopping || inClaim || claimAfter > 0 || unsettled >= MOST_UNSETTLED ? 0 : ask();
        if (asked == 0) return;
        inClaim = true;
        boolean idle = running.isEmpty() && unsettled == 0;
        long sent = System.nanoTime();
        threads.execute(() -> {
            List<String[]> rows = List.of();
            Exception failed = null;
            try {
                rows = claim(asked);
            } catch (Exception thrown) {
                failed = thrown;
            }
            List<String[]> claimed = rows;
            Exception thrown = failed;
            posts.add(() -> claimed(claimed, asked, idle, sent, thrown));
        });
    }

    private List<String[]> claim(int asked) throws SQLException {
        if (claimer.isClosed()) {
            claimer = open();
            // what a claim without an answer may have taken must not count as held by this
            // worker, which knows nothing of it
            String stray = owner;
            owner = UUID.randomUUID().toString();
            posts.add(() -> strays.add(stray));
        }
        String topics = handlers.containsKey("*") ? null : list(handlers.keySet().stream());
        try (PreparedStatement statement = claimer.prepareStatement(CLAIM)) {
            claiming = statement;
            return Outbox.rows(statement, owner, options.leaseSeconds, asked, options.namespace, topics,
                options.tenantId, options.maxAttempts, draining ? 0 : options.waitMs, options.subscription);
        } finally {
            claiming = null;
        }
    }

    private void claimed(List<String[]> rows, int asked, boolean idle, long sent, Exception failed) {
        inClaim = false;
        if (failed == null) {
            // surely not sooner: what came late, or to a stopped process, is renewed first
            for (String[] row : rows) {
                Message message = new Message(row, sent + 3 * third());
                if (!retried.contains(message.key())) waiting.add(message);
            }
            renewAt = Math.min(renewAt, sent + third());
            full = rows.size() == asked;
            claimedAt = System.nanoTime();
            claimDelay = new Delay();
            emit(new Event("claimed", null, null, 0, rows.size(), asked, 0, null));
            if (draining && rows.isEmpty() && idle) stop();
            if (draining && rows.isEmpty()) claimAfter = System.nanoTime() + 10 * MS;
        } else if (!stopping && !state(failed).equals("57014")) {
            claimAfter = recover(claimer, failed, claimDelay);
        }
    }

    /** After an error: when there may be another try. */
    private long recover(Connection conn, Exception failed, Delay delay) {
        if (!REPEATABLE.matcher(state(failed)).matches()) fail(failed);
        else emit(new Event("reconnect", null, null, 0, 0, 0, 0, describe(failed)));
        close(conn);
        return System.nanoTime() + delay.next(stopping);
    }

    /** How many messages to claim now; 0 if no slot is free for one. */
    private int ask() {
        int slots = options.concurrency - running.size();
        int held = waiting.size() + running.size();
        if (slots == 0 || startable() != null) return 0;
        long took = System.nanoTime() - claimedAt;
        if (!full || took > 500 * MS) target = options.concurrency;
        else if (took < 100 * MS) target = Math.min(2 * target, options.maxBatch);
        return Math.min(Math.max(target - held, slots), options.maxBatch - held);
    }

    // Handle

    /** A message that is not beside another of its stream. */
    private Message startable() {
        Set<String> busy = new HashSet<>();
        for (Message message : running) busy.add(message.streamId);
        busy.remove(null);
        long now = System.nanoTime();
        for (Message message : waiting) if (!busy.contains(message.streamId) && now < message.until) return message;
        return null;
    }

    private void start() {
        for (Message next; !stopping && running.size() < options.concurrency && (next = startable()) != null; ) {
            Message message = next;
            Entry entry = handlers.getOrDefault(message.topic, handlers.get("*"));
            waiting.remove(message);
            running.add(message);
            message.began = System.nanoTime();
            if (entry.timeoutSeconds > 0) message.deadline = message.began + (long) (1000 * MS * entry.timeoutSeconds);
            threads.execute(() -> run(message, entry));
        }
    }

    /** Cancel what takes too long. */
    private void expire() {
        for (Message message : running) {
            if (System.nanoTime() > message.deadline && judge(message, new TimedOut())) message.cancel();
        }
    }

    private void run(Message message, Entry entry) {
        Throwable failed = null;
        try {
            message.handledBy(Thread.currentThread());
            if (entry.plain == null) transact(message, entry.inTransaction);
            else options.wrap.wrap(message, () -> entry.plain.handle(message));
        } catch (Throwable thrown) {
            failed = thrown;
        }
        message.handledBy(null);
        Thread.interrupted(); // what came late is not for the next message
        Throwable ended = failed;
        posts.add(() -> {
            judge(message, ended);
            if (!running.remove(message)) return;
            handled++;
            emit(new Event("finished", message, message.outcome.get(), (System.nanoTime() - message.began) / 1e9,
                0, 0, 0, null));
        });
    }

    private void transact(Message message, TransactionHandler handler) throws Exception {
        for (int left = TRANSACTION_TRIES - 1; ; left--) {
            Connection conn = begin();
            boolean begun = false;
            try {
                options.wrap.wrap(message, () -> handler.handle(message, conn));
                begun = message.outcome.compareAndSet(null, "ack"); // from here on, the transaction decides
                if (!begun) throw new LeaseLost();
                Outbox.rows(conn, ACK_ONE, message.ownerToken, message.id, message.attempts);
                conn.commit();
                return;
            } catch (Exception failed) {
                rollBack(conn);
                if (begun) message.outcome.set(null);
                if (begun && state(failed).equals("55000")) throw new LeaseLost();
                if (left == 0 || !List.of("40001", "40P01").contains(state(failed))) throw failed;
            } finally {
                if (!conn.isClosed()) free.add(conn);
            }
        }
    }

    /** A connection for a transaction. One that was idle may have broken since. */
    private Connection begin() throws SQLException {
        Connection conn = free.poll();
        while (conn != null && !conn.isValid(5)) {
            close(conn);
            conn = free.poll();
        }
        if (conn == null) conn = open();
        conn.setAutoCommit(false);
        return conn;
    }

    private static void rollBack(Connection conn) {
        try {
            conn.rollback();
        } catch (SQLException broken) {
            close(conn);
        }
    }

    /** The handler has ended, or must: what becomes of the message. False if that is decided. */
    private boolean judge(Message message, Throwable failed) {
        String outcome = failed == null ? "ack" : failed instanceof Permanent ? "fail"
            : failed instanceof LeaseLost ? "lost" : "retry";
        if (!message.outcome.compareAndSet(null, outcome)) return false;
        Object[] values = {message.ownerToken, message.id, message.attempts, describe(failed), null};
        if (failed == null) {
            if (acks.isEmpty()) acksSince = System.nanoTime();
            acks.add(message);
            return true;
        }
        if (failed instanceof Permanent permanent) values[4] = permanent.reason;
        if (failed instanceof Retry retry && retry.after != null) values[4] = retry.after + " s";
        if (!outcome.equals("lost")) calls.add(new Statement(outcome.equals("fail") ? FAIL : NACK, values));
        if (outcome.equals("retry") && draining) retried.add(message.key());
        // the server takes back what is behind it in its stream
        if (!outcome.equals("fail")) drop(other -> message.streamId != null && message.streamId.equals(other.streamId));
        return true;
    }

    private void lose(Message message) {
        drop(other -> other == message);
        if (!judge(message, new LeaseLost())) return;
        message.cancel();
        emit(new Event("lost", message, null, 0, 0, 0, 0, null));
    }

    /** Take out what no handler has begun. */
    private List<Message> drop(Predicate<Message> wanted) {
        List<Message> dropped = waiting.stream().filter(wanted).toList();
        waiting.removeAll(dropped);
        return dropped;
    }

    // Settle and renew

    /** Send what is due, as far as the server answers. */
    private void settle() {
        while (System.nanoTime() >= settleAfter) {
            boolean ready = acks.size() >= ACK_IDS || System.nanoTime() > acksSince + 5 * MS;
            if (System.nanoTime() >= renewAt) renew();
            else if (!calls.isEmpty()) tell();
            else if (!acks.isEmpty() && ready) acknowledge();
            else if (!releaseStray()) return;
        }
    }

    /** The rows of a statement; null if the server does not answer at present. */
    private List<String[]> query(String sql, Object... values) {
        try {
            if (settler.isClosed()) settler = open();
            List<String[]> rows = Outbox.rows(settler, sql, values);
            settleDelay = new Delay();
            return rows;
        } catch (SQLException failed) {
            if (state(failed).startsWith("22") && values.length == 5 && values[3] != null) {
                // the server does not take what the handler has said
                values[3] = values[4] = null;
                return null;
            }
            settleAfter = recover(settler, failed, settleDelay);
            for (Message message : leased()) if (System.nanoTime() > message.until) lose(message);
            return null;
        }
    }

    private void tell() {
        Statement call = calls.peek();
        if (query(call.sql(), call.values()) != null) calls.remove(call);
    }

    private void acknowledge() {
        List<Message> some = new ArrayList<>(acks.subList(0, Math.min(ACK_IDS, acks.size())));
        List<String[]> rows = query(ACK, parts(some));
        if (rows == null) {
            acksRepeated = true;
            return;
        }
        acks.subList(0, some.size()).clear();
        // how many the first of several calls has acknowledged is not known
        int late = acksRepeated ? 0 : some.size() - Integer.parseInt(rows.get(0)[0]);
        acksRepeated = false;
        emit(new Event("settled", null, null, 0, some.size(), 0, late, null));
    }

    /** What must be renewed. */
    private List<Message> leased() {
        List<Message> leased = new ArrayList<>(waiting);
        for (Message message : running) if (message.outcome.get() == null) leased.add(message);
        return leased;
    }

    /** Release what a stray claim may have taken, when nothing of its owner is in hand any more. */
    private boolean releaseStray() {
        Set<String> known = Stream.concat(leased().stream(), acks.stream()).map(m -> m.ownerToken).collect(Collectors.toSet());
        for (String stray : strays) {
            if (known.contains(stray)) continue;
            strays.remove(stray);
            return calls.add(new Statement(RELEASE_ALL, stray));
        }
        return false;
    }

    private void renew() {
        long began = System.nanoTime();
        List<Message> held = leased();
        Object[] values = Stream.concat(Arrays.stream(parts(held)), Stream.of(options.leaseSeconds)).toArray();
        List<String[]> rows = held.isEmpty() ? List.of() : query(RENEW, values);
        if (rows == null) return;
        Set<String> gone = rows.stream().map(row -> row[0] + " " + row[1]).collect(Collectors.toSet());
        renewAt = began + third();
        for (Message message : held) {
            message.until = began + 3 * third();
            if (gone.contains(message.id + " " + message.attempts)) lose(message);
        }
    }
}
