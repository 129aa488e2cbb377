"""Strict generations with real processes: workers of two releases, one of them killed in a batch. The other takes nothing of
it, the doctor names it, and the command that it names moves it: everything is handled once.
"""

from __future__ import annotations

import asyncio
import json
import shlex
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import AsyncConnection
from tests.cli import inprocess
from tests.faults import strict_subject
from tests.faults.nursery import Nursery
from tests.faults.strict_subject import Step, Task
from tests.faults.subject import eventually
from tests.oracle import Oracle

SECONDS = 60.0


class Deploy:
    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.apps = {1: strict_subject.old(dsn), 2: strict_subject.new(dsn)}
        self.sent: dict[str, int] = {"event": 0, "job": 0}

    def rows(self, query: str, *params: object) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.dsn, autocommit=True) as conn:
            cursor = conn.execute(query.encode(), params or None)
            return cursor.fetchall() if cursor.description else []

    async def send(self, generation: int, events: int, jobs: int = 0, act: str = "") -> None:
        app = self.apps[generation]
        async with await AsyncConnection.connect(self.dsn) as conn:
            for _ in range(events):
                self.sent["event"] += 1
                n = self.sent["event"]
                await app.publish(
                    conn, Step(key=f"{generation}.{n % 5}", n=n, act=act or ("fail" if n % 7 == 0 else ""))
                )
            for _ in range(jobs):
                self.sent["job"] += 1
                await app.enqueue(conn, Task(n=self.sent["job"]))

    async def handled(self, generation: int, events: int, jobs: int) -> None:
        query = f"select count(*) from witness where of_generation = {generation} and what = "
        await eventually(self.dsn, f"{query} 'event'", events, SECONDS)
        await eventually(self.dsn, f"{query} 'job'", jobs, SECONDS)

    async def looked(self, pid: int) -> None:
        """The worker has looked twice at who else is there."""
        for _ in range(2):
            [(now,)] = self.rows("select clock_timestamp()")
            query = f"select count(*) from outrider.worker where seen_at > '{now}' and pid = {pid}"
            await eventually(self.dsn, query, 1, SECONDS)

    def strangers(self) -> list[tuple[Any, ...]]:
        return self.rows("select * from witness where of_generation <> by_generation")


@pytest.mark.timeout(120)
async def test_a_strict_worker_takes_nothing_of_one_that_was_killed(database: str, tmp_path: Path) -> None:
    """Takes some seconds: real workers, and several heartbeats of them."""
    deploy = Deploy(database)
    deploy.rows(strict_subject.SETUP)
    async with deploy.apps[1] as app:
        await app.migrate()
    async with Nursery(database, Oracle(tmp_path)) as nursery:
        pids = [await nursery.start(subject=f"tests.faults.strict_subject:{release}") for release in ("old", "new")]
        for pid in pids:
            await deploy.looked(pid)
        for generation in (1, 2):
            await deploy.send(generation, 30, 10)
        for generation in (1, 2):
            await deploy.handled(generation, 30, 10)
        assert deploy.strangers() == []

        # The old worker is killed in a batch; its web process goes on.
        await deploy.send(1, 3, act="kill")
        assert await nursery.end_of(pids[0]) == -9
        await deploy.send(1, 20, 5)
        deploy.rows("update outrider.worker set seen_at = seen_at - interval '1 minute' where pid = %s", pids[0])
        await deploy.send(2, 20, 5)
        await deploy.looked(pids[1])
        await deploy.handled(2, 50, 15)
        assert deploy.strangers() == []
        assert deploy.rows("select count(*) from witness where of_generation = 1") == [(40,)]

        # The doctor names both, with the commands that move them.
        found = await findings(tmp_path, database)
        assert [each["found"].split(" wait")[0] for each in found] == [
            "strict.steps: 23 events of generation 1",
            "strict.task: 5 jobs of generation 1",
        ]
        for each in found:
            command = shlex.split(each["advice"].partition("outrider ")[2])
            moved = await asyncio.to_thread(inprocess.run, tmp_path, *command, "--dsn", database)
            assert moved.returncode == 0, moved.stderr
        await deploy.handled(1, 53, 10)
        await deploy.handled(2, 50, 15 + 5)  # jobs are of the generation that they were moved to
        assert await findings(tmp_path, database) == []

        # What it publishes later follows.
        await deploy.send(1, 5)
        await deploy.handled(1, 58, 10)
    assert {row[2:] for row in deploy.strangers()} == {(1, 2)}
    doubled = deploy.rows("select what, n from witness group by what, n having count(*) > 1")
    assert doubled == []
    assert deploy.rows("select what, count(*) from witness group by what order by what") == [
        ("event", deploy.sent["event"]),
        ("job", deploy.sent["job"]),
    ]
    assert deploy.rows("select count(*) from outrider.owed") == [(0,)]


async def findings(folder: Path, dsn: str) -> list[dict[str, str]]:
    done = await asyncio.to_thread(inprocess.run, folder, "doctor", "--json", "--dsn", dsn)
    return [each for each in json.loads(done.stdout)["findings"] if each["check"] == "generations"]
