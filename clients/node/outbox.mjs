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
const COLUMNS = ['id', 'messageId', 'namespace', 'topic', 'payload', 'headers', 'correlationId',
  'tenantId', 'dedupeKey', 'streamId', 'attempts', 'retryCount', 'createdAt', 'dueTime',
  'lockedUntil', 'subscription', 'publishedId', 'priority']
// Parameters are sent as text and cast in the server, so that no driver has to guess types.
const CLAIM = `SELECT ${COLUMNS.map((name) => `${snake(name)} AS "${name}"`).join(', ')}
  FROM outbox.claim($1::text::uuid, $2::text::int, $3::text::int, $4::text, $5::text::text[],
                    $6::text::uuid, $7::text::int, $8::text::int, $9::text)`
const ACK = 'SELECT outbox.ack($1::text::uuid, $2::text::bigint[], $3::text::int[]) AS count'
const ACK_ONE = `SELECT outbox.ack_one($1::text::uuid, $2::text::bigint, $3::text::int,
                                       strict => true)`
const NACK = `SELECT outbox.release($1::text::uuid, $6::text::bigint[]),
                     outbox.nack_one($1::text::uuid, $2::text::bigint, $3::text,
                                     $4::text::interval, $5::text::int)`
const FAIL = `SELECT outbox.fail_one($1::text::uuid, $2::text::bigint, $3::text, $4::text::int,
                                     $5::text::int)`
const RENEW = `SELECT outbox.renew($1::text::uuid, $2::text::bigint[], $3::text::int,
                                   $4::text::int[]) AS count`
const LOST = `SELECT id, attempt
  FROM unnest($2::text::bigint[], $4::text::int[]) AS held(id, attempt)
 WHERE outbox.renew_one($1::text::uuid, id, $3::text::int, attempt) = 0`
const RELEASE = 'SELECT outbox.release($1::text::uuid, $2::text::bigint[])'
const RELEASE_ALL = 'SELECT outbox.release($1::text::uuid)'
const ADVANCE = `
SELECT coalesce(sum(outbox.reschedule(ARRAY[id], next_attempt_at - $1::text::interval)), 0)::int
    AS count
  FROM outbox.messages WHERE state = 'ready' AND next_attempt_at > clock_timestamp()`

const ACK_MS = 5
const ACK_IDS = 100
const TRANSACTION_TRIES = 3

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
  return `{${values.map((value) => JSON.stringify(value)).join(',')}}`
}

/** A parameter as text. */
function text(value) {
  if (value === null || value === undefined) return null
  if (value instanceof Date) return value.toISOString()
  return typeof value === 'object' ? JSON.stringify(value) : String(value)
}

async function rows(conn, sql, parameters) {
  const values = parameters.map(text)
  // a function: postgres.js, or a transaction of it
  if (typeof conn === 'function') return [...await conn.unsafe(sql, values)]
  return (await conn.query(sql, values)).rows
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
export function enqueue(conn, topic, payload, options = {}) {
  return one(conn, 'enqueue', topic, payload, options)
}

/** Publish a message for all who have subscribed; the published id. */
export function publish(conn, topic, payload, options = {}) {
  return one(conn, 'publish', topic, payload, options)
}

/** Enqueue objects with topic, payload and options; for each messageId, enqueued, outcome. */
export function enqueueBatch(conn, messages) {
  return batch(conn, `SELECT message_id AS "messageId", enqueued, outcome
                        FROM outbox.enqueue_batch($1::text::jsonb) ORDER BY ordinal`, messages)
}

/** Publish objects with topic, payload and options; for each messageId, deliveries. */
export function publishBatch(conn, messages) {
  return batch(conn, `SELECT message_id AS "messageId", deliveries
                        FROM outbox.publish_batch($1::text::jsonb) ORDER BY ordinal`, messages)
}

/** For tests: all waiting messages become due that much earlier; how many. */
export async function advance(conn, seconds) {
  return (await rows(conn, ADVANCE, [`${seconds} s`]))[0].count
}

// Worker

/** A claimed message: the columns of outbox.message, and a signal for its handler. */
class Message {
  #abort = new AbortController()
  outcome = null // decided once: ack, retry, fail or lost

  constructor(row) {
    Object.assign(this, row)
  }

  get signal() {
    return this.#abort.signal
  }

  get traceparent() {
    return this.headers?.traceparent ?? null
  }

  json() {
    return JSON.parse(this.payload)
  }

  cancel(error) {
    this.#abort.abort(error)
  }
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

  take(messages, asked) {
    this.#full = messages.length === asked
    this.#claimed = performance.now()
    this.waiting.push(...messages)
  }

  // never beside another of its stream
  #startable() {
    const busy = new Set([...this.running].map((message) => message.streamId))
    busy.delete(null)
    return this.waiting.findIndex((message) => !busy.has(message.streamId))
  }

  /** A message that may be handled now. */
  next() {
    const index = this.running.size < this.slots ? this.#startable() : -1
    if (index < 0) return null
    const [message] = this.waiting.splice(index, 1)
    this.running.add(message)
    return message
  }

  /** Take out what no handler has begun; the ids. */
  drop(wanted) {
    const dropped = this.waiting.filter(wanted)
    this.waiting = this.waiting.filter((message) => !dropped.includes(message))
    return dropped.map((message) => message.id)
  }
}

/** One connection of a worker, of either driver. */
class Connection {
  static async open(connect) {
    const self = new Connection()
    self.client = await connect()
    self.closed = false
    if (typeof self.client === 'function') {
      await self.client.unsafe('SELECT 1')
    } else {
      self.client.on('error', () => { self.closed = true })
      await self.client.connect()
    }
    return self
  }

  async transaction(work) {
    const { client } = this
    const send = (sql) => (typeof client === 'function' ? client.unsafe(sql) : client.query(sql))
    await send('BEGIN')
    try {
      await work(client)
      // what was aborted, COMMIT rolls back without an error
      if ((await send('COMMIT')).command !== 'COMMIT') throw new Error('rolled back')
    } catch (error) {
      await send('ROLLBACK').catch(() => this.close())
      throw error
    }
  }

  /** At once: a claim that waits on the server notices. */
  async close() {
    this.closed = true
    if (typeof this.client === 'function') await this.client.end({ timeout: 0 }).catch(() => {})
    else await this.client.end().catch(() => {})
  }
}

function repeatable(error) {
  if (error.severity) return /^(08|40001|40P01|57P0[123])/.test(error.code)
  return !(error instanceof TypeError)
}

/** What is recorded of an error: never a text that may quote the payload. */
function describe(error) {
  if (error instanceof Permanent || error instanceof Retry) {
    return error.message.slice(0, 500).replaceAll('\0', '')
  }
  const name = error?.constructor?.name ?? typeof error
  return typeof error?.code === 'string' ? `${name} ${error.code}` : name
}

function sleep(ms) {
  return new Promise((resolve) => { setTimeout(resolve, ms) })
}

/** Wait for a promise, but not longer than this. */
async function within(ms, promise) {
  let timer
  await Promise.race([promise, new Promise((resolve) => { timer = setTimeout(resolve, ms) })])
  clearTimeout(timer)
}

/** A condition that one loop waits for. */
class Bell {
  #ring = null

  ring() {
    this.#ring?.()
  }

  async wait(ms) {
    const rung = new Promise((resolve) => { this.#ring = resolve })
    await (ms === undefined ? rung : within(ms, rung))
    this.#ring = null
  }
}

export class Worker {
  #connect
  #options
  #handlers = new Map()
  #claimBell
  #settleBell
  #hand
  #acks
  #calls
  #connections
  #error
  #deadline
  #stopping
  #closing
  #handled
  #free

  /** connect returns a new client: () => new pg.Client(...), or () => postgres(...,
   * { max: 1, prepare: false }); max must be 1, and prepare false behind PgBouncer. */
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
  async run() {
    await this.#run(false)
  }

  /** For tests: work until nothing is due, without waiting; how many were handled. */
  drain() {
    return this.#run(true)
  }

  /** Begin to end run(). Called twice, do not wait for handlers. */
  stop() {
    if (this.#stopping) this.#deadline = 0
    this.#stopping = true
    this.#claimBell.ring()
    this.#connections.claim.close()
  }

  async #run(draining) {
    if (this.#handlers.size === 0) throw new TypeError('no topic has a handler')
    this.owner = randomUUID()
    this.#hand = new Hand(this.#options.concurrency, this.#options.maxBatch)
    this.#acks = { messages: [], since: 0 }
    this.#calls = [] // what fails or goes back
    this.#free = [] // connections for handlers with transaction
    this.#claimBell = new Bell()
    this.#settleBell = new Bell()
    this.#deadline = Infinity
    this.#stopping = this.#closing = false
    this.#error = null
    this.#handled = 0
    const [claim, settle] = await Promise.all([0, 1].map(() => Connection.open(this.#connect)))
    this.#connections = { claim, settle }
    const signals = ['SIGTERM', 'SIGINT']
    const stop = () => this.stop()
    signals.forEach((signal) => process.on(signal, stop))
    try {
      const settler = this.#guard(() => this.#settleLoop())
      await this.#guard(() => this.#claimLoop(draining))
      await this.#shutDown(settler)
    } finally {
      signals.forEach((signal) => process.off(signal, stop))
      await Promise.all([...Object.values(this.#connections), ...this.#free].map((c) => c.close()))
    }
    if (this.#error) throw this.#error
    return this.#handled
  }

  async #guard(loop) {
    try {
      await loop()
    } catch (error) {
      this.#error ??= error
      this.stop()
    }
  }

  async #shutDown(settler) {
    const { shutdownSeconds } = this.#options
    let ended = false
    settler.then(() => { ended = true })
    this.#deadline = Math.min(this.#deadline, performance.now() + 1000 * shutdownSeconds)
    const ids = this.#hand.drop(() => true)
    if (ids.length > 0) this.#calls.push([RELEASE, [this.owner, list(ids)]])
    this.#settleBell.ring()
    while (this.#hand.running.size > 0 && performance.now() < this.#deadline && !ended) {
      await sleep(10)
    }
    for (const message of this.#hand.running) this.#lose(message)
    this.#closing = true
    this.#settleBell.ring()
    await within(5000, settler)
  }

  /** The rows of a statement, and whether it was repeated. */
  async #call(name, sql, parameters) {
    for (let delay = 100, repeated = false; ; delay = Math.min(2 * delay, 5000), repeated = true) {
      try {
        if (this.#connections[name].closed) {
          this.#connections[name] = await Connection.open(this.#connect)
        }
        if (name === 'claim' && this.#stopping) return { result: [] }
        return { result: await rows(this.#connections[name].client, sql, parameters), repeated }
      } catch (error) {
        if (name === 'claim' && (this.#stopping || error.code === '57014')) return { result: [] }
        if (!repeatable(error) || performance.now() > this.#deadline + 2000) throw error
        await this.#connections[name].close()
        this.#options.hook('reconnect', { error: describe(error) })
      }
      await sleep(delay * (0.5 + Math.random() / 2))
    }
  }

  // Claim and handle

  async #claimLoop(draining) {
    const { leaseSeconds, namespace, tenantId, maxAttempts, waitMs, subscription } = this.#options
    const topics = this.#handlers.has('*') ? null : list([...this.#handlers.keys()])
    while (!this.#stopping) {
      const asked = this.#hand.ask()
      if (asked === 0) {
        await this.#claimBell.wait()
        continue
      }
      const idle = this.#hand.running.size + this.#acks.messages.length + this.#calls.length === 0
      const { result } = await this.#call('claim', CLAIM, [this.owner, leaseSeconds, asked,
        namespace, topics, tenantId, maxAttempts, draining ? 0 : waitMs, subscription])
      this.#hand.take(result.map((row) => new Message(row)), asked)
      this.#options.hook('claimed', { count: result.length, asked })
      this.#start()
      if (draining && result.length === 0) {
        if (idle) this.stop()
        await sleep(10)
      }
    }
  }

  #start() {
    let message
    while (!this.#stopping && (message = this.#hand.next())) {
      const next = message
      this.#guard(() => this.#handle(next))
    }
  }

  async #handle(message) {
    const entry = this.#handlers.get(message.topic) ?? this.#handlers.get('*')
    const began = performance.now()
    const timer = entry.timeoutSeconds && setTimeout(() => {
      const error = new TimeoutError()
      this.#judge(message, error)
      message.cancel(error)
    }, 1000 * entry.timeoutSeconds)
    try {
      if (entry.transaction) await this.#transact(message, entry.handler)
      else await this.#options.wrap(message, () => entry.handler(message))
      this.#judge(message, null)
    } catch (error) {
      this.#judge(message, error)
    }
    clearTimeout(timer)
    this.#hand.running.delete(message)
    this.#handled += 1
    this.#start()
    this.#claimBell.ring()
    const seconds = (performance.now() - began) / 1000
    this.#options.hook('finished', { message, outcome: message.outcome, seconds })
  }

  async #transact(message, handler) {
    for (let left = TRANSACTION_TRIES - 1; ; left -= 1) {
      const connection = this.#free.pop() ?? await Connection.open(this.#connect)
      try {
        await connection.transaction(async (conn) => {
          await this.#options.wrap(message, () => handler(message, conn))
          if (message.outcome) throw new LeaseLost()
          message.outcome = 'ack' // from here on, the transaction decides
          await rows(conn, ACK_ONE, [this.owner, message.id, message.attempts])
        })
        return
      } catch (error) {
        const begun = message.outcome === 'ack'
        if (begun) message.outcome = null
        if (begun && error.code === '55000') throw new LeaseLost()
        if (left === 0 || !['40001', '40P01'].includes(error?.code)) throw error
      } finally {
        if (!connection.closed) this.#free.push(connection)
      }
    }
  }

  /** The handler has ended, or must: what becomes of the message. */
  #judge(message, error) {
    if (message.outcome) return
    const { id, attempts } = message
    if (error === null) {
      message.outcome = 'ack'
      if (this.#acks.messages.length === 0) this.#acks.since = performance.now()
      this.#acks.messages.push(message)
    } else if (error instanceof LeaseLost) {
      message.outcome = 'lost'
      this.#dropStream(message)
    } else if (error instanceof Permanent) {
      message.outcome = 'fail'
      this.#calls.push([FAIL, [this.owner, id, describe(error), error.reason, attempts]])
    } else {
      message.outcome = 'retry'
      const after = error instanceof Retry && error.after !== null ? `${error.after} s` : null
      const behind = list(this.#dropStream(message))
      this.#calls.push([NACK, [this.owner, id, describe(error), after, attempts, behind]])
    }
    this.#settleBell.ring()
  }

  #lose(message) {
    const error = new LeaseLost()
    this.#judge(message, error)
    message.cancel(error)
  }

  /** What is behind it in its stream is not to be handled now, if it goes back; the ids. */
  #dropStream({ streamId }) {
    return this.#hand.drop((other) => streamId !== null && other.streamId === streamId)
  }

  // Settle and renew

  async #settleLoop() {
    const third = 1000 * this.#options.leaseSeconds / 3
    let renewAt = performance.now() + third
    for (;;) {
      const now = performance.now()
      const { messages, since } = this.#acks
      const acksDue = messages.length > 0 &&
        (this.#closing || messages.length >= ACK_IDS || now >= since + ACK_MS)
      if (this.#calls.length > 0 || acksDue) {
        await this.#settle(acksDue ? messages.splice(0, ACK_IDS) : [], this.#calls.splice(0))
      } else if (this.#closing) {
        await this.#settle([], [[RELEASE_ALL, [this.owner]]])
        return
      } else if (now >= renewAt) {
        renewAt = now + third
        await this.#renew()
      } else {
        const until = messages.length > 0 ? Math.min(since + ACK_MS, renewAt) : renewAt
        await this.#settleBell.wait(until - now)
      }
    }
  }

  async #settle(acks, calls) {
    if (acks.length > 0) {
      const { result, repeated } = await this.#call('settle', ACK,
        [this.owner, list(acks.map((m) => m.id)), list(acks.map((m) => m.attempts))])
      const lost = repeated ? 0 : acks.length - result[0].count
      this.#options.hook('settled', { count: acks.length, lost })
    }
    for (const [sql, parameters] of calls) await this.#call('settle', sql, parameters)
  }

  async #renew() {
    const running = [...this.#hand.running].filter((message) => !message.outcome)
    const held = [...this.#hand.waiting, ...running]
    if (held.length === 0) return
    const parameters = [this.owner, list(held.map((m) => m.id)), this.#options.leaseSeconds,
      list(held.map((m) => m.attempts))]
    const { result: [{ count }] } = await this.#call('settle', RENEW, parameters)
    if (count === held.length) return
    const { result } = await this.#call('settle', LOST, parameters)
    const gone = new Set(result.map((row) => `${row.id}/${row.attempt}`))
    const lost = held.filter((m) => gone.has(`${m.id}/${m.attempts}`) && !m.outcome)
    this.#hand.drop((message) => lost.includes(message))
    for (const message of lost) {
      this.#lose(message)
      this.#options.hook('lost', { message })
    }
  }
}
