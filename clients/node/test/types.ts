// What a user of TypeScript may write; it is compiled, not run.
import pg from 'pg'
import postgres from 'postgres'
import { Permanent, Worker, enqueue, enqueueBatch, publish } from '../outbox.mjs'

export async function main(): Promise<void> {
  const client = new pg.Client()
  const sql = postgres()
  const id: string = await enqueue(client, 'topic', { order: 1 }, { priority: 1 })
  await sql.begin((tx) => publish(tx, 'topic', id))
  const [{ enqueued }] = await enqueueBatch(client, [{ topic: 'topic', payload: 'x', dedupeKey: 'k' }])
  const worker = new Worker(() => new pg.Client(), { concurrency: enqueued ? 5 : 1 })
  worker.handle('topic', async (message, conn) => {
    if (message.signal.aborted) throw new Permanent('no', 4)
    await conn.query('SELECT 1')
  }, { transaction: true, timeoutSeconds: 5 })
  // @ts-expect-error: no such option
  await enqueue(client, 'topic', 'x', { colour: 'red' })
  await worker.run()
}
