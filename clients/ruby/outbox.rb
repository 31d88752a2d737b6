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
    attempts retry_count created_at due_time locked_until owner_token subscription published_id
    priority
  ].freeze
  ENQUEUE_BATCH = "SELECT message_id, enqueued, outcome " \
                  "FROM outbox.enqueue_batch($1::jsonb) ORDER BY ordinal".freeze
  PUBLISH_BATCH = "SELECT message_id, deliveries " \
                  "FROM outbox.publish_batch($1::jsonb) ORDER BY ordinal".freeze
  CLAIM = "SELECT #{COLUMNS.join(', ')} " \
          "FROM outbox.claim($1::uuid, $2::int, $3::int, $4::text, $5::text[], $6::uuid, " \
          "$7::int, $8::int, $9::text)".freeze
  HELD = "unnest($1::uuid[], $2::bigint[], $3::int[]) AS held(owner, id, attempt)".freeze
  ACK = "SELECT coalesce(sum(outbox.ack(owner, ids, attempts)), 0) " \
        "FROM (SELECT owner, array_agg(id), array_agg(attempt) FROM #{HELD} GROUP BY owner) " \
        "AS own(owner, ids, attempts)".freeze
  ACK_ONE = "SELECT outbox.ack_one($1::uuid, $2::bigint, $3::int, strict => true)".freeze
  NACK = "SELECT outbox.nack_one($1::uuid, $2::bigint, $4::text, $5::interval, $3::int)".freeze
  FAIL = "SELECT outbox.fail_one($1::uuid, $2::bigint, $4::text, $5::int, $3::int)".freeze
  # renews; its rows are the leases that are lost
  RENEW = "SELECT id, attempt FROM #{HELD} " \
          "WHERE outbox.renew_one(owner, id, $4::int, attempt) = 0".freeze
  RELEASE = "SELECT outbox.release_one(owner, id) FROM #{HELD}".freeze
  RELEASE_ALL = "SELECT outbox.release($1::uuid)".freeze
  ADVANCE = "SELECT coalesce(sum(outbox.reschedule(ARRAY[id], next_attempt_at - $1::interval)), 0) " \
            "FROM outbox.messages " \
            "WHERE state = 'ready' AND next_attempt_at > clock_timestamp()".freeze
  ACK_SECONDS = 0.005
  ACK_IDS = 100
  MOST_UNSETTLED = 1000
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

  # The thread of a handler has ended without returning.
  class Vanished < StandardError; end

  # The server does not answer at present.
  class Away < StandardError; end
  private_constant :TimedOut, :Vanished, :Away

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
  Message = Struct.new(*COLUMNS, :outcome, :thread, :deadline, :leased_until) do
    def self.from(row, leased_until)
      new(*row).tap do |message|
        message.leased_until = leased_until
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
      @lock = Monitor.new
      @changed = @lock.new_cond
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
      @strays = []                # owners of claims without an answer
      @draining = draining
      @retried = []               # ids and streams, while draining
      @waiting = []               # claimed, not begun
      @running = []
      @target = @concurrency
      @full = @acks_repeated = @stopping = @releasing = @claiming = false
      @acks = []
      @calls = []                 # what fails or goes back
      @free = []                  # connections for transactions
      @error = nil
      @deadline = Float::INFINITY
      @renew_at = now + third
      @claimed_at = @acks_since = @settle_after = 0
      @delays = { claim: 0.1, settle: 0.1 }
      @handled = 0
      @conns = {}
      %i[claim settle].each { |name| @conns[name] = @connect.call }
    end

    def third
      @lease_seconds / 3.0
    end

    def work(draining)
      reset(draining)
      signals = trap_signals
      claimer = Thread.new { claim_loop }
      turn(claimer) until ended?(claimer)
      raise @error if @error

      @handled
    ensure
      claimer&.kill
      signals&.each { |name, action| trap(name, action) }
      [*@conns&.values, *@free].each { |conn| conn.close unless conn.finished? }
    end

    # A handler of signals must not lock.
    def trap_signals
      return unless Thread.current == Thread.main

      %w[TERM INT].to_h { |name| [name, trap(name) { Thread.new { stop } }] }
    end

    # One turn of the loop: send what is due, and sleep until something is.
    def turn(claimer)
      shut_down(claimer) if @stopping
      settle
      @lock.synchronize do
        expire
        start
        @changed.wait([next_due, 0.001].max)
      end
    rescue Away
      nil
    rescue StandardError => e
      give_up(e)
    end

    def give_up(error)
      raise error if @error

      @error = error
      stop unless @stopping
    end

    def next_due
      due = [@renew_at]
      due << (@acks_since + ACK_SECONDS) unless @acks.empty?
      due << 0 unless @calls.empty?
      due = [[due.min, @settle_after].max, *@running.reject(&:outcome).filter_map(&:deadline)]
      due << (now + 0.05) if @stopping
      due.min - now
    end

    def shut_down(claimer)
      @conns[:claim].cancel if @claiming
      claimer.kill if now > @deadline
      @lock.synchronize do
        @calls << [RELEASE, parts(@waiting.slice!(0..))] unless @waiting.empty?
        next if now < @deadline

        @running.each { |message| cancel(message, LeaseLost.new) unless message.outcome }
        @running.clear
      end
    rescue PG::Error
      nil                         # it has gone
    end

    # Has all ended? Then what may be left is released, and that must be answered, too.
    def ended?(claimer)
      return false unless @stopping

      left = @lock.synchronize { !@acks.empty? || !@calls.empty? }
      @error ||= Away.new("the server did not answer in time") if left && now > @deadline + 2
      return true if now > @deadline + 2
      return false if left || claimer.alive? || !@running.empty?
      return true if @releasing

      @releasing = true
      @calls = [*@strays, @owner].map { |owner| [RELEASE_ALL, [owner]] }
      false
    end

    def expire
      @running.each do |message|
        cancel(message, TimedOut.new) if message.deadline && now > message.deadline && !message.outcome
      end
    end

    def emit(event, **fields)
      @lock.synchronize { @hook.call(event, **fields) }
    end

    # Strings, whatever the connection makes of types.
    def rows(conn, sql, values)
      result = conn.exec_params(sql, values)
      result.type_map = PG::TypeMapAllStrings.new
      result.values
    end

    def state(error)
      error.is_a?(PG::Error) && error.result ? error.result.error_field(PG::PG_DIAG_SQLSTATE) : nil
    end

    # After an error, how long to wait before another try, unless it is for good.
    def recover(name, error)
      code = state(error)
      raise error unless code.nil? || code.match?(/\A(08|40001|40P01|53300|57P0[123])/)

      @conns[name].close unless @conns[name].finished?
      emit("reconnect", error: describe(error))
      delay = @delays[name] * rand(0.5..1)
      @delays[name] = @stopping ? 0.5 : [2 * @delays[name], 5].min
      delay
    end

    # What is recorded of an error: never a text that may quote the payload.
    def describe(error)
      case error
      when Permanent, Retry then error.message.encode("UTF-8", invalid: :replace, undef: :replace).scrub.delete("\0")[0, 500]
      else [error.class, state(error)].compact.join(" ")
      end
    end

    def list(values)
      "{#{values.map { |value| %("#{value.to_s.gsub(/["\\]/) { |c| "\\#{c}" }}") }.join(',')}}"
    end

    # Owners, ids and attempts, as statements take them.
    def parts(messages)
      %i[owner_token id attempts].map { |name| list(messages.map(&name)) }
    end

    # Claim and handle

    def claim_loop
      until @stopping
        asked = @lock.synchronize { ask.tap { |count| @changed.wait if count.zero? && !@stopping } }
        next if asked.zero?

        idle = @running.empty? && @acks.empty? && @calls.empty?
        sent = now
        taken = claim(asked) or next
        take(taken, asked, sent)
        next unless @draining && taken.empty?

        idle ? stop : sleep(0.01)
      end
    rescue StandardError => e
      @lock.synchronize { give_up(e) unless @error }
    end

    # The rows of a claim; nil if it was not answered. What that has taken is the old owner's
    # then: it must not count as held by this worker, which knows nothing of it.
    def claim(asked)
      topics = @handlers.key?("*") ? nil : list(@handlers.keys)
      reconnect if @conns[:claim].finished?
      @claiming = true
      taken = rows(@conns[:claim], CLAIM, [
                     @owner, @lease_seconds, asked, @filters[:namespace], topics,
                     *@filters.values_at(:tenant_id, :max_attempts), @draining ? 0 : @wait_ms, @filters[:subscription]
                   ])
      @delays[:claim] = 0.1
      taken
    rescue PG::Error => e
      @claiming = false
      return if @stopping || state(e) == "57014"

      delay = recover(:claim, e)
      @lock.synchronize { @changed.wait(delay) }
      nil
    ensure
      @claiming = false
    end

    def reconnect
      @conns[:claim] = @connect.call
      @lock.synchronize do
        @strays << @owner
        @owner = SecureRandom.uuid
        @changed.broadcast
      end
    end

    # How many messages to claim now; 0 if no slot is free for one.
    def ask
      free = @concurrency - @running.size
      held = @waiting.size + @running.size
      return 0 if free.zero? || startable || @acks.size + @calls.size >= MOST_UNSETTLED

      took = now - @claimed_at
      if !@full || took > 0.5
        @target = @concurrency
      elsif took < 0.1
        @target = [2 * @target, @max_batch].min
      end
      [[@target - held, free].max, @max_batch - held].min
    end

    def take(taken, asked, sent)
      emit("claimed", count: taken.size, asked: asked)
      @lock.synchronize do
        # surely not sooner: what came late, or to a stopped process, is renewed first
        leased_until = sent + @lease_seconds
        @renew_at = [@renew_at, sent + third].min
        @full = taken.size == asked
        @claimed_at = now
        messages = taken.map { |row| Message.from(row, leased_until) }
        @waiting.concat(messages.reject { |message| @retried.include?(message.stream_id || message.id) })
        start
        @changed.broadcast
      end
    end

    # A message that is not beside another of its stream.
    def startable
      busy = @running.filter_map(&:stream_id)
      @waiting.find { |message| !busy.include?(message.stream_id) && now < message.leased_until }
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
      error = Vanished.new
      if handler[:transaction]
        transact(message, handler)
      else
        interruptible { @wrap.call(message, -> { handler[:call].call(message) }) }
      end
      error = nil
    rescue Exception => e # rubocop:disable Lint/RescueException
      error = e
    ensure
      finish(message, error, now - began)
    end

    def finish(message, error, seconds)
      @lock.synchronize do
        judge(message, error)
        @running.delete(message)
        @handled += 1
        start
        @changed.broadcast
        @hook.call("finished", message: message, outcome: message.outcome, seconds: seconds)
      rescue StandardError => e
        give_up(e) unless @error
      end
    end

    def interruptible(&block)
      Thread.handle_interrupt(LeaseLost => :immediate, &block)
    end

    def transact(message, handler)
      TRANSACTION_TRIES.downto(1) do |left|
        return transact_once(message, handler)
      rescue PG::Error => e
        raise if left == 1 || !%w[40001 40P01].include?(state(e))
      end
    end

    def transact_once(message, handler)
      conn = begin_transaction
      interruptible { @wrap.call(message, -> { handler[:call].call(message, conn) }) }
      raise LeaseLost unless decide(message, "ack") # from here on, the transaction decides

      begun = true
      rows(conn, ACK_ONE, [message.owner_token, message.id, message.attempts])
      # what was aborted, COMMIT rolls back without an error
      raise Away, "rolled back" if conn.exec("COMMIT").cmd_status != "COMMIT"

      begun = false
    rescue PG::Error => e
      raise state(e) == "55000" && begun ? LeaseLost : e
    ensure
      @lock.synchronize { message.outcome = nil } if begun
      keep(conn) if conn
    end

    # A connection in a transaction. One that was idle may have broken since.
    def begin_transaction
      while (conn = @lock.synchronize { @free.pop })
        begin
          conn.exec("BEGIN")
          return conn
        rescue PG::Error
          conn.close unless conn.finished?
        end
      end
      @connect.call.tap { |fresh| fresh.exec("BEGIN") }
    end

    # For the next transaction, if it can be used once more.
    def keep(conn)
      conn.cancel if conn.transaction_status == PG::PQTRANS_ACTIVE
      conn.exec("ROLLBACK") if [PG::PQTRANS_INTRANS, PG::PQTRANS_INERROR].include?(conn.transaction_status)
      conn.transaction_status == PG::PQTRANS_IDLE ? @lock.synchronize { @free << conn } : conn.close
    rescue PG::Error
      conn.close unless conn.finished?
    end

    # Set what becomes of a message, unless that is decided.
    def decide(message, outcome)
      @lock.synchronize { message.outcome ? false : message.outcome = outcome }
    end

    # The handler has ended, or must: what becomes of the message.
    def judge(message, error)
      outcome = case error
                when nil then "ack"
                when Permanent then "fail"
                when TimedOut then "retry"
                when LeaseLost then "lost"
                else "retry"
                end
      return unless decide(message, outcome)

      values = [message.owner_token, message.id, message.attempts, describe(error)]
      case outcome
      when "ack"
        @acks_since = now if @acks.empty?
        @acks << message
      when "fail" then @calls << [FAIL, [*values, error.reason]]
      else
        # the server takes back what is behind it in its stream
        @waiting.reject! { |other| message.stream_id && other.stream_id == message.stream_id }
      end
      return if outcome != "retry"

      @calls << [NACK, [*values, error.is_a?(Retry) && error.after ? "#{error.after} s" : nil]]
      @retried << (message.stream_id || message.id) if @draining
    end

    def cancel(message, error)
      judge(message, error)
      message.thread&.raise(error)
    end

    def lose(message)
      return if message.outcome

      @waiting.delete(message)
      cancel(message, LeaseLost.new)
      @hook.call("lost", message: message)
    end

    # Settle and renew

    # Send what is due, as far as the server answers.
    def settle
      return if now < @settle_after

      renew if now >= @renew_at
      release_strays unless @strays.empty?
      tell until @calls.empty?
      acknowledge while !@acks.empty? && (@acks.size >= ACK_IDS || now >= @acks_since + ACK_SECONDS)
      @lock.synchronize { @changed.broadcast } if @acks.size + @calls.size + 1 >= MOST_UNSETTLED
    end

    # The rows of a statement.
    def query(sql, values)
      @conns[:settle] = @connect.call if @conns[:settle].finished?
      found = rows(@conns[:settle], sql, values)
      @delays[:settle] = 0.1
      found
    rescue PG::Error => e
      raise if state(e)&.start_with?("22")

      @settle_after = now + recover(:settle, e)
      @lock.synchronize { leased.each { |message| lose(message) if now > message.leased_until } }
      raise Away
    end

    def tell
      sql, values = @calls.first
      begin
        query(sql, values)
      rescue PG::Error
        raise if values.size != 5

        # the server does not take what the handler has said
        query(sql, [*values[0, 3], nil, nil])
      end
      @lock.synchronize { @calls.shift }
    end

    def acknowledge
      acks = @acks.first(ACK_IDS)
      begin
        count = Integer(query(ACK, parts(acks))[0][0])
      rescue Away
        @acks_repeated = true
        raise
      end
      @lock.synchronize { @acks.shift(acks.size) }
      # how many the first of several calls has acknowledged is not known
      emit("settled", count: acks.size, lost: @acks_repeated ? 0 : acks.size - count)
      @acks_repeated = false
    end

    # What must be renewed.
    def leased
      @waiting + @running.reject(&:outcome)
    end

    # Release what stray claims may have taken, when nothing of their owner is in hand any more.
    def release_strays
      @lock.synchronize do
        forgotten = @strays - (@waiting + @running + @acks).map(&:owner_token)
        @strays -= forgotten
        @calls.concat(forgotten.map { |owner| [RELEASE_ALL, [owner]] })
      end
    end

    def renew
      began = now
      held = @lock.synchronize { leased }
      gone = held.empty? ? [] : query(RENEW, [*parts(held), @lease_seconds])
      gone.map! { |row| row.map { |value| Integer(value) } }
      @lock.synchronize do
        @renew_at = began + third
        held.each do |message|
          message.leased_until = began + @lease_seconds
          lose(message) if gone.include?([message.id, message.attempts])
        end
      end
    end
  end
end
