// Graphile Worker at its fastest documented settings: one process, no-op jobs. See graphile.py.
//   node graphile.mjs seed JOBS | drain JOBS     (the database: PGHOST, PGUSER, PGDATABASE)
import { Logger, run, runMigrations } from "graphile-worker";
import pg from "pg";

const [mode, count] = process.argv.slice(2);
const jobs = Number(count);
const payload = { customer: "customer-7", note: "x".repeat(110) };
const pool = new pg.Pool({ max: 10 });
pool.on("error", () => {});
pool.on("connect", (client) => client.on("error", () => {}));
const logger = new Logger(() => () => {});

async function seed() {
  await runMigrations({ pgPool: pool, logger });
  await pool.query(
    `select graphile_worker.add_jobs(array_agg(
       ('noop', $1::json, null, null, null, null, null, null)::graphile_worker.job_spec))
     from generate_series(1, $2)`,
    [JSON.stringify(payload), jobs],
  );
}

async function drain() {
  let done = 0;
  let finish;
  const finished = new Promise((resolve) => (finish = resolve));
  const taskList = {
    noop: async () => {
      if (++done === jobs) finish();
    },
  };
  const preset = {
    worker: {
      concurrentJobs: 24,
      localQueue: { size: 1000 },
      completeJobBatchDelay: 0,
      failJobBatchDelay: 0,
    },
  };
  const before = process.cpuUsage();
  const begun = performance.now();
  const runner = await run({ pgPool: pool, taskList, logger, preset, noHandleSignals: true });
  await finished;
  await runner.stop(); // flushes the completions that are still batched
  const seconds = (performance.now() - begun) / 1000;
  const cpu = process.cpuUsage(before);
  const { rows } = await pool.query("select count(*)::int as left from graphile_worker.jobs");
  if (rows[0].left !== 0) throw new Error(`${rows[0].left} jobs are left`);
  console.log(JSON.stringify({ seconds, cpu: (cpu.user + cpu.system) / 1e6 }));
}

await (mode === "seed" ? seed() : drain());
await pool.end();
