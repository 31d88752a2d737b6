package outbox;

import java.util.concurrent.atomic.AtomicReference;

/** A claimed message: the columns of outbox.message, as text. */
public final class Message {
    static final String COLUMNS = "id, message_id, namespace, topic, payload, headers, correlation_id,"
        + " tenant_id, dedupe_key, stream_id, attempts, retry_count, created_at, due_time, locked_until,"
        + " owner_token, subscription, published_id, priority, headers ->> 'traceparent'";

    public final long id;
    public final String messageId, namespace, topic, payload, headers, correlationId, tenantId, dedupeKey, streamId;
    public final int attempts, retryCount;
    public final String createdAt, dueTime, lockedUntil, ownerToken, subscription, publishedId;
    public final int priority;
    public final String traceparent;

    /** Decided once: ack, retry, fail or lost. */
    final AtomicReference<String> outcome = new AtomicReference<>();
    private Thread thread;
    private boolean cancelled;
    long began, deadline = Long.MAX_VALUE;
    long until; // its lease lasts as long, or longer

    /** The thread that handles it, as long as it does; null after that. */
    synchronized void handledBy(Thread handling) {
        thread = handling;
        if (cancelled && thread != null) thread.interrupt();
    }

    /** Interrupt its handler, also one that is about to begin. */
    synchronized void cancel() {
        cancelled = true;
        if (thread != null) thread.interrupt();
    }

    /** Its stream, or its id if it has none. */
    String key() { return streamId == null ? String.valueOf(id) : streamId; }

    Message(String[] row, long until) {
        this.until = until;
        id = Long.parseLong(row[0]);
        messageId = row[1];
        namespace = row[2];
        topic = row[3];
        payload = row[4];
        headers = row[5];
        correlationId = row[6];
        tenantId = row[7];
        dedupeKey = row[8];
        streamId = row[9];
        attempts = Integer.parseInt(row[10]);
        retryCount = Integer.parseInt(row[11]);
        createdAt = row[12];
        dueTime = row[13];
        lockedUntil = row[14];
        ownerToken = row[15];
        subscription = row[16];
        publishedId = row[17];
        priority = Integer.parseInt(row[18]);
        traceparent = row[19];
    }
}
