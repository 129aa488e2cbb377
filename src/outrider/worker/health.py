"""Health checks over HTTP: /healthz (is the process alive?) and /readyz (does it work?).

/healthz answers while the event loop runs. An unreachable database is no reason to restart a worker: in a failover that
would restart all of them. /readyz reports it. The server answers one request per connection, reads only its head, and bounds
everything in size and time.
"""

from __future__ import annotations

import asyncio
import json
from http import HTTPStatus
from types import TracebackType
from typing import Protocol, Self

from outrider.errors import ConfigError
from outrider.worker.worker import Worker

SILENCE = 30.0
"""Seconds without an answer of the database after which a worker is not ready."""
HEAD = 8192
"""The most bytes of the head of a request."""
CLIENT_SECONDS = 5.0
"""Seconds for a client to send its request; twice as many for the whole connection."""
CONNECTIONS = 64
"""The most open connections. One more closes the oldest."""


class Subject(Protocol):
    """Whose health is checked."""

    def unready(self) -> str | None:
        """Why it is not ready; None if it is."""

    def facts(self) -> dict[str, object]: ...


class WorkerHealth:
    def __init__(self, worker: Worker, silence: float = SILENCE) -> None:
        self._worker = worker
        self._silence = silence
        self._clock = asyncio.get_running_loop().time
        self._since = self._clock()

    def unready(self) -> str | None:
        if self._worker.stopping:
            return "stopping"
        if not self._worker.ready.is_set():
            return "starting"
        if (failing := self._worker.presence.troubles.standstill(self._silence / 2)) is not None:
            return failing
        silent = self._clock() - self._worker.last_contact
        return f"the database has not answered for {silent:.0f} s" if silent > self._silence else None

    def facts(self) -> dict[str, object]:
        return {
            "worker": str(self._worker.identity.id),
            "listening": self._worker.listening,
            "handlers": self._worker.identity.subscriptions,
            "uptime": round(self._clock() - self._since, 3),
            "database_silent": round(self._clock() - max(self._worker.last_contact, self._since), 3),
        }


class HealthServer:
    """`async with HealthServer(subject, host, port) as server:` answers until the block ends; port 0 = any free one."""

    def __init__(self, subject: Subject, host: str, port: int, *, patience: float = CLIENT_SECONDS) -> None:
        self._subject = subject
        self._host, self.port = host, port
        self._patience = patience
        self._server: asyncio.Server | None = None
        self._answering: dict[asyncio.Task[None], None] = {}
        """The oldest first."""

    @property
    def url(self) -> str:
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self.port}/healthz"

    async def __aenter__(self) -> Self:
        try:
            self._server = await asyncio.start_server(self._accept, self._host, self.port, limit=HEAD)
        except OSError as error:
            raise ConfigError(
                f"the health endpoint cannot listen at {self._host}:{self.port} ({error.strerror or error}): "
                "choose another --health-port or --health-host"
            ) from error
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._answering:
            task.cancel()
        await asyncio.gather(*self._answering, return_exceptions=True)
        await self._server.wait_closed()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A probe sends its request at once: when there are too many connections, the oldest is closed."""
        waiting = [each for each in self._answering if not each.cancelling()]
        if len(waiting) >= CONNECTIONS:
            waiting[0].cancel()
        task = asyncio.create_task(self._serve(reader, writer))
        self._answering[task] = None
        task.add_done_callback(lambda done: self._answering.pop(done, None))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(2 * self._patience):
                writer.write(await self._reply(reader))
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (OSError, TimeoutError):
            pass
        finally:
            writer.transport.abort()

    async def _reply(self, reader: asyncio.StreamReader) -> bytes:
        try:
            async with asyncio.timeout(self._patience):
                head = await reader.readuntil(b"\r\n\r\n")
        except TimeoutError:
            return _response(HTTPStatus.REQUEST_TIMEOUT, {"reason": "the request was not complete in time"})
        except asyncio.LimitOverrunError:
            return _response(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, {"reason": f"more than {HEAD} bytes"})
        except asyncio.IncompleteReadError:
            return b""
        match head.split(b"\r\n", 1)[0].split(b" "):
            case [method, target, version] if version.startswith(b"HTTP/1."):
                return self._answer(method, target.partition(b"?")[0])
        return _response(HTTPStatus.BAD_REQUEST, {"reason": "not an HTTP/1.1 request"})

    def _answer(self, method: bytes, path: bytes) -> bytes:
        if path not in (b"/healthz", b"/readyz"):
            return _response(HTTPStatus.NOT_FOUND, {"reason": "use /healthz or /readyz"})
        if method not in (b"GET", b"HEAD"):
            return _response(HTTPStatus.METHOD_NOT_ALLOWED, {"reason": "only GET and HEAD"}, b"Allow: GET, HEAD\r\n")
        wrong = None if path == b"/healthz" else self._subject.unready()
        status = HTTPStatus.OK if wrong is None else HTTPStatus.SERVICE_UNAVAILABLE
        body = {"status": "ok"} if wrong is None else {"status": "unavailable", "reason": wrong}
        return _response(status, body | self._subject.facts(), bodyless=method == b"HEAD")


def _response(status: HTTPStatus, body: dict[str, object], headers: bytes = b"", *, bodyless: bool = False) -> bytes:
    content = json.dumps(body).encode() + b"\n"
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(content)}\r\nCache-Control: no-store\r\nConnection: close\r\n"
    )
    return head.encode() + headers + b"\r\n" + (b"" if bodyless else content)
