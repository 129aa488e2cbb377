"""The database is away for a while: every open page says so, and the looks go on as soon as it is back."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress

import httpx
import pytest
from psycopg import OperationalError
from tests.dashboard.conftest import TOKEN, log_in
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
