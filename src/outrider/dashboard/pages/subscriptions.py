"""One subscription: its partitions, what it tries again, and what waits behind that. Pause and resume."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from outrider.dashboard.pages.inputs import begin, need, reason_of
from outrider.dashboard.rendering import page
from outrider.dashboard.runs import Run
from outrider.postgres.admin import activity, subscriptions, waiting
from outrider.postgres.connection import AsyncSession
from outrider.signed import Signed

if TYPE_CHECKING:
    from outrider.dashboard.site import Dashboard

LISTED = 20


async def show_one(board: Dashboard, request: Request) -> Response:
    name, schema = request.path_params["name"], board.database.schema
    snapshot = await board.poller.current()
    known = {each.name: each for each in snapshot.status.subscriptions} if snapshot.status else {}
    if (standing := known.get(name)) is None:
        raise HTTPException(404, f"There is no subscription {name}.")
    async with board.database.reading() as conn:
        partitions = await activity.partitions(conn, name, schema)
        retries = await waiting.events(conn, schema, subscription=name, limit=LISTED) if standing.kind != "job" else []
    return await page(
        board, request, "subscription.html", "subscriptions",
        live=f"subscription/{quote(name)}", each=standing, partitions=partitions, retries=retries, listed=LISTED,
    )  # fmt: skip


async def pause(board: Dashboard, request: Request) -> Response:
    return await _change(board, request, "Pause")


async def resume(board: Dashboard, request: Request) -> Response:
    return await _change(board, request, "Resume")


async def _change(board: Dashboard, request: Request, verb: str) -> Response:
    user, name, schema = need(board, request, "pause"), request.path_params["name"], board.database.schema
    run = Run("pause", f"{verb} {name}", user.name, reason_of(request), f"/subscriptions/{name}")

    async def act(conn: AsyncSession, run: Run) -> None:
        change = subscriptions.pause if verb == "Pause" else subscriptions.resume
        await change(conn, name, schema, Signed(run.by, run.reason))
        run.lines.append(
            "Paused: running batches are finished." if verb == "Pause" else "Resumed: its workers are woken."
        )

    return await begin(board, request, run, act)
