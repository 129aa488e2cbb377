"""All workers together keep one sample per minute of how much there is to do. The charts of the dashboard begin with it."""

from __future__ import annotations

from tests.worker.shop import opened
from tests.worker.test_generations import working
from tests.worker.test_worker import Heard

from outrider.postgres.admin import activity
from outrider.signals import Troubled

SAMPLES = """
select extract(minute from taken_at) = minute as own_minute, seq::int, owed::int, dead::int, waiting < 60 as soon
from outrider.sample order by taken_at
"""
AGE = "update outrider.sample set minute = (minute + 59) % 60, taken_at = taken_at - interval '1 min'"
CLOCK_BACK = "update outrider.sample set minute = (minute + 30) % 60, taken_at = taken_at + interval '90 min'"


async def test_one_worker_keeps_a_sample_per_minute(database: str) -> None:
    async with opened(database) as one, opened(database) as two, working(one) as first, working(two) as second:
        [sample] = await one.rows(SAMPLES)
        assert sample == {"own_minute": True, "seq": 0, "owed": 0, "dead": 0, "soon": True}
        await one.rows("select outrider.publish('dispatch.placed', '{}')")
        await first.presence.look()
        await second.presence.look()
        assert len(await one.rows(SAMPLES)) == 1, "the minute is not over"
        await one.rows(AGE)
        await second.presence.look()
        await first.presence.look()
        assert [each["seq"] for each in await one.rows(SAMPLES)] == [0, 1]
        async with one.app._opened().autocommit() as conn:
            assert [each.seq for each in await activity.samples(conn, "outrider")] == [0, 1]


async def test_a_clock_that_went_back_stops_no_samples(database: str) -> None:
    async with opened(database) as shop, working(shop) as worker:
        await shop.rows(CLOCK_BACK)
        await worker.presence.look()
        assert len(await shop.rows(SAMPLES)) == 2
        async with shop.app._opened().autocommit() as conn:
            assert len(await activity.samples(conn, "outrider")) == 1


async def test_a_sample_that_fails_is_reported_and_the_worker_is_in_contact(database: str) -> None:
    async with opened(database) as shop, working(shop) as worker:
        heard = Heard(shop.app)
        before = worker.presence.last_contact
        await shop.rows(AGE)
        await shop.rows("alter table outrider.sample rename to elsewhere")
        await worker.presence.look()
        assert worker.presence.last_contact > before
        trouble = await heard.first(Troubled)
        assert (trouble.subscription, trouble.code) == ("(heartbeat)", "42P01")
