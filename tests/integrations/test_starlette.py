"""The lifespan: what is open while a service runs, in which order it begins and ends."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from tests.worker.shop import Placed

from outrider import HandlerContext, Outrider
from outrider.errors import ConfigError, CursorError
from outrider.integrations.starlette import WorkerOptions, lifespan
from outrider.signals import Settled, WorkerDown, WorkerUp
from outrider.testing import expect

pytestmark = pytest.mark.verify


def shop(dsn: str) -> Outrider:
    app = Outrider(context="shop", dsn=dsn)

    @app.handler(Placed, name="shop.look")
    async def look(_: Placed, ctx: HandlerContext) -> None:
        await ctx.tx.execute("select 1")

    return app


@pytest.mark.parametrize("service", [FastAPI, Starlette])
async def test_the_app_is_open_and_its_worker_runs(empty_database: str, service: type[Any]) -> None:
    app = shop(empty_database)
    api = service(lifespan=lifespan(app, migrate=True, worker=True, handlers=["shop.*"], grace="5s"))
    async with expect(app, WorkerDown) as down, expect(app, WorkerUp), api.router.lifespan_context(api) as state:
        assert state == {"outrider": app}
        async with expect(app, Settled), app.connect() as conn:
            await app.publish(conn, Placed(customer="a"))
    assert down[0].clean
    with pytest.raises(ConfigError, match="not open"):
        async with app.connect():
            pass


async def test_the_services_own_lifespan_is_inside(database: str) -> None:
    app, steps = shop(database), []

    @asynccontextmanager
    async def own(service: object) -> AsyncIterator[dict[str, Any]]:
        async with app.connect():
            steps.append(f"begun for {service}")
        yield {"engine": "mine"}
        async with app.connect():
            steps.append("ended while the app was open")

    async with lifespan(app, inside=own)("the service") as state:
        assert state == {"outrider": app, "engine": "mine"}
    assert steps == ["begun for the service", "ended while the app was open"]


async def test_a_start_that_fails_leaves_nothing_open(database: str) -> None:
    app = shop(database)

    @asynccontextmanager
    async def own(_: object) -> AsyncIterator[None]:
        raise RuntimeError("no engine")
        yield

    with pytest.raises(RuntimeError, match="no engine"):
        async with lifespan(app, inside=own)(None):
            pass
    async with app:
        pass


async def test_a_worker_that_ends_is_heard_of_at_once(database: str, caplog: pytest.LogCaptureFixture) -> None:
    app = shop(database)

    async def serve() -> None:
        async with lifespan(app, worker=True)(None):
            async with expect(app, WorkerDown), app.connect() as conn:
                await conn.execute("delete from outrider.subscription")
                await app.publish(conn, Placed(customer="a"))
            assert "the worker has ended: CursorError" in caplog.text

    with pytest.raises(CursorError, match="no cursor for subscription"):
        await serve()


def test_worker_options_without_a_worker() -> None:
    with pytest.raises(TypeError, match="grace is for a worker: pass worker=True"):
        lifespan(Outrider(dsn="x"), grace="5s")


def test_it_takes_the_options_of_a_worker() -> None:
    assert {*WorkerOptions.__annotations__} == {*inspect.signature(Outrider.worker).parameters} - {"self"}
