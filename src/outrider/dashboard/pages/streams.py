"""Relays and inboxes: where their streams end, what is missing there, and the entries that were refused. Rollups."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from outrider.dashboard.live import TEMPLATES
from outrider.dashboard.pages.inputs import position, wanted
from outrider.dashboard.rendering import page
from outrider.names import CONTENT_CLASSES
from outrider.postgres import inboxes, rollups

if TYPE_CHECKING:
    from outrider.dashboard.site import Dashboard

LISTED = 50


async def show(board: Dashboard, request: Request) -> Response:
    name, after = wanted(request, "inbox"), position(request, "after") or 0
    snapshot = await board.poller.current()
    async with board.database.reading() as conn:
        refused = await inboxes.refused(conn, board.database.schema, subscription=name, after=after, limit=LISTED)
    ends = await board.stream_ends.of(snapshot.status) if snapshot.status else []
    return await page(
        board, request, "streams.html", "streams",
        part=TEMPLATES["streams"], raw=board.values_up_to == CONTENT_CLASSES[-1], ends=ends,
        refused=refused, inbox=name, after=after, more=refused[-1].id if len(refused) == LISTED else None,
    )  # fmt: skip


async def show_rollup(board: Dashboard, request: Request) -> Response:
    name, schema = request.path_params["name"], board.database.schema
    snapshot = await board.poller.current()
    found = next((each for each in snapshot.status.rollups if each.name == name), None) if snapshot.status else None
    if found is None:
        raise HTTPException(404, f"There is no rollup {name}.")
    async with board.database.reading() as conn:
        groups = await rollups.groups(conn, name, schema, limit=LISTED)
        runs = await rollups.runs(conn, name, schema, limit=LISTED)
        aside = await rollups.set_aside(conn, name, schema, most=LISTED)
    return await page(
        board, request, "rollup.html", "rollups", each=found, groups=groups, runs=runs, aside=aside, listed=LISTED
    )
