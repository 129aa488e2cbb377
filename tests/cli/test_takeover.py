"""`outrider takeover`: what it says and refuses; a Redis stream that goes on where the old drainer ended."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import psycopg
import pytest
from redis import Redis
from tests.brokers import RedisServer
from tests.cli.conftest import Run
from tests.relay.conftest import name, redis_server

from outrider import Outrider
from outrider.streams.redis import RedisStreams

__all__ = ["name", "redis_server"]

APP = """
import asyncio
from outrider import Event, Outrider
from outrider.streams.redis import RedisStreams

class Sent(Event, type="cli.taken", key="parcel"):
    parcel: str

app = Outrider(context="depot")
app.relay("depot.out", RedisStreams("{url}", stream="{stream}"), events=[Sent])
app.takeover("public.depot_outbox", type="'cli.taken'", key="parcel", payload="jsonb_build_object('parcel', parcel)")
"""
OUTBOX = (
    "create table depot_outbox (id int generated always as identity primary key, parcel text, published_at timestamptz)"
)
TABLE = "public.depot_outbox"


@pytest.fixture
def depot(outrider: Run, database: str, tmp_path: Path, name: str, redis_server: RedisServer) -> str:
    (tmp_path / "depot.py").write_text(APP.format(url=redis_server.url, stream=name))
    with psycopg.connect(database) as conn:
        conn.execute(OUTBOX)
        conn.execute("insert into depot_outbox (parcel) values ('a'), ('b'), ('c')")
    outrider("migrate", "--app", "depot:app", "--dsn", database)
    return database


def test_a_stream_goes_on_where_the_old_drainer_ended(
    outrider: Run, depot: str, name: str, redis_server: RedisServer
) -> None:
    with Redis.from_url(redis_server.url) as redis, psycopg.connect(depot, autocommit=True) as conn:
        for (parcel,) in conn.execute(
            "update depot_outbox set published_at = now() where id < 3 returning parcel"
        ).fetchall():
            redis.xadd(name, {"event": json.dumps({"parcel": parcel})})
        at = ("--app", "depot:app", "--dsn", depot)
        for verb in ("start", "cutover"):
            assert outrider("takeover", verb, TABLE, *at).returncode == 0
        conn.execute("insert into depot_outbox (parcel) values ('d')")
        outrider("relay", "adopt", "depot.out", name, "--yes", *at)
        asyncio.run(drain(redis_server.url, name, depot))
        entries = [json.loads(fields[b"event"]) for _, fields in redis.xrange(name)]
    assert entries[:2] == [{"parcel": "a"}, {"parcel": "b"}]
    assert [each["payload"]["parcel"] for each in entries[2:]] == ["c", "d"]


def test_what_it_says(outrider: Run, depot: str) -> None:
    at = ("--app", "depot:app", "--dsn", depot, "--json")
    planned = json.loads(outrider("takeover", "plan", TABLE, *at).stdout)
    assert (planned["phase"], planned["owed"]) == (None, 3)
    assert "create or replace trigger" in planned["sql"]
    outrider("takeover", "start", TABLE, *at, "--reason", "we move")
    assert json.loads(outrider("takeover", "cutover", TABLE, *at).stdout) == {
        "table": TABLE, "phase": "taken", "brought": 3,
    }  # fmt: skip
    done = json.loads(outrider("takeover", "status", TABLE, *at).stdout)
    assert (done["phase"], done["owed"], done["brought"], done["made"], done["recent"]) == ("taken", 0, 3, 3, 0)
    assert json.loads(outrider("takeover", "finish", TABLE, *at).stdout)["phase"] == "finished"


def test_what_it_refuses(outrider: Run, depot: str) -> None:
    at = ("--app", "depot:app", "--dsn", depot)
    for arguments, said in [
        (("start", "public.other"), "declares no takeover of 'public.other'; it declares: public.depot_outbox"),
        (("cutover", TABLE), "has not started: outrider takeover start public.depot_outbox"),
        (("abort", TABLE), "nothing to abort, the phase is not started"),
    ]:
        done = outrider("takeover", *arguments, *at)
        assert (done.returncode, said in done.stderr) == (1, True), done.stderr
    with psycopg.connect(depot) as conn:
        conn.execute("drop table depot_outbox")
    done = outrider("takeover", "plan", TABLE, *at)
    assert (done.returncode, done.stderr) == (
        1, 'outrider: public.depot_outbox: relation "public.depot_outbox" does not exist\n',
    )  # fmt: skip


async def drain(url: str, stream: str, dsn: str) -> None:
    app = Outrider(context="depot", dsn=dsn)
    app.relay("depot.out", RedisStreams(url, stream=stream))
    async with app:
        await app.drain()
