"""Behind a real PgBouncer in transaction mode: everything goes through it but the listener, which it would make deaf."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg.sql import SQL, Identifier
from tests.pgbouncer import PgBouncer

from outrider import Event, HandlerContext, Job, JobContext, Outrider
from outrider.dashboard import Dashboard
from outrider.postgres import connection
from outrider.postgres.admin.status import status
from outrider.signals import Buried, Failed, JobFailed, JobsCompleted, ListenerUp, Signal
from outrider.testing import expect

pytestmark = pytest.mark.verify

EVENTS = 120


class Placed(Event, type="bounced.placed", key="n"):
    n: int


class Send(Job, type="bounced.send"):
    n: int


async def test_events_and_jobs_exactly_once(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as conn, PgBouncer(database, "transaction") as bouncer:
        conn.execute("create table effect (kind text, n int)")
        app = Outrider(context="bounced", dsn=bouncer.dsn, listen_dsn=database)

        @app.handler(Placed, name="bounced.count")
        async def count(event: Placed, ctx: HandlerContext) -> None:
            await ctx.tx.execute("insert into effect values ('event', %s)", [event.n])
            await app.enqueue(ctx.tx, Send(n=event.n))

        @app.job(Send, keep="1d")
        async def send(job: Send) -> None:
            await asyncio.to_thread(conn.execute, "insert into effect values ('job', %s)", [job.n])

        wrong: list[Signal] = []
        jobs, done = 0, asyncio.Event()

        def hear(signal: Signal) -> None:
            nonlocal jobs
            if isinstance(signal, Failed | JobFailed | Buried):
                wrong.append(signal)
            if isinstance(signal, JobsCompleted):
                jobs += signal.jobs
                done.set() if jobs >= EVENTS else None

        app.signals.listen(hear)
        async with app:
            await app.migrate()
            async with expect(app, ListenerUp), app.worker() as worker:
                for start in range(0, EVENTS, 10):
                    async with app.connect() as own, own.transaction():
                        await app.publish_many(own, [Placed(n=n) for n in range(start, start + 10)])
                async with asyncio.timeout(60):
                    await done.wait()
                assert worker.listening
        assert wrong == []
        effects = "select kind, count(*), count(distinct n) from effect group by kind order by kind"
        assert conn.execute(effects).fetchall() == [("event", EVENTS, EVENTS), ("job", EVENTS, EVENTS)]
        receipts = "select handler_name, count(*) from outrider.event_handled group by 1 order by 1"
        assert conn.execute(receipts).fetchall() == [("bounced.count", EVENTS), ("bounced.send", EVENTS)]


HOSTILE = {
    "DateStyle": "SQL, DMY",
    "IntervalStyle": "sql_standard",
    "standard_conforming_strings": "off",
    "array_nulls": "off",
    "default_transaction_isolation": "serializable",
    "statement_timeout": "9s",
    "idle_in_transaction_session_timeout": "9s",
}
SHOWN = """select now(), interval '36 hours', current_setting('transaction_isolation'), current_setting('statement_timeout'),
           current_setting('idle_in_transaction_session_timeout')"""
LEFT = """select name from pg_settings where source = 'session' and name not like 'transaction%'
          and name not in ('application_name', 'client_encoding', 'DateStyle', 'TimeZone', 'standard_conforming_strings')"""


async def test_settings_of_the_role_reach_no_transaction_of_ours_and_ours_nobody_else(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as conn:
        for name, value in HOSTILE.items():
            whose = SQL("{} in database {}").format(Identifier(conn.info.user), Identifier(conn.info.dbname))
            conn.execute(SQL("alter role {} set {} = {}").format(whose, Identifier(name), value))
    with PgBouncer(database, "transaction") as bouncer:
        app, seen = Outrider(context="bounced", dsn=bouncer.dsn, listen_dsn=database), list[Any]()

        @app.handler(Placed, name="bounced.count")
        async def count(event: Placed, ctx: HandlerContext) -> None:
            seen.append(await (await ctx.tx.execute(SHOWN)).fetchone())
            await app.enqueue(ctx.tx, Send(n=event.n))

        @app.job(Send)
        async def send(job: Send, ctx: JobContext) -> None:
            async with ctx.connect() as own:
                seen.append(await (await own.execute(SHOWN)).fetchone())

        async with app:
            await app.migrate()
            async with app.worker(), expect(app, JobsCompleted), app.connect() as own, own.transaction():
                await app.publish(own, Placed(n=1))
            async with await connection.connect(bouncer.dsn, autocommit=True) as own:
                assert (await status(own, "outrider")).subscriptions
        hours, committed = timedelta(hours=36), "read committed"
        assert [row[1:] for row in seen] == [(hours, committed, "0", "35s"), (hours, committed, "0", "9s")]
        with psycopg.connect(bouncer.dsn, autocommit=True) as other:
            assert other.execute(LEFT).fetchall() == []
            assert other.execute("show DateStyle").fetchone() == ("SQL, DMY",)


async def test_no_session_of_ours_prepares(database: str) -> None:
    """The same name would be another statement in the next session of the server, with as many parameters."""
    with PgBouncer(database, "transaction") as bouncer:
        app = Outrider(context="bounced", dsn=bouncer.dsn)
        async with app, app.connect() as pooled, await connection.connect(bouncer.dsn) as own:
            with connection.connect_sync(bouncer.dsn) as blocking:
                assert [each.prepare_threshold for each in (pooled, own, blocking)] == [None, None, None]
    app = Outrider(context="bounced", dsn=database)
    async with app, app.connect() as conn:
        assert conn.prepare_threshold is not None


async def test_pages_of_the_dashboard_can_only_read(database: str) -> None:
    """Statements of pages run in transactions of their own there: settings of the session would reach other clients."""
    with PgBouncer(database, "transaction") as bouncer:
        app = Outrider(context="bounced", dsn=bouncer.dsn)
        async with Dashboard(app, token="a token that nobody can guess") as board, board.database.reading() as conn:
            assert isinstance(conn, connection.Wire)
            assert conn.pooled
            with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
                async with conn.transaction():
                    await conn.execute("create table written (n int)")
            async with conn.transaction():
                limit = await (await conn.execute("show statement_timeout")).fetchone()
        assert limit == ("3s",)
        with psycopg.connect(bouncer.dsn) as other:
            other.execute("create table written (n int)")
