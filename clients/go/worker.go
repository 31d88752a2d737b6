package outbox

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"
)

// A statement of settling answers with rows of two numbers.
const (
	claim = `SELECT id, message_id::text, namespace, topic, payload, owner_token::text,
			coalesce(headers, '{}')::text, coalesce(correlation_id, ''), coalesce(tenant_id::text, ''),
			coalesce(dedupe_key, ''), coalesce(stream_id::text, ''), attempts, retry_count, priority,
			created_at, locked_until, due_time, coalesce(subscription, ''), coalesce(published_id::text, '')
		FROM outbox.claim($1::text::uuid, $2::text::int, $3::text::int, $4::text, $5::text::text[],
			$6::text::uuid, $7::text::int, $8::text::int, $9::text)`
	held = `unnest($1::text::uuid[], $2::text::bigint[], $3::text::int[]) AS held(owner, id, attempt)`
	ack  = `SELECT coalesce(sum(outbox.ack(owner, ids, attempts)), 0), 0
		FROM (SELECT owner, array_agg(id), array_agg(attempt) FROM ` + held + ` GROUP BY owner)
			AS own(owner, ids, attempts)`
	ackOne = `SELECT outbox.ack_one($1::text::uuid, $2::text::bigint, $3::text::int, strict => true)`
	nack   = `SELECT outbox.nack_one($1::text::uuid, $2::text::bigint, $4::text, $5::text::interval, $3::text::int), 0`
	fail   = `SELECT outbox.fail_one($1::text::uuid, $2::text::bigint, $4::text, $5::text::int, $3::text::int), 0`
	// renews; its rows are the leases that are lost
	renew      = `SELECT id, attempt FROM ` + held + ` WHERE outbox.renew_one(owner, id, $4::text::int, attempt) = 0`
	release    = `SELECT outbox.release_one(owner, id), 0 FROM ` + held
	releaseAll = `SELECT outbox.release($1::text::uuid), 0`

	ackDelay         = 5 * time.Millisecond
	ackIDs           = 100
	mostUnsettled    = 1000
	transactionTries = 3
	firstDelay       = 100 * time.Millisecond
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
// each transaction: SetMaxOpenConns must allow as many, and SetMaxIdleConns should.
type Worker struct {
	WorkerOptions
	db       *sql.DB
	handlers map[string]entry
}

func or[T comparable](value, otherwise T) T {
	var zero T
	if value == zero {
		return otherwise
	}
	return value
}

// NewWorker makes a worker.
func NewWorker(db *sql.DB, o WorkerOptions) *Worker {
	o.Concurrency, o.MaxBatch = or(o.Concurrency, 10), or(o.MaxBatch, 100)
	o.LeaseSeconds, o.WaitMs = or(o.LeaseSeconds, 30), or(o.WaitMs, 20000)
	o.Shutdown = or(o.Shutdown, 25*time.Second)
	o.MaxBatch = max(o.MaxBatch, o.Concurrency)
	if o.Hook == nil {
		o.Hook = func(Event) {}
	}
	if o.Wrap == nil {
		o.Wrap = func(ctx context.Context, _ *Message, call func(context.Context) error) error { return call(ctx) }
	}
	return &Worker{o, db, map[string]entry{}}
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
	conn                *sql.Conn // of claims
	owner               string
	strays              []string // owners of claims without an answer
	posts               chan func()
	ended               chan struct{}
	base, claims        context.Context // of handlers and settling; of claims
	waiting, acks       []*Message      // claimed, not begun; handled, not acknowledged
	running             map[*Message]bool
	calls               []call          // what fails or goes back
	retried             map[string]bool // ids and streams, while draining
	target, handled     int             // target: how many to have in hand
	claimed, renewAt    time.Time
	claimDelay, third   time.Duration
	inClaim, inSettle   bool
	full, flush         bool // the last claim was answered in full; it is time for acks
	draining, stopping  bool
	releasing, finished bool
	err                 error
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
	third := time.Duration(w.LeaseSeconds) * time.Second / 3
	r := &run{Worker: w, draining: draining, posts: make(chan func()), ended: make(chan struct{}),
		running: map[*Message]bool{}, retried: map[string]bool{}, target: w.Concurrency, claimDelay: firstDelay,
		third: third, renewAt: time.Now().Add(third)}
	defer close(r.ended)
	base, cancelAll := context.WithCancel(detached{ctx})
	defer cancelAll()
	claims, stopClaims := context.WithCancel(base)
	defer stopClaims()
	r.base, r.claims = base, claims
	if err := r.reconnect(); err != nil {
		return 0, err
	}
	ticker := time.NewTicker(third / 4)
	defer ticker.Stop()
	stop := ctx.Done()
	for r.step(); !r.finished; r.step() {
		select {
		case post := <-r.posts:
			post()
		case <-ticker.C:
		case <-stop:
			r.stop(nil)
			stop = nil
		}
		if r.stopping {
			stopClaims()
		}
	}
	if !r.inClaim {
		r.disconnect()
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

func (r *run) later(delay time.Duration, what func()) *time.Timer {
	return time.AfterFunc(delay, func() { r.post(what) })
}

func (r *run) stop(err error) {
	if r.err == nil {
		r.err = err
	}
	if r.stopping {
		return
	}
	r.stopping = true
	r.later(r.Shutdown, func() {
		for m := range r.running {
			r.lose(m, false)
			delete(r.running, m)
		}
	})
	r.later(r.Shutdown+2*time.Second, func() {
		r.finished = true
		if r.err == nil {
			r.err = errors.New("the server did not answer in time")
		}
	})
}

// step begins what can be begun.
func (r *run) step() {
	if r.stopping && len(r.waiting) > 0 {
		r.calls = append(r.calls, call{release, parts(r.drop(func(*Message) bool { return true }))})
	}
	for i := r.startable(); i >= 0; i = r.startable() {
		m := r.waiting[i]
		r.waiting = append(r.waiting[:i:i], r.waiting[i+1:]...)
		r.running[m] = true
		var ctx context.Context
		ctx, m.cancel = context.WithCancel(r.base)
		go r.handle(ctx, m)
	}
	unsettled := len(r.acks) + len(r.calls)
	if asked := r.ask(); asked > 0 && !r.inClaim && !r.stopping && unsettled < mostUnsettled {
		r.inClaim = true
		go r.claim(asked, len(r.running)+unsettled == 0 && !r.inSettle)
	}
	ending := r.stopping && !r.inClaim && len(r.running) == 0
	switch {
	case r.inSettle:
	case time.Now().After(r.renewAt) && !ending:
		held := r.leased()
		r.settle(func() error { return r.renew(held) })
	case len(r.calls) > 0 || len(r.acks) >= ackIDs || len(r.acks) > 0 && (r.flush || ending):
		calls, count := r.calls, min(len(r.acks), ackIDs)
		acks := r.acks[:count:count]
		r.calls, r.acks, r.flush = nil, r.acks[count:], count < len(r.acks)
		r.settle(func() error { return r.send(acks, calls) })
	case r.releasing:
		r.finished = true
	case ending:
		r.disconnect() // then its owner is a stray, too
		for _, owner := range r.strays {
			r.calls = append(r.calls, call{releaseAll, []any{owner}})
		}
		r.releasing = true
		r.step()
	case len(r.strays) > 0 && !r.holds(r.strays[0]):
		r.calls, r.strays = append(r.calls, call{releaseAll, []any{r.strays[0]}}), r.strays[1:]
		r.step()
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
	free, inHand := r.Concurrency-len(r.running), len(r.waiting)+len(r.running)
	if free == 0 || r.startable() >= 0 {
		return 0
	}
	if took := time.Since(r.claimed); !r.full || took > 500*time.Millisecond {
		r.target = r.Concurrency
	} else if took < 100*time.Millisecond {
		r.target = min(2*r.target, r.MaxBatch)
	}
	return min(max(r.target-inHand, free), r.MaxBatch-inHand)
}

func max(a, b int) int { return -min(-a, -b) }

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
		if !busy[m.StreamID] && len(r.running) < r.Concurrency && !r.stopping && time.Now().Before(m.until) {
			return i
		}
	}
	return -1
}

// leased is what must be renewed.
func (r *run) leased() []*Message {
	leased := append([]*Message{}, r.waiting...)
	for m := range r.running {
		if m.outcome.Load() == undecided {
			leased = append(leased, m)
		}
	}
	return leased
}

// holds says whether a message in hand is of this owner.
func (r *run) holds(owner string) bool {
	for _, m := range append(r.leased(), r.acks...) {
		if m.OwnerToken == owner {
			return true
		}
	}
	return false
}

// drop takes out what no handler has begun.
func (r *run) drop(wanted func(*Message) bool) (dropped []*Message) {
	var kept []*Message
	for _, m := range r.waiting {
		if wanted(m) {
			dropped = append(dropped, m)
		} else {
			kept = append(kept, m)
		}
	}
	r.waiting = kept
	return dropped
}

// parts are owners, ids and attempts, as statements take them.
func parts(messages []*Message) []any {
	var owners, ids, attempts []string
	for _, m := range messages {
		owners = append(owners, m.OwnerToken)
		ids = append(ids, fmt.Sprint(m.ID))
		attempts = append(attempts, fmt.Sprint(m.Attempts))
	}
	return []any{array(owners), array(ids), array(attempts)}
}

func array(words []string) string { return "{" + strings.Join(words, ",") + "}" }

func (r *run) handle(ctx context.Context, m *Message) {
	e, there := r.handlers[m.Topic]
	if !there {
		e = r.handlers["*"]
	}
	began := time.Now()
	if e.timeout > 0 {
		defer r.later(e.timeout, func() {
			if r.judge(m, context.DeadlineExceeded) {
				m.cancel()
			}
		}).Stop()
	}
	ended := make(chan error, 1)
	go func() {
		err := error(notReturned{})
		defer func() {
			_ = recover()
			ended <- err
		}()
		if e.inTx != nil {
			err = r.transact(ctx, m, e.inTx)
		} else {
			err = r.Wrap(ctx, m, func(ctx context.Context) error { return e.handler(ctx, m) })
		}
	}()
	err := <-ended
	r.post(func() {
		r.judge(m, err)
		m.cancel()
		delete(r.running, m)
		r.handled++
		r.Hook(Event{Name: "finished", Message: m, Outcome: outcomes[m.outcome.Load()], Duration: time.Since(began)})
	})
}

// notReturned is what is known of a handler that has panicked, or has ended its goroutine.
type notReturned struct{}

func (notReturned) Error() string { return "the handler has not returned" }

func (r *run) transact(ctx context.Context, m *Message, handler TxHandler) (err error) {
	for left := transactionTries; left > 0; left-- {
		err = r.transactOnce(ctx, m, handler)
		if code := state(err); code != "40001" && code != "40P01" {
			break
		}
	}
	return err
}

func (r *run) transactOnce(ctx context.Context, m *Message, handler TxHandler) error {
	tx, err := r.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if err := r.Wrap(ctx, m, func(ctx context.Context) error { return handler(ctx, m, tx) }); err != nil {
		return err
	}
	if !m.outcome.CompareAndSwap(undecided, acked) { // from here on, the transaction decides
		return ErrLeaseLost
	}
	if _, err = tx.ExecContext(ctx, ackOne, m.OwnerToken, fmt.Sprint(m.ID), fmt.Sprint(m.Attempts)); err == nil {
		err = tx.Commit()
	}
	if err != nil {
		m.outcome.Store(undecided)
	}
	if state(err) == "55000" {
		return ErrLeaseLost
	}
	return err
}

// judge decides what becomes of a message, unless that is decided: its handler has ended, or
// must.
func (r *run) judge(m *Message, err error) bool {
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
		return false
	}
	values := []any{m.OwnerToken, fmt.Sprint(m.ID), fmt.Sprint(m.Attempts), describe(err), nil}
	switch outcome {
	case acked:
		if r.acks = append(r.acks, m); len(r.acks) == 1 {
			r.later(ackDelay, func() { r.flush = true })
		}
		return true
	case failed:
		values[4] = null(fmt.Sprint(permanent.Reason))
		r.calls = append(r.calls, call{fail, values})
		return true
	case retried:
		if errors.As(err, &retry) && retry.After >= 0 {
			values[4] = interval(retry.After)
		}
		r.calls = append(r.calls, call{nack, values})
		r.retried[m.key()] = r.draining
	}
	// the server takes back what is behind it in its stream
	r.drop(func(other *Message) bool { return m.StreamID != "" && other.StreamID == m.StreamID })
	return true
}

func (r *run) lose(m *Message, told bool) {
	r.drop(func(other *Message) bool { return other == m })
	if !r.judge(m, ErrLeaseLost) {
		return
	}
	if m.cancel != nil {
		m.cancel()
	}
	if told {
		r.Hook(Event{Name: "lost", Message: m})
	}
}

// claim has a connection of its own, and a new owner with each new connection: what a claim
// without an answer may have taken must not count as held by this worker, which knows nothing of
// it. (Without, the pool would repeat the claim by itself.)
func (r *run) claim(asked int, idle bool) {
	var messages []*Message
	sent, err := time.Now(), r.reconnect()
	if err == nil {
		err = query(r.claims, r.conn, claim, r.claimValues(asked), func(rows *sql.Rows) error {
			m, headers := &Message{}, []byte{}
			messages = append(messages, m)
			err := rows.Scan(&m.ID, &m.MessageID, &m.Namespace, &m.Topic, &m.Payload, &m.OwnerToken, &headers,
				&m.CorrelationID, &m.TenantID, &m.DedupeKey, &m.StreamID, &m.Attempts, &m.RetryCount, &m.Priority,
				&m.CreatedAt, &m.LockedUntil, &m.DueTime, &m.Subscription, &m.PublishedID)
			if err != nil {
				return err
			}
			return json.Unmarshal(headers, &m.Headers)
		})
	}
	r.post(func() { r.take(messages, asked, idle, sent, err) })
}

func (r *run) reconnect() (err error) {
	if r.conn != nil {
		return nil
	}
	if r.conn, err = r.db.Conn(r.claims); err == nil {
		err = r.conn.QueryRowContext(r.claims, "SELECT gen_random_uuid()::text").Scan(&r.owner)
	}
	return err
}

func (r *run) claimValues(asked int) []any {
	var topics any
	if _, all := r.handlers["*"]; !all {
		names, quoter := []string{}, strings.NewReplacer(`\`, `\\`, `"`, `\"`)
		for topic := range r.handlers {
			names = append(names, `"`+quoter.Replace(topic)+`"`)
		}
		topics = array(names)
	}
	wait := r.WaitMs
	if r.draining {
		wait = 0
	}
	return []any{r.owner, fmt.Sprint(r.LeaseSeconds), fmt.Sprint(asked), null(r.Namespace), topics,
		null(r.TenantID), null(fmt.Sprint(r.MaxAttempts)), fmt.Sprint(wait), null(r.Subscription)}
}

func (r *run) take(messages []*Message, asked int, idle bool, sent time.Time, err error) {
	hold := time.Duration(0)
	switch {
	case err == nil:
		for _, m := range messages {
			m.until = sent.Add(3 * r.third) // surely not sooner: what came late is renewed first
			if !r.retried[m.key()] {
				r.waiting = append(r.waiting, m)
			}
		}
		if sent.Add(r.third).Before(r.renewAt) {
			r.renewAt = sent.Add(r.third)
		}
		r.full, r.claimed, r.claimDelay = len(messages) == asked, time.Now(), firstDelay
		r.Hook(Event{Name: "claimed", Count: len(messages), Asked: asked})
		if r.draining && len(messages) == 0 {
			if hold = 10 * time.Millisecond; idle {
				r.stop(nil)
			}
		}
	case state(err) == "57014":
	case r.stopping: // what the server is claiming in this moment must be there when all is released
		hold = 200 * time.Millisecond
	case repeatable(err):
		r.disconnect()
		r.Hook(Event{Name: "reconnect", Err: describe(err)})
		hold = pause(&r.claimDelay)
	default:
		r.stop(err)
	}
	r.later(hold, func() { r.inClaim = false })
}

func (r *run) disconnect() {
	if r.conn != nil {
		r.conn.Close()
	}
	if r.owner != "" {
		r.strays = append(r.strays, r.owner)
	}
	r.conn, r.owner = nil, ""
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
		rows, again, err := r.repeat(ack, parts(acks)...)
		if err != nil {
			return err
		}
		count := len(acks)
		if !again { // how many the first of several calls has acknowledged is not known
			count = int(rows[0][0])
		}
		r.post(func() { r.Hook(Event{Name: "settled", Count: len(acks), Lost: len(acks) - count}) })
	}
	for _, c := range calls {
		_, _, err := r.repeat(c.statement, c.values...)
		if strings.HasPrefix(state(err), "22") && len(c.values) == 5 {
			// the server does not take what the handler has said
			_, _, err = r.repeat(c.statement, append(c.values[:3:3], nil, nil)...)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (r *run) renew(held []*Message) (err error) {
	began, lost := time.Now(), map[[2]int64]bool{}
	if len(held) > 0 {
		rows, _, failed := r.repeat(renew, append(parts(held), fmt.Sprint(r.LeaseSeconds))...)
		for _, row := range rows {
			lost[row] = true
		}
		err = failed
	}
	r.post(func() {
		for _, m := range held {
			m.until = began.Add(3 * r.third)
			if lost[[2]int64{m.ID, int64(m.Attempts)}] {
				r.lose(m, true)
			}
		}
		r.renewAt = began.Add(r.third)
	})
	return err
}

// repeat sends a statement until it is answered; did it have to be repeated?
func (r *run) repeat(statement string, values ...any) (rows [][2]int64, again bool, err error) {
	for delay := firstDelay; ; again = true {
		rows = nil
		err = query(r.base, r.db, statement, values, func(result *sql.Rows) error {
			var row [2]int64
			err := result.Scan(&row[0], &row[1])
			rows = append(rows, row)
			return err
		})
		if err == nil || r.base.Err() != nil || !repeatable(err) {
			return rows, again, err
		}
		text := describe(err)
		r.post(func() {
			r.Hook(Event{Name: "reconnect", Err: text})
			for _, m := range r.leased() {
				if time.Now().After(m.until) {
					r.lose(m, true)
				}
			}
		})
		select {
		case <-r.base.Done():
		case <-time.After(pause(&delay)):
		}
	}
}

// pause is how long to wait before another try; the next pause is longer.
func pause(delay *time.Duration) time.Duration {
	half := *delay / 2
	*delay = time.Duration(min(int(2**delay), int(5*time.Second)))
	return half + time.Duration(time.Now().UnixNano())%half
}

func state(err error) string {
	var coded interface{ SQLState() string }
	if errors.As(err, &coded) {
		return coded.SQLState()
	}
	return ""
}

var repeated = regexp.MustCompile("^(08|40001|40P01|53300|57P0[123])")

// repeatable is the error of a connection that has broken or cannot be made, and some others.
// What has no SQLSTATE is the driver's, about its connection, and not always of a type of its own.
func repeatable(err error) bool {
	code := state(err)
	return repeated.MatchString(code) || code == "" && !strings.HasPrefix(err.Error(), "sql: ")
}
