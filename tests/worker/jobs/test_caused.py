"""The jobs that handlers enqueue say which event they came of, as long as they are there."""

from __future__ import annotations

from uuid import UUID

import pytest
from tests.worker.jobs.factory import Factory, Make, Ordered, Paint, opened

from outrider import HandlerContext, JobContext, Outrider, SyncHandlerContext

pytestmark = pytest.mark.also_on(15)
OTHERS = "select caused_by from outrider.outbox where event_type = 'factory.other'"


def handlers(app: Outrider) -> None:
    @app.handler(Ordered, name="factory.plan")
    async def plan(event: Ordered, ctx: HandlerContext) -> None:
        await app.enqueue(ctx.tx, Make(n=event.n), delay="1h")

    @app.handler(Ordered, name="factory.colour")
    def colour(event: Ordered, ctx: SyncHandlerContext) -> None:
        app.enqueue_sync(ctx.tx, Paint(part="door", n=event.n), delay="1h", unique_key=f"{event.n}")

    @app.handler(Ordered, name="factory.count")
    async def count(events: list[Ordered], ctx: HandlerContext) -> None:
        await app.enqueue(ctx.tx, Make(n=-len(events)), delay="1h")


async def named(factory: Factory, event: UUID) -> list[tuple[str, int]]:
    story = await factory.app.event(event)
    assert story is not None
    payloads = {row["event_id"]: row["payload"]["n"] for row in await factory.owed()}
    return sorted((each.job_type, payloads[each.id]) for each in story.jobs)


async def test_an_event_names_the_jobs_of_its_handlers(database: str) -> None:
    async with opened(database, handlers) as factory:
        first, second = await factory.publish(Ordered(n=1), Ordered(n=2))
        await factory.app.drain()
        assert await named(factory, first) == [("factory.make", 1), ("factory.paint", 1)]
        assert await named(factory, second) == [("factory.make", 2), ("factory.paint", 2)], "not those of a whole batch"
        [alone] = await factory.publish(Ordered(n=3))
        await factory.app.drain()
        assert await named(factory, alone) == [("factory.make", -1), ("factory.make", 3), ("factory.paint", 3)]
        [free] = await factory.enqueue(Make(n=9), delay="1h")
        assert [row["caused_by"] for row in await factory.owed() if row["event_id"] == free] == [None]


async def test_an_event_names_the_events_of_its_handlers(database: str) -> None:
    def declare(app: Outrider) -> None:
        @app.handler(Ordered, name="factory.divide")
        async def divide(event: Ordered, ctx: HandlerContext) -> None:
            if event.n > 1:
                await app.publish(ctx.tx, Ordered(n=event.n // 2))
                await app.publish_many(ctx.tx, [Ordered(n=0), Ordered(n=0)])
            await ctx.tx.execute("select outrider.publish('factory.other', '{}')")

    async with opened(database, declare) as factory:
        [event] = await factory.publish(Ordered(n=2))
        await factory.app.drain()
        story = await factory.app.event(event)
        assert story is not None
        assert story.caused_by is None
        assert [each.event_type for each in story.children] == ["factory.ordered"] * 3
        for each in story.children:
            child = await factory.app.event(each.id)
            assert child is not None
            assert (child.caused_by, child.children) == (event, ())
        async with factory.app.connect() as conn:
            others = await (await conn.execute(OTHERS)).fetchall()
        assert [tuple(row) for row in others] == [(None,)] * 4, (
            "a publish in SQL does not know its cause, and says none"
        )


async def test_what_a_job_enqueues_came_of_it(database: str) -> None:
    def declare(app: Outrider) -> None:
        @app.job(on=Ordered, name="factory.route")
        async def route(event: Ordered, ctx: JobContext) -> None:
            async with ctx.connect() as conn:
                await app.enqueue(conn, Make(n=event.n), delay="1h")

    async with opened(database, declare) as factory:
        [event] = await factory.publish(Ordered(n=4))
        await factory.app.drain()
        assert await named(factory, event) == [("factory.make", 4)]
        [job] = (await factory.app.event(event)).jobs  # type: ignore[union-attr]
        assert (job.status, job.job_type) == ("pending", "factory.make")
