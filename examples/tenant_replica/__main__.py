"""python -m examples.tenant_replica [DSN DSN]: of accounts and of billing. Without them on the embedded Postgres."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from uuid import UUID

from prometheus_client import CollectorRegistry

from outrider import Outrider
from outrider.config import Settings
from outrider.observe.metrics import Metrics
from outrider.signals import Buried, Relayed

from . import accounts, billing, wire

OLD = "insert into customer (workspace_id, id, name, plan) values ('acme', gen_random_uuid(), 'Ada', 'free')"


async def create(workspace_id: str, name: str, plan: str) -> UUID:
    async with accounts.app.connect() as conn, conn.transaction():
        return await accounts.create(conn, workspace_id, name, plan)


async def change(workspace_id: str, customer_id: UUID, version: int, name: str, plan: str) -> None:
    async with accounts.app.connect() as conn, conn.transaction():
        await accounts.change(conn, workspace_id, customer_id, version, name=name, plan=plan)


async def carry() -> None:
    """What `outrider relay` and `outrider worker` do all the time."""
    sent = await accounts.app.drain()
    came = await billing.app.drain()
    print(f"   {sent.relayed} relayed; billing: {came.handled} handled, {came.buried} buried")


async def lines(workspace_id: str) -> None:
    """As a request of this tenant would see them."""
    async with billing.app.connect() as conn, conn.transaction():
        await conn.execute("set local role billing_tenant")
        await conn.execute("select set_config('app.workspace_id', %s, true)", [workspace_id])
        found = await conn.execute("select number, what, cents from invoice_line order by number")
        seen = [f"{number}. {what}, {cents / 100:.2f}" for number, what, cents in await found.fetchall()]
    print(f"   {workspace_id or 'nobody'} sees {seen or 'nothing'}")


async def copy() -> None:
    async with billing.app.connect() as conn:
        found = await conn.execute(
            "select payload->>'name', payload->>'plan', entity_version from customer_acme order by 1"
        )
        for name, plan, version in await found.fetchall():
            print(f"   {name}: {plan}, version {version}")


async def across() -> tuple[UUID, UUID]:
    print("1. Customers of two tenants become invoice lines in another database")
    bob, cleo = await create("acme", "Bob", "free"), await create("globex", "Cleo", "team")
    await change("acme", bob, 1, "Bob", "team")
    await carry()
    for tenant in ("acme", "globex", ""):
        await lines(tenant)
    return bob, cleo


async def stitched(bob: UUID) -> None:
    print("2. A copy of acme's customers: Ada is older than the stream, so she comes with a snapshot")
    await copy()
    hwm, rows = await accounts.snapshot("acme")
    await change("acme", bob, 2, "Robert", "team")
    print(f"   a snapshot of {len(rows)} customers, {await billing.load(hwm, rows)} of them new here")
    await carry()
    await copy()


async def dead_letter(cleo: UUID) -> None:
    print("3. A plan that billing does not know")
    await change("globex", cleo, 1, "Cleo", "galactic")
    await carry()
    async for letter in billing.app.dead_letters.each():
        print(f"   dead letter of {letter.workspace_id} at {letter.subscription}: {letter.message}")
    async with billing.app.connect() as conn:
        await conn.execute("insert into price values ('galactic', 990000)")
    print(f"   it has a price now; {(await billing.app.dead_letters.replay()).replayed} replayed")
    await carry()
    await lines("globex")


async def rejected(bob: UUID) -> None:
    """With a worker, as in earnest: the relay tries again by itself."""
    print("4. A name that the readers of copies cannot store")
    registry, happened = CollectorRegistry(), {Relayed: asyncio.Event(), Buried: asyncio.Event()}
    metrics = Metrics(accounts.app.signals, registry)
    stop = accounts.app.signals.listen(lambda each: happened[type(each)].set() if type(each) in happened else None)
    await change("acme", bob, 3, "Robert " * 7, "team")
    async with accounts.app.worker():
        for each in happened.values():
            await each.wait()
    stop()
    metrics.close()
    async for letter in accounts.app.dead_letters.each():
        print(f"   dead letter of {letter.workspace_id} after {letter.attempts} attempts: {letter.message}")
        short = json.dumps({"customer_id": letter.key, "name": "Robert", "plan": "team"})
        await accounts.app.replay(letter.event_id, subscription=letter.subscription, payload=short)
    assert total(registry, "relay_lease", result="acquired") == len(accounts.app.relays)
    sent, failures, retries = (total(registry, each) for each in ("relayed", "publish_failures", "publish_retries"))
    print(f"   metrics: {sent:.0f} relayed, {failures:.0f} rejections, {retries:.0f} of them tried again")
    await carry()
    await copy()


def total(registry: CollectorRegistry, counter: str, **labels: str) -> float:
    """Over all relays."""
    found = [
        each for family in registry.collect() for each in family.samples if each.name == f"outrider_{counter}_total"
    ]
    return sum(each.value for each in found if labels.items() <= each.labels.items())


async def own_databases(stack: AsyncExitStack) -> list[str]:
    """On the embedded Postgres. Another broker, other databases: positions in the streams of one mean nothing at another."""
    server = (await stack.enter_async_context(Outrider(embedded=True))).server
    assert server is not None
    databases = [f"{service}_{wire.URL.partition(':')[0]}" for service in ("accounts", "billing")]
    for database in databases:
        await asyncio.to_thread(server.ensure_database, database)
    return [server.dsn(database) for database in databases]


@asynccontextmanager
async def opened(dsns: list[str]) -> AsyncIterator[None]:
    """The tables are empty at every run."""
    async with AsyncExitStack() as stack:
        where = dsns or await own_databases(stack)
        for app, dsn in zip((accounts.app, billing.app), where, strict=True):
            app.relocate(Settings.load(context=app.settings.context, dsn=dsn))
            await stack.enter_async_context(app)
            await app.migrate()
        async with accounts.app.connect() as conn, conn.transaction():
            await conn.execute("drop table if exists customer")
            await conn.execute(accounts.TABLES)
            await conn.execute(OLD)
        async with billing.app.connect() as conn, conn.transaction():
            await conn.execute("drop table if exists price, invoice_line, customer_acme")
            await conn.execute(billing.TABLES + billing.ROLE)
        yield


async def main(*dsns: str) -> None:
    logging.getLogger("outrider").setLevel(logging.CRITICAL)  # what fails here does so on purpose
    async with opened(list(dsns)):
        bob, cleo = await across()
        await stitched(bob)
        await dead_letter(cleo)
        await rejected(bob)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:3]))
