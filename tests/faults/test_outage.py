"""A service that handlers need is gone, while workers are killed; it comes back, and nothing was buried meanwhile."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest
from tests.faults import outage_subject, subject
from tests.faults.nursery import Nursery
from tests.faults.subject import Producer, eventually
from tests.oracle import Oracle, check

pytestmark = pytest.mark.verify

PROBED = "select bool_and(failures >= {}) from outrider.cursor"
DEAD = "select count(*) from outrider.delivery where status = 'failed'"
LEFT = "select count(*) - (select count(*) from outrider.event_handled) from outrider.outbox"


async def test_a_breaker_keeps_everything_through_an_outage(database: str, tmp_path: Path) -> None:
    oracle = Oracle(tmp_path)
    with socket.socket() as taken:  # bound, and not listening: every connection is refused
        taken.bind(("127.0.0.1", 0))
        (tmp_path / "port").write_text(str(taken.getsockname()[1]))
        await subject.setup(database, outage_subject.make(database, oracle.outside_file))
        producer = Producer(database, oracle, keys=40)
        async with Nursery(database, oracle, subject="tests.faults.outage_subject") as nursery:
            first, _ = [await nursery.start() for _ in range(2)]
            await producer.burst(60)
            await eventually(database, PROBED.format(outage_subject.TRIP + 3))
            await nursery.kill(first)
            await nursery.start()
            await producer.burst(20)
            await eventually(database, PROBED.format(outage_subject.TRIP + 6))
            await eventually(database, DEAD, 0)
            taken.listen()
            async with asyncio.TaskGroup() as group:
                answering = group.create_task(answer(taken))
                await eventually(database, LEFT, 0)
                answering.cancel()
    check(database, oracle, unsuspected=True)


async def answer(listening: socket.socket) -> None:
    server = await asyncio.start_server(lambda _, writer: writer.close(), sock=listening.dup())
    async with server:
        await server.serve_forever()
