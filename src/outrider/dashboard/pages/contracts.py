"""Contracts: the catalogue of event types, one of them in full, and what differs."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from outrider.dashboard.contracts import EventType, catalogued, declared_by
from outrider.dashboard.pages.inputs import wanted
from outrider.dashboard.rendering import page
from outrider.postgres.admin import activity

if TYPE_CHECKING:
    from outrider.dashboard.site import Dashboard

SEARCHED = 20_000
"""The newest events, whose types, versions and sources are shown."""


async def show(board: Dashboard, request: Request) -> Response:
    context = wanted(request, "context")
    found = await _catalogued(board)
    types = [each for each in found if context is None or each.concerns(context)]
    return await page(
        board, request, "contracts.html", "contracts", types=types, context=context, searched=SEARCHED,
        folder=board.contracts,
    )  # fmt: skip


async def show_one(board: Dashboard, request: Request) -> Response:
    name = request.path_params["type"]
    found = next((each for each in await _catalogued(board) if each.name == name), None)
    if found is None:
        raise HTTPException(404, f"Nobody is known to publish or to take {name}.")
    return await page(board, request, "contract.html", "contracts", one=found, folder=board.contracts)


async def _catalogued(board: Dashboard) -> list[EventType]:
    snapshot = await board.poller.current()
    if snapshot.status is None:
        return []
    async with board.database.reading() as conn:
        flows = await activity.traffic(conn, board.database.schema, most=SEARCHED)
    # In a thread: comparing hundreds of classes with their snapshots takes a while.
    known = await asyncio.to_thread(declared_by, board.app, board.contracts)
    today = datetime.now(UTC).date()
    return await asyncio.to_thread(catalogued, snapshot.status, flows, known, board.app.subscriptions, today)
