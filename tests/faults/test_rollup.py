"""Fault 30: ticks at the same time, ticks that die, late commits, corrupt rows. Every committed birth is in exactly one
event, or set aside with its reason; no producer waits for a tick.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from tests.rollup.archive import NAME, NOTE, TABLES, Archive, figures, opened

TICKER = """
import sys, psycopg
with psycopg.connect(sys.argv[1], autocommit=sys.argv[2] == "autocommit") as conn:
    print(conn.info.backend_pid, flush=True)
    print(conn.execute("select outrider.rollup_tick('archive.imports') ->> 'result'").fetchone()[0], flush=True)
    sys.stdin.read()
"""
SKIPPED = {"result": "skipped", "reason": "lock_held"}
PATIENCE = 60.0


@pytest.fixture
def archive(database: str) -> Iterator[Archive]:
    with opened(database) as place:
        place.ask(TABLES)
        place.install(notify=NOTE)
        yield place


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def accounted(archive: Archive) -> None:
    """Each committed birth was staged once, and what was staged is in one event and one notification, or set aside."""
    assert archive.staged() == []
    archive.exact()
    births = set(archive.column("select id from piece"))
    staged = archive.column("select (carried ->> 'id')::bigint from outrider.rollup_pending")
    assert len(staged) == len(births)
    assert set(staged) == births
    [sums] = archive.ask("""
        select (select count(*) from piece) - (select count(*) from outrider.rollup_pending where set_aside_at is not null)
                   as wanted,
               (select coalesce(sum(coalesce((payload ->> 'piece_count')::int, 1)), 0) from outrider.outbox) as emitted,
               (select coalesce(sum(pieces), 0) from note) as noted,
               (select count(distinct idempotency_key) from outrider.outbox) as keys,
               (select count(*) from outrider.outbox) as events
    """)
    assert sums["emitted"] == sums["noted"] == sums["wanted"]
    assert sums["keys"] == sums["events"]
    assert archive.locks() == []


@pytest.mark.verify
def test_of_two_ticks_the_second_is_skipped(archive: Archive, database: str) -> None:
    """What the first one has done is undone with it."""
    archive.add("a", "a", "b")
    archive.age()
    with opened(database) as first:
        with first.conn.transaction(force_rollback=True):
            assert figures(first.tick()) == ("processed", 1, 1, 0, 3, 0)
            assert archive.tick() == SKIPPED
            assert archive.tick(flush=True) == SKIPPED
            # A producer is not held up by it.
            archive.ask("set lock_timeout = '10s'")
            archive.add("a", "c")
            archive.ask("reset lock_timeout")
        with first.conn.transaction():
            first.ask("select from outrider.rollup for update")
            assert archive.tick() == SKIPPED, "its row"
        assert archive.emitted() == []
        # Another rollup is not held up.
        first.install({**archive.one("select spec from outrider.rollup"), "name": "archive.second"})
        with first.conn.transaction():
            first.tick()
            assert archive.tick("archive.second")["result"] == "idle"
    assert archive.one("select count(*) from outrider.rollup_log where rollup = %s", NAME) == 1, "skipped is not logged"
    archive.ask("select outrider.rollup_uninstall('archive.second', true)")
    archive.tick(flush=True)
    accounted(archive)


@pytest.mark.verify
def test_late_commits_are_never_missed(archive: Archive, database: str) -> None:
    """Begun before a tick and committed after it, in any order; what is rolled back never was."""
    with opened(database) as slow, opened(database) as slower, opened(database) as gone:
        for each, document in ((slow, "a"), (gone, "a"), (slower, "b")):
            each.ask("begin")
            each.add(document, document)
        archive.add("a", "b")
        archive.age()
        assert figures(archive.tick()) == ("processed", 0, 2, 0, 2, 0)
        archive.add("a", "a")
        slower.ask("commit")
        archive.age()
        assert figures(archive.tick()) == ("processed", 2, 0, 0, 4, 0)
        gone.ask("rollback")
        archive.age()
        assert archive.tick()["result"] == "idle"
        slow.ask("commit")
        archive.age()
        assert figures(archive.tick()) == ("processed", 1, 0, 0, 2, 0)
        # While a tick is under way, too.
        slow.ask("begin")
        slow.add("c")
        archive.ask("begin")
        archive.add("c")
        archive.tick(flush=True)
        slow.ask("commit")
        archive.ask("commit")
    assert archive.staged() == ["c"]
    archive.tick(flush=True)
    accounted(archive)


@pytest.mark.parametrize("how", ["backend", "client", "client in a transaction"])
def test_a_tick_that_dies(archive: Archive, database: str, how: str) -> None:
    """While it waits for a lock on the notification table: nothing is lost, nothing is emitted twice, nobody is blocked."""
    archive.add("a", "a", "b", "a", "corrupt")
    archive.age()
    archive.ask("update outrider.rollup_pending set group_key = '' where group_key = 'corrupt'")
    mode = "autocommit" if how != "client in a transaction" else "transaction"
    with opened(database) as blocker:
        blocker.ask("begin")
        blocker.ask("lock table note in access exclusive mode")
        ticker = subprocess.Popen(
            [sys.executable, "-c", TICKER, database, mode], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            assert ticker.stdout is not None
            backend = int(ticker.stdout.readline())
            waits = "select count(*) from pg_locks where pid = %s and not granted"
            until(lambda: archive.one(waits, backend) == 1)
            assert archive.tick() == SKIPPED
            archive.ask("set lock_timeout = '10s'")
            archive.add("a", "late")
            archive.ask("reset lock_timeout")
            if how == "backend":
                archive.ask("select pg_terminate_backend(%s)", backend)
            else:
                os.kill(ticker.pid, signal.SIGKILL)
                ticker.wait()
            blocker.ask("commit")
            until(lambda: archive.one("select count(*) from pg_stat_activity where pid = %s", backend) == 0)
        finally:
            ticker.kill()
            ticker.communicate()
    done = archive.one("select count(*) from outrider.outbox")
    assert done == {"backend": 0, "client": 2, "client in a transaction": 0}[how], (
        "what has no listener is done all the same"
    )
    assert archive.locks() == []
    tick = archive.tick(flush=True)
    assert (tick["result"], tick["set_aside"]) == ("processed", 0 if done else 1)
    assert len(archive.aside()) == 1
    accounted(archive)
    assert archive.one("select count(*) from outrider.outbox where aggregate_id = 'a'") == (2 if done else 1)


@pytest.mark.verify
def test_a_tick_that_must_wait_too_long(archive: Archive, database: str) -> None:
    """A lock that it cannot have is an error like any other: told, nothing lost. A cancelled one leaves nothing at all."""
    archive.add("a", "a")
    archive.age()
    with opened(database) as blocker:
        blocker.ask("begin")
        blocker.ask("lock table note in access exclusive mode")
        archive.ask("set lock_timeout = '50ms'")
        tick = archive.tick()
        assert (tick["result"], tick["pending_post"]) == ("error", 2)
        assert "55P03" in tick["error_text"]
        archive.ask("set lock_timeout = 0; set statement_timeout = '50ms'")
        with pytest.raises(psycopg.errors.QueryCanceled):
            archive.tick()
        archive.ask("reset statement_timeout; reset lock_timeout")
        blocker.ask("commit")
    assert (archive.locks(), archive.emitted(), archive.staged()) == ([], [], ["a", "a"])
    archive.tick()
    accounted(archive)


class Turmoil:
    """Producers, ticks, a killer, one that holds locks and one that corrupts rows, all at once, each with its own chance."""

    def __init__(self, dsn: str, seed: int, turns: int) -> None:
        self.dsn = dsn
        self.chance = random.Random(seed)
        self.turns = turns
        self.over = asyncio.Event()
        self.ticks: list[Any] = []
        self.killed = 0
        self.corrupted = 0

    async def run(self) -> None:
        helpers = [
            asyncio.create_task(each()) for each in (self._tick, self._tick, self._kill, self._hold, self._corrupt)
        ]
        try:
            async with asyncio.timeout(PATIENCE * 10), asyncio.TaskGroup() as producers:
                for _ in range(4):
                    producers.create_task(self._produce())
        finally:
            self.over.set()
            await asyncio.gather(*helpers)

    def _seen_all(self) -> bool:
        """Whether everything has happened that shall do no harm."""
        results = {each["result"] for each in self.ticks}
        return {"processed", "skipped"} <= results and self.killed > 0 and self.corrupted > 0

    def _connect(self, **options: Any) -> Any:
        return psycopg.AsyncConnection.connect(self.dsn, **options)

    async def _produce(self) -> None:
        async with await self._connect() as conn:
            left = self.turns
            while left > 0 or not self._seen_all():
                left -= 1
                await conn.execute("set local lock_timeout = '30s'")
                for _ in range(self.chance.randint(1, 4)):
                    document = self.chance.choice(["a", "b", "c", "d", None])
                    await conn.execute("insert into piece (document, author) values (%s, 'ada')", [document])
                    if self.chance.random() < 0.2:
                        await asyncio.sleep(self.chance.random() * 0.05)
                await (conn.rollback() if self.chance.random() < 0.2 else conn.commit())

    async def _tick(self) -> None:
        while not self.over.is_set():
            with contextlib.suppress(psycopg.OperationalError):
                async with await self._connect(autocommit=self.chance.random() < 0.5) as conn:
                    await conn.execute("set application_name = 'ticker'")
                    for _ in range(5):
                        if self.chance.random() < 0.3:
                            await conn.execute(
                                "update outrider.rollup_pending set staged_at = staged_at - interval '5 minutes' "
                                "where id in (select id from outrider.rollup_pending where id % 3 = 0 "
                                "and processed_at is null for update skip locked)"  # waiting for a tick would be a deadlock
                            )
                        told = await conn.execute(
                            "select outrider.rollup_tick(%s, %s)", [NAME, self.chance.random() < 0.5]
                        )
                        [result] = await told.fetchone()
                        self.ticks.append(result)
                        await asyncio.sleep(self.chance.random() * 0.02)
                        await (conn.rollback() if self.chance.random() < 0.2 else conn.commit())

    async def _kill(self) -> None:
        async with await self._connect(autocommit=True) as conn:
            while not self.over.is_set():
                await asyncio.sleep(self.chance.random() * 0.1)
                killed = await conn.execute(
                    """select pg_terminate_backend(pid) from pg_stat_activity
                       where datname = current_database() and application_name = 'ticker' and state <> 'idle' limit 1"""
                )
                self.killed += len(await killed.fetchall())

    async def _hold(self) -> None:
        async with await self._connect() as conn:
            while not self.over.is_set():
                await conn.execute("lock table note in exclusive mode")
                await asyncio.sleep(self.chance.random() * 0.05)
                await conn.commit()
                await asyncio.sleep(self.chance.random() * 0.1)

    async def _corrupt(self) -> None:
        async with await self._connect(autocommit=True) as conn:
            while not self.over.is_set():
                await asyncio.sleep(0.05 + self.chance.random() * 0.1)
                harm = self.chance.choice(["group_key = ''", "workspace_id = ''", "group_key = repeat('x', 600)"])
                done = await conn.execute(
                    f"""update outrider.rollup_pending set {harm} where id in (
                            select id from outrider.rollup_pending where processed_at is null limit 1 for update skip locked)
                        and processed_at is null"""
                )
                self.corrupted += done.rowcount


@pytest.mark.verify
@pytest.mark.parametrize("seed", range(4))
async def test_turmoil(archive: Archive, database: str, seed: int, long: bool) -> None:
    turmoil = Turmoil(database, seed, turns=600 if long else 50)
    await turmoil.run()
    while archive.tick(flush=True)["result"] == "processed":
        pass
    # A row that is corrupted between two statements of a tick undoes it; the next one sets the row aside.
    errors = [each["error_text"] for each in turmoil.ticks if each["result"] == "error"]
    assert not [each for each in errors if "violates check constraint" not in each]
    accounted(archive)
