package outbox;

import java.sql.Connection;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import org.postgresql.PGStatement;

/**
 * A client of outbox for JDBC: functions that enqueue in the transaction of the caller's
 * connection. The workers are in Worker. ../../README.md is the design that the clients have in
 * common, and says what the options are. A payload is text; JSON is the caller's to make.
 */
public final class Outbox {
    private Outbox() {}

    /** The arguments of outbox.enqueue beside topic and payload. What is not set is not sent. */
    public static final class Options {
        final Map<String, Object> given = new LinkedHashMap<>();
        final Map<String, String> headers = new LinkedHashMap<>();

        private Options set(String name, Object value) {
            given.put(name, value);
            return this;
        }

        public Options correlationId(String value) { return set("correlation_id", value); }
        public Options dueTime(Instant value) { return set("due_time", value); }
        public Options namespace(String value) { return set("namespace", value); }
        public Options tenantId(UUID value) { return set("tenant_id", value); }
        public Options dedupeKey(String value) { return set("dedupe_key", value); }
        public Options streamId(UUID value) { return set("stream_id", value); }
        public Options expiresAt(Instant value) { return set("expires_at", value); }
        public Options messageId(UUID value) { return set("message_id", value); }
        public Options dedupeFor(Duration value) { return set("dedupe_for", value); }
        public Options onDuplicate(String value) { return set("on_duplicate", value); }
        public Options priority(int value) { return set("priority", value); }

        /** Without one, it is the environment's TRACEPARENT. */
        public Options traceparent(String value) { return header("traceparent", value); }

        public Options header(String name, String value) {
            headers.put(name, value);
            return this;
        }
    }

    /** A message of a batch. */
    public record New(String topic, String payload, Options options) {
        public New(String topic, String payload) { this(topic, payload, new Options()); }
    }

    /** What became of it: enqueued and outcome, or deliveries. */
    public record Result(UUID messageId, boolean enqueued, String outcome, int deliveries) {}

    /** Enqueue a message in the connection's transaction; its message_id. */
    public static UUID enqueue(Connection conn, String topic, String payload, Options options)
            throws SQLException {
        return enqueueBatch(conn, List.of(new New(topic, payload, options))).get(0).messageId();
    }

    public static UUID enqueue(Connection conn, String topic, String payload) throws SQLException {
        return enqueue(conn, topic, payload, new Options());
    }

    /** Publish a message for all who have subscribed; the published id. */
    public static UUID publish(Connection conn, String topic, String payload, Options options)
            throws SQLException {
        return publishBatch(conn, List.of(new New(topic, payload, options))).get(0).messageId();
    }

    public static UUID publish(Connection conn, String topic, String payload) throws SQLException {
        return publish(conn, topic, payload, new Options());
    }

    /** Enqueue many messages by one call. */
    public static List<Result> enqueueBatch(Connection conn, List<New> messages) throws SQLException {
        return send(conn, "SELECT message_id, enqueued, outcome, 0"
            + " FROM outbox.enqueue_batch(?::text::jsonb) ORDER BY ordinal", messages);
    }

    /** Publish many messages by one call. */
    public static List<Result> publishBatch(Connection conn, List<New> messages) throws SQLException {
        return send(conn, "SELECT message_id, true, '', deliveries"
            + " FROM outbox.publish_batch(?::text::jsonb) ORDER BY ordinal", messages);
    }

    /** For tests: all waiting messages become due that much earlier; how many. */
    public static int advance(Connection conn, Duration by) throws SQLException {
        return Integer.parseInt(rows(conn, "SELECT coalesce(sum(outbox.reschedule(ARRAY[id],"
            + " next_attempt_at - ?::text::interval)), 0) FROM outbox.messages"
            + " WHERE state = 'ready' AND next_attempt_at > clock_timestamp()", by).get(0)[0]);
    }

    private static List<Result> send(Connection conn, String sql, List<New> messages) throws SQLException {
        StringBuilder json = new StringBuilder("[");
        for (New message : messages) {
            Map<String, String> headers = new LinkedHashMap<>();
            if (System.getenv("TRACEPARENT") != null) headers.put("traceparent", System.getenv("TRACEPARENT"));
            headers.putAll(message.options().headers);
            Map<String, Object> fields = new LinkedHashMap<>(message.options().given);
            fields.put("topic", message.topic());
            fields.put("payload", message.payload());
            if (!headers.isEmpty()) fields.put("headers", headers);
            json.append(json.length() > 1 ? "," : "");
            append(json, fields);
        }
        List<Result> results = new ArrayList<>();
        for (String[] row : rows(conn, sql, json.append("]"))) {
            results.add(new Result(UUID.fromString(row[0]), row[1].equals("t"), row[2], Integer.parseInt(row[3])));
        }
        return results;
    }

    private static void append(StringBuilder json, Object value) {
        if (value instanceof Map<?, ?> map) {
            String separator = "{";
            for (Map.Entry<?, ?> entry : map.entrySet()) {
                json.append(separator);
                append(json, entry.getKey());
                append(json.append(":"), entry.getValue());
                separator = ",";
            }
            json.append("}");
        } else if (value instanceof Integer) {
            json.append(value);
        } else {
            json.append('"');
            for (char c : value.toString().toCharArray()) {
                if (c == '"' || c == '\\') json.append('\\').append(c);
                else if (c < ' ') json.append(String.format("\\u%04x", (int) c));
                else json.append(c);
            }
            json.append('"');
        }
    }

    static List<String[]> rows(Connection conn, String sql, Object... values) throws SQLException {
        try (PreparedStatement statement = conn.prepareStatement(sql)) {
            return rows(statement, values);
        }
    }

    /** The rows of a statement as text. It is not prepared in the server, for PgBouncer. */
    static List<String[]> rows(PreparedStatement statement, Object... values) throws SQLException {
        statement.unwrap(PGStatement.class).setPrepareThreshold(0);
        for (int i = 0; i < values.length; i++) {
            statement.setString(i + 1, values[i] == null ? null : values[i].toString());
        }
        List<String[]> rows = new ArrayList<>();
        try (ResultSet result = statement.executeQuery()) {
            while (result.next()) {
                String[] row = new String[result.getMetaData().getColumnCount()];
                for (int i = 0; i < row.length; i++) row[i] = result.getString(i + 1);
                rows.add(row);
            }
        }
        return rows;
    }
}
