"""The style sheet, the script and the icon, from the package."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

if TYPE_CHECKING:
    from outrider.dashboard.site import Dashboard

TYPES = {"dashboard.css": "text/css", "dashboard.js": "text/javascript", "icon.svg": "image/svg+xml"}


async def send(board: Dashboard, request: Request) -> Response:  # noqa: ARG001
    name = request.path_params["name"]
    if name not in TYPES:
        raise HTTPException(404)
    return Response(_content(name), media_type=TYPES[name], headers={"Cache-Control": "no-cache"})


@cache
def _content(name: str) -> bytes:
    return (files("outrider.dashboard") / "static" / name).read_bytes()
