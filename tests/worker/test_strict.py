"""`generations="strict"`: a worker takes nothing of other generations, unless an operator moves it."""

from __future__ import annotations

import psycopg
import pytest
from psycopg import AsyncConnection
from tests.mutants import changed
from tests.worker.shop import Placed, Shop, opened
from tests.worker.test_generations import handled, open_at, serves, shops, so, working
from tests.worker.test_worker import Heard

from outrider import Job, JobContext, Outrider
from outrider.doctor.doctor import examine_all
from outrider.errors import ConfigError
from outrider.postgres.admin import diagnostics, subscriptions
from outrider.postgres.connection import AsyncSession
from outrider.signals import JobsCompleted


async def unserved(shop: Shop) -> list[tuple[str, int, int, int]]:
    async with shop.app._opened().autocommit() as conn:
        found = await diagnostics.unserved(conn, "outrider")
    return [(each.kind, each.generation, each.waiting, each.to) for each in found]


async def position(shop: Shop, generation: int) -> tuple[int, int]:
    """Where its cursor is, and the last position of the log."""
    [row] = await shop.rows(
        f"""select c.seq, (select max(seq) from outrider.outbox) as last from outrider.cursor as c
            where c.generation = {generation}"""
    )
    return row["seq"], row["last"]


def test_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Outrider().settings.generations == "adopt"
    assert Outrider(generations="strict").settings.generations == "strict"
    monkeypatch.setenv("OUTRIDER_GENERATIONS", "strict")
    assert Outrider().settings.generations == "strict"
    with pytest.raises(ConfigError, match="generations: 'never' is none of adopt, strict"):
        Outrider(generations="never")  # type: ignore[arg-type]


async def test_it_needs_a_generation(database: str) -> None:
    async with opened(database, generations="strict") as shop:
        with pytest.raises(ConfigError, match="needs a generation above 0"):
            shop.app.worker()
        with pytest.raises(ConfigError, match="needs a generation above 0"):
            await shop.app.drain()


async def test_it_serves_its_own_and_nothing_else(database: str) -> None:
    async with shops(database, 0, 1, 2, generations="strict") as (none, one, two), working(two) as worker:
        assert serves(worker) == {2}
        assert set(worker.wakeups.channels) == {"outbox_gen_2"}
        await none.publish("a0")
        await one.publish("b1")
        await two.publish("c1")
        await handled(two, "c1")
        await worker.presence.look()
        assert serves(worker) == {2}
        assert two.calls == ["c1"]
        assert await unserved(two) == [("event", 0, 1, 2), ("event", 1, 1, 2)]
        assert (await two.app.drain()).handled == 0


async def test_retries_of_others_are_left_to_them(database: str) -> None:
    def fail() -> None:
        raise RuntimeError("once")

    async with shops(database, 1, 2, generations="strict") as (one, two):
        one.wrong["a1"] = fail
        await one.publish("a1")
        assert (await one.app.drain()).to_retry == 1
        await one.make_due()
        async with working(two) as worker:
            worker.loops.wake_all("test")
            await two.publish("b1")
            await handled(two, "b1")
            assert await unserved(two) == [("event", 1, 1, 2)]
            [row] = await one.rows("select outrider.fold_generation('shop.effect', 1) is not null as asked")
            assert row["asked"]
        del one.wrong["a1"]
        assert (await one.app.drain()).handled == 1


async def test_what_was_moved_to_it_is_its_own(database: str) -> None:
    async with shops(database, 1, 2, generations="strict") as (one, two), working(two) as worker:
        await one.publish("a1")
        await one.rows("select outrider.move_generation(1, 2, p_subscription => 'shop.effect')")
        await worker.presence.look()
        assert serves(worker) == {1, 2}
        await handled(two, "a1")
        assert await unserved(two) == []


async def test_cursors_that_nobody_serves_pass_the_events_of_others(database: str) -> None:
    """Otherwise they would keep the log for ever."""
    async with shops(database, 1, 2, generations="strict") as (one, two), working(two) as worker:
        await two.publish("b1", "b2", "b3")
        await handled(two, "b1", "b2", "b3")
        await worker.presence.look()
        for generation in (0, 1):
            seq, last = await position(two, generation)
            assert seq >= last
        await one.publish("a1")
        before, _ = await position(two, 1)
        await two.publish("b4")
        await worker.presence.look()
        assert (await position(two, 1))[0] == before, "an event of its own waits there"
        assert await unserved(two) == [("event", 1, 1, 2)]


async def test_a_cursor_is_not_moved_past_an_event_that_commits_late(database: str) -> None:
    async with shops(database, 1, 2, generations="strict") as (one, two), working(two) as worker:
        async with await AsyncConnection.connect(database) as slow:
            await one.app.publish(slow, Placed(customer="z", n=1))
            await two.publish("b1")
            await handled(two, "b1")
            await worker.presence.look()
            await slow.commit()
        await worker.presence.look()
        assert await unserved(two) == [("event", 1, 1, 2)]
        await one.app.drain()
        assert one.calls == ["z1"]


async def late_for(database: str) -> list[str]:
    """One event of generation 1 is visible to the strict worker of 2, another commits after it has looked."""
    async with shops(database, 1, 2, generations="strict") as (one, two), working(two) as worker:
        async with await AsyncConnection.connect(database) as slow:
            await one.app.publish(slow, Placed(customer="z", n=1))
            await two.publish("b1")
            await worker.presence.look()
            await slow.commit()
        await one.publish("z2")
        await two.publish("b2")
        await worker.presence.look()
        await one.app.drain()
        return one.calls


MUTANTS = {
    "": None,
    "what was read is not undone": changed(
        "pass_over", ("            if seqs <> '{}' then", "            if false then")
    ),
    "the position is set": changed(
        "pass_over",
        (
            "            select read.seqs into seqs from",
            "update outrider.cursor as c set seq = drawn where c.id = cur.id; select '{}'::bigint[] into seqs from",
        ),
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
async def test_mutants_are_caught(database: str, name: str) -> None:
    mutant = MUTANTS[name]
    async with opened(database) as shop:
        if mutant is not None:
            await shop.rows(mutant)
    assert (await late_for(database) == ["z1", "z2"]) == (mutant is None)


async def test_an_empty_generation_that_was_left_is_folded(database: str) -> None:
    async with shops(database, 1, 2, generations="strict") as (one, two):
        await one.publish("a1")
        async with working(two, fold_after=0) as worker:
            await worker.presence.look()
            assert await open_at(two) == [0, 1, 2], "something waits there"
            await one.app.drain()

            async def folded() -> bool:
                await worker.presence.look()
                return await open_at(two) == [0, 2]

            await so(folded)


async def test_what_a_folded_generation_publishes_is_named_and_moved(database: str) -> None:
    """A web process that outlives its workers."""
    async with shops(database, 2, generations="strict") as (two,), working(two) as worker:
        web = Outrider(context="shop", dsn=database, generation=1)
        async with await AsyncConnection.connect(database) as conn:
            await web.publish(conn, Placed(customer="z", n=1))
        await two.publish("b1")
        await handled(two, "b1")
        assert await unserved(two) == [("event", 1, 1, 2)]
        await two.rows("select outrider.move_generation(1, 2, p_subscription => 'shop.effect')")
        await worker.presence.look()
        await handled(two, "b1", "z1")
        assert await unserved(two) == []


async def test_nothing_is_opened_for_a_generation_without_events(database: str) -> None:
    async with shops(database, 2, generations="strict") as (two,):
        await two.publish("b1")
        assert await two.rows("select outrider.move_generation(7, 2, p_subscription => 'shop.effect')") == []
        assert await open_at(two) == [0, 2]


async def test_an_adopting_worker_takes_what_strict_ones_leave(database: str) -> None:
    async with (
        shops(database, 1, 2, generations="strict") as (one, two),
        opened(database, generation=3, poll="1h") as three,
        working(two),
        working(three) as adopting,
    ):
        await one.publish("a1")
        await adopting.presence.look()
        await handled(three, "a1")
        assert two.calls == []
        assert await unserved(two) == []
        async with three.app._opened().autocommit() as conn:
            assert not (await subscriptions.backlog(conn, "shop.effect", "outrider")).unread


# Jobs


class Pack(Job, type="strict.pack"):
    n: int


def packing(generation: int, dsn: str, done: list[tuple[int, int]]) -> Outrider:
    app = Outrider(context="shop", dsn=dsn, generation=generation, generations="strict", poll="1h")

    @app.job(Pack)
    async def pack(job: Pack, ctx: JobContext) -> None:
        done.append((generation, job.n))

    return app


async def enqueue(app: Outrider, *numbers: int) -> None:
    async with app.connect() as conn:
        for n in numbers:
            await app.enqueue(conn, Pack(n=n))


async def test_jobs_of_others_are_left_to_them(database: str) -> None:
    done: list[tuple[int, int]] = []
    one, two = packing(1, database, done), packing(2, database, done)
    async with one, two:
        await two.migrate()
        await enqueue(one, 1, 2)
        heard = Heard(two)
        async with two.worker() as worker:
            await enqueue(two, 3)
            await heard.first(JobsCompleted)
            assert done == [(2, 3)]
            async with two._opened().autocommit() as conn:
                await crash(conn)
                worker.loops.wake_all("test")
                await enqueue(two, 4)
                await heard.until(lambda: (2, 4) in done)
                [found] = await diagnostics.unserved(conn, "outrider")
                assert (found.kind, found.subscription, found.generation, found.to) == ("job", "strict.pack", 1, 2)
                assert found.waiting == 2
                assert sorted(done) == [(2, 3), (2, 4)]
                await conn.execute("select outrider.move_generation(1, 2, p_subscription => 'strict.pack')")
                await heard.until(lambda: len(done) == 4)
                assert await diagnostics.unserved(conn, "outrider") == []
    assert sorted(done) == [(2, 1), (2, 2), (2, 3), (2, 4)]


async def crash(conn: AsyncSession) -> None:
    """One of the jobs of generation 1 was held by a worker that died."""
    await conn.execute("update outrider.job set crashes = 1 where generation = 1 and payload ->> 'n' = '1'")


async def test_the_doctor_says_the_command(database: str) -> None:
    async with shops(database, 1, 2, generations="strict") as (one, two), working(two):
        await one.publish("a1", "a2")
        async with two.app._opened().autocommit() as conn:
            findings = await examine_all(two.app, conn, "outrider")
        [found] = [each for each in findings if each.check == "generations"]
        assert found.found == (
            "shop.effect: 2 events of generation 1 wait, and no worker takes them: those that run are strict and of other "
            "generations"
        )
        assert found.advice.endswith(": outrider generations move 1 2 --subscription shop.effect")


def test_previous_code_still_claims(whole_database: str) -> None:
    """It does not know the last parameter."""
    with psycopg.connect(whole_database) as conn:
        row = conn.execute(
            """select head from outrider.claim(p_worker => gen_random_uuid(), p_names => '{a}', p_limit => 1,
               p_generation => 0, p_queues => null, p_suspect => true)"""
        ).fetchone()
    assert row is not None
