"""A listener's claim, effect and receipt commit together: a kill between effect and commit leaves none of them."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.faults.listening_subject import CHANNEL, NAME
from tests.faults.nursery import Nursery
from tests.faults.subject import eventually
from tests.oracle import Oracle
from tests.test_protocols import Planted, listening, publish
from tests.tiers import one_in_test

from outrider import Envelope, Outrider

EVENTS = 5


async def never(_: Envelope) -> None:
    raise AssertionError


def rows(dsn: str, query: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(dsn, autocommit=True) as conn:
        cursor = conn.execute(query.encode())
        return cursor.fetchall() if cursor.description else []


@pytest.mark.parametrize("point", one_in_test(["handle.after", "commit.before", "commit.after"], "commit.before"))
async def test_a_kill_after_the_effect_doubles_and_loses_nothing(database: str, tmp_path: Path, point: str) -> None:
    oracle = Oracle(tmp_path)
    rows(database, "create table ledger (event uuid)")
    async with Outrider(dsn=database) as app, asyncio.timeout(60):
        async with listening(app, NAME, never, CHANNEL):
            pass  # from now on it has a position
        await publish(app, *(f"tree {n}" for n in range(EVENTS)))
    async with Nursery(database, oracle, "tests.faults.listening_subject") as nursery:
        killed = await nursery.start(f"{point}:kill:1")
        assert await nursery.end_of(killed) == -9
        written = rows(database, "select event from ledger")
        assert bool(written) == (point == "commit.after")
        assert sorted(written) == sorted(
            rows(database, f"select event_id from outrider.event_handled where handler_name = '{NAME}'")
        )
        outside = oracle.outside_file.read_text().split()
        assert outside, "the handler had its effect before it was killed"
        again = await nursery.start()
        await eventually(database, f"select count(*) >= {EVENTS} from ledger")
        await nursery.kill(again)
    published = sorted(rows(database, "select id from outrider.outbox"))
    assert sorted(rows(database, "select event from ledger")) == published
    assert (
        sorted(rows(database, f"select event_id from outrider.event_handled where handler_name = '{NAME}'"))
        == published
    )
    told = Counter(oracle.outside_file.read_text().split())
    assert sum(told.values()) == EVENTS + (0 if point == "commit.after" else len(outside)), "outside: at least once"


async def test_a_handler_gets_the_transaction_only_if_it_needs_a_second_argument(database: str) -> None:
    seen: list[tuple[Any, ...]] = []

    async def optional(envelope: Envelope, verbose: bool = False) -> None:
        seen.append((envelope.decode(Planted).tree, verbose))

    class Callable:
        async def __call__(self, envelope: Envelope, tx: Any) -> None:
            cursor = await tx.execute("select current_setting('app.workspace_id', true)")
            seen.append((envelope.decode(Planted).tree, *await cursor.fetchone()))

    async with Outrider(dsn=database) as app, asyncio.timeout(60):
        async with listening(app, "garden.optional", optional, settles=1):
            await publish(app, "oak")
        async with listening(app, "garden.callable", Callable(), settles=1):
            await publish(app, "elm", workspace_id="acme")
    assert seen == [("oak", False), ("elm", "acme")]
