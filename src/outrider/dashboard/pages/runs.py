"""The progress and the outcome of one action."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from outrider.dashboard.pages.inputs import need
from outrider.dashboard.rendering import page

if TYPE_CHECKING:
    from outrider.dashboard.site import Dashboard

LISTS = ("dead_letters", "jobs", "schedules")
"""Pages in the navigation that lead to actions."""


async def show(board: Dashboard, request: Request) -> Response:
    run = board.runs[request.path_params["id"]]
    here = run.back.split("/")[1].partition("?")[0].replace("-", "_")
    return await page(board, request, "run.html", here if here in LISTS else "now", run=run)


async def stop(board: Dashboard, request: Request) -> Response:
    run = board.runs[request.path_params["id"]]
    need(board, request, run.action)
    run.stop.set()
    return RedirectResponse(f"{request.scope.get('root_path', '')}/runs/{run.id}", 303)
