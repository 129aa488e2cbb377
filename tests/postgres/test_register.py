"""Registration only ever adds; where a subscription starts; partitions that double under a reader."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

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


async def test_start_at_a_time(desk: Desk) -> None:
    conn, slow = await desk.session(autocommit=True), await desk.session()
    for year in (2020, 2021, 2022):
        await conn.execute(
            "select outrider.publish('a.happened', %s::jsonb, occurred_at => %s::timestamptz)",
            [f'{{"name": "{year}"}}', f"{year}-01-01T00:00:00Z"],
        )
    await publish(slow, "open")
    await publish(conn, "now")
    await desk.register(start="2021-01-01T00:00:00+00:00")
    assert await desk.take_all() == ["2021", "2022", "now"]
    await slow.commit()
    assert await desk.take_all() == ["open"]


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
