"""Errors as pages: what went wrong in one sentence, and what to do."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response

from outrider.dashboard.database import Busy
from outrider.dashboard.rendering import fragment
from outrider.error_text import describe
from outrider.errors import DatabaseUnavailable, NoSuchEvent, NoSuchJob, NoSuchType, OutriderError
from outrider.postgres.connection import DatabaseError
from outrider.redaction import mask

TOO_LONG = "57014"
Handler = Callable[[Request, Any], Awaitable[Response]]


def handlers() -> Mapping[Any, Handler]:
    def told(request: Request, title: str, sentence: str, code: int) -> Response:
        if request.state.user is None:
            return PlainTextResponse(f"{title}\n", code)
        base = request.scope.get("root_path", "")
        return HTMLResponse(fragment("error.html", base=base, title=title, sentence=mask(sentence)), code)

    async def of_http(request: Request, error: HTTPException) -> Response:
        return told(
            request, "There is no such page" if error.status_code == 404 else "Refused", error.detail, error.status_code
        )

    async def of_ours(request: Request, error: OutriderError) -> Response:
        if isinstance(error, NoSuchEvent | NoSuchJob | NoSuchType):
            return told(request, "Not found", str(error), 404)
        if isinstance(error, Busy):
            return told(request, "The dashboard is busy", str(error), 503)
        if isinstance(error, DatabaseUnavailable):
            return told(request, "The database does not answer", str(error), 503)
        return told(request, "Refused", str(error), 400)

    async def of_database(request: Request, error: DatabaseError) -> Response:
        if error.sqlstate == TOO_LONG:
            return told(
                request,
                "This took longer than 3 s",
                "The dashboard ends such queries. Narrow the filter, or try again.",
                503,
            )
        return told(request, "The database reported an error", describe(error), 503)

    async def unexpected(request: Request, error: Exception) -> Response:  # noqa: ARG001 (the server logs it)
        return told(request, "This page failed", "The log of the dashboard has the error.", 500)

    return {Exception: unexpected, HTTPException: of_http, OutriderError: of_ours, DatabaseError: of_database}
