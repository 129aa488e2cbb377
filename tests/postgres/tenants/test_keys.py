"""A key is its tenant's own: the same one of another tenant is another one, for receipts, order, unique jobs and limits."""

from __future__ import annotations

import psycopg
import pytest
from tests.postgres.jobs.sqljobs import claim, done, register

from outrider import Event, HandlerContext, Job, JobContext, Outrider, RetryPolicy

pytestmark = pytest.mark.also_on(15)

LATER = RetryPolicy(retries=2, base="1h", cap="1h", jitter="none")
TENANTS = ("a", "b", None)


class Paid(Event, type="keys.paid", key="number"):
    number: str
    fails: bool = False


class Mail(Job, type="keys.mail", key="to"):
    to: str = "7"


async def test_two_tenants_with_the_same_keys_do_not_meet(database: str) -> None:
    handled: list[tuple[str | None, str]] = []
    ran: list[str | None] = []
    app = Outrider(context="keys", dsn=database)

    @app.handler(Paid, name="keys.ledger", retry=LATER)
    async def ledger(event: Paid, ctx: HandlerContext) -> None:
        if event.fails:
            raise RuntimeError("as told")
        handled.append((ctx.envelope.workspace_id, event.number))

    @app.job(on=Paid, name="keys.route")
    async def route(event: Paid, ctx: JobContext) -> None:
        ran.append(ctx.envelope.workspace_id)

    @app.job(Mail)
    async def mail(job: Mail, ctx: JobContext) -> None: ...

    async with app:
        await app.migrate()
        async with app.connect() as conn, conn.transaction():
            for tenant in (*TENANTS, *TENANTS):
                await app.publish(conn, Paid(number="1"), workspace_id=tenant, idempotency_key="same")
        await app.drain(raise_on_failure=True)
        assert sorted(handled, key=str) == sorted([(each, "1") for each in TENANTS], key=str)
        assert sorted(ran, key=str) == sorted(TENANTS, key=str)
        async with app.connect() as conn, conn.transaction():  # and once more, now that there are receipts
            for tenant in TENANTS:
                await app.publish(conn, Paid(number="1"), workspace_id=tenant, idempotency_key="same")
        await app.drain(raise_on_failure=True)
        assert (len(handled), len(ran)) == (3, 3)
        # b's 7 has failed and waits an hour: what comes after it waits, and only there
        async with app.connect() as conn, conn.transaction():
            await app.publish(conn, Paid(number="7", fails=True), workspace_id="b")
        await app.drain()
        handled.clear()
        async with app.connect() as conn, conn.transaction():
            for tenant in TENANTS:
                await app.publish(conn, Paid(number="7"), workspace_id=tenant)
        await app.drain()
        assert handled == [("a", "7"), (None, "7")]
        parked = "select distinct ordering_key, workspace_id from outrider.delivery"
        async with app.connect() as conn:
            assert await (await conn.execute(parked)).fetchall() == [("1:b:7", "b")]
            made = [await app.enqueue(conn, Mail(), unique_key="u", workspace_id=each) for each in (*TENANTS, *TENANTS)]
        assert len({each.id for each in made}) == len(TENANTS)


def test_the_limit_of_a_key_is_a_tenants_own(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as conn:
        register(conn, "mail.send", key_concurrency=1)
        for tenant in ("a", "a", "b", "b", None, None):
            conn.execute(
                "select outrider.enqueue('mail.send', '{\"n\": 0}', key => 'k', workspace_id => %s::text)", [tenant]
            )
        first = claim(conn, 6)
        assert len(first.jobs) == 3
        assert claim(conn, 6).jobs == []
        done(conn, *first.jobs[:1])
        assert len(claim(conn, 6).jobs) == 1, "the one of the same tenant comes forward, and no other"
