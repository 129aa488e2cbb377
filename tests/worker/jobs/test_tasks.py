"""What an async job sees of asyncio: it runs in a task, as any coroutine does; one that waits has it to itself."""

from __future__ import annotations

import asyncio
import contextvars
import sys
import threading

import pytest
from tests.worker.jobs.factory import SOON, Make, Paint, opened

from outrider import JobContext, Outrider
from outrider.signals import JobsCompleted, Signal

VARIABLE = contextvars.ContextVar("test_tasks", default="none")


async def test_a_job_is_in_one_task_from_its_first_line_to_its_last(database: str) -> None:
    seen: list[bool] = []

    def declare(app: Outrider) -> None:
        @app.job(Make)
        async def make(job: Make) -> None:
            before = asyncio.current_task()
            await asyncio.sleep(0)
            seen.append(before is not None and asyncio.current_task() is before and before in asyncio.all_tasks())

    async with opened(database, declare) as factory:
        await factory.enqueue(*(Make(n=n) for n in range(3)))
        assert (await factory.app.drain()).jobs == 3
    assert seen == [True] * 3


async def test_timeouts_and_groups_that_begin_before_the_first_wait(database: str) -> None:
    ended: list[str] = []

    async def fail() -> None:
        raise ValueError("no")

    async def fail_in_a_group() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(fail())
            await asyncio.sleep(60)

    def declare(app: Outrider) -> None:
        @app.job(Make)
        async def make(job: Make) -> None:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0):
                    await asyncio.sleep(60)
            with pytest.raises(ExceptionGroup):
                await fail_in_a_group()
            task = asyncio.current_task()
            assert task is not None
            assert task.cancelling() == 0
            ended.append("here")

    async with opened(database, declare) as factory:
        await factory.enqueue(Make(), Make())
        assert (await factory.app.drain()).jobs == 2
    assert ended == ["here"] * 2


async def test_a_job_that_cancels_its_task_and_returns_cancels_no_other(database: str) -> None:
    def declare(app: Outrider) -> None:
        @app.job(Make)
        async def make(job: Make) -> None:
            if job.n % 2:
                await asyncio.sleep(0)
            else:
                task = asyncio.current_task()
                assert task is not None
                task.cancel()

    async with opened(database, declare) as factory:
        await factory.enqueue(*(Make(n=n) for n in range(30)))
        async with asyncio.timeout(25):
            assert (await factory.app.drain()).jobs == 30


async def test_a_context_variable_of_a_job_that_never_waits_is_not_the_next_jobs(database: str) -> None:
    seen: list[str] = []

    def declare(app: Outrider) -> None:
        @app.job(Make)
        async def make(job: Make) -> None:
            seen.append(VARIABLE.get())
            VARIABLE.set(f"job {job.n}")

    async with opened(database, declare) as factory:
        await factory.enqueue(*(Make(n=n) for n in range(12)))
        await factory.app.drain()
    assert seen == ["none"] * 12


@pytest.mark.parametrize("error", [GeneratorExit, KeyboardInterrupt, SystemExit, asyncio.CancelledError])
async def test_what_a_job_raises_after_it_has_waited_is_its_own_failure(
    database: str, error: type[BaseException]
) -> None:
    def declare(app: Outrider) -> None:
        @app.job(Make, retry=SOON)
        async def make(job: Make) -> None:
            await asyncio.sleep(0)
            raise error

        @app.job(Paint)
        async def paint(job: Paint) -> None:
            pass

    async with opened(database, declare) as factory:
        await factory.enqueue(Make(), Paint(part="a"))
        drained = await factory.app.drain()
        assert (drained.jobs, drained.jobs_failed) == (1, 1)


async def test_a_job_that_blocks_past_its_timeout_and_then_waits_is_cancelled(database: str) -> None:
    blocked = threading.Event()

    def declare(app: Outrider) -> None:
        @app.job(Make, timeout=0.05, retry=SOON)
        async def make(job: Make) -> None:
            blocked.wait(0.1)
            await asyncio.sleep(60)

    async with opened(database, declare) as factory:
        await factory.enqueue(Make())
        assert (await factory.app.drain()).jobs_failed == 1
        assert (await factory.one())["last_error_code"] == "timeout"


async def test_jobs_that_are_done_are_settled_while_the_next_one_waits(database: str) -> None:
    settled = asyncio.Event()
    left = 5

    def count(each: Signal) -> None:
        nonlocal left
        if isinstance(each, JobsCompleted):
            left -= each.jobs
            if left == 0:
                settled.set()

    def declare(app: Outrider) -> None:
        @app.job(Make)
        async def make(job: Make) -> None:
            if job.n == 5:
                await settled.wait()

    async with opened(database, declare, poll="1h") as factory:
        factory.app.signals.listen(count)
        await factory.enqueue(*(Make(n=n) for n in range(6)))
        async with asyncio.timeout(25), factory.app.worker():
            await settled.wait()
        assert await factory.owed() == []


@pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks are new in Python 3.12")
async def test_an_application_with_eager_tasks(database: str) -> None:
    seen: list[tuple[int, bool]] = []

    def declare(app: Outrider) -> None:
        @app.job(Make, timeout=30)
        async def make(job: Make, ctx: JobContext) -> None:
            before = asyncio.current_task()
            if job.n % 2:
                await asyncio.sleep(0)
            seen.append((ctx.attempt, before is not None and asyncio.current_task() is before))

    loop = asyncio.get_running_loop()
    async with opened(database, declare) as factory:
        await factory.enqueue(*(Make(n=n) for n in range(20)))
        loop.set_task_factory(getattr(asyncio, "eager_task_factory"))  # noqa: B009 (Python 3.11 has none)
        try:
            assert (await factory.app.drain()).jobs == 20
        finally:
            loop.set_task_factory(None)
    assert seen == [(1, True)] * 20
