// Package outbox is a client of outbox, the transactional outbox and work queue for
// PostgreSQL: functions that enqueue in the caller's transaction, and workers.
//
// It needs nothing but database/sql, and any driver whose errors have SQLState, as those of
// lib/pq and pgx. Behind PgBouncer, lib/pq wants binary_parameters=yes, and pgx
// default_query_exec_mode=exec. ../README.md is the design that the clients have in common.
package outbox

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"os"
	"sync/atomic"
	"time"
)

// Parameters are text, and cast by the server, so that all drivers send the same.
const (
	enqueueBatch = `SELECT message_id::text, enqueued, outcome, 0
		FROM outbox.enqueue_batch($1::text::jsonb) ORDER BY ordinal`
	publishBatch = `SELECT message_id::text, true, '', deliveries
		FROM outbox.publish_batch($1::text::jsonb) ORDER BY ordinal`
	advance = `SELECT coalesce(sum(outbox.reschedule(ARRAY[id],
			next_attempt_at - $1::text::interval)), 0)
		FROM outbox.messages WHERE state = 'ready' AND next_attempt_at > clock_timestamp()`
)

// Queryer is what the functions need of *sql.DB, *sql.Conn and *sql.Tx.
type Queryer interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// Options are the arguments of outbox.enqueue beside topic and payload. What is empty is
// not sent. DedupeFor is an interval, as "1 hour". Without Traceparent, it is taken from
// the environment.
type Options struct {
	CorrelationID string         `json:"correlation_id,omitempty"`
	DueTime       *time.Time     `json:"due_time,omitempty"`
	Namespace     string         `json:"namespace,omitempty"`
	TenantID      string         `json:"tenant_id,omitempty"`
	DedupeKey     string         `json:"dedupe_key,omitempty"`
	StreamID      string         `json:"stream_id,omitempty"`
	Headers       map[string]any `json:"headers,omitempty"`
	ExpiresAt     *time.Time     `json:"expires_at,omitempty"`
	MessageID     string         `json:"message_id,omitempty"`
	DedupeFor     string         `json:"dedupe_for,omitempty"`
	OnDuplicate   string         `json:"on_duplicate,omitempty"`
	Priority      *int           `json:"priority,omitempty"`
	Traceparent   string         `json:"-"`
}

// New is a new message.
type New struct {
	Topic   string `json:"topic"`
	Payload any    `json:"payload"`
	Options
}

// Result is what became of a new message: Enqueued and Outcome if it was enqueued,
// Deliveries if it was published.
type Result struct {
	MessageID  string
	Enqueued   bool
	Outcome    string
	Deliveries int
}

// text is a string or raw JSON as it is, and JSON of anything else.
func text(payload any) (string, error) {
	switch payload := payload.(type) {
	case string:
		return payload, nil
	case []byte:
		return string(payload), nil
	}
	encoded, err := json.Marshal(payload)
	return string(encoded), err
}

func send(ctx context.Context, q Queryer, statement string, messages []New) ([]Result, error) {
	complete := make([]New, len(messages))
	for i, m := range messages {
		payload, err := text(m.Payload)
		if err != nil {
			return nil, err
		}
		headers := map[string]any{}
		if m.Traceparent != "" {
			headers["traceparent"] = m.Traceparent
		} else if trace := os.Getenv("TRACEPARENT"); trace != "" {
			headers["traceparent"] = trace
		}
		for name, value := range m.Headers {
			headers[name] = value
		}
		m.Payload, m.Headers = payload, headers
		complete[i] = m
	}
	encoded, err := text(complete)
	if err != nil {
		return nil, err
	}
	var results []Result
	err = query(ctx, q, statement, []any{encoded}, func(rows *sql.Rows) error {
		var r Result
		err := rows.Scan(&r.MessageID, &r.Enqueued, &r.Outcome, &r.Deliveries)
		results = append(results, r)
		return err
	})
	return results, err
}

// query calls scan for each row.
func query(ctx context.Context, q Queryer, statement string, values []any, scan func(*sql.Rows) error) error {
	rows, err := q.QueryContext(ctx, statement, values...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := scan(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

func sendOne(ctx context.Context, q Queryer, statement, topic string, payload any, options *Options) (string, error) {
	if options == nil {
		options = &Options{}
	}
	results, err := send(ctx, q, statement, []New{{topic, payload, *options}})
	if err != nil {
		return "", err
	}
	return results[0].MessageID, nil
}

// Enqueue enqueues a message in the caller's transaction, and returns its message_id.
func Enqueue(ctx context.Context, q Queryer, topic string, payload any, options *Options) (string, error) {
	return sendOne(ctx, q, enqueueBatch, topic, payload, options)
}

// Publish publishes a message for all who have subscribed, and returns the published id.
func Publish(ctx context.Context, q Queryer, topic string, payload any, options *Options) (string, error) {
	return sendOne(ctx, q, publishBatch, topic, payload, options)
}

// EnqueueBatch enqueues many messages by one call.
func EnqueueBatch(ctx context.Context, q Queryer, messages []New) ([]Result, error) {
	return send(ctx, q, enqueueBatch, messages)
}

// PublishBatch publishes many messages by one call.
func PublishBatch(ctx context.Context, q Queryer, messages []New) ([]Result, error) {
	return send(ctx, q, publishBatch, messages)
}

// Advance is for tests: all waiting messages become due that much earlier. It returns how
// many there were.
func Advance(ctx context.Context, q Queryer, by time.Duration) (count int, err error) {
	err = query(ctx, q, advance, []any{interval(by)}, func(rows *sql.Rows) error {
		return rows.Scan(&count)
	})
	return count, err
}

func interval(d time.Duration) string { return fmt.Sprintf("%f s", d.Seconds()) }

// Message is a claimed message: the columns of outbox.message.
type Message struct {
	ID                                           int64
	MessageID, Namespace, Topic, Payload         string
	Headers                                      map[string]any
	CorrelationID, TenantID, DedupeKey, StreamID string
	Attempts, RetryCount                         int
	CreatedAt                                    time.Time
	DueTime                                      sql.NullTime
	LockedUntil                                  time.Time
	Subscription, PublishedID                    string
	Priority                                     int

	cancel  context.CancelFunc
	outcome atomic.Int32
}

// What becomes of a message; it is decided once.
const (
	undecided int32 = iota
	acked
	retried
	failed
	leaseLost
)

var outcomes = [...]string{"", "ack", "retry", "fail", "lost"}

// Decode decodes a payload that is JSON.
func (m *Message) Decode(into any) error { return json.Unmarshal([]byte(m.Payload), into) }

// Traceparent is the trace context that the message was enqueued with.
func (m *Message) Traceparent() string {
	trace, _ := m.Headers["traceparent"].(string)
	return trace
}
