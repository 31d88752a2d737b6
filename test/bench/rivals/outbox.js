// outbox.js - outbox through the same driver as the others that use Node
'use strict';

const { randomUUID } = require('node:crypto');
const { Pool } = require('pg');

const claim = {
  name: 'claim',
  text: `SELECT id, payload FROM outbox.claim($1::uuid, 300, $2::int, 'default', ARRAY['bench'])`,
};
const ack = { name: 'ack', text: 'SELECT outbox.ack($1::uuid, $2::bigint[])' };
const enqueue = { name: 'enqueue', text: `SELECT outbox.enqueue_many('bench', $1::text[])` };

let pool;

async function worker(batch, expired) {
  const owner = randomUUID();
  let messages = 0;
  while (!expired()) {
    const { rows } = await pool.query({ ...claim, values: [owner, batch] });
    if (rows.length === 0) break;
    await pool.query({ ...ack, values: [owner, rows.map((row) => row.id)] });
    messages += rows.length;
  }
  return messages;
}

require('./client')({
  async open(conns) {
    pool = new Pool({ max: conns, min: conns });
    const clients = await Promise.all(Array.from({ length: conns }, () => pool.connect()));
    clients.forEach((client) => client.release());
  },
  async setup() {
    await pool.query('CREATE EXTENSION outbox');
  },
  async produce(payloads) {
    await pool.query({ ...enqueue, values: [payloads.map((p) => JSON.stringify(p))] });
  },
  async drain(conns, batch, expired) {
    const all = await Promise.all(Array.from({ length: conns }, () => worker(batch, expired)));
    return all.reduce((sum, n) => sum + n, 0);
  },
  close: () => pool.end(),
});
