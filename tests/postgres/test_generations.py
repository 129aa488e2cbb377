"""Opening and folding a generation is exact: nothing is missed, nothing doubled, lines keep their order; step by step, and
on mutants that break one rule each.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import psycopg
import pytest
from psycopg import AsyncConnection
from psycopg.rows import dict_row
from tests.mutants import LOCKED, changed
from tests.postgres.test_take import until_blocked

Conn = AsyncConnection[Any]
NAME = "a.handler"

pytestmark = [pytest.mark.xdist_group("quiet_generations"), pytest.mark.also_on(15)]


class Desk:
    """A handler's subscription without a worker: what it takes is handled, unless it is told to fail."""

    def __init__(self, dsn: str, stack: contextlib.AsyncExitStack) -> None:
        self.dsn = dsn
        self.stack = stack
        self.handled: list[str] = []
        """In order, as `name@generation that took it`."""
        self.failing: set[str] = set()
        self._taking: Conn | None = None

    async def session(self, **options: Any) -> Conn:
        conn = await AsyncConnection.connect(self.dsn, **options)
        self.stack.push_async_callback(conn.close)
        return conn

    async def sql(self, query: str, *params: object) -> list[tuple[Any, ...]]:
        async with await AsyncConnection.connect(self.dsn, autocommit=True) as conn:
            cursor = await conn.execute(query.encode(), params or None)
            return await cursor.fetchall() if cursor.description else []

    async def register(self, partitions: int = 1, kind: str = "handler", order: str = "key") -> None:
        await self.sql(
            "select outrider.register(%s, %s, 'a', '{a.happened}', %s, 'now', %s)", NAME, kind, partitions, order
        )

    async def open(self, generation: int) -> bool:
        return bool((await self.sql("select outrider.open_generation(%s, %s)", NAME, generation))[0][0])

    async def fold(self, generation: int) -> bool:
        return bool((await self.sql("select outrider.fold_generation(%s, %s)", NAME, generation))[0][0])

    async def begin(self, conn: Conn, generation: int, limit: int = 100, **options: Any) -> list[dict[str, Any]]:
        """A take in a transaction that stays open; the first row says what happened."""
        named = "".join(f", p_{name} => %({name})s" for name in options)
        await conn.rollback()
        async with conn.cursor(row_factory=dict_row) as cursor:
            taking = f"outrider.take(%(name)s, p_limit => %(limit)s, p_generation => %(generation)s{named})"
            await cursor.execute(
                f"select * from {taking}".encode(), {"name": NAME, "limit": limit, "generation": generation, **options}
            )
            return await cursor.fetchall()

    async def finish(self, conn: Conn, generation: int, rows: list[dict[str, Any]]) -> None:
        """Handle what was taken, or fail with the first that fails: roll back and park it."""
        head, *events = rows
        names = [json.loads(each["payload"])["name"] for each in events]
        if wrong := [each for each, name in zip(events, names, strict=True) if name in self.failing]:
            await conn.rollback()
            await self.park(conn, head["cursor"], wrong[0])
        else:
            if head["batch"] is not None:
                await conn.execute("select outrider.settle(%s)", [head["batch"]])
            await conn.commit()
            self.handled += [f"{name}@{generation}" for name in names]

    async def park(self, conn: Conn, cursor: int, event: dict[str, Any], delay: float = 3600) -> None:
        failure = {
            "seq": event["seq"], "attempt": event["attempt"], "delay": delay, "code": "x", "message": "m",
            "counted": True, "dead": False,
        }  # fmt: skip
        await conn.execute("select outrider.park(%s, %s, %s)", [NAME, cursor, json.dumps([failure])])
        await conn.commit()

    async def take(self, generation: int, limit: int = 100, **options: Any) -> str:
        self._taking = self._taking or await self.session()
        rows = await self.begin(self._taking, generation, limit, **options)
        await self.finish(self._taking, generation, rows)
        return str(rows[0]["outcome"])

    async def take_all(self, *generations: int, limit: int = 100) -> list[str]:
        """Until nothing is left; what was handled since the last call."""
        before = len(self.handled)
        for generation in generations:
            while await self.take(generation, limit) in ("more", "done"):
                pass
        return self.handled[before:]

    async def generations(self) -> list[int]:
        return [row[0] for row in await self.sql("select distinct generation from outrider.cursor order by 1")]

    async def lines(self) -> list[tuple[Any, ...]]:
        """What is parked: generation, name, whether it is the head."""
        return await self.sql(
            """select d.generation, o.payload ->> 'name', d.head from outrider.delivery as d
               join outrider.outbox as o using (seq) where d.status = 'pending' order by d.generation, d.seq"""
        )

    async def make_due(self) -> None:
        await self.sql("update outrider.delivery set run_at = run_at - interval '1 day'")


async def publish(conn: Conn, generation: int, *names: str, key: str | None = None) -> None:
    await conn.execute("select set_config('outrider.generation', %s, false)", [str(generation)])
    for name in names:
        await conn.execute(
            "select outrider.publish('a.happened', jsonb_build_object('name', %s::text), key => %s)", [name, key]
        )


async def blocked_or_done(task: asyncio.Task[Any], conn: Conn, sessions: int = 1) -> None:
    """Until so many sessions wait for a lock, or the task has ended without."""
    watching = asyncio.create_task(until_blocked(conn, sessions))
    await asyncio.wait([task, watching], return_when=asyncio.FIRST_COMPLETED)
    watching.cancel()
    await asyncio.wait([watching])


@pytest.fixture
async def desk(quiet_database: str) -> AsyncIterator[Desk]:
    async with contextlib.AsyncExitStack() as stack:
        yield Desk(quiet_database, stack)


# What opening and folding promise: one interleaving per rule. Each returns what must have been handled by its end.


async def opened_under_publishers(desk: Desk) -> list[str]:
    """Transactions that are open when the generation is opened commit afterwards: below the cursor, and above it."""
    await desk.register()
    early, other, late = await desk.session(), await desk.session(autocommit=True), await desk.session()
    await publish(other, 1, "before")
    await publish(early, 1, "below")
    await publish(early, 2, "stranger")
    await publish(other, 0, "none")
    await desk.take_all(0)
    await publish(late, 1, "above")
    assert await desk.open(1)
    await early.commit()
    await late.commit()
    await publish(other, 1, "after")
    await publish(other, 0, "last")
    await desk.take_all(1, 0)
    return ["before@0", "none@0", "below@1", "above@1", "after@1", "stranger@0", "last@0"]


async def opened_while_pages_are_read(desk: Desk) -> list[str]:
    """The catch-all is in the midst of a late transaction that fills several batches."""
    await desk.register()
    slow, quick = await desk.session(), await desk.session(autocommit=True)
    for n in range(4):
        await publish(slow, 1, f"one{n}")
        await publish(slow, 0, f"none{n}")
    await publish(quick, 0, "quick")
    await desk.take_all(0)
    await slow.commit()
    await publish(quick, 1, "last")
    await desk.take(0, limit=3)
    assert await desk.open(1)
    await desk.take_all(1, 0, limit=3)
    return [
        "quick@0", "one0@0", "none0@0", "one1@0", "one2@1", "one3@1", "last@1", "none1@0", "none2@0", "none3@0",
    ]  # fmt: skip


async def opened_during_a_batch(desk: Desk) -> list[str]:
    """Opening waits for the batch; what it rolls back belongs to the generation."""
    await desk.register()
    other, reading = await desk.session(autocommit=True), await desk.session()
    await publish(other, 1, "one")
    await publish(other, 0, "none")
    rows = await desk.begin(reading, 0)
    assert len(rows) == 3
    opening = asyncio.create_task(desk.open(1))
    await blocked_or_done(opening, other)
    await reading.rollback()
    assert await opening
    await desk.take_all(1, 0)
    return ["one@1", "none@0"]


async def opened_between_two_steps_of_a_take(desk: Desk) -> list[str]:
    """A take of the catch-all asks which generations have cursors of their own only when it holds the lock."""
    await desk.register()
    gate, reading = await desk.session(autocommit=True), await desk.session()
    await publish(gate, 1, "one")
    await gate.execute("select pg_advisory_lock(4712)")
    taking = asyncio.create_task(desk.begin(reading, 0))
    await until_blocked(gate)
    opening = asyncio.create_task(desk.open(1))
    await blocked_or_done(opening, gate, sessions=2)
    await gate.execute("select pg_advisory_unlock(4712)")
    await desk.finish(reading, 0, await taking)
    assert await opening
    await desk.take_all(1)
    return ["one@0"]


async def folded_under_publishers(desk: Desk) -> list[str]:
    """Transactions that are open when the generation is folded commit afterwards: below the cursors, and above them."""
    await desk.register()
    early, other, late = await desk.session(), await desk.session(autocommit=True), await desk.session()
    await desk.open(1)
    await publish(early, 1, "below")
    await publish(other, 1, "one")
    await publish(other, 0, "none")
    await desk.take_all(1, 0)
    await publish(late, 1, "above")
    assert await desk.fold(1)
    assert await desk.generations() == [0]
    await early.commit()
    await late.commit()
    await publish(other, 1, "after")
    await desk.take_all(0)
    return ["one@1", "none@0", "below@0", "above@0", "after@0"]


async def folded_beside_a_busy_catch_all(desk: Desk) -> list[str]:
    """What the catch-all has not read yet of its own does not hold the fold up; nor does what is late for it."""
    await desk.register()
    slow, other = await desk.session(), await desk.session(autocommit=True)
    await desk.open(1)
    await publish(slow, 0, "late")
    await publish(other, 1, "one")
    await desk.take_all(1, 0)
    await slow.commit()
    await publish(other, 0, "fresh")
    assert await desk.fold(1)
    await desk.take_all(0)
    return ["one@1", "late@0", "fresh@0"]


async def folded_when_the_catch_all_has_passed(desk: Desk) -> list[str]:
    """The generation is through, and the catch-all would still find it: above its cursor, then as a late event."""
    await desk.register()
    slow, other = await desk.session(), await desk.session(autocommit=True)
    await desk.open(1)
    await publish(slow, 1, "slow")
    await publish(other, 1, "one")
    await desk.take_all(1)
    if await desk.fold(1):
        await desk.take_all(0)
    await desk.take_all(0)
    await slow.commit()
    await desk.take_all(1)
    if await desk.fold(1):
        await desk.take_all(0)
    await desk.take_all(0)
    assert await desk.fold(1)
    await desk.take_all(0)
    return ["one@1", "slow@1"]


async def folded_when_it_is_through(desk: Desk) -> list[str]:
    """The generation has something to read: above its cursor, then as a late event."""
    await desk.register()
    slow, other = await desk.session(), await desk.session(autocommit=True)
    await desk.open(1)
    await publish(slow, 1, "slow")
    await publish(other, 1, "one")
    await desk.take_all(0)
    assert not await desk.fold(1)
    await desk.take_all(1)
    await slow.commit()
    await desk.take_all(0)
    assert not await desk.fold(1)
    await desk.take_all(1, 0)
    assert await desk.fold(1)
    return ["one@1", "slow@1"]


HOLDING = changed("lock_cursor", (LOCKED, LOCKED + "            perform pg_advisory_xact_lock_shared(4712);\n"))
"""A take stops after its lock for as long as a test holds 4712."""


LOOKED_AT = "c.generation in (0, p_generation) and o.seq > c.seq\n"

SCENARIOS: dict[Callable[[Desk], Awaitable[list[str]]], dict[str, str]] = {
    opened_under_publishers: {
        "the catch-all reads every generation": changed("wanted", ("p_event.generation <> all (p_others)", "true")),
        "a generation reads every other": changed("wanted", ("p_event.generation = p_cursor.generation", "true")),
        "the copy forgets what is in flight": changed(
            "open_generation",
            (
                "c.seq, c.floor, c.inflight, c.horizon, c.owing, c.owed_after,",
                "c.seq, c.floor, pg_current_snapshot(), '0'::xid8, c.owing, c.owed_after,",
            ),
        ),
    },
    opened_while_pages_are_read: {
        "the copy forgets the pages": changed(
            "open_generation",
            (
                "c.seq, c.floor, c.inflight, c.horizon, c.owing, c.owed_after,",
                "c.seq, c.floor, c.inflight, c.horizon, null::xid8[], null::bigint,",
            ),
        ),
    },
    opened_during_a_batch: {},
    opened_between_two_steps_of_a_take: {
        "opened without the lock": changed(
            "open_generation", ("    order by c.partition for update;\n", "    order by c.partition;\n")
        ),
    },
    folded_under_publishers: {
        "the catch-all forgets what is in flight": changed(
            "fold_generation",
            (
                "set floor = strangers\n",
                "set inflight = '1:1:', horizon = '0'\n",
            ),
            (
                " and c.floor < strangers;",
                ";",
            ),
        ),
    },
    folded_beside_a_busy_catch_all: {},
    folded_when_the_catch_all_has_passed: {
        "only its own cursors are looked at": changed(
            "fold_generation",
            (
                LOOKED_AT,
                LOOKED_AT.replace("in (0, p_generation)", "= p_generation"),
            ),
        ),
        "late events are not looked at": changed(
            "fold_generation",
            ("                        and o.generation = p_generation\n", "                        and false\n"),
        ),
    },
    folded_when_it_is_through: {
        "only the catch-all is looked at": changed(
            "fold_generation",
            (
                LOOKED_AT,
                LOOKED_AT.replace("in (0, p_generation)", "= 0"),
            ),
        ),
    },
}
MUTANTS = {
    f"{scenario.__name__}: {name}": (scenario, sql) for scenario, of in SCENARIOS.items() for name, sql in of.items()
}


async def arrange(desk: Desk, scenario: object, *mutants: str) -> None:
    if scenario is opened_between_two_steps_of_a_take:
        mutants = (HOLDING, *mutants)
    for mutant in mutants:
        await desk.sql(mutant)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
async def test_every_event_once_and_by_its_own(desk: Desk, scenario: Callable[[Desk], Awaitable[list[str]]]) -> None:
    await arrange(desk, scenario)
    assert await scenario(desk) == desk.handled
    assert await desk.sql("select count(*) from outrider.event_handled") == [(len(desk.handled),)]


@pytest.mark.parametrize("name", MUTANTS)
async def test_mutant_is_caught(desk: Desk, name: str) -> None:
    """The same scenario fails when its rule is broken: so the test above can fail. A double meets its receipt."""
    scenario, mutant = MUTANTS[name]
    await arrange(desk, scenario, mutant)
    try:
        expected = await scenario(desk)
    except (AssertionError, psycopg.errors.UniqueViolation):
        return
    assert desk.handled != expected


# Parked events


async def test_the_line_of_a_key_is_split_and_merged(desk: Desk) -> None:
    await desk.register()
    other = await desk.session(autocommit=True)
    desk.failing = {"none1", "one1"}
    for n in (1, 2):
        await publish(other, 1, f"one{n}", key="k")
        await publish(other, 0, f"none{n}", key="k")
    await desk.take_all(0)
    assert await desk.lines() == [(0, "one1", True), (0, "none1", False), (0, "one2", False), (0, "none2", False)]
    assert await desk.open(1)
    assert await desk.lines() == [(0, "none1", True), (0, "none2", False), (1, "one1", True), (1, "one2", False)]
    await publish(other, 1, "one3", key="k")
    await desk.make_due()
    await desk.take_all(1)
    assert desk.handled == []
    assert not await desk.fold(1), "the catch-all has not come past one3"
    await desk.take_all(0)
    assert await desk.fold(1)
    assert await desk.lines() == [
        (0, "one1", True), (0, "none1", False), (0, "one2", False), (0, "none2", False), (0, "one3", False),
    ]  # fmt: skip
    desk.failing = set()
    await desk.make_due()
    assert await desk.take_all(0) == ["one1@0", "none1@0", "one2@0", "none2@0", "one3@0"]


async def test_parked_events_without_a_key_move_too(desk: Desk) -> None:
    await desk.register()
    other = await desk.session(autocommit=True)
    desk.failing = {"one", "none"}
    await publish(other, 1, "one")
    await publish(other, 0, "none")
    await desk.take_all(0)
    await desk.open(1)
    assert await desk.lines() == [(0, "none", True), (1, "one", True)]
    assert await desk.fold(1)
    assert await desk.lines() == [(0, "one", True), (0, "none", True)]


async def test_dead_letters_move_too(desk: Desk) -> None:
    await desk.register()
    other = await desk.session(autocommit=True)
    desk.failing = {"one"}
    await publish(other, 1, "one")
    await desk.take_all(0)
    await desk.sql("update outrider.delivery set status = 'failed', head = false")
    owner = "select generation from outrider.delivery"
    await desk.open(1)
    assert await desk.sql(owner) == [(1,)]
    await desk.fold(1)
    assert await desk.sql(owner) == [(0,)]


@pytest.mark.parametrize("meanwhile", ["opened", "opened and folded", "opened and folded and opened", "doubled"])
async def test_a_failure_that_is_told_late_waits_where_its_event_belongs(desk: Desk, meanwhile: str) -> None:
    """The batch was rolled back; before its failure is parked, another cursor gets the event, and its whole line."""
    await desk.register()
    other, failing = await desk.session(autocommit=True), await desk.session()
    await publish(other, 1, "first", "second", key="k")
    head, first, *_ = await desk.begin(failing, 0)
    await failing.rollback()
    steps = meanwhile.split(" and ")
    for step in steps:
        match step:
            case "opened":
                assert await desk.open(1)
            case "folded":
                assert not await desk.fold(1), "there is something to read"
                await desk.sql("delete from outrider.cursor where generation = 1")
            case "doubled":
                await desk.register(partitions=8)
    await desk.park(failing, head["cursor"], first)
    owner = 1 if steps[-1] == "opened" else 0
    assert await desk.take_all(*{0, owner}) == [], "the second waits for the first"
    assert await desk.lines() == [(owner, "first", True), (owner, "second", False)]
    await desk.make_due()
    assert await desk.take_all(owner) == [f"first@{owner}", f"second@{owner}"]


async def test_a_failure_is_not_told_beside_the_cursor_that_has_the_event(desk: Desk) -> None:
    """While the new cursor's reader handles the event, the old one's failure waits for it, and then is old news."""
    await desk.register()
    other, failing, reading = await desk.session(autocommit=True), await desk.session(), await desk.session()
    await publish(other, 1, "one", key="k")
    head, one = await desk.begin(failing, 0)
    await failing.rollback()
    await desk.open(1)
    rows = await desk.begin(reading, 1)
    parking = asyncio.create_task(desk.park(failing, head["cursor"], one))
    await blocked_or_done(parking, other)
    assert not parking.done(), "it did not wait"
    await desk.finish(reading, 1, rows)
    await parking
    assert await desk.lines() == []
    assert desk.handled == ["one@1"]


async def test_a_suspect_that_was_counted_by_another_generation_keeps_its_line(desk: Desk) -> None:
    """It was armed, and then its generation was opened: whoever armed it must not run it under the wrong lock."""
    await desk.register()
    other = await desk.session(autocommit=True)
    await publish(other, 1, "first", "second", key="k")
    await publish(other, 0, "none")
    [(cursor,)] = await desk.sql("select id from outrider.cursor")
    await desk.sql(f"select nextval('outrider.takes_{cursor}') from generate_series(1, 3)")
    await desk.take_all(0)
    await desk.sql("update outrider.delivery set run_at = run_at + interval '1 hour' where seq = 3")
    arming = await desk.session()
    [head] = await desk.begin(arming, 0, alone=True)
    await desk.finish(arming, 0, [head])
    assert head["outcome"] == "armed"
    assert await desk.sql("select seq from outrider.delivery where id = %s", head["delivery"]) == [(1,)]
    await desk.open(1)
    running = await desk.session()
    rows = await desk.begin(running, 0, armed=head["delivery"], alone=True)
    assert rows[1:] == []
    await desk.finish(running, 0, rows)
    assert await desk.lines() == [(0, "none", True), (1, "first", True), (1, "second", False)]


# Partitions


async def test_generations_of_several_partitions_that_double(desk: Desk) -> None:
    await desk.register(partitions=2)
    slow, other = await desk.session(), await desk.session(autocommit=True)
    for n in range(12):
        await publish(slow, n % 3, f"slow{n}", key=f"k{n}")
        await publish(other, n % 3, f"quick{n}", key=f"k{n}")
    await desk.take(0, limit=3)
    assert await desk.open(1)
    await desk.take(1, limit=1)
    await desk.register(partitions=8)
    assert await desk.open(2)
    await slow.commit()
    for n in range(12):
        await publish(other, n % 3, f"last{n}", key=f"k{n}")
    await desk.take_all(2, 1, 0, 0)
    assert await desk.fold(1)
    assert await desk.fold(2)
    assert await desk.generations() == [0]
    for n in range(12):
        await publish(other, n % 3, f"more{n}", key=f"k{n}")
    await desk.take_all(0)
    names = [each.split("@")[0] for each in desk.handled]
    assert sorted(names) == sorted(f"{kind}{n}" for kind in ("slow", "quick", "last", "more") for n in range(12))


# Who may be opened and folded, and when


async def test_only_handlers_have_generations(desk: Desk) -> None:
    await desk.register(kind="reader")
    assert not await desk.open(1)
    assert await desk.generations() == [0]
    await desk.sql("select outrider.register('b.handler', 'handler', 'a', null)")
    for generation in (0, -1):
        assert await desk.sql("select outrider.open_generation('b.handler', %s)", generation) == [(False,)]
    assert await desk.sql("select outrider.open_generation('nobody', 1)") == [(False,)]
    assert await desk.sql("select outrider.fold_generation('nobody', 1)") == [(False,)]
    assert await desk.sql("select outrider.fold_generation('b.handler', 0)") == [(False,)]
    assert await desk.sql("select outrider.fold_generation('b.handler', 7)") == [(False,)]


async def test_of_many_who_open_it_at_once_one_does(desk: Desk) -> None:
    await desk.register(partitions=4)
    assert sorted(await asyncio.gather(*(desk.open(1) for _ in range(6)))) == [False] * 5 + [True]
    assert await desk.sql("select count(*) from outrider.cursor where generation = 1") == [(4,)]


async def test_a_frozen_batch_does_not_hold_opening_up_for_ever(desk: Desk) -> None:
    await desk.register()
    other, frozen = await desk.session(autocommit=True), await desk.session()
    await publish(other, 0, "none")
    await desk.begin(frozen, 0)
    await desk.sql(changed("open_generation", ("lock_timeout = '5s'", "lock_timeout = '50ms'")))
    with pytest.raises(psycopg.errors.LockNotAvailable):
        await desk.open(1)
    await frozen.rollback()
    assert await desk.open(1)


async def test_folding_waits_for_nobody(desk: Desk) -> None:
    await desk.register()
    other, reading = await desk.session(autocommit=True), await desk.session()
    await desk.open(1)
    for generation in (0, 1):
        await publish(other, generation, "here")
        await desk.begin(reading, generation)
        assert not await desk.fold(1)
        await reading.rollback()
        await desk.take_all(0, 1)
    async with other.transaction():
        await other.execute("select from outrider.subscription for no key update")
        assert not await desk.fold(1)
    assert await desk.fold(1)


@pytest.mark.parametrize(
    "state",
    [
        "open_until = now() + interval '1 hour'",
        "cluster = cluster + 1",
        "horizon = '9000000000'",
        "seq = seq - 200000",
    ],
)
@pytest.mark.parametrize("generation", [0, 1])
async def test_folding_is_refused_while_a_cursor_is_not_at_rest(desk: Desk, state: str, generation: int) -> None:
    await desk.register()
    await desk.sql("select setval('outrider.outbox_seq', 300000)")
    await desk.open(1)
    await desk.take_all(0, 1)
    before = await desk.sql("select to_jsonb(c) from outrider.cursor as c order by generation")
    await desk.sql(f"update outrider.cursor set {state} where generation = {generation}")
    assert not await desk.fold(1)
    restored = {"open_until": "null"}.get(state.split(" ")[0]) or before[generation][0][state.split(" ")[0]]
    value = restored if restored == "null" else f"'{restored}'"
    await desk.sql(f"update outrider.cursor set {state.split(' ')[0]} = {value} where generation = {generation}")
    assert await desk.fold(1)


@pytest.mark.parametrize("function", ["open_generation", "fold_generation"])
async def test_the_isolation_level_matters(desk: Desk, function: str) -> None:
    await desk.register()
    conn = await desk.session(autocommit=True)
    await conn.execute("begin isolation level repeatable read")
    with pytest.raises(psycopg.Error, match="READ COMMITTED"):
        await conn.execute(f"select outrider.{function}('{NAME}', 1)".encode())
    await conn.rollback()


async def test_an_event_from_another_cluster_does_not_come_back(desk: Desk) -> None:
    """Restored, with a transaction id that is yet to be drawn here: the cursor that read it knows, the other learns it."""
    await desk.register()
    await desk.open(1)
    other, slow, oldest = await desk.session(autocommit=True), await desk.session(), await desk.session()
    await oldest.execute("select pg_current_xact_id()")  # keeps the floor from rising by itself
    [(now,)] = await desk.sql("select pg_current_xact_id()::text::bigint")
    await desk.sql(
        """insert into outrider.outbox (tx, event_type, source, generation, payload)
           values (%s::text::xid8, 'a.happened', 'a', 1, '{"name": "foreign"}')""",
        str(now + 100),
    )
    await publish(other, 0, "none")
    assert await desk.take_all(1, 0) == ["foreign@1", "none@0"]
    assert await desk.fold(1)
    while (await desk.sql("select pg_current_xact_id()::text::bigint"))[0][0] < now + 99:
        pass
    await publish(slow, 0, "same id")
    assert await (await slow.execute("select pg_current_xact_id()::text::bigint")).fetchone() == (now + 100,)
    await publish(other, 0, "quick")
    await desk.take_all(0)
    await slow.commit()
    await desk.take_all(0)
    assert desk.handled == ["foreign@1", "none@0", "quick@0", "same id@0"]


async def test_total_order_is_kept_within_a_generation(desk: Desk) -> None:
    await desk.register(order="total")
    other = await desk.session(autocommit=True)
    desk.failing = {"one1", "none1"}
    for n in (1, 2):
        await publish(other, 1, f"one{n}")
        await publish(other, 0, f"none{n}")
    await desk.take_all(0)
    await desk.open(1)
    await desk.take_all(1, 0)
    assert [each[:2] for each in await desk.lines() if each[2]] == [(0, "none1"), (1, "one1")]
    desk.failing = {"none1"}
    await desk.make_due()
    assert await desk.take_all(1, 0) == ["one1@1", "one2@1"], "the generations do not wait for one another"
    desk.failing = set()
    await desk.make_due()
    assert await desk.take_all(0, 1) == ["none1@0", "none2@0"]
    assert await desk.fold(1)


# The tests of parked events and of a restore can fail

BROKEN: dict[str, tuple[Callable[..., Awaitable[None]], tuple[str, ...], str]] = {
    "what is parked stays behind when a generation is opened": (
        test_the_line_of_a_key_is_split_and_merged,
        (),
        changed("open_generation", ("and o.generation = p_generation\n", "and false\n")),
    ),
    "lines without a head": (
        test_the_line_of_a_key_is_split_and_merged,
        (),
        changed("fold_generation", ("    perform /*schema*/promote(p_subscription, 0, lines);\n", "")),
    ),
    "a failure is parked for the cursor that met it": (
        test_a_failure_that_is_told_late_waits_where_its_event_belongs,
        ("opened",),
        changed("park", ("coalesce(d.generation, own.generation, 0) as generation", "0::bigint as generation")),
    ),
    "a failure is parked without a second look": (
        test_a_failure_is_not_told_beside_the_cursor_that_has_the_event,
        (),
        changed("park", ("            for update;\n        end loop;", "            ;\n        end loop;")),
    ),
    "an armed suspect is run by any cursor": (
        test_a_suspect_that_was_counted_by_another_generation_keeps_its_line,
        (),
        changed(
            "take_parked",
            (
                "          and d.generation = p_cursor.generation and d.partition = p_cursor.partition;\n",
                "          ;\n",
            ),
        ),
    ),
    "the floor of the catch-all stays": (
        test_an_event_from_another_cluster_does_not_come_back,
        (),
        changed("fold_generation", (" and c.floor < strangers;", " and false;")),
    ),
}


@pytest.mark.parametrize("name", BROKEN)
async def test_broken_rule_is_noticed(desk: Desk, name: str) -> None:
    test, arguments, mutant = BROKEN[name]
    await desk.sql(mutant)
    with pytest.raises((AssertionError, psycopg.errors.UniqueViolation)):
        await test(desk, *arguments)
