"""What one worker with default settings costs, idle and under load: sessions, memory, statements, CPU, WAL, log bytes.

Statements are counted in the server's log (`log_statement = all`), in a window of their own, since the wheel of the embedded
Postgres has no pg_stat_statements. Uses only what older versions of Outrider have as well, for `--beside`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

import psutil
import psycopg
from redis import Redis
from rich import box
from rich.console import Console
from rich.table import Table
from tests.brokers import BrokerMissing, RedisServer

from benchmarks.counters import Meter
from benchmarks.measure import Conn
from benchmarks.trial import SETTINGS, tell
from outrider.postgres.embedded import Embedded

DATABASE = "operational"
PUBLISHERS = 4
"""Sessions that publish, so that a slow commit does not hold up the rate."""
JOB_EVERY = 10
"""Events to a job."""
WARM_UP = 3.0
"""Seconds of load before anything is measured, so that pools are filled and pages of tables exist."""
PATIENCE = 120.0
MIB = 1024 * 1024
LOGGING = {
    "log_line_prefix": "%d %p ",
    "track_commit_timestamp": "on",  # when a receipt was committed; its own time is that of the transaction's start
}
SESSIONS = "select application_name, pid from pg_stat_activity where datname = %s and backend_type = 'client backend'"
DONE = """select (select count(*) from first), (select count(*) from second),
                 (select count(*) from outrider.delivery)"""
LAG = """select percentile_cont(array[0.5, 0.99]) within group (
             order by 1000 * extract(epoch from pg_xact_commit_timestamp(h.xmin) - o.occurred_at))
         from outrider.event_handled as h join outrider.outbox as o on o.id = h.event_id where o.seq > %s"""

Figures = dict[str, float]


def publish(dsn: str, rate: int, seconds: float, gate: Connection) -> None:
    """One event per commit, every tenth with a job, at a fixed rate over all sessions. Says how many seconds it took."""
    from benchmarks.event import event
    from benchmarks.operational_app import Mail, Report, app

    def some(conn: Conn, offset: int) -> None:
        for number in range(offset, int(rate * seconds), PUBLISHERS):
            time.sleep(max(0.0, begun + number / rate - time.monotonic()))
            made = event(number)
            app.publish_sync(conn, made)
            if number % JOB_EVERY == 0:
                job = Mail if number // JOB_EVERY % 2 else Report
                app.enqueue_sync(conn, job(customer=made.customer))
            conn.commit()

    with ExitStack() as stack, ThreadPoolExecutor(PUBLISHERS) as threads:
        conns = [stack.enter_context(psycopg.connect(dsn)) for _ in range(PUBLISHERS)]
        gate.send("ready")
        gate.recv()
        begun = time.monotonic()
        list(threads.map(some, conns, range(PUBLISHERS)))
        gate.send(time.monotonic() - begun)


class Bench:
    def __init__(self, server: Embedded, admin: Conn, worker: psutil.Process, redis: Redis | None) -> None:
        self.server, self.admin, self.worker, self.redis = server, admin, worker, redis
        self.dsn = server.dsn(DATABASE)
        self.published = 0

    def load(self, rate: int, seconds: float, begin: Callable[[], None] = lambda: None) -> float:
        """Publish, and wait until all of it is handled and relayed. The events per second that were reached."""
        ours, theirs = multiprocessing.Pipe()
        spawn = multiprocessing.get_context("spawn")
        process = spawn.Process(target=publish, args=(self.dsn, rate, seconds, theirs))
        process.start()
        theirs.close()
        ours.recv()
        begin()
        ours.send("go")
        took = float(ours.recv())
        process.join()
        self.published += int(rate * seconds)
        with psycopg.connect(self.dsn, autocommit=True) as conn:
            deadline = time.monotonic() + PATIENCE
            while not self._done(conn):
                assert time.monotonic() < deadline, "the worker does not keep up"
                time.sleep(0.1)
        return int(rate * seconds) / took

    def _done(self, conn: Conn) -> bool:
        relayed = self.published if self.redis is None else self.redis.xlen("operational")
        return conn.execute(DONE).fetchone() == (self.published, self.published, 0) and relayed == self.published

    def sessions(self) -> list[tuple[str, int]]:
        rows = self.admin.execute(SESSIONS, [DATABASE]).fetchall()
        return [(name or "the app", pid) for name, pid in rows]

    def backend_cpu(self) -> dict[int, float]:
        return {pid: sum(psutil.Process(pid).cpu_times()[:2]) for _, pid in self.sessions()}

    def processes(self) -> list[psutil.Process]:
        return [self.worker, *self.worker.children(recursive=True)]

    def worker_cpu(self) -> float:
        return sum(sum(each.cpu_times()[:2]) for each in self.processes())

    def memory(self, when: str) -> Figures:
        worker, *side = [each.memory_full_info() for each in self.processes()]
        return {
            f"{when}: worker, resident, MiB": worker.rss / MIB,
            f"{when}: worker, of its own, MiB": worker.uss / MIB,
            f"{when}: side process, resident, MiB": sum(each.rss for each in side) / MIB,
            f"{when}: side process, of its own, MiB": sum(each.uss for each in side) / MIB,
        }

    def statements(self, seconds: float) -> Figures:
        """Those that clients send. The session of an idle relay sends most of them."""
        log = self.server.home / "server.log"
        self._configure("alter system set log_statement = 'all'")
        before = log.stat().st_size
        time.sleep(seconds)
        said = log.read_bytes()[before:].decode(errors="replace")
        self._configure("alter system reset log_statement")
        sent = Counter(re.findall(rf"^{DATABASE} (\d+) LOG:  (?:statement:|execute )", said, re.MULTILINE))
        return {
            "idle: statements/s": sent.total() / seconds,
            "idle: statements/s of the busiest session": max(sent.values(), default=0) / seconds,
        }

    def _configure(self, statement: str) -> None:
        self.admin.execute(statement.encode())
        self.admin.execute("select pg_reload_conf()")
        time.sleep(0.5)


def measure(idle: float, load: float, rate: int) -> Figures:
    with ExitStack() as stack:
        server = stack.enter_context(Embedded.temporary(settings=SETTINGS | LOGGING))
        server.ensure_database(DATABASE)
        environment = {"OUTRIDER_DSN": server.dsn(DATABASE)}
        redis: Redis | None = None
        try:
            url = stack.enter_context(RedisServer()).url
            environment["OPERATIONAL_REDIS"] = url
            redis = stack.enter_context(Redis.from_url(url))
        except BrokerMissing as missing:
            tell(f"  without a relay: {missing}")
        os.environ |= environment
        asyncio.run(_migrate())
        admin = stack.enter_context(psycopg.connect(server.dsn(), autocommit=True))
        admin.execute("checkpoint")
        log = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "worker.log"
        with _worker(log) as worker:
            figures = _figures(Bench(server, admin, worker, redis), log, idle, load, rate)
            before = figures.pop("log")
        # What is summed up at the end belongs to the load.
        figures["load: log, bytes/event"] = (log.stat().st_size - before) / int(rate * load)
    return figures


def _figures(bench: Bench, log: Path, idle: float, load: float, rate: int) -> Figures:
    bench.load(rate, WARM_UP)
    time.sleep(WARM_UP)

    begun, cpu, backends = time.monotonic(), bench.worker_cpu(), bench.backend_cpu()
    time.sleep(idle)
    minutes = (time.monotonic() - begun) / 60
    figures: Figures = {}
    sessions = bench.sessions()
    for name in ("outrider worker", "outrider listener", "outrider jobs", "outrider leases", "the app"):
        figures[f"idle: sessions, {name}"] = sum(each == name for each, _ in sessions)
    figures["idle: sessions, all"] = len(sessions)
    figures["idle: worker CPU, s/minute"] = (bench.worker_cpu() - cpu) / minutes
    after = bench.backend_cpu()
    figures["idle: CPU of its sessions, s/minute"] = sum(after[pid] - backends.get(pid, 0.0) for pid in after) / minutes
    figures |= bench.memory("idle")
    figures |= bench.statements(idle)

    meter, events = Meter(bench.admin), int(rate * load)
    with psycopg.connect(bench.dsn) as conn:
        [last] = conn.execute("select max(seq) from outrider.outbox").fetchone() or (0,)
    at_start: list[float] = []

    def begin() -> None:
        cost = meter.begin()
        at_start.extend((cost.server_cpu, cost.wal, bench.worker_cpu(), log.stat().st_size))

    reached = bench.load(rate, load, begin)
    cost, busy = meter.begin(), bench.worker_cpu()
    server_cpu, wal, worker_cpu, log_size = at_start
    figures |= {
        "load: events/s reached": reached,
        "load: sessions, without the publisher's": len(bench.sessions()),
        "load: worker CPU, s/10,000 events": (busy - worker_cpu) / events * 10_000,
        "load: Postgres CPU, s/10,000 events": (cost.server_cpu - server_cpu) / events * 10_000,
        "load: WAL, bytes/event": (cost.wal - wal) / events,
    }
    figures |= bench.memory("load")
    with psycopg.connect(bench.dsn) as conn:
        [(p50, p99)] = conn.execute(LAG, [last]).fetchone() or ((0.0, 0.0),)
    figures |= {"load: lag p50, ms": p50, "load: lag p99, ms": p99, "log": log_size}
    return figures


async def _migrate() -> None:
    from benchmarks.operational_app import TABLES, app

    async with app:
        await app.migrate()
        async with app.connect() as conn:
            await conn.execute(TABLES)


@contextmanager
def _worker(log: Path) -> Iterator[psutil.Process]:
    command = [sys.executable, "-m", "outrider", "worker", "--app", "benchmarks.operational_app:app"]
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out)
    try:
        yield psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait(PATIENCE)


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks operational", description=__doc__)
    parser.add_argument("--idle", type=float, default=20.0, help="seconds; twice, the second time to count statements")
    parser.add_argument("--load", type=float, default=30.0, help="seconds")
    parser.add_argument("--rate", type=int, default=300, help="events per second")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--beside", metavar="SRC", help="the folder src of another version, measured in turn with this one"
    )
    parser.add_argument("--once", action="store_true", help="one run in this process, as JSON")
    options = parser.parse_args(arguments)
    if options.once:
        print(json.dumps(measure(options.idle, options.load, options.rate)))
        return
    sides = ({"before": options.beside} if options.beside else {}) | {"now": None}
    runs: dict[str, list[Figures]] = {name: [] for name in sides}
    for number in range(options.repeats):
        for name, src in sides.items():
            tell(f"  {number + 1}/{options.repeats} {name}")
            runs[name].append(_apart(options, src))
    _show(runs)


def _apart(options: argparse.Namespace, src: str | None) -> Figures:
    command = [sys.executable, "-m", "benchmarks.operational", "--once"]
    command += [f"--{name}={getattr(options, name)}" for name in ("idle", "load", "rate")]
    environment = os.environ | ({"PYTHONPATH": str(Path(src).resolve())} if src else {})
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True, text=True)
    figures: Figures = json.loads(done.stdout.splitlines()[-1])
    return figures


def _show(runs: dict[str, list[Figures]]) -> None:
    table = Table(box=box.MARKDOWN)
    table.add_column("median (lowest – highest)")
    for name in runs:
        table.add_column(name, justify="right")
    for figure in next(iter(runs.values()))[0]:
        table.add_row(figure, *(_cell([run[figure] for run in each]) for each in runs.values()))
    Console(width=160).print(table)


def _cell(values: list[float]) -> str:
    low, middle, high = (_number(each) for each in (min(values), statistics.median(values), max(values)))
    return middle if low == high else f"{middle} ({low} – {high})"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


if __name__ == "__main__":
    main(sys.argv[1:])
