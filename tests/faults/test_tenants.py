"""Fault 28: every call tries to be another tenant, and leaves the setting unset, empty or spoofed behind it.

No read and no write crosses, whatever the handlers do to each other in one worker, and every event has its effect once.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession
from tests.faults.subject import RETRY, eventually
from tests.worker.house import House, built, inhabited
from tests.worker.test_tenants import HOSTILE, SHADOW

from outrider import Event, HandlerContext, Outrider, SyncHandlerContext

pytestmark = pytest.mark.verify

TENANTS = ("w1", "w2", "w3", None)
ACTS = (*HOSTILE, "", "fail", "fail as a thief")
HANDLERS = ("house.async", "house.role", "house.blocking", "house.batch", "house.session")
SETUP = """
create table visit (handler text, n int, workspace_id text check (workspace_id <> ''), made_by text default current_user);
alter table visit enable row level security;
alter table visit force row level security;
create policy own on visit using (workspace_id = current_setting('app.workspace_id', true));
grant select, insert on visit to {worker}, {tenant};
"""
# What one call does, in one statement: it looks, it tampers with all it can reach, and it notes its visit.
CALL = """
with looked as (select coalesce(string_agg(distinct workspace_id, ','), '') as at from item),
     tampered as (update item set name = 'tampered by ' || workspace_id where workspace_id <> %(own)s returning 1),
     noted as (insert into visit (handler, n, workspace_id) select %(handler)s, %(n)s, %(own)s where %(own)s <> ''
               returning 1)
select (select at from looked), (select count(*) from tampered), (select count(*) from noted)
"""
SMUGGLE = "insert into visit (handler, n, workspace_id) values ('smuggled', %(n)s, %(other)s)"
REFUSED = psycopg.errors.InsufficientPrivilege


class Visit(Event, type="fault.visit", key="key"):
    key: str
    n: int
    act: str = ""


class Guests:
    """What the handlers saw, and what they do to those who come after them."""

    def __init__(self, house: House) -> None:
        self.house = house
        self.crossed: list[str] = []
        self.calls = 0

    def asked(self, handler: str, visit: Visit, own: str | None) -> dict[str, Any]:
        others = [each for each in ("w1", "w2", "w3") if each != own]
        return {"handler": handler, "n": visit.n, "own": own or "", "other": random.choice(others)}

    def told(self, asked: dict[str, Any], answer: tuple[Any, ...] | None) -> None:
        self.calls += 1
        assert answer is not None
        seen, tampered, noted = answer
        if seen != asked["own"] or tampered or noted != bool(asked["own"]):
            self.crossed.append(f"{asked['handler']} {asked['n']} of {asked['own']!r}: {answer}")

    def act(self, visit: Visit, attempt: int) -> str | None:
        """What to send after all that."""
        if visit.act.startswith("fail"):
            if attempt > 1:
                return None
            if visit.act == "fail":
                raise RuntimeError("as told")
        act = HOSTILE.get(visit.act, HOSTILE["both"] if visit.act else "")
        return self.house.sql(act).as_string() if act else None

    def failed(self, visit: Visit, attempt: int) -> None:
        if visit.act == "fail as a thief" and attempt == 1:
            raise RuntimeError("as told")


def declare(app: Outrider, guests: Guests) -> None:
    async def call(handler: str, visits: list[Visit], ctx: HandlerContext) -> None:
        own = ctx.envelope.workspace_id
        for visit in visits:
            asked = guests.asked(handler, visit, own)
            guests.told(asked, await (await ctx.tx.execute(CALL, asked)).fetchone())
            with pytest.raises(REFUSED):
                async with ctx.tx.transaction():
                    await ctx.tx.execute(SMUGGLE, asked)
        for visit in visits:
            if (act := guests.act(visit, ctx.attempt)) is not None:
                await ctx.tx.execute(act.encode())
            guests.failed(visit, ctx.attempt)

    @app.handler(Visit, name="house.async", retry=RETRY, partitions=2)
    async def in_async(visit: Visit, ctx: HandlerContext) -> None:
        await call("house.async", [visit], ctx)

    @app.handler(Visit, name="house.role", retry=RETRY, role=guests.house.tenant)
    async def with_role(visit: Visit, ctx: HandlerContext) -> None:
        await call("house.role", [visit], ctx)

    @app.handler(Visit, name="house.batch", retry=RETRY, role=guests.house.tenant)
    async def in_batches(visits: list[Visit], ctx: HandlerContext) -> None:
        await call("house.batch", visits, ctx)

    @app.handler(Visit, name="house.blocking", retry=RETRY, partitions=2)
    def blocking(visit: Visit, ctx: SyncHandlerContext) -> None:
        asked = guests.asked("house.blocking", visit, ctx.envelope.workspace_id)
        guests.told(asked, ctx.tx.execute(CALL, asked).fetchone())
        with pytest.raises(REFUSED), ctx.tx.transaction():
            ctx.tx.execute(SMUGGLE, asked)
        if (act := guests.act(visit, ctx.attempt)) is not None:
            ctx.tx.execute(act.encode())
        guests.failed(visit, ctx.attempt)

    @app.handler(Visit, name="house.session", retry=RETRY)
    async def in_session(visit: Visit, ctx: HandlerContext, session: AsyncSession) -> None:
        asked = guests.asked("house.session", visit, ctx.envelope.workspace_id)
        named = text(CALL.replace("%(own)s", ":own").replace("%(n)s", ":n").replace("%(handler)s", ":handler"))
        guests.told(asked, tuple((await session.execute(named, asked)).one()))
        if (act := guests.act(visit, ctx.attempt)) is not None:
            await (await session.connection()).exec_driver_sql(act.replace("%", "%%"))
        guests.failed(visit, ctx.attempt)


@pytest.fixture
def house(database: str) -> Iterator[House]:
    with built(database) as house:
        house.rows(SETUP)
        house.rows(SHADOW)
        yield house


async def test_no_call_reaches_another_tenant(house: House, long: bool) -> None:
    guests, chance, events = Guests(house), random.Random(28), 3000 if long else 150
    async with inhabited(house, lambda app: declare(app, guests), poll=0.5) as app, app.worker():
        async with await psycopg.AsyncConnection.connect(house.owner) as conn:
            for n in range(events):
                visit = Visit(key=f"k{chance.randrange(20)}", n=n, act=ACTS[n % len(ACTS)])
                await app.publish(conn, visit, workspace_id=chance.choice(TENANTS))
                if chance.random() < 0.2:
                    await conn.commit()
        handled = "select count(*) from outrider.event_handled"
        await eventually(house.owner, handled, events * len(HANDLERS), seconds=900 if long else 60)
    assert guests.calls >= events * len(HANDLERS)
    assert guests.crossed == []
    assert house.rows("select distinct name from item") == [("here before",)]
    visits = house.rows("select handler, n, workspace_id from visit order by 1, 2")
    published = house.rows("select (payload->>'n')::int, workspace_id from outrider.outbox order by 1")
    assert visits == [(name, n, own) for name in sorted(HANDLERS) for n, own in published if own is not None]
    makers = dict(house.rows("select handler, array_agg(distinct made_by::text) from visit group by 1"))
    with_role = {"house.role", "house.batch"}
    assert makers == {name: [house.tenant if name in with_role else house.worker] for name in HANDLERS}
    assert house.rows("select count(*) from outrider.delivery") == [(0,)]
