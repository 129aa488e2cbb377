// Graphile Worker with a local queue of 500, one process. The modes are those of peer.py.
import { Logger, makeWorkerUtils, run, runMigrations } from "graphile-worker";
import pg from "pg";

import { once } from "node:events";

const CALL = 1000, RATE = 500, PAUSE = 20, BUDGET = 20000, CALM = 3000;
const YEAR = 365 * 24 * 3600 * 1000;
const [mode, argument] = process.argv.slice(2);
const count = Number(argument);
const payload = (n) => ({ customer: `customer-${n % 1000}`, n, note: "x".repeat(100) });
const pool = new pg.Pool({ max: Math.max(10, Number(process.env.BENCH_CONNECTIONS ?? 0)) });
pool.on("error", () => {});
pool.on("connect", (client) => client.on("error", () => {}));
const logger = new Logger(() => () => {});
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const preset = {
  worker: { concurrentJobs: 24, localQueue: { size: 500 }, completeJobBatchDelay: 0, failJobBatchDelay: 0 },
};
const start = (noop) => run({ pgPool: pool, taskList: { noop }, logger, preset, noHandleSignals: true });

async function timed(work) {
  const before = process.cpuUsage(), begun = performance.now();
  await work();
  const cpu = process.cpuUsage(before);
  return { seconds: (performance.now() - begun) / 1000, cpu: (cpu.user + cpu.system) / 1e6 };
}

async function sending(use) {
  const utils = await makeWorkerUtils({ pgPool: pool, logger });
  const one = (n) => utils.addJob("noop", payload(n));
  const many = (first, size) =>
    utils.addJobs(Array.from({ length: size }, (_, n) => ({ identifier: "noop", payload: payload(first + n) })));
  try {
    return await use(one, many, utils);
  } finally {
    await utils.release();
  }
}

const modes = {
  install: async () => {
    await runMigrations({ pgPool: pool, logger });
    await pool.query("create table business (id bigint generated always as identity primary key, note text)");
    return {};
  },
  seed: () => sending(async (_, many) => {
    for (let begin = 0; begin < count; begin += 10000) await many(begin, Math.min(10000, count - begin));
    return {};
  }),
  drain: () => timed(async () => {
    let done = 0, finish;
    const finished = new Promise((resolve) => (finish = resolve));
    const runner = await start(async () => { if (++done === count) finish(); });
    await finished;
    await runner.stop(); // flushes the completions that are still batched
  }),
  publish: () => sending(async (one) => {
    await one(0);
    return timed(async () => { for (let n = 0; n < count; n++) await one(n); });
  }),
  within: async () => {
    const client = await pool.connect(), latencies = [];
    for (let n = -20; n < count; n++) {
      await client.query("begin");
      await client.query("insert into business (note) values ($1)", [`order ${n}`]);
      const begun = performance.now();
      await client.query("select graphile_worker.add_job('noop', $1::json)", [JSON.stringify(payload(Math.max(n, 0)))]);
      if (n >= 0) latencies.push((performance.now() - begun) / 1000);
      await client.query("commit");
    }
    client.release();
    return { latencies };
  },
  crowd: () => sending(async (one) => {
    const size = Number(process.env.BENCH_CONNECTIONS);
    await Promise.all(Array.from({ length: size }, () => one(0)));
    console.log("ready");
    await once(process.stdin, "data");
    process.stdin.unref();
    return timed(() => Promise.all(Array.from({ length: size }, async (_, first) => {
      for (let n = first; n < count; n += size) await one(n);
    })));
  }),
  later: () => sending(async (_, __, utils) => {
    const runAt = new Date(Date.now() + YEAR);
    for (let begin = 0; begin < count; begin += 10000)
      await utils.addJobs(Array.from({ length: Math.min(10000, count - begin) }, (_, n) =>
        ({ identifier: "noop", payload: payload(begin + n), runAt, queueName: `later-${begin + n}` })));
    return {};
  }),
  idle: async () => {
    const runner = await start(async () => {});
    await sleep(CALM);
    const begun = Date.now() / 1000;
    await sleep(count * 1000);
    const ended = Date.now() / 1000;
    await runner.stop();
    return { begun, ended };
  },
  bulk: () => sending(async (_, many) => {
    await many(0, CALL);
    return timed(async () => { for (let begin = 0; begin < count; begin += CALL) await many(begin, CALL); });
  }),
  pickup: () => sending(async (one) => {
    const latencies = [];
    let at, arrive;
    const runner = await start(async () => { at = performance.now(); arrive(); });
    await sleep(1000);
    const deadline = performance.now() + BUDGET;
    for (let n = -10; n < count; n++) {
      const arrived = new Promise((resolve) => (arrive = resolve));
      const begun = performance.now();
      await one(Math.max(n, 0));
      await arrived;
      const late = performance.now() > deadline;
      if (n >= 0 || late) latencies.push((at - begun) / 1000);
      if (late) break;
      await sleep(PAUSE);
    }
    await runner.stop();
    return { latencies };
  }),
  paced: () => sending(async (one) => {
    const sent = new Map(), latencies = [];
    let finish;
    const finished = new Promise((resolve) => (finish = resolve));
    const runner = await start(async ({ n }) => {
      latencies.push((performance.now() - sent.get(n)) / 1000);
      if (latencies.length === count) finish();
    });
    await sleep(1000);
    const begun = performance.now();
    for (let n = 0; n < count; n++) {
      const wait = begun + (n * 1000) / RATE - performance.now();
      if (wait > 0) await sleep(wait);
      sent.set(n, performance.now());
      await one(n);
    }
    const rate = (count * 1000) / (performance.now() - begun);
    await finished;
    await runner.stop();
    return { latencies, rate };
  }),
};

const before = process.cpuUsage();
const said = await modes[mode]();
const used = process.cpuUsage(before);
console.log(JSON.stringify({ cpu: (used.user + used.system) / 1e6, ...said }));
await pool.end();
