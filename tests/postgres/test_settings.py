"""Settings of a role or of a database reach every session. Ours pin what they depend on, and publishing depends on none."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.sql import SQL, Identifier
from tests.brokers import RedisServer
from tests.relay.depot import ids_in
from tests.streams.conftest import name, redis_server

from outrider import Event, HandlerContext, Job, JobContext, Outrider, SyncHandlerContext
from outrider.doctor.doctor import examine_all
from outrider.doctor.finding import Severity
from outrider.postgres import connection
from outrider.postgres.admin.status import status
from outrider.signals import Failed, JobFailed, JobsCompleted, ListenerUp, Relayed, Signal, Troubled
from outrider.streams.redis import RedisStreams
from outrider.testing import expect

__all__ = ["name", "redis_server"]

HOSTILE = {
    "DateStyle": "SQL, DMY",
    "IntervalStyle": "sql_standard",
    "TimeZone": "<ODD>+13:37",
    "client_encoding": "SQL_ASCII",
    "standard_conforming_strings": "off",
    "extra_float_digits": "-15",
    "bytea_output": "escape",
    "array_nulls": "off",
    "search_path": "nowhere",
    "quote_all_identifiers": "on",
    "row_security": "off",
    "exit_on_error": "on",
    "transform_null_equals": "on",
    "client_min_messages": "error",
    "default_transaction_isolation": "serializable",
    "default_transaction_read_only": "on",
    "default_transaction_deferrable": "on",
    "statement_timeout": "9s",
    "lock_timeout": "9s",
    "idle_in_transaction_session_timeout": "9s",
    "idle_session_timeout": "9s",
    "transaction_timeout": "9s",
}
SHOWN = "select now(), interval '36 hours', (select json_object_agg(name, setting) from pg_settings)"


class Placed(Event, type="pinned.placed", key="n"):
    n: int
    at: datetime = datetime(2026, 2, 1, 12, tzinfo=UTC)
    price: float = 0.1
    note: str = "Zoë \\ 'quoted'"


class Send(Job, type="pinned.send"):
    n: int
    after: timedelta = timedelta(days=1, seconds=2.5)


def spoil(database: str, settings: dict[str, str], of: str) -> None:
    """Set them, of the database or of the role in it."""
    known = conninfo_to_dict(database)
    with psycopg.connect(database, autocommit=True) as conn:
        for each, value in settings.items():
            if each == "transaction_timeout" and conn.info.server_version < 170000:
                continue
            whose = SQL("database {db}" if of == "database" else "role {user} in database {db}").format(
                db=Identifier(str(known["dbname"])), user=Identifier(str(known["user"]))
            )
            conn.execute(SQL("alter {} set {} = {}").format(whose, Identifier(each), value))


def declare(app: Outrider, stream: RedisStreams, seen: list[Any]) -> None:
    @app.handler(Placed, name="pinned.count")
    async def count(event: Placed, ctx: HandlerContext) -> None:
        seen.append(("event", event, await (await ctx.tx.execute(SHOWN)).fetchone()))
        await app.enqueue(ctx.tx, Send(n=event.n))

    @app.handler(Placed, name="pinned.blocking")
    def blocking(event: Placed, ctx: SyncHandlerContext) -> None:
        seen.append(("blocking", event, ctx.tx.execute(SHOWN).fetchone()))

    @app.job(Send)
    async def send(job: Send, ctx: JobContext) -> int:
        async with ctx.connect() as conn:
            seen.append(("job", job, await (await conn.execute(SHOWN)).fetchone()))
        return job.n

    app.relay("pinned.out", stream)


@pytest.mark.parametrize("of", ["role", "database"])
async def test_our_sessions_do_not_care(database: str, redis_server: RedisServer, name: str, of: str) -> None:
    """Publish → handler → job → relay → status → doctor, with every hostile setting at once."""
    spoil(database, HOSTILE, of)
    stream, seen, wrong = RedisStreams(redis_server.url, stream=name), list[Any](), list[Signal]()
    done, sent = asyncio.Event(), asyncio.Event()
    app = Outrider(context="pinned", dsn=database)
    declare(app, stream, seen)

    def hear(signal: Signal) -> None:
        if isinstance(signal, Failed | JobFailed | Troubled):
            wrong.append(signal)
        if isinstance(signal, JobsCompleted):
            done.set()
        if isinstance(signal, Relayed):
            sent.set()

    app.signals.listen(hear)
    async with app:
        await app.migrate()
        async with expect(app, ListenerUp), app.worker():
            async with app.connect() as conn, conn.transaction():
                published = await app.publish(conn, Placed(n=1))
            async with asyncio.timeout(30):
                await asyncio.gather(done.wait(), sent.wait())
            async with app.connect() as conn:
                await conn.set_autocommit(True)
                standing = await status(conn, "outrider")
                findings = await examine_all(app, conn, "outrider")
                await conn.set_autocommit(False)
        assert await ids_in(stream, name) == [published.id]
    assert wrong == []
    assert standing.live == 1
    assert [each for each in findings if each.severity >= Severity.critical or "could not" in each.found] == []
    assert {kind for kind, _, _ in seen} == {"event", "blocking", "job"}
    assert {row[1] for _, _, row in seen} == {timedelta(hours=36)}
    assert {each for _, each, _ in seen} == {Placed(n=1), Send(n=1)}
    for _, _, (_, _, settings) in seen:
        found = {name: settings[name] for name in connection.PINS if name in settings}
        assert found == {name: connection.PINS[name] for name in found} | {"DateStyle": "ISO, DMY"}
        assert settings["default_transaction_read_only"] == "off"
        assert (settings["TimeZone"], settings["search_path"]) == (HOSTILE["TimeZone"], HOSTILE["search_path"])


async def test_migrating_and_draining_do_not_care(empty_database: str) -> None:
    spoil(empty_database, HOSTILE, "role")
    app, seen = Outrider(context="pinned", dsn=empty_database), list[Any]()

    @app.handler(Placed, name="pinned.see")
    def see(event: Placed) -> None:
        seen.append(event)

    async with app:
        await app.migrate()
        async with app.connect() as conn, conn.transaction():
            await app.publish(conn, Placed(n=1))
        await app.drain(raise_on_failure=True)
    assert seen == [Placed(n=1)]


def test_publishing_does_not_care(database: str) -> None:
    """On the user's own connection, with its settings: through the library and in SQL."""
    app, refused = Outrider(context="pinned", dsn=database), dict[str, Exception]()
    for setting, value in HOSTILE.items():
        with psycopg.connect(database, autocommit=True) as conn:
            if setting == "transaction_timeout" and conn.info.server_version < 170000:
                continue
            conn.execute(SQL("set {} = {}").format(Identifier(setting), value))
            try:
                conn.execute("begin read write")
                app.publish_sync(conn, Placed(n=1))
                app.publish_many_sync(conn, [Placed(n=2), Placed(n=3)])
                app.enqueue_sync(conn, Send(n=1))
                app.enqueue_many_sync(conn, [Send(n=2), Send(n=3)])
                app.enqueue_sync(conn, Send(n=4), unique_key=setting)
                conn.execute("select outrider.publish('pinned.placed', '{}', key => 'x', occurred_at => now())")
                conn.execute("select outrider.enqueue('pinned.send', '{}')")
                conn.execute("commit")
            except Exception as error:
                refused[setting] = error
    assert refused == {}


@pytest.mark.parametrize(("of", "shown"), [("role", "off"), ("session", "on")])
async def test_a_server_that_is_read_only_stays_so(database: str, of: str, shown: str) -> None:
    """Its operator fences it, or its disk is full. A role or database that is read-only was not meant for us."""
    dsn = database
    if of == "role":
        spoil(database, {"default_transaction_read_only": "on", "TimeZone": "Asia/Kathmandu"}, of)
    else:
        dsn = make_conninfo(database, options="-c default_transaction_read_only=on")
    async with await connection.connect(dsn) as conn:
        assert await (await conn.execute("show default_transaction_read_only")).fetchone() == (shown,)
        zone = await (await conn.execute("show TimeZone")).fetchone()
    with psycopg.connect(dsn) as own:
        assert own.execute("show TimeZone").fetchone() == zone, "that of the role"
