# A client of outbox for the pg gem: functions that enqueue in the caller's transaction, and
# workers that run handlers in threads.
#
# The thread that calls run settles and renews, and is the only one that decides what becomes
# of a message. ../README.md is the design that the clients have in common, and says what the
# options are.
require "json"
require "pg"
require "securerandom"

module Outbox
  CASTS = {
    correlation_id: "text", due_time: "timestamptz", namespace: "text", tenant_id: "uuid",
    dedupe_key: "text", stream_id: "uuid", headers: "jsonb", expires_at: "timestamptz",
    message_id: "uuid", dedupe_for: "interval", on_duplicate: "text", priority: "int"
  }.freeze
  COLUMNS = %i[
    id message_id namespace topic payload headers correlation_id tenant_id dedupe_key stream_id
    attempts retry_count created_at due_time locked_until subscription published_id priority
  ].freeze
  ENQUEUE_BATCH = "SELECT message_id, enqueued, outcome " \
                  "FROM outbox.enqueue_batch($1::jsonb) ORDER BY ordinal".freeze
  PUBLISH_BATCH = "SELECT message_id, deliveries " \
                  "FROM outbox.publish_batch($1::jsonb) ORDER BY ordinal".freeze
  CLAIM = "SELECT #{COLUMNS.join(', ')} " \
          "FROM outbox.claim($1::uuid, $2::int, $3::int, $4::text, $5::text[], $6::uuid, " \
          "$7::int, $8::int, $9::text)".freeze
  ACK = "SELECT outbox.ack($1::uuid, $2::bigint[], $3::int[])".freeze
  ACK_ONE = "SELECT outbox.ack_one($1::uuid, $2::bigint, $3::int, strict => true)".freeze
  NACK = "SELECT outbox.release($1::uuid, $6::bigint[]), " \
         "outbox.nack_one($1::uuid, $2::bigint, $3::text, $4::interval, $5::int)".freeze
  FAIL = "SELECT outbox.fail_one($1::uuid, $2::bigint, $3::text, $4::int, $5::int)".freeze
  RENEW = "SELECT outbox.renew($1::uuid, $2::bigint[], $3::int, $4::int[])".freeze
  LOST = "SELECT id, attempt FROM unnest($2::bigint[], $4::int[]) AS held(id, attempt) " \
         "WHERE outbox.renew_one($1::uuid, id, $3::int, attempt) = 0".freeze
  RELEASE = "SELECT outbox.release($1::uuid, $2::bigint[])".freeze
  RELEASE_ALL = "SELECT outbox.release($1::uuid)".freeze
  ADVANCE = "SELECT coalesce(sum(outbox.reschedule(ARRAY[id], next_attempt_at - $1::interval)), 0) " \
            "FROM outbox.messages " \
            "WHERE state = 'ready' AND next_attempt_at > clock_timestamp()".freeze
  ACK_SECONDS = 0.005
  ACK_IDS = 100
  TRANSACTION_TRIES = 3
  private_constant(*constants(false))

  # The message can never be handled: it becomes a dead letter with this text.
  class Permanent < StandardError
    attr_reader :reason

    def initialize(text = "", reason: nil)
      super(text)
      @reason = reason
    end
  end

  # The message is handed out again after so many seconds, or the server's backoff.
  class Retry < StandardError
    attr_reader :after

    def initialize(text = "", after: nil)
      super(text)
      @after = after
    end
  end

  # Another worker has the message, or soon will have. No StandardError, so that a handler
  # that rescues everything lets it pass.
  class LeaseLost < Exception; end # rubocop:disable Lint/InheritException

  # The handler has taken too long.
  class TimedOut < LeaseLost; end

  class << self
    # Enqueue a message in the connection's transaction; its message_id. A payload that is no
    # string goes as JSON.
    def enqueue(conn, topic, payload, **options)
      one(conn, "enqueue", topic, payload, options)
    end

    # Publish a message for all who have subscribed; the published id.
    def publish(conn, topic, payload, **options)
      one(conn, "publish", topic, payload, options)
    end

    # Enqueue hashes with topic, payload and options; for each a hash with message_id, enqueued
    # and outcome.
    def enqueue_batch(conn, messages)
      conn.exec_params(ENQUEUE_BATCH, [batch(messages)]).map do |row|
        { message_id: row["message_id"], enqueued: [true, "t"].include?(row["enqueued"]),
          outcome: row["outcome"] }
      end
    end

    # Publish hashes with topic, payload and options; for each a hash with message_id and
    # deliveries.
    def publish_batch(conn, messages)
      conn.exec_params(PUBLISH_BATCH, [batch(messages)]).map do |row|
        { message_id: row["message_id"], deliveries: Integer(row["deliveries"]) }
      end
    end

    # For tests: all waiting messages become due that much earlier; how many.
    def advance(conn, seconds)
      Integer(conn.exec_params(ADVANCE, ["#{seconds} s"]).getvalue(0, 0))
    end

    private

    def as_text(value)
      case value
      when String then value
      when Time then value.utc.strftime("%FT%T.%6NZ")
      else value.to_json
      end
    end

    # The options as arguments of the server: traceparent becomes a header.
    def complete(options)
      given = options.compact
      trace = given.delete(:traceparent) || ENV.fetch("TRACEPARENT", nil)
      unknown = given.keys - CASTS.keys
      raise ArgumentError, "there is no option #{unknown.join(', ')}" unless unknown.empty?

      own = given.fetch(:headers, {}).transform_keys(&:to_s)
      given[:headers] = { "traceparent" => trace }.merge(own) if trace
      given
    end

    def one(conn, function, topic, payload, options)
      given = complete(options)
      named = given.keys.each_with_index.map { |name, n| ", #{name} => $#{n + 3}::#{CASTS[name]}" }
      conn.exec_params("SELECT outbox.#{function}($1::text, $2::text#{named.join})",
                       [topic, payload, *given.values].map { |value| as_text(value) }).getvalue(0, 0)
    end

    def batch(messages)
      messages.map do |message|
        given = complete(message.except(:topic, :payload))
        given = given.transform_values { |value| value.is_a?(Time) ? as_text(value) : value }
        { topic: message.fetch(:topic), payload: as_text(message.fetch(:payload)) }.merge(given)
      end.to_json
    end
  end

  # A claimed message: the columns of outbox.message.
  Message = Struct.new(*COLUMNS, :outcome, :thread, :deadline) do
    def self.from(row)
      new(*row).tap do |message|
        message.headers &&= JSON.parse(message.headers)
        %i[id attempts retry_count priority].each { |name| message[name] = Integer(message[name]) }
      end
    end

    def json
      JSON.parse(payload)
    end

    def traceparent
      headers && headers["traceparent"]
    end

    # Messages are themselves, whatever is in them.
    def ==(other)
      equal?(other)
    end
    alias_method :eql?, :==

    def hash
      object_id
    end
  end

  # Runs handlers in threads. One that has lost its lease or takes too long is interrupted:
  # LeaseLost is raised in it.
  class Worker
    # connect is what PG.connect takes, or a proc that returns a connection. hook is called
    # with an event and its fields, wrap with a message and a proc to call.
    def initialize(connect = {}, concurrency: 10, subscription: nil, namespace: nil, tenant_id: nil,
                   max_attempts: nil, lease_seconds: 30, wait_ms: 20_000, max_batch: 100,
                   shutdown_seconds: 25, hook: nil, wrap: nil)
      @connect = connect.respond_to?(:call) ? connect : -> { PG.connect(connect) }
      @concurrency = concurrency
      @filters = { namespace: namespace, tenant_id: tenant_id, max_attempts: max_attempts,
                   subscription: subscription }
      @lease_seconds = lease_seconds
      @wait_ms = wait_ms
      @max_batch = [max_batch, concurrency].max
      @shutdown_seconds = shutdown_seconds
      @hook = hook || proc {}
      @wrap = wrap || ->(_message, call) { call.call }
      @handlers = {}
    end

    # Have the block run for the topic, or for all others if it is "*". It gets the message;
    # with transaction also a connection, and the ack commits with what it writes.
    def handle(topic, timeout_seconds: nil, transaction: false, &handler)
      @handlers[topic] = { call: handler, timeout: timeout_seconds, transaction: transaction }
      self
    end

    # Work until SIGTERM, SIGINT or stop.
    def run
      work(false)
      nil
    end

    # For tests: work until nothing is due, without waiting; how many were handled.
    def drain
      work(true)
    end

    # Begin to end run. Called twice, do not wait for handlers.
    def stop
      @lock.synchronize do
        @deadline = @stopping ? 0 : now + @shutdown_seconds
        @stopping = true
        @changed.broadcast
      end
    end

    private

    def now
      Process.clock_gettime(Process::CLOCK_MONOTONIC)
    end

    def reset(draining)
      raise ArgumentError, "no topic has a handler" if @handlers.empty?

      @owner = SecureRandom.uuid
      @draining = draining
      @lock = Monitor.new
      @changed = @lock.new_cond
      @waiting = []               # claimed, not begun
      @running = []
      @target = @concurrency
      @full = false
      @claimed_at = @acks_since = 0
      @acks = []
      @calls = []                 # what fails or goes back
      @free = []                  # connections for transactions
      @claiming = @stopping = false
      @error = nil
      @deadline = Float::INFINITY
      @renew_at = now + (@lease_seconds / 3.0)
      @handled = 0
      @conns = { claim: open, settle: open }
    end

    def open
      @connect.call.tap { |conn| conn.type_map_for_results = PG::TypeMapAllStrings.new }
    end

    def work(draining)
      reset(draining)
      signals = trap_signals
      claimer = Thread.new { claim_loop }
      turn until @stopping && !claimer.alive? && @running.empty?
      send_acks(true)
      call(:settle, RELEASE_ALL, [@owner])
      raise @error if @error

      @handled
    ensure
      signals&.each { |name, action| trap(name, action) }
      @conns&.each_value { |conn| conn.close unless conn.finished? }
      @free&.each(&:close)
    end

    # A handler of signals must not lock.
    def trap_signals
      return unless Thread.current == Thread.main

      %w[TERM INT].to_h { |name| [name, trap(name) { Thread.new { stop } }] }
    end

    # One turn of the loop: send what is due, and sleep until something is.
    def turn
      shut_down if @stopping
      send_acks(false)
      calls = @lock.synchronize { @calls.slice!(0..) }
      calls.each { |sql, values| call(:settle, sql, values) }
      renew if now >= @renew_at
      @lock.synchronize do
        expire
        @changed.wait([next_due, 0.001].max) if @calls.empty?
      end
    rescue StandardError => e
      raise if @error

      @error = e
      stop
    end

    def next_due
      due = [@renew_at, *@running.reject(&:outcome).filter_map(&:deadline)]
      due << (@acks_since + ACK_SECONDS) unless @acks.empty?
      due << (now + 0.05) if @stopping
      due.min - now
    end

    def shut_down
      begin
        @conns[:claim].cancel if @claiming
      rescue PG::Error
        nil                       # it has gone
      end
      @lock.synchronize do
        ids = @waiting.slice!(0..).map(&:id)
        @calls << [RELEASE, [@owner, list(ids)]] unless ids.empty?
        next if now < @deadline

        @running.each { |message| lose(message, LeaseLost.new) }
        @running.clear
      end
    end

    def expire
      @running.each do |message|
        lose(message, TimedOut.new) if message.deadline && now > message.deadline && !message.outcome
      end
    end

    # The rows of a statement. When it had to be repeated, the block is called.
    def call(name, sql, values)
      delay = 0.1
      begin
        @conns[name] = open if @conns[name].finished?
        @conns[name].exec_params(sql, values).values
      rescue PG::Error => e
        return [] if name == :claim && (@stopping || state(e) == "57014")
        raise if !repeatable?(e) || now > @deadline + 2

        @conns[name].close unless @conns[name].finished?
        @hook.call("reconnect", error: describe(e))
        yield if block_given?
        sleep(delay * rand(0.5..1))
        delay = [2 * delay, 5].min
        retry
      end
    end

    def state(error)
      error.is_a?(PG::Error) && error.result ? error.result.error_field(PG::PG_DIAG_SQLSTATE) : nil
    end

    def repeatable?(error)
      state(error).nil? || state(error).match?(/\A(08|40001|40P01|57P0[123])/)
    end

    # What is recorded of an error: never a text that may quote the payload.
    def describe(error)
      text = case error
             when Permanent, Retry then error.message
             else [error.class, state(error)].compact.join(" ")
             end
      text.delete("\0")[0, 500]
    end

    def list(values)
      "{#{values.join(',')}}"
    end

    # Claim and handle

    def claim_loop
      topics = @handlers.key?("*") ? nil : "{#{@handlers.keys.map(&:to_json).join(',')}}"
      until @stopping
        asked = @lock.synchronize { ask.tap { |count| @changed.wait if count.zero? && !@stopping } }
        next if asked.zero?

        idle = @running.empty? && @acks.empty? && @calls.empty?
        @claiming = true
        rows = call(:claim, CLAIM, [@owner, @lease_seconds, asked, @filters[:namespace], topics,
                                    *@filters.values_at(:tenant_id, :max_attempts),
                                    @draining ? 0 : @wait_ms, @filters[:subscription]])
        @claiming = false
        take(rows, asked)
        next unless @draining && rows.empty?

        idle ? stop : sleep(0.01)
      end
    rescue StandardError => e
      @error ||= e
      stop
    end

    # How many messages to claim now; 0 if no slot is free for one.
    def ask
      free = @concurrency - @running.size
      held = @waiting.size + @running.size
      return 0 if free.zero? || startable

      took = now - @claimed_at
      if !@full || took > 0.5
        @target = @concurrency
      elsif took < 0.1
        @target = [2 * @target, @max_batch].min
      end
      [[@target - held, free].max, @max_batch - held].min
    end

    def take(rows, asked)
      @hook.call("claimed", count: rows.size, asked: asked)
      @lock.synchronize do
        @full = rows.size == asked
        @claimed_at = now
        @waiting.concat(rows.map { |row| Message.from(row) })
        start
      end
    end

    # A message that is not beside another of its stream.
    def startable
      busy = @running.filter_map(&:stream_id)
      @waiting.find { |message| !busy.include?(message.stream_id) }
    end

    def start
      while !@stopping && @running.size < @concurrency && (message = startable)
        @waiting.delete(message)
        @running << message
        handler = @handlers[message.topic] || @handlers["*"]
        message.deadline = now + handler[:timeout] if handler[:timeout]
        # what is raised in the thread waits until the handler runs
        Thread.handle_interrupt(LeaseLost => :never) do
          message.thread = Thread.new(message, handler) { |*own| run_handler(*own) }
        end
      end
    end

    def run_handler(message, handler)
      began = now
      error = nil
      begin
        if handler[:transaction]
          transact(message, handler)
        else
          interruptible { @wrap.call(message, -> { handler[:call].call(message) }) }
        end
      rescue StandardError, LeaseLost, ScriptError => e
        error = e
      end
      @lock.synchronize do
        judge(message, error)
        @running.delete(message)
        @handled += 1
        start
        @changed.broadcast
      end
      @hook.call("finished", message: message, outcome: message.outcome, seconds: now - began)
    rescue StandardError => e
      @error ||= e
      stop
    end

    def interruptible(&block)
      Thread.handle_interrupt(LeaseLost => :immediate, &block)
    end

    def transact(message, handler)
      left = TRANSACTION_TRIES
      begin
        left -= 1
        conn = @lock.synchronize { @free.pop } || open
        conn.transaction do
          interruptible { @wrap.call(message, -> { handler[:call].call(message, conn) }) }
          @lock.synchronize do
            raise LeaseLost if message.outcome

            message.outcome = "ack" # from here on, the transaction decides
          end
          conn.exec_params(ACK_ONE, [@owner, message.id, message.attempts])
        end
      rescue StandardError, LeaseLost => e
        begun = message.outcome == "ack"
        message.outcome = nil if begun
        raise LeaseLost if begun && state(e) == "55000"

        retry if left.positive? && %w[40001 40P01].include?(state(e))
        raise
      ensure
        keep(conn)
      end
    end

    def keep(conn)
      return unless conn

      idle = !conn.finished? && conn.transaction_status == PG::PQTRANS_IDLE
      idle ? @lock.synchronize { @free << conn unless @free.include?(conn) } : conn.close
    rescue PG::Error
      nil
    end

    # The handler has ended, or must: what becomes of the message.
    def judge(message, error)
      return if message.outcome

      case error
      when nil
        message.outcome = "ack"
        @acks_since = now if @acks.empty?
        @acks << message
      when Permanent
        message.outcome = "fail"
        @calls << [FAIL, [@owner, message.id, describe(error), error.reason, message.attempts]]
      when TimedOut, StandardError, ScriptError
        message.outcome = "retry"
        after = "#{error.after} s" if error.is_a?(Retry) && error.after
        @calls << [NACK, [@owner, message.id, describe(error), after, message.attempts,
                          list(drop_stream(message))]]
      else
        message.outcome = "lost"
        drop_stream(message)
      end
    end

    def lose(message, error)
      judge(message, error)
      message.thread.raise(error)
    end

    # What is behind it in its stream is not to be handled now, if it goes back; the ids.
    def drop_stream(message)
      behind = message.stream_id ? @waiting.select { |other| other.stream_id == message.stream_id } : []
      @waiting -= behind
      behind.map(&:id)
    end

    # Settle and renew

    def send_acks(all)
      loop do
        acks = @lock.synchronize do
          due = all || @acks.size >= ACK_IDS || now >= @acks_since + ACK_SECONDS
          due ? @acks.shift(ACK_IDS) : []
        end
        return if acks.empty?

        repeated = false
        values = [@owner, list(acks.map(&:id)), list(acks.map(&:attempts))]
        rows = call(:settle, ACK, values) { repeated = true }
        lost = repeated ? 0 : acks.size - Integer(rows[0][0])
        @hook.call("settled", count: acks.size, lost: lost)
      end
    end

    def renew
      @renew_at = now + (@lease_seconds / 3.0)
      held = @lock.synchronize { @waiting + @running.reject(&:outcome) }
      return if held.empty?

      values = [@owner, list(held.map(&:id)), @lease_seconds, list(held.map(&:attempts))]
      return if Integer(call(:settle, RENEW, values)[0][0]) == held.size

      gone = call(:settle, LOST, values).map { |row| row.map { |value| Integer(value) } }
      @lock.synchronize do
        held.select { |m| gone.include?([m.id, m.attempts]) && !m.outcome }.each do |message|
          @waiting.delete(message)
          message.thread ? lose(message, LeaseLost.new) : drop_stream(message)
          @hook.call("lost", message: message)
        end
      end
    end
  end
end
