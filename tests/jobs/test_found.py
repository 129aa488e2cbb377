"""What an attack on jobs has found, each as it was found."""

from __future__ import annotations

import asyncio
import contextvars
import os
import signal
import sys
import time
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any
from uuid import uuid4

import psutil
import psycopg
import pytest
from tests.jobs.factory import SOON, Make, Ordered, Paint, idle, opened, until

from outrider import JobContext, Outrider, Retry, SyncJobContext
from outrider.dispatch.lease import Begun, Leases
from outrider.postgres import jobs
from outrider.postgres.jobs import Asked
from outrider.signals import JobReleased, JobsClaimed, JobsCompleted, LeaseLost, Routed, Signal
from outrider.testing import expect


@pytest.mark.parametrize("result", [float("nan"), float("inf"), {"deep": [float("-inf")]}])
async def test_a_result_that_is_no_json_number_does_not_hold_up_the_others(database: str, result: Any) -> None:
    async with opened(database, lambda app: app.job(Make)(lambda job: result if job.n == 1 else job.n)) as factory:
        await factory.enqueue(*(Make(n=n) for n in range(4)))
        assert (await factory.app.drain()).jobs == 4


async def test_a_result_that_postgres_refuses_does_not_hold_up_the_others(database: str) -> None:
    """As deep as JSON goes in Python, but not in Postgres."""

    def declare(app: Outrider) -> None:
        @app.job(Make)
        async def make(job: Make) -> Any:
            return "[" * 3 + "]" * 3 if job.n else "x"

    async with opened(database, declare) as factory:
        await factory.rows(
            """create function refuse() returns trigger language plpgsql as $$
               begin if new.result = '"x"' then raise using errcode = '22P02'; end if; return new; end $$;
               create trigger refuse before insert on outrider.event_handled for each row execute function refuse()"""
        )
        async with factory.app.worker(), expect(factory.app, JobsCompleted):
            await factory.enqueue(Make(n=0), Make(n=1))
        assert await factory.owed() == []


async def test_who_keeps_a_job_knows_that_it_will_see_what_he_wrote(database: str) -> None:
    """The job is not claimed before the transaction that kept it has committed."""
    async with opened(database, lambda app: app.job(Make)(idle)) as factory:
        await factory.enqueue(Make(), unique_key="one")
        async with factory.app.connect() as conn, conn.transaction():
            kept = await factory.app.enqueue(conn, Make(), unique_key="one")
            assert kept.outcome == "kept"
            assert (await factory.app.drain()).jobs == 0
        assert (await factory.app.drain()).jobs == 1


async def test_a_kept_job_is_run_when_who_kept_it_rolls_back(database: str) -> None:
    """Nobody notifies then."""
    async with opened(database, lambda app: app.job(Make)(idle), notify="off", poll="1h") as factory:
        await factory.enqueue(Make(), unique_key="one")
        async with AsyncExitStack() as ending, factory.app.connect() as conn:
            async with conn.transaction(force_rollback=True):
                await factory.app.enqueue(conn, Make(), unique_key="one")
                await ending.enter_async_context(factory.app.worker())
            async with expect(factory.app, JobsCompleted):
                pass


async def test_the_side_process_is_replaced_when_it_says_half_a_line(database: str, monkeypatch: Any) -> None:
    said: list[int] = []
    begun = Begun(1)
    script = 'import sys; sys.stdin.readline(); sys.stdout.write(\'{"at": 1, "he\'); sys.stdout.flush()'
    start = asyncio.create_subprocess_exec

    async def broken(*command: str, **options: Any) -> Any:
        said.append(1)
        return await start(sys.executable, "-c", script, **options)

    monkeypatch.setattr(asyncio, "create_subprocess_exec", broken)
    leases = Leases(
        dsn=database, schema="outrider", worker=uuid4(), names=[], every=1, begun=begun,
        heard=lambda _: None,
    )  # fmt: skip
    running = asyncio.create_task(leases.run())

    async def twice() -> bool:
        return len(said) >= 2

    await until(twice)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    begun.close()


async def test_what_was_claimed_ahead_is_given_to_others(database: str) -> None:
    """Short jobs make it claim ahead; then come long ones, while another worker has nothing to do."""
    end = asyncio.Event()

    def declare(app: Outrider) -> None:
        @app.job(Make)
        async def make(job: Make) -> None:
            if job.n:
                await end.wait()

    async with opened(database, declare) as factory:
        async with factory.app.connect() as conn:
            await factory.app.enqueue_many(conn, [Make() for _ in range(3000)])
            await factory.app.enqueue_many(conn, [Make(n=1) for _ in range(60)])
        async with factory.app.worker(slots=10, grace=1), factory.app.worker(slots=50, grace=1):

            async def all_run() -> bool:
                [row] = await factory.rows("select count(*) from outrider.delivery where status = 'in_flight'")
                begun = sum(1 for each in asyncio.all_tasks() if "Slots._run" in repr(each))
                return bool(row["count"] == 60 and begun >= 60)

            await until(all_run)
            end.set()


async def test_what_was_claimed_while_another_was_settled_is_given_to_others(database: str, monkeypatch: Any) -> None:
    """The answers to a settlement and to a claim are read in one breath, before any of the claimed jobs has begun."""
    settled, claimed, end = asyncio.Event(), asyncio.Event(), asyncio.Event()
    settle = jobs.settle

    async def settle_late(*args: Any) -> Any:
        landed = await settle(*args)
        if not settled.is_set():
            settled.set()
            await claimed.wait()
        return landed

    def one_ahead(claim: Any) -> Any:
        async def claim_one_ahead(conn: Any, asked: Asked, *args: Any) -> Any:
            found = await claim(conn, replace(asked, limit=asked.limit + 1), *args)
            if found.rows and settled.is_set():
                claimed.set()
            return found

        return claim_one_ahead

    def declare(app: Outrider) -> None:
        @app.job(Make)
        async def make(job: Make) -> None:
            if job.n:
                await end.wait()

    monkeypatch.setattr(jobs, "settle", settle_late)
    monkeypatch.setattr(jobs, "claim", one_ahead(jobs.claim))
    monkeypatch.setattr(jobs, "claim_lane", one_ahead(jobs.claim_lane))
    async with opened(database, declare) as factory, factory.app.worker(slots=1, grace=1):
        await factory.enqueue(Make())
        await settled.wait()
        async with expect(factory.app, JobReleased):
            await factory.enqueue(Make(n=1), Make(n=2))
        end.set()


async def test_a_retry_comes_when_it_is_due_and_not_with_the_next_poll(database: str) -> None:
    def declare(app: Outrider) -> None:
        @app.job(Make)
        async def make(job: Make, ctx: JobContext) -> None:
            if ctx.attempt == 1:
                raise Retry("200ms")

    async with (
        opened(database, declare, poll="1h") as factory,
        factory.app.worker(),
        expect(factory.app, JobsCompleted),
    ):
        await factory.enqueue(Make())


async def test_what_is_handed_back_is_begun_by_another_at_once(database: str) -> None:
    begun: list[int] = []

    def declare(app: Outrider) -> None:
        @app.job(Make)
        async def make(job: Make) -> None:
            begun.append(job.n)
            if len(begun) == 1:
                await asyncio.sleep(60)

    async with opened(database, declare, poll="1h") as factory:
        async with factory.app.worker(grace=0.1):
            async with expect(factory.app, JobsClaimed):
                await factory.enqueue(Make())
            other = factory.app.worker()
            await other.__aenter__()
        try:
            async with expect(factory.app, JobsCompleted):
                pass
        except TimeoutError:
            assert not await factory.owed()
        finally:
            await other.__aexit__(None, None, None)


async def test_a_blocked_loop_loses_nobodys_lease(database: str) -> None:
    lost: list[Signal] = []

    def declare(app: Outrider) -> None:
        @app.job(Make, lease=1)
        async def make(job: Make) -> None:
            if job.n == 0:
                await asyncio.sleep(0.2)
                time.sleep(3.5)  # noqa: ASYNC251
            else:
                await asyncio.sleep(4)

    async with opened(database, declare) as factory, factory.app.worker():
        factory.app.signals.listen(lambda each: lost.append(each) if isinstance(each, LeaseLost) else None)
        done = 0

        def count(each: Signal) -> None:
            nonlocal done
            done += each.jobs if isinstance(each, JobsCompleted) else 0

        factory.app.signals.listen(count)
        await factory.enqueue(*(Make(n=n) for n in range(5)))

        async def all_done() -> bool:
            return done == 5

        await until(all_done)
    assert lost == []


async def test_suspects_come_one_after_the_other_without_a_poll(database: str) -> None:
    async with opened(database, lambda app: app.job(Make)(idle), poll="1h") as factory:
        await factory.enqueue(*(Make(n=n) for n in range(5)))
        await factory.rows("update outrider.delivery set crashes = 1")
        async with factory.app.worker():

            async def none() -> bool:
                return not await factory.owed()

            await until(none)


def answer(job: Make, ctx: SyncJobContext) -> object:
    return (lambda: None) if job.n == 9 else os.getpid()


async def test_a_suspect_comes_when_the_one_before_it_was_lost(database: str, monkeypatch: Any) -> None:
    begun: list[int] = []

    def declare(app: Outrider) -> None:
        @app.job(Make)
        async def make(job: Make) -> None:
            begun.append(job.n)
            if job.n == 1:
                await asyncio.sleep(60)

    monkeypatch.setattr("outrider.dispatch.crew.RENEWAL", 0.2)
    async with opened(database, declare, poll="1h") as factory:
        await factory.enqueue(Make(n=1), Make(n=2))
        await factory.rows("update outrider.delivery set crashes = 1")
        async with factory.app.worker(grace=1):

            async def first() -> bool:
                return begun == [1]

            await until(first)
            async with expect(factory.app, JobsCompleted), expect(factory.app, LeaseLost):
                await factory.rows("delete from outrider.delivery where status = 'in_flight'")
        assert begun == [1, 2]


async def test_a_withdrawn_event_makes_room_for_the_next_job(database: str) -> None:
    begun, end = asyncio.Event(), asyncio.Event()

    def declare(app: Outrider) -> None:
        @app.job(on=Ordered, name="factory.produce", concurrency=1)
        async def produce(event: Ordered) -> None:
            if event.n == 1:
                begun.set()
                await end.wait()

    async with opened(database, declare, poll="1h") as factory, factory.app.worker(grace=1):
        [first] = await factory.publish(Ordered(n=1))
        await begun.wait()
        async with expect(factory.app, Routed):
            await factory.publish(Ordered(n=2))
        async with expect(factory.app, JobsCompleted):
            await factory.app.withdraw(first)
        end.set()


async def test_a_process_that_died_while_idle_is_nobodys_fault(database: str) -> None:
    def declare(app: Outrider) -> None:
        app.job(Make, executor="process", retry=SOON)(answer)

    async with opened(database, declare) as factory, factory.app.worker():
        async with expect(factory.app, JobsCompleted):
            await factory.enqueue(Make())
        for child in psutil.Process().children():
            if "outrider.dispatch.child" in child.cmdline():
                child.send_signal(signal.SIGKILL)
        async with expect(factory.app, JobsCompleted):
            await factory.enqueue(Make(n=1))
        assert await factory.owed() == []


async def test_a_result_that_cannot_leave_its_process_does_not_undo_the_job(database: str) -> None:
    def declare(app: Outrider) -> None:
        app.job(Make, executor="process", retry=SOON)(answer)

    async with opened(database, declare) as factory:
        await factory.enqueue(Make(n=9))
        assert (await factory.app.drain()).jobs == 1
        assert "not_kept" in (await factory.receipts())[0]["result"]


VARIABLE = contextvars.ContextVar("test_found", default="none")


async def test_a_context_variable_is_not_the_next_jobs(database: str) -> None:
    seen: list[str] = []

    def declare(app: Outrider) -> None:
        @app.job(Make)
        async def make(job: Make) -> None:
            seen.append(VARIABLE.get())
            VARIABLE.set(f"job {job.n}")
            await asyncio.sleep(0)
            assert VARIABLE.get() == f"job {job.n}"

    async with opened(database, declare) as factory:
        await factory.enqueue(*(Make(n=n) for n in range(12)))
        await factory.app.drain()
    assert seen == ["none"] * 12


@pytest.mark.parametrize("error", [GeneratorExit, KeyboardInterrupt, SystemExit])
async def test_whatever_a_job_raises_is_its_own_failure(database: str, error: type[BaseException]) -> None:
    def declare(app: Outrider) -> None:
        @app.job(Make, retry=SOON)
        async def make(job: Make) -> None:
            raise error

        @app.job(Paint, retry=SOON)
        def paint(job: Paint) -> None:
            raise error

    async with opened(database, declare) as factory:
        await factory.enqueue(Make(), Paint(part="a"))
        assert (await factory.app.drain()).jobs_failed == 2


async def test_a_stop_that_could_not_settle_in_time_counts_no_crash(database: str) -> None:
    """The row is locked while the worker ends: its side process gives it back afterwards."""
    begun = asyncio.Event()

    def declare(app: Outrider) -> None:
        @app.job(Make)
        async def make(job: Make) -> None:
            begun.set()
            await asyncio.sleep(60)

    async with opened(database, declare) as factory:
        with psycopg.connect(database) as holding:
            async with factory.app.worker(grace=0.1):
                await factory.enqueue(Make())
                await begun.wait()
                holding.execute("select from outrider.delivery for update")
            holding.rollback()

        row = await factory.one()
        assert row["crashes"] == 0


async def test_jobs_of_a_queue_that_their_generation_does_not_serve_are_taken_by_others(database: str) -> None:
    async with opened(database, lambda app: app.job(Make)(idle)) as factory:
        await factory.rows(
            """insert into outrider.worker (id, host, pid, version, generation, subscriptions, queues)
               values (gen_random_uuid(), 'h', 1, '1', 7, '{factory.make}', '{fast}')"""
        )
        await factory.enqueue(Make(n=1), queue="bulk")
        await factory.enqueue(Make(n=2), queue="fast")
        await factory.rows("update outrider.delivery set generation = 7")
        assert (await factory.app.drain()).jobs == 1
        assert (await factory.one())["queue"] == "fast"


async def test_a_cancelled_job_among_many_short_ones_is_told(database: str) -> None:
    begun = asyncio.Event()

    def declare(app: Outrider) -> None:
        @app.job(Make)
        async def make(job: Make) -> None:
            if job.n:
                begun.set()
                await asyncio.sleep(60)

    async with opened(database, declare, poll="1h") as factory, factory.app.worker(grace=0.1):
        [job_id] = await factory.enqueue(Make(n=1))
        await begun.wait()
        async with factory.app.connect() as conn:
            await factory.app.enqueue_many(conn, [Make() for _ in range(3000)])
        async with expect(factory.app, JobReleased, lambda each: each.outcome == "cancelled"):
            await factory.app.jobs.cancel(job_id)


@pytest.mark.parametrize("when", ["infinity", "-infinity", "20000-01-01"])
def test_a_time_that_nobody_can_read_is_refused(database: str, when: str) -> None:
    with psycopg.connect(database, autocommit=True) as conn, pytest.raises(psycopg.errors.CheckViolation):
        conn.execute("select outrider.enqueue('factory.make', '{}', run_at => %s::timestamptz)", [when])
