"""The slots of a worker: whatever comes in has somebody who runs it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from outrider.postgres.jobs import Leased
from outrider.worker.deadline import Deadline
from outrider.worker.job_runner import EndedJob, JobRunner, RunningJob
from outrider.worker.job_slots import JobSlots


class Quick:
    """Work that ends at once, unless it `waits`; what it is told to do meanwhile happens right after it."""

    def __init__(self, *, waits: bool = False) -> None:
        self.waits = waits
        self.ran: list[int] = []
        self.tasks: list[object] = []
        self.afterwards: Callable[[], None] | None = None

    async def run(self, running: RunningJob, deadline: Deadline, *, traced: bool) -> EndedJob:  # noqa: ARG002
        self.ran.append(running.leased.delivery)
        self.tasks.append(running.task)
        if self.afterwards is not None:
            asyncio.get_running_loop().call_soon(self.afterwards)
            self.afterwards = None
        if self.waits:
            await asyncio.sleep(0)
        return EndedJob(running.leased)


def slots_of(quick: Quick, number: int) -> JobSlots:
    work = {"slots.quick": cast(JobRunner, quick)}
    return JobSlots(number, work, cast(Any, None), cast(Any, None), on_change=lambda: None, on_lost=lambda *_: None)


def leased(delivery: int) -> Leased:
    row: list[Any] = [None] * 21
    row[1:7] = [delivery, 1, "slots.quick", 30.0, 1, 0]
    return Leased(tuple(row), 0.0, 30.0)


async def test_a_job_that_comes_while_a_slot_is_closing_is_run() -> None:
    """The slot has seen that nothing is left, and is still counted when the next job arrives."""
    quick = Quick()
    slots = slots_of(quick, 1)
    quick.afterwards = lambda: slots.add([leased(2)])
    slots.add([leased(1)])
    for _ in range(10):
        await asyncio.sleep(0)
    assert quick.ran == [1, 2]


@pytest.mark.parametrize(("waits", "tasks"), [(False, 1), (True, 6)])
async def test_a_job_that_waits_has_its_task_to_itself(waits: bool, tasks: int) -> None:
    """Libraries keep things by task, such as sessions, and a task that somebody has kept may be cancelled later."""
    quick = Quick(waits=waits)
    slots_of(quick, 2).add([leased(n) for n in range(6)])
    for _ in range(30):
        await asyncio.sleep(0)
    assert quick.ran == list(range(6))
    assert len(set(quick.tasks)) == tasks
