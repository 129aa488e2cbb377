"""A rolling deploy and its rollback, with real processes under load: generations side by side, workers that stop and die,
publishers that outlive their workers, a context that is never deployed. Nothing lost, doubled, buried or stranded.
"""

from __future__ import annotations

import asyncio
import signal
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import AsyncConnection
from tests import oracle as oracles
from tests.faults import deploy_subject
from tests.faults.deploy_subject import AUDIT, EXTENDED, KEYED, TOTAL, UNCHANGED, Web
from tests.faults.nursery import Nursery
from tests.faults.subject import all_handled, eventually
from tests.oracle import Oracle, check

from outrider.postgres.admin import subscriptions

pytestmark = pytest.mark.verify

ALL = (KEYED, TOTAL, EXTENDED, AUDIT)
SECONDS = 60.0


class Deploy:
    """What happens, step by step."""

    def __init__(self, dsn: str, folder: Path, seed: int, stack: AsyncExitStack) -> None:
        self.dsn = dsn
        self.seed = seed
        self.stack = stack
        self.oracle = Oracle(folder)
        self.workers: dict[str, list[int]] = {"old": [], "new": [], "other": []}
        self.killed = 0

    async def prepare(self) -> None:
        self.sql(oracles.SETUP + deploy_subject.SETUP)
        for release in (deploy_subject.old, deploy_subject.other):
            async with release(self.dsn) as app:
                await app.migrate()
        self.nursery = await self.stack.enter_async_context(Nursery(self.dsn, self.oracle))

    def sql(self, query: str, *params: object) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.dsn, autocommit=True) as conn:
            cursor = conn.execute(query.encode(), params or None)
            return cursor.fetchall() if cursor.description else []

    async def start(self, release: str, workers: int) -> None:
        subject = f"tests.faults.deploy_subject:{release}"
        self.workers[release] += [await self.nursery.start(subject=subject) for _ in range(workers)]
        await self.seen()

    async def stop(self, release: str) -> None:
        """In good order."""
        assert await self.nursery.kill(self.workers[release].pop(), signal.SIGTERM) == 0

    async def kill(self, release: str) -> None:
        """Without a word; half a minute passes until the others believe it."""
        pid = self.workers[release].pop()
        assert await self.nursery.kill(pid) == -9
        self.killed += 1
        self.sql("update outrider.worker set seen_at = seen_at - interval '1 minute' where pid = %s", pid)

    async def seen(self) -> None:
        """Every worker has looked at who else is there, after all that has happened until now."""
        pids = [pid for of in self.workers.values() for pid in of]
        for _ in range(2):
            [(now,)] = self.sql("select clock_timestamp()")
            query = (
                f"select count(*) from outrider.worker where seen_at > '{now}' and pid = any (array{pids}::integer[])"
            )
            await eventually(self.dsn, query, len(pids), SECONDS)

    async def handled(self, *names: str) -> None:
        await all_handled(self.dsn, self.oracle, *names, seconds=SECONDS)

    def drawn(self) -> int:
        return int(self.sql("select coalesce(max(seq), 0) from outrider.outbox")[0][0])

    def strangers(self, after: int, upto: int) -> list[tuple[Any, ...]]:
        """Events of the unchanged subscriptions that another generation's workers handled."""
        return self.sql(
            """select w.subscription, o.seq, o.generation, w.generation
               from witness as w join outrider.outbox as o using (seq)
               where w.subscription = any (%s) and o.seq > %s and o.seq <= %s and w.generation <> o.generation""",
            list(UNCHANGED), after, upto,
        )  # fmt: skip


async def roll(dsn: str, folder: Path, seed: int, load: int) -> None:
    async with AsyncExitStack() as stack:
        deploy = Deploy(dsn, folder, seed, stack)
        await deploy.prepare()
        web1, web2 = (Web(dsn, deploy.oracle, each, f"g{each}", seed) for each in (1, 2))

        # The release that runs.
        await deploy.start("old", 2)
        await deploy.start("other", 1)
        await web1.publish(load)

        # The deploy begins: the schema knows the new type; web processes come before workers.
        release = deploy_subject.new if seed % 2 else deploy_subject.registering
        async with release(dsn) as app:
            await app.migrate()
        async with asyncio.TaskGroup() as group:
            group.create_task(web1.publish(load))
            group.create_task(web2.publish(load, extra=True))
        await deploy.handled(*UNCHANGED, AUDIT)
        assert deploy.sql("select count(*) from extra") == [(0,)]

        # Its workers come, under load; then, side by side, each generation's events are handled by its own.
        async with asyncio.TaskGroup() as group:
            group.create_task(web1.publish(load))
            group.create_task(web2.publish(load, extra=True))
            await deploy.start("new", 2)
        before = deploy.drawn()
        async with asyncio.TaskGroup() as group:
            group.create_task(web1.publish(load))
            group.create_task(web2.publish(load, extra=True))
        await deploy.handled(*ALL)
        assert deploy.strangers(before, deploy.drawn()) == []

        # The old workers go, one by one; a web process stays behind.
        async with asyncio.TaskGroup() as group:
            group.create_task(web1.publish(load))
            group.create_task(web2.publish(load, extra=True))
            await deploy.stop("old")
            await deploy.kill("old")
        await deploy.handled(*ALL)
        async with asyncio.TaskGroup() as group:
            group.create_task(web2.publish(load, extra=True))
            await eventually(dsn, "select count(*) from outrider.cursor where generation = 1", 0, SECONDS)
        await web1.publish(load)
        await deploy.handled(*ALL)
        extras = sorted(web2.extras)
        assert sorted(deploy.sql("select key, n from extra")) == extras, "the new type is handled once"

        # Rollback: the old release comes back, the new one goes; its web process is the one that stays behind.
        async with asyncio.TaskGroup() as group:
            group.create_task(web1.publish(load))
            group.create_task(web2.publish(load))
            await deploy.start("old", 2)
        async with asyncio.TaskGroup() as group:
            group.create_task(web1.publish(load))
            group.create_task(web2.publish(load))
            await deploy.kill("new")
            await deploy.stop("new")
        await deploy.handled(*UNCHANGED, AUDIT)
        async with await AsyncConnection.connect(dsn, autocommit=True) as conn:
            await subscriptions.narrow(conn, EXTENDED, ["deploy.extra"], "outrider")
            await deploy.handled(*ALL)
            await web2.publish(load)
            await deploy.handled(*ALL)
            await eventually(dsn, "select count(*) from outrider.cursor where generation = 2", 0, SECONDS)
            for name in ALL:
                left = await subscriptions.backlog(conn, name, "outrider")
                assert not left.unhandled, f"{name} is stranded: {left}"
        assert deploy.sql("select distinct generation from extra") == [(2,)]
        assert sorted(deploy.sql("select key, n from extra")) == extras
        assert deploy.sql(f"select distinct generation from witness where subscription = '{AUDIT}'") == [(0,)]
        retried = deploy.sql("select count(*) from outrider.event_handled where failure_history is not null")
        assert retried > [(10,)], "too little has failed to prove anything"
        for running in ("old", "old", "other"):
            await deploy.stop(running)
    check(dsn, deploy.oracle)  # handlers fail on purpose, and each failure rolls a batch back: no bound for I4


@pytest.mark.timeout(240)
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.long)])
async def test_a_rolling_deploy_and_its_rollback(database: str, tmp_path: Path, seed: int, long: bool) -> None:
    """Seed 1 opens the new generation in the deploy step; with 0 its workers do."""
    await roll(database, tmp_path, seed, 400 if long else 15)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2, 8))
async def test_more_rolling_deploys(database: str, tmp_path: Path, seed: int) -> None:
    await roll(database, tmp_path, seed, 100)
