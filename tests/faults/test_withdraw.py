"""Events are withdrawn while workers take, fail and retry them: each ends handled or withdrawn, never both, and as told."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from uuid import UUID

import psycopg
import pytest
from psycopg import AsyncConnection
from tests.faults import subject
from tests.faults.subject import NAMES, Producer
from tests.oracle import Oracle

pytestmark = pytest.mark.verify

NEWEST = "select id from outrider.outbox order by seq desc limit %s"
EFFECTS = """select e.subscription, o.id, count(*) from effect as e join outrider.outbox as o on o.seq = e.seq
             group by 1, 2"""
STATUSES = "select subscription, event_id, status from outrider.event_status"


async def withdraw_some(dsn: str, producing: asyncio.Event, seed: int) -> dict[tuple[str, UUID], str]:
    """Of the newest events, which the workers are about to take; until nobody publishes and it was once too late."""
    chosen, told = random.Random(seed), dict[tuple[str, UUID], str]()
    async with subject.make(dsn) as app, await AsyncConnection.connect(dsn, autocommit=True) as conn:
        while producing.is_set() or "delivered" not in told.values():
            rows = await (await conn.execute(NEWEST, [30 if producing.is_set() else 1000])).fetchall()
            if rows:
                event: UUID = chosen.choice(rows)[0]
                told |= {(each.subscription, event): each.outcome for each in await app.withdraw(event)}
    return told


async def test_withdrawals_under_load(database: str, tmp_path: Path, long: bool) -> None:
    oracle, producing = Oracle(tmp_path), asyncio.Event()
    await subject.setup(database)
    producing.set()

    async def produce(seed: int) -> None:
        await Producer(database, oracle, seed, name=f"p{seed}").burst(600 if long else 60, failing=0.4)

    async with subject.make(database) as one, subject.make(database) as other:
        async with subject.worker_of(one), subject.worker_of(other), asyncio.TaskGroup() as group:
            withdrawing = [group.create_task(withdraw_some(database, producing, seed)) for seed in (1, 2)]
            async with asyncio.TaskGroup() as publishing:
                for seed in (3, 4):
                    publishing.create_task(produce(seed))
            producing.clear()
        await subject.heal(one, database, seconds=60)
    answers = [task.result() for task in withdrawing]
    told = answers[0] | answers[1]
    assert all(told[each] == outcome for answer in answers for each, outcome in answer.items()), "both say the same"
    assert set(told.values()) == {"withdrawn", "delivered"}, "too little happened"
    with psycopg.connect(database) as conn:
        effects = {(name, event): times for name, event, times in conn.execute(EFFECTS)}
        statuses = {(name, event): status for name, event, status in conn.execute(STATUSES)}
        everything = {(name, event) for name in NAMES for (event,) in conn.execute("select id from outrider.outbox")}
    withdrawn = {each for each, outcome in told.items() if outcome == "withdrawn"}
    assert effects == dict.fromkeys(everything - withdrawn, 1)
    assert statuses == {each: "withdrawn" if each in withdrawn else "delivered" for each in everything}
