"""A hundred open pages cost the database one look per second in all, and each of them hears what changes."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import timedelta
from itertools import pairwise
from typing import Any

import httpx
import psycopg
import pytest
from tests.dashboard.conftest import Serve, act, log_in

from outrider.dashboard import live, poller
from outrider.doctor.finding import Severity
from outrider.errors import OutriderError
from outrider.postgres.admin.status import status

PAGES = 100
SESSIONS = """
select count(*) from pg_stat_activity
where application_name = 'outrider dashboard' and datname = current_database()
"""


async def heard(lines: AsyncIterator[str], wanted: str) -> str:
    """Reads the stream until a message holds the text."""
    async for line in lines:
        if line.startswith("data: ") and wanted in (told := json.loads(line[6:])["parts"]).get("live", ""):
            return str(told["live"])
    raise AssertionError("the stream ended")


async def test_a_hundred_pages_share_one_look(serve: Serve, dsn: str) -> None:
    async with serve() as client, AsyncExitStack() as stack:
        await log_in(client)
        poller = client.board.poller  # type: ignore[attr-defined]
        limits = httpx.Limits(max_connections=PAGES + 5)
        many = await stack.enter_async_context(
            httpx.AsyncClient(base_url=client.base_url, cookies=client.cookies, limits=limits, timeout=60)
        )
        streams = [
            (
                await stack.enter_async_context(many.stream("GET", f"/live/{('now', 'subscriptions')[n % 2]}"))
            ).aiter_lines()
            for n in range(PAGES)
        ]
        await asyncio.gather(*(heard(each, "dash.invoice") for each in streams))
        assert poller.watchers == PAGES
        before, looks = poller.snapshot.number, poller.looks
        with psycopg.connect(dsn) as conn:
            conn.execute("select outrider.register('dash.newcomer', 'reader', 'dash', null)")
        await asyncio.gather(*(heard(each, "dash.newcomer") for each in streams))
        assert poller.looks - looks <= poller.snapshot.number - before + 1, "one look per snapshot, however many pages"
        with psycopg.connect(dsn) as conn:
            [(sessions,)] = conn.execute(SESSIONS).fetchall()
        assert 1 <= sessions <= 3


async def test_a_hundred_pages_send_no_more_statements_than_one(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every statement of the dashboard goes through a cursor of psycopg."""
    counted, execute, looks_begun = [0], psycopg.AsyncCursor.execute, list[tuple[float, int]]()

    async def counting(self: Any, query: Any, *args: Any, **options: Any) -> Any:
        counted[0] += 1
        return await execute(self, query, *args, **options)

    async def look(*args: Any) -> Any:
        looks_begun.append((time.monotonic(), counted[0]))
        return await status(*args)

    monkeypatch.setattr(psycopg.AsyncCursor, "execute", counting)
    monkeypatch.setattr("outrider.dashboard.poller.status", look)
    monkeypatch.setattr("outrider.dashboard.poller.EXAMINE", timedelta(days=1))
    async with serve() as client, AsyncExitStack() as stack:
        await log_in(client)
        poller = client.board.poller  # type: ignore[attr-defined]
        limits = httpx.Limits(max_connections=PAGES + 5)
        many = await stack.enter_async_context(
            httpx.AsyncClient(base_url=client.base_url, cookies=client.cookies, limits=limits, timeout=60)
        )

        streams: list[AsyncIterator[str]] = []

        async def open_pages(number: int) -> None:
            kinds = ("now", "topology", "subscription/dash.invoice", "log", "workers")
            for n in range(number):
                response = await stack.enter_async_context(many.stream("GET", f"/live/{kinds[n % len(kinds)]}"))
                streams.append(response.aiter_lines())
                await anext(streams[-1])

        async def per_look() -> float:
            """Statements from the beginning of a look to that of the next, for each of three."""
            first = len(looks_begun)
            while len(looks_begun) <= first + 3:
                await poller.after(poller.snapshot.number)
            return (looks_begun[first + 3][1] - looks_begun[first][1]) / 3

        await open_pages(1)
        while poller.snapshot.findings is None:
            await poller.after(poller.snapshot.number)
        alone = await per_look()
        await open_pages(PAGES - 1)
        together = await per_look()
        assert poller.watchers == PAGES
        assert alone == together <= 20
        assert min(later - begun for (begun, _), (later, _) in pairwise(looks_begun)) >= 0.99, "one look per second"


async def test_a_page_that_is_closed_is_not_looked_for(serve: Serve) -> None:
    async with serve() as client:
        await log_in(client)
        poller = client.board.poller  # type: ignore[attr-defined]
        async with client.stream("GET", "/live/now") as response:
            await heard(response.aiter_lines(), "dash.invoice")
            assert poller.watchers == 1
        while poller.watchers:
            await poller.after(poller.snapshot.number)


async def test_the_page_of_a_subscription_is_live(serve: Serve, dsn: str) -> None:
    async with serve() as client:
        await log_in(client)
        assert 'data-live="/live/subscription/dash.search"' in (await client.get("/subscriptions/dash.search")).text
        async with client.stream("GET", "/live/subscription/dash.search") as response:
            lines = response.aiter_lines()
            await heard(lines, "no worker serves it")
            with psycopg.connect(dsn) as conn:
                conn.execute("update outrider.subscription set paused_at = now() where name = 'dash.search'")
            await heard(lines, "it is paused")
        assert (await client.get("/live/nonsense/dash.search")).status_code == 404


async def test_an_open_transaction_is_named_where_it_delays(
    serve: Serve, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outrider.dashboard.delays.OPEN", timedelta(0))
    async with serve() as client:
        await log_in(client)
        with psycopg.connect(dsn, application_name="till 7") as conn:
            conn.execute("select outrider.publish('dash.placed', '{}')")
            async with client.stream("GET", "/live/subscription/dash.invoice") as response:
                told = await heard(response.aiter_lines(), "wait for its commit")
            assert f"process {conn.info.backend_pid}, till 7, idle in transaction: select outrider.publish" in told
            conn.rollback()


async def test_there_is_an_end_to_open_pages(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "MOST", 1)
    async with serve() as client:
        await log_in(client)
        async with client.stream("GET", "/live/now") as response:
            await heard(response.aiter_lines(), "dash.invoice")
            assert (await client.get("/live/now")).status_code == 503


async def test_a_database_that_is_gone_is_said(serve: Serve, dsn: str) -> None:
    async with serve() as client:
        await log_in(client)
        assert "dash.invoice" in (await client.get("/")).text
        poller = client.board.poller  # type: ignore[attr-defined]
        with psycopg.connect(dsn, autocommit=True) as conn:
            conn.execute("alter schema outrider rename to moved")
            with poller.watching():
                while poller.snapshot.error is None:
                    await poller.after(poller.snapshot.number)
            found = (await client.get("/")).text
            assert "did not answer the last look" in found
            assert "dash.invoice" in found, "what was known is still shown"
            conn.execute("alter schema moved rename to outrider")


async def test_a_page_waits_for_the_first_look_also_if_the_doctor_is_faster(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = asyncio.Event()

    async def slow(*args: Any) -> Any:
        await looked.wait()
        return await status(*args)

    async def quick(*_: Any) -> list[Any]:
        asyncio.get_running_loop().call_later(0.05, looked.set)  # the doctor's findings are published before the look
        return []

    monkeypatch.setattr(poller, "status", slow)
    monkeypatch.setattr(poller, "examine_all", quick)
    async with serve() as client:
        await log_in(client)
        for path in ("/jobs", "/", "/topology", "/subscriptions"):
            assert (await client.get(path)).status_code == 200, path


async def test_a_page_is_shown_if_the_first_look_fails(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails(*_: Any) -> Any:
        raise OutriderError("the look failed")

    monkeypatch.setattr(poller, "status", fails)
    async with serve() as client:
        await log_in(client)
        for path in ("/jobs", "/", "/topology", "/subscriptions", "/workers", "/schedules", "/streams", "/rollups"):
            shown = await client.get(path)
            assert (shown.status_code, "the look failed" in shown.text) == (200, True), path


async def test_the_charts_begin_with_the_samples_of_the_last_hour(serve: Serve, dsn: str) -> None:
    with psycopg.connect(dsn) as conn:
        conn.execute(
            """insert into outrider.sample (minute, taken_at, seq, waiting, owed, dead, handled)
               select extract(minute from at), at, n, n, 10 * n, 100 * n, 1000 * n
               from generate_series(1, 3) as n
               cross join lateral (select clock_timestamp() - (4 - n) * interval '10 min' as at) as long_ago"""
        )
    async with serve() as client:
        await log_in(client)
        await client.get("/")
        history = client.board.poller.history  # type: ignore[attr-defined]
        for value, kept in (("waiting", 3), ("owed", 30), ("dead", 300)):
            points = [each.value for each in history.highest(lambda sample, value=value: getattr(sample, value))]
            assert kept in points
            assert [each for each in points if each is not None][:3] == [kept / 3, kept * 2 / 3, kept]
        assert [round(each.value * 600, 1) for each in history.published() if each.value is not None][:2] == [1.0, 1.0]
        assert next(round(each.value * 600) for each in history.handled() if each.value is not None) == 1000


async def test_the_doctor_comes_soon_after_an_action(
    serve: Serve, events: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the first page would ask for what has been done, for up to a minute."""
    monkeypatch.setattr(poller, "EXAMINE", timedelta(hours=1))
    monkeypatch.setattr(poller, "SOON", timedelta(seconds=0.1))
    monkeypatch.setattr("outrider.doctor.checks.LETTERS", 1)
    async with serve(actions=["discard"]) as client, asyncio.timeout(60):
        await log_in(client)
        watched = client.board.poller  # type: ignore[attr-defined]

        async def finds(wanted: bool) -> None:
            while (found := watched.snapshot.findings) is None or wanted != any(
                each.check == "dead_letters" and each.severity >= Severity.warning for each in found
            ):
                await watched.after(watched.snapshot.number)

        with watched.watching():
            await finds(True)
            assert (
                "discarded"
                in (await act(client, f"/event/{events[3]}/discard", f"/event/{events[3]}", reason="x")).text
            )
            await finds(False)
