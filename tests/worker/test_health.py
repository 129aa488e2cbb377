"""The two questions a supervisor asks, over real sockets: the answers, and what a rude client gets."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import pytest
from tests.worker.shop import opened

from outrider.errors import ConfigError
from outrider.worker import health
from outrider.worker.health import HealthServer, WorkerHealth
from outrider.worker.worker import Worker


class Patient:
    """What is asked about, as healthy as the test wants it."""

    wrong: str | None = None

    def unready(self) -> str | None:
        return self.wrong

    def facts(self) -> dict[str, object]:
        return {"fact": 1}


async def ask(server: HealthServer, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    try:
        writer.write(request)
        return await asyncio.wait_for(reader.read(), 60)
    finally:
        writer.close()


async def get(server: HealthServer, path: str, method: str = "GET") -> tuple[int, dict[str, Any]]:
    answer = await ask(server, f"{method} {path} HTTP/1.1\r\nHost: here\r\n\r\n".encode())
    head, _, body = answer.partition(b"\r\n\r\n")
    assert f"Content-Length: {len(body)}".encode() in head or method == "HEAD"
    return int(head.split()[1]), json.loads(body or "{}")


async def test_well_and_unwell() -> None:
    patient = Patient()
    async with HealthServer(patient, "127.0.0.1", 0) as server:
        for path in ("/healthz", "/readyz", "/healthz?verbose=1"):
            assert await get(server, path) == (200, {"status": "ok", "fact": 1})
        patient.wrong = "a cold"
        assert await get(server, "/readyz") == (503, {"status": "unavailable", "reason": "a cold", "fact": 1})
        assert await get(server, "/healthz") == (200, {"status": "ok", "fact": 1}), "it is alive"


async def test_what_is_not_served() -> None:
    async with HealthServer(Patient(), "127.0.0.1", 0) as server:
        assert (await get(server, "/metrics"))[0] == 404
        assert (await get(server, "/healthz", "POST"))[0] == 405
        assert (await get(server, "/healthz", "HEAD")) == (200, {})
        assert (await ask(server, b"hello\r\n\r\n")).startswith(b"HTTP/1.1 400 ")
        too_much = b"GET /healthz HTTP/1.1\r\nX: " + b"x" * (health.HEAD + 1) + b"\r\n\r\n"
        assert (await ask(server, too_much)).startswith(b"HTTP/1.1 431 ")


async def test_a_client_that_says_nothing_is_sent_away() -> None:
    async with HealthServer(Patient(), "127.0.0.1", 0, patience=0.05) as server:
        assert (await ask(server, b"GET /healthz")).startswith(b"HTTP/1.1 408 ")


async def test_a_client_that_hangs_up_early_or_never_leaves_no_task_behind() -> None:
    before = asyncio.all_tasks()
    async with HealthServer(Patient(), "127.0.0.1", 0) as server:
        _, early = await asyncio.open_connection("127.0.0.1", server.port)
        early.transport.abort()
        silent, never = await asyncio.open_connection("127.0.0.1", server.port)
        assert (await get(server, "/healthz"))[0] == 200
    assert asyncio.all_tasks() == before
    assert await asyncio.wait_for(silent.read(), 60) == b""
    never.close()


async def test_probes_are_answered_among_clients_that_say_nothing() -> None:
    async with HealthServer(Patient(), "127.0.0.1", 0, patience=3600) as server:
        rude = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(200)]
        for _, writer in rude:
            writer.write(b"GET /healthz HTT")
        async with asyncio.timeout(60):
            for path in ("/healthz", "/readyz"):
                assert (await get(server, path))[0] == 200
        assert len(server._answering) <= health.CONNECTIONS
        for _, writer in rude:
            writer.close()


async def test_a_port_that_is_taken() -> None:
    async with HealthServer(Patient(), "127.0.0.1", 0) as server:
        with pytest.raises(ConfigError, match="choose another --health-port"):
            async with HealthServer(Patient(), "127.0.0.1", server.port):
                pass


async def test_a_worker_from_start_to_stop(database: str) -> None:
    async with opened(database) as shop:
        worker = shop.app.worker()
        async with HealthServer(WorkerHealth(worker), "127.0.0.1", 0) as server:
            assert (await get(server, "/healthz"))[0] == 200
            assert await _reason(server, "/readyz") == "starting"
            running = asyncio.create_task(worker.run())
            await asyncio.wait_for(worker.ready.wait(), 30)
            status, body = await get(server, "/readyz")
            assert status == 200
            assert body["worker"] == str(worker.identity.id)
            assert body["handlers"] == ["shop.effect"]
            assert isinstance(body["listening"], bool)
            assert 0 < body["uptime"] < 60
            worker.stop()
            assert await _reason(server, "/readyz") == "stopping"
            assert (await get(server, "/healthz"))[0] == 200
            assert await running


async def test_a_worker_whose_database_is_away(database: str) -> None:
    """For minutes, as in a failover: it is not ready, and nobody should restart it. Its clock is set back."""
    async with opened(database) as shop:
        worker: Worker = shop.app.worker()
        asked = WorkerHealth(worker)
        worker.ready.set()
        worker.presence.last_contact = asyncio.get_running_loop().time()
        async with HealthServer(asked, "127.0.0.1", 0) as server:
            assert (await get(server, "/readyz"))[0] == 200
            worker.presence.last_contact -= 600
            asked._since -= 1000
            assert re.fullmatch(r"the database has not answered for 6\d\d s", await _reason(server, "/readyz"))
            status, body = await get(server, "/healthz")
            assert (status, body["status"]) == (200, "ok")
            assert 600 <= body["database_silent"] < 700


async def _reason(server: HealthServer, path: str) -> str:
    status, body = await get(server, path)
    assert status == 503
    return str(body["reason"])
