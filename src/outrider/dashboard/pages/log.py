"""The log from its newest event on, by type, key, tenant, time, id. Pages continue at a log position; nothing is counted."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from outrider.dashboard.pages.inputs import position, time_of, uuid_of, wanted
from outrider.dashboard.rendering import page
from outrider.postgres.admin import event_history

if TYPE_CHECKING:
    from outrider.dashboard.site import Dashboard

FIELDS = ("type", "key", "workspace", "since", "until")
LISTED = 50
SEARCHED = 100_000
"""Log positions that one page searches."""
LAST = 10**18 - 1
"""A position above all events."""


async def show(board: Dashboard, request: Request) -> Response:
    if (event_id := wanted(request, "id")) is not None:
        return RedirectResponse(f"{request.scope.get('root_path', '')}/event/{uuid_of(event_id)}", 303)
    given = {name: value for name in FIELDS if (value := wanted(request, name))}
    async with board.database.reading() as conn:
        found = await event_history.listed(
            conn,
            board.database.schema,
            key=given.get("key"),
            event_type=given.get("type"),
            workspace_id=given.get("workspace"),
            since=time_of(request, "since"),
            until=time_of(request, "until"),
            limit=LISTED,
            before=position(request, "before"),
            most=SEARCHED,
        )
    older = None if found.before is None else urlencode(given | {"before": found.before})
    newest = wanted(request, "before") is None
    return await page(
        board, request, "log.html", "log", given=given, found=found, older=older, newest=newest, last=LAST
    )
