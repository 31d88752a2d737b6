package outbox

import (
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	mathrand "math/rand"
	"strings"
	"time"
)

const (
	claim = `SELECT id, message_id::text, namespace, topic, payload, coalesce(headers, '{}')::text,
			coalesce(correlation_id, ''), coalesce(tenant_id::text, ''), coalesce(dedupe_key, ''),
			coalesce(stream_id::text, ''), attempts, retry_count, created_at, due_time, locked_until,
			coalesce(subscription, ''), coalesce(published_id::text, ''), priority
		FROM outbox.claim($1::text::uuid, $2::text::int, $3::text::int, $4::text, $5::text::text[],
			$6::text::uuid, $7::text::int, $8::text::int, $9::text)`
	ack    = `SELECT outbox.ack($1::text::uuid, $2::text::bigint[], $3::text::int[])`
	ackOne = `SELECT outbox.ack_one($1::text::uuid, $2::text::bigint, $3::text::int,
		strict => true)`
	nack = `SELECT outbox.release($1::text::uuid, $6::text::bigint[]), outbox.nack_one($1::text::uuid, $2::text::bigint, $3::text,
		$4::text::interval, $5::text::int)`
	fail = `SELECT outbox.fail_one($1::text::uuid, $2::text::bigint, $3::text, $4::text::int,
		$5::text::int)`
	renew = `SELECT outbox.renew($1::text::uuid, $2::text::bigint[], $3::text::int,
		$4::text::int[])`
	lost = `SELECT id, attempt FROM unnest($2::text::bigint[], $4::text::int[]) AS held(id, attempt)
		WHERE outbox.renew_one($1::text::uuid, id, $3::text::int, attempt) = 0`
	release    = `SELECT outbox.release($1::text::uuid, $2::text::bigint[])`
	releaseAll = `SELECT outbox.release($1::text::uuid)`

	ackDelay         = 5 * time.Millisecond
	ackIDs           = 100
	transactionTries = 3
)

// Handler handles a message. Its context is done when the lease is lost, or when it has
// taken too long.
type Handler func(ctx context.Context, m *Message) error

// TxHandler handles a message in a transaction, in which it is then acknowledged.
type TxHandler func(ctx context.Context, m *Message, tx *sql.Tx) error

// Event is what a hook is called with; ../README.md says which fields each has.
type Event struct {
	Name               string
	Message            *Message
	Outcome            string
	Duration           time.Duration
	Count, Asked, Lost int
	Err                string
}

// WorkerOptions are described in ../README.md. What is zero has its default.
type WorkerOptions struct {
	Concurrency, MaxBatch, MaxAttempts, LeaseSeconds, WaitMs int
	Subscription, Namespace, TenantID                        string
	Shutdown                                                 time.Duration
	Hook                                                     func(Event)
	Wrap                                                     func(ctx context.Context, m *Message, call func(context.Context) error) error
}

type entry struct {
	handler Handler
	inTx    TxHandler
	timeout time.Duration
}

// Worker runs handlers in goroutines. It uses two connections of the pool, and one for
// each transaction; SetMaxIdleConns should allow as many.
type Worker struct {
	WorkerOptions
	db       *sql.DB
	handlers map[string]entry
}

// NewWorker makes a worker.
func NewWorker(db *sql.DB, options WorkerOptions) *Worker {
	for _, o := range []struct {
		value        *int
		def, minimum int
	}{{&options.Concurrency, 10, 1}, {&options.MaxBatch, 100, options.Concurrency},
		{&options.LeaseSeconds, 30, 1}, {&options.WaitMs, 20000, 1}} {
		if *o.value == 0 {
			*o.value = o.def
		}
		if *o.value < o.minimum {
			*o.value = o.minimum
		}
	}
	if options.Shutdown == 0 {
		options.Shutdown = 25 * time.Second
	}
	if options.Hook == nil {
		options.Hook = func(Event) {}
	}
	if options.Wrap == nil {
		options.Wrap = func(ctx context.Context, _ *Message, call func(context.Context) error) error {
			return call(ctx)
		}
	}
	return &Worker{options, db, map[string]entry{}}
}

// Handle has the handler run for the topic, or for all others if it is "*". It may take as
// long as timeout, or any time if that is 0.
func (w *Worker) Handle(topic string, handler Handler, timeout time.Duration) {
	w.handlers[topic] = entry{handler: handler, timeout: timeout}
}

// HandleTx does so in a transaction; when the handler returns nil, the message is
// acknowledged in it, and it is committed.
func (w *Worker) HandleTx(topic string, handler TxHandler, timeout time.Duration) {
	w.handlers[topic] = entry{inTx: handler, timeout: timeout}
}

// Run works until the context is done; see signal.NotifyContext.
func (w *Worker) Run(ctx context.Context) error {
	_, err := w.start(ctx, false)
	return err
}

// Drain is for tests: it works until nothing is due, without waiting, and returns how many
// messages were handled.
func (w *Worker) Drain(ctx context.Context) (int, error) { return w.start(ctx, true) }

type call struct {
	statement string
	values    []any
}

// A run of a worker. Only the goroutine of its loop touches it; others post to it what is
// to be done there.
type run struct {
	*Worker
	owner                string
	topics               any
	posts                chan func()
	ended                chan struct{}
	base, claims         context.Context // of handlers and settling; of claims
	stopClaims           context.CancelFunc
	draining             bool
	waiting              []*Message // claimed, not begun
	running              map[*Message]bool
	target               int // how many to have in hand
	full                 bool
	claimed              time.Time
	acks                 []*Message
	calls                []call // what fails or goes back
	flush, renews        bool   // is it time to?
	inClaim, inSettle    bool
	stopping, over, done bool
	handled              int
	err                  error
}

// detached has the values of a context, and does not end with it.
type detached struct{ context.Context }

func (detached) Deadline() (deadline time.Time, ok bool) { return }
func (detached) Done() <-chan struct{}                   { return nil }
func (detached) Err() error                              { return nil }

func (w *Worker) start(ctx context.Context, draining bool) (int, error) {
	if len(w.handlers) == 0 {
		return 0, errors.New("no topic has a handler")
	}
	if err := w.db.PingContext(ctx); err != nil {
		return 0, err
	}
	var b [16]byte
	if _, err := rand.Read(b[:]); err != nil {
		return 0, err
	}
	r := &run{Worker: w, owner: fmt.Sprintf("%x", b), draining: draining, posts: make(chan func()),
		ended: make(chan struct{}), running: map[*Message]bool{}, target: w.Concurrency}
	defer close(r.ended)
	var cancelAll context.CancelFunc
	r.base, cancelAll = context.WithCancel(detached{ctx})
	defer cancelAll()
	r.claims, r.stopClaims = context.WithCancel(r.base)
	if _, all := w.handlers["*"]; !all {
		var topics []string
		for topic := range w.handlers {
			topics = append(topics, topic)
		}
		encoded, _ := text(topics)
		r.topics = "{" + encoded[1:len(encoded)-1] + "}" // strings in JSON are quoted as in an array
	}
	renewal := time.NewTicker(time.Duration(w.LeaseSeconds) * time.Second / 3)
	defer renewal.Stop()
	stop := ctx.Done()
	for r.step(); !r.done; r.step() {
		select {
		case post := <-r.posts:
			post()
		case <-renewal.C:
			r.renews = true
		case <-stop:
			r.stop(nil)
			stop = nil
		}
	}
	return r.handled, r.err
}

// post has the loop do this, unless it has ended.
func (r *run) post(what func()) {
	select {
	case r.posts <- what:
	case <-r.ended:
	}
}

func (r *run) later(delay time.Duration, what func()) {
	time.AfterFunc(delay, func() { r.post(what) })
}

func (r *run) stop(err error) {
	if r.err == nil {
		r.err = err
	}
	if r.stopping {
		return
	}
	r.stopping = true
	r.stopClaims()
	r.later(r.Shutdown, func() {
		for m := range r.running {
			r.lose(m)
			delete(r.running, m)
		}
	})
	r.later(r.Shutdown+2*time.Second, func() { r.done = true })
}

// step begins what can be begun.
func (r *run) step() {
	if r.stopping && len(r.waiting) > 0 {
		ids := r.drop(func(*Message) bool { return true })
		r.calls = append(r.calls, call{release, []any{r.owner, ids}})
	}
	for i := r.startable(); i >= 0; i = r.startable() {
		m := r.waiting[i]
		r.waiting = append(r.waiting[:i:i], r.waiting[i+1:]...)
		r.running[m] = true
		var ctx context.Context
		ctx, m.cancel = context.WithCancel(r.base)
		go r.handle(ctx, m)
	}
	if asked := r.ask(); asked > 0 && !r.inClaim && !r.stopping {
		r.inClaim = true
		go r.claim(asked, len(r.running)+len(r.acks)+len(r.calls) == 0 && !r.inSettle)
	}
	ended := r.stopping && !r.inClaim && len(r.running) == 0
	switch {
	case r.inSettle:
	case len(r.calls) > 0 || len(r.acks) >= ackIDs || len(r.acks) > 0 && (r.flush || ended):
		calls, count := r.calls, len(r.acks)
		if count > ackIDs {
			count = ackIDs
		}
		acks := r.acks[:count:count]
		r.calls, r.acks, r.flush = nil, r.acks[count:], count < len(r.acks)
		r.settle(func() error { return r.send(acks, calls) })
	case r.over:
		r.done = true
	case ended:
		r.over = true
		r.settle(func() error { return r.send(nil, []call{{releaseAll, []any{r.owner}}}) })
	case r.renews:
		r.renews = false
		if held := r.held(); len(held) > 0 {
			r.settle(func() error { return r.renew(held) })
		}
	}
}

// settle sends something beside the loop; one at a time.
func (r *run) settle(work func() error) {
	r.inSettle = true
	go func() {
		err := work()
		r.post(func() {
			if r.inSettle = false; err != nil {
				r.stop(err)
			}
		})
	}()
}

// ask is how many messages to claim now; 0 if no slot is free for one.
func (r *run) ask() int {
	free, held := r.Concurrency-len(r.running), len(r.waiting)+len(r.running)
	if free == 0 || r.startable() >= 0 {
		return 0
	}
	if took := time.Since(r.claimed); !r.full || took > 500*time.Millisecond {
		r.target = r.Concurrency
	} else if took < 100*time.Millisecond {
		r.target = min(2*r.target, r.MaxBatch)
	}
	return min(-min(held-r.target, -free), r.MaxBatch-held)
}

func min(a, b int) int {
	if a < b {
		return a
	}
	return b
}

// startable finds a message for a free slot, but none beside another of its stream; or -1.
func (r *run) startable() int {
	busy := map[string]bool{}
	for m := range r.running {
		busy[m.StreamID] = m.StreamID != ""
	}
	for i, m := range r.waiting {
		if !busy[m.StreamID] && len(r.running) < r.Concurrency {
			return i
		}
	}
	return -1
}

func (r *run) held() []*Message {
	held := append([]*Message{}, r.waiting...)
	for m := range r.running {
		if m.outcome.Load() == undecided {
			held = append(held, m)
		}
	}
	return held
}

// drop takes out what no handler has begun; the ids.
func (r *run) drop(wanted func(*Message) bool) string {
	var kept, dropped []*Message
	for _, m := range r.waiting {
		if wanted(m) {
			dropped = append(dropped, m)
		} else {
			kept = append(kept, m)
		}
	}
	r.waiting = kept
	ids, _ := lists(dropped)
	return ids
}

func lists(messages []*Message) (ids, attempts string) {
	for _, m := range messages {
		ids += fmt.Sprint(",", m.ID)
		attempts += fmt.Sprint(",", m.Attempts)
	}
	return "{" + strings.TrimPrefix(ids, ",") + "}", "{" + strings.TrimPrefix(attempts, ",") + "}"
}

func (r *run) handle(ctx context.Context, m *Message) {
	e, there := r.handlers[m.Topic]
	if !there {
		e = r.handlers["*"]
	}
	began, ended := time.Now(), make(chan error, 1)
	var late <-chan time.Time
	if e.timeout > 0 {
		late = time.After(e.timeout)
	}
	go func() {
		defer func() {
			if recovered := recover(); recovered != nil {
				ended <- panicked{}
			}
		}()
		if e.inTx != nil {
			ended <- r.transact(ctx, m, e.inTx)
		} else {
			ended <- r.Wrap(ctx, m, func(ctx context.Context) error { return e.handler(ctx, m) })
		}
	}()
	var err error
	select {
	case err = <-ended:
	case <-late:
		r.post(func() { r.judge(m, context.DeadlineExceeded) })
		m.cancel()
		err = <-ended
	}
	r.post(func() {
		r.judge(m, err)
		m.cancel()
		delete(r.running, m)
		r.handled++
		r.Hook(Event{Name: "finished", Message: m, Outcome: outcomes[m.outcome.Load()], Duration: time.Since(began)})
	})
}

type panicked struct{}

func (panicked) Error() string { return "panic" }

func (r *run) transact(ctx context.Context, m *Message, handler TxHandler) error {
	for left := transactionTries - 1; ; left-- {
		tx, err := r.db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		err = r.Wrap(ctx, m, func(ctx context.Context) error { return handler(ctx, m, tx) })
		begun := err == nil && m.outcome.CompareAndSwap(undecided, acked) // from here on, the transaction decides
		if begun {
			_, err = tx.ExecContext(ctx, ackOne, r.owner, fmt.Sprint(m.ID), fmt.Sprint(m.Attempts))
		} else if err == nil {
			err = ErrLeaseLost
		}
		if err == nil {
			err = tx.Commit()
		}
		if err == nil {
			return nil
		}
		tx.Rollback()
		if begun {
			m.outcome.Store(undecided)
		}
		switch code := state(err); {
		case begun && code == "55000":
			return ErrLeaseLost
		case left == 0 || code != "40001" && code != "40P01":
			return err
		}
	}
}

// judge decides what becomes of a message: its handler has ended, or must.
func (r *run) judge(m *Message, err error) {
	outcome, permanent, retry := retried, (*PermanentError)(nil), (*RetryError)(nil)
	switch {
	case err == nil:
		outcome = acked
	case errors.As(err, &permanent):
		outcome = failed
	case errors.Is(err, ErrLeaseLost):
		outcome = leaseLost
	}
	if !m.outcome.CompareAndSwap(undecided, outcome) {
		return
	}
	of, behind := []any{r.owner, fmt.Sprint(m.ID), describe(err), nil, fmt.Sprint(m.Attempts)}, ""
	if outcome == retried || outcome == leaseLost { // what is behind it in its stream is not to be handled now
		behind = r.drop(func(other *Message) bool { return m.StreamID != "" && other.StreamID == m.StreamID })
	}
	switch outcome {
	case acked:
		if r.acks = append(r.acks, m); len(r.acks) == 1 {
			time.AfterFunc(ackDelay, func() { r.post(func() { r.flush = true }) })
		}
	case failed:
		of[3] = fmt.Sprint(permanent.Reason)
		r.calls = append(r.calls, call{fail, of})
	case retried:
		if errors.As(err, &retry) {
			of[3] = interval(retry.After)
		}
		r.calls = append(r.calls, call{nack, append(of, behind)})
	}
}

func (r *run) lose(m *Message) {
	r.judge(m, ErrLeaseLost)
	m.cancel()
}

func (r *run) claim(asked int, idle bool) {
	wait := r.WaitMs
	if r.draining {
		wait = 0
	}
	var messages []*Message
	_, err := r.repeat(r.claims, claim, func(rows *sql.Rows) error {
		m, headers := &Message{}, ""
		messages = append(messages, m)
		err := rows.Scan(&m.ID, &m.MessageID, &m.Namespace, &m.Topic, &m.Payload, &headers, &m.CorrelationID,
			&m.TenantID, &m.DedupeKey, &m.StreamID, &m.Attempts, &m.RetryCount, &m.CreatedAt, &m.DueTime,
			&m.LockedUntil, &m.Subscription, &m.PublishedID, &m.Priority)
		if err != nil {
			return err
		}
		return json.Unmarshal([]byte(headers), &m.Headers)
	}, r.owner, fmt.Sprint(r.LeaseSeconds), fmt.Sprint(asked), null(r.Namespace), r.topics, null(r.TenantID),
		null(fmt.Sprint(r.MaxAttempts)), fmt.Sprint(wait), null(r.Subscription))
	if len(messages) == 0 && r.draining {
		time.Sleep(10 * time.Millisecond)
	}
	r.post(func() {
		r.inClaim = false
		switch {
		case err != nil && !r.stopping:
			r.stop(err)
		case err == nil:
			r.waiting = append(r.waiting, messages...)
			r.full, r.claimed = len(messages) == asked, time.Now()
			r.Hook(Event{Name: "claimed", Count: len(messages), Asked: asked})
			if r.draining && len(messages) == 0 && idle {
				r.stop(nil)
			}
		}
	})
}

// null is nil for what is not given.
func null(value string) any {
	if value == "" || value == "0" {
		return nil
	}
	return value
}

func (r *run) send(acks []*Message, calls []call) error {
	if len(acks) > 0 {
		ids, attempts := lists(acks)
		count := 0
		again, err := r.repeat(r.base, ack, func(rows *sql.Rows) error { return rows.Scan(&count) }, r.owner, ids, attempts)
		if err != nil {
			return err
		}
		if again {
			count = len(acks) // how many the first call has acknowledged is not known
		}
		r.post(func() { r.Hook(Event{Name: "settled", Count: len(acks), Lost: len(acks) - count}) })
	}
	for _, c := range calls {
		if _, err := r.repeat(r.base, c.statement, nil, c.values...); err != nil {
			return err
		}
	}
	return nil
}

func (r *run) renew(held []*Message) error {
	ids, attempts := lists(held)
	values := []any{r.owner, ids, fmt.Sprint(r.LeaseSeconds), attempts}
	count, gone := 0, map[string]bool{}
	_, err := r.repeat(r.base, renew, func(rows *sql.Rows) error { return rows.Scan(&count) }, values...)
	if err != nil || count == len(held) {
		return err
	}
	_, err = r.repeat(r.base, lost, func(rows *sql.Rows) error {
		var id, attempt int64
		err := rows.Scan(&id, &attempt)
		gone[fmt.Sprint(id, attempt)] = true
		return err
	}, values...)
	r.post(func() {
		for _, m := range held {
			if gone[fmt.Sprint(m.ID, m.Attempts)] && m.outcome.Load() == undecided {
				r.drop(func(other *Message) bool { return other == m })
				r.lose(m)
				r.Hook(Event{Name: "lost", Message: m})
			}
		}
	})
	return err
}

// repeat sends a statement until it is answered; did it have to be repeated?
func (r *run) repeat(ctx context.Context, statement string, scan func(*sql.Rows) error, values ...any) (again bool, err error) {
	for delay := 100 * time.Millisecond; ; delay, again = 2*delay, true {
		err = query(ctx, r.db, statement, values, func(rows *sql.Rows) error {
			if scan == nil {
				return nil
			}
			return scan(rows)
		})
		if err == nil || ctx.Err() != nil || !repeatable(err) {
			if state(err) == "57014" && statement == claim {
				err = nil // a statement_timeout
			}
			return again, err
		}
		r.post(func() { r.Hook(Event{Name: "reconnect", Err: describe(err)}) })
		if delay > 5*time.Second {
			delay = 5 * time.Second
		}
		select {
		case <-ctx.Done():
			return again, ctx.Err()
		case <-time.After(delay/2 + time.Duration(mathrand.Int63n(int64(delay/2)))):
		}
	}
}
