"""The database is away for a while: every open page says so, and the looks go on as soon as it is back."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from contextlib import AsyncExitStack, suppress
from datetime import timedelta

import httpx
import pytest
from psycopg import OperationalError
from tests.dashboard.conftest import TOKEN, Serve, log_in
from tests.dashboard.shop import make_app
from tests.proxy import Proxy

from outrider import Outrider
from outrider.dashboard import Dashboard, database, poller
from outrider.dashboard.server import serving
from outrider.errors import DatabaseUnavailable


@pytest.mark.parametrize("fault", ["refuse", "black_hole"])
async def test_looks_go_on_after_an_outage(
    shop: Outrider, dsn: str, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """In a black hole nothing is answered, and no connection is closed."""
    monkeypatch.setattr(poller, "PATIENCE", 1.0)
    monkeypatch.setattr(poller, "LONGEST", 2.0)
    with Proxy(dsn) as proxy:
        app = make_app(proxy.dsn)
        async with (
            Dashboard(app, token=TOKEN) as board,
            serving(board, port=0) as address,
            httpx.AsyncClient(base_url=address, timeout=60) as client,
            asyncio.timeout(90),
        ):
            await log_in(client)
            watched = board.poller
            async with client.stream("GET", "/live/now") as response:
                lines = response.aiter_lines()

                async def heard(wanted: str) -> None:
                    async for line in lines:
                        if line.startswith("data: ") and wanted in "".join(json.loads(line[6:])["parts"].values()):
                            return

                await heard("dash.invoice")
                getattr(proxy, fault)()
                if fault == "refuse":
                    proxy.cut()
                await heard("<strong>Not known</strong>")
                assert watched.snapshot.status is not None
                shown = (await client.get("/")).text
                assert "All is well" not in shown
                assert "dash.invoice" in shown, "what was known is still shown"
                proxy.heal()
                looks = watched.looks
                while watched.looks < looks + 2:
                    await watched.after(watched.snapshot.number)
                assert watched.snapshot.error is None


async def test_a_wire_that_is_lost_and_never_cut_blinds_no_page(
    shop: Outrider, dsn: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """New connections pass; what goes over the old ones is never answered, and nobody closes them."""
    del shop
    monkeypatch.setattr(database, "LONGEST", 1.0)
    monkeypatch.setattr(database, "GRACE", 0.2)
    monkeypatch.setattr(poller, "PATIENCE", 1.0)
    monkeypatch.setattr(poller, "LONGEST", 1.0)
    monkeypatch.setattr(poller, "ROUND", 1.0)
    monkeypatch.setattr(poller, "AGAIN", timedelta(seconds=0.1))
    with Proxy(dsn) as proxy:
        async with (
            Dashboard(make_app(proxy.dsn), token=TOKEN) as board,
            serving(board, port=0) as address,
            httpx.AsyncClient(base_url=address, timeout=60) as client,
            asyncio.timeout(90),
        ):
            await log_in(client)
            async with AsyncExitStack() as stack:  # all sessions are open
                await stack.enter_async_context(board.database.looking(60))
                for _ in range(database.CONNECTIONS):
                    await stack.enter_async_context(board.database.reading(60))
            proxy.lose()
            lost = await asyncio.gather(*(client.get("/audit") for _ in range(database.CONNECTIONS)))
            assert {each.status_code for each in lost} == {503}
            assert all("has not answered within 1 s" in each.text for each in lost)
            assert (await client.get("/audit")).status_code == 200
            with board.poller.watching():
                while board.poller.looks < 2 or board.poller.snapshot.error:
                    await board.poller.after(board.poller.snapshot.number)
                monkeypatch.setattr(poller, "ROUND", 60.0)
                while board.poller.snapshot.findings is None:
                    await board.poller.after(board.poller.snapshot.number)
    assert "query not terminated after cancellation" not in caplog.text, (
        "psycopg has waited for it; older ones never end"
    )


async def test_sessions_notice_a_lost_wire(shop: Outrider, dsn: str) -> None:
    """Those of actions too, which have no time limit. By default they would wait for 15 min, or for 2 h if they are idle."""
    del shop
    with Proxy(dsn) as proxy:
        async with Dashboard(make_app(proxy.dsn), token=TOKEN) as board:
            for opened in (board.database.reading(), board.database.acting()):
                async with opened as conn:
                    with socket.socket(fileno=os.dup(conn.pgconn.socket)) as wire:
                        assert 0 < wire.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) <= 30_000
                        assert wire.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) <= 30


async def test_slow_pages_do_not_delay_the_look(
    shop: Outrider, dsn: str, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else every page would say that the database does not answer."""
    del shop, dsn
    async with serve() as client, AsyncExitStack() as stack, asyncio.timeout(60):
        await log_in(client)
        board = client.board  # type: ignore[attr-defined]
        for _ in range(database.CONNECTIONS):
            await stack.enter_async_context(board.database.reading())
        monkeypatch.setattr(database, "PATIENCE", 0.1)
        busy = await client.get("/audit")
        assert busy.status_code == 503
        assert "The dashboard is busy" in busy.text
        assert "OUTRIDER_POOL_SIZE" not in busy.text
        with board.poller.watching():
            while board.poller.looks < 2:
                await board.poller.after(board.poller.snapshot.number)
        assert board.poller.snapshot.error is None


async def test_a_server_that_is_down_is_not_a_pool_that_is_too_small(
    shop: Outrider, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    del shop
    monkeypatch.setattr(database, "PATIENCE", 1)
    with Proxy(dsn) as proxy:
        async with Dashboard(make_app(proxy.dsn), token=TOKEN) as board:
            async with board.database.reading():
                pass
            proxy.refuse()
            proxy.cut()
            while True:
                with suppress(OperationalError):
                    with pytest.raises(DatabaseUnavailable, match="is down or cannot be reached"):
                        async with board.database.reading() as conn:
                            await conn.execute("select")
                    break


async def test_looks_and_attempts_to_connect_never_rest_for_long(shop: Outrider, dsn: str) -> None:
    """By default the pool rests for up to 5 min."""
    del shop
    assert max(map(poller.rest_after, (0.0, 0.5, 10.0, 1e6))) <= 30
    async with Dashboard(make_app(dsn), token=TOKEN) as board:
        async with board.database.reading():
            pass
        assert board.database._pool is not None
        pool = board.database._pool._pool
        assert pool.reconnect_timeout <= 5
        assert pool.timeout <= 5


async def test_the_attempts_to_connect_do_not_become_rare(
    shop: Outrider, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By default the pool doubles the time to the next attempt, for 5 min."""
    del shop
    monkeypatch.setattr(database, "PATIENCE", 1)
    with Proxy(dsn) as proxy:
        async with Dashboard(make_app(proxy.dsn), token=TOKEN) as board, asyncio.timeout(60):
            async with board.database.reading():
                pass
            proxy.refuse()
            proxy.cut()
            for _ in range(3):
                with pytest.raises((DatabaseUnavailable, OperationalError)):
                    async with board.database.reading() as conn:
                        await conn.execute("select")
            proxy.heal()
            while True:
                with suppress(DatabaseUnavailable):
                    async with board.database.reading() as conn:
                        await conn.execute("select")
                        break
