"""A way to a broker that can be shut: what comes meanwhile is held back, and goes on when it opens, however late."""

from __future__ import annotations

import asyncio
import contextlib
from types import TracebackType
from typing import Literal, Self
from urllib.parse import urlsplit, urlunsplit

Side = Literal["client", "server"]


class Gate:
    def __init__(self, url: str) -> None:
        self._parts = urlsplit(url)
        self._open = {"client": asyncio.Event(), "server": asyncio.Event()}
        for event in self._open.values():
            event.set()
        self._held: dict[Side, int] = {"client": 0, "server": 0}
        self._arrived = asyncio.Condition()
        self._carrying: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._listener = await asyncio.start_server(self._carry, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.close()
        for task in self._carrying:
            task.cancel()
        await asyncio.gather(*self._carrying, return_exceptions=True)

    @property
    def url(self) -> str:
        port = self._listener.sockets[0].getsockname()[1]
        who = self._parts.netloc.rpartition("@")[0]
        return urlunsplit(self._parts._replace(netloc=f"{who}@127.0.0.1:{port}" if who else f"127.0.0.1:{port}"))

    def shut(self, side: Side) -> None:
        """Hold back what comes from this side."""
        self._open[side].clear()

    def open(self) -> None:
        for event in self._open.values():
            event.set()

    async def holds(self, side: Side, number: int) -> None:
        """Until so many bytes from this side have been held back."""
        async with asyncio.timeout(60), self._arrived:
            await self._arrived.wait_for(lambda: self._held[side] >= number)

    async def quiet(self) -> None:
        """Until all that was held back has arrived, and the connections have ended."""
        async with asyncio.timeout(60):
            while self._carrying:
                await asyncio.wait(self._carrying)
                await asyncio.sleep(0)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._carrying.add(task)
        try:
            far_reader, far_writer = await asyncio.open_connection(self._parts.hostname, self._parts.port)
            try:
                await asyncio.gather(self._pump("client", reader, far_writer), self._pump("server", far_reader, writer))
            finally:
                far_writer.close()
        except asyncio.CancelledError:
            pass
        finally:
            writer.close()
            self._carrying.discard(task)

    async def _pump(self, side: Side, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while chunk := await source.read(2**16):
                await self._pass(side, chunk)
                target.write(chunk)
                await target.drain()
            await self._open[side].wait()
            target.write_eof()

    async def _pass(self, side: Side, chunk: bytes) -> None:
        if not self._open[side].is_set():
            async with self._arrived:
                self._held[side] += len(chunk)
                self._arrived.notify_all()
            await self._open[side].wait()
