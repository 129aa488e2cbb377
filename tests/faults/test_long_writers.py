"""Fault 11: transactions that stay open, here, elsewhere, or prepared and forgotten. Only their own events wait."""

from __future__ import annotations

from pathlib import Path

import pytest
from psycopg import AsyncConnection
from tests.faults import subject
from tests.faults.subject import Fact, Producer
from tests.oracle import Oracle, check

from outrider import Outrider

pytestmark = pytest.mark.verify


async def test_only_their_own_events_wait(database: str, server: str, tmp_path: Path, long: bool) -> None:
    oracle, plain = Oracle(tmp_path), Outrider(context="fault", dsn=database)
    await subject.setup(database)
    here, elsewhere = await AsyncConnection.connect(database), await AsyncConnection.connect(server)
    forgotten = await AsyncConnection.connect(database, autocommit=True)
    name = forgotten.info.dbname
    async with here, elsewhere, forgotten, subject.make(database) as app:
        waiting = [oracle.next("here"), oracle.next("forgotten")]
        oracle.write(waiting, "unknown")
        await plain.publish(here, Fact(key="here", n=1))
        await elsewhere.execute("select pg_current_xact_id()")
        await forgotten.execute("begin")
        await forgotten.execute("set local outrider.notify = 'off'")
        await plain.publish(forgotten, Fact(key="forgotten", n=1))
        await forgotten.execute(f"prepare transaction '{name}'".encode())
        async with subject.worker_of(app):
            for seed in range(20 if long else 3):
                await Producer(database, oracle, seed).burst(20, failing=0.1)
                await subject.all_handled(database, oracle)
            await subject.eventually(database, "select count(*) from effect where key in ('here', 'forgotten')", 0)
            await here.commit()
            oracle.write(waiting[:1], "ok")
            await subject.all_handled(database, oracle)
            await forgotten.execute(f"commit prepared '{name}'".encode())
            oracle.write(waiting[1:], "ok")
            await subject.all_handled(database, oracle)
        await elsewhere.rollback()
        await subject.heal(app, database)
    check(database, oracle)
