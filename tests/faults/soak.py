"""A soak: publishers at a steady rate, workers whose handlers and jobs fail now and then, retention that detaches and drops
segments, and for a fifth of the time somebody with an old snapshot. Everything that could grow is sampled."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import psycopg
from psycopg import AsyncConnection
from psycopg.rows import dict_row
from tests.faults import soak_subject, subject
from tests.faults.nursery import Nursery
from tests.faults.subject import KEYED, NAMES, TOTAL, Fact
from tests.oracle import Oracle

from outrider import Outrider
from outrider.postgres.embedded import Embedded
from outrider.worker.upkeep_loop import keep

SETTINGS = {
    "max_connections": "100", "shared_buffers": "128MB", "autovacuum_naptime": "1s", "max_wal_size": "2GB",
    "checkpoint_timeout": "30s", "full_page_writes": "on",
}  # fmt: skip
HELD = (0.4, 0.6)
"""When the old snapshot is held, as parts of the whole time."""
WORKERS = 2
PUBLISHERS = 2
FAILING = (*[KEYED] * 9, TOTAL)
"""In total order all others wait for the retry; where a whole batch fails, each of its events is tried alone. Both are slow
by design: the one fails seldom, the other never."""
MOST_OWED = 1000
"""On a machine that is busy with other things publishers wait here: the soak looks for growth, not for a rate."""

# Days pass quickly: receipts are born old, and what upkeep has closed or detached was closed or detached long ago.
BORN_OLD = "alter table outrider.event_handled alter column handled_at set default now() - interval '100 days'"
DAYS_PASS = """
update outrider.segment set begun_at = begun_at - interval '8 days'
where closed_at is null and begun_at between now() - interval '1 day' and now() - make_interval(secs => {age});
update outrider.segment set closed_at = closed_at - interval '50 days' where closed_at > now() - interval '1 day';
update outrider.segment set detached_at = detached_at - interval '8 days' where detached_at > now() - interval '1 day';
update outrider.upkeep set next_at = null where next_at is not null;
delete from outrider.audit where by = 'upkeep';
"""
SMALL_SEGMENTS = """
update outrider.setting set value = 1000 where name = 'segments.size';
update outrider.setting set value = 4 where name = 'segments.ahead';
do $$ declare part text; begin
    for part in select inhrelid::regclass from pg_inherits where inhparent = 'outrider.outbox'::regclass loop
        execute 'drop table ' || part;
    end loop;
    create table outrider.outbox_s0 partition of outrider.outbox for values from (minvalue) to (1000);
    create table outrider.outbox_tail partition of outrider.outbox for values from (1000) to (maxvalue);
    delete from outrider.segment;
end $$;
select * from outrider.upkeep_segments();
"""
SAMPLE = """
with drawn as (select coalesce(pg_sequence_last_value('outrider.outbox_seq'), 0) as seq),
     behind as (select min(seq) as seq from outrider.cursor)
select drawn.seq as events,
       drawn.seq - behind.seq + (select count(*) from outrider.owed where status <> 'failed') as depth,
       coalesce(extract(epoch from clock_timestamp() - (
           select o.occurred_at from outrider.outbox as o where o.seq > behind.seq order by o.seq limit 1)), 0)::float8
           as lag,
       pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::float8 as wal,
       (select count(*) from outrider.segment where detached_at is null and begun_at is not null) as segments,
       (select count(*) from outrider.segment where detached_at is not null) as detached,
       (select jsonb_object_agg(t.name, t.dead) from (
            select case when relname like 'outbox%' then 'log' else relname end as name, sum(n_dead_tup) as dead
            from pg_stat_user_tables where schemaname = 'outrider' group by 1) as t) as dead,
       (select jsonb_object_agg(t.name, t.size) from (
            select case when relname like 'outbox%' then 'log' when relname = 'event_handled' then 'receipts'
                        else relname end as name, sum(pg_total_relation_size(oid)) as size
            from pg_class where relnamespace = 'outrider'::regnamespace and relkind in ('r', 'p')
              and relname ~ '^(outbox|event_handled$|delivery$|job$|cursor$)' group by 1) as t) as bytes
from drawn, behind
"""


@dataclass
class Sample:
    at: float
    """Seconds since the beginning."""
    events: int
    depth: float
    lag: float
    wal: float
    segments: int
    detached: int
    dead: dict[str, float]
    bytes: dict[str, float]
    publish_ms: float
    """The slowest of twenty publishing transactions since the last sample."""
    workers: float
    """Bytes that only they use, on average."""
    backends: float
    """Bytes that only they use, of all sessions of the workers."""


@dataclass
class Record:
    seconds: float
    samples: list[Sample] = field(default_factory=list)
    upkept: dict[str, int] = field(default_factory=dict)
    published: int = 0
    held_back: float = 0.0
    """Seconds that publishers waited because too much was owed."""

    def series(self, of: Callable[[Sample], float], begin: float, end: float) -> list[float]:
        """Between two parts of the whole time."""
        return [of(each) for each in self.samples if begin * self.seconds <= each.at <= end * self.seconds]

    def save(self, path: Path) -> None:
        path.write_text(json.dumps([vars(each) for each in self.samples]))


class Soak:
    def __init__(self, server: Embedded, folder: Path, seconds: float, *, rate: float) -> None:
        """`rate`: events a second."""
        self.dsn = server.dsn("soak")
        self.oracle = Oracle(folder)
        self.record = Record(seconds)
        self._rate = rate
        self._every = max(0.5, seconds / 200)
        self._begun = 0.0
        self._took: list[float] = []
        self._pids: list[int] = []

    @property
    def now(self) -> float:
        return time.monotonic() - self._begun

    async def run(self) -> Record:
        await subject.setup(self.dsn, soak_subject.make(self.dsn))
        with psycopg.connect(self.dsn, autocommit=True) as conn:
            conn.execute("drop trigger blame on outrider.delivery")
            conn.execute("create table account (id int primary key, n int not null)")
            conn.execute("insert into account select n, 0 from generate_series(0, 99) as n")
            conn.execute(BORN_OLD)
            conn.execute(SMALL_SEGMENTS)
        async with Nursery(self.dsn, self.oracle, "tests.faults.soak_subject") as nursery:
            self._pids = [await nursery.start() for _ in range(WORKERS)]
            await subject.eventually(
                self.dsn, f"select count(*) >= {WORKERS} from outrider.worker where seen_at > now() - interval '20 s'"
            )
            self._begun = time.monotonic()
            async with asyncio.TaskGroup() as group:
                publishing = [group.create_task(self._publish(number)) for number in range(PUBLISHERS)]
                rest = [group.create_task(each) for each in (self._keep_up(), self._hold(), self._sample())]
                await asyncio.wait([*publishing, *rest], timeout=self.record.seconds, return_when="FIRST_EXCEPTION")
                for task in rest:
                    task.cancel()
            await self._drained()
        return self.record

    async def _publish(self, number: int) -> None:
        """At its pace; what is missed is not made up for."""
        app, chance = Outrider(context="fault", dsn=self.dsn), random.Random(number)
        async with await AsyncConnection.connect(self.dsn) as conn:
            while self.now < self.record.seconds:
                if self.record.samples and self.record.samples[-1].depth > MOST_OWED:
                    self.record.held_back += 0.1 / PUBLISHERS
                    await asyncio.sleep(0.1)
                    continue
                events = chance.randint(1, 4)
                pause = events * PUBLISHERS / self._rate
                begun = time.monotonic()
                await self._one(conn, app, chance, number, events)
                self._took.append(time.monotonic() - begun)
                await asyncio.sleep(max(0, begun + pause * chance.uniform(0.5, 1.5) - time.monotonic()))

    async def _one(
        self, conn: AsyncConnection[Any], app: Outrider, chance: random.Random, number: int, events: int
    ) -> None:
        facts = [self.oracle.next(f"k{number}{chance.randrange(50)}") for _ in range(events)]
        acts = {"act": "fail", "on": chance.choice(FAILING)} if chance.random() < 0.05 else {}
        self.oracle.write(facts, "unknown")
        await conn.execute("update account set n = n + 1 where id = %s", [chance.randrange(100)])
        await app.publish_many(conn, [Fact(key=key, n=n, **acts) for key, n in facts])
        if chance.random() < 0.05:
            await conn.rollback()
            self.oracle.write(facts, "failed")
            return
        await conn.commit()
        self.oracle.write(facts, "ok")
        self.record.published += events

    async def _keep_up(self) -> None:
        """As workers do every five minutes, and the day has a few seconds."""
        async with await AsyncConnection.connect(self.dsn, autocommit=True) as conn:
            while True:
                await asyncio.sleep(max(1, self.record.seconds / 100))
                await conn.execute(DAYS_PASS.format(age=self.record.seconds / 12).encode())
                async for did in keep(conn, "outrider"):
                    self.record.upkept[did.action] = self.record.upkept.get(did.action, 0) + 1

    async def _hold(self) -> None:
        begin, end = (part * self.record.seconds for part in HELD)
        await asyncio.sleep(begin - self.now)
        async with await AsyncConnection.connect(self.dsn) as conn:
            await conn.execute("set transaction isolation level repeatable read")
            await conn.execute("select count(*) from account")
            await asyncio.sleep(end - self.now)

    async def _sample(self) -> None:
        async with await AsyncConnection.connect(self.dsn, autocommit=True, row_factory=dict_row) as conn:
            while True:
                await asyncio.sleep(self._every)
                row = await (await conn.execute(SAMPLE)).fetchone()
                took, self._took = sorted(self._took), []
                slow = took[int(0.95 * len(took))] * 1000 if took else 0.0
                workers, backends = await asyncio.to_thread(self._memory)
                sample = Sample(at=self.now, publish_ms=slow, workers=workers, backends=backends, **(row or {}))
                self.record.samples.append(sample)

    def _memory(self) -> tuple[float, float]:
        with psycopg.connect(self.dsn, autocommit=True) as conn:
            sessions = conn.execute(
                "select pid from pg_stat_activity where datname = 'soak' and application_name like 'outrider%'"
            ).fetchall()
        return statistics.fmean(private(pid) for pid in self._pids), sum(private(pid) for (pid,) in sessions)

    async def _drained(self) -> None:
        ok = sum(outcome == "ok" for outcome in self.oracle.attempts().values())
        for name in NAMES:
            query = f"select count(*) from effect where subscription = '{name}'"
            await subject.eventually(self.dsn, query, ok, seconds=60)
        await subject.eventually(self.dsn, "select count(*) from outrider.owed", 0, seconds=60)


def private(pid: int) -> float:
    """Memory that nobody shares with it; of a process that has just ended, none."""
    with contextlib.suppress(psutil.Error):
        return float(psutil.Process(pid).memory_full_info().uss)
    return 0.0


def seconds_of(text: str) -> float:
    """`10m`, `90s`, `90`."""
    return float(text.rstrip("sm")) * (60 if text.endswith("m") else 1)


def wanted(default: str) -> float:
    return seconds_of(os.environ.get("OUTRIDER_SOAK") or default)
