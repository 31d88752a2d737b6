// old.mjs - other queues, by their own clients; see test/t/041_migrate.pl
//
//   old.mjs SYSTEM setup                 its schema, and the queues of the test
//   old.mjs SYSTEM produce FIRST LAST N  jobs with these numbers, N in a transaction
//   old.mjs SYSTEM work                  does jobs until it is killed
//   old.mjs SYSTEM order                 the same, with what shows two at a time
//
// SYSTEM is pg-boss, pg-boss-10 or graphile-worker. The database is the one that libpq's
// variables name.
import { createRequire } from 'node:module'
import { setTimeout as sleep } from 'node:timers/promises'

// modules are not beside this file
const require = createRequire(`${process.env.OUTBOX_MIGRATE}/index.js`)
const pg = require('pg')

const [system, command, ...numbers] = process.argv.slice(2)
const connection = {
  host: process.env.PGHOST, port: process.env.PGPORT, user: process.env.PGUSER, database: process.env.PGDATABASE,
}
const pool = new pg.Pool({ ...connection, max: 10 })
const quiet = () => {}
pool.on('error', quiet)

async function transaction(work) {
  const client = await pool.connect()
  try {
    await client.query('BEGIN')
    await work(client)
    await client.query('COMMIT')
  } finally {
    client.release(true)
  }
}

const through = (client) => ({ db: { executeSql: (text, values) => client.query(text, values) } })

async function boss() {
  const module = require(system)
  const PgBoss = module.PgBoss ?? module
  const boss = new PgBoss({ ...connection, supervise: false, schedule: false })
  boss.on('error', quiet)
  await boss.start()
  return {
    async setup() {
      const policies = { mail: 'standard', once: 'short', serial: 'singleton', flow: 'standard' }
      for (const [name, policy] of Object.entries(policies)) await boss.createQueue(name, { policy })
    },
    produce: (client, list) => {
      const jobs = list.map((n) => ({ name: 'mail', data: { n } }))
      return system === 'pg-boss' ? boss.insert('mail', jobs, through(client)) : boss.insert(jobs, through(client))
    },
    async work() {
      for (;;) {
        const jobs = await boss.fetch('mail', { batchSize: 10 })
        if (jobs.length === 0) await sleep(50)
        for (const job of jobs) {
          await transaction(async (client) => {
            await boss.complete('mail', job.id, null, through(client))
            await client.query("INSERT INTO done VALUES ($1, 'old')", [job.data.n])
          })
        }
      }
    },
  }
}

function graphile() {
  const { Logger, run, runMigrations } = require('graphile-worker')
  const logger = new Logger(() => quiet)
  const start = (task) => run({
    pgPool: pool, logger, concurrency: 4, pollInterval: 50, noHandleSignals: true, taskList: { mail: task },
  })
  return {
    setup: () => runMigrations({ pgPool: pool, logger }),
    produce: (client, list) => client.query(
      "SELECT graphile_worker.add_job('mail', json_build_object('n', n)) FROM unnest($1::int[]) n", [list]),
    async work() {
      const runner = await start(({ n }) => pool.query("INSERT INTO done VALUES ($1, 'old')", [n]))
      await runner.promise
    },
    async order() {
      const runner = await start(async ({ g, n }) => {
        const { rowCount } = await pool.query('INSERT INTO working VALUES ($1) ON CONFLICT DO NOTHING', [g])
        if (rowCount !== 1) await pool.query("INSERT INTO broken VALUES ($1, 'old')", [g])
        await sleep(Math.random() * 40)
        await transaction(async (client) => {
          await client.query('DELETE FROM working WHERE grp = $1', [g])
          await client.query("INSERT INTO done (grp, n, who) VALUES ($1, $2, 'old')", [g, n])
        })
      })
      await runner.promise
    },
  }
}

const queue = system === 'graphile-worker' ? graphile() : await boss()
if (command === 'produce') {
  const [first, last, each] = numbers.map(Number)
  for (let n = first; n <= last; n += each) {
    const list = Array.from({ length: each }, (_, i) => n + i)
    await transaction(async (client) => {
      await queue.produce(client, list)
      await client.query('INSERT INTO made SELECT unnest($1::int[])', [list])
    })
  }
} else await queue[command]()
process.exit(0)
