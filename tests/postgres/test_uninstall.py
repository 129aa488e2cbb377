"""What is counted before Outrider is taken out of a database, what stands in the way, and who may be in between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest
from psycopg import AsyncConnection
from tests.worker.shop import SOON, Placed, Shop, opened

from outrider import Bury, Outrider
from outrider.errors import SchemaMismatch, UninstallRefused
from outrider.postgres import rollups
from outrider.postgres.admin.subscriptions import backlog
from outrider.postgres.schema import migrate, uninstall
from outrider.postgres.schema.uninstall import Owed, Survey

SCHEMA = "outrider"
WAITING = "select 1 from pg_locks where pid = %s and not granted"


@pytest.fixture
def database(whole_database: str) -> str:
    return whole_database


@pytest.fixture
async def conn(database: str) -> AsyncIterator[AsyncConnection[Any]]:
    async with await AsyncConnection.connect(database, autocommit=True) as conn:
        yield conn


@pytest.fixture
async def other(database: str) -> AsyncIterator[AsyncConnection[Any]]:
    """Another session, in a transaction of its own."""
    async with await AsyncConnection.connect(database) as other:
        yield other


async def look(conn: AsyncConnection[Any]) -> Survey:
    found = await uninstall.survey(conn, SCHEMA)
    assert found is not None
    return found


async def installed(conn: AsyncConnection[Any]) -> bool:
    return bool(await migrate.applied(conn, SCHEMA))


async def tables(conn: AsyncConnection[Any]) -> list[str]:
    cursor = await conn.execute("select nspname from pg_namespace where nspname !~ '^pg_' and nspname <> 'public'")
    return [name for (name,) in await cursor.fetchall() if name != "information_schema"]


async def publish(conn: AsyncConnection[Any], name: str) -> None:
    payload = f'{{"customer": "{name[0]}", "n": {name[1:]}}}'
    await conn.execute("select outrider.publish('dispatch.placed', %s::jsonb, key => %s)", [payload, name[0]])


async def until_waiting(conn: AsyncConnection[Any], watcher: AsyncConnection[Any]) -> None:
    async with asyncio.timeout(30):
        while not await (await watcher.execute(WAITING, [conn.info.backend_pid])).fetchone():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def explode() -> None:
    raise ValueError("not today")


def give_up() -> None:
    raise Bury("never")


# What there is


async def test_everything_of_ours_goes_and_nothing_else(database: str, conn: AsyncConnection[Any]) -> None:
    """RESTRICT throughout: an object of ours that is not known as such would keep the schema."""
    async with opened(database) as shop:
        await shop.publish("a1")
        await shop.app.drain()
    lost = await uninstall.uninstall(conn, SCHEMA)
    assert lost is not None
    assert (lost.events, lost.receipts, lost.subscriptions) == (1, 1, [Owed("shop.effect", 0, 0, 0)])
    assert await tables(conn) == []
    assert await shop.effects() == ["a1"]
    assert await uninstall.uninstall(conn, SCHEMA) is None
    assert await uninstall.survey(conn, SCHEMA) is None
    assert await migrate.migrate(conn, SCHEMA)


async def test_what_is_owed_is_counted_exactly(database: str, conn: AsyncConnection[Any]) -> None:
    def declare(shop: Shop) -> None:
        shop.app.handler(Placed, name="shop.effect", retry=SOON, partitions=4)(shop.effect)
        shop.app.reader(name="shop.all", start="beginning")

    async with opened(database, declare) as shop:
        shop.wrong |= {"a1": explode, "b1": give_up}
        await shop.publish("a1", "a2", "b1", "c1")
        await shop.publish("d1", target="elsewhere")
        await shop.app.drain()
        await shop.publish("e1", "f1", "g1")
    found = await look(conn)
    assert found.subscriptions == [Owed("shop.all", 7, 0, 0), Owed("shop.effect", 3, 2, 1)]
    assert (found.version, found.events, found.receipts) == (migrate.known()[-1].version, 8, 1)
    with pytest.raises(UninstallRefused) as refused:
        await uninstall.uninstall(conn, SCHEMA)
    for said in ("shop.all (7 unread", "shop.effect (3 unread, 2 waiting, 1 dead letters)", "--force"):
        assert said in str(refused.value)
    assert await look(conn) == found
    assert await uninstall.uninstall(conn, SCHEMA, force=True) == found
    assert not await installed(conn)


async def test_jobs_are_owed_also_those_of_types_that_nobody_has_registered(
    database: str, conn: AsyncConnection[Any], other: AsyncConnection[Any]
) -> None:
    async with opened(database) as shop:
        await shop.app.migrate()
        await conn.execute("select outrider.enqueue('mail.send', '{}'::jsonb)")
        await other.execute("select outrider.enqueue('mail.send', '{}'::jsonb)")
        found = await look(conn)
        assert found.subscriptions == [Owed("mail.send", 0, 1, 0), Owed("shop.effect", 0, 0, 0)]
        assert found.publishing == 1
        await other.rollback()
    with pytest.raises(UninstallRefused, match=r"mail\.send \(0 unread, 1 waiting"):
        await uninstall.uninstall(conn, SCHEMA)


async def test_late_events_are_counted_also_while_others_are_read_in_pages(
    database: str, conn: AsyncConnection[Any], other: AsyncConnection[Any]
) -> None:
    """One late transaction is being read, the other has finished since: as many are counted as are then read."""
    app = Outrider(context="shop", dsn=database)
    reader = app.reader(name="shop.all")

    async def take() -> int:
        async with app.connect() as reading, reading.transaction():
            return len((await reader.take(reading, limit=1)).events)

    async with app, await AsyncConnection.connect(database) as third:
        await app.migrate()
        for name in ("a1", "a2", "a3"):
            await publish(other, name)
        await publish(third, "b1")
        await publish(conn, "c1")
        assert (await look(conn)).publishing == 2
        assert await take() == 1
        assert (await look(conn)).subscriptions == [Owed("shop.all", 0, 0, 0)]
        await other.commit()
        assert await take() == 1
        await third.commit()
        assert (await look(conn)).subscriptions == [Owed("shop.all", 3, 0, 0)]
        assert (await backlog(conn, "shop.all", "outrider")).unread == 3
        assert [await take() for _ in range(5)].count(1) == 3
        assert (await look(conn)).subscriptions == [Owed("shop.all", 0, 0, 0)]


async def test_late_events_that_came_with_a_restore_are_counted(database: str, conn: AsyncConnection[Any]) -> None:
    """Their transaction ids are those of another cluster, and lie in the future of this one."""
    app = Outrider(context="shop", dsn=database)
    app.reader(name="shop.all")
    async with app:
        await app.migrate()
    await publish(conn, "a1")
    await conn.execute("update outrider.outbox set tx = '99999999'")
    await conn.execute(
        """update outrider.cursor set seq = 1, cluster = 1, horizon = '100000000',
                  inflight = '99999999:100000000:99999999'"""
    )
    assert (await look(conn)).subscriptions == [Owed("shop.all", 1, 0, 0)]
    assert (await backlog(conn, "shop.all", "outrider")).unread == 1


async def test_an_event_that_is_parked_before_the_log_is_read_up_to_it_counts_once(
    database: str, conn: AsyncConnection[Any]
) -> None:
    async with opened(database) as shop:
        await shop.publish("a1", "a2")
    await conn.execute(
        """insert into outrider.delivery
           (subscription, partition, seq, event_id, event_type, status, head, reached, run_at)
           select 'shop.effect', 0, seq, id, event_type, 'pending', true, false, now() from outrider.outbox where seq = 2"""
    )
    assert (await look(conn)).subscriptions == [Owed("shop.effect", 1, 1, 0)]


# What stands in the way

FOREIGN = {
    "create view report as select * from outrider.outbox": "view report",
    "create materialized view report as select count(*) from outrider.delivery": "materialized view report",
    "create table mine (name text references outrider.subscription)": "constraint mine_name_fkey on table mine",
    "create table mine (id uuid default outrider.uuid7())": "default value for column id of table mine",
    "create table mine (taken outrider.taken)": "column taken of table mine",
    "create trigger mine after insert on outrider.outbox for each row execute function announce()": (
        "trigger mine on table outrider.outbox"
    ),
    "create publication mine for table outrider.outbox": "publication of table outrider.outbox in publication mine",
    "create function mine(outrider.outbox) returns int language sql as 'select 1'": "function mine(outrider.outbox)",
}
ANNOUNCE = """create function announce() returns trigger language plpgsql as $$
              begin perform 1; return null; end $$"""


@pytest.mark.parametrize(("command", "what"), FOREIGN.items())
async def test_what_others_have_built_on_it_is_listed_and_stays(
    conn: AsyncConnection[Any], command: str, what: str
) -> None:
    await conn.execute(ANNOUNCE)
    await conn.execute(command.encode())
    assert (await look(conn)).dependents == [what]
    for force in (False, True):
        with pytest.raises(UninstallRefused, match="nothing here cascades") as refused:
            await uninstall.uninstall(conn, SCHEMA, force=force)
        assert what in str(refused.value)
    with pytest.raises(psycopg.errors.RaiseException, match="are not Outrider's"):
        await conn.execute(uninstall.script(SCHEMA).encode())
    assert (await look(conn)).dependents == [what]


async def test_what_belongs_to_a_table_of_ours_goes_with_it(conn: AsyncConnection[Any]) -> None:
    for command in (
        "create index mine on outrider.outbox (source)",
        "create statistics outrider.mine on source, target from outrider.outbox",
        "alter table outrider.worker add column mine int default 7 check (mine > 0)",
        "create policy mine on outrider.outbox using (true)",
    ):
        await conn.execute(command.encode())
    found = await look(conn)
    assert (found.dependents, found.strangers) == ([], [])
    await uninstall.uninstall(conn, SCHEMA)


async def test_what_is_not_ours_in_the_schema_stays_where_it_is(conn: AsyncConnection[Any]) -> None:
    await conn.execute("create table outrider.mine (n int); insert into outrider.mine values (1)")
    await conn.execute("create function outrider.yours() returns int language sql as 'select 1'")
    assert (await look(conn)).strangers == ["function outrider.yours()", "table outrider.mine"]
    for force in (False, True):
        with pytest.raises(
            UninstallRefused, match=r"function outrider.yours\(\); table outrider.mine: move them elsewhere"
        ):
            await uninstall.uninstall(conn, SCHEMA, force=force)
    assert await installed(conn)
    await uninstall.uninstall(conn, SCHEMA, whole=False)
    assert not await installed(conn)
    assert await (await conn.execute("select n, outrider.yours() from outrider.mine")).fetchall() == [(1, 1)]
    cursor = await conn.execute(
        """select relname from pg_class where relnamespace = 'outrider'::regnamespace
           union all select proname from pg_proc where pronamespace = 'outrider'::regnamespace
           union all select typname from pg_type where typnamespace = 'outrider'::regnamespace order by 1"""
    )
    assert [name for (name,) in await cursor.fetchall()] == ["_mine", "mine", "mine", "yours"]


async def test_a_view_in_the_schema_needs_its_tables_also_when_the_schema_stays(conn: AsyncConnection[Any]) -> None:
    await conn.execute("create view outrider.report as select * from outrider.outbox")
    with pytest.raises(UninstallRefused, match=r"view outrider\.report"):
        await uninstall.uninstall(conn, SCHEMA, whole=False)
    assert await installed(conn)


async def test_functions_that_name_the_schema_are_said(conn: AsyncConnection[Any]) -> None:
    """Postgres does not know what the text of a function needs."""
    await conn.execute(ANNOUNCE.replace("perform 1", """perform outrider.publish('a.b', '{}')"""))
    await conn.execute(ANNOUNCE.replace("announce", "quoted").replace("perform 1", 'perform "outrider".uuid7()'))
    await conn.execute(ANNOUNCE.replace("announce", "another").replace("perform 1", "perform my_outrider.uuid7()"))
    found = await look(conn)
    assert (found.mentions, found.dependents) == (["function announce()", "function quoted()"], [])
    await uninstall.uninstall(conn, SCHEMA)


async def test_live_workers_keep_their_tables(conn: AsyncConnection[Any]) -> None:
    row = """insert into outrider.worker (id, host, pid, version, generation, subscriptions, seen_at)
             values (gen_random_uuid(), %s, 7, 'x', 0, '{shop.effect}', now() - %s::interval)"""
    await conn.execute(row, ["gone", "31 seconds"])
    assert (await look(conn)).workers == []
    await conn.execute(row, ["here", "1 second"])
    for force in (False, True):
        with pytest.raises(UninstallRefused, match=r"here:7 \(shop.effect\): stop them"):
            await uninstall.uninstall(conn, SCHEMA, force=force)
    with pytest.raises(psycopg.errors.RaiseException, match="workers use the schema"):
        await conn.execute(uninstall.script(SCHEMA).encode())
    await conn.execute("delete from outrider.worker where host = 'here'")
    assert await uninstall.uninstall(conn, SCHEMA) is not None


async def test_another_version_is_left_to_the_code_that_knows_it(
    conn: AsyncConnection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    await conn.execute("insert into outrider.migration values (9999, 'future', false, now(), 'x')")
    with pytest.raises(SchemaMismatch, match="use the release that migrated it"):
        await uninstall.survey(conn, SCHEMA)
    await conn.execute("delete from outrider.migration where version = 9999")
    newer = (*migrate.known(), migrate.Migration(9999, "future", False, "-", ""))
    for module in (migrate, uninstall):
        monkeypatch.setattr(module, "known", lambda: newer)
    with pytest.raises(SchemaMismatch, match="run outrider migrate first"):
        await uninstall.uninstall(conn, SCHEMA)
    with pytest.raises(psycopg.errors.RaiseException, match="is not at version"):
        await conn.execute(uninstall.script(SCHEMA).encode())


# Who may be in between


@pytest.mark.parametrize("isolation", ["read committed", "repeatable read"])
async def test_an_event_that_is_committed_while_we_wait_for_the_locks_is_not_lost(
    database: str, conn: AsyncConnection[Any], other: AsyncConnection[Any], isolation: str
) -> None:
    """The publisher was first. Also where transactions see an old state of things by default."""
    async with opened(database) as shop, await AsyncConnection.connect(database, autocommit=True) as removing:
        await removing.execute(f"set default_transaction_isolation = '{isolation}'".encode())
        await publish(other, "a1")
        assert not any((await look(conn)).subscriptions)
        leaving = asyncio.create_task(uninstall.uninstall(removing, SCHEMA))
        await until_waiting(removing, conn)
        await other.commit()
        with pytest.raises(UninstallRefused, match=r"shop.effect \(1 unread, 0 waiting, 0 dead letters\)"):
            await leaving
        assert (await shop.app.drain()).handled == 1


@pytest.mark.parametrize("stranger", ["stays", "goes"])
async def test_a_publisher_that_comes_after_the_locks_succeeds_or_fails_loudly(
    database: str, conn: AsyncConnection[Any], other: AsyncConnection[Any], stranger: str
) -> None:
    """The schema is held up by a table that nobody can see yet. If it stays, nothing is dropped, and the event is there."""
    async with opened(database) as shop, await AsyncConnection.connect(database, autocommit=True) as late:
        await other.execute("create table outrider.mine (n int)")
        leaving = asyncio.create_task(uninstall.uninstall(conn, SCHEMA))
        await until_waiting(conn, late)
        publishing = asyncio.create_task(publish(late, "a1"))
        async with await AsyncConnection.connect(database, autocommit=True) as watcher:
            await until_waiting(late, watcher)
        if stranger == "stays":
            await other.commit()
            with pytest.raises(UninstallRefused, match=r"table outrider\.mine"):
                await leaving
            await publishing
            assert (await shop.app.drain()).handled == 1
        else:
            await other.rollback()
            assert await leaving is not None
            with pytest.raises(psycopg.Error, match="does not exist"):
                await publishing


@pytest.mark.parametrize("prepared", [False, True])
async def test_it_does_not_wait_for_ever_and_says_for_whom(
    conn: AsyncConnection[Any], other: AsyncConnection[Any], monkeypatch: pytest.MonkeyPatch, prepared: bool
) -> None:
    monkeypatch.setattr(uninstall, "PATIENCE", "50ms")
    await other.execute("set application_name = 'till'")
    await other.execute("set local outrider.notify = 'off'")
    await publish(other, "a1")
    who = f"process {other.info.backend_pid} .till, idle in transaction."
    if prepared:
        await other.execute("prepare transaction 'uninstalling'")
        who = "a prepared transaction"
    with pytest.raises(UninstallRefused, match=f"in use for 50ms by {who}: end those transactions"):
        await uninstall.uninstall(conn, SCHEMA)
    with pytest.raises(psycopg.errors.LockNotAvailable):
        await conn.execute(uninstall.script(SCHEMA).encode())
    await (conn.execute("rollback prepared 'uninstalling'") if prepared else other.rollback())
    assert await uninstall.uninstall(conn, SCHEMA) is not None


async def test_a_migrator_is_waited_for(conn: AsyncConnection[Any], other: AsyncConnection[Any]) -> None:
    await other.execute("select pg_advisory_xact_lock(hashtextextended('outrider.migrate.outrider', 0))")
    async with await AsyncConnection.connect(other.info.dsn, autocommit=True) as watcher:
        leaving = asyncio.create_task(uninstall.uninstall(conn, SCHEMA))
        await until_waiting(conn, watcher)
        await other.commit()
        assert await leaving is not None


# The script


async def test_the_script_does_the_same_in_the_callers_transaction(
    database: str, conn: AsyncConnection[Any], other: AsyncConnection[Any]
) -> None:
    text = uninstall.script(SCHEMA).encode()
    async with opened(database) as shop:
        await shop.publish("a1")
        with pytest.raises(
            psycopg.errors.RaiseException, match=r"shop\.effect: 1 unread, 0 waiting, 0 dead letters"
        ) as refused:
            await conn.execute(text)
        assert "outrider uninstall --force" in (refused.value.diag.message_hint or "")
        await shop.app.drain()
    await other.execute("set local lock_timeout = '7s'")
    await other.execute(text)
    assert await (await other.execute("select current_setting('lock_timeout')")).fetchone() == ("7s",)
    assert await tables(other) == []
    await other.rollback()
    assert await installed(conn)
    await conn.execute(text)
    assert await tables(conn) == []
    await conn.execute(text)


async def test_the_script_wants_to_see_what_is_committed(conn: AsyncConnection[Any]) -> None:
    await conn.execute("set default_transaction_isolation = 'repeatable read'")
    with pytest.raises(psycopg.errors.RaiseException, match="cannot be removed in a repeatable read transaction"):
        await conn.execute(uninstall.script(SCHEMA).encode())


async def test_the_script_leaves_rollups_to_whoever_takes_them_off(conn: AsyncConnection[Any]) -> None:
    await conn.execute("create table piece (document text)")
    app = Outrider(context="hub")
    app.rollup("hub.imports", table="piece", key=["document"], single="hub.born", rollup="hub.imported")
    [declared] = app.rollups
    await rollups.install(conn, declared.spec(), SCHEMA)
    await conn.execute("insert into piece values ('a')")
    with pytest.raises(
        psycopg.errors.RaiseException, match=r"rollups that are not uninstalled: hub\.imports: 1 rows wait"
    ):
        await conn.execute(uninstall.script(SCHEMA).encode())
    await rollups.uninstall(conn, "hub.imports", SCHEMA)
    with pytest.raises(psycopg.errors.RaiseException, match=r"hub\.imports: 1 rows wait"):
        await conn.execute(uninstall.script(SCHEMA).encode())
    await conn.execute("delete from outrider.rollup")
    with pytest.raises(psycopg.errors.RaiseException, match=r"hub\.imports: 1 rows wait"):
        await conn.execute(uninstall.script(SCHEMA).encode())
    await conn.execute("update outrider.rollup_pending set processed_at = now()")
    await conn.execute(uninstall.script(SCHEMA).encode())
    assert not await installed(conn)


async def test_what_is_staged_while_we_wait_for_the_locks_is_not_lost(
    conn: AsyncConnection[Any], other: AsyncConnection[Any], database: str
) -> None:
    await conn.execute(
        "insert into outrider.rollup_pending (rollup, carried, processed_at) values ('a.b', '{}', now())"
    )
    assert (await look(conn)).rollups == []
    await other.execute("insert into outrider.rollup_pending (rollup, carried) values ('a.b', '{}')")
    async with await AsyncConnection.connect(database, autocommit=True) as watcher:
        removing = asyncio.create_task(uninstall.uninstall(conn, SCHEMA))
        await until_waiting(conn, watcher)
        await other.commit()
    with pytest.raises(UninstallRefused, match=r"rows of rollups would be lost: a\.b \(1 rows wait\)"):
        await removing
    assert await installed(conn)


async def test_detached_segments_go_too(conn: AsyncConnection[Any]) -> None:
    """Those that upkeep has detached. One that somebody has detached by hand is a stranger."""
    await conn.execute("select setval('outrider.outbox_seq', 2000000); select outrider.note_segments()")
    await conn.execute(
        "update outrider.segment set closed_at = closed_at - interval '50 days' where name = 'outbox_s0'"
    )
    await conn.execute("select outrider.upkeep_log()")
    await conn.execute("alter table outrider.outbox detach partition outrider.outbox_s7")
    with pytest.raises(UninstallRefused, match=r"table outrider\.outbox_s7: move them"):
        await uninstall.uninstall(conn, SCHEMA)
    await conn.execute("drop table outrider.outbox_s7")
    assert (await look(conn)).strangers == []
    await uninstall.uninstall(conn, SCHEMA)
    assert await tables(conn) == []
