"""An asynchronous standby is promoted, and the last commits are lost: of log, cursors, receipts and effects together.
What is left is handled exactly once, what is lost leaves no trace, and nothing waits for transactions that are gone."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from psycopg import AsyncConnection
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from tests.clusters import SETTINGS, let_in, migrated
from tests.faults import subject
from tests.faults.subject import Fact, Producer
from tests.oracle import Oracle, check

from outrider import Outrider
from outrider.postgres.embedded import Embedded
from outrider.postgres.embedded.binaries import runnable

pytestmark = pytest.mark.verify

PORT = 5433
PUBLISHED = "select payload ->> 'key', (payload ->> 'n')::bigint from outrider.outbox"


class Standby:
    """A copy of a server that follows it until it is cut off, and is promoted then."""

    def __init__(self, primary: Embedded, database: str) -> None:
        cluster = primary._cluster
        assert cluster is not None
        self._account, self._install = cluster.account, cluster.install
        self._primary, self.dsn = primary.dsn(database), ""
        self._database = database

    @contextmanager
    def following(self) -> Iterator[None]:
        folder = Path(tempfile.mkdtemp(prefix="standby-"))
        self._account.own(folder)
        self._bin = runnable(self._install, self._account, folder).bin  # it outlives the primary and its folder
        data = folder / "data"
        let_in(self._primary, self._account)
        self._run("pg_basebackup", "-D", data, "-R", "-X", "stream", "-c", "fast", "-d", self._primary)
        settings = SETTINGS | {"unix_socket_directories": str(folder), "listen_addresses": "''", "port": str(PORT)}
        options = " ".join(f"-c {name}={value}" for name, value in settings.items())
        self._run("pg_ctl", "-D", data, "-w", "-t", "60", "-l", folder / "log", "-o", options, "start")
        try:
            self.dsn = make_conninfo("", host=str(folder), port=PORT, user="postgres", dbname=self._database)
            yield
        finally:
            self._run("pg_ctl", "-D", data, "-w", "-m", "immediate", "stop")
            shutil.rmtree(folder)

    def _run(self, program: str, *arguments: str | Path) -> None:
        done = self._account.run(self._bin / program, *arguments)
        assert done.returncode == 0, f"{program}: {done.stderr}"

    async def caught_up(self) -> None:
        with psycopg.connect(self._primary, autocommit=True) as conn:
            row = conn.execute("select pg_current_wal_lsn()::text").fetchone()
            assert row is not None
        await subject.eventually(self.dsn, f"select pg_last_wal_replay_lsn() >= '{row[0]}'")

    async def cut_off(self) -> None:
        with psycopg.connect(self.dsn, autocommit=True) as conn:
            conn.execute("alter system set primary_conninfo = ''")
            conn.execute("select pg_reload_conf()")
        await subject.eventually(self.dsn, "select count(*) from pg_stat_wal_receiver", 0)

    def promote(self) -> None:
        with psycopg.connect(self.dsn, autocommit=True) as conn:
            assert conn.execute("select pg_promote()").fetchone() == (True,)


@pytest.mark.alone
async def test_a_standby_is_promoted_and_the_last_commits_are_lost(tmp_path: Path) -> None:
    """The worker knows both addresses, and goes on by itself."""
    oracle = Oracle(tmp_path)
    with Embedded.temporary(settings=SETTINGS) as primary:
        await migrated(primary, "failover")
        dsn, standby = primary.dsn("failover"), Standby(primary, "failover")
        await subject.setup(dsn)
        producer, plain = Producer(dsn, oracle), Outrider(context="fault", dsn=dsn)
        with standby.following():
            async with subject.make(either(dsn, standby.dsn)) as app, subject.worker_of(app):
                async with await AsyncConnection.connect(dsn) as unfinished:
                    await plain.publish(unfinished, Fact(key="unfinished", n=1))
                    await producer.burst(20, failing=0.1)
                    await subject.all_handled(dsn, oracle)
                    await standby.caught_up()
                    async with Outrider(context="fault", dsn=standby.dsn) as looking:
                        assert len((await looking.status()).subscriptions) == 3
                    await producer.burst(5)
                    await standby.cut_off()
                    await producer.burst(20, failing=0.1)
                    await subject.all_handled(dsn, oracle)
                    await unfinished.rollback()
                await asyncio.to_thread(primary.stop)
                standby.promote()
                with psycopg.connect(standby.dsn) as conn:
                    left = set(conn.execute(PUBLISHED).fetchall())
                lost = [fact for fact, outcome in oracle.attempts().items() if outcome == "ok" and fact not in left]
                assert lost
                oracle.write(lost, "failed")
                await Producer(standby.dsn, oracle, 1).burst(20, failing=0.1)
                await subject.all_handled(standby.dsn, oracle, seconds=60)
            async with subject.make(standby.dsn) as app:
                await subject.heal(app, standby.dsn)
            check(standby.dsn, oracle)


def either(*dsns: str) -> str:
    """Whichever of them can be written to."""
    parts = [conninfo_to_dict(dsn) for dsn in dsns]
    hosts, ports = (",".join(str(part[name]) for part in parts) for name in ("host", "port"))
    return make_conninfo(dsns[0], host=hosts, port=ports, target_session_attrs="read-write")
