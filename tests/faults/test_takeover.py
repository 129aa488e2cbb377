"""A takeover under load: its session dies at every statement, while producers insert and the old dispatcher runs."""

from __future__ import annotations

import threading
from collections import Counter
from itertools import count
from typing import Any

import psycopg
import pytest
from tests.postgres.test_takeover import INSERT, OrderPlaced, Shop

from outrider import HandlerContext
from outrider.postgres.admin.takeover import TakeoverRun

pytestmark = pytest.mark.verify

DISPATCH = """with sent as (
    update orders_outbox set published_at = now() where id in (
        select id from orders_outbox where published_at is null order by id limit 3 for update skip locked)
    returning order_id)
insert into effects select order_id, 'old' from sent"""


class Killed(Exception):
    pass


class Load:
    """Producers and the old dispatcher, each in a thread with a session of its own. Some transactions roll back."""

    def __init__(self, dsn: str) -> None:
        self._dsn, self._over, self._numbers = dsn, threading.Event(), count()
        self.committed: list[str] = []
        self._commits = threading.Semaphore(0)
        self._threads = [threading.Thread(target=each) for each in (*[self._produce] * 4, self._dispatch)]

    def __enter__(self) -> Load:
        for each in self._threads:
            each.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for each in self._threads:
            each.join()

    def _produce(self) -> None:
        with psycopg.connect(self._dsn) as conn:
            while not self._over.wait(0.02):  # slower than rows are brought
                orders = [f"{next(self._numbers)}" for _ in range(3)]
                for order in orders:
                    conn.execute(INSERT, [order, order])
                if int(orders[0]) % 7 == 0:
                    conn.rollback()
                else:
                    conn.commit()
                    self.committed += orders
                    self._commits.release()

    def commit_more(self, transactions: int) -> None:
        """Return once so many transactions that began after this call have committed."""
        while self._commits.acquire(blocking=False):
            pass
        for _ in range(transactions + 4):  # each of the four producers may be about to commit
            assert self._commits.acquire(timeout=30), "the producers stand still"

    def _dispatch(self) -> None:
        with psycopg.connect(self._dsn, autocommit=True) as conn:
            while not self._over.is_set():
                conn.execute(DISPATCH)


async def test_every_row_is_dispatched_once(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shop, running = Shop(database), TakeoverRun._run
    left = 0

    async def dying(self: TakeoverRun, *query: Any) -> list[tuple[Any, ...]]:
        nonlocal left
        if left == 0:
            with psycopg.connect(database, autocommit=True) as killer:
                killer.execute("select pg_terminate_backend(%s, 10000)", [self._conn.info.backend_pid])
            await self._conn.close()
            raise Killed
        left -= 1
        return await running(self, *query)

    monkeypatch.setattr(TakeoverRun, "_run", dying)
    with psycopg.connect(database) as conn:
        conn.execute("""create table orders_outbox (id bigint generated always as identity primary key, event_type text,
            order_id text, payload json, tenant text, created_at timestamptz default now(), published_at timestamptz)""")
        conn.execute("create table effects (order_id text, by text)")

    @shop.app.handler(OrderPlaced, name="shop.effect", start="beginning")
    async def effect(event: OrderPlaced, ctx: HandlerContext) -> None:
        await ctx.tx.execute("insert into effects values (%s, 'new')", [event.order_id])

    deaths: Counter[str] = Counter()
    async with shop.app:
        await shop.app.migrate()
        with Load(database) as load:  # the trigger tries rows out, then takes them
            for verb in (shop.start, shop.cut_over):
                for steps in count():
                    left = steps
                    try:
                        await verb()
                        break
                    except Killed:
                        deaths[verb.__name__] += 1
            load.commit_more(3)
        left = 10_000
        state = await shop.finish()
        await shop.app.drain()
        assert state.refused == []
    assert deaths["start"] >= 4
    assert deaths["cut_over"] >= 6
    with psycopg.connect(database) as conn:
        effects = conn.execute("select order_id, by from effects").fetchall()
    assert {by for _, by in effects} == {"old", "new"}
    dispatched = Counter(order for order, _ in effects)
    assert not set(load.committed) - set(dispatched), "lost"
    assert not set(dispatched) - set(load.committed), "never committed"
    assert max(dispatched.values()) == 1, "doubled"
