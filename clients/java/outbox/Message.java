package outbox;

import java.util.concurrent.Future;
import java.util.concurrent.atomic.AtomicReference;

/** A claimed message: the columns of outbox.message, as text. */
public final class Message {
    static final String COLUMNS = "id, message_id, namespace, topic, payload, headers, correlation_id,"
        + " tenant_id, dedupe_key, stream_id, attempts, retry_count, created_at, due_time, locked_until,"
        + " subscription, published_id, priority, headers ->> 'traceparent'";

    public final long id;
    public final String messageId, namespace, topic, payload, headers, correlationId, tenantId, dedupeKey, streamId;
    public final int attempts, retryCount;
    public final String createdAt, dueTime, lockedUntil, subscription, publishedId;
    public final int priority;
    public final String traceparent;

    /** Decided once: ack, retry, fail or lost. */
    final AtomicReference<String> outcome = new AtomicReference<>();
    volatile Future<?> task;
    long began;

    Message(String[] row) {
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
        subscription = row[15];
        publishedId = row[16];
        priority = Integer.parseInt(row[17]);
        traceparent = row[18];
    }
}
