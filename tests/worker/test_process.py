"""The processes of jobs leave nothing behind."""

from __future__ import annotations

import asyncio

import psutil
import pytest

from outrider.worker.job_processes import JobProcesses


async def test_those_that_are_closed_are_gone() -> None:
    processes = JobProcesses()
    child = await processes._child()
    assert child.alive
    processes.close()
    await processes.ended()
    assert not child.alive


@pytest.mark.parametrize("steps", range(6))
async def test_a_start_that_is_cancelled_leaves_no_pipe(steps: int) -> None:
    processes = JobProcesses()
    before = psutil.Process().num_fds()
    starting = asyncio.create_task(processes._child())
    for _ in range(steps):
        await asyncio.sleep(0)
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)
    processes.close()
    await processes.ended()
    assert psutil.Process().num_fds() <= before
