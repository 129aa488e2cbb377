"""A worker that is stopped (SIGSTOP) in mid-batch: the server ends its session, and another worker goes on."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.faults.job_subject import until
from tests.faults.nursery import Nursery
from tests.oracle import Oracle
from tests.pgbouncer import PgBouncer

from outrider import Event, HandlerContext, Outrider
from outrider.postgres import generations, statement
from outrider.signals import Signal, Troubled
from outrider.worker import batch_runner, handler

EVENTS = 40
LONGEST = 60.0


class Put(Event, type="frozen.put", key="key"):
    n: int
    key: str = "k"


def freezing(dsn: str, outside: Path | None = None) -> Outrider:
    """The first worker stops while it handles the third event."""
    app = Outrider(context="frozen", dsn=dsn, poll=0.2)
    first = outside is not None and not outside.exists()
    if outside is not None:  # a process of its own, whose sessions may be idle for 0.8 s
        handler.MARGIN = 0.3
        outside.touch()

    @app.handler(Put, name="frozen.put", timeout=0.5)
    async def put(event: Put, ctx: HandlerContext) -> None:
        async with ctx.tx.cursor() as cursor:  # a pipeline, after which the server would wait for ever
            await cursor.executemany("insert into effect values (%s, %s)", [(event.n, os.getpid())])
        if first and event.n == 3:
            signal.raise_signal(signal.SIGSTOP)

    return app


@pytest.mark.verify
@pytest.mark.parametrize("pooled", [False, True], ids=["direct", "pgbouncer"])
async def test_a_stopped_worker_loses_its_partition(database: str, tmp_path: Path, pooled: bool) -> None:
    """It takes the second in which the server waits for the stopped worker. What it had done is undone and done anew by
    another; when it wakes it goes on, and nothing is done twice."""
    with psycopg.connect(database, autocommit=True) as conn, ExitStack() as stack:
        conn.execute("create table effect (n int, pid int)")
        dsn = stack.enter_context(PgBouncer(database, "transaction")).dsn if pooled else database
        async with freezing(database) as app:
            await app.migrate()
            async with app.connect() as producing, producing.transaction():
                await app.publish_many(producing, [Put(n=n) for n in range(EVENTS)])

            async with Nursery(dsn, Oracle(tmp_path), "tests.faults.test_frozen:freezing") as nursery:
                first = await nursery.start()
                await until(lambda: _stopped(first))
                second = await nursery.start()
                async with asyncio.timeout(LONGEST):
                    await until(lambda: conn.execute("select count(*) from effect").fetchone() == (EVENTS,))
                assert conn.execute("select distinct pid from effect").fetchall() == [(second,)]
                assert _stopped(first)
                await nursery.kill(second, signal.SIGTERM)
                os.kill(first, signal.SIGCONT)
                async with app.connect() as producing, producing.transaction():
                    await app.publish(producing, Put(n=EVENTS))
                await until(lambda: conn.execute("select pid from effect where n = %s", [EVENTS]).fetchone())
                assert conn.execute("select count(*), count(distinct n) from effect").fetchone() == (EVENTS + 1,) * 2
                assert conn.execute("select pid from effect where n = %s", [EVENTS]).fetchone() == (first,)


def opening(dsn: str, outside: Path | None = None) -> Outrider:
    """The first worker of generation 7 stops when it has opened it, before COMMIT."""
    app = Outrider(context="frozen", dsn=dsn, poll=0.2, generation=0 if outside is None else 7)

    @app.handler(Put, name="frozen.put")
    async def put(event: Put) -> None:
        pass

    if outside is not None and not outside.exists():  # a process of its own
        outside.touch()
        really, generations.SILENCE = statement.fetch_call, "1s"

        async def stopped(conn: Any, name: str, *args: Any) -> Any:
            answer = await really(conn, name, *args)
            if name == "open_generation":
                generations.fetch_call = really  # type: ignore[attr-defined]
                signal.raise_signal(signal.SIGSTOP)
            return answer

        generations.fetch_call = stopped  # type: ignore[attr-defined, assignment]
    return app


@pytest.mark.verify
async def test_a_worker_that_is_stopped_while_it_opens_a_generation(database: str, tmp_path: Path) -> None:
    """The server waits for it for a second. Then the cursors are free, and when it wakes it opens the generation anew."""
    with psycopg.connect(database, autocommit=True) as conn:
        async with opening(database) as app:
            await app.migrate()
        async with Nursery(database, Oracle(tmp_path), "tests.faults.test_frozen:opening") as nursery:
            worker = await nursery.start()
            await until(lambda: _stopped(worker))
            with conn.transaction():
                conn.execute(f"set local lock_timeout = '{LONGEST:.0f}s'".encode())
                locked = conn.execute("select generation from outrider.cursor for update").fetchall()
            assert locked == [(0,)]
            assert _stopped(worker)
            os.kill(worker, signal.SIGCONT)
            await until(lambda: conn.execute("select from outrider.cursor where generation = 7").fetchone() is not None)


def _stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


@pytest.mark.parametrize("batch", [False, True])
async def test_a_slow_worker_does_not(database: str, monkeypatch: pytest.MonkeyPatch, batch: bool) -> None:
    """Several slow events that send no statement: together they take longer than a session may be idle, which is 1.6 s."""
    monkeypatch.setattr(handler, "MARGIN", 0.1)
    monkeypatch.setattr(batch_runner, "SILENT", 0.05)
    app = Outrider(context="frozen", dsn=database)

    async def slow(event: Put) -> None:
        await asyncio.sleep(0.1)

    async def slow_batch(events: list[Put]) -> None:
        await asyncio.sleep(0.1)

    app.handler(Put, name="frozen.slow", timeout=1.5)(slow_batch if batch else slow)
    async with app:
        await app.migrate()
        async with app.connect() as conn, conn.transaction():
            for n in range(24):
                await app.publish(conn, Put(n=n), workspace_id=f"w{n}")
        heard: list[Signal] = []
        app.signals.listen(heard.append)
        assert (await app.drain(raise_on_failure=True)).handled == 24
    assert not [each for each in heard if isinstance(each, Troubled)]
