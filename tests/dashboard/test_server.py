"""The server of the dashboard: clients that say nothing."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
from starlette.responses import PlainTextResponse

from outrider.dashboard import live, server

REQUEST = b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n"


async def test_clients_that_say_nothing_are_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each would keep a file descriptor for ever. One that has sent a request stays."""
    async with server.serving(PlainTextResponse("fine"), port=0) as address, asyncio.timeout(60):
        port = int(address.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(REQUEST)
        assert b"200 OK" in await reader.readuntil(b"fine")
        monkeypatch.setattr(server, "HEAD", 0.1)
        others = [await asyncio.open_connection("127.0.0.1", port) for _ in range(20)]
        for _, half in others[1:]:
            half.write(REQUEST[:-2])
        for silent, _ in others:
            with suppress(ConnectionResetError):
                assert await silent.read() == b""
        writer.write(REQUEST)
        assert b"200 OK" in await reader.readuntil(b"fine")
        for _, each in ((reader, writer), *others):
            each.close()


async def test_as_many_live_pages_as_allowed_leave_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "MOST", 3)
    monkeypatch.setattr(server, "SPARE", 2)
    async with server.serving(PlainTextResponse("fine"), port=0) as address, asyncio.timeout(60):
        port = int(address.rpartition(":")[2])
        answers, writers = [], []
        for _ in range(5):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(REQUEST)
            answers.append((await reader.readuntil(b"\r\n")).split()[1])
            writers.append(writer)
        assert answers == [b"200"] * 4 + [b"503"]
        for writer in writers:
            writer.close()


async def test_a_second_request_has_to_come_in_time_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also the rest of one that was answered before it was whole. More bytes do not win more time."""
    monkeypatch.setattr(server, "HEAD", 1.0)
    refused = b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000000\r\n\r\n"
    async with server.serving(PlainTextResponse("fine"), port=0) as address, asyncio.timeout(20):
        port = int(address.rpartition(":")[2])
        for begun, drop in ((REQUEST + b"GET / HT", b"x"), (REQUEST + REQUEST[:-2], b"x: y\r\n"), (refused, b"x")):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(begun)
            assert b"200 OK" in await reader.readuntil(b"fine")
            with suppress(ConnectionResetError):
                while True:
                    writer.write(drop)
                    with suppress(TimeoutError):
                        assert await asyncio.wait_for(reader.read(100), 0.05) == b""
                        break
            writer.close()
