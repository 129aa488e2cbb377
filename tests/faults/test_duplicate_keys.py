"""Fault 19: many sessions bring the same idempotency key at the same moment. One effect; the others concede."""

from __future__ import annotations

import asyncio
from pathlib import Path

import psycopg
from psycopg import AsyncConnection
from tests.faults import subject
from tests.faults.subject import LOOSE, Ear, Fact
from tests.oracle import EFFECT, Oracle, check

from outrider import HandlerContext, Outrider
from outrider.signals import Failed, Settled, Troubled

SESSIONS = 16
PARTITION = "select hashtextextended(%s, 0) & %s"
WAITING = """select count(*) from pg_stat_activity
             where datname = current_database() and wait_event_type = 'Lock' and query like '%take%'"""


def one_key_per_partition(dsn: str) -> list[str]:
    found: dict[int, str] = {}
    with psycopg.connect(dsn) as conn:
        for number in range(1000):
            row = conn.execute(PARTITION, [f"k{number}", SESSIONS - 1]).fetchone()
            assert row is not None
            found.setdefault(row[0], f"k{number}")
            if len(found) == SESSIONS:
                return list(found.values())
    raise AssertionError("some partition has no key")


async def duplicates(dsn: str, folder: Path, rounds: int) -> None:
    """The handler holds its transaction open until all the others wait for its receipt, or clearly do not."""
    oracle, called = Oracle(folder), 0
    app = Outrider(context="fault", dsn=dsn, poll=0.5, pool_size=SESSIONS)

    @app.handler(Fact, name=LOOSE, partitions=SESSIONS)
    async def once(fact: Fact, ctx: HandlerContext) -> None:
        nonlocal called
        called += 1
        await ctx.tx.execute(EFFECT, [LOOSE, "same", fact.n, ctx.envelope.seq])
        async with await AsyncConnection.connect(dsn, autocommit=True) as looking:

            async def all_wait() -> bool:
                return called > fact.n or await _waiting(looking) == SESSIONS - 1

            await subject.so(all_wait)

    await subject.setup(dsn, app)
    keys = one_key_per_partition(dsn)

    async def publish(key: str, n: int) -> None:
        async with await AsyncConnection.connect(dsn) as conn:
            await app.publish(conn, Fact(key=key, n=n), idempotency_key=f"same {n}")
            await conn.commit()

    async with app:
        ear = Ear(app)
        for n in range(1, rounds + 1):
            oracle.write([("same", n)], "unknown")
            await asyncio.gather(*(publish(key, n) for key in keys))
            oracle.write([("same", n)], "ok")
            async with subject.worker_of(app):
                await ear.until(lambda: _settled(ear) >= SESSIONS * n)  # noqa: B023
    check(dsn, oracle, blameless=True, unsuspected=True)
    assert called == rounds
    assert not ear.all(Failed)
    assert not ear.all(Troubled)
    assert sum(settled.duplicates for settled in ear.all(Settled)) == (SESSIONS - 1) * rounds


async def _waiting(conn: AsyncConnection[tuple[int]]) -> int:
    row = await (await conn.execute(WAITING)).fetchone()
    return 0 if row is None else row[0]


def _settled(ear: Ear) -> int:
    return sum(settled.events + settled.duplicates for settled in ear.all(Settled))


async def test_the_same_key_from_many_sessions(database: str, tmp_path: Path, long: bool) -> None:
    await duplicates(database, tmp_path, 30 if long else 2)
