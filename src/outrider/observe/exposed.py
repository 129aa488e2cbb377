"""The metrics of a worker over HTTP, and the queries that fill the gauges every ten seconds."""

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
from outrider.errors import ConfigError, SchemaMismatch
from outrider.observe.measure import Instruments, begin, forget_state, set_relays, set_state
from outrider.observe.metrics import Metrics, need_client
from outrider.postgres.admin import diagnostics, status
from outrider.postgres.connection import AsyncSession
from outrider.signals import Signals

SAMPLE_SECONDS = 10.0
"""Seconds between two looks at the database, and the longest time that one may take."""
CLIENT_SECONDS = 5.0
"""Seconds that a client may be silent while it sends its request or reads the answer."""
CONNECTIONS = 16
"""The most open connections. One more closes the oldest."""

_logger = logging.getLogger("outrider")


class HasName(Protocol):
    @property
    def name(self) -> str: ...


class Sampled(Protocol):
    """What the gauges need of an app."""

    signals: Signals

    @property
    def inboxes(self) -> Sequence[HasName]: ...

    @property
    def rollups(self) -> Sequence[HasName]: ...

    def connect(self) -> AbstractAsyncContextManager[AsyncSession]: ...


async def sample(app: Sampled, schema: str, to: Instruments) -> str | None:
    """Set the gauges. Returns why only those of relays are set, if the role may read no more, as that of relays."""
    async with app.connect() as conn:
        await conn.set_autocommit(True)
        try:
            try:
                found = await status.status(conn, schema)
            except SchemaMismatch as error:
                topics = await status.relay_topics(conn, schema)
                forget_state(to, up=True)
                set_relays(to, *topics)
                return describe(error)
            set_state(to, found, await diagnostics.server(conn, schema), await diagnostics.tuples(conn, schema))
            return None
        finally:
            await conn.set_autocommit(False)


async def keep_sampling(
    app: Sampled, schema: str, to: Instruments, longest: float = SAMPLE_SECONDS, pause: float = SAMPLE_SECONDS
) -> None:
    """Until cancelled. While the database does not answer, the gauges are empty; a log line says so once."""
    told = False
    while True:
        missing: str | None
        try:
            async with asyncio.timeout(longest):
                missing = await sample(app, schema, to)
        except Exception as error:  # a worker must not end because it cannot be observed
            forget_state(to)
            missing = describe(error)
        if missing and not told:
            _logger.warning("metrics of the database are missing: %s", missing.splitlines()[0])
        told = bool(missing)
        await asyncio.sleep(pause)


class Measured(Protocol):
    close: Callable[[], None]

    @property
    def instruments(self) -> Instruments: ...


@asynccontextmanager
async def measured(app: Sampled, schema: str, metrics: Measured) -> AsyncIterator[None]:
    """Fill the gauges from the database until the block ends."""
    begin(metrics.instruments, [each.name for each in app.inboxes], [each.name for each in app.rollups])
    sampling = asyncio.create_task(keep_sampling(app, schema, metrics.instruments))
    try:
        yield
    finally:
        metrics.close()
        sampling.cancel()
        await asyncio.gather(sampling, return_exceptions=True)


class _Request(WSGIRequestHandler):
    timeout = CLIENT_SECONDS

    def log_message(self, *_: object) -> None:
        pass


class _Server(ThreadingMixIn, WSGIServer):
    """Like the server of prometheus_client, one thread per request; but connections are bounded in number and time."""

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
        """A closed connection is no error."""


@asynccontextmanager
async def exposed(app: Sampled, schema: str, host: str, port: int) -> AsyncIterator[str]:
    """Serve the metrics of this process. Yields their URL."""
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
