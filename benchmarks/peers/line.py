"""One line of a table: a program, what it is asked to do, and one trial of it with all its costs."""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import psutil
import psycopg
from psycopg.conninfo import conninfo_to_dict
from tests.proxy import Proxy

from benchmarks.counters import Meter
from benchmarks.dispatch import database
from benchmarks.trial import RUN, fresh, polish
from outrider.postgres.embedded import Embedded

LOGGING = {"log_line_prefix": "%n %d %p "}
"""So that statements can be counted by time and database."""
PROCESSES = 4
"""Among which publishers that publish at once are divided."""
SPIN = 300_000
INSTALL = ("install", 0)
Step = tuple[str, int]
Outcome = dict[str, Any]


class Failed(Exception):
    """A program failed. Its part is left out, and the others go on."""


@dataclass(frozen=True)
class Line:
    name: str
    command: Sequence[str]
    mode: str
    count: int
    prepare: Sequence[Step] = (INSTALL,)
    """Run once; each trial gets a copy of the database that they leave."""
    before: Sequence[Step] = ()
    """Run in each trial, before the clock."""
    old_snapshot: bool = False
    """Held from before those steps until the end."""
    publishers: int = 1
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str | None = None


def prepare(server: Embedded, line: Line, seed: str) -> None:
    dsn = database(server, seed)
    for mode, count in line.prepare:
        call(dsn, line, mode, count)
    polish(dsn)


def trial(server: Embedded, line: Line, seed: str) -> Outcome:
    pace = spin()
    with _ready(server, line, seed) as dsn, psycopg.connect(dsn, autocommit=True) as admin:
        meter = Meter(admin)
        busy, times = busy_seconds(), os.times()
        begun = meter.begin()
        said = _crowd(dsn, line) if line.mode == "crowd" else call(dsn, line, line.mode, line.count)
        cost = meter.end() - begun
        now = os.times()
        client = now.children_user - times.children_user + now.children_system - times.children_system
        own = now.user - times.user + now.system - times.system
        foreign = busy_seconds() - busy - client - own - cost.server_cpu
    costs = {"client_cpu": said["cpu"], "server_cpu": cost.server_cpu, "wal": cost.wal, "tuples": cost.tuples}
    return said | costs | {"foreign": max(0.0, foreign / cost.seconds), "pace": pace}


def count_messages(server: Embedded, line: Line, seed: str, count: int) -> dict[str, float]:
    """Round trips and statements of each, in a pass whose times are not used; with the start and end of the program."""
    with _ready(server, line, seed) as dsn, Proxy(dsn) as proxy:
        with _logged(server) as statements:
            call(proxy.dsn, line, line.mode, count)
        return {"round_trips": proxy.round_trips / count, "statements": len(statements()) / count}


def count_idle(server: Embedded, line: Line, seed: str) -> Outcome:
    with _ready(server, line, seed) as dsn, _logged(server) as statements:
        said = call(dsn, line, line.mode, line.count)
    times = [each for each in statements() if said["begun"] <= each <= said["ended"]]
    return {"per_second": len(times) / (said["ended"] - said["begun"]), "foreign": 0.0, "pace": spin()}


@contextmanager
def _ready(server: Embedded, line: Line, seed: str) -> Iterator[str]:
    with ExitStack() as stack:
        dsn = stack.enter_context(fresh(server, RUN, seed))
        if line.old_snapshot:
            holder = stack.enter_context(psycopg.connect(dsn))
            holder.execute("set transaction isolation level repeatable read")
            holder.execute("select count(*) from pg_class")
        for mode, count in line.before:
            call(dsn, line, mode, count)
        yield dsn


@contextmanager
def _logged(server: Embedded) -> Iterator[Any]:
    """All statements of sessions that begin inside; afterwards, the times at which they were sent."""
    log = server.home / "server.log"
    with psycopg.connect(server.dsn(), autocommit=True) as admin:
        admin.execute(f"alter database {RUN} set log_statement = 'all'")
    size = log.stat().st_size
    found: list[float] = []
    yield lambda: found
    said = log.read_bytes()[size:].decode(errors="replace")
    sent = re.findall(rf"^([\d.]+) {RUN} \d+ LOG:  (?:statement:|execute )", said, re.MULTILINE)
    found.extend(float(each) for each in sent)


def call(dsn: str, line: Line, mode: str, count: int) -> Outcome:
    command = [*line.command, mode, str(count)]
    done = subprocess.run(
        command, env=_environment(dsn, line), cwd=line.cwd, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise Failed(f"{' '.join(command)} failed: {done.stderr[-3000:]}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def _crowd(dsn: str, line: Line) -> Outcome:
    """All publishers begin at the same time, when all are connected. The slowest process is what it took."""
    number = min(PROCESSES, line.publishers)
    command = [*line.command, "crowd", str(line.count // number)]
    environment = _environment(dsn, line) | {"BENCH_CONNECTIONS": str(line.publishers // number)}
    processes = [
        subprocess.Popen(
            command, env=environment, cwd=line.cwd, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(number)
    ]
    for each in processes:
        assert each.stdout is not None
        if each.stdout.readline() != "ready\n":
            for other in processes:
                other.kill()
            raise Failed(f"{' '.join(command)} failed")
    for each in processes:
        assert each.stdin is not None
        each.stdin.write("go\n")
        each.stdin.flush()
    said = [json.loads(each.communicate()[0].splitlines()[-1]) for each in processes]
    return {"seconds": max(each["seconds"] for each in said), "cpu": sum(each["cpu"] for each in said)}


def _environment(dsn: str, line: Line) -> dict[str, str]:
    parts = conninfo_to_dict(dsn)
    names = {"PGHOST": "host", "PGPORT": "port", "PGUSER": "user", "PGDATABASE": "dbname", "PGPASSWORD": "password"}
    known = {"PGSSLMODE": "disable", "PGGSSENCMODE": "disable"}  # the proxy that counts reads the plain protocol
    known |= {name: str(parts[part]) for name, part in names.items() if parts.get(part) is not None}
    return {**os.environ, **known, "BENCH_DSN": dsn, **line.env}


def busy_seconds() -> float:
    """Of all cores, with the time that the host took from this machine."""
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - times.iowait - times.guest - times.guest_nice)


def spin() -> float:
    """Seconds of a fixed piece of work: what slows this down slows everything."""
    took = []
    for _ in range(3):
        begun = time.perf_counter()
        total = 0
        for number in range(SPIN):
            total += number
        took.append(time.perf_counter() - begun)
    return statistics.median(took)
