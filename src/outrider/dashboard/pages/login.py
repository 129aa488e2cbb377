"""Log in with the token, and out."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from outrider.dashboard.access import LONGEST_NAME, SESSION, cookie_of
from outrider.dashboard.rendering import fragment

if TYPE_CHECKING:
    from outrider.dashboard.site import Dashboard

REFUSAL = 1.0
"""Seconds until a wrong token is refused."""


async def show(board: Dashboard, request: Request) -> Response:
    return _page(board, request, request.query_params.get("next", "/"), "", 200)


async def enter(board: Dashboard, request: Request) -> Response:
    form = request.state.form
    if not board.access.is_token(form.get("token", "").strip()):
        peer = request.client.host if request.client else "an unknown address"
        logging.getLogger("outrider").warning("the dashboard refused a login from %s: this is not the token", peer)
        await asyncio.sleep(REFUSAL)
        return _page(board, request, form.get("next", "/"), "This is not the token.", 403)
    base = request.scope.get("root_path", "")
    answer = RedirectResponse(base + _within(form.get("next", "/")), 303)
    name = form.get("name", "").strip()[:LONGEST_NAME] or "dashboard"
    answer.set_cookie(
        cookie_of(request),
        board.access.session(name),
        max_age=SESSION,
        path=f"{base}/",
        secure=request.headers["origin"].lower().startswith("https:"),  # also if a proxy has ended TLS
        httponly=True,
        samesite="lax",
    )
    return answer


async def leave(board: Dashboard, request: Request) -> Response:  # noqa: ARG001
    base = request.scope.get("root_path", "")
    answer = RedirectResponse(f"{base}/login", 303)
    answer.delete_cookie(cookie_of(request), path=f"{base}/")
    return answer


def _page(board: Dashboard, request: Request, target: str, wrong: str, code: int) -> Response:
    if board.access.token is None:
        raise HTTPException(404)
    base = request.scope.get("root_path", "")
    return HTMLResponse(fragment("login.html", base=base, next=_within(target), wrong=wrong), code)


def _within(path: str) -> str:
    """Only a path of the dashboard, never another site."""
    return path if path.startswith("/") and not path.startswith(("//", "/\\")) and path.isprintable() else "/"
