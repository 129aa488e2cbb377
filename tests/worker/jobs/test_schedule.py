"""Schedules in the database: each time is fired once, whoever fires it and whoever dies; what was missed; the loop."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, time, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row
from tests.docs.test_docs import ROOT, python_blocks
from tests.processes import Begin, processes, until
from tests.worker.jobs.factory import Make, Paint

from outrider import Outrider
from outrider.errors import DeclarationError, SubscriptionRefused
from outrider.postgres import connection, schedules
from outrider.postgres.worker_sessions import WorkerSessions
from outrider.schedule import Schedule
from outrider.signals import Fired, JobsCompleted, Troubled
from outrider.testing import expect
from outrider.worker.schedule_loop import NAME, Scheduled, ScheduleLoop

NEVER = "0 0 29 2 *"
"""Not while this test runs, in all likelihood."""
EVERY_SECOND = "* * * * * *"
BLOCKED = "select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"


@pytest.fixture
def desk(database: str) -> Iterator[psycopg.Connection[dict[str, Any]]]:
    with psycopg.connect(database, autocommit=True, row_factory=dict_row) as conn:
        yield conn


@asynccontextmanager
async def opened(dsn: str, declare: Callable[[Outrider], object], **options: Any) -> AsyncIterator[Outrider]:
    app = Outrider(context="factory", dsn=dsn, **options)
    declare(app)
    async with app:
        await app.migrate()
        yield app


Desk = psycopg.Connection[dict[str, Any]]


def jobs_of(desk: Desk) -> list[dict[str, Any]]:
    return desk.execute("select * from outrider.job order by run_at").fetchall()


def schedule_of(desk: Desk) -> dict[str, Any]:
    [row] = desk.execute("select * from outrider.schedule").fetchall()
    return row


def two_hours_ago(desk: Desk) -> datetime:
    [row] = desk.execute("select date_trunc('minute', clock_timestamp()) - interval '2 hours' as at").fetchall()
    at: datetime = row["at"]
    return at.astimezone(UTC)


def back_date(desk: Desk, to: datetime) -> None:
    """Time travel: nobody was there since, and nothing was changed."""
    desk.execute("update outrider.schedule set fired_at = %(to)s, updated_at = least(updated_at, %(to)s)", {"to": to})


# Declaration and registration


def test_what_cannot_be_enqueued_cannot_be_scheduled() -> None:
    app = Outrider(context="factory")
    for options, message in (
        ({"queue": "Not A Word"}, "factory.make: queue: 'Not A Word' is not a lower-case word"),
        ({"priority": 101}, "factory.make: priority: 101 is not a whole number from -100 to 100"),
        ({"key": ""}, "factory.make: key: is empty"),
        ({"workspace_id": "w" * 256}, "factory.make: workspace_id: has 256 bytes"),
        ({"time_zone": "Mars/Olympus"}, "factory.make: time_zone='Mars/Olympus' is not known here"),
    ):
        with pytest.raises(DeclarationError, match=message):
            app.schedule(NEVER, Make(n=1), **options)
    with pytest.raises(TypeError, match="retries"):
        app.schedule(NEVER, Make(n=1), retries=3)  # type: ignore[call-arg]
    assert app.schedules == ()


def test_two_schedules_cannot_have_the_same_name() -> None:
    app = Outrider(context="factory")
    app.schedule(NEVER, Make(n=1))
    app.schedule(NEVER, Make(n=2), name="factory.other")
    with pytest.raises(DeclarationError, match=r"'factory.make' is declared twice: give one of them another name="):
        app.schedule("0 3 * * *", Make(n=3))
    assert [each.name for each in app.schedules] == ["factory.make", "factory.other"]


async def test_a_new_schedule_begins_now(database: str, desk: Desk) -> None:
    [before] = desk.execute("select clock_timestamp() as at").fetchall()
    async with opened(database, lambda app: app.schedule(NEVER, Make(n=1))) as app:
        await app.drain()
        row = schedule_of(desk)
        assert (row["name"], row["job_type"], row["cron"], row["time_zone"]) == (
            "factory.make", "factory.make", NEVER, "UTC",
        )  # fmt: skip
        assert row["fired_at"] > before["at"]
        assert jobs_of(desk) == []


async def test_a_changed_schedule_goes_on_from_where_it_was(database: str, desk: Desk) -> None:
    async with opened(database, lambda app: app.schedule(NEVER, Make(n=1))) as app:
        before = schedule_of(desk)
        await app.migrate()
        assert schedule_of(desk) == before
    async with opened(database, lambda app: app.schedule("0 0 31 1 *", Make(n=1), time_zone="Europe/Berlin")):
        after = schedule_of(desk)
    assert (after["cron"], after["time_zone"]) == ("0 0 31 1 *", "Europe/Berlin")
    assert after["fired_at"] == before["fired_at"]
    assert after["updated_at"] > before["updated_at"]


async def test_the_schedule_of_another_context_is_refused(database: str, desk: Desk) -> None:
    """Or each time would go to one of the two, and the other would never know."""
    other = Outrider(context="laundry", dsn=database)
    other.schedule("0 3 * * *", Paint(part="door"), name="factory.nightly")
    async with opened(database, lambda app: app.schedule(NEVER, Make(n=1), name="factory.nightly")) as app:
        before = schedule_of(desk)
        async with other:
            for register in (other.migrate, other.worker().run):
                with pytest.raises(SubscriptionRefused, match=r"'factory.nightly' belongs to the context 'factory'"):
                    await register()
        assert schedule_of(desk) == before
        await app.migrate()


async def test_of_two_contexts_that_register_a_schedule_at_once_one_is_refused(database: str, desk: Desk) -> None:
    """The second looks before the first has committed."""
    schedule = Schedule(NEVER, Make(n=1))
    request = Scheduled.by(Outrider(context="factory")._enqueuer, schedule).request
    async with (
        await connection.connect(database) as first,
        await connection.connect(database, autocommit=True) as second,
    ):
        await schedules.register(first, schedule, request, "outrider", "factory")
        registering = asyncio.create_task(schedules.register(second, schedule, request, "outrider", "laundry"))
        async with asyncio.timeout(30):
            while not desk.execute(BLOCKED).fetchall():  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        await first.commit()
        with pytest.raises(SubscriptionRefused, match="belongs to the context 'factory'"):
            await registering


async def test_a_schedule_that_another_context_took_over_is_not_fired_any_more(database: str, desk: Desk) -> None:
    """Somebody removed its row, and another app was faster. The worker says so, and goes on with its others."""

    def declare(app: Outrider) -> None:
        app.schedule(EVERY_SECOND, Make(n=1), name="factory.taken")
        app.schedule(EVERY_SECOND, Make(n=2), name="factory.own")

    async with opened(database, declare) as app:
        desk.execute("update outrider.schedule set context = 'laundry' where name = 'factory.taken'")
        scheduled = [Scheduled.by(app._enqueuer, each) for each in app.schedules]
        async with (
            expect(app, Troubled, lambda each: "belongs to the context 'laundry'" in each.message),
            expect(app, Fired) as fired,
        ):
            sessions = WorkerSessions(database, 1, 10)
            loop = ScheduleLoop(scheduled, app.settings, app.signals, sessions=sessions, poll=lambda: 0.1)
            running = asyncio.create_task(loop.run())
        loop.stop()
        await running
        await sessions.close()
        assert {each.schedule for each in fired} == {"factory.own"}
        assert {job["payload"]["n"] for job in jobs_of(desk)} == {2}


async def test_a_starting_worker_registers_too(database: str, desk: Desk) -> None:
    async with opened(database, lambda _: None):
        pass
    app = Outrider(context="factory", dsn=database)
    app.schedule(NEVER, Make(n=1))
    async with app, app.worker():
        assert schedule_of(desk)["name"] == "factory.make"


# Firing


async def test_the_job_is_that_of_the_schedule(database: str, desk: Desk) -> None:
    at = two_hours_ago(desk)

    def declare(app: Outrider) -> None:
        cron, name = f"{at.minute} {at.hour} * * *", "factory.daily"
        app.schedule(
            cron, Paint(part="door", n=4), name=name, queue="slow", priority=7, key="hinge", workspace_id="acme"
        )

    async with opened(database, declare, generation=3) as app:
        back_date(desk, at - timedelta(hours=1))
        async with expect(app, Fired) as seen:
            await app.drain()
        assert seen == [Fired("factory.daily", 1)]
        assert schedule_of(desk)["fired_at"] == at
        [job] = jobs_of(desk)
        assert (job["run_at"], job["status"], job["subscription"]) == (at, "pending", "factory.paint")
        assert job["payload"] == {"part": "door", "n": 4}
        assert (job["queue"], job["priority"], job["job_key"], job["workspace_id"]) == ("slow", 7, "hinge", "acme")
        assert (job["generation"], job["source"], job["event_version"]) == (3, "factory", 1)


async def test_a_drain_fires_and_does_the_job(database: str, desk: Desk) -> None:
    at, seen = two_hours_ago(desk), []

    def declare(app: Outrider) -> None:
        app.schedule(f"{at.minute} {at.hour} * * *", Make(n=5))

        @app.job(Make)
        async def make(job: Make) -> None:
            seen.append(job.n)

    async with opened(database, declare) as app:
        back_date(desk, at - timedelta(hours=1))
        assert (await app.drain()).jobs == 1
        assert (await app.drain()).jobs == 0
        assert seen == [5]


@pytest.mark.parametrize(("missed", "days"), [("once", [0]), ("skip", []), ("all", [4, 3, 2, 1, 0])])
async def test_what_nobody_was_there_for(database: str, desk: Desk, missed: Any, days: list[int]) -> None:
    at = two_hours_ago(desk)
    cron = f"{at.minute} {at.hour} * * *"
    async with opened(database, lambda app: app.schedule(cron, Make(n=1), missed=missed)) as app:
        back_date(desk, at - timedelta(days=4, hours=1))
        await app.drain()
        assert [job["run_at"] for job in jobs_of(desk)] == [at - timedelta(days=n) for n in days]
        assert schedule_of(desk)["fired_at"] == at
        await app.drain()
        assert len(jobs_of(desk)) == len(days)


async def test_a_changed_schedule_makes_up_for_one_time_at_most(database: str, desk: Desk) -> None:
    """The times of the new expression before the change were not missed: there were none. Its next time is minutes away."""
    at = two_hours_ago(desk)
    thirds = f"{at.minute % 3}-59/3 * * * *"
    async with opened(database, lambda app: app.schedule(f"{at.minute} {at.hour} * * *", Make(n=1), missed="all")):
        back_date(desk, at - timedelta(days=1))
    async with opened(database, lambda app: app.schedule(thirds, Make(n=1), missed="all")) as app:
        before = schedule_of(desk)["updated_at"]
        await app.drain()
        [job] = jobs_of(desk)
        assert before - timedelta(minutes=3) < job["run_at"] <= before
        desk.execute("delete from outrider.job")
        back_date(desk, at)
        await app.drain()
        assert len(jobs_of(desk)) >= 40, "what was missed since the change comes as before"


async def test_another_job_under_the_same_times_makes_up_for_all(database: str, desk: Desk) -> None:
    at = two_hours_ago(desk)
    cron = f"{at.minute} {at.hour} * * *"
    async with opened(database, lambda app: app.schedule(cron, Make(n=1), name="factory.daily", missed="all")):
        back_date(desk, at - timedelta(days=3))
    paint = Paint(part="door")
    async with opened(database, lambda app: app.schedule(cron, paint, name="factory.daily", missed="all")) as app:
        await app.drain()
        assert [job["subscription"] for job in jobs_of(desk)] == ["factory.paint"] * 3


# A clock that went forward and back


def ahead(desk: Desk, by: str) -> datetime:
    """What is left behind by a clock that was ahead: the schedule was fired up to a time that is still to come."""
    [row] = desk.execute(
        "update outrider.schedule set fired_at = clock_timestamp() + %s::interval returning fired_at", [by]
    )
    to: datetime = row["fired_at"]
    return to


@pytest.mark.parametrize("missed", ["once", "skip"])
async def test_a_clock_that_went_back_does_not_stop_a_schedule(database: str, desk: Desk, missed: Any) -> None:
    async with opened(database, lambda app: app.schedule(EVERY_SECOND, Make(n=1), missed=missed)) as app:
        to, told = ahead(desk, "2 hours"), []
        app.signals.listen(lambda signal: told.append(signal) if isinstance(signal, Troubled) else None)
        async with app.worker(), expect(app, Fired, times=2):
            pass
        assert [(each.subscription, each.code) for each in told] == [(NAME, "clock_went_back")]
        assert "'factory.make' was fired up to" in told[0].message
        row = schedule_of(desk)
        assert (row["fired_at"] < to, row["ahead"]) == (True, to)


async def test_a_time_that_was_fired_while_the_clock_was_ahead_is_not_fired_again(database: str, desk: Desk) -> None:
    at = two_hours_ago(desk)
    async with opened(database, lambda app: app.schedule(f"{at.minute} {at.hour} * * *", Make(n=1))) as app:
        desk.execute("update outrider.schedule set fired_at = %s, ahead = %s", [at - timedelta(hours=1), at])
        await app.drain()
        assert (schedule_of(desk)["fired_at"], jobs_of(desk)) == (at, [])


async def test_a_clock_that_is_corrected_by_seconds_fires_nothing_twice(database: str, desk: Desk) -> None:
    """As after a failover to a server whose clock is a little slow."""
    async with opened(database, lambda app: app.schedule(EVERY_SECOND, Make(n=1))) as app:
        to = ahead(desk, "30 seconds")
        await app.drain()
        assert (schedule_of(desk)["fired_at"], jobs_of(desk)) == (to, [])


async def test_of_all_times_each_has_its_job_already_when_the_clock_goes_back(database: str, desk: Desk) -> None:
    """They were enqueued while the clock was ahead, each to run at its time."""
    async with opened(database, lambda app: app.schedule(EVERY_SECOND, Make(n=1), missed="all")) as app:
        to = ahead(desk, "2 hours")
        await app.drain()
        assert (schedule_of(desk)["fired_at"], jobs_of(desk)) == (to, [])


async def test_all_of_many_come_a_thousand_at_a_time(database: str, desk: Desk) -> None:
    day = datetime.combine(two_hours_ago(desk) - timedelta(days=3), time.min, UTC)
    cron = f"* * {day.day} {day.month} *"
    async with opened(database, lambda app: app.schedule(cron, Make(n=1), missed="all")) as app:
        back_date(desk, day - timedelta(seconds=30))
        async with expect(app, Fired, times=2) as seen:
            await app.drain()
        assert [each.jobs for each in seen] == [1000, 440]
        [row] = desk.execute("select count(*), count(distinct run_at) as times from outrider.job").fetchall()
        assert row == {"count": 1440, "times": 1440}


# Once, whoever is there


async def test_of_many_that_see_the_same_time_one_fires(database: str, desk: Desk) -> None:
    at = two_hours_ago(desk)
    many, rounds = 8, 25
    async with opened(database, lambda app: app.schedule(f"{at.minute} {at.hour} * * *", Make(n=1))) as app:
        scheduled = [Scheduled.by(app._enqueuer, each) for each in app.schedules]
        fired: list[int] = []
        app.signals.listen(lambda signal: fired.append(signal.jobs) if isinstance(signal, Fired) else None)
        async with AsyncExitStack() as stack:
            sessions = [
                await stack.enter_async_context(await connection.connect(database, autocommit=True))
                for _ in range(many)
            ]
            clocks = [
                ScheduleLoop(scheduled, app.settings, app.signals, sessions=WorkerSessions(database, 1))
                for _ in range(many)
            ]
            for n in range(1, rounds + 1):
                back_date(desk, at - timedelta(hours=1))
                await asyncio.gather(*(clock.fire_due(conn) for clock, conn in zip(clocks, sessions, strict=True)))
                assert len(jobs_of(desk)) == n
        assert fired == [1] * rounds


@pytest.mark.verify
async def test_workers_on_the_same_schedule_fire_each_second_once(database: str, desk: Desk) -> None:
    def declare(app: Outrider) -> None:
        app.schedule(EVERY_SECOND, Make(n=1), missed="all")

    fired: list[int] = []
    enough = asyncio.Event()

    def hear(signal: object) -> None:
        if isinstance(signal, Fired):
            fired.append(signal.jobs)
            if sum(fired) >= 4:
                enough.set()

    async with AsyncExitStack() as stack:
        for _ in range(4):
            app = await stack.enter_async_context(opened(database, declare))
            app.signals.listen(hear)
            await stack.enter_async_context(app.worker())
        async with asyncio.timeout(30):
            await enough.wait()
    times = [job["run_at"] for job in jobs_of(desk)]
    assert len(times) == sum(fired)
    assert times == [times[0] + timedelta(seconds=n) for n in range(len(times))]


PROGRAM = """
import asyncio, sys
from outrider import Job, Outrider

class Make(Job, type="factory.make"):
    n: int

app = Outrider(context="factory")
app.schedule(sys.argv[1], Make(n=1))

async def main():
    async with app:
        await app.worker().run()

asyncio.run(main())
"""
HELD = """
create function held() returns trigger language plpgsql as $$
begin
    perform pg_advisory_xact_lock(1);
    return new;
end $$;
create trigger held before insert on outrider.job for each row execute function held();
"""
WAITING = """select a.pid from pg_locks as l join pg_stat_activity as a using (pid)
             where l.locktype = 'advisory' and not l.granted and a.datname = current_database()"""


@pytest.fixture
def begin() -> Iterator[Begin]:
    with processes() as beginning:
        yield beginning


@pytest.mark.verify
async def test_a_worker_that_dies_while_it_fires_has_done_nothing(
    database: str, desk: Desk, begin: Begin, tmp_path: Path
) -> None:
    """Killed between the schedule's move and the commit of the job: another one fires the same time."""
    at = two_hours_ago(desk)
    cron = f"{at.minute} {at.hour} * * *"
    async with opened(database, lambda app: app.schedule(cron, Make(n=1))) as app:
        back_date(desk, at - timedelta(hours=1))
        desk.execute(HELD.encode())
        desk.execute("select pg_advisory_lock(1)")
        victim = begin([sys.executable, "-c", PROGRAM, cron], tmp_path, {"OUTRIDER_DSN": database})
        until(lambda: desk.execute(WAITING).fetchall(), victim)
        await app.drain()
        assert jobs_of(desk) == []
        victim.send_signal(signal.SIGKILL)
        victim.wait()
        [stuck] = desk.execute(WAITING).fetchall()
        desk.execute("select pg_terminate_backend(%s, 10000)", [stuck["pid"]])
        assert schedule_of(desk)["fired_at"] == at - timedelta(hours=1)
        desk.execute("select pg_advisory_unlock(1)")
        async with expect(app, Fired):
            await app.drain()
        assert [job["run_at"] for job in jobs_of(desk)] == [at]


@pytest.mark.verify
async def test_a_worker_that_died_after_it_has_fired_is_not_made_up_for(
    database: str, desk: Desk, begin: Begin, tmp_path: Path
) -> None:
    at = two_hours_ago(desk)
    cron = f"{at.minute} {at.hour} * * *"
    async with opened(database, lambda app: app.schedule(cron, Make(n=1))) as app:
        back_date(desk, at - timedelta(hours=1))
        victim = begin([sys.executable, "-c", PROGRAM, cron], tmp_path, {"OUTRIDER_DSN": database})
        until(lambda: jobs_of(desk), victim)
        victim.send_signal(signal.SIGKILL)
        victim.wait()
        async with app.worker():
            pass
        await app.drain()
        assert [job["run_at"] for job in jobs_of(desk)] == [at]


# The loop


async def test_a_worker_without_jobs_fires(database: str, desk: Desk) -> None:
    async with opened(database, lambda app: app.schedule(EVERY_SECOND, Make(n=1))) as app:
        async with app.worker(), expect(app, Fired, times=2):
            pass
        assert {job["status"] for job in jobs_of(desk)} == {"pending"}


async def test_the_worker_that_fires_begins_at_once_although_nobody_pokes(database: str) -> None:
    def declare(app: Outrider) -> None:
        app.schedule(EVERY_SECOND, Make(n=1))

        @app.job(Make)
        async def make(job: Make) -> None:
            pass

    async with (
        opened(database, declare, notify="off", poll="1h") as app,
        app.worker(),
        expect(app, JobsCompleted, times=2),
    ):
        pass


async def test_a_schedule_that_was_forgotten_begins_again(database: str, desk: Desk) -> None:
    async with opened(database, lambda app: app.schedule(EVERY_SECOND, Make(n=1))) as app:
        desk.execute("delete from outrider.schedule")
        async with app.worker(), expect(app, Fired):
            desk.execute("delete from outrider.schedule")
        assert schedule_of(desk)["name"] == "factory.make"


async def test_trouble_passes(database: str, desk: Desk) -> None:
    async with (
        opened(database, lambda app: app.schedule(EVERY_SECOND, Make(n=1))) as app,
        app.worker(),
    ):
        async with expect(app, Troubled, lambda each: each.subscription == NAME and each.in_a_row == 2):
            desk.execute("alter table outrider.schedule rename to gone")
        async with expect(app, Fired):
            desk.execute("alter table outrider.gone rename to schedule")


# The page


@pytest.mark.verify
def test_the_page_runs(database: str, tmp_path: Path, desk: Desk) -> None:
    (tmp_path / "sales.py").write_text(python_blocks(ROOT / "docs" / "schedules.md"))

    def run() -> str:
        environ = os.environ | {"OUTRIDER_DSN": database}
        done = subprocess.run(
            [sys.executable, "sales.py"], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=200
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    run()
    back_date(desk, two_hours_ago(desk) - timedelta(days=14))
    assert "the daily report" in run()
    assert desk.execute("select name from outrider.schedule order by name").fetchall() == [
        {"name": "sales.daily"},
        {"name": "sales.weekly"},
    ]
