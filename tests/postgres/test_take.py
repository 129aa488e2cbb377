"""The cursor step by step: one interleaving per rule, on the real functions and on the mutant that breaks the rule."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import psycopg
import pytest
from psycopg import AsyncConnection
from tests.mutants import MUTANTS, SMALL_BATCHES, Q, changed

from outrider.errors import CursorError
from outrider.postgres import log

Conn = AsyncConnection[Any]

TAKE_PAUSED = changed(
    "lock_cursor",
    ("/*schema*/lock_cursor(", "/*schema*/lock_cursor_paused("),
    (Q, Q + "    perform pg_advisory_xact_lock_shared(4713);\n"),
) + changed(
    "take", ("/*schema*/take(", "/*schema*/take_paused("), ("/*schema*/lock_cursor(", "/*schema*/lock_cursor_paused(")
)
"""take, held between its look at the sequence and its lock for as long as a test holds 4713."""


class Desk:
    """A few sessions on one database, and what the subscription "a.reader" has read so far."""

    def __init__(self, dsn: str, stack: contextlib.AsyncExitStack) -> None:
        self.dsn = dsn
        self.stack = stack
        self.seen: list[str] = []

    async def session(self, **options: Any) -> Conn:
        return await self.stack.enter_async_context(await AsyncConnection.connect(self.dsn, **options))

    async def register(
        self, types: list[str] | None = None, partitions: int = 1, start: str = "now"
    ) -> tuple[Any, ...]:
        async with await AsyncConnection.connect(self.dsn, autocommit=True) as conn:
            cursor = await conn.execute(
                "select * from outrider.register('a.reader', 'reader', 'a', %s, %s, %s)", [types, partitions, start]
            )
            row = await cursor.fetchone()
            assert row is not None
            return row

    async def take(self, partition: int = 0, limit: int = 100, scan: int = 1000) -> str:
        async with await AsyncConnection.connect(self.dsn) as conn:
            batch = await log.take(conn, "a.reader", partition, limit, scan, "outrider")
        self.seen += [e.payload["name"] for e in batch.events]
        return batch.outcome

    async def take_all(self, partition: int = 0, limit: int = 100, scan: int = 1000) -> list[str]:
        """Take until idle; what was read since the last call."""
        before = len(self.seen)
        while await self.take(partition, limit, scan) != "idle":
            pass
        return self.seen[before:]

    async def cursor(self, column: str, partition: int = 0) -> Any:
        async with await AsyncConnection.connect(self.dsn) as conn:
            query = f"select {column} from outrider.cursor where partition = {partition}"
            row = await (await conn.execute(query.encode())).fetchone()
            assert row is not None
            return row[0]


async def publish(conn: Conn, *names: str, event_type: str = "a.happened", key: str | None = None) -> None:
    for name in names:
        await conn.execute(
            "select outrider.publish(%s, jsonb_build_object('name', %s::text), key => %s)", [event_type, name, key]
        )


pytestmark = [pytest.mark.xdist_group("quiet"), pytest.mark.also_on(15, 16)]


@pytest.fixture
async def desk(quiet_database: str) -> AsyncIterator[Desk]:
    async with contextlib.AsyncExitStack() as stack:
        yield Desk(quiet_database, stack)


# One scenario per rule. Each returns what a correct cursor must have read by its end.


async def overtaken(desk: Desk) -> list[str]:
    """A number drawn earlier commits later."""
    slow, quick = await desk.session(), await desk.session()
    await publish(slow, "slow")
    await publish(quick, "quick")
    await quick.commit()
    assert await desk.take_all() == ["quick"]
    await slow.commit()
    await desk.take_all()
    return ["quick", "slow"]


async def above_the_snapshot(desk: Desk) -> list[str]:
    """The open transaction is the newest of all: above the snapshot's xmax, and so not in its list."""
    slow = await desk.session()
    await publish(slow, "slow")
    assert await desk.take_all() == []
    await slow.commit()
    await desk.take_all()
    return ["slow"]


async def drawn_between_the_steps(desk: Desk) -> list[str]:
    """A number is drawn while a take is under way, by a transaction that is younger than the take."""
    gate, slow = await desk.session(autocommit=True), await desk.session()
    await publish(gate, "first")
    await gate.execute("select pg_advisory_lock(4712)")
    taking = asyncio.create_task(desk.take())
    if MUTANTS["Q read after the lock"] in desk_mutants:
        await until_blocked(gate)
    else:
        await taking
    await publish(slow, "slow")
    await gate.execute("select pg_advisory_unlock(4712)")
    await taking
    await slow.commit()
    await desk.take_all()
    return ["first", "slow"]


async def finished_during_a_read(desk: Desk) -> list[str]:
    """A transaction that the cursor waits for commits in the midst of a take."""
    gate, slow = await desk.session(autocommit=True), await desk.session()
    await publish(slow, "slow")
    await publish(gate, "first")
    await desk.take_all()
    await publish(gate, "second")
    await gate.execute("select pg_advisory_lock(4712)")
    taking = asyncio.create_task(desk.take())
    if MUTANTS["late transactions looked for one statement before"] in desk_mutants:
        await until_blocked(gate)
    else:
        await taking
    await slow.commit()
    await gate.execute("select pg_advisory_unlock(4712)")
    await taking
    await desk.take_all()
    return ["first", "second", "slow"]


async def finished_while_another_is_owed(desk: Desk) -> list[str]:
    """The same, in a take that finds more late events of another transaction than fit into a batch."""
    gate, slow, slower = await desk.session(autocommit=True), await desk.session(), await desk.session()
    names = [f"slow{n}" for n in range(4)]
    await publish(slow, *names)
    await publish(slower, "slower")
    await publish(gate, "first")
    await desk.take_all()
    await slow.commit()
    await gate.execute("select pg_advisory_lock(4712)")
    taking = asyncio.create_task(desk.take(limit=3, scan=3))
    if MUTANTS["owing and inflight of two snapshots"] in desk_mutants:
        await until_blocked(gate)
    else:
        await taking
    await slower.commit()
    await gate.execute("select pg_advisory_unlock(4712)")
    await taking
    await desk.take_all(limit=3, scan=3)
    return ["first", *names, "slower"]


async def late_in_pages(desk: Desk) -> list[str]:
    """What a transaction left is more than one batch."""
    slow, quick = await desk.session(), await desk.session(autocommit=True)
    names = [f"slow{n}" for n in range(10)]
    await publish(slow, *names)
    await publish(quick, "quick")
    await desk.take_all()
    await slow.commit()
    await publish(quick, "last")
    await desk.take_all(limit=3, scan=3)
    return ["quick", *names, "last"]


async def two_sessions_in_turn(desk: Desk) -> list[str]:
    """Sessions draw numbers in turn; with a cache, one of them would use old numbers later."""
    one, two = await desk.session(autocommit=True), await desk.session(autocommit=True)
    await publish(one, "1")
    await publish(two, "2")
    await desk.take_all()
    await publish(one, "3")
    await desk.take_all()
    return ["1", "2", "3"]


async def number_before_transaction(desk: Desk) -> list[str]:
    """A publisher is stopped between drawing its number and getting its transaction id."""
    gate, slow = await desk.session(autocommit=True), await desk.session(autocommit=True)
    # The first draw after a checkpoint is logged, which needs a transaction id; the next 32 are not.
    await publish(gate, "first")
    await gate.execute("select pg_advisory_lock(4711)")
    insert = (
        "insert into outrider.outbox (event_type, source, payload) values ('a.happened', 'a', '{\"name\": \"slow\"}')"
    )
    publishing = asyncio.create_task(slow.execute(insert))
    if MUTANTS["seq drawn before tx"] in desk_mutants:
        await until_blocked(gate)
    else:
        await publishing
    await desk.take_all()
    await gate.execute("select pg_advisory_unlock(4711)")
    await publishing
    await desk.take_all()
    return ["first", "slow"]


async def until_blocked(conn: Conn, sessions: int = 1) -> None:
    """Wait until so many sessions of this database wait for a lock."""
    query = """select count(*) >= %s from pg_stat_activity
               where datname = current_database() and wait_event_type = 'Lock'"""
    while await (await conn.execute(query, [sessions])).fetchone() == (False,):
        pass


desk_mutants: set[str] = set()


async def late_of_many_bytes(desk: Desk) -> list[str]:
    """Late events that fill a batch by their bytes: the others are not forgotten."""
    slow, conn = await desk.session(), await desk.session(autocommit=True)
    await conn.execute(SMALL_BATCHES)
    names = [f"late{n}" for n in range(7)]
    await publish(slow, *names)
    await publish(conn, "quick")
    await desk.take_all()
    await slow.commit()
    await publish(conn, "fresh")
    await desk.take()
    assert desk.seen[:3] == ["quick", "late0", "late1"]
    await desk.take_all()
    return ["quick", *names, "fresh"]


async def fresh_of_many_bytes(desk: Desk) -> list[str]:
    conn = await desk.session(autocommit=True)
    await conn.execute(SMALL_BATCHES)
    names = [f"fresh{n}" for n in range(7)]
    await publish(conn, *names)
    await desk.take()
    assert desk.seen == ["fresh0", "fresh1"]
    await desk.take_all()
    return names


SCENARIOS: dict[str, Callable[[Desk], Awaitable[list[str]]]] = {
    "without inflight": overtaken,
    "without the range [xmax, R)": above_the_snapshot,
    "Q read after the lock": drawn_between_the_steps,
    "late transactions looked for one statement before": finished_during_a_read,
    "owing and inflight of two snapshots": finished_while_another_is_owed,
    "late cut by a plain LIMIT": late_in_pages,
    "late cut by its bytes alone": late_of_many_bytes,
    "fresh cut by its bytes alone": fresh_of_many_bytes,
    "a sequence with CACHE 20": two_sessions_in_turn,
    "seq drawn before tx": number_before_transaction,
}


@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=lambda scenario: scenario.__name__)
async def test_every_event_once(desk: Desk, scenario: Callable[[Desk], Awaitable[list[str]]]) -> None:
    await desk.register()
    expected = await scenario(desk)
    assert desk.seen == expected


@pytest.mark.parametrize("name", SCENARIOS)
async def test_mutant_is_caught(desk: Desk, name: str) -> None:
    """The same scenario fails when its rule is broken: so the test above can fail."""
    await desk.register()
    async with await AsyncConnection.connect(desk.dsn, autocommit=True) as conn:
        await conn.execute(MUTANTS[name].encode())
    desk_mutants.add(MUTANTS[name])
    try:
        expected = await SCENARIOS[name](desk)
    finally:
        desk_mutants.clear()
    assert desk.seen != expected
    assert set(desk.seen) < set(expected), "the mutant loses events"


async def rebased_though_it_never_left(desk: Desk) -> list[str]:
    """What an upgrade that changes the meaning of `cluster` does: the old transactions are not over."""
    slow, slower, conn = await desk.session(), await desk.session(), await desk.session(autocommit=True)
    await publish(slow, "slow1", "slow2", "slow3")
    await publish(slower, "slower")
    await publish(conn, "quick")
    await desk.take_all()
    await slow.commit()
    await conn.execute("update outrider.cursor set cluster = 0")
    await desk.take(limit=2)  # rebases the cursor; what "slow" left is more than a page
    await desk.take(limit=2)
    await slower.commit()
    await desk.take_all(limit=2)
    assert await desk.cursor("cluster") != 0
    return ["quick", "slow1", "slow2", "slow3", "slower"]


async def test_a_rebase_is_exact_for_a_cursor_that_never_left(desk: Desk) -> None:
    await desk.register()
    assert await rebased_though_it_never_left(desk) == desk.seen


async def test_mutant_whose_rebase_forgets_what_still_runs(desk: Desk) -> None:
    mutant = changed(
        "read",
        ("cur.horizon := r;", "cur.horizon := '0'; cur.inflight := '9223372036854775807:9223372036854775807:';"),
    )
    await desk.register()
    await (await desk.session(autocommit=True)).execute(mutant.encode())
    expected = await rebased_though_it_never_left(desk)
    assert desk.seen == expected[:-1], "the mutant loses events"


# What a take promises beside exactness


async def test_idle_take_writes_nothing(desk: Desk) -> None:
    await desk.register()
    slow = await desk.session()
    await slow.execute("select pg_current_xact_id()")
    await desk.take_all()
    async with await AsyncConnection.connect(desk.dsn) as conn:
        batch = await log.take(conn, "a.reader", 0, 10, 10, "outrider")
        assert batch.outcome == "idle"
        row = await (await conn.execute("select pg_current_xact_id_if_assigned()")).fetchone()
        assert row == (None,)


async def test_rollback_gives_the_same_events_again(desk: Desk) -> None:
    await desk.register()
    conn = await desk.session()
    await publish(conn, "one", "two")
    await conn.commit()
    first = await log.take(conn, "a.reader", 0, 10, 10, "outrider")
    await conn.rollback()
    again = await log.take(conn, "a.reader", 0, 10, 10, "outrider")
    await conn.commit()
    assert [e.id for e in first.events] == [e.id for e in again.events]
    assert len(again.events) == 2
    assert await desk.take() == "idle"


async def test_one_session_holds_a_partition(desk: Desk) -> None:
    await desk.register()
    conn = await desk.session()
    await publish(conn, "one")
    await conn.commit()
    held = await log.take(conn, "a.reader", 0, 10, 10, "outrider")
    assert await desk.take() == "busy"
    await conn.rollback()
    assert len(held.events) == 1
    assert await desk.take_all() == ["one"]


async def test_long_transaction_delays_only_its_own_events(desk: Desk) -> None:
    await desk.register()
    slow, other = await desk.session(), await desk.session(autocommit=True)
    elsewhere = await desk.stack.enter_async_context(await AsyncConnection.connect(desk.dsn, dbname="postgres"))
    await elsewhere.execute("select pg_current_xact_id()")
    await publish(slow, "slow")
    for n in range(5):
        await publish(other, f"{n}")
        assert await desk.take_all() == [f"{n}"]
    await slow.commit()
    assert await desk.take_all() == ["slow"]


async def test_publish_inside_the_readers_transaction_comes_next(desk: Desk) -> None:
    await desk.register()
    conn = await desk.session()
    await publish(conn, "first")
    await conn.commit()
    await log.take(conn, "a.reader", 0, 10, 10, "outrider")
    await publish(conn, "echo")
    await conn.commit()
    assert await desk.take_all() == ["echo"]


async def test_sparse_subscription_steps_over_what_is_not_its_own(desk: Desk) -> None:
    await desk.register(types=["a.rare"])
    conn = await desk.session(autocommit=True)
    await publish(conn, *(str(n) for n in range(25)), event_type="a.common")
    await publish(conn, "rare", event_type="a.rare")
    outcomes = [await desk.take(limit=10, scan=10) for _ in range(3)]
    assert outcomes == ["more", "more", "done"]
    assert desk.seen == ["rare"]


async def test_sparse_subscription_steps_over_a_late_transaction(desk: Desk) -> None:
    await desk.register(types=["a.rare"])
    slow, quick = await desk.session(), await desk.session(autocommit=True)
    await publish(slow, *(str(n) for n in range(25)), event_type="a.common")
    await publish(slow, "rare", event_type="a.rare")
    await publish(quick, "quick", event_type="a.rare")
    assert await desk.take_all() == ["quick"]
    await slow.commit()
    outcomes = [await desk.take(limit=10, scan=10) for _ in range(4)]
    assert outcomes == ["more", "more", "more", "idle"]
    assert desk.seen == ["quick", "rare"]


async def test_target_restricts_an_event_to_its_context(desk: Desk) -> None:
    await desk.register()
    conn = await desk.session(autocommit=True)
    for target in (None, "a", "b"):
        await conn.execute(
            "select outrider.publish('a.happened', jsonb_build_object('name', coalesce(%s, 'all')), target => %s)",
            [target, target],
        )
    assert await desk.take_all() == ["all", "a"]


async def test_keys_stay_in_their_partition(desk: Desk) -> None:
    await desk.register(partitions=4)
    conn = await desk.session(autocommit=True)
    for n in range(40):
        await publish(conn, f"{n % 8}:{n}", key=str(n % 8))
    parts = [await desk.take_all(partition) for partition in range(4)]
    assert sorted(int(name.split(":")[1]) for part in parts for name in part) == list(range(40))
    homes = [{name.split(":")[0] for name in part} for part in parts]
    assert sum(len(home) for home in homes) == 8
    for part in parts:
        assert part == sorted(part, key=lambda name: int(name.split(":")[1]))


async def test_events_without_a_key_are_spread(desk: Desk) -> None:
    await desk.register(partitions=4)
    conn = await desk.session(autocommit=True)
    await publish(conn, *(str(n) for n in range(40)))
    assert [len(await desk.take_all(partition)) for partition in range(4)] == [10, 10, 10, 10]


async def test_floor_follows_so_that_late_reading_stays_short(desk: Desk) -> None:
    """Old segments need not be searched for late events once everyone who could have written there is gone."""
    await desk.register()
    conn = await desk.session(autocommit=True)
    for n in range(5):
        await publish(conn, str(n))
        await desk.take_all()
    assert await desk.cursor("seq") - await desk.cursor("floor") <= 2


async def test_floor_waits_for_the_oldest_writer(desk: Desk) -> None:
    await desk.register()
    slow, conn = await desk.session(), await desk.session(autocommit=True)
    await publish(slow, "slow")
    for n in range(5):
        await publish(conn, str(n))
        await desk.take_all()
    assert await desk.cursor("floor") == 0
    await slow.commit()
    assert await desk.take_all() == ["slow"]


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
async def test_take_refuses_other_isolation_levels(desk: Desk, level: str) -> None:
    await desk.register()
    conn = await desk.session(autocommit=True)
    await conn.execute(f"begin isolation level {level}".encode())
    with pytest.raises(CursorError, match="READ COMMITTED"):
        await log.take(conn, "a.reader", 0, 10, 10, "outrider")
    await conn.rollback()


async def test_take_refuses_a_transaction_that_has_written(desk: Desk) -> None:
    await desk.register()
    conn = await desk.session()
    await publish(conn, "one")
    with pytest.raises(CursorError, match="before any write"):
        await log.take(conn, "a.reader", 0, 10, 10, "outrider")


async def test_take_refuses_an_unknown_cursor(desk: Desk) -> None:
    conn = await desk.session()
    with pytest.raises(CursorError, match=r"no cursor for subscription .*app\.migrate"):
        await log.take(conn, "a.reader", 0, 10, 10, "outrider")


@pytest.mark.parametrize(("limit", "scan"), [(0, 10), (10, 9)])
async def test_take_refuses_impossible_limits(desk: Desk, limit: int, scan: int) -> None:
    conn = await desk.session()
    with pytest.raises(CursorError, match="limit"):
        await log.take(conn, "a.reader", 0, limit, scan, "outrider")


async def test_cursor_ahead_of_the_log_is_an_error(desk: Desk) -> None:
    await desk.register()
    conn = await desk.session(autocommit=True)
    await publish(conn, "one", "two")
    await desk.take_all()
    await conn.execute("select setval('outrider.outbox_seq', 1)")
    with pytest.raises(CursorError, match="ahead of the log"):
        await desk.take()


async def test_hidden_rows_are_an_error(desk: Desk) -> None:
    """Under row security a reader that may not see everything is told, instead of seeing nothing."""
    await desk.register()
    owner = await desk.session(autocommit=True)
    role = f"outrider_{owner.info.dbname}"
    await publish(owner, "one")
    await owner.execute(
        f"""create role {role}; grant usage on schema outrider to {role};
            grant select, update on all tables in schema outrider to {role};
            grant usage, select on all sequences in schema outrider to {role};
            grant execute on all functions in schema outrider to {role};
            alter table outrider.outbox enable row level security""".encode()
    )
    conn = await desk.session()
    try:
        await conn.execute(f"set role {role}".encode())
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="row-level security"):
            await log.take(conn, "a.reader", 0, 10, 10, "outrider")
        await conn.rollback()
    finally:
        await owner.execute(f"drop owned by {role}; drop role {role}".encode())


async def test_a_take_that_was_overtaken_does_not_go_back(desk: Desk) -> None:
    """Another session reads and commits after a take has looked at the sequence and before it locks the cursor."""
    await desk.register()
    gate, conn = await desk.session(autocommit=True), await desk.session()
    await gate.execute(TAKE_PAUSED.encode())
    await publish(gate, "one")
    await gate.execute("select pg_advisory_lock(4713)")
    taking = asyncio.create_task(conn.execute("select outcome, seq from outrider.take_paused('a.reader')"))
    await until_blocked(gate)
    await publish(gate, "two", "three")
    assert await desk.take_all() == ["one", "two", "three"]
    await gate.execute("select pg_advisory_unlock(4713)")
    assert await (await taking).fetchall() == [("idle", None)]
    await conn.commit()
    assert await desk.take_all() == []
    assert await desk.cursor("seq") == 3


async def test_a_take_that_was_overtaken_while_events_are_owed(desk: Desk) -> None:
    """The same, where the overtaken take has late events to read: it reads them and stays where the other one got to."""
    await desk.register()
    gate, conn, slow = await desk.session(autocommit=True), await desk.session(), await desk.session()
    await gate.execute(TAKE_PAUSED.encode())
    await publish(slow, "slow")
    await publish(gate, "one")
    await gate.execute("select pg_advisory_lock(4713)")
    taking = asyncio.create_task(conn.execute("select outcome, seq from outrider.take_paused('a.reader')"))
    await until_blocked(gate)
    await publish(gate, "two", "three")
    assert await desk.take_all() == ["one", "two", "three"]
    await slow.commit()
    await gate.execute("select pg_advisory_unlock(4713)")
    assert [seq for _, seq in await (await taking).fetchall()] == [None, 1]
    await conn.commit()
    assert await desk.take_all() == []
    assert await desk.cursor("seq") == 4


async def test_a_publish_writes_one_row_whoever_subscribes_and_stalls(desk: Desk) -> None:
    await desk.register()
    conn, stalled = await desk.session(autocommit=True), await desk.session()
    for n in range(20):
        await conn.execute("select outrider.register(%s, 'reader', 'a', null, 4)", [f"a.r{n}"])
    await publish(conn, "first")
    await log.take(stalled, "a.reader", 0, 10, 10, "outrider")
    written = """select sum(pg_stat_get_xact_tuples_inserted(c.oid) + pg_stat_get_xact_tuples_updated(c.oid)
                            + pg_stat_get_xact_tuples_deleted(c.oid))
                 from pg_class as c where c.relnamespace = 'outrider'::regnamespace and c.relkind = 'r'"""
    async with conn.transaction():
        await conn.execute("set local lock_timeout = '1s'")
        before = await (await conn.execute(written)).fetchone()
        await publish(conn, "second")
        after = await (await conn.execute(written)).fetchone()
    assert before is not None
    assert after is not None
    assert after[0] - before[0] == 1
    await stalled.rollback()
    assert await desk.take_all() == ["first", "second"]
