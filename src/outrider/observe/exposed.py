"""A worker's metrics over HTTP, and the look at the database every few seconds that fills the gauges."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from importlib import import_module
from socketserver import ThreadingMixIn
from typing import Any, Protocol
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from outrider.error_text import describe
from outrider.errors import ConfigError
from outrider.observe.measure import Instruments, begin, forget_state, tell_state
from outrider.observe.metrics import Metrics, need_client
from outrider.postgres.admin import diagnostics, status
from outrider.postgres.connection import AsyncSession
from outrider.signals import Signals

EVERY = 10.0
PATIENCE = 5.0
"""Seconds that a client may be silent while it sends its request or reads the answer."""
CONNECTIONS = 16

_logger = logging.getLogger("outrider")


class Named(Protocol):
    @property
    def name(self) -> str: ...


class Looked(Protocol):
    signals: Signals

    @property
    def inboxes(self) -> Sequence[Named]: ...

    @property
    def rollups(self) -> Sequence[Named]: ...

    def connect(self) -> AbstractAsyncContextManager[AsyncSession]: ...


async def sample(app: Looked, schema: str, to: Instruments) -> None:
    async with app.connect() as conn:
        await conn.set_autocommit(True)
        try:
            found = await status.status(conn, schema)
            tell_state(to, found, await diagnostics.server(conn, schema), await diagnostics.tuples(conn, schema))
        finally:
            await conn.set_autocommit(False)


async def keep_sampling(
    app: Looked, schema: str, to: Instruments, patience: float = EVERY, pause: float = EVERY
) -> None:
    """Until cancelled. Without an answer the gauges are gone until there is one, and a line says so once."""
    silent = False
    while True:
        try:
            async with asyncio.timeout(patience):
                await sample(app, schema, to)
            silent = False
        except Exception as error:  # whatever it is: a worker must not end because nobody can look at it
            forget_state(to)
            if not silent:
                _logger.warning("metrics of the database are missing: %s", describe(error).splitlines()[0])
            silent = True
        await asyncio.sleep(pause)


class Measured(Protocol):
    close: Callable[[], None]

    @property
    def instruments(self) -> Instruments: ...


@asynccontextmanager
async def measured(app: Looked, schema: str, metrics: Measured) -> AsyncIterator[None]:
    """What the database says is told too, until the block ends."""
    begin(metrics.instruments, [each.name for each in app.inboxes], [each.name for each in app.rollups])
    sampling = asyncio.create_task(keep_sampling(app, schema, metrics.instruments))
    try:
        yield
    finally:
        metrics.close()
        sampling.cancel()
        await asyncio.gather(sampling, return_exceptions=True)


class _Request(WSGIRequestHandler):
    timeout = PATIENCE

    def log_message(self, *_: object) -> None:
        pass


class _Server(ThreadingMixIn, WSGIServer):
    """As that of prometheus_client, a thread for each request; but there are few of them, and none waits for ever. When
    there are too many, the oldest connection is closed."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, host: str, port: int, app: Any) -> None:
        self._open: dict[socket.socket, None] = {}
        self._lock = threading.Lock()
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        self.address_family, address = found[0][0], found[0][4]
        super().__init__((str(address[0]), port), _Request)
        self.set_app(app)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            if len(self._open) >= CONNECTIONS:
                oldest = next(iter(self._open))
                del self._open[oldest]
                with suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)
            self._open[request] = None
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, *_: object) -> None:
        """Who is closed, or closes, has nothing to say about it."""


@asynccontextmanager
async def exposed(app: Looked, schema: str, host: str, port: int) -> AsyncIterator[str]:
    """The URL at which Prometheus finds the metrics of this process."""
    need_client()
    prometheus: Any = import_module("prometheus_client")
    registry = prometheus.CollectorRegistry()
    try:
        server = _Server(host, port, prometheus.make_wsgi_app(registry))
    except OSError as error:
        raise ConfigError(f"--metrics-port: {host}:{port} cannot be used: {error.strerror or error}") from None
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        async with measured(app, schema, Metrics(app.signals, registry)):
            yield f"http://{host}:{server.server_port}/metrics"
    finally:
        await asyncio.to_thread(server.shutdown)
        server.server_close()
        thread.join()
