"""The slots of a worker: whatever comes in has somebody who runs it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

from outrider.postgres.jobs import JobDone, Leased
from outrider.worker.job_runner import EndedJob, JobRunner, RunningJob
from outrider.worker.job_slots import JobSlots
from outrider.worker.thread import HandlerThread


class Quick:
    """Work that ends at once; what it is told to do meanwhile happens right after it."""

    def __init__(self) -> None:
        self.ran: list[int] = []
        self.afterwards: Callable[[], None] | None = None

    async def run(self, running: RunningJob, thread: HandlerThread) -> EndedJob:  # noqa: ARG002
        self.ran.append(running.leased.delivery)
        if self.afterwards is not None:
            asyncio.get_running_loop().call_soon(self.afterwards)
            self.afterwards = None
        return EndedJob(running.leased, 0.0, JobDone(running.leased.delivery, 1, None))


def leased(delivery: int) -> Leased:
    row: list[Any] = [None] * 21
    row[1:7] = [delivery, 1, "slots.quick", 30.0, 1, 0]
    return Leased(tuple(row), 0.0, 30.0)


async def test_a_job_that_comes_while_a_slot_is_closing_is_run() -> None:
    """The slot has seen that nothing is left, and is still counted when the next job arrives."""
    quick = Quick()
    work = {"slots.quick": cast(JobRunner, quick)}
    slots = JobSlots(1, work, cast(Any, None), on_change=lambda: None, on_lost=lambda *_: None)
    quick.afterwards = lambda: slots.add([leased(2)])
    slots.add([leased(1)])
    for _ in range(10):
        await asyncio.sleep(0)
    assert quick.ran == [1, 2]
