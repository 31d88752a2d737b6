// client.js - what the clients in Node have in common; see ../Meter.pm
//
//	CLIENT setup
//	CLIENT fill COUNT BATCH
//	CLIENT drain CONNS BATCH SECONDS
//
// A client of a queue is an object with
//	open(conns)			connect
//	setup()				make the queue; it is opened already
//	produce(payloads)	one transaction
//	drain(conns, batch, expired)
//						take and finish until none is left, or expired() says
//						to stop; how many
//	close()
'use strict';

const { once } = require('node:events');

const PAYLOAD_LENGTH = 200;

// The same as drive.c sends, as the object that it is the JSON of.
function payload(number) {
  const empty = { order: 1000000000 + number, note: '' };
  const length = PAYLOAD_LENGTH - '{"order": 1000000000, "note": ""}'.length;
  return { ...empty, note: 'x'.repeat(length) };
}

async function fill(queue, count, batch) {
  for (let done = 0; done < count; done += batch) {
    await queue.produce(Array.from({ length: batch }, (_, i) => payload(done + i)));
  }
  return { messages: count };
}

async function drain(queue, conns, batch, seconds) {
  const end = Date.now() + seconds * 1000;
  let stopped = false;
  const expired = () => {
    stopped ||= Date.now() > end;
    return stopped;
  };
  const messages = await queue.drain(conns, batch, expired);
  return stopped ? { messages, stopped: 1 } : { messages };
}

async function run(queue, [command, ...args]) {
  const numbers = args.map(Number);
  const commands = {
    setup: async () => queue.setup(),
    fill: () => fill(queue, ...numbers),
    drain: () => drain(queue, ...numbers),
  };
  await queue.open(command === 'drain' ? numbers[0] : 1);
  console.log('ready');
  await once(process.stdin, 'data');
  const began = process.hrtime.bigint();
  const figures = { messages: 1, ...(await commands[command]()) };
  figures.seconds = Number(process.hrtime.bigint() - began) / 1e9;
  console.log(Object.entries(figures).map(([k, v]) => `${k}=${v}`).join(' '));
  await once(process.stdin, 'close');
  await queue.close();
}

module.exports = (queue) => run(queue, process.argv.slice(2)).then(
  () => process.exit(0),
  (error) => {
    console.error(error);
    process.exit(1);
  },
);
