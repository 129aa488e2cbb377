"""Jobs: 50,000 that do nothing, in one process, beside a plain loop; what a claim costs when many wait,
and when an old snapshot keeps the dead rows."""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.dispatch import database, describe
from benchmarks.table import say, show_rates
from benchmarks.trial import SETTINGS, Case, Trial, compare, fresh, polish, tell
from outrider import Job, Outrider
from outrider.postgres.embedded import Embedded
from outrider.signals import JobsCompleted, Signal

Conn = psycopg.Connection[tuple[Any, ...]]
BATCH = 500
CLAIM = 50
ROUNDS = 60
CHURN = 50_000
LATER = 300_000


class Noop(Job, type="bench.noop"):
    customer: str
    note: str


async def seed(dsn: str, jobs: int) -> None:
    app = noop_app(dsn)
    async with app:
        await app.migrate()
        async with app.connect() as conn:
            for begin in range(0, jobs, 10_000):
                batch = range(begin, min(begin + 10_000, jobs))
                async with conn.transaction():
                    await app.enqueue_many(conn, [Noop(customer=f"customer-{n % 1000}", note="x" * 110) for n in batch])
    polish(dsn)


def noop_app(dsn: str) -> Outrider:
    app = Outrider(context="bench", dsn=dsn)

    @app.job(Noop)
    async def noop(job: Noop) -> None:
        pass

    return app


async def drain_noop(trial: Trial) -> None:
    app = noop_app(trial.dsn)
    async with app:
        with trial.window():
            drained = await app.drain()
    assert drained.jobs == trial.events, drained


async def work_noop(trial: Trial) -> None:
    """A worker, from its start to the last commit; its side process is not in its CPU time, and hardly uses any."""
    app = noop_app(trial.dsn)
    left, finished, ended = trial.events, asyncio.Event(), 0.0

    def count(signal: Signal) -> None:
        nonlocal left, ended
        if isinstance(signal, JobsCompleted):
            trial.batches += 1
            left -= signal.jobs
            if left == 0:
                ended = time.perf_counter()
                finished.set()

    app.signals.listen(count)
    async with app:
        with trial.window() as window:
            async with app.worker():
                await finished.wait()
            window.stop(ended)


async def raw_noop(trial: Trial) -> None:
    """Marks a batch as taken and deletes it: no lease, no token, no receipt, no failure."""
    claim = """
        with q as materialized (
            select id from outrider.job
            where subscription = 'bench.noop' and generation = 0 and queue = 'default' and num_nonnulls(workspace_id) = 0
              and status = 'pending' and waits_for is null and crashes = 0
            order by claim_at, id limit %s for update skip locked)
        update outrider.job as d set status = 'in_flight', lease_token = 1, lease_expires_at = now()
        from q where d.id = q.id returning d.id, d.payload::text"""
    with trial.window(), psycopg.connect(trial.dsn, autocommit=True) as conn, conn.cursor(binary=True) as cursor:
        while rows := cursor.execute(claim, [BATCH]).fetchall():
            for _, payload in rows:
                Noop.model_validate_json(payload)
            cursor.execute("delete from outrider.job where id = any(%s)", [[row[0] for row in rows]])
            trial.batches += 1


@dataclass(frozen=True)
class Cost:
    waiting: str
    milliseconds: list[float]
    rows: float
    """Fetched by one claim, live or dead, as the index says."""


async def claims(server: Embedded, many: int) -> list[Cost]:
    """A claim of 50 and its settling, one after the other, on one session."""
    costs = []
    for waiting in (10_000, many):
        name = f"seed_claims_{waiting}"
        tell(f"claims: {waiting:,} jobs wait")
        await _fill(database(server, name), waiting)
        with fresh(server, "bench_run", name) as dsn:
            costs.append(_claim(dsn, f"{waiting:,} wait"))
    with fresh(server, "bench_run", "seed_claims_10000") as dsn:
        tell(f"claims: {LATER:,} jobs are for later, each in a queue of its own")
        with psycopg.connect(dsn, autocommit=True) as conn:
            _insert(conn, LATER, later="7 days", own_queues=True)
        polish(dsn)
        costs.append(_claim(dsn, f"10,000 wait, and {LATER:,} for later in {LATER:,} queues"))
    with fresh(server, "bench_run", "seed_claims_10000") as dsn, _old_snapshot(dsn):
        tell(f"claims: an old snapshot is held, {CHURN:,} jobs come and go")
        _churn(dsn, CHURN)
        costs.append(_claim(dsn, f"10,000 wait, behind {CHURN:,} that are done, which an old snapshot keeps"))
        costs.append(_claim(dsn, "the same, but for one claim in each second, when a worker has enough", lane=True))
    return costs


async def _fill(dsn: str, jobs: int) -> None:
    async with noop_app(dsn) as app:
        await app.migrate()
    with psycopg.connect(dsn, autocommit=True) as conn:
        _insert(conn, jobs)
    polish(dsn)


def _insert(conn: Conn, jobs: int, *, later: str = "0", own_queues: bool = False) -> None:
    conn.execute(
        """insert into outrider.job (subscription, event_id, event_version, source, run_at, queue, payload)
           select 'bench.noop', outrider.uuid7(), 1, 'bench', clock_timestamp() + %s::interval,
                  'default' || case when %s then n::text else '' end,
                  jsonb_build_object('customer', 'customer-7', 'note', repeat('x', 110))
           from generate_series(1, %s) as n""",
        [later, own_queues, jobs],
    )


@contextmanager
def _old_snapshot(dsn: str) -> Iterator[None]:
    with psycopg.connect(dsn) as holder:
        holder.execute("set transaction isolation level repeatable read")
        holder.execute("select count(*) from outrider.worker")
        yield
        holder.rollback()


def _churn(dsn: str, jobs: int) -> None:
    """So many are done before those that wait: their dead rows and index entries stand in front."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        worker, done = uuid.uuid4(), 0
        while done < jobs:
            _insert(conn, 5_000)
            for _ in range(5_000 // BATCH):
                done += _turn(conn, worker, BATCH)[0]


def _turn(conn: Conn, worker: uuid.UUID, limit: int, since: object = None) -> tuple[int, object]:
    """How many, and when the last of them was due."""
    if since is None:
        rows = conn.execute("select * from outrider.claim(%s, '{bench.noop}', %s)", [worker, limit]).fetchall()[:-1]
    else:
        query = "select * from outrider.claim_lane(%s, 'bench.noop', 0, 'default', %s, %s)"
        rows = conn.execute(query, [worker, since, limit]).fetchall()
    ids, tokens = [row[1] for row in rows], [row[2] for row in rows]
    query = "select * from outrider.settle_jobs('{bench.noop}', %s, %s, %s::jsonb[], '[]', 'bench')"
    conn.execute(query, [ids, tokens, [None] * len(ids)])
    return len(rows), rows[-1][8] if rows else None


def _claim(dsn: str, name: str, *, lane: bool = False) -> Cost:
    took = []
    with psycopg.connect(dsn, autocommit=True) as conn:
        worker = uuid.uuid4()
        for _ in range(10):
            _, since = _turn(conn, worker, CLAIM)
        before = _fetched(conn)
        for _ in range(ROUNDS):
            begun = time.perf_counter()
            number, since = _turn(conn, worker, CLAIM, since if lane else None)
            assert number == CLAIM
            took.append((time.perf_counter() - begun) * 1000)
        return Cost(name, took, (_fetched(conn) - before) / ROUNDS)


def _fetched(conn: Conn) -> int:
    conn.execute("select pg_stat_force_next_flush()")
    row = conn.execute(
        "select sum(idx_tup_read) from pg_stat_user_indexes where relname = 'job' and indexrelname = 'job_ready'"
    ).fetchone()
    return int(str(row[0])) if row else 0


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks jobs", description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=50_000)
    parser.add_argument("--waiting", type=int, default=1_000_000, help="jobs that wait while claims are measured")
    parser.add_argument("--only", choices=("drain", "claims"))
    parser.add_argument("--quick", action="store_true", help="small numbers, once: to see that it works")
    options = parser.parse_args(arguments)
    if options.quick:
        options.repeats, options.jobs, options.waiting = 1, 5_000, 20_000
    with Embedded.temporary(settings=SETTINGS) as server:
        say(describe(server))
        if options.only != "claims":
            asyncio.run(_drain(server, options.jobs, options.repeats))
        if options.only != "drain":
            _show(asyncio.run(claims(server, options.waiting)))


async def _drain(server: Embedded, jobs: int, repeats: int) -> None:
    tell(f"jobs: enqueuing {jobs:,}")
    await seed(database(server, "seed_jobs"), jobs)
    cases = [
        Case("plain loop (*)", "seed_jobs", jobs, raw_noop),
        Case("drain", "seed_jobs", jobs, drain_noop),
        Case("worker", "seed_jobs", jobs, work_noop),
    ]
    results = await compare(server, cases, repeats)
    show_rates(f"{jobs:,} jobs that do nothing, one process", results)


def _show(costs: list[Cost]) -> None:
    table = Table(title=f"A claim of {CLAIM} jobs, and settling them", box=box.MARKDOWN)
    for name in ("", "p50 ms", "p95 ms", "ratio of p50", "index entries read"):
        table.add_column(name, justify="left" if not name else "right")
    for each in costs:
        ordered = sorted(each.milliseconds)
        table.add_row(
            each.waiting,
            f"{statistics.median(ordered):.2f}",
            f"{ordered[int(len(ordered) * 0.95)]:.2f}",
            f"{statistics.median(ordered) / statistics.median(costs[0].milliseconds):.2f}",
            f"{each.rows:,.0f}",
        )
    Console(width=200).print(table)
