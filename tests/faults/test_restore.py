"""pg_dump under load and restore into another cluster: its transaction ids mean nothing here, and nothing comes twice."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import AsyncConnection
from tests.clusters import SETTINGS, burn_xids, dump, dump_from, migrated, next_xid, restore
from tests.faults.test_failover import Standby
from tests.mutants import MUTANTS, changed
from tests.postgres.test_take import Desk, publish
from tests.torture import Report, Torture

from outrider.postgres.embedded import Embedded


async def torture_across_restore(
    tmp_path: Path, *, seed: int, above: bool, long: bool = False, mutant: str | None = None
) -> Report:
    """Torture one cluster, dump it in the midst, torture the restored one on: the counts commit with the events.

    One subscription sleeps until after the restore, so that it reads the old cluster's log beside live writers.
    """
    rounds, big = (150, 50_000) if long else (20, 2_500)
    file = tmp_path / f"{seed}.dump"
    with Embedded.temporary(settings=SETTINGS) as old:
        await migrated(old, "shop")
        lowest = next_xid(old) + 2000
        burn_xids(old, lowest)
        torture = Torture(old.dsn("shop"), seed, rounds=rounds, big=big, asleep=frozenset({"t.split"}))
        await torture.setup()
        async with await AsyncConnection.connect(old.dsn("shop")) as writer:
            # Keeps the floors low, so that nothing but the rebase stands between old events and new ids.
            await writer.execute("select pg_current_xact_id()")
            await torture.run_with(lambda: dump(old, "shop", file))
        top = next_xid(old)
    with Embedded.temporary(settings=SETTINGS) as new:
        restore(new, "shop", file)
        # Above everything in the log, or just below it, so that the new transactions pass through the log's own ids.
        burn_xids(new, top + 1000 if above else lowest)
        assert (next_xid(new) > top) == above
        if mutant is not None:
            with psycopg.connect(new.dsn("shop"), autocommit=True) as conn:
                conn.execute(mutant.encode())
        return await Torture(new.dsn("shop"), seed + 1, rounds=rounds, big=big).run()


@pytest.mark.verify
@pytest.mark.timeout(170)
@pytest.mark.parametrize(
    "above", [False, pytest.param(True, marks=pytest.mark.long)], ids=["ids below the log's", "ids above the log's"]
)
async def test_cursor_is_exact_across_dump_and_restore(tmp_path: Path, above: bool, long: bool) -> None:
    for seed in range(2 if long else 1):
        report = await torture_across_restore(tmp_path, seed=seed, above=above, long=long)
        assert report.exact, f"seed {seed}: {report}"


@pytest.mark.parametrize(
    "above", [False, pytest.param(True, marks=pytest.mark.long)], ids=["ids below the log's", "ids above the log's"]
)
async def test_what_was_owed_at_the_dump_is_read_once(tmp_path: Path, above: bool) -> None:
    """The dump falls into the middle of a late transaction's pages, with another one committed and not yet read."""
    file = tmp_path / "owing.dump"
    async with contextlib.AsyncExitStack() as stack:
        with Embedded.temporary(settings=SETTINGS) as old:
            await migrated(old, "shop")
            async with contextlib.AsyncExitStack() as sessions:
                desk = Desk(old.dsn("shop"), sessions)
                await desk.register()
                slow, slower, never, quick = [await desk.session() for _ in range(4)]
                await publish(slow, *(f"slow{n}" for n in range(10)))
                await publish(slower, *(f"slower{n}" for n in range(5)))
                await publish(never, "never")
                await publish(quick, "quick")
                await quick.commit()
                assert await desk.take_all() == ["quick"]
                await slow.commit()
                await desk.take(limit=3)
                await slower.commit()
                await publish(quick, "fresh")
                await quick.commit()
                dump(old, "shop", file)
                await never.rollback()
                top = next_xid(old)
        with Embedded.temporary(settings=SETTINGS) as new:
            if above:
                burn_xids(new, top + 100)
            restore(new, "shop", file)
            restored = Desk(new.dsn("shop"), stack)
            restored.seen = desk.seen
            # A live writer is there before the first take in the new cluster.
            async with await AsyncConnection.connect(restored.dsn) as live:
                await publish(live, "live")
                await restored.take_all(limit=3)
                await live.commit()
            await restored.take_all(limit=3)
    late = [f"slow{n}" for n in range(10)] + [f"slower{n}" for n in range(5)]
    assert restored.seen == ["quick", *late, "fresh", "live"]


async def late_through(server: Embedded, desk: Desk, upto: int, step: int) -> list[str]:
    """Publish late, over and over, while the server's transaction ids pass through those of restored events."""
    slow, names = await desk.session(), []
    while next_xid(server) < upto:
        await publish(slow, "slow")
        names.append("slow")
        await desk.take_all()
        await slow.commit()
        await desk.take_all()
        burn_xids(server, next_xid(server) + step)
    return names


async def read_beside_colliding_writers(
    tmp_path: Path, *, before: bool, mutant: str | None = None, shift: int = 0
) -> bool:
    """New transactions get the very ids that restored events carry. True if nothing is lost or read twice.

    `before`: the subscription was there and had read everything, beside a writer that kept its floor low; else it is made
    after the restore. `shift`: ids that are used up first; it decides which of them collide.
    """
    file = tmp_path / "log.dump"
    names = [f"old{n}" for n in range(300)]
    with Embedded.temporary(settings=SETTINGS) as old:
        await migrated(old, "shop")
        burn_xids(old, next_xid(old) + 1000)
        async with await AsyncConnection.connect(old.dsn("shop"), autocommit=True) as conn:
            desk = Desk(old.dsn("shop"), contextlib.AsyncExitStack())
            async with await AsyncConnection.connect(old.dsn("shop")) as writer:
                await writer.execute("select pg_current_xact_id()")
                if before:
                    await desk.register()
                await conn.execute(
                    f"""do $$ begin for n in 0..{len(names) - 1} loop
                            perform outrider.publish('a.happened', jsonb_build_object('name', 'old' || n)); commit;
                        end loop; end $$""".encode()
                )
                if before:
                    assert await desk.take_all() == names
                dump(old, "shop", file)
        top = next_xid(old)
    with Embedded.temporary(settings=SETTINGS) as new:
        restore(new, "shop", file)
        assert next_xid(new) < top - len(names), "the restore has used up the ids that should collide"
        async with contextlib.AsyncExitStack() as stack:
            desk.dsn, desk.stack = new.dsn("shop"), stack
            if mutant is not None:
                await (await desk.session(autocommit=True)).execute(mutant.encode())
            if not before:
                await desk.register(start="beginning")
            await desk.take_all()
            burn_xids(new, next_xid(new) + shift)
            names += await late_through(new, desk, upto=top, step=3)
            return desk.seen == names


@pytest.mark.verify
@pytest.mark.parametrize(
    "before",
    [True, pytest.param(False, marks=pytest.mark.long)],
    ids=["made before the dump", "made after the restore"],
)
async def test_restored_events_do_not_come_back(tmp_path: Path, before: bool) -> None:
    assert await read_beside_colliding_writers(tmp_path, before=before)


@pytest.mark.verify
async def test_mutant_without_the_rebase_brings_them_back(tmp_path: Path) -> None:
    """Takes seconds: one late event must get one of a few transaction ids, and every eighth id is that of a late event."""
    mutant = MUTANTS["without the rebase"]
    for shift in range(0, 8, 2):
        if not await read_beside_colliding_writers(tmp_path, before=True, mutant=mutant, shift=shift):
            return
    pytest.fail("it was never caught")


@pytest.mark.verify
async def test_back_into_the_first_cluster(tmp_path: Path) -> None:
    """A → B → A, where the cursor was not used in B: it looks as if it had never left, but B's events carry B's ids."""
    with Embedded.temporary(settings=SETTINGS) as a, Embedded.temporary(settings=SETTINGS) as b:
        await migrated(a, "one")
        first = Desk(a.dsn("one"), contextlib.AsyncExitStack())
        await first.register()
        dump(a, "one", tmp_path / "a.dump")
        restore(b, "two", tmp_path / "a.dump")
        burn_xids(b, next_xid(a) + 200)
        names = [f"b{n}" for n in range(100)]
        async with await AsyncConnection.connect(b.dsn("two"), autocommit=True) as conn:
            for name in names:
                await publish(conn, name)
        dump(b, "two", tmp_path / "b.dump")
        restore(a, "three", tmp_path / "b.dump")
        async with contextlib.AsyncExitStack() as stack:
            desk = Desk(a.dsn("three"), stack)
            await (await desk.session()).execute("select pg_current_xact_id()")
            names += await late_through(a, desk, upto=next_xid(b), step=5)
            assert desk.seen == names


@pytest.mark.verify
async def test_a_clone_of_the_cluster_that_ran_ahead(tmp_path: Path) -> None:
    """A physical copy has the same identifier; dumped and restored into the original, its ids are of another future."""
    with Embedded.temporary(settings=SETTINGS) as server:
        await migrated(server, "one")
        desk = Desk(server.dsn("one"), contextlib.AsyncExitStack())
        await desk.register()
        async with contextlib.AsyncExitStack() as stack:
            desk.stack = stack
            slow, quick = await desk.session(), await desk.session()
            await publish(slow, "slow")
            await publish(quick, "quick")
            await quick.commit()
            assert await desk.take_all() == ["quick"]
            await slow.commit()
            # What the clone would hold: the same rows, with ids that this cluster has not drawn yet.
            await quick.execute(
                """update outrider.outbox set tx = (tx::text::bigint + 100000)::text::xid8;
                   update outrider.cursor set horizon = (horizon::text::bigint + 100000)::text::xid8,
                          mark_xid = (mark_xid::text::bigint + 100000)::text::xid8,
                          inflight = format('%s:%s:%s', 100000 + pg_snapshot_xmin(inflight)::text::bigint,
                                            100000 + pg_snapshot_xmax(inflight)::text::bigint,
                                            100000 + pg_snapshot_xmin(inflight)::text::bigint)::pg_snapshot"""
            )
            await quick.commit()
            await publish(quick, "after")
            await quick.commit()
            await desk.take_all()
            assert sorted(desk.seen) == ["after", "quick", "slow"]


READ = [f"read{n}" for n in range(10)]


async def clone_restored(tmp_path: Path, *, past: bool, fresh: list[str], mutant: str | None = None) -> list[str]:
    """What is read in a clone of a server, then, after a dump and a restore of its log, in the original.

    The clone's identifier is the original's. Transactions that run here have the ids of events that were read there.
    `past`: these ids were used up in the original before the restore; else they are yet to come.
    """
    with Embedded.temporary(settings=SETTINGS) as original:
        await migrated(original, "shop")
        if mutant is not None:
            with psycopg.connect(original.dsn("shop"), autocommit=True) as conn:
                conn.execute(mutant.encode())
        clone = Standby(original, "shop")
        with clone.following():
            await clone.caught_up()
            await clone.cut_off()
            clone.promote()
            async with contextlib.AsyncExitStack() as sessions:
                desk = Desk(clone.dsn, sessions)
                await desk.register()
                slow, quick = await desk.session(), await desk.session(autocommit=True)
                # More than a restore uses up, so that ids can be yet to come.
                await quick.execute(
                    "do $$ begin for n in 1..5000 loop perform pg_current_xact_id(); commit; end loop; end $$"
                )
                await publish(slow, "slow")
                for name in READ:
                    await publish(quick, name)
                assert await desk.take_all() == READ
                await slow.commit()
                await publish(quick, *fresh)
                row = await (
                    await quick.execute("select min(tx)::text::int, max(tx)::text::int from outrider.outbox")
                ).fetchone()
                assert row is not None
                lowest, top = row
                horizon = int(await desk.cursor("horizon::text"))
            dump_from(original, clone.dsn, tmp_path / "clone.dump")
        async with contextlib.AsyncExitStack() as sessions:
            desk.dsn, desk.stack = original.dsn("back"), sessions
            running: list[AsyncConnection[Any]] = []

            async def run_through_their_ids() -> None:
                burn_xids(original, lowest - 3)
                id_ = 0
                while id_ <= max(top, horizon):
                    writer = await AsyncConnection.connect(original.dsn())
                    running.append(await sessions.enter_async_context(writer))
                    [id_] = await (await writer.execute("select pg_current_xact_id()::text::int")).fetchone() or [0]

            if past:
                await run_through_their_ids()
            restore(original, "back", tmp_path / "clone.dump")
            assert (next_xid(original) > top) == past
            await desk.take_all()
            if not past:
                await run_through_their_ids()
            await publish(await desk.session(autocommit=True), "live")
            await desk.take_all()
            for writer in running:
                await writer.commit()
            await desk.take_all()
            return desk.seen


@pytest.mark.verify
@pytest.mark.parametrize(
    ("past", "fresh"),
    [(True, ["fresh"]), (True, []), (False, ["fresh"])],
    ids=["ids used up", "ids used up and nothing fresh", "ids yet to come"],
)
async def test_a_real_clone_restored_into_the_original(tmp_path: Path, past: bool, fresh: list[str]) -> None:
    """Takes seconds: a server is copied, started and promoted."""
    assert await clone_restored(tmp_path, past=past, fresh=fresh) == [*READ, "slow", *fresh, "live"]


@pytest.mark.verify
async def test_mutants_that_know_a_log_by_its_cluster_only(tmp_path: Path) -> None:
    """Takes seconds: a server is copied, started and promoted, twice."""
    mutant = changed("log_home", ("m.xmin::text::bigint", "0"))
    lost = await clone_restored(tmp_path, past=True, fresh=["fresh"], mutant=mutant)
    assert "slow" not in lost
    doubled = await clone_restored(tmp_path, past=True, fresh=[], mutant=mutant)
    assert all(doubled.count(name) == 2 for name in READ)
