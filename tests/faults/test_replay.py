"""Fault 20, its replay: dead letters go back by the hundred while workers run, operators race and are killed; each once."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from subprocess import Popen
from typing import Any

import psycopg
import pytest
from psycopg import AsyncConnection
from tests.cli.conftest import MAIN
from tests.faults import replay_subject, subject
from tests.faults.nursery import Nursery
from tests.faults.replay_subject import turn
from tests.faults.subject import KEYED, LOOSE, Fact, Producer, eventually
from tests.oracle import Oracle, check, stuck
from tests.processes import Begin, processes

from outrider.postgres.admin import recovery
from outrider.postgres.admin.dead_letters import Filter

pytestmark = pytest.mark.verify

HANDLERS = "tests.faults.replay_subject"
FAILED = "select count(*) from outrider.delivery where status = 'failed'"
PENDING = "select count(*) from outrider.delivery where status = 'pending'"
TWICE_BY_ONE = """
select h.handler_name, h.seq, mark ->> 'by' from outrider.event_handled as h, jsonb_array_elements(h.failure_history) as mark
where mark ? 'replayed_at' group by 1, 2, 3 having count(*) > 1
"""


@pytest.fixture
def begin() -> Iterator[Begin]:
    with processes() as started:
        yield started


def operator(begin: Begin, folder: Path, dsn: str, by: str, *options: str) -> Popen[str]:
    """`outrider dlq replay`, as a process."""
    command = [sys.executable, "-P", "-c", MAIN, "dlq", "replay", "--all", "--yes", "--by", by, "--dsn", dsn, *options]
    return begin(command, folder, {})


def rows(dsn: str, query: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(dsn, autocommit=True) as conn:
        return conn.execute(query.encode()).fetchall()


def one(dsn: str, query: str) -> int:
    ((number,),) = rows(dsn, query)
    return int(number)


async def all_dead(dsn: str, oracle: Oracle, events: int) -> None:
    """So many events, which both handlers have buried."""
    app = replay_subject.make(dsn)
    await subject.setup(dsn, app)
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(replay_subject.SETUP)
    producer = Producer(dsn, oracle, keys=30)
    for key in producer.keys:
        await producer.publish(events // len(producer.keys), key=key)
    async with app:
        await app.drain()
    assert one(dsn, FAILED) == 2 * events


@pytest.mark.timeout(240)
async def test_operators_race_and_die_and_nothing_is_done_twice(
    database: str, tmp_path: Path, begin: Begin, long: bool
) -> None:
    """One is killed in the middle and comes back, another replays the same; some fail again, and new events come."""
    oracle, events = Oracle(tmp_path), 1500 if long else 90
    await all_dead(database, oracle, events)
    turn(database, "shaky")
    untouched = f"{FAILED} and cycle = 1"
    async with Nursery(database, oracle, HANDLERS) as nursery, replay_subject.make(database) as app:
        await nursery.start()
        await nursery.start()
        victim = operator(begin, tmp_path, database, "the one who dies", "--rate", str(events))
        async with subject.beside(Producer(database, oracle, name="new", keys=9).burst(20)):
            other = asyncio.create_task(app.dead_letters.replay(by="another", rate=events / 2))
            with psycopg.connect(database) as holding:  # no run comes to its end before the kill
                last = f"select from outrider.delivery where seq <= {events} order by id desc limit 1 for key share"
                holding.execute(last.encode())
                await subject.so(lambda: one(database, untouched) < 1.7 * events)
                victim.kill()
                victim.communicate()
                assert one(database, untouched) > 0, "killed too late to be in the middle"
            again = operator(begin, tmp_path, database, "the one who comes back")
            out, err = await asyncio.to_thread(again.communicate, None, 60)
            assert (again.returncode, err) == (0, ""), out
            done = await other
        assert victim.returncode == -9
        assert done.replayed > 0
        assert one(database, f"{untouched} and seq <= {events}") == 0
        await eventually(database, PENDING, 0, seconds=120)
        assert one(database, FAILED) > 0, "nothing has failed again"
        turn(database, "up")
        out, err = await asyncio.to_thread(operator(begin, tmp_path, database, "the last").communicate, None, 60)
        assert err == ""
        await subject.all_handled(database, oracle, KEYED, LOOSE, seconds=60)
        await eventually(database, FAILED, 0)
    assert stuck(database) == []
    assert rows(database, TWICE_BY_ONE) == []
    # Order holds within a key, but not across a bury and a later replay.
    rows(database, "update outrider.subscription set ordering = 'none' returning name")
    check(database, oracle)


async def test_what_fails_again_at_once_is_replayed_once_by_each_run(database: str, tmp_path: Path) -> None:
    """The workers bury faster than the run comes on; it must end all the same."""
    oracle = Oracle(tmp_path)
    await all_dead(database, oracle, 30)
    async with Nursery(database, oracle, HANDLERS) as nursery:
        await nursery.start()
        async with await AsyncConnection.connect(database, autocommit=True) as conn:
            done = await recovery.replay(conn, Filter(), "outrider", batch=1)
        await eventually(database, PENDING, 0)
    assert done.replayed == 60
    assert rows(database, "select distinct cycle, status from outrider.delivery") == [(2, "failed")]


async def test_one_effect_for_dead_letters_of_the_same_idempotency_key(database: str, tmp_path: Path) -> None:
    """Of three dead letters one is handled, whichever comes first in whatever partition; the next replay skips the rest."""
    oracle, app = Oracle(tmp_path), replay_subject.make(database)
    await all_dead(database, oracle, 0)
    async with app:
        async with app.connect() as conn, conn.transaction():
            for key in range(20):
                for n in range(1, 4):
                    await app.publish(conn, Fact(key=f"{key} {n}", n=n), idempotency_key=f"same {key}")
        await app.drain()
        assert one(database, FAILED) == 120
        ((held,),) = rows(database, "select event_id from outrider.delivery order by id desc limit 1")
        turn(database, "up")
        async with Nursery(database, oracle, HANDLERS) as nursery:
            await nursery.start()
            await nursery.start()
            others = await app.dead_letters.replay(until="0s")
            assert others.replayed + others.skipped_handled == 120
            await eventually(database, PENDING, 0)
        assert one(database, "select count(*) from effect") == 40
        distinct = "select count(distinct (subscription, split_part(key, ' ', 1))) from effect"
        assert one(database, distinct) == 40
        outcomes = {each.outcome for each in await app.replay(held)}
        assert outcomes == {"skipped_handled"}


async def test_force_runs_each_once_more(database: str, tmp_path: Path) -> None:
    """While workers run and an operator is killed: as many effects as receipts in the audit."""
    oracle, app = Oracle(tmp_path), replay_subject.make(database)
    await all_dead(database, oracle, 0)
    turn(database, "up")
    await Producer(database, oracle).publish(20, key="k")
    async with app, Nursery(database, oracle, HANDLERS) as nursery:
        await nursery.start()
        await nursery.start()
        await subject.all_handled(database, oracle, KEYED, LOOSE)
        ids = [event_id for (event_id,) in rows(database, "select id from outrider.outbox order by seq")]

        async def force(event_id: Any) -> None:
            assert [each.outcome for each in await app.replay(event_id, subscription=KEYED, force=True)] == ["replayed"]

        await asyncio.gather(*map(force, ids))
        await eventually(database, f"select count(*) from effect where subscription = '{KEYED}'", 40)
        await eventually(database, PENDING, 0)
    assert one(database, "select count(*) from effect") == 60
    assert rows(database, f"select distinct count(*) from effect where subscription = '{KEYED}' group by n") == [(2,)]
    kept = (
        "select count(distinct details -> 'receipt' ->> 'event_id') from outrider.audit where action = 'force_replay'"
    )
    assert one(database, kept) == 20
    assert one(database, "select count(*) from outrider.event_handled") == 40
