"""The dashboard ends at once, whatever its sessions do. Its tasks survive errors that nobody expects."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from tests.dashboard.conftest import Serve, act, log_in

from outrider.dashboard import database, live, poller, runs
from outrider.errors import ConfigError

ASLEEP = """
select count(*) from pg_stat_activity
where application_name = 'outrider dashboard' and datname = current_database() and wait_event = 'PgSleep'
"""
PAGES = ("/", "/topology", "/subscriptions", "/workers", "/streams", "/rollups", "/jobs", "/schedules", "/log")


@pytest.mark.parametrize("name", ["status", "examine_all"])
async def test_it_closes_while_a_transaction_of_the_look_or_of_the_doctor_runs(
    serve: Serve, dsn: str, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The cancelled statement leaves a failed transaction. Its error must not hide that the task is to end."""

    async def stuck(*given: Any) -> Any:
        conn = next(each for each in given if isinstance(each, psycopg.AsyncConnection))
        await conn.execute("begin")
        await conn.execute("select pg_sleep(600)")

    monkeypatch.setattr(poller, name, stuck)
    with psycopg.connect(dsn, autocommit=True) as other:
        async with serve() as client, asyncio.timeout(60):
            watched = client.board.poller  # type: ignore[attr-defined]
            with watched.watching():
                while other.execute(ASLEEP).fetchone() != (1,):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            await asyncio.wait_for(watched.close(), 40)
        assert other.execute(ASLEEP).fetchone() == (0,)


async def test_the_doctor_comes_again_after_an_error_that_nobody_expects(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rounds: list[int] = []

    async def examine(*_: Any) -> list[Any]:
        rounds.append(1)
        if len(rounds) == 1:
            raise ValueError("no such thing")
        return []

    monkeypatch.setattr(poller, "examine_all", examine)
    monkeypatch.setattr(poller, "EXAMINE", timedelta(seconds=0.01))
    async with serve() as client:
        await log_in(client)
        watched = client.board.poller  # type: ignore[attr-defined]
        with watched.watching():
            async with asyncio.timeout(60):
                while watched.snapshot.findings is None:
                    await watched.after(watched.snapshot.number)
    assert "no such thing" in caplog.text


async def test_an_action_that_fails_as_nobody_expects_is_not_done(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(*_: Any, **__: Any) -> Any:
        raise ValueError("no such thing")

    monkeypatch.setattr("outrider.postgres.admin.subscriptions.pause", fails)
    async with serve(actions=["pause"]) as client:
        await log_in(client)
        page = "/subscriptions/dash.invoice"
        shown = await act(client, f"{page}/pause", page, reason="a test")
        assert "Not done: ValueError: no such thing" in shown.text


async def test_the_next_look_does_not_wait_because_this_one_waited_for_a_session(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only what the look costs the database counts. The clock of the poller goes an hour on while it waits."""
    late = 0.0
    monkeypatch.setattr(poller, "monotonic", lambda: time.monotonic() + late)
    monkeypatch.setattr(poller, "examine_all", lambda *_: asyncio.Event().wait())
    async with serve() as client, AsyncExitStack() as stack:
        board = client.board  # type: ignore[attr-defined]
        await stack.enter_async_context(board.database.looking(60))
        for _ in range(database.CONNECTIONS):
            await stack.enter_async_context(board.database.reading())
        with board.poller.watching():
            pool = board.database._pool._pool
            async with asyncio.timeout(60):
                while pool.get_stats()["requests_waiting"] < 1:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            late = 3600.0
            await stack.aclose()
            async with asyncio.timeout(60):
                while board.poller.looks < 2:
                    await board.poller.after(board.poller.snapshot.number)


async def test_a_page_that_meets_the_end_of_the_dashboard(serve: Serve) -> None:
    async with serve() as client:
        await log_in(client)
        await client.board.poller.close()  # type: ignore[attr-defined]
        for path in PAGES:
            assert (await client.get(path)).status_code == 200, path
        for page in live.TEMPLATES:
            assert (await client.get(f"/live/{page}")).status_code == 200, page


async def test_no_action_under_way_is_forgotten_and_few_run_at_a_time(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has a session of its own. A click too many, or a script, must not use up those of the server."""
    monkeypatch.setattr(runs, "KEPT", 3)
    monkeypatch.setattr(runs, "MOST", 2)
    monkeypatch.setattr(runs, "PATIENCE", 0.01)

    async def waits(_: Any, run: runs.Run) -> None:
        await run.stop.wait()

    async def ends(_: Any, run: runs.Run) -> None:
        run.lines.append("done")

    async with serve(actions=["replay"]) as client, asyncio.timeout(60):
        board = client.board  # type: ignore[attr-defined]
        await log_in(client)
        first = await board.runs.start(runs.Run("replay", "first", "ada", "x", "/", in_chunks=True), waits)
        for n in range(5):
            short = await board.runs.start(runs.Run("replay", f"short {n}", "ada", "x", "/"), ends)
            while not short.finished:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            await asyncio.sleep(0)
        second = await board.runs.start(runs.Run("replay", "second", "ada", "x", "/"), waits)
        with pytest.raises(ConfigError, match="2 actions are under way"):
            await board.runs.start(runs.Run("replay", "third", "ada", "x", "/"), ends)
        assert "short 0" not in {each.title for each in board.runs._runs.values()}
        shown = await act(client, f"/runs/{first.id}/stop", f"/runs/{first.id}")
        assert shown.status_code == 200
        second.stop.set()
        while not (first.finished and second.finished):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
