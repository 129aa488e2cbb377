"""A key is its tenant's own: the same one of another tenant is another one, for receipts, order, unique jobs and limits."""

from __future__ import annotations

import re
from typing import Any

import psycopg
import pytest
from tests.postgres.jobs.sqljobs import claim, done, register

from outrider import Event, HandlerContext, Job, JobContext, Outrider, RetryPolicy
from outrider.postgres.schema import migrate

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


def test_what_is_there_is_converted(database: str) -> None:
    """The statements of the migration, on rows as the release before wrote them."""
    step = next(each for each in migrate.known() if each.name == "tenants")
    statements = re.findall(r"^update .*?;$", step.sql.replace("/*schema*/", "outrider."), re.MULTILINE | re.DOTALL)
    assert len(statements) == 4
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute("alter table outrider.delivery add column queue text")  # jobs were there, too
        conn.execute("select outrider.register('a.handler', 'handler', 'a', '{x.y}')")
        for tenant in ("é", None):
            for key in ("k", None):
                conn.execute(
                    "select outrider.publish('x.y', '{}', '7', %s::text, workspace_id => %s::text)",
                    [key, tenant],
                )
        conn.execute(
            """insert into outrider.event_handled (handler_name, idempotency_key, event_id, seq, generation, content_class)
               select 'h' || o.seq, coalesce(o.event_type || ':' || o.idempotency_key, o.id::text), o.id, o.seq, 0,
                      'internal'
               from outrider.outbox as o"""
        )
        conn.execute(
            """insert into outrider.delivery (
                   subscription, partition, seq, event_id, event_type, ordering_key, status, head, reached, run_at)
               select 'a.handler', 0, o.seq, o.id, o.event_type, o.aggregate_id, 'pending', false, true, now()
               from outrider.outbox as o"""
        )
        for _ in range(2):  # whoever runs it twice changes nothing
            for each in statements[:2]:
                conn.execute(each.encode())
        for each in statements[2:]:
            conn.execute(each.encode())
        rows: list[tuple[Any, ...]] = conn.execute(
            "select idempotency_key from outrider.event_handled order by seq"
        ).fetchall()
        ids = conn.execute("select id::text from outrider.outbox order by seq").fetchall()
        assert rows == [("1:é:x.y:k",), ids[1], ("x.y:k",), ids[3]]
        lines = conn.execute("select ordering_key, workspace_id from outrider.delivery order by seq").fetchall()
        assert lines == [("1:é:7", "é"), ("1:é:7", "é"), ("7", None), ("7", None)]
