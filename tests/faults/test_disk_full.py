"""Fault 31: the disk under the log, the deliveries and the receipts is full, then grows. A real small file system, as a
tablespace. Whoever publishes is told and fails cleanly; workers wait, blame nobody, and go on where they stopped."""

from __future__ import annotations

import asyncio
import os
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import AsyncConnection
from psycopg.errors import DiskFull
from tests.faults import job_subject, subject
from tests.faults.job_subject import Chore, Enqueuer
from tests.faults.subject import NAMES, Ear, Fact, Producer
from tests.oracle import Oracle, check

from outrider import Outrider
from outrider.signals import Troubled

pytestmark = pytest.mark.verify

FULL = "53100"
MOVED = """select oid::regclass::text, relkind in ('i') from pg_class
           where relnamespace = any (array['outrider', 'public']::regnamespace[]) and relkind in ('r', 'i')
             and relname ~ '^(outbox_s0|delivery|job|event_handled|effect)'"""


class Disk:
    """A file system in memory, with a size; a tablespace on it."""

    def __init__(self, server: str, size: str) -> None:
        self.name = f"small_{uuid.uuid4().hex[:12]}"
        self.folder = Path(tempfile.mkdtemp(prefix=self.name))
        self._server = server
        with psycopg.connect(server, autocommit=True) as conn:
            row = conn.execute("show data_directory").fetchone()
            assert row is not None
            owner = Path(row[0]).stat()
            self._mount(f"size={size},uid={owner.st_uid},gid={owner.st_gid},mode=700")
            conn.execute(f"create tablespace {self.name} location '{self.folder}'".encode())

    def grow(self, size: str) -> None:
        self._mount(f"remount,size={size}")

    def close(self) -> None:
        with psycopg.connect(self._server, autocommit=True) as conn:
            conn.execute(f"drop tablespace if exists {self.name}".encode())
        subprocess.run(["umount", "--lazy", self.folder], check=True)
        self.folder.rmdir()

    def hold(self, dsn: str) -> None:
        """What grows with events moves here; the rest of the database stays where it is."""
        with psycopg.connect(dsn, autocommit=True) as conn:
            for name, index in conn.execute(MOVED).fetchall():
                kind = "index" if index else "table"
                conn.execute(f"alter {kind} {name} set tablespace {self.name}".encode())

    def fill(self) -> None:
        """By somebody else: nothing can grow any more, and what has room in its pages still takes some."""
        with (self.folder / "ballast").open("wb", buffering=0) as ballast:
            try:
                while True:
                    ballast.write(bytes(4096))
            except OSError:
                pass

    def _mount(self, options: str) -> None:
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(self.folder)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, f"root must be able to mount a file system for this test: {done.stderr}"


@pytest.fixture
def disk(server: str) -> Iterator[Disk]:
    """Named before `database`, which must be gone when the tablespace goes."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small file system")
    disk = Disk(server, "4m")
    yield disk
    disk.close()


async def test_publishers_are_told_and_handlers_wait(disk: Disk, database: str, tmp_path: Path) -> None:
    oracle = Oracle(tmp_path)
    await subject.setup(database)
    disk.hold(database)
    producer = Producer(database, oracle)
    async with subject.make(database, poll=0.1) as app:
        await producer.burst(20, failing=0.1)
        await app.drain()
        for _ in range(40):
            await producer.publish(50)
        disk.fill()
        told = await until_full(producer)
        assert "could not extend file" in str(told)
        ear = Ear(app)
        async with subject.worker_of(app):
            await ear.until(lambda: {each.subscription for each in ear.all(Troubled)} == set(NAMES))
            await ear.until(lambda: max(each.in_a_row for each in ear.all(Troubled)) >= 3)
            assert {each.code for each in ear.all(Troubled)} == {FULL}
            await the_callers_transaction_survives(database, app, oracle)
            disk.grow("64m")
            await producer.burst(20, failing=0.1)
            await subject.all_handled(database, oracle)
        await subject.heal(app, database)
    check(database, oracle, unsuspected=True)
    assert blamed(database) <= {"runtime_error"}


async def until_full(producer: Producer) -> psycopg.Error:
    """Rows fit into the room that is left in pages, until they do not."""
    for _ in range(2000):
        try:
            await producer.publish(20)
        except DiskFull as error:
            return error
    raise AssertionError("the disk never was full")


async def the_callers_transaction_survives(dsn: str, app: Outrider, oracle: Oracle) -> None:
    """A publish that fails in a savepoint leaves the rest of the caller's transaction as it was."""
    facts = [oracle.next("savepoint") for _ in range(500)]
    async with await AsyncConnection.connect(dsn) as conn:
        await conn.execute("create table business (n int)")
        with pytest.raises(DiskFull):
            async with conn.transaction():
                await app.publish_many(conn, [Fact(key=key, n=n) for key, n in facts])
        oracle.write(facts, "failed")
        await conn.execute("insert into business values (1)")
    async with await AsyncConnection.connect(dsn) as conn:
        assert await (await conn.execute("select n from business")).fetchall() == [(1,)]


def blamed(dsn: str) -> set[Any]:
    with psycopg.connect(dsn) as conn:
        return {code for (code,) in conn.execute("select distinct code from blame where attempts > 0")}


async def test_jobs_wait_too(disk: Disk, database: str, tmp_path: Path) -> None:
    """Claims and settlements write: what ran and could not be settled is settled when there is room, or runs again."""
    oracle = Oracle(tmp_path)
    await job_subject.setup(database)
    with psycopg.connect(database) as conn:  # else a claim finds room in the page of its job
        conn.execute("alter table outrider.job set (fillfactor = 100)")
    disk.hold(database)
    enqueuer = Enqueuer(database)
    async with job_subject.make(database, oracle.outside_file) as app:
        ear = Ear(app)
        async with job_subject.worker_of(app):
            await enqueuer.burst(30, failing=0.2)
            await job_subject.settled(database)
            disk.fill()
            with pytest.raises(DiskFull):
                await enqueuer.burst(12_000)
            async with asyncio.timeout(60):
                while FULL not in {each.code for each in ear.all(Troubled)}:  # the worker may find room in old pages
                    with suppress(DiskFull):
                        await enqueuer.burst(10)
            disk.grow("64m")
            await enqueuer.one(Chore(n=len(enqueuer.ok) + 1))
            await job_subject.settled(database)
    job_subject.check(database, oracle.outside_file, enqueuer.ok, crashes=1)
