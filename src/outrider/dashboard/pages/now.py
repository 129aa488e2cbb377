"""The first page, and the pages that show nothing but the snapshot."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from outrider.dashboard.live import TEMPLATES
from outrider.dashboard.rendering import page

if TYPE_CHECKING:
    from outrider.dashboard.site import Dashboard


async def show(board: Dashboard, request: Request) -> Response:
    return await page(board, request, "snapshot.html", "now", part=TEMPLATES["now"])


async def show_snapshot(board: Dashboard, request: Request) -> Response:
    name = request.path_params["page"]
    if name not in TEMPLATES:
        raise HTTPException(404, "The address is not one of the dashboard's.")
    return await page(board, request, "snapshot.html", name, part=TEMPLATES[name])
