/**
 * A client of outbox for Node: functions that enqueue in the caller's transaction, and
 * workers. It takes clients of pg, and of postgres (postgres.js), and imports neither.
 * ../README.md is the design that the clients have in common; outbox.d.mts has the types.
 */
import { randomUUID } from 'node:crypto'

const OPTIONS = {
  correlationId: 'text', dueTime: 'timestamptz', namespace: 'text', tenantId: 'uuid',
  dedupeKey: 'text', streamId: 'uuid', headers: 'jsonb', expiresAt: 'timestamptz',
  messageId: 'uuid', dedupeFor: 'interval', onDuplicate: 'text', priority: 'int',
}
const COLUMNS = ['messageId', 'namespace', 'topic', 'payload', 'headers', 'correlationId',
  'tenantId', 'dedupeKey', 'streamId', 'attempts', 'retryCount', 'createdAt', 'dueTime',
  'lockedUntil', 'ownerToken', 'subscription', 'publishedId', 'priority']
// Parameters are sent as text and cast in the server, so that no driver has to guess types;
// ids come as text, whatever the driver makes of bigint.
const CLAIM = `
SELECT id::text AS id, ${COLUMNS.map((name) => `${snake(name)} AS "${name}"`).join(', ')}
  FROM outbox.claim($1::text::uuid, $2::text::int, $3::text::int, $4::text, $5::text::text[],
                    $6::text::uuid, $7::text::int, $8::text::int, $9::text)`
const HELD = `unnest($1::text::uuid[], $2::text::bigint[], $3::text::int[])
                AS held(owner, id, attempt)`
const ACK = `
SELECT coalesce(sum(outbox.ack(owner, ids, attempts)), 0)::int AS count
  FROM (SELECT owner, array_agg(id), array_agg(attempt) FROM ${HELD} GROUP BY owner)
       AS own(owner, ids, attempts)`
const ACK_ONE = `SELECT outbox.ack_one($1::text::uuid, $2::text::bigint, $3::text::int,
                                       strict => true)`
const NACK = `SELECT outbox.nack_one($1::text::uuid, $2::text::bigint, $4::text,
                                     $5::text::interval, $3::text::int)`
const FAIL = `SELECT outbox.fail_one($1::text::uuid, $2::text::bigint, $4::text, $5::text::int,
                                     $3::text::int)`
// renews; its rows are the leases that are lost
const RENEW = `SELECT id::text AS id, attempt FROM ${HELD}
                WHERE outbox.renew_one(owner, id, $4::text::int, attempt) = 0`
const RELEASE = `SELECT outbox.release_one(owner, id) FROM ${HELD}`
const RELEASE_ALL = 'SELECT outbox.release($1::text::uuid)'
const ADVANCE = `
SELECT coalesce(sum(outbox.reschedule(ARRAY[id], next_attempt_at - $1::text::interval)), 0)::int
    AS count
  FROM outbox.messages WHERE state = 'ready' AND next_attempt_at > clock_timestamp()`

const ACK_MS = 5
const ACK_IDS = 100
const MOST_UNSETTLED = 1000
const TRANSACTION_TRIES = 3
const SIGNALS = ['SIGTERM', 'SIGINT']

/** The message can never be handled: it becomes a dead letter with this text. */
export class Permanent extends Error {
  constructor(text = '', reason = null) {
    super(text)
    this.reason = reason
  }
}

/** The message is handed out again after so many seconds, or the server's backoff. */
export class Retry extends Error {
  constructor(text = '', after = null) {
    super(text)
    this.after = after
  }
}

/** Another worker has the message, or soon will have: nothing more counts. */
export class LeaseLost extends Error {}

class TimeoutError extends Error {}

function snake(name) {
  return name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`)
}

function list(values) {
  return `{${values.map((value) => `"${String(value).replace(/["\\]/g, '\\$&')}"`).join(',')}}`
}

/** A parameter as text. */
function text(value) {
  if (value instanceof Date) return value.toISOString()
  return typeof value === 'object' && value ? JSON.stringify(value) : value?.toString() ?? null
}

/** conn is a function: postgres.js, or a transaction of it. */
function query(conn, sql, values) {
  return typeof conn === 'function' ? conn.unsafe(sql, values) : conn.query(sql, values)
}

async function rows(conn, sql, parameters) {
  const result = await query(conn, sql, parameters.map(text))
  return result.rows ?? result
}

// Producer

/** The options as arguments of the server: traceparent becomes a header. */
function complete(options) {
  const { traceparent = process.env.TRACEPARENT, ...given } = options
  for (const name of Object.keys(given)) {
    if (!(name in OPTIONS)) throw new TypeError(`there is no option ${name}`)
    if (given[name] === undefined || given[name] === null) delete given[name]
  }
  if (traceparent) given.headers = { traceparent, ...given.headers }
  return given
}

async function one(conn, name, topic, payload, options) {
  const given = Object.entries(complete(options))
  const named = given.map(([key], n) => `, ${snake(key)} => $${n + 3}::text::${OPTIONS[key]}`)
  const sql = `SELECT outbox.${name}($1::text, $2::text${named.join('')}) AS id`
  const values = [topic, asText(payload), ...given.map(([, value]) => value)]
  return (await rows(conn, sql, values))[0].id
}

function asText(payload) {
  return typeof payload === 'string' ? payload : JSON.stringify(payload)
}

async function batch(conn, sql, messages) {
  const objects = messages.map(({ topic, payload, ...options }) => {
    const given = Object.entries(complete(options)).map(([key, value]) => [snake(key), value])
    return { topic, payload: asText(payload), ...Object.fromEntries(given) }
  })
  return rows(conn, sql, [JSON.stringify(objects)])
}

/** Enqueue a message in the connection's transaction; its messageId. */
export const enqueue = (conn, topic, payload, options = {}) =>
  one(conn, 'enqueue', topic, payload, options)

/** Publish a message for all who have subscribed; the published id. */
export const publish = (conn, topic, payload, options = {}) =>
  one(conn, 'publish', topic, payload, options)

/** Enqueue objects with topic, payload and options; for each messageId, enqueued, outcome. */
export const enqueueBatch = (conn, messages) => batch(conn, `
  SELECT message_id AS "messageId", enqueued, outcome
    FROM outbox.enqueue_batch($1::text::jsonb) ORDER BY ordinal`, messages)

/** Publish objects with topic, payload and options; for each messageId, deliveries. */
export const publishBatch = (conn, messages) => batch(conn, `
  SELECT message_id AS "messageId", deliveries
    FROM outbox.publish_batch($1::text::jsonb) ORDER BY ordinal`, messages)

/** For tests: all waiting messages become due that much earlier; how many. */
export async function advance(conn, seconds) {
  return (await rows(conn, ADVANCE, [`${seconds} s`]))[0].count
}

// Worker

/** A claimed message: the columns of outbox.message, and a signal for its handler. */
class Message {
  #abort = new AbortController()
  outcome = null // decided once: ack, retry, fail or lost

  constructor(row, until) {
    Object.assign(this, row)
    this.until = until // its lease lasts as long, or longer
  }

  get signal() { return this.#abort.signal }

  get traceparent() { return this.headers?.traceparent ?? null }

  json() { return JSON.parse(this.payload) }

  cancel(error) { this.#abort.abort(error) }
}

/** What a worker has in hand: what is next, and how many to ask for. */
class Hand {
  waiting = []
  running = new Set()
  #full = false
  #claimed = 0

  constructor(slots, most) {
    this.slots = slots
    this.most = Math.max(slots, most)
    this.target = slots
  }

  /** How many messages to claim now; 0 if no slot is free for one. */
  ask() {
    const free = this.slots - this.running.size
    const held = this.waiting.length + this.running.size
    if (free === 0 || this.#startable() >= 0) return 0
    const took = performance.now() - this.#claimed
    if (!this.#full || took > 500) this.target = this.slots
    else if (took < 100) this.target = Math.min(2 * this.target, this.most)
    return Math.min(Math.max(this.target - held, free), this.most - held)
  }

  take(messages, full) {
    this.#full = full
    this.#claimed = performance.now()
    this.waiting.push(...messages)
  }

  // never beside another of its stream
  #startable() {
    const busy = new Set([...this.running].map((message) => message.streamId))
    busy.delete(null)
    const now = performance.now()
    return this.waiting.findIndex((message) => !busy.has(message.streamId) && now < message.until)
  }

  /** A message that may be handled now. */
  next() {
    const index = this.running.size < this.slots ? this.#startable() : -1
    if (index < 0) return null
    const [message] = this.waiting.splice(index, 1)
    this.running.add(message)
    return message
  }

  /** Take out what no handler has begun. */
  drop(wanted) {
    const dropped = this.waiting.filter(wanted)
    this.waiting = this.waiting.filter((message) => !dropped.includes(message))
    return dropped
  }

  /** What must be renewed. */
  leased() {
    return [...this.waiting, ...[...this.running].filter((message) => !message.outcome)]
  }
}

/** One connection of a worker, of either driver. */
class Connection {
  closed = false

  static async open(connect) {
    const self = new Connection()
    self.client = await connect()
    self.client.on?.('error', () => { self.closed = true })
    await (self.client.connect?.() ?? query(self.client, 'SELECT 1'))
    return self
  }

  /** What was aborted, COMMIT rolls back without an error. */
  async commit() {
    const { command } = await query(this.client, 'COMMIT')
    if (command !== 'COMMIT') throw new Error('rolled back')
  }

  /** Of postgres.js, a query right after its connection has broken is never answered. */
  async rollback() {
    const done = query(this.client, 'ROLLBACK').then(() => true, () => false)
    if (!await within(1000, done)) await this.close()
  }

  /** At once: a claim that waits on the server notices. */
  async close() {
    this.closed = true
    await (this.client.connect ? this.client.end() : this.client.end({ timeout: 0 })).catch(() => {})
  }
}

function repeatable(error) {
  if (error.severity) return /^(08|40001|40P01|53300|57P0[123])/.test(error.code)
  return !(error instanceof TypeError)
}

/** What is recorded of an error: never a text that may quote the payload. */
function describe(error) {
  if (error instanceof Permanent || error instanceof Retry) {
    return [...error.message.slice(0, 2000).replaceAll('\0', '')].slice(0, 500).join('')
  }
  const name = error?.constructor?.name ?? String(error)
  return typeof error?.code === 'string' ? `${name} ${error.code}` : name
}

/** What a promise gives; undefined if it takes longer than this. */
function within(ms, promise) {
  let timer
  const late = new Promise((resolve) => { timer = setTimeout(resolve, ms) })
  return Promise.race([promise, late]).finally(() => clearTimeout(timer))
}

const never = new Promise(() => {})

/** A condition that one loop waits for. */
class Bell {
  ring = () => {}

  wait(ms) {
    const rung = new Promise((resolve) => { this.ring = resolve })
    return ms === undefined ? rung : within(ms, rung)
  }
}

/** Owners, ids and attempts, as statements take them. */
function parts(messages) {
  return ['ownerToken', 'id', 'attempts'].map((name) => list(messages.map((message) => message[name])))
}

export class Worker {
  #connect
  #options
  #handlers = new Map()
  #run = null

  /** connect returns a new client: () => new pg.Client(...), or () => postgres(...,
   * { max: 1, prepare: false, fetch_types: false }). */
  constructor(connect, options = {}) {
    this.#connect = connect
    this.#options = {
      concurrency: 10, subscription: null, namespace: null, tenantId: null, maxAttempts: null,
      leaseSeconds: 30, waitMs: 20000, maxBatch: 100, shutdownSeconds: 25,
      hook: () => {}, wrap: (_, call) => call(), ...options,
    }
  }

  /** Have handler(message) run for the topic, or for all others if it is '*'. With
   * transaction it is handler(message, conn), and the ack commits with its writes. */
  handle(topic, handler, { timeoutSeconds = null, transaction = false } = {}) {
    this.#handlers.set(topic, { handler, timeoutSeconds, transaction })
    return this
  }

  /** Work until SIGTERM, SIGINT or stop(). */
  async run() { await this.#work(false) }

  /** For tests: work until nothing is due, without waiting; how many were handled. */
  drain() { return this.#work(true) }

  /** Begin to end run(). Called twice, do not wait for handlers. */
  stop() { this.#run?.stop() }

  async #work(draining) {
    if (this.#handlers.size === 0) throw new TypeError('no topic has a handler')
    this.#run = new Run(this.#connect, this.#options, this.#handlers, draining)
    return this.#run.work()
  }
}

/** From run() to its end. */
class Run {
  constructor(connect, options, handlers, draining) {
    const third = 1000 * options.leaseSeconds / 3
    Object.assign(this, {
      connect, options, handlers, draining, third, owner: randomUUID(),
      hand: new Hand(options.concurrency, options.maxBatch),
      strays: [], // owners of claims without an answer
      retried: new Set(), // ids and streams, while draining
      acks: [], acksSince: 0,
      calls: [], // what fails or goes back
      free: [], // connections for handlers with transaction
      connections: {}, delays: { claim: 100, settle: 100 },
      renewAt: performance.now() + third,
      claimBell: new Bell(), settleBell: new Bell(), deadline: Infinity, handled: 0,
    })
    this.stopped = new Promise((resolve) => { this.endWaiting = resolve })
  }

  async work() {
    const stop = () => this.stop()
    try {
      this.connections.claim = await Connection.open(this.connect)
      this.connections.settle = await Connection.open(this.connect)
      SIGNALS.forEach((signal) => process.on(signal, stop))
      const loops = [this.guard(this.claimLoop()), this.guard(this.settleLoop())]
      await this.stopped
      await this.shutDown(...loops)
    } finally {
      SIGNALS.forEach((signal) => process.off(signal, stop))
      await Promise.all([...Object.values(this.connections), ...this.free].map((c) => c.close()))
    }
    if (this.error) throw this.error
    return this.handled
  }

  stop() {
    if (this.stopping) this.deadline = 0
    this.stopping = true
    this.claimBell.ring()
    this.endWaiting()
  }

  guard(running) {
    return running.catch((error) => {
      this.error ??= error
      if (!this.stopping) this.stop()
    })
  }

  async shutDown(claimer, settler) {
    this.deadline = Math.min(this.deadline, performance.now() + 1000 * this.options.shutdownSeconds)
    // what the server is claiming in this moment must be there when all is released
    const claimed = within(this.claiming ? 200 : 0, never)
    await this.connections.claim.close()
    await within(1000, claimer)
    this.calls.push([RELEASE, parts(this.hand.drop(() => true))])
    this.settleBell.ring()
    let ended = false
    settler.then(() => { ended = true })
    while (this.hand.running.size > 0 && performance.now() < this.deadline && !ended) {
      await within(10, never)
    }
    for (const message of this.hand.running) this.lose(message)
    await claimed
    this.closing = true
    this.settleBell.ring()
    await within(Math.max(this.deadline - performance.now(), 0) + 5000, settler)
  }

  /** After an error, wait until another try may be made, unless it is for good. */
  async recover(name, error) {
    if (!repeatable(error) || performance.now() > this.deadline + 2000) throw error
    await this.connections[name].close()
    this.options.hook('reconnect', { error: describe(error) })
    const delay = this.delays[name] * (0.5 + Math.random() / 2)
    await within(delay, this.stopping ? never : this.stopped)
    this.delays[name] = Math.min(2 * this.delays[name], this.stopping ? 500 : 5000)
  }

  // Claim and handle

  async claimLoop() {
    while (!this.stopping) {
      const unsettled = this.acks.length + this.calls.length
      const asked = unsettled < MOST_UNSETTLED ? this.hand.ask() : 0
      if (asked === 0) {
        await this.claimBell.wait()
        continue
      }
      const idle = this.hand.running.size + unsettled === 0
      const sent = performance.now()
      const result = await this.claim(asked)
      if (result === null) continue
      // surely not sooner: what came late, or to a stopped process, is renewed first
      const until = sent + 3 * this.third
      this.renewAt = Math.min(this.renewAt, sent + this.third)
      this.settleBell.ring()
      const fresh = [...result].filter((row) => !this.retried.has(row.streamId ?? row.id))
      this.hand.take(fresh.map((row) => new Message(row, until)), result.length === asked)
      this.options.hook('claimed', { count: result.length, asked })
      this.start()
      if (this.draining && result.length === 0) {
        if (idle) this.stop()
        await within(10, this.stopped)
      }
    }
  }

  /** The rows of a claim; null if it was not answered. What that has taken is the old
   * owner's then: it must not count as held by this worker, which knows nothing of it. */
  async claim(asked) {
    const o = this.options
    const topics = this.handlers.has('*') ? null : list([...this.handlers.keys()])
    try {
      if (this.connections.claim.closed) {
        this.connections.claim = await Connection.open(this.connect)
        if (this.stopping) return this.connections.claim.close().then(() => null)
        this.strays.push(this.owner)
        this.owner = randomUUID()
        this.settleBell.ring()
      }
      this.claiming = true
      const result = await rows(this.connections.claim.client, CLAIM, [
        this.owner, o.leaseSeconds, asked, o.namespace, topics, o.tenantId, o.maxAttempts,
        this.draining ? 0 : o.waitMs, o.subscription])
      this.delays.claim = 100
      return result
    } catch (error) {
      if (!this.stopping && error.code !== '57014') await this.recover('claim', error)
      return null
    } finally {
      this.claiming = false
    }
  }

  start() {
    let message
    while (!this.stopping && (message = this.hand.next())) {
      this.guard(this.handle(message))
    }
  }

  async handle(message) {
    const entry = this.handlers.get(message.topic) ?? this.handlers.get('*')
    const began = performance.now()
    const timer = entry.timeoutSeconds && setTimeout(() => {
      const error = new TimeoutError()
      this.judge(message, { error })
      message.cancel(error)
    }, 1000 * entry.timeoutSeconds)
    try {
      if (entry.transaction) await this.transact(message, entry.handler)
      else await this.options.wrap(message, () => entry.handler(message))
      this.judge(message, null)
    } catch (error) {
      this.judge(message, { error }) // which may be anything, also null
    }
    clearTimeout(timer)
    this.hand.running.delete(message)
    this.handled += 1
    this.start()
    this.claimBell.ring()
    const seconds = (performance.now() - began) / 1000
    this.options.hook('finished', { message, outcome: message.outcome, seconds })
  }

  async transact(message, handler) {
    for (let left = TRANSACTION_TRIES - 1; ; left -= 1) {
      const connection = await this.begin()
      let begun = false
      try {
        await this.options.wrap(message, () => handler(message, connection.client))
        if (message.outcome) throw new LeaseLost()
        message.outcome = 'ack' // from here on, the transaction decides
        begun = true
        await rows(connection.client, ACK_ONE, [message.ownerToken, message.id, message.attempts])
        await connection.commit()
        return
      } catch (error) {
        await connection.rollback()
        if (begun) message.outcome = null
        if (begun && error.code === '55000') throw new LeaseLost()
        if (left === 0 || !['40001', '40P01'].includes(error?.code)) throw error
      } finally {
        if (!connection.closed) this.free.push(connection)
      }
    }
  }

  /** A connection in a transaction. One that was idle may have broken since. */
  async begin() {
    for (;;) {
      const idle = this.free.pop()
      const connection = idle ?? await Connection.open(this.connect)
      try {
        await query(connection.client, 'BEGIN')
        return connection
      } catch (error) {
        await connection.close()
        if (!idle) throw error
      }
    }
  }

  /** The handler has ended, or must: what becomes of the message. */
  judge(message, failure) {
    if (message.outcome) return
    const { id, attempts, ownerToken, streamId } = message
    const error = failure?.error
    if (failure === null) {
      message.outcome = 'ack'
      if (this.acks.length === 0) this.acksSince = performance.now()
      this.acks.push(message)
    } else if (error instanceof Permanent) {
      message.outcome = 'fail'
      this.calls.push([FAIL, [ownerToken, id, attempts, describe(error), error.reason]])
    } else {
      // the server takes back what is behind it in its stream
      this.hand.drop((other) => streamId !== null && other.streamId === streamId)
      message.outcome = error instanceof LeaseLost ? 'lost' : 'retry'
    }
    if (message.outcome === 'retry') {
      const after = error instanceof Retry && error.after !== null ? `${error.after} s` : null
      this.calls.push([NACK, [ownerToken, id, attempts, describe(error), after]])
      if (this.draining) this.retried.add(streamId ?? id)
    }
    this.settleBell.ring()
  }

  lose(message, told = false) {
    if (message.outcome) return
    const error = new LeaseLost()
    this.hand.drop((other) => other === message)
    this.judge(message, { error })
    message.cancel(error)
    if (told) this.options.hook('lost', { message })
  }

  // Settle and renew

  async settleLoop() {
    for (;;) {
      const now = performance.now()
      const acksDue = this.acks.length > 0 &&
        (this.closing || this.acks.length >= ACK_IDS || now >= this.acksSince + ACK_MS)
      const forgotten = this.forgotten()
      if (now >= this.renewAt && !this.closing) {
        await this.renew()
      } else if (this.calls.length > 0 || acksDue) {
        const calls = this.calls.splice(0)
        if (acksDue) await this.ack()
        for (const [sql, parameters] of calls) await this.tell(sql, parameters)
        this.claimBell.ring()
      } else if (this.closing) {
        for (const owner of [...this.strays, this.owner]) await this.send(RELEASE_ALL, [owner])
        return
      } else if (forgotten) {
        this.strays.splice(this.strays.indexOf(forgotten), 1)
        await this.send(RELEASE_ALL, [forgotten])
      } else {
        const until = this.acks.length > 0 ? this.acksSince + ACK_MS : this.renewAt
        await this.settleBell.wait(Math.min(until, this.renewAt) - now)
      }
    }
  }

  /** The rows of a statement, and whether it was repeated. */
  async send(sql, parameters) {
    for (let repeated = false; ; repeated = true) {
      try {
        if (this.connections.settle.closed) {
          this.connections.settle = await Connection.open(this.connect)
        }
        const result = await rows(this.connections.settle.client, sql, parameters)
        this.delays.settle = 100
        return { result, repeated }
      } catch (error) {
        const now = performance.now()
        for (const message of this.hand.leased()) if (now > message.until) this.lose(message, true)
        await this.recover('settle', error)
      }
    }
  }

  async ack() {
    const sent = this.acks.splice(0, ACK_IDS)
    const { result, repeated } = await this.send(ACK, parts(sent))
    // how many the first of several calls has acknowledged is not known
    const lost = repeated ? 0 : sent.length - result[0].count
    this.options.hook('settled', { count: sent.length, lost })
  }

  async tell(sql, parameters) {
    try {
      await this.send(sql, parameters)
    } catch (error) {
      if (!error.code?.startsWith('22') || sql === RELEASE) throw error
      // the server does not take what the handler has said
      await this.send(sql, [...parameters.slice(0, -2), null, null])
    }
  }

  /** A stray owner of which nothing is in hand any more. */
  forgotten() {
    if (this.strays.length === 0) return undefined
    const held = [...this.hand.waiting, ...this.hand.running, ...this.acks]
    return this.strays.find((owner) => !held.some((message) => message.ownerToken === owner))
  }

  async renew() {
    const began = performance.now()
    const held = this.hand.leased()
    this.renewAt = began + this.third
    const parameters = [...parts(held), this.options.leaseSeconds]
    const { result } = held.length > 0 ? await this.send(RENEW, parameters) : { result: [] }
    const lost = new Set(result.map((row) => `${row.id}/${row.attempt}`))
    for (const message of held) {
      if (lost.has(`${message.id}/${message.attempts}`)) this.lose(message, true)
      message.until = began + 3 * this.third
    }
    this.start()
  }
}
