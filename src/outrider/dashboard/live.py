"""Live updates: server-sent events with the parts of a page that have changed.

All open pages share the poller's snapshot, and pages that show the same thing share the rendering.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse

from outrider.dashboard.poller import LiveState
from outrider.dashboard.rendering import PAGES, fragment

if TYPE_CHECKING:
    from outrider.dashboard.site import Dashboard

MOST = 500
"""Open streams. A page beyond that does not update itself."""
SILENCE = 15.0
"""Seconds after which a stream says that it is alive."""
LOGGED_IN = 60.0
"""Seconds after which a stream asks again whether its user may see it: the login may have ended."""
TEMPLATES: Mapping[str, str] = {
    "now": "parts/now.html",
    "subscriptions": "parts/subscriptions.html",
    "topology": "parts/topology.html",
    "workers": "parts/workers.html",
    "streams": "parts/streams.html",
    "rollups": "parts/rollups.html",
}
"""Pages that are made of the snapshot alone. On the others, only the navigation is live, or a part that has this name."""
PARTS = {"subscription": "parts/subscription.html"}
"""Parts about one subscription."""
KNOWN = {name for _, pages in PAGES for name, *_ in pages}


class Live:
    def __init__(self, board: Dashboard) -> None:
        self._board = board
        self._open = 0
        self._rendered: dict[tuple[str, str, str], tuple[object, str]] = {}

    async def stream(self, request: Request) -> Response:
        if self._open >= MOST:
            return PlainTextResponse("too many open pages\n", 503)
        page, base = request.path_params["page"], request.scope.get("root_path", "")
        name = request.path_params.get("name", "")
        if page not in (PARTS if name else KNOWN):
            return PlainTextResponse("no such page\n", 404)
        events = self._events(request, page, name, base)
        return StreamingResponse(events, media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})

    async def _events(self, request: Request, page: str, name: str, base: str) -> AsyncIterator[str]:
        self._open += 1
        try:
            with self._board.poller.watching():
                async for text in self._changes(request, page, name, base):
                    yield text
        finally:
            self._open -= 1

    async def _changes(self, request: Request, page: str, name: str, base: str) -> AsyncIterator[str]:
        number, sent, asked_at = 0, "", monotonic()
        while not self._board.poller.closed:
            snapshot = None
            with suppress(TimeoutError):
                async with asyncio.timeout(SILENCE):
                    snapshot = await self._board.poller.after(number)
            if monotonic() - asked_at >= LOGGED_IN:
                if await self._board.access.user(request) is None:
                    return
                asked_at = monotonic()
            if snapshot is None:
                yield ": still here\n\n"
                continue
            number = snapshot.number
            if (text := self._of(page, name, base, snapshot)) != sent:
                sent = text
                yield f"data: {text}\n\n"

    def _of(self, page: str, name: str, base: str, snapshot: LiveState) -> str:
        """Rendered once per snapshot, however many pages are open."""
        known = self._rendered.get((page, name, base))
        if known is not None and known[0] == snapshot.number:
            return known[1]
        self._rendered = {key: kept for key, kept in self._rendered.items() if kept[0] == snapshot.number}
        values: dict[str, Any] = {
            "base": base,
            "here": f"{page}s" if name else page,
            "snapshot": snapshot,
            "status": snapshot.status,
            "history": self._board.poller.history,
            "traffic": self._board.poller.traffic,
            "now": self._board.poller.now(),
        }
        parts = {each: fragment(f"parts/{each}.html", **values) for each in ("signs", "trouble")}
        if page in TEMPLATES and snapshot.status is not None:
            parts["live"] = fragment(TEMPLATES[page], **values)
        for each in snapshot.status.subscriptions if name and snapshot.status else ():
            if each.name == name:
                parts["live"] = fragment(PARTS[page], each=each, **values)
        text = json.dumps({"parts": parts, "seq": snapshot.status.seq if snapshot.status else None})
        self._rendered[(page, name, base)] = (snapshot.number, text)
        return text
