/** The suite of the Node client: suite.mjs produce | send | drain | worker; see ../../test/run.py. */
import { createInterface } from 'node:readline'
import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'
import postgres from 'postgres'
import * as outbox from '../outbox.mjs'

const TENANT = '00000000-0000-4000-8000-0000000000aa'
const GIVEN = '01234567-0000-4000-8000-000000000042'
const STREAM = '00000000-0000-4000-8000-000000000007'
const other = process.env.DRIVER === 'postgres'
const connect = other
  ? () => postgres({ max: 1, prepare: false, fetch_types: false, onnotice: () => {} })
  : () => new pg.Client()

function say(...words) {
  console.log(words.join(' '))
}

function check(name, got, expected) {
  const same = JSON.stringify(got) === JSON.stringify(expected)
  say(same ? 'ok' : 'not ok', '-', name)
  if (!same) say(`# got ${JSON.stringify(got)}, not ${JSON.stringify(expected)}`)
}

async function error(call) {
  try {
    await call()
    return 'none'
  } catch (raised) {
    return raised.message
  }
}

/** query(conn, sql) and transaction(work) of either driver. */
async function open() {
  const conn = connect()
  if (other) return { conn, query: (c, sql) => c.unsafe(sql), transaction: (work) => conn.begin(work) }
  await conn.connect()
  return {
    conn,
    query: async (c, sql) => (await c.query(sql)).rows,
    transaction: async (work) => {
      await conn.query('BEGIN')
      try {
        await work(conn)
        await conn.query('COMMIT')
      } catch (raised) {
        await conn.query('ROLLBACK')
        throw raised
      }
    },
  }
}

async function produce() {
  const { conn, query, transaction } = await open()
  await error(() => transaction(async (tx) => {
    await outbox.enqueue(tx, 'p.rolled-back', 'x')
    throw new Error('no')
  }))
  let made
  await transaction(async (tx) => {
    await query(tx, "INSERT INTO orders VALUES ('node')")
    await outbox.enqueue(tx, 'p.committed', { order: 7 })
    await outbox.enqueue(tx, 'p.text', 'plain "text" é')
    made = await outbox.enqueue(tx, 'p.options', 'x', {
      correlationId: 'c-1', namespace: 'shop', tenantId: TENANT,
      dueTime: new Date('2030-01-02T03:04:05Z'), expiresAt: '2031-01-02T03:04:05Z',
      dedupeKey: `${TENANT.replaceAll('-', '')}/k`, streamId: STREAM, messageId: GIVEN,
      headers: { region: 'eu' }, dedupeFor: '1 hour', onDuplicate: 'keep', priority: 1,
      traceparent: '00-argument',
    })
    await outbox.enqueue(tx, 'p.trace', 'x')
    await outbox.enqueue(tx, 'p.own', 'x', { headers: { traceparent: 'own' } })
  })
  check('enqueue answers the message_id', made, GIVEN)
  check('an unknown option is an error',
    await error(() => outbox.enqueue(conn, 'p.unknown', 'x', { colour: 'red' })),
    'there is no option colour')
  const rows = await outbox.enqueueBatch(conn, [
    { topic: 'p.batch', payload: 'one' },
    { topic: 'p.batch', payload: { n: 2 }, dedupeKey: 'twin' },
    { topic: 'p.batch', payload: 'three', dedupeKey: 'twin' }])
  check('a batch says what is new', rows.map((row) => [row.enqueued, row.outcome]),
    [[true, 'enqueued'], [true, 'enqueued'], [false, 'kept']])
  check('and whose a key is', rows[1].messageId, rows[2].messageId)
  await outbox.publish(conn, 'p.news', 'first')
  const published = await outbox.publishBatch(conn,
    ['2', '3'].map((payload) => ({ topic: 'p.news', payload })))
  check('publishBatch counts deliveries', published.map((row) => row.deliveries), [1, 1])
  await conn.end()
}

/** Lines of run.py: how a transaction ends, and its messages, as topic,payload,stream. */
async function send() {
  let session
  for await (const line of createInterface({ input: process.stdin })) {
    const [how, ...words] = line.split(' ')
    const messages = words.map((word) => {
      const [topic, payload, streamId] = word.split(',')
      return { topic, payload, ...(streamId === '-' ? {} : { streamId }) }
    })
    try {
      session ??= await open()
      session.conn.on?.('error', () => { session = undefined })
      const { topic, payload, ...options } = messages[0]
      const [one, many] = topic.startsWith('pub.') ? [outbox.publish, outbox.publishBatch]
        : [outbox.enqueue, outbox.enqueueBatch]
      await session.transaction(async (tx) => {
        await one(tx, topic, payload, options)
        await many(tx, messages.slice(1))
        if (how === 'rollback') throw new Error('no')
      })
    } catch (raised) {
      if (raised.message === 'no') continue
      say('failed', raised.message)
      session?.conn.end()?.catch?.(() => {})
      session = undefined
    }
  }
  await session?.conn.end()
}

async function drain() {
  const { conn, query } = await open()
  const [seen, order] = [[], []]
  const worker = new outbox.Worker(connect, { concurrency: 2 })
  worker.handle('d.ok', (message) => { seen.push(message.payload) })
  worker.handle('d.fail', () => { throw new outbox.Permanent('no such order', 4) })
  worker.handle('d.retry', (message) => {
    if (message.attempts === 1) throw new outbox.Retry('later', 3600)
  })
  worker.handle('d.stream', (message) => {
    order.push(message.payload)
    if (order.length === 1) throw new outbox.Retry('again', 0)
  })
  for (const payload of ['0', '1', '2']) await outbox.enqueue(conn, 'd.ok', payload)
  for (const payload of ['1', '2']) {
    await outbox.enqueue(conn, 'd.stream', payload, { streamId: STREAM })
  }
  await outbox.enqueue(conn, 'd.ok', 'in an hour', { dueTime: new Date(Date.now() + 3600000) })
  await outbox.enqueue(conn, 'd.fail', 'x')
  await outbox.enqueue(conn, 'd.retry', 'x')
  check('drain handles what is due', await worker.drain(), 6)
  check('and nothing else', seen.sort(), ['0', '1', '2'])
  const [dead] = await query(conn,
    "SELECT last_error, failure_reason FROM outbox.messages WHERE topic = 'd.fail'")
  check('what is dead says why', [dead.last_error, dead.failure_reason], ['no such order', 4])
  check('a message once, and none of its stream after one that goes back', order, ['1'])
  check('the next drain goes on', [await worker.drain(), order], [2, ['1', '1', '2']])
  check('time does not pass by itself', await worker.drain(), 0)
  check('advance moves it', await outbox.advance(conn, 3660), 2)
  check('and drain follows', await worker.drain(), 2)
  check('to the end', seen.slice(3), ['in an hour'])
  await conn.end()
}

function handlers(worker) {
  let repeated = false
  const query = (conn, sql) => (other ? conn.unsafe(sql) : conn.query(sql))

  async function slow(message, seconds) {
    try {
      await sleep(1000 * seconds, null, { signal: message.signal })
    } catch {
      say('cancelled', message.id)
      throw message.signal.reason
    }
    say('handled', message.messageId, message.topic, message.attempts)
  }
  const first = (message, raised) => {
    if (message.attempts === 1) throw raised
    return slow(message, 0)
  }
  const effect = (message, conn) =>
    query(conn, `INSERT INTO effects VALUES ('${message.messageId}', ${message.attempts})`)

  worker.handle('w.ok', (message) => slow(message, 0))
  worker.handle('w.trace', (message) => say('trace', message.traceparent))
  worker.handle('w.tx', effect, { transaction: true })
  worker.handle('w.serial', async (message, conn) => {
    await effect(message, conn)
    if (repeated) return
    repeated = true
    await query(conn, "DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = '40001'; END $$")
  }, { transaction: true })
  worker.handle('w.txfail', async (message, conn) => {
    await effect(message, conn)
    if (message.attempts === 1) throw new Error(message.payload)
  }, { transaction: true })
  worker.handle('w.text', () => {
    throw new outbox.Permanent(`\0${'é'.repeat(499)}\ud83d\ude00${'é'.repeat(1000)}`, 4)
  })
  worker.handle('w.reason', () => { throw new outbox.Permanent('no such reason', 1e10) })
  worker.handle('w.odd', (message) => first(message, null))
  worker.handle('w.permanent', () => { throw new outbox.Permanent('no such order', 4) })
  worker.handle('w.retry', (message) => first(message, new outbox.Retry('later', 0.2)))
  worker.handle('w.error', (message) => first(message, new Error(message.payload)))
  worker.handle('w.slow', (message) => slow(message, message.json().seconds))
  worker.handle('w.timeout', (message) => slow(message, message.attempts === 1 ? 5 : 0),
    { timeoutSeconds: Number(process.env.TIMEOUT_SECONDS ?? 0.3) })
  worker.handle('w.stream', async (message) => {
    say('stream', message.payload)
    await sleep(20)
    if (message.payload === '3' && message.attempts === 1) throw new outbox.Retry('again', 0)
    say('passed', message.payload)
  })
}

async function work() {
  const env = process.env
  const worker = new outbox.Worker(connect, {
    concurrency: Number(env.CONCURRENCY ?? 4),
    leaseSeconds: Number(env.LEASE_SECONDS ?? 30),
    shutdownSeconds: Number(env.SHUTDOWN_SECONDS ?? 10),
    subscription: env.SUBSCRIPTION,
    hook(event, { seconds, message, ...fields }) {
      say('event', event, ...(message ? [message.id] : []), ...Object.values(fields))
    },
    wrap(message, call) {
      say('begin', message.id, message.topic)
      return call()
    },
  })
  if (env.SUBSCRIPTION) {
    worker.handle('*', (m) => say('delivered', m.subscription, m.publishedId, m.payload))
  } else {
    handlers(worker)
  }
  await worker.run()
  say('ended')
}

await { produce, send, drain, worker: work }[process.argv[2]]()
