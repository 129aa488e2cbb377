"""Serves the dashboard by uvicorn, beside whatever else the process does."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext

import uvicorn
from starlette.types import ASGIApp

from outrider.dashboard.site import Dashboard
from outrider.errors import ConfigError

HOST, PORT = "127.0.0.1", 8642
GRACE = 3
"""Seconds for open requests at the end."""


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
        raise ConfigError(f"{host}, port {port}: {error.strerror}; another --port may be free") from error
    # Not proxy_headers: whoever sends X-Forwarded-For could pass for the trusted proxy.
    config = uvicorn.Config(
        app, log_level="warning", access_log=False, lifespan="off", proxy_headers=False, server_header=False,
        timeout_graceful_shutdown=GRACE,
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
