"""Schedules: when each fired last and fires next. Run now, pause, resume."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response

from outrider.dashboard.pages.inputs import begin, need, reason_of
from outrider.dashboard.rendering import page
from outrider.dashboard.runs import Action, Run
from outrider.postgres.admin import schedules
from outrider.postgres.connection import AsyncSession
from outrider.signed import Signed

if TYPE_CHECKING:
    from outrider.dashboard.site import Dashboard


async def show(board: Dashboard, request: Request) -> Response:
    async with board.database.reading() as conn:
        _, found = await schedules.listing(conn, board.database.schema)
    return await page(board, request, "schedules.html", "schedules", rows=found)


async def pause(board: Dashboard, request: Request) -> Response:
    async def act(conn: AsyncSession, run: Run) -> None:
        await schedules.pause(conn, _name(request), board.database.schema, Signed(run.by, run.reason))
        run.lines.append("Paused: it fires no more. Jobs that it has enqueued run.")

    return await _begin(board, request, "pause", "Pause", act)


async def resume(board: Dashboard, request: Request) -> Response:
    async def act(conn: AsyncSession, run: Run) -> None:
        await schedules.resume(conn, _name(request), board.database.schema, Signed(run.by, run.reason))
        run.lines.append("Resumed: it fires at its next time.")

    return await _begin(board, request, "pause", "Resume", act)


async def run_now(board: Dashboard, request: Request) -> Response:
    async def act(conn: AsyncSession, run: Run) -> None:
        job_id = await schedules.run_now(conn, _name(request), board.database.schema, Signed(run.by, run.reason))
        run.lines.append("Its job is enqueued.")
        run.link = (f"/jobs/{job_id}", f"Job {job_id}")

    return await _begin(board, request, "run_now", "Run now:", act)


async def _begin(board: Dashboard, request: Request, action: str, verb: str, act: Action) -> Response:
    user = need(board, request, action)
    run = Run(action, f"{verb} {_name(request)}", user.name, reason_of(request), "/schedules")
    return await begin(board, request, run, act)


def _name(request: Request) -> str:
    name: str = request.path_params["name"]
    return name
