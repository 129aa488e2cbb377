"""Fault 23: payloads whose text no session can hold. jsonb keeps `1e131071` in a few bytes and prints 131,072 digits.

No writer may store one. What was stored before the bounds were there is one dead letter each, and its neighbours go on.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from uuid import UUID

import psycopg
import pytest
from tests.brokers import RedisServer
from tests.cli import inprocess
from tests.relay.depot import Depot, Sent, depot, ids_in
from tests.streams.conftest import name, redis_server

from outrider import HandlerContext, Job, JobContext
from outrider.errors import Undecodable
from outrider.streams.redis import RedisStreams

__all__ = ["name", "redis_server"]

LIFT = """alter table outrider.outbox disable trigger accept_event;
          alter table outrider.job disable trigger refuse_unbounded"""
"""Writes as before the bounds were there."""
NUMBERS = '{"parcel": "a", "n": 2, "many": [' + "1e131071," * 1030 + "1]}"
"""9 kB; more than 128 MiB as text."""
INSERT = """insert into outrider.outbox (event_type, source, aggregate_id, workspace_id, payload)
            values ('depot.sent', 'depot', 'a', 'acme', %s::text::jsonb) returning id"""


class Weigh(Job, type="depot.weigh"):
    n: int


@pytest.mark.verify
def test_what_no_session_can_print_is_refused(database: str) -> None:
    """Takes 3 s: the server finds out by trying."""
    insert = "insert into outrider.outbox (event_type, source, payload) values ('depot.sent', 'depot', %s)"
    numbers = """'{"n": [' || repeat('1e131071,', 8300) || '1]}'"""
    controls = "jsonb_build_object('text', repeat(chr(1), 23000000))"
    for payload, size in ((f"({numbers})::jsonb", "more than 1073741823"), (controls, "138000012")):
        with psycopg.connect(database, autocommit=True) as conn, pytest.raises(psycopg.errors.CheckViolation) as error:
            conn.execute((insert % payload).encode())
        assert f"the payload has {size} bytes as text, the limit is 134217728" in str(error.value)


def stored(dsn: str) -> UUID:
    """As it may stand in a log from before the bounds."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(LIFT)
        row = conn.execute(INSERT, [NUMBERS]).fetchone()
        assert row is not None
        return UUID(str(row[0]))


def of_every_kind(house: Depot, seen: list[tuple[str, int]]) -> None:
    """A subscription of each kind notes what it gets."""
    app = house.app

    @app.handler(Sent, name="depot.single")
    async def single(event: Sent, ctx: HandlerContext) -> None:
        seen.append(("single", event.n))

    @app.handler(Sent, name="depot.batch")
    async def batch(events: list[Sent], ctx: HandlerContext) -> None:
        seen.extend(("batch", each.n) for each in events)

    @app.job(on=Sent, name="depot.job")
    async def job(event: Sent, ctx: JobContext) -> None:
        seen.append(("job", event.n))

    @app.job(Weigh)
    async def weigh(job: Weigh, ctx: JobContext) -> None:
        seen.append(("weigh", job.n))


@pytest.mark.verify
async def test_what_cannot_be_read_is_a_dead_letter_and_its_neighbours_go_on(
    database: str, redis_server: RedisServer, name: str, tmp_path: Path
) -> None:
    """Takes 6 s: whoever reads it prints 128 MiB to find out, fifteen times in all."""
    seen: list[tuple[str, int]] = []
    sink = RedisStreams(redis_server.url, stream=name)
    async with depot(database) as house:
        of_every_kind(house, seen)
        house.app.relay("depot.out", sink, publish_max_attempts=1)
        reader = house.app.reader(name="depot.reader")
        await house.app.migrate()
        [first] = await house.publish("a1")
        async with house.app.connect() as conn, conn.transaction():
            await house.app.enqueue(conn, Weigh(n=1))
        huge = stored(database)
        await house.execute("select outrider.enqueue_one('depot.weigh', %s::text::jsonb)", [NUMBERS])
        async with house.app.connect() as conn, conn.transaction():
            await house.app.enqueue(conn, Weigh(n=3))
        [other] = await house.publish("b3")
        await house.app.drain()
        assert sorted(set(seen)) == [(kind, n) for kind in ("batch", "job", "single", "weigh") for n in (1, 3)]
        assert await ids_in(sink, name) == [first, other]
        dead = await house.rows("select subscription, last_error_code, attempts from outrider.owed order by 1")
        assert [tuple(row.values()) for row in dead] == [
            (f"depot.{each}", "undecodable", 1) for each in ("batch", "job", "out", "single", "weigh")
        ]
        async with house.app.connect() as conn, conn.transaction():
            events = (await reader.take(conn)).events
        assert [each.id for each in events] == [first, huge, other]
        with pytest.raises(Undecodable, match="too long to be read"):
            events[1].decode(Sent)
        with pytest.raises(Undecodable, match="too long to be read"):
            events[1].payload  # noqa: B018
    await asyncio.to_thread(_commands_work, database, tmp_path, huge)


def _commands_work(dsn: str, folder: Path, huge: UUID) -> None:
    def said(*arguments: str) -> str:
        done = inprocess.run(folder, *arguments, "--dsn", dsn)
        assert done.returncode == 0, done
        return done.stdout

    assert "too long to be read" in said("event", "show", str(huge))
    assert json.loads(said("event", "show", str(huge), "--json"))["event"]["payload"] is None
    assert len(json.loads(said("dlq", "list", "--json"))["groups"]) == 5
    assert "too long to be read" in said("dlq", "show", str(huge), "--subscription", "depot.single")
    said("dlq", "replay", str(huge), "--subscription", "depot.single", "--yes")
    said("dlq", "discard", str(huge), "--subscription", "depot.batch", "--yes", "--reason", "too long")
    said("tenants", "export", "acme", "--out", str(folder / "acme.jsonl"))
    [exported] = [json.loads(line) for line in (folder / "acme.jsonl").read_text().splitlines() if '"kind"' in line]
    assert (exported["id"], exported["payload"], exported["unreadable"]) == (str(huge), None, True)
    said("event", "withdraw", str(huge), "--yes")
