"""The torture of the exact cursor: every way to publish at once, against readers that roll back at random.

The oracle is in the database and commits with each publish: `aggregate.n` counts the committed events of a key, and
each event carries its count. So a subscription is exact if and only if, for every key, its effects are 1, 2, …, n in
this order: a gap is a loss, a repeat a double, anything else a wrong order. `effect` has no unique constraint.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg
from psycopg import AsyncConnection, IsolationLevel

from outrider.postgres import log

Conn = AsyncConnection[Any]

SETUP = """
create table aggregate (key text primary key, n bigint not null);
create table effect (place bigint generated always as identity, subscription text not null, key text not null,
                     n bigint not null);
create table unrelated (id bigint generated always as identity, note text);
"""

# What a transaction of the publisher's does to one key: count it, lock it, append.
COUNT = "insert into aggregate as a values (%s, %s) on conflict (key) do update set n = a.n + excluded.n returning n"
APPEND = """insert into outrider.outbox (event_type, source, aggregate_id, payload)
            select %(type)s, 'torture', %(key)s, jsonb_build_object('n', n)
            from generate_series(%(last)s::bigint - %(count)s + 1, %(last)s) as n"""


@dataclass(frozen=True)
class Report:
    """What went wrong, per subscription: the number of events."""

    published: int
    lost: Counter[str]
    doubled: Counter[str]
    disordered: Counter[str]

    @property
    def exact(self) -> bool:
        return not (self.lost or self.doubled or self.disordered)

    def __str__(self) -> str:
        wrong = [f"{name} {dict(found)}" for name, found in vars(self).items() if isinstance(found, Counter) and found]
        return f"{self.published} published: " + (", ".join(wrong) or "exact")


@dataclass
class Subscriber:
    name: str
    types: list[str] | None = None
    partitions: int = 1
    scan: int = 10_000


SUBSCRIBERS = (
    Subscriber("t.all"),
    Subscriber("t.split", partitions=4),
    Subscriber("t.sparse", types=["torture.rare"], scan=60),
)


@dataclass
class Pace:
    """Counts commits, so that slow transactions can wait for others to overtake them instead of sleeping."""

    commits: int = 0
    publishing: int = 0
    waiting: int = 0
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def committed(self) -> None:
        async with self.changed:
            self.commits += 1
            self.changed.notify_all()

    async def left(self) -> None:
        async with self.changed:
            self.publishing -= 1
            self.changed.notify_all()

    async def overtaken_by(self, others: int) -> None:
        """Until so many others have committed, or nobody is left who could."""
        goal = self.commits + others
        async with self.changed:
            self.waiting += 1
            self.changed.notify_all()
            try:
                await self.changed.wait_for(lambda: self.commits >= goal or self.waiting >= self.publishing)
            finally:
                self.waiting -= 1


class Torture:
    def __init__(
        self,
        dsn: str,
        seed: int,
        *,
        rounds: int = 40,
        big: int = 50_000,
        limits: Sequence[int] = (7, 60, 500),
        asleep: frozenset[str] = frozenset(),
    ) -> None:
        """`limits`: sizes of batches, at random. With the smallest, late events fill a batch, and are read in pages.

        `asleep` names subscribers that do not read in this run.
        """
        self.dsn = dsn
        self.awake = [subscriber for subscriber in SUBSCRIBERS if subscriber.name not in asleep]
        self.random = random.Random(seed)
        self.rounds = rounds
        self.limits = limits
        self.big = big
        self.pace = Pace()
        self.stopping = asyncio.Event()
        self.up = asyncio.Event()
        self.up.set()
        self.mortal = False

    @contextlib.asynccontextmanager
    async def connect(self, **options: Any) -> AsyncIterator[Conn]:
        conn = await psycopg.AsyncConnection.connect(self.dsn, **options)
        try:
            yield conn
        finally:
            await conn.close()

    @contextlib.asynccontextmanager
    async def outage(self) -> AsyncIterator[None]:
        """Where the server may be restarted: a lost connection is forgiven once the server is up again."""
        try:
            yield
        except psycopg.OperationalError:
            if not self.mortal:
                raise
            await self.up.wait()

    async def setup(self) -> None:
        async with self.connect(autocommit=True) as conn:
            await conn.execute(SETUP)
            for s in SUBSCRIBERS:
                await conn.execute(
                    "select outrider.register(%s, 'reader', 't', %s, %s)", [s.name, s.types, s.partitions]
                )

    # Publishers. Each is one transaction; `pick` gives its keys in a fixed order, so that they cannot deadlock.

    def pick(self, most: int = 3) -> list[str]:
        keys = [f"k{n}" for n in range(12)] + [f"rare{n}" for n in range(3)]
        return sorted(self.random.sample(keys, self.random.randint(1, most)))

    async def append(self, conn: Conn, key: str, count: int = 1) -> None:
        cursor = await conn.execute(COUNT, [key, count])
        row = await cursor.fetchone()
        assert row is not None
        kind = "torture.rare" if key.startswith("rare") else "torture.common"
        await conn.execute(APPEND, {"type": kind, "key": key, "last": row[0], "count": count})

    async def short(self, conn: Conn) -> None:
        async with conn.transaction():
            for key in self.pick():
                await self.append(conn, key)

    async def long(self, conn: Conn) -> None:
        async with conn.transaction():
            await self.append(conn, f"long{self.random.random()}", 3)
            await self.pace.overtaken_by(self.random.randint(5, 60))
            for key in self.pick(1):
                await self.append(conn, key)

    async def rolled_back(self, conn: Conn) -> None:
        async with conn.transaction(force_rollback=True):
            for key in self.pick():
                await self.append(conn, key)

    async def savepoints(self, conn: Conn) -> None:
        async with conn.transaction():
            for key in self.pick():
                async with conn.transaction(force_rollback=True):
                    await self.append(conn, key)
                async with conn.transaction():
                    await self.append(conn, key)

    async def copy(self, conn: Conn) -> None:
        async with conn.transaction():
            (key,) = self.pick(1)
            cursor = await conn.execute(COUNT, [key, 5])
            row = await cursor.fetchone()
            assert row is not None
            kind = "torture.rare" if key.startswith("rare") else "torture.common"
            async with (
                conn.cursor() as cursor,
                cursor.copy("copy outrider.outbox (event_type, source, aggregate_id, payload) from stdin") as copy,
            ):
                for n in range(row[0] - 4, row[0] + 1):
                    await copy.write_row([kind, "torture", key, f'{{"n": {n}}}'])

    async def repeatable_read(self, conn: Conn) -> None:
        await self._isolated(conn, IsolationLevel.REPEATABLE_READ)

    async def serializable(self, conn: Conn) -> None:
        await self._isolated(conn, IsolationLevel.SERIALIZABLE)

    async def _isolated(self, conn: Conn, level: IsolationLevel) -> None:
        await conn.set_isolation_level(level)
        try:
            with contextlib.suppress(psycopg.errors.SerializationFailure):
                await self.short(conn)
        finally:
            if not conn.closed:
                await conn.set_isolation_level(None)

    async def prepared(self, conn: Conn) -> None:
        name = f"{conn.info.dbname}-{self.random.random()}"
        keep = self.random.random() < 0.7
        await conn.execute("begin")
        await conn.execute("set local outrider.notify = 'off'")
        await self.append(conn, f"prepared{name}", 2)
        await conn.execute(f"prepare transaction '{name}'".encode())
        await self.pace.overtaken_by(self.random.randint(0, 40))
        await self._finish_prepared(conn, name, keep)

    async def _finish_prepared(self, conn: Conn, name: str, keep: bool) -> None:
        await conn.execute(f"{'commit' if keep else 'rollback'} prepared '{name}'".encode())

    async def early_xid(self, conn: Conn) -> None:
        async with conn.transaction():
            await conn.execute("select pg_current_xact_id()")
            await self.pace.overtaken_by(self.random.randint(2, 40))
            for key in self.pick(1):
                await self.append(conn, key)

    async def event_first(self, conn: Conn) -> None:
        """The event is what gives the transaction its id; the key is new, so that it need not be locked before."""
        key = f"first{self.random.random()}"
        async with conn.transaction():
            await conn.execute(APPEND, {"type": "torture.common", "key": key, "last": 1, "count": 1})
            await conn.execute(COUNT, [key, 1])

    async def autocommit(self, conn: Conn) -> None:
        (key,) = self.pick(1)
        kind = "torture.rare" if key.startswith("rare") else "torture.common"
        await conn.execute(
            f"""with counted as ({COUNT})
                insert into outrider.outbox (event_type, source, aggregate_id, payload)
                select %s, 'torture', %s, jsonb_build_object('n', n) from counted""".encode(),
            [key, 1, kind, key],
        )

    async def publisher(self) -> None:
        kinds: list[Callable[[Conn], Awaitable[None]]] = [
            self.short, self.short, self.long, self.rolled_back, self.savepoints, self.copy, self.repeatable_read,
            self.serializable, self.prepared, self.early_xid, self.event_first, self.autocommit,
        ]  # fmt: skip
        left = self.rounds
        while left:
            async with self.outage(), self.connect(autocommit=True) as conn:
                while left:
                    await self.random.choice(kinds)(conn)
                    left -= 1
                    await self.pace.committed()
        await self.pace.left()

    async def big_publisher(self) -> None:
        """One transaction of many events that commits after many others."""
        async with self.outage(), self.connect(autocommit=True) as conn, conn.transaction():
            await self.append(conn, "big", self.big // 2)
            await self.pace.overtaken_by(30)
            await self.append(conn, "big", self.big - self.big // 2)
            await self.pace.overtaken_by(60)
        await self.pace.committed()
        await self.pace.left()

    # Readers

    async def reader(self, subscriber: Subscriber) -> None:
        while not self.stopping.is_set():
            async with self.outage(), self.connect() as conn:
                named = self.random.sample(range(subscriber.partitions), subscriber.partitions)
                for partition in (*named, *[None] * subscriber.partitions):
                    await self.read(conn, subscriber, partition)

    async def read(self, conn: Conn, subscriber: Subscriber, partition: int | None, *, careful: bool = False) -> str:
        """One take and its effects; unless careful, some of it is rolled back and some publish on the way."""
        dice = 1.0 if careful else self.random.random()
        limit = self.random.choice(self.limits)
        batch = await log.take(conn, subscriber.name, partition, limit, max(limit, subscriber.scan), "outrider")
        if batch.events:
            rows = [(e.key, e.payload["n"]) for e in batch.events]
            await conn.execute(
                """insert into effect (subscription, key, n)
                   select %s, e.key, e.n from unnest(%s::text[], %s::bigint[]) with ordinality as e (key, n, place)
                   order by e.place""",
                [subscriber.name, [key for key, _ in rows], [n for _, n in rows]],
            )
            if dice < 0.1:
                await self.append(conn, f"echo-{subscriber.name}-{batch.partition}")
        if 0.1 <= dice < 0.3:
            await conn.rollback()
        else:
            await conn.commit()
        return batch.outcome

    async def drain(self) -> None:
        async with self.connect() as conn:
            for subscriber in self.awake:
                while await self.read(conn, subscriber, None, careful=True) != "idle":
                    pass

    # The whole

    async def run(self, publishers: int = 8) -> Report:
        """Everything at once, with a long writer here and one in another database that outlive all of it."""
        async with (
            self.connect() as here,
            await psycopg.AsyncConnection.connect(self.dsn, dbname="postgres") as elsewhere,
        ):
            await here.execute("insert into unrelated (note) values ('open all the while')")
            await self.append(here, "longest", 2)
            await elsewhere.execute("select pg_current_xact_id()")
            await self.publish_and_read(publishers)
            # Both long writers are still open: everything but their own events must come through.
            await self.drain()
            report = await self.report()
            await here.commit()
            await elsewhere.rollback()
        if not report.exact:
            return report
        await self.drain()
        return await self.report()

    async def run_with(self, upset: Callable[[], None], times: int = 1, publishers: int = 8) -> Report:
        """Everything at once, and several times `upset` in the midst of it: it restarts the server, or dumps it."""
        self.mortal = True
        await self.publish_and_read(publishers, upset, times)
        async with self.connect(autocommit=True) as conn:
            left = await conn.execute("select gid from pg_prepared_xacts where database = current_database()")
            for (name,) in await left.fetchall():
                await self._finish_prepared(conn, name, keep=True)
        await self.drain()
        return await self.report()

    async def publish_and_read(self, publishers: int, upset: Callable[[], None] | None = None, times: int = 0) -> None:
        self.pace.publishing = publishers + 1
        async with asyncio.TaskGroup() as readers:
            for subscriber in self.awake:
                for _ in range(2):
                    readers.create_task(self.reader(subscriber))
            async with asyncio.TaskGroup() as group:
                for _ in range(publishers):
                    group.create_task(self.publisher())
                group.create_task(self.big_publisher())
                if upset is not None:
                    group.create_task(self.upsetting(upset, times))
            self.stopping.set()

    async def upsetting(self, upset: Callable[[], None], times: int) -> None:
        for _ in range(times):
            await self.pace.overtaken_by(self.rounds * 8 // (times + 1))
            self.up.clear()
            await asyncio.to_thread(upset)
            self.up.set()

    async def report(self) -> Report:
        async with self.connect() as conn:
            expected = dict(await (await conn.execute("select key, n from aggregate")).fetchall())
            effects: dict[tuple[str, str], list[int]] = defaultdict(list)
            rows = await conn.execute("select subscription, key, n from effect order by place")
            async for subscription, key, n in rows:
                effects[subscription, key].append(n)
        lost, doubled, disordered = Counter[str](), Counter[str](), Counter[str]()
        for subscriber in SUBSCRIBERS:
            for key, n in expected.items():
                if subscriber.types is not None and not key.startswith("rare"):
                    continue
                seen = effects.get((subscriber.name, key), [])
                once = set(seen)
                lost[subscriber.name] += n - len(once & set(range(1, n + 1)))
                doubled[subscriber.name] += len(seen) - len(once)
                disordered[subscriber.name] += sum(a > b for a, b in itertools.pairwise(seen))
        return Report(sum(expected.values()), +lost, +doubled, +disordered)
