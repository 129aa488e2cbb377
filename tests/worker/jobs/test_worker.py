"""A worker with jobs: pick-up, cancel, progress, leases, limits, an orderly end."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import sys
import threading
import time
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, cast
from uuid import UUID, uuid4

import psutil
import psycopg
import pytest
from tests.worker.jobs.factory import SOON, Factory, Make, Ordered, Paint, idle, opened, until

from outrider import Cancelled, JobContext, Outrider, Retry, SyncJobContext, failpoint
from outrider.config import Settings
from outrider.errors import SchemaMismatch
from outrider.job import JobRun
from outrider.postgres import jobs
from outrider.postgres.admin.jobs import JobRow
from outrider.postgres.jobs import ClaimRequest
from outrider.signals import (
    JobFailed,
    JobReleased,
    JobsClaimed,
    JobsCompleted,
    LeaseLost,
    LoopHeld,
    Routed,
    Signal,
    Signals,
    Woken,
)
from outrider.testing import expect
from outrider.worker import loop, watchdog
from outrider.worker.leases import CrashRecord, Leases
from outrider.worker.site import Site


def runs(signals: list[JobsClaimed]) -> list[JobRun]:
    return [run for each in signals for run in each.details()]


async def side_processes() -> list[psutil.Process]:
    found = []
    for each in psutil.Process().children():
        with suppress(psutil.Error):  # it has just ended
            if "renewer.py" in " ".join(each.cmdline()):
                found.append(each)
    return found


async def renewing(factory: Factory) -> bool:
    """Whether a side process has its session; until then it renews nothing."""
    query = (
        "select pid from pg_stat_activity where application_name = 'outrider leases' and datname = current_database()"
    )
    return await factory.rows(query) != []


async def empty(factory: Factory) -> bool:
    return not await factory.owed()


async def far(factory: Factory, job_id: UUID) -> JobRow | None:
    """The job, once it has said how far it is."""
    [row] = await factory.app.jobs.get(job_id)
    return row if row.progress else None


@pytest.mark.parametrize("notify", ["commit", "off"])
async def test_a_worker_picks_jobs_up(database: str, notify: Any) -> None:
    """By a notification, and without any by polling."""
    ran: list[int] = []

    def declare(app: Outrider) -> None:
        @app.job(Make)
        async def make(job: Make) -> None:
            ran.append(job.n)

    async with opened(database, declare, notify=notify, poll=0.1 if notify == "off" else 30) as factory:
        async with factory.app.worker():
            for n in range(3):
                async with expect(factory.app, JobsCompleted):
                    await factory.enqueue(Make(n=n))
        assert ran == [0, 1, 2]


async def test_a_job_from_sql_and_one_that_comes_due(database: str) -> None:
    def declare(app: Outrider) -> None:
        @app.job(Make)
        async def make(job: Make) -> None:
            pass

    async with opened(database, declare) as factory, factory.app.worker():
        async with expect(factory.app, JobsCompleted):
            await factory.rows("select outrider.enqueue('factory.make', '{\"n\": 5}')")
        async with expect(factory.app, JobsCompleted):
            await factory.enqueue(Make(), delay=0.3)


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


async def test_suspects_come_one_after_the_other_without_a_poll(database: str) -> None:
    async with opened(database, lambda app: app.job(Make)(idle), poll="1h") as factory:
        await factory.enqueue(*(Make(n=n) for n in range(5)))
        await factory.rows("update outrider.job set crashes = 1")
        async with factory.app.worker():

            async def none() -> bool:
                return not await factory.owed()

            await until(none)


async def test_events_are_routed_and_run(database: str) -> None:
    def declare(app: Outrider) -> None:
        @app.job(on=Ordered, name="factory.produce")
        async def produce(event: Ordered) -> None:
            pass

    async with opened(database, declare) as factory:
        done = expect(factory.app, JobsCompleted)
        async with factory.app.worker(), expect(factory.app, Routed), done:
            await factory.publish(Ordered(n=1))


async def test_one_event_is_one_route(database: str, tmp_path: Path) -> None:
    """A take that has read everything is not repeated: the next event is sure to notify."""

    def declare(app: Outrider) -> None:
        @app.job(on=Ordered, name="factory.produce")
        async def produce(event: Ordered) -> None:
            pass

    hits = tmp_path / "hits"
    async with opened(database, declare, poll="1h") as factory:
        async with AsyncExitStack() as ending:
            async with expect(factory.app, Woken, lambda each: each == Woken("factory.produce", "listener")):
                await ending.enter_async_context(factory.app.worker())
            async with expect(factory.app, JobsCompleted):
                await factory.publish(Ordered(n=0))
            failpoint.load({"OUTRIDER_FAIL_LOG": str(hits)})
            ending.callback(failpoint.load, {})
            for n in (1, 2, 3):
                async with expect(factory.app, JobsCompleted):
                    await factory.publish(Ordered(n=n))
        assert hits.read_text().split().count("route.done") == 3


async def test_a_running_job_is_cancelled(database: str) -> None:
    begun, cleaned = asyncio.Event(), []

    def declare(app: Outrider) -> None:
        @app.job(Make)
        async def make(job: Make, ctx: JobContext) -> None:
            begun.set()
            try:
                await asyncio.sleep(60)
            finally:
                cleaned.append(ctx.cancelled)

    async with opened(database, declare) as factory, factory.app.worker():
        [job_id] = await factory.enqueue(Make())
        await begun.wait()
        async with expect(factory.app, JobReleased, lambda each: each.outcome == "cancelled"):
            [told] = await factory.app.jobs.cancel(job_id, by="me", reason="not needed")
            assert told.outcome == "cancelling"
        assert cleaned == [True]
        [row] = await factory.app.jobs.get(job_id)
        assert (row.state, row.attempts) == ("cancelled", 1)
        assert [each["action"] for each in await factory.rows("select * from outrider.audit")] == ["cancel"]


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


async def test_a_job_may_finish_although_it_was_cancelled(database: str) -> None:
    begun = asyncio.Event()

    def declare(app: Outrider) -> None:
        @app.job(Make)
        async def make(job: Make) -> str:
            begun.set()
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                return "anyway"
            return ""

    async with opened(database, declare) as factory, factory.app.worker():
        [job_id] = await factory.enqueue(Make())
        await begun.wait()
        async with expect(factory.app, JobsCompleted):
            await factory.app.jobs.cancel(job_id)
        async with expect(factory.app, JobsCompleted):  # the slot goes on with others
            begun.clear()
            [other] = await factory.enqueue(Make())
            await begun.wait()
            await factory.app.jobs.cancel(other)


async def test_a_thread_sees_that_it_was_cancelled(database: str) -> None:
    begun = threading.Event()

    def declare(app: Outrider) -> None:
        @app.job(Make)
        def make(job: Make, ctx: SyncJobContext) -> None:
            begun.set()
            while True:
                ctx.check()

    async with opened(database, declare) as factory, factory.app.worker():
        [job_id] = await factory.enqueue(Make())
        await asyncio.to_thread(begun.wait)
        async with expect(factory.app, JobReleased, lambda each: each.outcome == "cancelled"):
            await factory.app.jobs.cancel(job_id)


def count_for_ever(job: Make, ctx: SyncJobContext) -> None:
    n = 0
    while True:
        n += 1
        if n == 1:
            ctx.progress(0.25, "begun")


@pytest.mark.verify
async def test_a_process_is_cancelled_and_says_how_far_it_is(database: str) -> None:
    def declare(app: Outrider) -> None:
        app.job(Make, executor="process")(count_for_ever)

    async with opened(database, declare) as factory, factory.app.worker():
        [job_id] = await factory.enqueue(Make())
        row = await until(lambda: far(factory, job_id))
        assert row.progress == {"fraction": 0.25, "message": "begun"}
        async with expect(factory.app, JobReleased, lambda each: each.outcome == "cancelled"):
            await factory.app.jobs.cancel(job_id)


async def test_progress_is_seen_while_it_runs(database: str) -> None:
    end = asyncio.Event()

    def declare(app: Outrider) -> None:
        @app.job(Make)
        async def make(job: Make, ctx: JobContext) -> None:
            ctx.progress(0.4, "page 40 of 100\x1b[31m")
            with pytest.raises(ValueError, match="not a number from 0 to 1"):
                ctx.progress(40)
            await end.wait()

    async with opened(database, declare) as factory, factory.app.worker():
        [job_id] = await factory.enqueue(Make())
        row = await until(lambda: far(factory, job_id))
        assert row.progress == {"fraction": 0.4, "message": "page 40 of 100\\x1b[31m"}
        assert row.state == "running"
        async with expect(factory.app, JobsCompleted):
            end.set()


async def test_shutdown_hands_back_what_is_unfinished_without_an_attempt(database: str) -> None:
    begun: list[int] = []

    def declare(app: Outrider) -> None:
        @app.job(Make)
        async def make(job: Make) -> None:
            begun.append(job.n)
            await asyncio.sleep(60)

    async with opened(database, declare) as factory:
        await factory.enqueue(*(Make(n=n) for n in range(5)))
        async with expect(factory.app, JobReleased, times=2), factory.app.worker(slots=2, grace=0.1):
            pass
        rows = await factory.owed()
        assert [(row["status"], row["attempts"], row["crashes"]) for row in rows] == [("pending", 0, 0)] * 5
        assert sorted(begun) == [0, 1]
        assert not await side_processes()


async def test_what_is_handed_back_is_begun_by_another_at_once(database: str) -> None:
    begun: list[int] = []
    running = asyncio.Event()

    def declare(app: Outrider) -> None:
        @app.job(Make)
        async def make(job: Make) -> None:
            begun.append(job.n)
            if len(begun) == 1:
                running.set()
                await asyncio.sleep(60)

    async with opened(database, declare, poll="1h") as factory, factory.app.worker(grace=0.1) as first:
        await factory.enqueue(Make())
        await running.wait()
        async with factory.app.worker(), expect(factory.app, JobsCompleted):
            first.stop()
        assert begun == [0, 0]


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
                holding.execute("select from outrider.job for update")
            holding.rollback()

        row = await factory.one()
        assert row["crashes"] == 0


async def test_a_users_transaction_holds_up_its_own_job_only(database: str) -> None:
    """A job fails while its unique key is being enqueued: whether it yields is not known yet. Others are settled."""
    enqueued = asyncio.Event()

    def declare(app: Outrider) -> None:
        @app.job(Make, retry=SOON)
        async def make(job: Make) -> None:
            if job.n == 0:
                await enqueued.wait()
                raise ValueError("no")

    async with opened(database, declare) as factory, factory.app.connect() as user, factory.app.worker():
        async with expect(factory.app, JobsClaimed):
            [held] = await factory.enqueue(Make(n=0), unique_key="u")
        async with expect(factory.app, JobFailed), user.transaction():
            await factory.app.enqueue(user, Make(n=1), unique_key="u", delay="1h")
            enqueued.set()
            others = await factory.enqueue(*(Make(n=n) for n in range(2, 20)))

            async def done() -> bool:
                return not {each["event_id"] for each in await factory.owed()} & set(others)

            await until(done)
            [row] = [each for each in await factory.owed() if each["event_id"] == held]
            assert row["status"] == "in_flight"
        assert {each["status"]: each["payload"]["n"] for each in await factory.owed()} == {"discarded": 0, "pending": 1}


async def test_a_worker_that_leaves_waits_for_no_users_transaction(database: str) -> None:
    begun, end = asyncio.Event(), asyncio.Event()

    def declare(app: Outrider) -> None:
        @app.job(Make)
        async def make(job: Make) -> None:
            begun.set()
            await end.wait()

    async with opened(database, declare) as factory:
        with psycopg.connect(database) as holding:
            async with factory.app.worker(grace=0.1):
                [job] = await factory.enqueue(Make())
                await begun.wait()
                holding.execute("select from outrider.job for update")
                end.set()
        row = await factory.one()
        assert (row["event_id"], row["crashes"]) == (job, 0)


async def test_what_runs_may_finish_within_the_grace_time(database: str) -> None:
    begun, end = asyncio.Event(), asyncio.Event()

    def declare(app: Outrider) -> None:
        @app.job(Make)
        async def make(job: Make) -> None:
            begun.set()
            await end.wait()

    async with opened(database, declare) as factory:
        worker = factory.app.worker(grace=30)
        running = asyncio.create_task(worker.run())
        await factory.enqueue(Make())
        await begun.wait()
        worker.stop()
        end.set()
        assert await running
        assert await factory.owed() == []


async def test_a_worker_that_is_cancelled_hands_back_what_it_holds(database: str) -> None:
    begun = asyncio.Event()

    def declare(app: Outrider) -> None:
        @app.job(Make)
        async def make(job: Make) -> None:
            begun.set()
            await asyncio.sleep(60)

    async with opened(database, declare) as factory:
        running = asyncio.create_task(factory.app.worker().run())
        await factory.enqueue(*(Make(n=n) for n in range(3)))
        await begun.wait()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        rows = await factory.owed()
        assert [(row["status"], row["attempts"], row["lease_token"]) for row in rows] == [("pending", 0, None)] * 3


async def test_a_full_worker_does_not_spin(database: str) -> None:
    """All slots are busy for longer than it polls: it asks once each time, for what somebody wants to stop."""
    asked = waits = 0

    def declare(app: Outrider) -> None:
        @app.job(Make)
        async def make(job: Make) -> None:
            await asyncio.sleep(60)

    claim, within = jobs.claim, loop.within

    async def counted_claim(*args: Any) -> Any:
        nonlocal asked
        asked += 1
        return await claim(*args)

    async def counted_wait(*args: Any) -> bool:
        nonlocal waits
        waits += 1
        return await within(*args)

    async def often() -> bool:
        return asked > 6

    async with opened(database, declare, poll=0.1) as factory:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(jobs, "claim", counted_claim)
            patch.setattr("outrider.worker.job_loop.within", counted_wait)
            async with factory.app.worker(slots=1, grace=0.1):
                await factory.enqueue(Make(), Make(n=2))
                await until(often)
        assert waits < 10 * asked


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
                [row] = await factory.rows("select count(*) from outrider.job where status = 'in_flight'")
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
        async def claim_one_ahead(conn: Any, asked: ClaimRequest, *args: Any) -> Any:
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


async def test_a_suspect_comes_when_the_one_before_it_was_lost(database: str, monkeypatch: Any) -> None:
    begun: list[int] = []

    def declare(app: Outrider) -> None:
        @app.job(Make)
        async def make(job: Make) -> None:
            begun.append(job.n)
            if job.n == 1:
                await asyncio.sleep(60)

    monkeypatch.setattr("outrider.worker.job_loop.RENEWAL", 0.2)
    async with opened(database, declare, poll="1h") as factory:
        await factory.enqueue(Make(n=1), Make(n=2))
        await factory.rows("update outrider.job set crashes = 1")
        async with factory.app.worker(grace=1):

            async def first() -> bool:
                return begun == [1]

            await until(first)
            async with expect(factory.app, JobsCompleted), expect(factory.app, LeaseLost):
                await factory.rows("delete from outrider.job where status = 'in_flight'")
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


async def test_a_worker_that_may_not_claim_says_so(database: str) -> None:
    """Not for ever in trouble without a word: a role without the rights."""
    async with opened(database, lambda app: app.job(Make)(idle)) as factory:
        await factory.rows("alter function outrider.claim rename to claim_before")
        with pytest.raises(SchemaMismatch, match="outrider migrate"):
            async with asyncio.timeout(25), factory.app.worker():
                pass


async def test_a_thread_that_does_not_end_is_left_behind(database: str) -> None:
    begun, end = threading.Event(), threading.Event()

    def declare(app: Outrider) -> None:
        @app.job(Make)
        def make(job: Make) -> None:
            begun.set()
            end.wait(30)

    async with opened(database, declare) as factory:
        worker = factory.app.worker(grace=0.1)
        running = asyncio.create_task(worker.run())
        await factory.enqueue(Make())
        await asyncio.to_thread(begun.wait)
        worker.stop()
        assert not await running
        row = await factory.one()
        assert (row["status"], row["attempts"], row["lease_token"]) == ("pending", 0, None)
        end.set()


def hold_the_interpreter(seconds: float) -> None:
    """In C, without letting anybody else run."""
    ctypes.PyDLL(None).usleep(int(seconds * 1e6))


async def test_a_job_that_holds_the_interpreter_keeps_its_lease(database: str) -> None:
    """Fault 4: longer than two leases, nothing else of this process runs."""
    lost: list[Signal] = []

    def declare(app: Outrider) -> None:
        @app.job(Make, lease=4)
        async def make(job: Make, ctx: JobContext) -> int:
            hold_the_interpreter(9)
            return ctx.attempt

    async with opened(database, declare) as factory:
        factory.app.signals.listen(lambda each: lost.append(each) if isinstance(each, LeaseLost) else None)
        async with factory.app.worker():
            await until(lambda: renewing(factory))
            async with expect(factory.app, JobsCompleted, timeout=25):
                await factory.enqueue(Make())
        assert [row["result"] for row in await factory.receipts()] == [1]
        assert lost == []


@pytest.mark.verify
async def test_a_blocked_loop_loses_nobodys_lease(database: str) -> None:
    lost: list[Signal] = []

    def declare(app: Outrider) -> None:
        @app.job(Make, lease=4)
        async def make(job: Make) -> None:
            if job.n == 0:
                await asyncio.sleep(0.2)
                time.sleep(9)  # noqa: ASYNC251
            else:
                await asyncio.sleep(9.5)

    async with opened(database, declare) as factory, factory.app.worker():
        factory.app.signals.listen(lambda each: lost.append(each) if isinstance(each, LeaseLost) else None)
        done = 0

        def count(each: Signal) -> None:
            nonlocal done
            done += each.jobs if isinstance(each, JobsCompleted) else 0

        factory.app.signals.listen(count)
        await until(lambda: renewing(factory))
        await factory.enqueue(*(Make(n=n) for n in range(5)))

        async def all_done() -> bool:
            return done == 5

        await until(all_done)
    assert lost == []


@pytest.mark.parametrize("options", [{}, {"timeout": "1m"}], ids=["without a timeout", "with one"])
async def test_a_job_that_holds_the_event_loop_is_reported_while_it_does(
    database: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It holds the loop until it was reported: so the report comes from another thread."""
    monkeypatch.setattr(watchdog, "HELD", 0.1)
    reports: list[LoopHeld] = []
    reported = threading.Event()

    def hear(each: Signal) -> None:
        if isinstance(each, LoopHeld):
            reports.append(each)
            reported.set()

    def declare(app: Outrider) -> None:
        @app.job(Make, **options)
        async def make(job: Make) -> None:
            assert reported.wait(60)

    async with opened(database, declare) as factory:
        factory.app.signals.listen(hear)
        async with factory.app.worker(), expect(factory.app, JobsCompleted):
            await factory.enqueue(Make())
    assert reports[0].subscription == "factory.make"


async def test_a_lost_lease_cancels_the_job_and_settles_nothing(database: str) -> None:
    begun, cancelled = asyncio.Event(), []

    def declare(app: Outrider) -> None:
        @app.job(Make, lease=3, retry=SOON)
        async def make(job: Make, ctx: JobContext) -> None:
            begun.set()
            try:
                await asyncio.sleep(60)
            finally:
                cancelled.append(ctx.attempt)

    async with opened(database, declare) as factory, factory.app.worker() as worker:
        await factory.enqueue(Make())
        await begun.wait()
        async with expect(factory.app, LeaseLost):
            await factory.rows("update outrider.subscription set paused_at = now()")
            await factory.rows("select outrider.reap('{factory.make}', (select locked_by from outrider.job))")
        assert worker.ready.is_set()
        row = await factory.one()
        assert (row["status"], row["crashes"], row["attempts"]) == ("pending", 1, 0)
        assert cancelled == [1]


async def test_the_side_process_is_started_again_and_dies_with_its_worker(database: str) -> None:
    end = asyncio.Event()

    def declare(app: Outrider) -> None:
        @app.job(Make, lease=20)
        async def make(job: Make) -> None:
            await end.wait()

    async with opened(database, declare) as factory, factory.app.worker():
        await until(lambda: renewing(factory))
        before = await side_processes()
        async with expect(factory.app, JobsClaimed):
            await factory.enqueue(Make())
        before[0].send_signal(signal.SIGKILL)
        expires_at = (await factory.one())["lease_expires_at"]

        async def renewed() -> bool:
            return (await factory.one())["lease_expires_at"] > expires_at and await side_processes() != before

        await until(renewed)
        async with expect(factory.app, JobsCompleted):
            end.set()


async def test_the_side_process_is_replaced_when_it_says_half_a_line(database: str, monkeypatch: Any) -> None:
    said: list[int] = []
    script = 'import sys; sys.stdin.readline(); sys.stdout.write(\'{"at": 1, "he\'); sys.stdout.flush()'
    start = asyncio.create_subprocess_exec

    async def broken(*command: str, **options: Any) -> Any:
        said.append(1)
        return await start(sys.executable, "-c", script, **options)

    monkeypatch.setattr(asyncio, "create_subprocess_exec", broken)
    site = Site(database, cast(Any, None), Settings(context="shop"), Signals())
    leases = Leases(site, uuid4(), [], 1, CrashRecord(1), on_report=lambda _: None)
    running = asyncio.create_task(leases.run())

    async def twice() -> bool:
        return len(said) >= 2

    await until(twice)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_secrets_are_not_in_the_process_list(database: str) -> None:
    dsn = f"{database} password=very-secret-marker"
    async with opened(dsn, lambda app: app.job(Make)(lambda job: job)) as factory, factory.app.worker():
        found = await until(side_processes)
        assert "very-secret-marker" not in " ".join(found[0].cmdline())


async def test_limits_hold_over_workers(database: str) -> None:
    running, most, keys = 0, 0, dict[str, int]()

    def declare(app: Outrider) -> None:
        @app.job(Paint, concurrency=3, key_concurrency=1)
        async def paint(job: Paint) -> None:
            nonlocal running, most
            running += 1
            most = max(most, running)
            keys[job.part] = keys.get(job.part, 0) + 1
            assert keys[job.part] == 1, "two with the same key"
            await asyncio.sleep(0.005)
            keys[job.part] -= 1
            running -= 1

    async with opened(database, declare) as factory:
        await factory.enqueue(*(Paint(part="abcd"[n % 4], n=n) for n in range(60)))
        left, finished = 60, asyncio.Event()

        def count(each: Signal) -> None:
            nonlocal left
            if isinstance(each, JobsCompleted):
                left -= each.jobs
                if left == 0:
                    finished.set()
            if isinstance(each, JobFailed):
                raise AssertionError(each.message)

        factory.app.signals.listen(count)
        async with factory.app.worker(), factory.app.worker(), asyncio.timeout(30):
            await finished.wait()
        assert most == 3
        assert await factory.owed() == []


async def test_queues(database: str) -> None:
    ran: list[int] = []
    async with opened(database, lambda app: app.job(Make)(lambda job: ran.append(job.n))) as factory:
        await factory.enqueue(Make(n=1), queue="slow")
        await factory.enqueue(Make(n=2), queue="fast")
        async with factory.app.worker(queues=["fast"]), expect(factory.app, JobsCompleted):
            pass
        assert ran == [2]


async def test_jobs_of_a_queue_that_their_generation_does_not_serve_are_taken_by_others(database: str) -> None:
    async with opened(database, lambda app: app.job(Make)(idle)) as factory:
        await factory.rows(
            """insert into outrider.worker (id, host, pid, version, generation, subscriptions, queues)
               values (gen_random_uuid(), 'h', 1, '1', 7, '{factory.make}', '{fast}')"""
        )
        await factory.enqueue(Make(n=1), queue="bulk")
        await factory.enqueue(Make(n=2), queue="fast")
        await factory.rows("update outrider.job set generation = 7")
        assert (await factory.app.drain()).jobs == 1
        assert (await factory.one())["queue"] == "fast"


async def test_a_paused_job_waits(database: str) -> None:
    async with opened(database, lambda app: app.job(Make)(idle)) as factory:
        await factory.app.pause("factory.make")
        await factory.enqueue(Make())
        assert (await factory.app.drain()).jobs == 0
        await factory.app.resume("factory.make")
        assert (await factory.app.drain()).jobs == 1


async def test_jobs_and_their_worker_are_seen(database: str) -> None:
    async with opened(database, lambda app: app.job(Make)(idle)) as factory, factory.app.worker() as worker:
        async with expect(factory.app, JobsClaimed) as claimed:
            [job_id] = await factory.enqueue(Make())
        [run] = runs(claimed)
        assert (run.job_id, run.subscription, run.attempt, run.worker) == (
            job_id,
            "factory.make",
            1,
            str(worker.identity),
        )
        [seen] = await factory.rows("select subscriptions, pid from outrider.worker")
        assert seen == {"subscriptions": ["factory.make"], "pid": os.getpid()}


async def test_the_database_goes_away_and_comes_back(database: str) -> None:
    """Its session is ended while jobs run: nothing is lost, no attempt used."""
    begun, go = asyncio.Event(), asyncio.Event()

    def declare(app: Outrider) -> None:
        @app.job(Make)
        async def make(job: Make, ctx: JobContext) -> int:
            begun.set()
            await go.wait()
            return ctx.attempt

    async with opened(database, declare) as factory, factory.app.worker():
        await factory.enqueue(*(Make(n=n) for n in range(20)))
        await begun.wait()
        async with expect(factory.app, JobsCompleted, timeout=20):
            await factory.rows(
                "select pg_terminate_backend(pid) from pg_stat_activity "
                "where datname = current_database() and application_name = 'outrider jobs'"
            )
            go.set()
        await until(lambda: empty(factory))
        assert [row["result"] for row in await factory.receipts()] == [1] * 20


async def test_cancelled_is_an_error_like_others_when_nobody_asked(database: str) -> None:
    def declare(app: Outrider) -> None:
        @app.job(Make, retry=SOON)
        async def make(job: Make) -> None:
            raise Cancelled

    async with opened(database, declare) as factory:
        await factory.enqueue(Make())
        assert (await factory.app.drain()).jobs_failed == 1
        assert (await factory.one())["last_error_code"] == "cancelled"


async def test_many_at_once(database: str) -> None:
    async with opened(database, lambda app: app.job(Make)(idle)) as factory:
        with psycopg.connect(factory.dsn) as conn:
            made = factory.app.enqueue_many_sync(conn, [Make(n=n) for n in range(10)], priority=4)
            assert len({each.id for each in made}) == 10
        assert (await factory.app.drain()).jobs == 10
