// pg-boss.js - pg-boss: fetch and complete, a batch at a time
//
// Its maintenance is off: it would only cost.
'use strict';

const PgBoss = require('pg-boss');

const QUEUE = 'bench';

let boss;

async function worker(batch, expired) {
  let messages = 0;
  while (!expired()) {
    const jobs = await boss.fetch(QUEUE, { batchSize: batch });
    if (jobs.length === 0) break;
    await boss.complete(QUEUE, jobs.map((job) => job.id));
    messages += jobs.length;
  }
  return messages;
}

require('./client')({
  async open(conns) {
    boss = new PgBoss({
      host: process.env.PGHOST,
      port: process.env.PGPORT,
      user: process.env.PGUSER,
      database: process.env.PGDATABASE,
      max: conns,
      supervise: false,
      schedule: false,
    });
    boss.on('error', (error) => console.error(error));
    await boss.start();
  },
  setup: () => boss.createQueue(QUEUE),
  produce: (payloads) => boss.insert(payloads.map((data) => ({ name: QUEUE, data }))),
  async drain(conns, batch, expired) {
    const all = await Promise.all(Array.from({ length: conns }, () => worker(batch, expired)));
    return all.reduce((sum, n) => sum + n, 0);
  },
  close: () => boss.stop({ graceful: false }),
});
