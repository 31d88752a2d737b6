# The suite of the Ruby client: suite.rb produce | send | drain | worker; see ../../test/run.py.
require_relative "../outbox"

TENANT = "00000000-0000-4000-8000-0000000000aa".freeze
GIVEN = "01234567-0000-4000-8000-000000000042".freeze
STREAM = "00000000-0000-4000-8000-000000000007".freeze

$stdout.sync = true

def say(*words)
  $stdout.write("#{words.join(' ')}\n")
end

def check(name, got, expected)
  say(got == expected ? "ok" : "not ok", "-", name)
  say("# got #{got.inspect}, not #{expected.inspect}") if got != expected
end

def produce
  conn = PG.connect
  conn.exec("BEGIN")
  Outbox.enqueue(conn, "p.rolled-back", "x")
  conn.exec("ROLLBACK")
  made = conn.transaction do
    conn.exec("INSERT INTO orders VALUES ('ruby')")
    Outbox.enqueue(conn, "p.committed", { order: 7 })
    Outbox.enqueue(conn, "p.text", 'plain "text" é')
    id = Outbox.enqueue(
      conn, "p.options", "x",
      correlation_id: "c-1", namespace: "shop", tenant_id: TENANT, due_time: Time.utc(2030, 1, 2, 3, 4, 5),
      expires_at: Time.utc(2031, 1, 2, 3, 4, 5), dedupe_key: "#{TENANT.delete('-')}/k", stream_id: STREAM,
      message_id: GIVEN, headers: { region: "eu" }, dedupe_for: "1 hour", on_duplicate: "keep",
      priority: 1, traceparent: "00-argument"
    )
    Outbox.enqueue(conn, "p.trace", "x")
    Outbox.enqueue(conn, "p.own", "x", headers: { traceparent: "own" })
    id
  end
  check("enqueue answers the message_id", made, GIVEN)
  begin
    Outbox.enqueue(conn, "p.unknown", "x", colour: "red")
  rescue ArgumentError => e
    check("an unknown option is an error", e.message, "there is no option colour")
  end
  rows = Outbox.enqueue_batch(conn, [{ topic: "p.batch", payload: "one" },
                                     { topic: "p.batch", payload: { n: 2 }, dedupe_key: "twin" },
                                     { topic: "p.batch", payload: "three", dedupe_key: "twin" }])
  check("a batch says what is new", rows.map { |row| row.values_at(:enqueued, :outcome) },
        [[true, "enqueued"], [true, "enqueued"], [false, "kept"]])
  check("and whose a key is", rows[1][:message_id], rows[2][:message_id])
  Outbox.publish(conn, "p.news", "first")
  rows = Outbox.publish_batch(conn, [2, 3].map { |n| { topic: "p.news", payload: n.to_s } })
  check("publish_batch counts deliveries", rows.map { |row| row[:deliveries] }, [1, 1])
end

# Lines of run.py: how a transaction ends, and its messages, as topic,payload,stream.
def send_lines
  conn = nil
  $stdin.each_line do |line|
    how, *words = line.split
    messages = words.map do |word|
      topic, payload, stream = word.split(",")
      { topic: topic, payload: payload, stream_id: (stream unless stream == "-") }
    end
    conn ||= PG.connect
    conn.exec("BEGIN")
    first = messages.shift
    verb = first[:topic].start_with?("pub.") ? "publish" : "enqueue"
    Outbox.public_send(verb, conn, first[:topic], first[:payload], stream_id: first[:stream_id])
    Outbox.public_send("#{verb}_batch", conn, messages)
    conn.exec(how)
  rescue PG::Error => e
    say("failed", e.class)
    conn = nil
  end
end

def drain
  conn = PG.connect
  seen = []
  order = []
  worker = Outbox::Worker.new(concurrency: 2)
  worker.handle("d.ok") { |message| seen << message.payload }
  worker.handle("d.fail") { raise Outbox::Permanent.new("no such order", reason: 4) }
  worker.handle("d.retry") { |message| raise Outbox::Retry.new("later", after: 3600) if message.attempts == 1 }
  worker.handle("d.stream") do |message|
    order << message.payload
    raise Outbox::Retry.new("again", after: 0) if order == ["1"]
  end
  3.times { |n| Outbox.enqueue(conn, "d.ok", n.to_s) }
  %w[1 2].each { |payload| Outbox.enqueue(conn, "d.stream", payload, stream_id: STREAM) }
  Outbox.enqueue(conn, "d.ok", "in an hour", due_time: Time.now + 3600)
  Outbox.enqueue(conn, "d.fail", "x")
  Outbox.enqueue(conn, "d.retry", "x")
  check("drain handles what is due", worker.drain, 6)
  check("and nothing else", seen.sort, %w[0 1 2])
  check("what is dead says why", conn.exec(
    "SELECT last_error, failure_reason FROM outbox.messages WHERE topic = 'd.fail'"
  ).values, [["no such order", "4"]])
  check("a message once, and none of its stream after one that goes back", order, ["1"])
  check("the next drain goes on", [worker.drain, order], [2, %w[1 1 2]])
  check("time does not pass by itself", worker.drain, 0)
  check("advance moves it", Outbox.advance(conn, 3660), 2)
  check("and drain follows", worker.drain, 2)
  check("to the end", seen[3..], ["in an hour"])
end

def slow(message, seconds)
  sleep(seconds)
  say("handled", message.message_id, message.topic, message.attempts)
rescue Outbox::LeaseLost
  say("cancelled", message.id)
  raise
end

def effect(message, conn)
  conn.exec_params("INSERT INTO effects VALUES ($1, $2)", [message.message_id, message.attempts])
end

def handlers(worker)
  repeated = false
  worker.handle("w.ok") { |message| slow(message, 0) }
  worker.handle("w.trace") { |message| say("trace", message.traceparent) }
  worker.handle("w.tx", transaction: true) { |message, conn| effect(message, conn) }
  worker.handle("w.serial", transaction: true) do |message, conn|
    effect(message, conn)
    next if repeated

    repeated = true
    conn.exec("DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = '40001'; END $$")
  end
  worker.handle("w.txfail", transaction: true) do |message, conn|
    effect(message, conn)
    raise message.payload if message.attempts == 1
  end
  worker.handle("w.text") do
    raise Outbox::Permanent.new("\0#{'é' * 499}\xff#{'é' * 1000}", reason: 4)
  end
  worker.handle("w.reason") { raise Outbox::Permanent.new("no such reason", reason: 10**10) }
  worker.handle("w.odd") { |message| message.attempts == 1 ? Thread.exit : slow(message, 0) }
  worker.handle("w.permanent") { raise Outbox::Permanent.new("no such order", reason: 4) }
  worker.handle("w.retry") do |message|
    raise Outbox::Retry.new("later", after: 0.2) if message.attempts == 1

    slow(message, 0)
  end
  worker.handle("w.error") { |message| message.attempts == 1 ? raise(message.payload) : slow(message, 0) }
  worker.handle("w.slow") { |message| slow(message, message.json["seconds"]) }
  worker.handle("w.timeout", timeout_seconds: Float(ENV.fetch("TIMEOUT_SECONDS", 0.3))) do |message|
    slow(message, message.attempts == 1 ? 5 : 0)
  end
  worker.handle("w.stream") do |message|
    say("stream", message.payload)
    sleep(0.02)
    raise Outbox::Retry.new("again", after: 0) if message.payload == "3" && message.attempts == 1

    say("passed", message.payload)
  end
end

def work
  hook = lambda do |event, message: nil, seconds: nil, **fields|
    say("event", event, *message&.id, *fields.values)
  end
  wrap = lambda do |message, call|
    say("begin", message.id, message.topic)
    call.call
  end
  worker = Outbox::Worker.new(
    concurrency: Integer(ENV.fetch("CONCURRENCY", 4)), lease_seconds: Integer(ENV.fetch("LEASE_SECONDS", 30)),
    shutdown_seconds: Float(ENV.fetch("SHUTDOWN_SECONDS", 10)), subscription: ENV.fetch("SUBSCRIPTION", nil),
    hook: hook, wrap: wrap
  )
  if ENV["SUBSCRIPTION"]
    worker.handle("*") { |m| say("delivered", m.subscription, m.published_id, m.payload) }
  else
    handlers(worker)
  end
  worker.run
  say("ended")
end

{ "produce" => :produce, "send" => :send_lines, "drain" => :drain, "worker" => :work }.fetch(ARGV[0]).then { |name| send(name) }
