"""What operators did: who, when, what and why. The newest first."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response

from outrider.dashboard.pages.inputs import position, wanted
from outrider.dashboard.rendering import page
from outrider.postgres.admin import audit

if TYPE_CHECKING:
    from outrider.dashboard.site import Dashboard

LISTED = 100


async def show(board: Dashboard, request: Request) -> Response:
    given = {name: value for name in ("subscription", "by") if (value := wanted(request, name))}
    which = audit.Which(subscription=given.get("subscription"), by=given.get("by"), before=position(request, "before"))
    async with board.database.reading() as conn:
        entries = await audit.entries(conn, which, board.database.schema, limit=LISTED)
    older = urlencode(given | {"before": entries[-1].id}) if len(entries) == LISTED else None
    return await page(board, request, "audit.html", "audit", given=given, entries=entries, older=older)
