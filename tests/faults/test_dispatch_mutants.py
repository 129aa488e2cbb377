"""The hot path with one thing broken at a time. A named scenario must notice each, or it proves nothing."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest
from psycopg import AsyncConnection
from tests.faults.subject import KEYED
from tests.faults.test_duplicate_keys import duplicates
from tests.faults.test_listener import listen_race
from tests.faults.test_order import retries
from tests.faults.test_process_poison import poison
from tests.faults.test_unknown_commit import lose_commits
from tests.mutants import changed

from outrider.postgres import handler_batches
from outrider.postgres.handler_batches import Claim, Connection
from outrider.postgres.lent_transaction import LentSession, lend
from outrider.postgres.log import TakeRequest
from outrider.signals import ListenerUp
from outrider.worker import handler_context
from outrider.worker.wakeups import Wakeups

pytestmark = pytest.mark.verify

HAS_RECEIPT = """exists (
    select from /*schema*/event_handled as h where h.handler_name = p_subscription
       and h.idempotency_key = coalesce(batch.event_type || ':' || batch.idempotency_key, batch.id::text))"""
GIVEN = "where settles and (p_careful or batch.idempotency_key is not null)"

SELECT_THEN_INSERT = "alter table outrider.event_handled drop constraint event_handled_pkey;" + changed(
    "take", ("        on conflict do nothing\n", ""), (GIVEN, f"{GIVEN} and not {HAS_RECEIPT}")
)

BEHIND = """
               or exists (select from /*schema*/delivery as d
                          where d.subscription = p_cursor.subscription and d.generation = p_cursor.generation
                            and d.status = 'pending' and d.ordering_key = ordered.ordering_key and d.seq < o.seq))"""

DISORDERED = {
    "the second of a key is retried before its head": changed(
        "take_parked",
        (
            "and h.status = 'pending' and h.head and h.reached and not h.suspect",
            "and h.status = 'pending' and not h.suspect",
        ),
        (
            "and d.status = 'pending' and d.head and d.reached and d.run_at <= now()",
            "and d.status = 'pending' and d.run_at <= now()",
        ),
    )
    + changed(
        "lock_cursor",
        (
            "d.status = 'pending' and d.head and d.reached\n                             and d.run_at <= now())",
            "d.status = 'pending' and d.run_at <= now())",
        ),
    ),
    "nothing waits behind what is parked": changed("divert", (BEHIND, ")")),
    "what comes before a failed event waits behind it": changed("divert", (" and d.seq < o.seq))", "))")),
}


def mutate(dsn: str, mutant: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(mutant.encode())


async def test_receipts_by_select_and_then_insert(database: str, tmp_path: Path) -> None:
    mutate(database, SELECT_THEN_INSERT)
    with pytest.raises(AssertionError, match="I3 handled twice"):
        await duplicates(database, tmp_path, rounds=1)


@pytest.mark.parametrize("name", DISORDERED)
async def test_order_is_lost(database: str, tmp_path: Path, name: str) -> None:
    """Out of order; or, as it happens, a line that nobody can go on with."""
    mutate(database, DISORDERED[name])
    with pytest.raises((AssertionError, TimeoutError), match=r"I5 fault|after 30 s|fault\.total"):
        await retries(database, tmp_path, seed=0)


async def test_deaths_are_not_counted(database: str, tmp_path: Path) -> None:
    mutate(database, changed("take", ("suspicious := counted.deaths >= 3;", "")))
    with pytest.raises(AssertionError, match="the poison is not buried"):
        await poison(database, tmp_path, "exit", KEYED, before=1)


async def test_the_claim_commits_before_the_effects(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take, settle = handler_batches.take, handler_batches.settle

    async def take_and_commit(conn: Connection, asked: TakeRequest, schema: str) -> Claim:
        claim = await take(conn, asked, schema)
        if claim.batch is not None:
            await settle(conn, claim.batch, schema)
            await conn.execute("begin")
        return claim

    async def commit(conn: Connection, batch: int, schema: str) -> None:
        await conn.execute("commit")

    monkeypatch.setattr(handler_batches, "take", take_and_commit)
    monkeypatch.setattr(handler_batches, "settle", commit)
    with pytest.raises(AssertionError, match=r"I1 fault\.keyed: lost"):
        await lose_commits(database, tmp_path, times=2)


async def test_the_effects_commit_before_the_receipts(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with await AsyncConnection.connect(database, autocommit=True) as other:

        def lend_another(_: Connection) -> LentSession:
            lent = lend(other)
            lent._autocommit = True
            return lent

        monkeypatch.setattr(handler_context, "lend", lend_another)
        with pytest.raises(AssertionError, match="I3 handled twice"):
            await lose_commits(database, tmp_path, times=2)


async def test_listen_after_the_scan(database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def up_without_a_look(wakeups: Wakeups) -> None:
        wakeups.listening = True
        wakeups._on_change()
        wakeups._signals.emit(ListenerUp())

    monkeypatch.setattr(Wakeups, "_up", up_without_a_look)
    with pytest.raises(TimeoutError, match="select count"):
        await listen_race(database, tmp_path, connects=20, seconds=3)
