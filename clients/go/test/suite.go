// The suite of the Go client: suite produce | send | drain | worker; see ../../test/run.py.
package main

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"reflect"
	"runtime"
	"sort"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"outbox"
)

const (
	tenant = "00000000-0000-4000-8000-0000000000aa"
	given  = "01234567-0000-4000-8000-000000000042"
	stream = "00000000-0000-4000-8000-000000000007"
)

var output sync.Mutex

func say(words ...any) {
	output.Lock()
	defer output.Unlock()
	fmt.Println(words...)
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func check(name string, got, expected any) {
	if reflect.DeepEqual(got, expected) {
		say("ok - " + name)
	} else {
		say("not ok - " + name)
		say(fmt.Sprintf("# got %#v, not %#v", got, expected))
	}
}

func open() *sql.DB {
	db, err := sql.Open(driver, dsn)
	must(err)
	db.SetMaxIdleConns(10)
	return db
}

func produce(ctx context.Context) {
	db := open()
	tx, err := db.Begin()
	must(err)
	_, err = outbox.Enqueue(ctx, tx, "p.rolled-back", "x", nil)
	must(err)
	must(tx.Rollback())
	tx, err = db.Begin()
	must(err)
	_, err = tx.Exec("INSERT INTO orders VALUES ('go')")
	must(err)
	due := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	expires, priority := due.AddDate(1, 0, 0), 1
	made := ""
	for _, m := range []outbox.New{
		{Topic: "p.committed", Payload: map[string]int{"order": 7}},
		{Topic: "p.text", Payload: `plain "text" é`},
		{Topic: "p.options", Payload: "x", Options: outbox.Options{
			CorrelationID: "c-1", Namespace: "shop", TenantID: tenant, DueTime: &due, ExpiresAt: &expires,
			DedupeKey: strings.ReplaceAll(tenant, "-", "") + "/k", StreamID: stream, MessageID: given,
			Headers: map[string]any{"region": "eu"}, DedupeFor: "1 hour", OnDuplicate: "keep",
			Priority: &priority, Traceparent: "00-argument"}},
		{Topic: "p.trace", Payload: "x"},
		{Topic: "p.own", Payload: "x", Options: outbox.Options{Headers: map[string]any{"traceparent": "own"}}},
	} {
		id, err := outbox.Enqueue(ctx, tx, m.Topic, m.Payload, &m.Options)
		must(err)
		if m.Topic == "p.options" {
			made = id
		}
	}
	must(tx.Commit())
	check("Enqueue answers the message_id", made, given)
	rows, err := outbox.EnqueueBatch(ctx, db, []outbox.New{
		{Topic: "p.batch", Payload: "one"},
		{Topic: "p.batch", Payload: map[string]int{"n": 2}, Options: outbox.Options{DedupeKey: "twin"}},
		{Topic: "p.batch", Payload: "three", Options: outbox.Options{DedupeKey: "twin"}}})
	must(err)
	check("a batch says what is new", []any{rows[0].Enqueued, rows[1].Outcome, rows[2].Outcome},
		[]any{true, "enqueued", "kept"})
	check("and whose a key is", rows[1].MessageID, rows[2].MessageID)
	_, err = outbox.Publish(ctx, db, "p.news", "first", nil)
	must(err)
	rows, err = outbox.PublishBatch(ctx, db, []outbox.New{{Topic: "p.news", Payload: "2"}, {Topic: "p.news", Payload: "3"}})
	must(err)
	check("PublishBatch counts deliveries", []int{rows[0].Deliveries, rows[1].Deliveries}, []int{1, 1})
}

// send takes lines of run.py: how a transaction ends, and its messages, as topic,payload,stream.
func send(ctx context.Context) {
	db := open()
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		words := strings.Fields(lines.Text())
		var messages []outbox.New
		for _, word := range words[1:] {
			parts := strings.Split(word, ",")
			m := outbox.New{Topic: parts[0], Payload: parts[1]}
			if parts[2] != "-" {
				m.StreamID = parts[2]
			}
			messages = append(messages, m)
		}
		if err := sendAll(ctx, db, words[0], messages); err != nil {
			say("failed", err)
		}
	}
}

func sendAll(ctx context.Context, db *sql.DB, how string, messages []outbox.New) error {
	tx, err := db.Begin()
	if err != nil {
		return err
	}
	defer tx.Rollback()
	first, one, many := messages[0], outbox.Enqueue, outbox.EnqueueBatch
	if strings.HasPrefix(first.Topic, "pub.") {
		one, many = outbox.Publish, outbox.PublishBatch
	}
	if _, err = one(ctx, tx, first.Topic, first.Payload, &first.Options); err != nil {
		return err
	}
	if _, err = many(ctx, tx, messages[1:]); err != nil || how == "rollback" {
		return err
	}
	return tx.Commit()
}

func drain(ctx context.Context) {
	db := open()
	seen, order, lock := []string{}, []string{}, sync.Mutex{}
	worker := outbox.NewWorker(db, outbox.WorkerOptions{Concurrency: 2})
	worker.Handle("d.ok", func(_ context.Context, m *outbox.Message) error {
		lock.Lock()
		defer lock.Unlock()
		seen = append(seen, m.Payload)
		return nil
	}, 0)
	worker.Handle("d.fail", func(_ context.Context, m *outbox.Message) error {
		return fmt.Errorf("wrapped: %w", outbox.Permanent("no such order", 4))
	}, 0)
	worker.Handle("d.retry", func(_ context.Context, m *outbox.Message) error {
		if m.Attempts == 1 {
			return outbox.Retry("later", time.Hour)
		}
		return nil
	}, 0)
	worker.Handle("d.stream", func(_ context.Context, m *outbox.Message) error {
		if order = append(order, m.Payload); len(order) == 1 {
			return outbox.Retry("again", 0)
		}
		return nil
	}, 0)
	drained := func() int {
		count, err := worker.Drain(ctx)
		must(err)
		return count
	}
	hour := time.Now().Add(time.Hour)
	for _, m := range []outbox.New{{Topic: "d.ok", Payload: "0"}, {Topic: "d.ok", Payload: "1"},
		{Topic: "d.stream", Payload: "1", Options: outbox.Options{StreamID: stream}},
		{Topic: "d.stream", Payload: "2", Options: outbox.Options{StreamID: stream}},
		{Topic: "d.ok", Payload: "2"}, {Topic: "d.fail", Payload: "x"}, {Topic: "d.retry", Payload: "x"},
		{Topic: "d.ok", Payload: "in an hour", Options: outbox.Options{DueTime: &hour}}} {
		_, err := outbox.Enqueue(ctx, db, m.Topic, m.Payload, &m.Options)
		must(err)
	}
	check("Drain handles what is due", drained(), 6)
	sort.Strings(seen)
	check("and nothing else", seen, []string{"0", "1", "2"})
	var text string
	var reason int
	must(db.QueryRow("SELECT last_error, failure_reason FROM outbox.messages WHERE topic = 'd.fail'").Scan(&text, &reason))
	check("what is dead says why", fmt.Sprint(text, reason), "no such order4")
	check("a message once, and none of its stream after one that goes back", order, []string{"1"})
	check("the next Drain goes on", fmt.Sprint(drained(), order), "2 [1 1 2]")
	check("time does not pass by itself", drained(), 0)
	moved, err := outbox.Advance(ctx, db, time.Hour+time.Minute)
	must(err)
	check("Advance moves it", moved, 2)
	check("and Drain follows", drained(), 2)
	check("to the end", seen[3:], []string{"in an hour"})
}

func slow(ctx context.Context, m *outbox.Message, seconds float64) error {
	select {
	case <-ctx.Done():
		say("cancelled", m.ID)
		return ctx.Err()
	case <-time.After(time.Duration(seconds * float64(time.Second))):
	}
	say("handled", m.MessageID, m.Topic, m.Attempts)
	return nil
}

func handlers(worker *outbox.Worker) {
	var once sync.Once
	first := func(err func(m *outbox.Message) error) outbox.Handler {
		return func(ctx context.Context, m *outbox.Message) error {
			if m.Attempts == 1 {
				return err(m)
			}
			return slow(ctx, m, 0)
		}
	}
	effect := func(ctx context.Context, m *outbox.Message, tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, "INSERT INTO effects VALUES ($1, $2)", m.MessageID, strconv.Itoa(m.Attempts))
		return err
	}
	worker.Handle("w.ok", first(func(m *outbox.Message) error { return slow(context.Background(), m, 0) }), 0)
	worker.Handle("w.trace", func(_ context.Context, m *outbox.Message) error {
		say("trace", m.Traceparent())
		return nil
	}, 0)
	worker.HandleTx("w.tx", effect, 0)
	worker.HandleTx("w.serial", func(ctx context.Context, m *outbox.Message, tx *sql.Tx) error {
		err := effect(ctx, m, tx)
		once.Do(func() {
			_, err = tx.ExecContext(ctx, "DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = '40001'; END $$")
		})
		return err
	}, 0)
	worker.HandleTx("w.txfail", func(ctx context.Context, m *outbox.Message, tx *sql.Tx) error {
		must(effect(ctx, m, tx))
		if m.Attempts == 1 {
			panic(m.Payload)
		}
		return nil
	}, 0)
	worker.Handle("w.text", func(context.Context, *outbox.Message) error {
		return outbox.Permanent("\x00"+strings.Repeat("é", 499)+"\xff"+strings.Repeat("é", 1000), 4)
	}, 0)
	worker.Handle("w.reason", func(context.Context, *outbox.Message) error {
		return outbox.Permanent("no such reason", 1e10)
	}, 0)
	worker.Handle("w.odd", first(func(*outbox.Message) error {
		runtime.Goexit()
		return nil
	}), 0)
	worker.Handle("w.permanent", func(context.Context, *outbox.Message) error {
		return outbox.Permanent("no such order", 4)
	}, 0)
	worker.Handle("w.retry", first(func(*outbox.Message) error { return outbox.Retry("later", 200*time.Millisecond) }), 0)
	worker.Handle("w.error", first(func(m *outbox.Message) error { return errors.New(m.Payload) }), 0)
	worker.Handle("w.slow", func(ctx context.Context, m *outbox.Message) error {
		var payload struct{ Seconds float64 }
		must(m.Decode(&payload))
		return slow(ctx, m, payload.Seconds)
	}, 0)
	worker.Handle("w.timeout", func(ctx context.Context, m *outbox.Message) error {
		if m.Attempts == 1 {
			return slow(ctx, m, 5)
		}
		return slow(ctx, m, 0)
	}, time.Duration(1000*seconds("TIMEOUT_SECONDS", 0.3))*time.Millisecond)
	worker.Handle("w.stream", func(_ context.Context, m *outbox.Message) error {
		say("stream", m.Payload)
		time.Sleep(20 * time.Millisecond)
		if m.Payload == "3" && m.Attempts == 1 {
			return outbox.Retry("again", 0)
		}
		say("passed", m.Payload)
		return nil
	}, 0)
}

func seconds(name string, value float64) float64 {
	if set, err := strconv.ParseFloat(os.Getenv(name), 64); err == nil {
		return set
	}
	return value
}

func number(name string, value int) int { return int(seconds(name, float64(value))) }

func hook(e outbox.Event) {
	switch e.Name {
	case "claimed":
		say("event claimed", e.Count, e.Asked)
	case "settled":
		say("event settled", e.Count, e.Lost)
	case "finished":
		say("event finished", e.Message.ID, e.Outcome)
	case "lost":
		say("event lost", e.Message.ID)
	default:
		say("event", e.Name, e.Err)
	}
}

func work(ctx context.Context) {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM, os.Interrupt)
	defer stop()
	shutdown, _ := time.ParseDuration(os.Getenv("SHUTDOWN_SECONDS") + "s")
	worker := outbox.NewWorker(open(), outbox.WorkerOptions{
		Concurrency: number("CONCURRENCY", 4), LeaseSeconds: number("LEASE_SECONDS", 30),
		Shutdown: shutdown, Subscription: os.Getenv("SUBSCRIPTION"), Hook: hook,
		Wrap: func(ctx context.Context, m *outbox.Message, call func(context.Context) error) error {
			say("begin", m.ID, m.Topic)
			return call(ctx)
		}})
	if worker.Subscription != "" {
		worker.Handle("*", func(_ context.Context, m *outbox.Message) error {
			say("delivered", m.Subscription, m.PublishedID, m.Payload)
			return nil
		}, 0)
	} else {
		handlers(worker)
	}
	must(worker.Run(ctx))
	say("ended")
}

func main() {
	map[string]func(context.Context){"produce": produce, "send": send, "drain": drain, "worker": work}[os.Args[1]](context.Background())
}
