package outbox;

import java.sql.Connection;
import java.sql.SQLException;
import java.util.ArrayList;
import java.util.Arrays;
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

        public Permanent(String text, Integer reason) {
            super(text);
            this.reason = reason;
        }
    }

    /** The message is handed out again after so many seconds. */
    public static final class Retry extends Exception {
        final double after;

        public Retry(String text, double after) {
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
    private static final String ACK = "SELECT outbox.ack(?::text::uuid, ?::text::bigint[], ?::text::int[])";
    private static final String ACK_ONE =
        "SELECT outbox.ack_one(?::text::uuid, ?::text::bigint, ?::text::int, strict => true)";
    private static final String NACK = "SELECT outbox.release(?::text::uuid, ?::text::bigint[]),"
        + " outbox.nack_one(?::text::uuid, ?::text::bigint, ?::text, ?::text::interval, ?::text::int)";
    private static final String FAIL =
        "SELECT outbox.fail_one(?::text::uuid, ?::text::bigint, ?::text, ?::text::int, ?::text::int)";
    private static final String RENEW =
        "SELECT outbox.renew(?::text::uuid, ?::text::bigint[], ?::text::int, ?::text::int[])";
    private static final String LOST = "SELECT id, attempt FROM unnest(?::text::bigint[], ?::text::int[])"
        + " AS held(id, attempt) WHERE outbox.renew_one(?::text::uuid, id, ?::text::int, attempt) = 0";
    private static final String RELEASE = "SELECT outbox.release(?::text::uuid, ?::text::bigint[])";
    private static final String RELEASE_ALL = "SELECT outbox.release(?::text::uuid)";
    private static final Pattern REPEATABLE = Pattern.compile("08.*|40001|40P01|57P0[123]");
    private static final long MS = 1_000_000;
    private static final int ACK_IDS = 100, TRANSACTION_TRIES = 3;

    private record Entry(Handler plain, TransactionHandler inTransaction, double timeoutSeconds) {}

    private record Statement(String sql, Object... values) {}

    private final Connector connector;
    private final Options options;
    private final Map<String, Entry> handlers = new HashMap<>();
    private final LinkedBlockingQueue<Runnable> posts = new LinkedBlockingQueue<>();
    private final ConcurrentLinkedDeque<Connection> free = new ConcurrentLinkedDeque<>();
    private ExecutorService threads;
    private String owner;
    private volatile Connection claimer;
    private Connection settler;
    private List<Message> waiting, acks;
    private Set<Message> running;
    private List<Statement> calls;
    private int target, handled;
    private boolean full, inClaim, draining;
    private long claimedAt, acksSince, renewAt;
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
        waiting = new ArrayList<>();
        acks = new ArrayList<>();
        calls = new ArrayList<>();
        running = new LinkedHashSet<>();
        target = options.concurrency;
        handled = 0;
        full = inClaim = stopping = false;
        deadline = Long.MAX_VALUE;
        error = null;
        posts.clear();
        renewAt = System.nanoTime() + third();
        claimer = open();
        settler = open();
        threads = Executors.newCachedThreadPool(body -> {
            Thread thread = new Thread(body, "outbox");
            thread.setDaemon(true);
            return thread;
        });
        try {
            while (!stopping || inClaim || !running.isEmpty()) turn();
            settle(true);
            repeat(RELEASE_ALL, owner);
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
        try {
            if (stopping) shutDown();
            start();
            int asked = stopping || inClaim ? 0 : ask();
            if (asked > 0) {
                inClaim = true;
                boolean idle = running.isEmpty() && acks.isEmpty() && calls.isEmpty();
                threads.execute(() -> claim(asked, idle));
            }
            settle(false);
            if (System.nanoTime() > renewAt) renew();
        } catch (SQLException failed) {
            if (error != null) deadline = 0;
            fail(failed);
        }
        long due = acks.isEmpty() ? renewAt : Math.min(renewAt, acksSince + 5 * MS);
        if (stopping) due = Math.min(due, System.nanoTime() + 50 * MS);
        Runnable post = posts.poll(calls.isEmpty() ? Math.max(due - System.nanoTime(), 0) : 0, TimeUnit.NANOSECONDS);
        for (; post != null; post = posts.poll()) post.run();
    }

    private void fail(Exception failed) {
        if (error == null) error = failed;
        if (!stopping) stop();
    }

    private void shutDown() {
        // the server notices that the connection is closed, and its claim takes nothing
        if (inClaim) abort(claimer);
        if (!waiting.isEmpty()) calls.add(new Statement(RELEASE, owner, drop(message -> true)));
        if (System.nanoTime() < deadline && deadline != 0) return;
        for (Message message : running) lose(message);
        running.clear();
    }

    private Connection open() throws SQLException {
        Connection conn = connector.connect();
        conn.setAutoCommit(true);
        return conn;
    }

    private static void close(Connection conn) {
        try {
            conn.close();
        } catch (SQLException ignored) {
            return; // it has gone
        }
    }

    private static void abort(Connection conn) {
        try {
            conn.abort(Runnable::run);
        } catch (SQLException ignored) {
            return;
        }
    }

    // Statements

    private static String state(Throwable error) {
        return error instanceof SQLException failed && failed.getSQLState() != null ? failed.getSQLState() : "";
    }

    /** What is recorded of an error: never a text that may quote the payload. */
    private static String describe(Throwable error) {
        String text = error instanceof Permanent || error instanceof Retry ? String.valueOf(error.getMessage())
            : (error.getClass().getSimpleName() + " " + state(error)).trim();
        return text.replace("\0", "").substring(0, Math.min(500, text.replace("\0", "").length()));
    }

    /** Wait before a statement is repeated; or throw what may not be. */
    private long pause(SQLException failed, long delay) throws SQLException {
        if (!REPEATABLE.matcher(state(failed)).matches()) throw failed;
        options.hook.event(new Event("reconnect", null, null, 0, 0, 0, 0, describe(failed)));
        try {
            Thread.sleep(ThreadLocalRandom.current().nextLong(delay / 2, delay));
        } catch (InterruptedException interrupted) {
            throw failed;
        }
        return Math.min(2 * delay, 5000);
    }

    /** A statement of settling, repeated until it is answered. A null row says that it was. */
    private List<String[]> repeat(String sql, Object... values) throws SQLException {
        boolean repeated = false;
        for (long delay = 100; ; repeated = true) {
            try {
                if (settler.isClosed()) settler = open();
                List<String[]> rows = Outbox.rows(settler, sql, values);
                if (repeated) rows.add(null);
                return rows;
            } catch (SQLException failed) {
                close(settler);
                if (stopping && System.nanoTime() > deadline + 2000 * MS) throw failed;
                delay = pause(failed, delay);
            }
        }
    }

    private static String list(List<Message> messages, Function<Message, Object> column) {
        return messages.stream().map(column).map(String::valueOf).collect(Collectors.joining(",", "{", "}"));
    }

    // Claim

    private void claim(int asked, boolean idle) {
        String topics = handlers.containsKey("*") ? null : handlers.keySet().stream()
            .map(topic -> '"' + topic.replace("\\", "\\\\").replace("\"", "\\\"") + '"')
            .collect(Collectors.joining(",", "{", "}"));
        List<String[]> rows = new ArrayList<>();
        Exception ending = null;
        for (long delay = 100; !stopping; ) {
            try {
                if (claimer.isClosed()) claimer = open();
                rows = Outbox.rows(claimer, CLAIM, owner, options.leaseSeconds, asked, options.namespace, topics,
                    options.tenantId, options.maxAttempts, draining ? 0 : options.waitMs, options.subscription);
                if (draining && rows.isEmpty()) Thread.sleep(10);
                break;
            } catch (SQLException failed) {
                if (stopping || state(failed).equals("57014")) break;
                close(claimer);
                try {
                    delay = pause(failed, delay);
                } catch (SQLException fatal) {
                    ending = fatal;
                    break;
                }
            } catch (InterruptedException interrupted) {
                break;
            }
        }
        List<String[]> claimed = rows;
        Exception failed = ending;
        posts.add(() -> take(claimed, asked, idle, failed));
    }

    private void take(List<String[]> rows, int asked, boolean idle, Exception failed) {
        inClaim = false;
        if (failed != null) {
            fail(failed);
            return;
        }
        for (String[] row : rows) waiting.add(new Message(row));
        full = rows.size() == asked;
        claimedAt = System.nanoTime();
        options.hook.event(new Event("claimed", null, null, 0, rows.size(), asked, 0, null));
        if (draining && rows.isEmpty() && idle) stop();
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
        for (Message message : waiting) if (!busy.contains(message.streamId)) return message;
        return null;
    }

    private void start() {
        for (Message next; !stopping && running.size() < options.concurrency && (next = startable()) != null; ) {
            Message message = next;
            Entry entry = handlers.getOrDefault(message.topic, handlers.get("*"));
            waiting.remove(message);
            running.add(message);
            message.began = System.nanoTime();
            message.task = threads.submit(() -> run(message, entry));
            if (entry.timeoutSeconds > 0) threads.execute(() -> watch(message, entry.timeoutSeconds));
        }
    }

    /** Have the message cancelled if its handler takes too long. */
    private void watch(Message message, double seconds) {
        try {
            Thread.sleep((long) (1000 * seconds));
        } catch (InterruptedException ended) {
            return;
        }
        posts.add(() -> {
            if (!running.contains(message)) return;
            judge(message, new TimedOut());
            message.task.cancel(true);
        });
    }

    private void run(Message message, Entry entry) {
        Throwable failed = null;
        try {
            if (entry.plain == null) transact(message, entry.inTransaction);
            else options.wrap.wrap(message, () -> entry.plain.handle(message));
        } catch (Throwable thrown) {
            failed = thrown;
        }
        Throwable ended = failed;
        posts.add(() -> {
            judge(message, ended);
            if (!running.remove(message)) return;
            handled++;
            options.hook.event(new Event("finished", message, message.outcome.get(),
                (System.nanoTime() - message.began) / 1e9, 0, 0, 0, null));
        });
    }

    private void transact(Message message, TransactionHandler handler) throws Exception {
        for (int left = TRANSACTION_TRIES - 1; ; left--) {
            Connection pooled = free.poll();
            Connection conn = pooled == null || pooled.isClosed() ? open() : pooled;
            boolean begun = false;
            try {
                conn.setAutoCommit(false);
                options.wrap.wrap(message, () -> handler.handle(message, conn));
                begun = message.outcome.compareAndSet(null, "ack"); // from here on, the transaction decides
                if (!begun) throw new LeaseLost();
                Outbox.rows(conn, ACK_ONE, owner, message.id, message.attempts);
                conn.commit();
                conn.setAutoCommit(true);
                free.add(conn);
                return;
            } catch (Exception failed) {
                if (begun) message.outcome.set(null);
                try {
                    conn.rollback();
                    conn.setAutoCommit(true);
                    free.add(conn);
                } catch (SQLException broken) {
                    close(conn);
                }
                if (begun && state(failed).equals("55000")) throw new LeaseLost();
                if (left == 0 || !List.of("40001", "40P01").contains(state(failed))) throw failed;
            }
        }
    }

    /** The handler has ended, or must: what becomes of the message. */
    private void judge(Message message, Throwable failed) {
        String outcome = failed == null ? "ack" : failed instanceof Permanent ? "fail"
            : failed instanceof LeaseLost ? "lost" : "retry";
        if (!message.outcome.compareAndSet(null, outcome)) return;
        if (failed == null) {
            if (acks.isEmpty()) acksSince = System.nanoTime();
            acks.add(message);
        } else if (failed instanceof Permanent permanent) {
            calls.add(new Statement(FAIL, owner, message.id, describe(failed), permanent.reason, message.attempts));
        } else {
            // what is behind it in its stream is not to be handled now
            String behind = drop(other -> message.streamId != null && message.streamId.equals(other.streamId));
            String after = failed instanceof Retry retry ? retry.after + " s" : null;
            if (outcome.equals("retry")) {
                calls.add(new Statement(NACK, owner, behind, owner, message.id, describe(failed), after,
                    message.attempts));
            }
        }
    }

    private void lose(Message message) {
        judge(message, new LeaseLost());
        message.task.cancel(true);
    }

    /** Take out what no handler has begun; the ids. */
    private String drop(Predicate<Message> wanted) {
        List<Message> dropped = waiting.stream().filter(wanted).toList();
        waiting.removeAll(dropped);
        return list(dropped, message -> message.id);
    }

    // Settle and renew

    private void settle(boolean all) throws SQLException {
        while (!acks.isEmpty() && (all || acks.size() >= ACK_IDS || System.nanoTime() > acksSince + 5 * MS)) {
            List<Message> some = acks.subList(0, Math.min(ACK_IDS, acks.size()));
            List<String[]> rows = repeat(ACK, owner, list(some, m -> m.id), list(some, m -> m.attempts));
            int count = some.size();
            int late = rows.size() > 1 ? 0 : count - Integer.parseInt(rows.get(0)[0]);
            some.clear();
            options.hook.event(new Event("settled", null, null, 0, count, 0, late, null));
        }
        while (!calls.isEmpty()) {
            Statement call = calls.remove(0);
            repeat(call.sql(), call.values());
        }
    }

    private void renew() throws SQLException {
        renewAt = System.nanoTime() + third();
        List<Message> held = new ArrayList<>(waiting);
        for (Message message : running) if (message.outcome.get() == null) held.add(message);
        if (held.isEmpty()) return;
        String ids = list(held, m -> m.id);
        String attempts = list(held, m -> m.attempts);
        List<String[]> rows = repeat(RENEW, owner, ids, options.leaseSeconds, attempts);
        if (Integer.parseInt(rows.get(0)[0]) == held.size()) return;
        Set<String> gone = new HashSet<>();
        for (String[] row : repeat(LOST, ids, attempts, owner, options.leaseSeconds)) gone.add(Arrays.toString(row));
        for (Message message : held) {
            String[] key = {String.valueOf(message.id), String.valueOf(message.attempts)};
            if (!gone.contains(Arrays.toString(key)) || message.outcome.get() != null) continue;
            drop(other -> other == message);
            if (message.task == null) judge(message, new LeaseLost());
            else lose(message);
            options.hook.event(new Event("lost", message, null, 0, 0, 0, 0, null));
        }
    }
}
