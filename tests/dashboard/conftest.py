"""A shop with a dead letter, a retry, jobs and hostile texts; and its dashboard, served in this process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import httpx
import psycopg
import pytest
from tests.dashboard.shop import HOSTILE, make_app

from outrider import Outrider
from outrider.dashboard import Dashboard, database, poller
from outrider.dashboard.server import serving

TOKEN = "a token that nobody can guess"
PUBLISH = """
select outrider.publish('dash.placed', jsonb_build_object('order_id', %s::text, 'total', %s::text), key => %s)
"""


@pytest.fixture
async def shop(database: str) -> Outrider:
    """Order 1 is handled; order 2 waits for its retry, and another event of its key behind it; order 3 is a dead letter."""
    app = make_app(database)
    async with app:
        await app.migrate()
        with psycopg.connect(database) as conn:
            for key, total in (("1", "5.00"), ("2", "9.90"), ("2", "5.00"), ("3", HOSTILE)):
                conn.execute(PUBLISH, [key, total, key])
        await app.drain()
        await app.pause("dash.mail")
        with psycopg.connect(database) as conn:
            conn.execute("select outrider.enqueue('dash.mail', '{\"order_id\": \"4\"}')")
    return app


@pytest.fixture
def events(shop: Outrider) -> list[str]:
    """The ids of the events, in the order in which they were published."""
    assert shop.settings.dsn is not None
    with psycopg.connect(shop.settings.dsn) as conn:
        return [str(found) for (found,) in conn.execute("select id from outrider.outbox order by seq").fetchall()]


Serve = Callable[..., AbstractAsyncContextManager[httpx.AsyncClient]]


@pytest.fixture
def serve(shop: Outrider, monkeypatch: pytest.MonkeyPatch) -> Serve:
    """Serves the dashboard on a free port; the client is not logged in. If patient, statements and looks may take long,
    as on a busy machine."""

    @asynccontextmanager
    async def served(*, patient: bool = True, **options: Any) -> AsyncIterator[httpx.AsyncClient]:
        if patient:
            monkeypatch.setitem(database.READING, "statement_timeout", "60000")
            monkeypatch.setattr(database, "PATIENCE", 60)
            monkeypatch.setattr(poller, "PATIENCE", 60.0)
        if not options.keys() & {"token", "proxy", "authorize"}:
            options["token"] = TOKEN
        async with (
            Dashboard(shop, **options) as board,
            serving(board, port=0) as address,
            httpx.AsyncClient(base_url=address, timeout=60) as client,
        ):
            client.board = board  # type: ignore[attr-defined]
            yield client

    return served


async def log_in(client: httpx.AsyncClient, name: str = "ada") -> None:
    form = {"token": TOKEN, "name": name}
    found = await client.post("/login", data=form, headers={"Origin": str(client.base_url).rstrip("/")})
    assert found.status_code == 303, found.text


async def act(client: httpx.AsyncClient, path: str, page: str, **form: str) -> httpx.Response:
    """Sends a form as a browser does that has opened `page`."""
    shown = (await client.get(page)).text
    token = shown.partition('name="form_token" value="')[2].partition('"')[0]
    headers = {"Origin": str(client.base_url).rstrip("/")}
    return await client.post(path, data={"form_token": token, **form}, headers=headers, follow_redirects=True)


@pytest.fixture
def dsn(shop: Outrider) -> str:
    assert shop.settings.dsn is not None
    return shop.settings.dsn
