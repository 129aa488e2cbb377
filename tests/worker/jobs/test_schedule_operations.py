"""What operators do with schedules: pause, resume and run one now. All of it is in the audit."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row
from tests.worker.jobs.factory import Make, Paint
from tests.worker.jobs.test_schedule import (
    EVERY_SECOND,
    NEVER,
    Desk,
    back_date,
    jobs_of,
    opened,
    schedule_of,
    two_hours_ago,
)

from outrider import Outrider
from outrider.errors import SubscriptionRefused
from outrider.postgres.worker_sessions import WorkerSessions
from outrider.signals import Fired
from outrider.testing import expect
from outrider.worker.schedule_loop import ScheduleLoop


@pytest.fixture
def desk(database: str) -> Iterator[Desk]:
    with psycopg.connect(database, autocommit=True, row_factory=dict_row) as conn:
        yield conn


def audit_of(desk: Desk) -> list[tuple[Any, ...]]:
    rows = desk.execute("select action, by, details from outrider.audit order by id").fetchall()
    return [(row["action"], row["by"], row["details"].get("schedule"), row["details"].get("reason")) for row in rows]


async def test_a_paused_schedule_does_not_fire(database: str, desk: Desk) -> None:
    at = two_hours_ago(desk)
    async with opened(database, lambda app: app.schedule(f"{at.minute} {at.hour} * * *", Make(n=1))) as app:
        back_date(desk, at - timedelta(hours=1))
        await app.pause_schedule("factory.make", by="ada", reason="the press is open")
        await app.drain()
        assert jobs_of(desk) == []
        [row] = await app.registered_schedules()
        assert row.schedule.paused_at is not None
        assert row.next_at is None
        assert (await app.status()).paused_schedules == {"factory.make": row.schedule.paused_at}
    assert audit_of(desk) == [("pause_schedule", "ada", "factory.make", "the press is open")]


async def test_a_worker_sleeps_until_the_next_time_of_a_paused_schedule(database: str, desk: Desk) -> None:
    """So it neither asks again and again, nor is late when the schedule is resumed before."""
    at = two_hours_ago(desk)
    async with opened(database, lambda app: app.schedule(f"{at.minute} {at.hour} * * *", Make(n=1))) as app:
        back_date(desk, at - timedelta(hours=1))
        await app.pause_schedule("factory.make")
        sessions = WorkerSessions(database, 1, 10)
        loop = ScheduleLoop(app.scheduled, app.settings, app.signals, sessions=sessions)
        async with sessions.session("test") as conn:
            pause = await loop.fire_due(conn)
        await sessions.close()
        assert timedelta(hours=21) < timedelta(seconds=pause) < timedelta(hours=23)


async def test_pausing_twice_keeps_the_first_time(database: str, desk: Desk) -> None:
    async with opened(database, lambda app: app.schedule(NEVER, Make(n=1))) as app:
        await app.pause_schedule("factory.make")
        since = schedule_of(desk)["paused_at"]
        await app.pause_schedule("factory.make")
        assert schedule_of(desk)["paused_at"] == since


@pytest.mark.parametrize(("missed", "days"), [("once", 0), ("skip", 0), ("all", 5)])
async def test_only_missed_all_makes_up_for_the_times_of_a_pause(
    database: str, desk: Desk, missed: Any, days: int
) -> None:
    at = two_hours_ago(desk)
    cron = f"{at.minute} {at.hour} * * *"
    async with opened(database, lambda app: app.schedule(cron, Make(n=1), missed=missed)) as app:
        back_date(desk, at - timedelta(days=4, hours=1))
        await app.pause_schedule("factory.make")
        await app.drain()
        await app.resume_schedule("factory.make", by="ada")
        await app.drain()
        assert len(jobs_of(desk)) == days
        assert schedule_of(desk)["paused_at"] is None
    assert [action for action, *_ in audit_of(desk)] == ["pause_schedule", "resume_schedule"]


async def test_to_resume_what_is_not_paused_skips_nothing(database: str, desk: Desk) -> None:
    at = two_hours_ago(desk)
    async with opened(database, lambda app: app.schedule(f"{at.minute} {at.hour} * * *", Make(n=1))) as app:
        back_date(desk, at - timedelta(hours=1))
        await app.resume_schedule("factory.make")
        await app.drain()
        assert len(jobs_of(desk)) == 1


async def test_a_worker_fires_again_when_its_schedule_is_resumed(database: str) -> None:
    async with opened(database, lambda app: app.schedule(EVERY_SECOND, Make(n=1))) as app:
        await app.pause_schedule("factory.make")
        async with app.worker(), expect(app, Fired):
            await app.resume_schedule("factory.make")


async def test_a_worker_of_older_code_cannot_fire_a_paused_schedule(database: str, desk: Desk) -> None:
    """It does not look at paused_at: the function refuses."""
    fire = """select outrider.fire('factory.make', fired_at, clock_timestamp(), array[clock_timestamp()], 'factory.make',
                                   '{}', 'default', 0, 1, 'factory', null, null, 0, true) as fired from outrider.schedule"""
    async with opened(database, lambda app: app.schedule(NEVER, Make(n=1))) as app:
        await app.pause_schedule("factory.make")
        assert desk.execute(fire).fetchall() == [{"fired": False}]
        await app.resume_schedule("factory.make")
        assert desk.execute(fire).fetchall() == [{"fired": True}]


async def test_run_now_enqueues_the_declared_job(database: str, desk: Desk) -> None:
    def declare(app: Outrider) -> None:
        app.schedule(
            NEVER, Paint(part="door", n=4), name="factory.yearly", queue="slow", priority=7, workspace_id="acme"
        )  # fmt: skip

    async with opened(database, declare) as app:
        before = schedule_of(desk)
        await app.pause_schedule("factory.yearly")
        job_id = await app.run_schedule("factory.yearly", by="ada", reason="the boss asks")
        [job] = jobs_of(desk)
        assert (job["event_id"], job["subscription"], job["status"]) == (job_id, "factory.paint", "pending")
        assert job["payload"] == {"part": "door", "n": 4}
        assert (job["queue"], job["priority"], job["job_key"], job["workspace_id"]) == ("slow", 7, "door", "acme")
        assert (job["source"], job["event_version"]) == ("factory", 1)
        after = schedule_of(desk)
        assert after["fired_at"] == before["fired_at"], "its times stay as they are"
        assert after["enqueued_at"] is not None
    assert audit_of(desk)[-1] == ("run_schedule", "ada", "factory.yearly", "the boss asks")


async def test_run_now_enqueues_what_is_declared_now(database: str, desk: Desk) -> None:
    async with opened(database, lambda app: app.schedule(NEVER, Make(n=1))):
        pass
    async with opened(database, lambda app: app.schedule(NEVER, Make(n=2))) as app:
        before = schedule_of(desk)
        await app.migrate()
        assert schedule_of(desk) == before, "nothing is written if nothing changed"
        await app.run_schedule("factory.make")
    assert [job["payload"] for job in jobs_of(desk)] == [{"n": 2}]


async def test_run_now_leaves_the_job_to_the_newest_workers_that_serve_its_queue(database: str, desk: Desk) -> None:
    worker = """insert into outrider.worker (id, host, pid, version, generation, subscriptions, unable, queues, stopping)
                values (gen_random_uuid(), 'here', %(generation)s, '1', %(generation)s, '{factory.make}', %(unable)s,
                        %(queues)s, %(stopping)s)"""
    usual: dict[str, Any] = {"unable": [], "queues": None, "stopping": False}
    async with opened(database, lambda app: app.schedule(NEVER, Make(n=1), queue="slow")) as app:
        workers: list[dict[str, Any]] = [
            {}, {"queues": ["slow"]}, {"queues": ["fast"]}, {"unable": ["factory.make"]}, {"stopping": True}
        ]  # fmt: skip
        for generation, other in enumerate(workers, 1):
            desk.execute(worker, {**usual, **other, "generation": generation})
        await app.run_schedule("factory.make")
    assert [job["generation"] for job in jobs_of(desk)] == [2]


async def test_a_schedule_of_older_code_says_what_to_do(database: str, desk: Desk) -> None:
    async with opened(database, lambda app: app.schedule(NEVER, Make(n=1))) as app:
        desk.execute("update outrider.schedule set job = null, missed = null")
        with pytest.raises(SubscriptionRefused, match=r"the job of factory\.make is not known here"):
            await app.run_schedule("factory.make")
        assert jobs_of(desk) == []


async def test_an_unknown_schedule_is_refused_by_name(database: str) -> None:
    async with opened(database, lambda app: app.schedule(NEVER, Make(n=1))) as app:
        for act in (app.pause_schedule, app.resume_schedule, app.run_schedule):
            with pytest.raises(SubscriptionRefused, match=r"no schedule 'factory.other' .*there are: factory.make"):
                await act("factory.other")


async def test_a_clock_that_went_back_while_a_pause_is_open(database: str, desk: Desk) -> None:
    """The worker passes the schedule over, fires the others, and looks again after a second."""

    def declare(app: Outrider) -> None:
        app.schedule(NEVER, Make(n=1))
        app.schedule(NEVER, Paint(part="door"))

    async with opened(database, declare) as app:
        desk.execute("update outrider.schedule set fired_at = now() + interval '2 hours' where name = 'factory.make'")
        with psycopg.connect(database) as operator:
            operator.execute("select outrider.pause_schedule('factory.make')")
            sessions = WorkerSessions(database, 1, 10)
            loop = ScheduleLoop(app.scheduled, app.settings, app.signals, sessions=sessions)
            async with sessions.session("test") as conn:
                await conn.execute("set statement_timeout = '5s'")
                assert await loop.fire_due(conn) == 1
                operator.rollback()
                assert await loop.fire_due(conn) == 0
            await sessions.close()
    assert desk.execute("select ahead > now() as ahead from outrider.schedule order by name").fetchall() == [
        {"ahead": True},
        {"ahead": None},
    ]
