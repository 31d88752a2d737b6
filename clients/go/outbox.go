// Package outbox is a client of outbox, the transactional outbox and work queue for
// PostgreSQL: functions that enqueue in the caller's transaction, and workers.
//
// It needs nothing but database/sql, and any driver whose errors have SQLState, as those of
// lib/pq and pgx. Behind PgBouncer, lib/pq wants binary_parameters=yes, and pgx
// statement_cache_mode=describe. ../README.md is the design that the clients have in common.
package outbox

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"time"
	"unicode/utf8"
)

// Parameters are text, and cast by the server, so that all drivers send the same.
const (
	enqueueBatch = `SELECT message_id::text, enqueued, outcome, 0 FROM outbox.enqueue_batch($1::text::jsonb) ORDER BY ordinal`
	publishBatch = `SELECT message_id::text, true, '', deliveries FROM outbox.publish_batch($1::text::jsonb) ORDER BY ordinal`
	advance      = `SELECT coalesce(sum(outbox.reschedule(ARRAY[id], next_attempt_at - $1::text::interval)), 0)
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
	encoded, ok := payload.(string)
	if raw, isRaw := payload.([]byte); isRaw {
		encoded, ok = string(raw), true
	}
	if ok && !utf8.ValidString(encoded) {
		return "", errors.New("a payload that is not UTF-8")
	}
	if ok {
		return encoded, nil
	}
	b, err := json.Marshal(payload)
	return string(b), err
}

func send(ctx context.Context, q Queryer, statement string, messages []New) (results []Result, err error) {
	complete := make([]New, len(messages))
	for i, m := range messages {
		headers := map[string]any{}
		for _, trace := range []string{os.Getenv("TRACEPARENT"), m.Traceparent} {
			if trace != "" {
				headers["traceparent"] = trace
			}
		}
		for name, value := range m.Headers {
			headers[name] = value
		}
		m.Headers = headers
		if m.Payload, err = text(m.Payload); err != nil {
			return nil, err
		}
		complete[i] = m
	}
	encoded, err := text(complete)
	if err != nil {
		return nil, err
	}
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
	err = query(ctx, q, advance, []any{interval(by)}, func(rows *sql.Rows) error { return rows.Scan(&count) })
	return count, err
}

func interval(d time.Duration) string { return fmt.Sprintf("%f s", d.Seconds()) }

// Message is a claimed message: the columns of outbox.message.
type Message struct {
	ID                                               int64
	MessageID, Namespace, Topic, Payload, OwnerToken string
	Headers                                          map[string]any
	CorrelationID, TenantID, DedupeKey, StreamID     string
	Attempts, RetryCount, Priority                   int
	CreatedAt, LockedUntil                           time.Time
	DueTime                                          sql.NullTime
	Subscription, PublishedID                        string

	cancel  context.CancelFunc
	outcome atomic.Int32
	until   time.Time // its lease lasts as long, or longer
}

// key is the stream, or the id of what has none.
func (m *Message) key() string { return or(m.StreamID, fmt.Sprint(m.ID)) }

// Decode decodes a payload that is JSON.
func (m *Message) Decode(into any) error { return json.Unmarshal([]byte(m.Payload), into) }

// Traceparent is the trace context that the message was enqueued with.
func (m *Message) Traceparent() string {
	trace, _ := m.Headers["traceparent"].(string)
	return trace
}

// PermanentError is the error of a message that can never be handled.
type PermanentError struct {
	Text   string
	Reason int
}

func (e *PermanentError) Error() string { return e.Text }

// Permanent makes the message a dead letter with this text. A reason of 0 is none.
func Permanent(text string, reason int) error { return &PermanentError{text, reason} }

// RetryError is the error of a message that is handed out again.
type RetryError struct {
	Text  string
	After time.Duration
}

func (e *RetryError) Error() string { return e.Text }

// Retry has the message handed out again after that time; after the server's backoff, if it
// is negative.
func Retry(text string, after time.Duration) error { return &RetryError{text, after} }

// ErrLeaseLost says that another worker has the message, or soon will have.
var ErrLeaseLost = errors.New("lease lost")

// describe is what is recorded of an error: never a text that may quote the payload.
func describe(err error) (description string) {
	var permanent *PermanentError
	var retry *RetryError
	switch {
	case errors.As(err, &permanent):
		description = permanent.Text
	case errors.As(err, &retry):
		description = retry.Text
	case errors.Is(err, context.DeadlineExceeded):
		description = "timeout"
	default:
		for inner := err; inner != nil; inner = errors.Unwrap(inner) {
			description = strings.TrimSpace(fmt.Sprintf("%T %s", inner, state(err)))
		}
	}
	description = strings.ToValidUTF8(strings.ReplaceAll(description, "\x00", ""), "?")
	if runes := []rune(description); len(runes) > 500 {
		description = string(runes[:500])
	}
	return description
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
