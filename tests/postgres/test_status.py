"""`app.status()`: what is said of subscriptions, their generations and workers, and what it costs to know it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg import AsyncConnection
from tests.postgres.bench import Bench, bench
from tests.postgres.test_plans import nodes
from tests.postgres.test_story import later, never
from tests.worker.shop import Placed, Shop, opened

from outrider import Breaker, Outrider
from outrider.errors import SchemaMismatch
from outrider.postgres.admin import status
from outrider.postgres.admin.status import Standing, Status
from outrider.postgres.schema import migrate
from outrider.postgres.statement import ONE_MOMENT, statement

OLD = "now() - interval '1 hour'"


@pytest.fixture
def log(database: str) -> Iterator[Bench]:
    with bench(database) as log:
        yield log


@pytest.fixture
async def conn(database: str) -> AsyncIterator[AsyncConnection[Any]]:
    async with await AsyncConnection.connect(database, autocommit=True) as conn:
        yield conn


async def look(conn: AsyncConnection[Any]) -> Status:
    return await status.status(conn, "outrider")


async def standing(conn: AsyncConnection[Any], name: str = "a.handler") -> Standing:
    [found] = [each for each in (await look(conn)).subscriptions if each.name == name]
    return found


async def age(conn: AsyncConnection[Any], name: str = "a.handler") -> timedelta | None:
    """How long the oldest that it owes has been waiting, in whole hours; None if it owes nothing."""
    seen = await look(conn)
    [found] = [each for each in seen.subscriptions if each.name == name]
    if found.oldest_owed_at is None:
        assert found.oldest_is_certain
        return None
    return (seen.read_at - found.oldest_owed_at) // timedelta(hours=1) * timedelta(hours=1)


async def worker(
    conn: AsyncConnection[Any], *names: str, generation: int = 0, pid: int = 1, seen: str = "now()", **more: Any
) -> None:
    """As if there were one."""
    columns, values = "".join(f", {name}" for name in more), "".join(f", %({name})s" for name in more)
    await conn.execute(
        f"""insert into outrider.worker (id, host, pid, version, generation, subscriptions, seen_at{columns})
            values (gen_random_uuid(), 'host', %(pid)s, 'x', %(generation)s, %(names)s, {seen}{values})""".encode(),
        {"pid": pid, "generation": generation, "names": list(names), **more},
    )


# States


async def test_an_empty_schema(database: str) -> None:
    async with Outrider(dsn=database) as app:
        seen = await app.status()
    assert (seen.schema, seen.version, seen.pending) == ("outrider", migrate.known()[-1].version, ())
    assert (seen.seq, seen.paused_at, seen.subscriptions, seen.workers, seen.live) == (0, None, (), (), 0)


async def test_states(log: Bench, conn: AsyncConnection[Any]) -> None:
    for name in ("a.running", "a.paused", "a.alone", "a.unable", "a.stopping", "a.lost"):
        log.register(name)
    log.register("a.reader", kind="reader")
    log.conn.execute("update outrider.subscription set paused_at = now() where name = 'a.paused'")
    await worker(conn, "a.running", "a.paused", "a.unable", unable=["a.unable"])
    await worker(conn, "a.stopping", pid=2, stopping=True)
    await worker(conn, "a.lost", pid=3, seen="now() - interval '31 seconds'")
    seen = await look(conn)
    assert {each.name: each.states for each in seen.subscriptions} == {
        "a.alone": ("no_worker",),
        "a.lost": ("no_worker",),
        "a.paused": ("paused",),
        "a.reader": ("running",),
        "a.running": ("running",),
        "a.stopping": ("no_worker",),
        "a.unable": ("unable",),
    }
    assert [(each.pid, each.live, each.stopping, each.unable) for each in seen.workers] == [
        (1, True, False, ["a.unable"]),
        (2, True, True, []),
        (3, False, False, []),
    ]
    assert seen.live == 2


async def test_an_open_breaker(database: str, conn: AsyncConnection[Any]) -> None:
    def declare(shop: Shop) -> None:
        options: Any = {"breaker": Breaker(failures=1, probe="1h", longest="2h")}
        shop.app.handler(Placed, name="shop.effect", **options)(shop.effect)

    async with opened(database, declare) as shop:
        shop.wrong["a1"] = later
        await shop.publish("a1")
        await shop.app.drain()
        await worker(conn, "shop.effect")
        seen = await standing(conn, "shop.effect")
        [position] = seen.positions
        assert (seen.states, position.failures) == (("breaker",), 1)
        assert position.open_until is not None
        await shop.rows("update outrider.cursor set open_until = now()")
        assert (await standing(conn, "shop.effect")).states == ("running",), "its next take is a probe"


async def test_everything_is_paused(database: str, conn: AsyncConnection[Any]) -> None:
    async with opened(database) as shop:
        await shop.app.pause()
        assert (await shop.app.status()).paused_at is not None
        await shop.app.resume()
        assert (await shop.app.status()).paused_at is None


async def test_pending_migrations(log: Bench, conn: AsyncConnection[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest waits for them: this code does not know the tables as they were."""
    log.register("a.handler")
    known = migrate.known()
    newest = known[-1].version
    monkeypatch.setattr(migrate, "known", lambda: (*known, migrate.Migration(newest + 1, "next", False, "-", "")))
    seen = await look(conn)
    assert (seen.version, seen.pending) == (newest, (f"{newest + 1:04} next",))
    assert seen.subscriptions == ()


async def test_nothing_installed(empty_database: str) -> None:
    async with Outrider(dsn=empty_database) as app:
        with pytest.raises(SchemaMismatch, match="is not installed here"):
            await app.status()


# Counts


async def test_counts(database: str, conn: AsyncConnection[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(database) as shop:
        shop.wrong |= {"a1": later, "b1": never, "c1": never}
        await shop.publish("a1", "a2", "a3", "b1", "c1", "d1")
        await shop.app.drain()
        await shop.rows(
            "select outrider.discard(array(select id from outrider.delivery where status = 'failed' limit 1))"
        )
        await shop.publish("e1", "e2")
        seen = await standing(conn, "shop.effect")
        assert (seen.waiting, seen.dead, seen.lag) == (3, 1, 2), "what was discarded is over"
        assert (await look(conn)).seq == 8
        monkeypatch.setattr(status, "MOST", 2)
        assert (await standing(conn, "shop.effect")).waiting == 2


async def test_positions_and_who_serves_them(log: Bench, conn: AsyncConnection[Any]) -> None:
    log.register("a.handler", partitions=2)
    for generation in (7, 8, 9):
        log.publish(generation=generation, key="k")
        log.conn.execute("select outrider.open_generation('a.handler', %s)", [generation])
    log.work("a.handler", 7)
    log.conn.execute("update outrider.cursor set served_by = 8 where generation = 9")
    await worker(conn, "a.handler", generation=7, pid=7)
    await worker(conn, "a.handler", generation=8, pid=8)
    await worker(conn, "a.handler", generation=9, pid=9, unable=["a.handler"])
    await worker(conn, "a.other", generation=8, pid=10)
    seen = await standing(conn)
    assert {each.generation: (each.served_by, each.seq, each.lag, each.workers) for each in seen.positions} == {
        0: (0, 0, 3, ("host:7", "host:8")),
        7: (7, 3, 0, ("host:7",)),
        8: (8, 0, 3, ("host:8",)),
        9: (8, 0, 3, ("host:8",)),
    }
    assert seen.lag == 3


async def test_a_generation_whose_cursor_is_at_the_end_does_not_hide_the_others(
    log: Bench, conn: AsyncConnection[Any]
) -> None:
    """An event is owed by the cursor that reads it."""
    log.register("a.handler")
    log.conn.execute("select outrider.open_generation('a.handler', 7)")
    log.publish(generation=7)
    log.work("a.handler", 0)
    assert await age(conn) == timedelta(0)
    log.work("a.handler", 7)
    log.publish(generation=0)
    log.work("a.handler", 0)
    assert await age(conn) is None, "the cursor of 7 is behind, and nothing there is its own"


# The oldest that is owed


async def test_the_oldest_unread_or_parked(log: Bench, conn: AsyncConnection[Any]) -> None:
    log.register("a.handler", partitions=4)
    log.register("a.sparse", ["a.two"])
    assert await age(conn) is None
    first = log.publish(key="k")
    log.publish(key="l")
    log.conn.execute(f"update outrider.outbox set occurred_at = {OLD}".encode())
    log.publish("a.two", key="m")
    assert await age(conn) == timedelta(hours=1)
    assert await age(conn, "a.sparse") == timedelta(0)
    log.work("a.handler", fails=[first])
    assert await age(conn) == timedelta(hours=1), "parked"
    log.work("a.sparse")
    assert await age(conn, "a.sparse") is None
    log.make_due()
    log.work("a.handler", dies=[first])
    assert await age(conn) is None, "dead letters wait for nobody"


async def test_late_and_owing_events_are_owed(log: Bench, conn: AsyncConnection[Any]) -> None:
    log.register("a.handler")
    with log.session() as slow:
        for _ in range(4):
            log.publish(on=slow)
        log.publish()
        log.work("a.handler")
        assert await age(conn) is None
        slow.commit()
    assert await age(conn) == timedelta(0)
    log.step("a.handler", limit=2, scan=2)
    assert log.one("select owing is not null from outrider.cursor")
    assert await age(conn) == timedelta(0)
    log.work("a.handler")
    assert await age(conn) is None


async def test_what_was_withdrawn_or_buried_ahead_of_the_cursor_is_not_owed(
    log: Bench, conn: AsyncConnection[Any]
) -> None:
    log.register("a.handler")
    withdrawn = log.publish()
    log.withdraw(withdrawn)
    assert await age(conn) is None
    dead = log.publish()
    log.step("a.handler", dies=[dead])
    assert log.one("select not reached from outrider.delivery")
    assert await age(conn) is None


async def test_beyond_what_is_looked_at_nobody_knows(
    log: Bench, conn: AsyncConnection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status, "SCAN", 5)
    log.register("a.handler", ["a.two"])
    for _ in range(4):
        log.publish()
    assert (await standing(conn)).oldest_is_certain
    log.publish()
    seen = await standing(conn)
    assert (seen.oldest_owed_at, seen.oldest_is_certain) == (None, False)
    log.publish("a.two")
    assert not (await standing(conn)).oldest_is_certain
    log.step("a.handler", limit=1, scan=1)
    assert (await standing(conn)).oldest_owed_at is not None


def test_a_look_costs_a_bounded_piece_of_the_log(log: Bench) -> None:
    """Whether a subscription has read all of it or nothing, and whether it wants any of it."""
    log.register("a.all", start="beginning", partitions=4)
    log.register("a.none", ["b.other"], start="beginning")
    log.register("a.reader", kind="reader", start="beginning")
    log.register("a.relay", kind="relay", start="beginning")
    insert = """insert into outrider.outbox (event_type, source, payload)
                select 'a.one', 'a', '{}' from generate_series(1, 20000)"""
    with log.session() as slow:
        slow.execute(insert)
        log.conn.execute(insert)
        log.register("a.now")
        log.publish()
        log.work("a.now")
        slow.commit()
    for setting in ("enable_seqscan", "enable_bitmapscan", "enable_sort", "jit"):
        assert f"set local {setting} = off" in ONE_MOMENT
        log.conn.execute(f"set {setting} = off".encode())
    with psycopg.ClientCursor(log.conn) as cursor:
        query = b"explain (analyze, format json) " + statement("admin/oldest_unread", "outrider")
        found = cursor.execute(query, {"scan": 1000, "relay_scan": 3000}).fetchone()
    assert found is not None
    scans = [node for node in nodes(found[0][0]["Plan"]) if node.get("Relation Name", "").startswith("outbox_")]
    used = [node for node in scans if node["Actual Loops"] > 0]
    assert {node["Node Type"] for node in used} == {"Index Scan"}
    assert sum(node["Actual Rows"] * node["Actual Loops"] for node in used) == pytest.approx(4 * 1000 + 3000, abs=10)
    assert log.one("select min(seq) from outrider.cursor where subscription = 'a.now'") > 40_000
