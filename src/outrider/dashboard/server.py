"""Serves the dashboard by uvicorn, beside whatever else the process does."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from outrider.dashboard import live
from outrider.dashboard.site import Dashboard
from outrider.errors import ConfigError

HOST, PORT = "127.0.0.1", 8642
GRACE = 3
"""Seconds for open requests at the end."""
HEAD = 10.0
"""Seconds for the head of a request, and for what a client still sends of a refused one. uvicorn would wait for ever."""
SPARE = 100
"""Connections beside those of live pages. uvicorn answers requests on more with 503."""


class _Connection(H11Protocol):
    _due: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._expect_nothing()

    def _expect_head(self) -> None:
        """Unless a request is under way. More bytes of a head do not move its end."""
        if self.cycle is not None and not self.cycle.response_complete:
            self._expect_nothing()
        elif self._due is None:
            self._due = self.loop.call_later(HEAD, self.transport.abort)

    def _expect_nothing(self) -> None:
        if self._due is not None:
            self._due.cancel()
            self._due = None


class _DashboardServer(uvicorn.Server):
    """Signals are the process's business."""

    capture_signals = nullcontext  # type: ignore[assignment]


@asynccontextmanager
async def serving(app: ASGIApp, host: str = HOST, port: int = PORT) -> AsyncIterator[str]:
    """Yields the address; port 0 is any free one. The server ends with the block."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family)
    except OSError as error:
        why = (error.strerror or str(error)).split(" (while ")[0]  # create_server repeats the address in brackets
        raise ConfigError(f"cannot listen on {host}, port {port}: {why}; choose another port with --port") from error
    # Not proxy_headers: whoever sends X-Forwarded-For could pass for the trusted proxy.
    config = uvicorn.Config(
        app, log_level="warning", access_log=False, lifespan="off", proxy_headers=False, server_header=False,
        timeout_graceful_shutdown=GRACE,
        http=_Connection, limit_concurrency=live.MOST + SPARE,
    )  # fmt: skip
    server = _DashboardServer(config)
    running = asyncio.create_task(server.serve(sockets=[listening]))
    shown = f"[{host}]" if ":" in host else host
    try:
        yield f"http://{shown}:{listening.getsockname()[1]}"
    finally:
        if isinstance(app, Dashboard):
            await app.poller.close()  # ends the streams of open pages
        server.should_exit = True
        await running
