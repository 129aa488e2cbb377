"""Behind a real PgBouncer in transaction mode: everything goes through it but the listener, which it would make deaf."""

from __future__ import annotations

import asyncio

import psycopg
import pytest
from tests.pgbouncer import PgBouncer

from outrider import Event, HandlerContext, Job, Outrider
from outrider.postgres import session
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

        @app.job(Send)
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


async def test_no_session_of_ours_prepares(database: str) -> None:
    """The same name would be another statement in the next session of the server, with as many parameters."""
    with PgBouncer(database, "transaction") as bouncer:
        app = Outrider(context="bounced", dsn=bouncer.dsn)
        async with app, app.connect() as pooled, await session.connect(bouncer.dsn) as own:
            with session.connect_sync(bouncer.dsn) as blocking:
                assert [each.prepare_threshold for each in (pooled, own, blocking)] == [None, None, None]
    app = Outrider(context="bounced", dsn=database)
    async with app, app.connect() as conn:
        assert conn.prepare_threshold is not None
