"""What becomes of a job: done, tried again, snoozed, buried, too late; on the loop, in a thread, in a process."""

from __future__ import annotations

import asyncio
import contextvars
import os
import signal
import threading
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import psutil
import pytest
from tests.worker.jobs.factory import SOON, Make, Ordered, Paint, idle, opened

from outrider import (
    Backoff,
    Bury,
    Job,
    JobContext,
    Outrider,
    Retry,
    Snooze,
    SyncJobContext,
)
from outrider.envelope import inherited_workspace
from outrider.errors import DeclarationError, EnqueueRefused
from outrider.signals import JobsCompleted
from outrider.testing import expect
from outrider.worker.drain import Drained

pytestmark = pytest.mark.also_on(15)


def in_three(job: Any, ctx: Any, other: Any) -> None:
    pass


async def test_a_job_is_done_and_leaves_a_receipt(database: str) -> None:
    seen: list[tuple[int, int, str]] = []

    def declare(app: Outrider) -> None:
        @app.job(Make)
        async def make(job: Make, ctx: JobContext) -> dict[str, int]:
            seen.append((job.n, ctx.attempt, ctx.envelope.source))
            return {"made": job.n}

    async with opened(database, declare) as factory:
        [job_id] = await factory.enqueue(Make(n=1))
        drained = await factory.app.drain()
        assert (drained.jobs, drained.jobs_failed, drained.handled) == (1, 0, 0)
        assert seen == [(1, 1, "factory")]
        assert await factory.owed() == []
        [row] = await factory.app.jobs.get(job_id)
        assert (row.id, row.state, row.result, row.subscription) == (job_id, "done", {"made": 1}, "factory.make")


async def test_a_job_without_a_result_leaves_a_receipt_only_if_it_has_a_history(database: str) -> None:
    first: dict[int, Exception] = {1: ValueError("no"), 2: Snooze(for_="1h", reason="not yet")}

    def declare(app: Outrider) -> None:
        @app.job(Make, retry=SOON)
        async def make(job: Make) -> None:
            if error := first.pop(job.n, None):
                raise error

    async with opened(database, declare) as factory:
        plain, *others = await factory.enqueue(Make(n=0), Make(n=1), Make(n=2))
        assert (await factory.app.drain()).jobs == 1
        assert await factory.app.jobs.get(plain) == []
        assert [each.outcome for each in await factory.app.jobs.cancel(plain)] == ["not_found"]
        for job_id in others:
            assert [each.outcome for each in await factory.app.jobs.run_now(job_id)] == ["due"]
        assert (await factory.app.drain()).jobs == 2
        for job_id in others:
            [row] = await factory.app.jobs.get(job_id)
            assert (row.state, row.result, len(row.history or ())) == ("done", None, 1)
        assert len(await factory.receipts()) == 2


async def test_a_type_with_keep_leaves_a_receipt_of_every_job(database: str) -> None:
    async with opened(database, lambda app: app.job(Make, keep="7d")(idle)) as factory:
        [kept] = await factory.enqueue(Make(n=0))
        assert (await factory.app.drain()).jobs == 1
        [row] = await factory.app.jobs.get(kept)
        assert (row.state, row.result, row.history) == ("done", None, None)
        assert await factory.rows("select keep from outrider.subscription") == [{"keep": timedelta(days=7)}]


async def test_nothing_runs_that_was_rolled_back(database: str) -> None:
    async with opened(database, lambda app: app.job(Make)(idle)) as factory:
        async with factory.app.connect() as conn, conn.transaction(force_rollback=True):
            await factory.app.enqueue(conn, Make())
        assert (await factory.app.drain()).jobs == 0


async def test_who_keeps_a_job_knows_that_it_will_see_what_he_wrote(database: str) -> None:
    """The job is not claimed before the transaction that kept it has committed."""
    async with opened(database, lambda app: app.job(Make)(idle)) as factory:
        await factory.enqueue(Make(), unique_key="one")
        async with factory.app.connect() as conn, conn.transaction():
            kept = await factory.app.enqueue(conn, Make(), unique_key="one")
            assert kept.outcome == "kept"
            assert (await factory.app.drain()).jobs == 0
        assert (await factory.app.drain()).jobs == 1


async def test_a_failed_job_is_tried_again_and_buried_with_its_history(database: str) -> None:
    def declare(app: Outrider) -> None:
        @app.job(Make, retry=Backoff.table("30s", "5m"))
        async def make(job: Make) -> None:
            raise ValueError("no paint\x00 left")

    async with opened(database, declare) as factory:
        [job_id] = await factory.enqueue(Make())
        for attempt, wait in ((1, 30), (2, 300)):
            drained = await factory.app.drain()
            assert (drained.jobs_failed, drained.jobs_buried) == (1, 0)
            row = await factory.one()
            assert (row["status"], row["attempts"], row["last_error_code"]) == ("pending", attempt, "value_error")
            [due] = await factory.rows("select extract(epoch from run_at - clock_timestamp()) as s from outrider.job")
            assert wait - 20 < due["s"] <= wait
            await factory.make_due()
        assert (await factory.app.drain()).jobs_buried == 1
        row = await factory.one()
        assert (row["status"], row["attempts"], row["last_error"]) == ("failed", 3, "ValueError: no paint left")
        assert [(each["attempt"], each["code"]) for each in row["failure_history"]] == [
            (n, "value_error") for n in (1, 2, 3)
        ]
        [letter] = [each async for each in factory.app.dead_letters.each()]
        assert letter.event_id == job_id
        assert [each.outcome for each in await factory.app.replay(job_id)] == ["replayed"]
        assert (await factory.one())["attempts"] == 0


@pytest.mark.parametrize(
    ("error", "status", "attempts", "code"),
    [
        (Retry("2h", "busy"), "pending", 1, "retry"),
        (Snooze("2h", "later"), "pending", 0, "snooze"),
        (Bury("never"), "failed", 1, "bury"),
    ],
)
async def test_what_a_job_raises(database: str, error: Exception, status: str, attempts: int, code: str) -> None:
    def declare(app: Outrider) -> None:
        @app.job(Make, retry=SOON)
        async def make(job: Make) -> None:
            raise error

    async with opened(database, declare) as factory:
        await factory.enqueue(Make())
        await factory.app.drain()
        row = await factory.one()
        assert (row["status"], row["attempts"], row["last_error_code"]) == (status, attempts, code)
        assert row["lease_token"] is None


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


async def test_an_undecodable_job_is_buried_and_its_neighbours_run(database: str) -> None:
    ran: list[int] = []
    async with opened(database, lambda app: app.job(Make)(lambda job: ran.append(job.n))) as factory:
        await factory.enqueue(Make(n=1), Make(n=2))
        await factory.rows("select outrider.enqueue('factory.make', '{\"n\": \"many\"}')")
        drained = await factory.app.drain()
        assert (drained.jobs, drained.jobs_buried) == (2, 1)
        assert (await factory.one())["last_error_code"] == "undecodable"
        assert sorted(ran) == [1, 2]


async def test_a_blocking_job_runs_in_a_thread_with_connections_of_its_tenant(database: str) -> None:
    seen: list[Any] = []

    def declare(app: Outrider) -> None:
        @app.job(Make)
        def make(job: Make, ctx: SyncJobContext) -> None:
            with ctx.connect() as conn:
                row = conn.execute("select current_setting('app.workspace_id', true)").fetchone()
                app.enqueue_sync(conn, Paint(part="p"))
            seen.append((threading.current_thread() is threading.main_thread(), row, inherited_workspace.get()))

        @app.job(Paint)
        async def paint(job: Paint, ctx: JobContext) -> None:
            async with ctx.connect() as conn:
                cursor = await conn.execute("select current_setting('app.workspace_id', true)")
                seen.append((ctx.envelope.workspace_id, await cursor.fetchone()))

    async with opened(database, declare) as factory:
        await factory.enqueue(Make(), workspace_id="north")
        assert (await factory.app.drain()).jobs == 2
        assert seen == [(False, ("north",), "north"), ("north", ("north",))]


VARIABLE = contextvars.ContextVar("test_run", default="none")


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


async def test_a_job_that_takes_too_long(database: str) -> None:
    left = threading.Event()

    def declare(app: Outrider) -> None:
        @app.job(Make, timeout=0.1, retry=SOON)
        async def make(job: Make) -> None:
            await asyncio.sleep(60)

        @app.job(Paint, timeout=0.1, retry=SOON)
        def paint(job: Paint, ctx: SyncJobContext) -> None:
            left.wait(10)

    async with opened(database, declare) as factory:
        await factory.enqueue(Make(), Paint(part="a"))
        assert (await factory.app.drain()).jobs_failed == 2
        assert {row["last_error_code"] for row in await factory.owed()} == {"timeout"}
        left.set()


async def test_an_async_job_that_blocks_past_its_timeout_has_failed(database: str) -> None:
    def declare(app: Outrider) -> None:
        @app.job(Make, timeout=0.1, retry=SOON)
        async def make(job: Make) -> None:
            time.sleep(0.2)  # noqa: ASYNC251

    async with opened(database, declare) as factory:
        await factory.enqueue(Make())
        drained = await factory.app.drain()
        assert (drained.jobs, drained.jobs_failed) == (0, 1)
        assert (await factory.one())["last_error_code"] == "timeout"


async def test_a_result_that_cannot_be_kept_does_not_undo_the_job(database: str) -> None:
    results: list[object] = ["x" * 9000, object(), "\x00", {"fine": True}]
    async with opened(database, lambda app: app.job(Make)(lambda job: results[job.n])) as factory:
        await factory.enqueue(*(Make(n=n) for n in range(4)))
        assert (await factory.app.drain()).jobs == 4
        kept = [row["result"] for row in await factory.receipts()]
        assert {"fine": True} in kept
        assert sum("not_kept" in each for each in kept if isinstance(each, dict)) == 3


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


async def test_events_become_jobs_once(database: str) -> None:
    ran: list[tuple[int, Any]] = []

    def declare(app: Outrider) -> None:
        @app.job(on=Ordered, name="factory.produce", priority=3, queue="heavy")
        async def produce(event: Ordered, ctx: JobContext) -> int:
            ran.append((event.n, ctx.envelope.id))
            return event.n

    async with opened(database, declare) as factory:
        ids = await factory.publish(*(Ordered(n=n) for n in range(3)))
        await factory.publish(Ordered(n=7), idempotency_key="seven")
        await factory.publish(Ordered(n=7), idempotency_key="seven")
        assert (await factory.app.drain()).jobs == 4
        await factory.publish(Ordered(n=7), idempotency_key="seven")
        assert (await factory.app.drain()).jobs == 0
        assert sorted(n for n, _ in ran) == [0, 1, 2, 7]
        assert {each for _, each in ran} >= set(ids)
        story = await factory.app.event(ids[0])
        assert story is not None
        [row] = await factory.app.jobs.get(ids[0])
        assert (row.state, row.result) == ("done", 0)
        statuses = await factory.rows(
            "select distinct status from outrider.event_status where subscription = 'factory.produce'"
        )
        assert statuses == [{"status": "delivered"}]


async def test_a_failed_job_of_an_event_is_a_dead_letter_of_it(database: str) -> None:
    fails = [True]

    def declare(app: Outrider) -> None:
        @app.job(on=Ordered, name="factory.produce")
        async def produce(event: Ordered) -> None:
            if fails:
                raise Bury("broken")

    async with opened(database, declare) as factory:
        [event_id] = await factory.publish(Ordered(n=1))
        assert (await factory.app.drain()).jobs_buried == 1
        assert [row["status"] for row in await factory.rows("select status from outrider.event_status")] == ["failed"]
        fails.clear()
        assert [each.outcome for each in await factory.app.replay(event_id)] == ["replayed"]
        assert (await factory.app.drain()).jobs == 1
        assert [each.outcome for each in await factory.app.replay(event_id)] == ["skipped_handled"]
        again = await factory.app.replay(event_id, subscription="factory.produce", force=True)
        assert [each.outcome for each in again] == ["replayed"]
        assert (await factory.app.drain()).jobs == 1


def in_a_process(job: Make, ctx: SyncJobContext) -> dict[str, object]:
    if job.n == 1:
        os._exit(3)
    if job.n == 2:
        raise Bury("not here")
    if job.n == 3:
        raise Retry("1h", "later")
    with ctx.connect() as conn:
        row = conn.execute("select current_setting('app.workspace_id', true)").fetchone()
    return {"pid": os.getpid(), "workspace": row}


async def in_a_process_async(job: Paint, ctx: JobContext) -> str:
    await asyncio.sleep(0)
    return f"{job.part} {ctx.attempt}"


async def test_a_process_of_its_own(database: str) -> None:
    def declare(app: Outrider) -> None:
        app.job(Make, executor="process", retry=SOON)(in_a_process)
        app.job(Paint, executor="process", retry=SOON)(in_a_process_async)

    async with opened(database, declare) as factory:
        await factory.enqueue(*(Make(n=n) for n in range(4)), Paint(part="door"), workspace_id="north")
        drained = await factory.app.drain()
        assert (drained.jobs, drained.jobs_buried) == (2, 2)
        results = [row["result"] for row in await factory.receipts()]
        assert "door 1" in results
        [made] = [each for each in results if isinstance(each, dict)]
        assert made["pid"] != os.getpid()
        assert made["workspace"] == ["north"]
        rows = {row["payload"]["n"]: row for row in await factory.owed()}
        assert (rows[1]["status"], rows[1]["last_error_code"], rows[1]["crashes"]) == ("failed", "worker_crash", 3)
        assert (rows[2]["status"], rows[2]["last_error_code"]) == ("failed", "bury")
        assert "in in_a_process\n" in rows[2]["last_traceback"], "it comes with the error from the other process"
        assert rows[1]["last_traceback"] is None
        assert (rows[3]["status"], rows[3]["attempts"]) == ("pending", 1)


async def test_a_process_job_that_takes_too_long_is_killed(database: str) -> None:
    async with opened(
        database, lambda app: app.job(Make, executor="process", timeout=0.5, retry=SOON)(_spin)
    ) as factory:
        await factory.enqueue(Make())
        assert (await factory.app.drain()).jobs_failed == 1
        assert (await factory.one())["last_error_code"] == "timeout"


def _spin(job: Make, ctx: SyncJobContext) -> None:
    while True:
        pass


def answer(job: Make, ctx: SyncJobContext) -> object:
    return (lambda: None) if job.n == 9 else os.getpid()


@pytest.mark.verify
async def test_a_process_that_died_while_idle_is_nobodys_fault(database: str) -> None:
    def declare(app: Outrider) -> None:
        app.job(Make, executor="process", retry=SOON)(answer)

    async with opened(database, declare) as factory, factory.app.worker():
        async with expect(factory.app, JobsCompleted, timeout=30):
            await factory.enqueue(Make())
        for child in psutil.Process().children():
            if "outrider.worker.job_process_main" in child.cmdline():
                child.send_signal(signal.SIGKILL)
        async with expect(factory.app, JobsCompleted, timeout=30):
            await factory.enqueue(Make(n=1))
        assert await factory.owed() == []


@pytest.mark.verify
async def test_a_result_that_cannot_leave_its_process_does_not_undo_the_job(database: str) -> None:
    def declare(app: Outrider) -> None:
        app.job(Make, executor="process", retry=SOON)(answer)

    async with opened(database, declare) as factory:
        await factory.enqueue(Make(n=9))
        assert (await factory.app.drain()).jobs == 1
        assert "not_kept" in (await factory.receipts())[0]["result"]


@pytest.mark.parametrize(
    ("declared", "says"),
    [
        ({"lease": 0.5}, "shorter than a second"),
        ({"lease": "soon"}, "lease: 'soon' is not a duration"),
        ({"timeout": 0}, "timeout=0 is not longer than zero"),
        ({"keep": 0}, "keep=0 is not longer than zero"),
        ({"keep": "3651d"}, "keep: '3651d' is too long"),
        ({"concurrency": 0}, "concurrency=0 is not a whole number from 1 to 2,147,483,647"),
        ({"key_concurrency": True}, "key_concurrency=True"),
        ({"executor": "fork"}, "executor='fork' is none of auto, process"),
        ({"executor": "process"}, "at the top of a module"),
        ({"retry": 3}, "is not a policy"),
        ({"queue": "heavy"}, "is for jobs of events"),
    ],
)
def test_a_wrong_declaration_is_refused(declared: dict[str, Any], says: str) -> None:
    app = Outrider(context="factory", dsn="unused")
    with pytest.raises(DeclarationError, match=says):
        app.job(Make, **declared)(lambda _: None)


def test_a_process_cannot_find_a_function_of_the_script() -> None:
    app = Outrider(context="factory", dsn="unused")

    def at_the_top(job: Make) -> None:
        pass

    at_the_top.__module__, at_the_top.__qualname__ = "__main__", "at_the_top"
    with pytest.raises(
        DeclarationError, match=r"factory\.make: executor='process' .* the script that was started"
    ) as no:
        app.job(Make, executor="process")(at_the_top)
    assert "move at_the_top into a module of its own" in str(no.value)
    app.job(Make)(at_the_top)


@pytest.mark.parametrize(
    ("counts", "says"),
    [
        ({}, "0 handled, 0 to retry, 0 dead letters, 0 duplicates skipped"),
        ({"handled": 1}, "1 handled, 0 to retry, 0 dead letters, 0 duplicates skipped"),
        ({"jobs": 1}, "1 job done, 0 attempts failed, 0 dead letters"),
        ({"jobs_failed": 1, "jobs_buried": 1}, "0 jobs done, 1 attempt failed, 1 dead letter"),
        ({"jobs": 2, "jobs_failed": 3, "jobs_buried": 2}, "2 jobs done, 3 attempts failed, 2 dead letters"),
    ],
)
def test_a_drain_counts_aloud(counts: dict[str, int], says: str) -> None:
    assert str(Drained(**counts)).split("; ")[-1] == says  # type: ignore[arg-type]


def test_what_is_no_job_is_refused() -> None:
    app = Outrider(context="factory", dsn="unused")
    with pytest.raises(DeclarationError, match="not a Job class"):
        app.job(Ordered)  # type: ignore[arg-type]
    with pytest.raises(DeclarationError, match="a job is for"):
        app.job()
    with pytest.raises(DeclarationError, match="named after its type"):
        app.job(Make, name="other")
    app.job(Make)(idle)
    with pytest.raises(DeclarationError, match="declared twice"):
        app.job(Make)(idle)
    with pytest.raises(DeclarationError, match="a job takes"):
        app.job(Paint)(in_three)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"priority": 101}, "priority: 101 is not a whole number"),
        ({"priority": 1.5}, "priority"),
        ({"queue": "Big Jobs"}, "queue"),
        ({"unique_key": ""}, "unique_key: is empty"),
        ({"unique_key": "x" * 600}, "unique_key: has 600 bytes"),
        ({"on_conflict": "replace"}, "needs a unique_key"),
        ({"unique_key": "a", "on_conflict": "drop"}, "none of keep, replace, debounce"),
        ({"run_at": datetime(2030, 1, 1)}, "naive"),  # noqa: DTZ001
        ({"delay": "soon"}, "not a duration"),
        ({"delay": 1, "run_at": datetime(2030, 1, 1, tzinfo=UTC)}, "excludes run_at"),
        ({"key": "\x00"}, "u0000"),
    ],
)
async def test_what_cannot_be_enqueued_leaves_the_transaction_usable(
    database: str, options: dict[str, Any], says: str
) -> None:
    async with opened(database, lambda app: app.job(Make)(idle)) as factory:
        async with factory.app.connect() as conn, conn.transaction():
            with pytest.raises(EnqueueRefused, match=says):
                await factory.app.enqueue(conn, Make(), **options)
            await factory.app.enqueue(conn, Make())
        assert (await factory.app.drain()).jobs == 1


async def test_a_payload_of_ten_megabytes_names_the_limit(database: str) -> None:
    class Big(Job, type="factory.big"):
        text: str

    async with opened(database, lambda app: app.job(Big)(idle)) as factory, factory.app.connect() as conn:
        with pytest.raises(EnqueueRefused, match=r"was not enqueued: payload: has 10,0.* limit is 262,144"):
            await factory.app.enqueue(conn, Big(text="x" * 10_000_000))


async def test_an_error_of_a_megabyte_with_everything_in_it_is_recorded(database: str) -> None:
    """Fault 18."""

    def declare(app: Outrider) -> None:
        @app.job(Make, retry=SOON)
        async def make(job: Make) -> None:
            raise ValueError("\x00\x1b[31m\ud800\u202e" + "x" * 1_000_000)

    async with opened(database, declare) as factory:
        await factory.enqueue(Make())
        assert (await factory.app.drain()).jobs_failed == 1
        row = await factory.one()
        assert len(row["last_error"].encode()) <= 8192
        assert row["last_error"].startswith("ValueError: \\x1b[31m")
        assert (row["status"], row["attempts"]) == ("pending", 1)


async def test_jobs_wait_for_their_time(database: str) -> None:
    ran: list[int] = []
    async with opened(database, lambda app: app.job(Make)(lambda job: ran.append(job.n))) as factory:
        await factory.enqueue(Make(n=1), delay="1h")
        await factory.enqueue(Make(n=2), run_at=datetime.now(UTC) + timedelta(hours=1))
        await factory.enqueue(Make(n=3))
        assert (await factory.app.drain()).jobs == 1
        await factory.make_due()
        await factory.app.drain()
        assert sorted(ran[1:]) == [1, 2], "both at once, in two threads"
