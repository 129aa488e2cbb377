"""The sessions of a worker: one that does not move in the midst of a batch is ended by the server."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import psycopg
import pytest
from psycopg import AsyncConnection

from outrider import Event, Outrider
from outrider.errors import CursorError
from outrider.postgres import handler_batches, relays
from outrider.postgres.log import TakeRequest
from outrider.postgres.tenant_context import home_of
from outrider.postgres.worker_sessions import WorkerSessions

GONE = "select count(*) from pg_stat_activity where pid = %s"


class Noted(Event, type="lanes.noted"):
    n: int


async def take(conn: Any) -> object:
    return await handler_batches.take(conn, TakeRequest("lanes.reader"), "outrider")


async def relay(conn: Any) -> object:
    return await relays.take(conn, relays.Take("lanes.reader", 10, 100, None, None), "outrider")


@pytest.mark.parametrize("held_by", [take, relay])
async def test_a_session_that_does_not_move_loses_its_partition(database: str, held_by: Any) -> None:
    app = Outrider(context="lanes", dsn=database)
    app.reader(name="lanes.reader")
    async with app:
        await app.migrate()
        async with app.connect() as conn, conn.transaction():
            await app.publish(conn, Noted(n=1))
            if held_by is relay:
                await conn.execute("update outrider.subscription set kind = 'relay'")
    lanes = WorkerSessions(database, 1, idle=0.2)
    async with lanes.session("lanes.reader") as conn:
        await held_by(conn)
        with psycopg.connect(database, autocommit=True) as other:
            deadline = time.monotonic() + 60
            while other.execute(GONE, [conn.info.backend_pid]).fetchone() != (0,):
                assert time.monotonic() < deadline, "the server keeps the session, and with it the partition"
        conn.pgconn.finish()
    await lanes.close()


@pytest.mark.parametrize("asked", [take, relay])
async def test_an_error_in_a_pipeline_leaves_a_session_that_works(database: str, asked: Any) -> None:
    lanes = WorkerSessions(database, 1, idle=30)
    for _ in range(20):  # the answer may come before or after all is sent
        async with lanes.session("lanes.reader") as conn:
            with pytest.raises(CursorError, match=r"there is no (cursor|relay)"):
                await asked(conn)
            await handler_batches.roll_back(conn)
            assert (await (await conn.execute("select 1")).fetchall()) == [(1,)]
    await lanes.close()


@pytest.mark.parametrize("again", [False, True])
async def test_who_leaves_while_a_session_is_made_ready_leaves_none_behind(
    database: str, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    """The fixture counts the sessions. `again`: one that is there is made ready for another handler."""
    lanes, begun = WorkerSessions(database, 1, 30), asyncio.Event()
    if again:
        async with lanes.session("a") as conn:
            home_of(conn).leave(None, None)

    async def never(*_: object, **__: object) -> None:
        begun.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(AsyncConnection, "execute", never)

    async def enter() -> None:
        async with lanes.session("b"):
            pass

    entering = asyncio.create_task(enter())
    async with asyncio.timeout(30):
        await begun.wait()
    entering.cancel()
    with pytest.raises(asyncio.CancelledError):
        await entering
    monkeypatch.undo()
    await lanes.close()


@pytest.mark.parametrize("used", [False, True])
async def test_a_session_is_reset_for_another_handler_if_one_has_used_it(database: str, used: bool) -> None:
    lanes = WorkerSessions(database, 1)
    async with lanes.session("lanes.one") as conn:
        await conn.execute("set lanes.trace = 'behind'")
        if used:
            home_of(conn).leave(None, None)
    async with lanes.session("lanes.two") as conn:
        row = await (await conn.execute("select current_setting('lanes.trace', true)")).fetchone()
    assert row == ("" if used else "behind",)
    await lanes.close()


async def test_a_session_is_reset_for_a_handler_with_another_timeout(database: str) -> None:
    lanes = WorkerSessions(database, 1, idles={"lanes.slow": 77.0})
    for owner, idle in (("lanes.one", "30s"), ("lanes.slow", "77s"), ("lanes.two", "30s")):
        async with lanes.session(owner) as conn:
            row = await (await conn.execute("show idle_in_transaction_session_timeout")).fetchone()
            assert row == (idle,)
    await lanes.close()
