"""What operators did: who, when, what and why. The newest first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response

from outrider.dashboard.confidential import field_names
from outrider.dashboard.pages.inputs import position, wanted
from outrider.dashboard.rendering import page
from outrider.names import CONTENT_CLASSES
from outrider.postgres.admin import audit

if TYPE_CHECKING:
    from outrider.dashboard.site import Dashboard

LISTED = 100
PAYLOADS = frozenset({"payload", "before", "progress", "result"})
"""An edit has the first two; what was withdrawn or replayed by force is kept as a row with any of them."""


async def show(board: Dashboard, request: Request) -> Response:
    given = {name: value for name in ("subscription", "by") if (value := wanted(request, name))}
    which = audit.Which(subscription=given.get("subscription"), by=given.get("by"), before=position(request, "before"))
    async with board.database.reading() as conn:
        entries = await audit.entries(conn, which, board.database.schema, limit=LISTED)
    older = urlencode(given | {"before": entries[-1].id}) if len(entries) == LISTED else None
    details = [_shown(each.details, board.values_up_to) for each in entries]
    return await page(
        board,
        request,
        "audit.html",
        "audit",
        given=given,
        entries=list(zip(entries, details, strict=True)),
        older=older,
        under_way=board.runs.under_way(),
    )


def _shown(details: dict[str, Any], level: str) -> dict[str, Any]:
    """Payloads may be of any content class, and the audit does not say of which."""
    shown = {name: value for name, value in details.items() if name != "reason"}
    if level == CONTENT_CLASSES[-1]:
        return shown
    return {name: _without_values(name, value) for name, value in shown.items()}


def _without_values(name: str, value: Any) -> Any:
    if name in PAYLOADS and value is not None:
        return field_names(value)
    if isinstance(value, dict):
        return {inner: _without_values(inner, each) for inner, each in value.items()}
    return [_without_values("", each) for each in value] if isinstance(value, list) else value
