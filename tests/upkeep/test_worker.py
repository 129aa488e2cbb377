"""Who does it: one worker of many, every five minutes; one that may not says so once; `outrider upkeep` alone."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from tests.cli import inprocess
from tests.rollup.archive import NAME, TABLES
from tests.rollup.archive import opened as archived
from tests.upkeep.house import House
from tests.worker.shop import Placed

from outrider import Outrider
from outrider.config import Settings
from outrider.errors import ConfigError
from outrider.postgres import connection, heartbeat
from outrider.signals import RolledUp, Signal, Signals, Troubled, Upkept
from outrider.worker import upkeep_loop
from outrider.worker.upkeep_loop import UpkeepLoop


def part(dsn: str) -> tuple[UpkeepLoop, list[Signal]]:
    signals, heard = Signals(), list[Signal]()
    signals.listen(heard.append)
    return UpkeepLoop(dsn=dsn, settings=Settings(context="a"), signals=signals), heard


async def test_a_round_of_a_worker(house: House, database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it does it says; what is kept it says once; and another worker does not do the same again."""
    monkeypatch.setattr(upkeep_loop, "BUSY_PAUSE", 0.0)
    keeping, heard = part(database)
    other, silent = part(database)
    house.register("a.reader")
    house.publish(5)
    old = house.cut()
    house.age(50)
    async with await connection.connect(database, autocommit=True) as conn:
        await keeping.round(conn)
        await other.round(conn)
        assert (heard, silent) == ([Upkept("kept", old, 0, "a.reader has not read it")], [])
        house.age(1)
        await keeping.round(conn)
        assert len(heard) == 1, "said once"
        house.read_all("a.reader")
        house.age(1)
        with psycopg.connect(database) as reader:
            reader.execute("select count(*) from outrider.outbox")
            await keeping.round(conn)
        assert [(each.action, each.subject) for each in heard[1:] if isinstance(each, Upkept)] == [("busy", old)]
        house.age(1)
        await keeping.round(conn)
        assert heard[2:] == [Upkept("detached", old, 5, "0 to 5")]


async def test_a_step_that_fails_does_not_keep_the_others(house: House, database: str) -> None:
    keeping, heard = part(database)
    house.register("a.reader")
    house.publish(5)
    old = house.cut()
    house.read_all("a.reader")
    house.age(50)
    house.ask(
        """create or replace function outrider.upkeep_segments(p_dry boolean default false) returns setof outrider.upkept
           language plpgsql as $$ begin raise 'a segment is somebody else''s'; end $$"""
    )
    async with await connection.connect(database, autocommit=True) as conn:
        with pytest.raises(psycopg.DatabaseError, match="somebody else's"):
            await keeping.round(conn)
    assert ("detached", old) in [(each.action, each.subject) for each in heard if isinstance(each, Upkept)]


async def test_rows_of_workers_that_nobody_has_seen_for_a_day(database: str) -> None:
    here = heartbeat.Identity(0, [])
    async with await connection.connect(database, autocommit=True) as conn:
        for host, hours in (("gone", 25), ("late", 23)):
            await heartbeat.beat(conn, heartbeat.Identity(0, [], host=host), "outrider")
            aged = "update outrider.worker set seen_at = now() - make_interval(hours => %s) where host = %s"
            await conn.execute(aged, [hours, host])
        await heartbeat.beat(conn, here, "outrider")
        left = await (await conn.execute("select host from outrider.worker")).fetchall()
    assert {host for (host,) in left} == {"late", here.host}


async def test_rollups_that_nobody_ticks(database: str) -> None:
    with archived(database) as archive:
        archive.ask(TABLES)
        archive.install()
        archive.add("a", "a")
        archive.age()
        archive.ask("update outrider.rollup set installed_at = installed_at - interval '1 day'")
        keeping, heard = part(database)
        async with await connection.connect(database, autocommit=True) as conn:
            await keeping.round(conn)
        assert heard == [RolledUp(NAME, 1, 0, 0, 0, 0, False, None), Upkept("ticked", NAME, 1, None)]


async def test_a_worker_keeps_house(house: House, database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep_loop, "FIRST", 0.01)
    house.publish(5)
    old = house.cut()
    house.age(50)
    app = Outrider(context="a", dsn=database)
    heard = asyncio.Queue[Signal]()
    app.signals.listen(lambda each: heard.put_nowait(each) if isinstance(each, Upkept) else None)

    @app.handler(Placed, name="a.handled")
    async def handled(event: Placed) -> None: ...

    async with app, app.worker():
        assert await asyncio.wait_for(heard.get(), 60) == Upkept("detached", old, 5, "0 to 5")


async def test_one_that_may_not(house: House, database: str) -> None:
    """A role from before, or for publishing only: told once, and asked again with the next round."""
    role = f"role_{house.conn.info.dbname}"
    house.ask(f"create role {role} login")
    try:
        keeping, heard = part(make_conninfo(database, user=role))
        keeping._begun = True
        assert await keeping._attempt() == upkeep_loop.EVERY
        assert await keeping._attempt() == upkeep_loop.EVERY
        [told] = heard
        assert isinstance(told, Troubled)
        assert (told.subscription, "may not use" in told.message) == (upkeep_loop.NAME, True)
    finally:
        house.ask(f"drop role {role}")


def test_it_can_be_turned_off() -> None:
    assert Settings.load(environ={}).upkeep
    assert not Settings.load(environ={"OUTRIDER_UPKEEP": "off"}).upkeep
    with pytest.raises(ConfigError, match="OUTRIDER_UPKEEP"):
        Settings.load(environ={"OUTRIDER_UPKEEP": "perhaps"})


@pytest.mark.verify
def test_alone(house: House, database: str, tmp_path: Path) -> None:
    def outrider(*arguments: str) -> str:
        done = inprocess.run(tmp_path, "upkeep", *arguments, "--dsn", database)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert outrider() == "nothing to do\n"
    house.register("a.handler", "handler")
    house.publish(5)
    house.read_all("a.handler")
    old = house.cut()
    house.register("a.slow")
    house.age(50)
    assert outrider("--dry-run") == (
        f"kept {old}: a.slow has not read it\nnothing was changed (dry run)\n"
    )  # fmt: skip
    assert "kept: a.slow has not read it" in " ".join(outrider("segments").split())
    house.read_all("a.slow")
    told = json.loads(outrider("--json"))
    assert told["did"] == [{"action": "detached", "subject": old, "number": 5, "detail": "0 to 5"}]
    shown = json.loads(outrider("segments", "--json"))["segments"]
    assert [(each["name"], each["state"]) for each in shown][:2] == [(old, "detached"), ("outbox_from_6", "ahead")]
    assert "15 segments ahead" in outrider("segments") or "16 segments ahead" in outrider("segments")
    assert outrider("attach", old, "--days", "2", "--by", "ann", "--reason", "a question") == (
        f"attached the segment {old} (0 to 5); it stays for at least 2 days\n"
    )
    refused = inprocess.run(tmp_path, "upkeep", "attach", old, "--dsn", database)
    assert refused.returncode == 1
    assert "there is no detached segment 'outbox_s0'" in refused.stderr
    house.age(3)
    assert outrider() == f"detached the segment {old} (0 to 5)\n"
    house.age(8)
    assert outrider("--dry-run").startswith(f"would have dropped the segment {old} (0 to 5)\n")
    assert outrider() == f"dropped the segment {old} (0 to 5)\n"
    house.age(30)
    assert outrider() == "removed 5 receipts\n"
