"""The torture of generations: publishers of several, readers of whatever has cursors, and somebody who opens, folds and
doubles at random, all at once; handlers fail now and then.

The oracle is in the database and commits with each publish: `tally.n` counts the committed events of a key and generation,
and each event carries its count. So a subscription is exact if and only if, for each of them, its effects are 1, 2, …, n in
this order. `effect` has no unique constraint.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from typing import Any

import psycopg
from psycopg import AsyncConnection
from tests.torture import Pace, Report

from outrider import Event, HandlerContext, Outrider, RetryPolicy
from outrider.errors import CursorError
from outrider.postgres import generations
from outrider.postgres.worker_sessions import WorkerSessions
from outrider.worker.handler_reader import HandlerReader

SETUP = """
create table tally (generation bigint, key text, n bigint not null, primary key (generation, key));
create table effect (place bigint generated always as identity, subscription text not null, generation bigint not null,
                     key text not null, n bigint not null);
"""
COUNT = """insert into tally as t values (%s, %s, 1)
           on conflict (generation, key) do update set n = t.n + 1 returning n"""
EFFECT = "insert into effect (subscription, generation, key, n) values (%s, %s, %s, %s)"
KEYED, TOTAL = "turmoil.keyed", "turmoil.total"
OPENED = (1, 2, 3)
PUBLISHED = (0, *OPENED, 4)
"""Nobody ever opens the last."""
SOON = RetryPolicy(retries=100, base="1ms", cap="5ms")
LATER = RetryPolicy(retries=100, base="100ms", cap="200ms", jitter="none")
"""Events are parked while their generation is opened or folded."""


PAGES = """select o.generation from outrider.cursor as c cross join lateral (
    select generation from outrider.outbox
    where tx = any (c.owing) and seq > c.owed_after and generation = any (%s) limit 1) as o
where c.subscription = %s and c.generation = 0 and c.owing is not null limit 1"""
"""A generation with events in a late transaction that the catch-all has not read to its end."""
LOOKS = 20
"""How often the steersman looks for such a moment."""
STATE = """select (select count(*) from outrider.delivery), (select count(*) from effect),
                  (select sum(seq) + sum(coalesce(owed_after, 0)) from outrider.cursor)"""
STRANDED = 10.0
"""Seconds without any change, fifty times the longest wait for a retry, while something is owed or found."""


class Fact(Event, type="turmoil.fact", key="key"):
    key: str
    n: int


class Turmoil:
    def __init__(self, dsn: str, seed: int, *, rounds: int = 40, failing: float = 0.02) -> None:
        self.dsn = dsn
        self.random = random.Random(seed)
        self.rounds = rounds
        self.failing = failing
        self.pace = Pace()
        self.stopping = asyncio.Event()
        self.going = asyncio.Event()
        """Unset, nobody begins to publish; what was begun goes on."""
        self.going.set()
        self.passed_over: int | None = None
        """A generation that nobody reads now, so that the catch-all gets ahead of it."""
        self.duplicates: Counter[str] = Counter()
        """Taken twice; only their receipts kept them from being handled twice."""
        self.done: Counter[str] = Counter()
        """How often a generation was opened, passed over and folded, and the partitions doubled."""
        self.apps = {each: Outrider(context="turmoil", dsn=dsn, generation=each) for each in PUBLISHED}
        app = self.apps[0]

        @app.handler(Fact, name=KEYED, retry=LATER)
        async def keyed(fact: Fact, ctx: HandlerContext) -> None:
            await self.handle(KEYED, fact, ctx)

        @app.handler(Fact, name=TOTAL, order="total", retry=SOON)
        async def total(fact: Fact, ctx: HandlerContext) -> None:
            await self.handle(TOTAL, fact, ctx)

    async def handle(self, name: str, fact: Fact, ctx: HandlerContext) -> None:
        await ctx.tx.execute(EFFECT, [name, ctx.envelope.generation, fact.key, fact.n])
        if self.random.random() < self.failing * (3 if name == KEYED else 1):
            raise RuntimeError("now and then")

    @contextlib.asynccontextmanager
    async def connect(self) -> AsyncIterator[AsyncConnection[Any]]:
        async with await AsyncConnection.connect(self.dsn, autocommit=True) as conn:
            yield conn

    async def setup(self) -> None:
        async with self.connect() as conn, self.apps[0] as app:
            await conn.execute(SETUP)
            await app.migrate()

    # Publishers

    async def publisher(self) -> None:
        async with self.connect() as conn:
            for number in range(5 * self.rounds):
                if number >= self.rounds and min(self.done["opened"], self.done["folded"]) >= 3:
                    break  # on a busy machine the steersman needs more rounds
                await self.going.wait()
                generation, keys = self.random.choice(PUBLISHED), sorted(self.random.sample("abcdef", 2))
                waits = self.random.choice([0, 0, 0, 0, 0, 3, 20])
                async with conn.transaction(force_rollback=self.random.random() < 0.1):
                    slow = f"slow{self.random.random()}"
                    for _ in range(waits):
                        await self.append(conn, generation, slow)  # the longest leaves more than a batch
                    await self.pace.overtaken_by(waits)
                    await self.append(conn, generation, keys[0])
                    await self.append(conn, generation, keys[1])
                await self.pace.committed()
        await self.pace.left()

    async def append(self, conn: AsyncConnection[Any], generation: int, key: str) -> None:
        row = await (await conn.execute(COUNT, [generation, key])).fetchone()
        assert row is not None
        await self.apps[generation].publish(conn, Fact(key=key, n=row[0]))

    # Readers

    async def reader(self, lanes: WorkerSessions) -> None:
        async with self.connect() as conn:
            while not self.stopping.is_set():
                for generation in await self.opened(conn):
                    for name in (KEYED, TOTAL):
                        if generation != self.passed_over:
                            await self.read(lanes, name, generation, self.random.randint(1, 4))

    async def opened(self, conn: AsyncConnection[Any]) -> list[int]:
        rows = await (await conn.execute("select distinct generation from outrider.cursor")).fetchall()
        return self.random.sample([row[0] for row in rows], len(rows))

    async def read(self, lanes: WorkerSessions, name: str, generation: int, steps: int) -> bool:
        """Some batches of one generation; True when there was something in the last of them."""
        handler = next(each for each in self.apps[0].handlers if each.name == name)
        tail = HandlerReader(handler, self.apps[0].signals, schema="outrider", generation=generation, worker="turmoil")
        again = False
        with contextlib.closing(tail), contextlib.suppress(CursorError):
            async with lanes.session(name) as conn:
                for _ in range(steps):
                    step = await tail.step(conn)
                    self.duplicates[name] += step.duplicates
                    again = step.again
        return again

    # Whoever opens, folds and doubles

    async def steersman(self) -> None:
        async with self.connect() as conn:
            while not self.stopping.is_set():
                await self.pace.overtaken_by(1)
                for name in (KEYED, TOTAL):
                    generation = await self.in_pages(conn, name) or self.random.choice(OPENED)
                    self.done["opened"] += await generations.open_generation(conn, name, generation, "outrider")
                    passed = self.random.choice((0, *OPENED))
                    self.done["passed"] += await generations.pass_over(conn, name, passed, "outrider")
                if self.random.random() < 0.3:
                    await self.lull(conn)
                if self.random.random() < 0.02 and self.done["doubled"] < 2:
                    self.done["doubled"] += 1
                    types, partitions = ["turmoil.fact"], 2 ** self.done["doubled"]
                    await conn.execute(
                        "select outrider.register(%s, 'handler', 'turmoil', %s, %s)", [KEYED, types, partitions]
                    )

    async def in_pages(self, conn: AsyncConnection[Any], name: str) -> int | None:
        """Waits for one now and then; else the generations would be opened too seldom for the other faults."""
        for _ in range(self.random.choice((0, 0, LOOKS))):
            if row := await (await conn.execute(PAGES, [list(OPENED), name])).fetchone():
                return int(row[0])
        return None

    async def lull(self, conn: AsyncConnection[Any]) -> None:
        """Fold at random: at work, one of them left unread; and then at rest until one of them is folded."""
        self.passed_over = self.random.choice((None, *OPENED))
        for tries in range(160):
            name, generation = self.random.choice((KEYED, TOTAL)), self.random.choice(OPENED)
            generation = self.passed_over or generation
            folded = await generations.fold_generation(conn, name, generation, "outrider")
            self.done["folded"] += folded
            if tries == 10:
                self.going.clear()
            if tries == 60:
                self.passed_over = None
            if tries > 10 and folded:
                break
        self.passed_over = None
        self.going.set()

    # The whole

    async def run(self, publishers: int = 6, readers: int = 3) -> Report:
        lanes = WorkerSessions(self.dsn, readers, 60)
        self.pace.publishing = publishers
        try:
            async with asyncio.TaskGroup() as others:
                for _ in range(readers):
                    others.create_task(self.reader(lanes))
                others.create_task(self.steersman())
                async with asyncio.TaskGroup() as group:
                    for _ in range(publishers):
                        group.create_task(self.publisher())
                self.stopping.set()
            await self.drain(lanes)
        finally:
            await lanes.close()
        return await self.report()

    async def drain(self, lanes: WorkerSessions) -> None:
        """Until all is handled; then every generation folds."""
        async with self.connect() as conn:
            seen, moved = None, time.monotonic()
            while True:
                found = [
                    await self.read(lanes, name, generation, 2)  # a take that meets a receipt is repeated with care
                    for generation in await self.opened(conn)
                    for name in (KEYED, TOTAL)
                ]
                state = await (await conn.execute(STATE)).fetchone()
                assert state is not None
                if not any(found) and not state[0]:
                    break
                if state != seen:
                    seen, moved = state, time.monotonic()
                assert time.monotonic() < moved + STRANDED, (
                    f"{state[0]} parked events are stranded, or a take never ends"
                )
            for name, generation in itertools.product((KEYED, TOTAL), OPENED):
                await generations.fold_generation(conn, name, generation, "outrider")
            assert await self.opened(conn) == [0]

    async def report(self) -> Report:
        async with self.connect() as conn:
            expected = await (await conn.execute("select generation, key, n from tally")).fetchall()
            effects: dict[tuple[str, int, str], list[int]] = defaultdict(list)
            async for name, generation, key, n in await conn.execute(
                "select subscription, generation, key, n from effect order by place"
            ):
                effects[name, generation, key].append(n)
        lost, doubled, disordered = Counter[str](), Counter(self.duplicates), Counter[str]()
        for name, (generation, key, n) in itertools.product((KEYED, TOTAL), expected):
            seen = effects.get((name, generation, key), [])
            lost[name] += n - len(set(seen) & set(range(1, n + 1)))
            doubled[name] += len(seen) - len(set(seen))
            disordered[name] += sum(a > b for a, b in itertools.pairwise(seen))
        return Report(sum(n for *_, n in expected), +lost, +doubled, +disordered)


async def mutate(dsn: str, mutant: str) -> None:
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as conn:
        await conn.execute(mutant.encode())
