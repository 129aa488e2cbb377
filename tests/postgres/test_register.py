"""Registration only ever adds; where a subscription starts; partitions that double under a reader."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from psycopg import AsyncConnection
from tests.postgres.test_take import Desk, desk, publish, until_blocked

from outrider.postgres import log

__all__ = ["desk"]

pytestmark = pytest.mark.xdist_group("quiet_register")


async def test_start_now_reads_what_was_not_yet_visible(desk: Desk) -> None:
    early, slow = await desk.session(), await desk.session()
    await publish(early, "before")
    await early.commit()
    await publish(slow, "open")
    assert await desk.register() == ("created", 1)
    await slow.commit()
    await publish(early, "after")
    await early.commit()
    assert await desk.take_all() == ["open", "after"]


async def test_start_at_the_beginning_reads_everything(desk: Desk) -> None:
    conn, slow = await desk.session(autocommit=True), await desk.session()
    await publish(slow, "open")
    await publish(conn, "one", "two")
    await desk.register(start="beginning")
    assert await desk.take_all() == ["one", "two"]
    await slow.commit()
    assert await desk.take_all() == ["open"]


async def publish_dated(conn: AsyncConnection[Any], *years: int) -> None:
    for year in years:
        await conn.execute(
            "select outrider.publish('a.happened', %s::jsonb, occurred_at => %s::timestamptz)",
            [f'{{"name": "{year}"}}', f"{year}-01-01T00:00:00Z"],
        )


async def test_start_at_a_time(desk: Desk) -> None:
    conn, slow = await desk.session(autocommit=True), await desk.session()
    await publish_dated(conn, 2020, 2021, 2022)
    await publish(slow, "open")
    await publish(conn, "now")
    await desk.register(start="2021-01-01T00:00:00+00:00")
    assert await desk.take_all() == ["2021", "2022", "now"]
    await slow.commit()
    assert await desk.take_all() == ["open"]


async def test_start_at_a_time_is_not_in_a_segment_that_was_full_before(desk: Desk) -> None:
    """An event that was dated into the future, long before that time."""
    conn = await desk.session(autocommit=True)
    await publish_dated(conn, 2019, 2030, 2020)
    await conn.execute("select setval('outrider.outbox_seq', 1000000), outrider.note_segments()")
    await conn.execute("update outrider.segment set closed_at = '2020-12-01' where first_seq = 0")
    await publish_dated(conn, 2020, 2022, 2018)
    await desk.register(start="2021-01-01T00:00:00+00:00")
    assert await desk.take_all() == ["2022", "2018"]


@pytest.mark.parametrize("closed", [None, "2021-01-01T00:30:00+00:00"])
async def test_start_at_a_time_passes_over_no_event_that_fits(desk: Desk, closed: str | None) -> None:
    """In a segment that was not full then, or hardly: clocks differ. What was published later and back-dated comes too."""
    conn = await desk.session(autocommit=True)
    await publish_dated(conn, 2020, 2022, 2019)
    await conn.execute("select setval('outrider.outbox_seq', 1000000), outrider.note_segments()")
    await conn.execute("update outrider.segment set closed_at = %s where first_seq = 0", [closed])
    await publish_dated(conn, 2020)
    await desk.register(start="2021-01-01T01:00:00+00:00")
    assert await desk.take_all() == ["2022", "2019", "2020"]


async def test_start_a_moment_ahead_of_the_servers_clock_reads_from_now(desk: Desk) -> None:
    conn = await desk.session(autocommit=True)
    await publish(conn, "before")
    await desk.register(start=(datetime.now(UTC) + timedelta(seconds=30)).isoformat())
    await publish(conn, "after")
    assert await desk.take_all() == ["after"]


async def test_start_in_the_future_is_refused(desk: Desk) -> None:
    """It began at once, and read what was published before that time."""
    with pytest.raises(psycopg.Error, match=r"cannot start at 2999-01-01 .*, which is in the future") as refused:
        await desk.register(start="2999-01-01T00:00:00+00:00")
    assert refused.value.sqlstate == "OR002"
    assert await desk.register() == ("created", 1)
    assert await desk.register(start="2999-01-01T00:00:00+00:00") == ("unchanged", 1)


async def test_registering_again_adds_types_and_keeps_the_position(desk: Desk) -> None:
    conn = await desk.session(autocommit=True)
    assert await desk.register(types=["a.one"]) == ("created", 1)
    assert await desk.register(types=["a.one"]) == ("unchanged", 1)
    await publish(conn, "1", event_type="a.one")
    await desk.take_all()
    assert await desk.register(types=["a.two"], start="beginning") == ("extended", 1)
    await publish(conn, "2", event_type="a.two")
    await publish(conn, "3", event_type="a.one")
    assert await desk.take_all() == ["2", "3"]
    assert await desk.register(types=["a.one"]) == ("unchanged", 1)


async def test_fewer_partitions_than_there_are_change_nothing(desk: Desk) -> None:
    await desk.register(partitions=4)
    assert await desk.register(partitions=2) == ("unchanged", 4)


async def test_partitions_double_without_loss_or_repeat(desk: Desk) -> None:
    await desk.register(partitions=1)
    conn, slow = await desk.session(autocommit=True), await desk.session()
    await publish(slow, *(f"slow{n}" for n in range(8)))
    for n in range(16):
        await publish(conn, str(n), key=str(n))
    await desk.take(limit=5)
    assert await desk.register(partitions=4) == ("extended", 4)
    await slow.commit()
    for partition in range(4):
        await desk.take_all(partition)
    assert sorted(desk.seen) == sorted([*(str(n) for n in range(16)), *(f"slow{n}" for n in range(8))])


async def test_doubling_waits_for_the_reader_that_holds_a_cursor(desk: Desk) -> None:
    await desk.register(partitions=1)
    conn, reading = await desk.session(autocommit=True), await desk.session()
    for n in range(16):
        await publish(conn, str(n), key=str(n))
    batch = await log.take(reading, "a.reader", 0, 4, 100, "outrider")
    doubling = asyncio.create_task(desk.register(partitions=2))
    await until_blocked(conn)
    desk.seen += [e.payload["name"] for e in batch.events]
    await reading.commit()
    assert await doubling == ("extended", 2)
    for partition in range(2):
        await desk.take_all(partition)
    assert sorted(desk.seen, key=int) == [str(n) for n in range(16)]


async def test_two_registrations_at_once_make_one_subscription(desk: Desk) -> None:
    outcomes = await asyncio.gather(*(desk.register(partitions=2) for _ in range(8)))
    assert sorted(outcomes) == [("created", 2)] + [("unchanged", 2)] * 7


async def test_same_name_for_another_context_is_refused(desk: Desk) -> None:
    await desk.register()
    conn = await desk.session(autocommit=True)
    with pytest.raises(psycopg.Error, match="another name") as caught:
        await conn.execute("select outrider.register('a.reader', 'reader', 'b', null)")
    assert caught.value.sqlstate == "OR002"


async def test_a_sequence_with_a_cache_is_refused(desk: Desk) -> None:
    conn = await desk.session(autocommit=True)
    await conn.execute("alter sequence outrider.outbox_seq cache 10")
    with pytest.raises(psycopg.Error, match="CACHE 1"):
        await desk.register()


async def test_register_refuses_a_transaction_that_has_written(desk: Desk) -> None:
    async with await AsyncConnection.connect(desk.dsn) as conn:
        await publish(conn, "one")
        with pytest.raises(psycopg.Error, match="first statement"):
            await conn.execute("select outrider.register('a.reader', 'reader', 'a', null)")
        await conn.rollback()


async def test_partitions_double_while_a_worker_parks(desk: Desk) -> None:
    """Registration waits for the cursor that the worker holds; what the worker then parks refers to its row."""
    worker, other = await desk.session(), await desk.session(autocommit=True)
    await other.execute("select outrider.register('a.handler', 'handler', 'a', '{a.happened}')")
    await publish(other, "one", "two")
    await worker.execute("select * from outrider.take('a.handler')")
    registering = asyncio.create_task(
        other.execute("select partitions from outrider.register('a.handler', 'handler', 'a', '{a.happened}', 2)")
    )
    await until_blocked(await desk.session(autocommit=True))
    await worker.execute(
        """insert into outrider.delivery (subscription, partition, seq, event_id, event_type, status, head, reached, run_at)
           select 'a.handler', 0, seq, id, event_type, 'pending', true, true, now() from outrider.outbox"""
    )
    await worker.execute("select outrider.settle(1)")
    await worker.commit()
    assert await (await registering).fetchone() == (2,)


async def test_another_order_waits_for_the_batch_that_parks_by_the_old_one(desk: Desk) -> None:
    worker, other = await desk.session(), await desk.session(autocommit=True)
    register = "select outcome from outrider.register('a.handler', 'handler', 'a', '{a.happened}', p_ordering => %s)"
    await other.execute(register, ["key"])
    await publish(other, "one", key="k")
    await other.execute(
        """select outrider.park('a.handler', 1, jsonb_build_array(jsonb_build_object(
               'seq', (select seq from outrider.outbox), 'attempt', 1, 'delay', 0, 'counted', true, 'dead', false,
               'code', 'x', 'message', 'm')))"""
    )
    await publish(other, "two", key="k")
    taken = await worker.execute("select batch from outrider.take('a.handler')")  # reads both: "two" waits behind "one"
    batch = await taken.fetchone()
    registering = asyncio.create_task(other.execute(register, ["total"]))
    await until_blocked(await desk.session(autocommit=True))
    await worker.execute("select outrider.settle(%s)", batch)
    await worker.commit()
    assert await (await registering).fetchone() == ("extended",)
    lines = await other.execute("select ordering_key, head from outrider.delivery order by seq")
    assert await lines.fetchall() == [("", True), ("", False)]


async def test_another_order_while_a_suspect_fails(desk: Desk) -> None:
    """Parking waits for the cursor before it touches what is parked, as registration does: no deadlock."""
    worker, parking, other = await desk.session(), await desk.session(), await desk.session(autocommit=True)
    register = "select outcome from outrider.register('a.handler', 'handler', 'a', '{a.happened}', p_ordering => %s)"
    await other.execute(register, ["key"])
    await publish(other, "one", key="k")
    await other.execute(
        """insert into outrider.delivery (
               subscription, partition, seq, event_id, event_type, ordering_key, status, head, reached, run_at,
               suspect, crashes)
           select 'a.handler', 0, seq, id, event_type, 'k', 'pending', true, true, now(), true, 1 from outrider.outbox"""
    )
    await worker.execute("select from outrider.cursor for update")
    registering = asyncio.create_task(other.execute(register, ["total"]))
    watching = await desk.session(autocommit=True)
    await until_blocked(watching)
    failing = asyncio.create_task(
        parking.execute(
            """select outrider.park('a.handler', 1, jsonb_build_array(jsonb_build_object(
                   'seq', d.seq, 'attempt', 1, 'delay', 0, 'counted', true, 'dead', false, 'code', 'x', 'message', 'm'
               )), d.id) from outrider.delivery as d"""
        )
    )
    await until_blocked(watching, 2)
    await worker.commit()
    assert await (await registering).fetchone() == ("extended",)
    await failing
    await parking.commit()
    parked = await other.execute("select ordering_key, head, attempts, crashes, suspect from outrider.delivery")
    assert await parked.fetchall() == [("", True, 1, 0, False)]
