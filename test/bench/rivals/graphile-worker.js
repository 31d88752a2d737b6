// graphile-worker.js - graphile-worker, set up as its documentation has it for
// the highest throughput: a local queue of 500 jobs, 24 of them at a time, and
// completions in batches. It has no call that takes a batch; batch size and
// number of workers are its own.
'use strict';

const { Logger, makeWorkerUtils, runMigrations, runOnce } = require('graphile-worker');
const { Pool } = require('pg');

const TASK = 'bench';
const CONNECTIONS = 25;
const logger = new Logger(() => () => {});

let pgPool;
let utils;

require('./client')({
  async open() {
    pgPool = new Pool({ max: CONNECTIONS });
    const report = (error) => console.error(error);
    pgPool.on('error', report);
    pgPool.on('connect', (client) => client.on('error', report));
    await pgPool.query('SELECT 1');
  },
  setup: () => runMigrations({ pgPool, logger }),
  async produce(payloads) {
    utils ??= await makeWorkerUtils({ pgPool, logger });
    await utils.addJobs(payloads.map((payload) => ({ identifier: TASK, payload })));
  },
  async drain() {
    let messages = 0;
    const preset = {
      worker: {
        concurrentJobs: 24,
        maxPoolSize: CONNECTIONS,
        localQueue: { size: 500 },
        completeJobBatchDelay: 0,
        failJobBatchDelay: 0,
      },
    };
    const taskList = { [TASK]: async () => { messages += 1; } };
    await runOnce({ pgPool, logger, preset, taskList, noHandleSignals: true });
    return messages;
  },
  close: () => pgPool.end(),
});
