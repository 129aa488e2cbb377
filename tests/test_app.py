"""The public surface, and the app as a whole: opening, declaring, migrating, publishing, reading."""

from __future__ import annotations

import asyncio
import importlib
import logging
from pathlib import Path

import pytest
from psycopg import AsyncConnection, Connection
from psycopg.conninfo import make_conninfo

import outrider
from outrider import Outrider
from outrider.errors import (
    ConfigError,
    CursorError,
    DatabaseUnavailable,
    DeclarationError,
    SchemaMismatch,
    Undecodable,
)
from outrider.signals import Signal, Taken
from outrider.testing.cases import Anything, Placed, PlacedElsewhere


@pytest.mark.parametrize(
    "package", ["outrider", "outrider.contract", "outrider.rollup", "outrider.streams", "outrider.testing"]
)
def test_the_public_surface_is_what_is_exported(package: str) -> None:
    public = importlib.import_module(package)
    assert len(public.__all__) == len(set(public.__all__))
    modules = {path.stem for path in Path(str(public.__file__)).parent.iterdir()}
    importable = {name for name in dir(public) if not name.startswith("_") and name not in modules}
    assert importable == {name for name in public.__all__ if name not in modules}
    assert all(hasattr(public, name) for name in public.__all__)
    assert not hasattr(public, "nothing")


@pytest.mark.parametrize("name", outrider.__all__)
def test_what_is_exported_is_documented_and_at_home_here(name: str) -> None:
    exported = getattr(outrider, name)
    assert exported.__doc__
    assert not exported.__doc__.startswith(f"{name}(")
    assert exported.__module__.startswith("outrider.")


@pytest.mark.parametrize(
    "method", [name for name in vars(Outrider) if not name.startswith("_") and name != "publish_many_sync"]
)
def test_every_method_of_the_app_says_what_it_does(method: str) -> None:
    assert getattr(Outrider, method).__doc__


async def test_an_app_that_is_not_open() -> None:
    app = Outrider(dsn="host=nowhere")
    with pytest.raises(ConfigError, match=r"the app is not open: use it inside `async with app:`"):
        await app.migrate()
    with pytest.raises(ConfigError, match="the app is not open"):
        async with app.connect():
            pass


async def test_an_app_that_was_closed(database: str) -> None:
    app = Outrider(dsn=database)
    async with app:
        await app.migrate()
    with pytest.raises(ConfigError, match="the app is not open"):
        await app.migrate()
    async with app:
        assert await app.migrate() == []


async def test_an_app_without_a_database(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OUTRIDER_DSN", "OUTRIDER_EMBEDDED"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match=r"pass dsn= or set OUTRIDER_DSN; .*embedded=True or OUTRIDER_EMBEDDED=1"):
        async with Outrider():
            pass


async def test_a_database_that_cannot_be_reached_is_told_at_once(database: str) -> None:
    app = Outrider(dsn=make_conninfo(database, dbname="nowhere"))
    with pytest.raises(DatabaseUnavailable, match="has no database 'nowhere'"):
        async with app:
            pass
    with pytest.raises(ConfigError, match="the app is not open"):
        await app.migrate()


async def test_the_pool_holds_no_more_than_it_may(database: str) -> None:
    async with Outrider(dsn=database, pool_size=1) as app:
        async with app.connect() as conn:
            await conn.execute("select 1")
            query = """select count(*) from pg_stat_activity where datname = current_database()
                       and pid <> pg_backend_pid() and backend_type = 'client backend'"""
            async with asyncio.timeout(30):  # that of the first contact is closed, and gone a moment later
                while await (await conn.execute(query)).fetchone() != (0,):
                    await conn.rollback()  # a transaction sees the sessions of its first look
        async with app.connect() as again:
            assert again is conn


async def test_a_name_is_declared_once() -> None:
    app = Outrider()
    app.reader(Placed, name="shop.reader")
    with pytest.raises(DeclarationError, match=r"the subscription 'shop.reader' is declared twice: give one of them"):
        app.reader(Anything, name="shop.reader")
    app.reader(Anything, name="shop.other")


async def test_migrate_reports_what_became_of_the_subscriptions(empty_database: str) -> None:
    app = Outrider(dsn=empty_database)
    app.reader(Placed, name="shop.one")
    app.reader(name="shop.two", partitions=4)
    async with app:
        first = await app.migrate()
        second = await app.migrate()
    assert [(r.name, r.outcome, r.partitions) for r in first] == [
        ("shop.one", "created", 1),
        ("shop.two", "created", 4),
    ]
    assert [r.outcome for r in second] == ["unchanged", "unchanged"]


@pytest.mark.parametrize("schema", ["outrider", "other_log", "select", "public"])
async def test_any_schema_works_end_to_end(empty_database: str, schema: str) -> None:
    app = Outrider(context="shop", dsn=empty_database, schema=schema)
    reader = app.reader(Placed, name="shop.reader", start="beginning")
    async with app:
        await app.migrate()
        async with app.connect() as conn, conn.transaction():
            written = await app.publish(conn, Placed(order_id="1"))
            await app.publish_many(conn, [Anything(value=1), Placed(order_id="2")])
            await conn.execute(f"""select "{schema}".publish('exercise.placed', '{{"order_id": "3"}}')""".encode())
        async with app.connect() as conn, conn.transaction():
            batch = await reader.take(conn)
        async with app.connect() as conn:
            found = await conn.execute(
                "select distinct relnamespace::regnamespace::text from pg_class where relname = 'outbox'"
            )
            assert await found.fetchall() == [(f'"{schema}"' if schema == "select" else schema,)]
    assert batch.events[0].id == written.id
    assert [envelope.decode(Placed).order_id for envelope in batch.events] == ["1", "2", "3"]
    assert (batch.outcome, batch.more) == ("done", True)


@pytest.mark.verify
async def test_two_schemas_in_one_database_do_not_see_each_other(empty_database: str) -> None:
    apps = [Outrider(dsn=empty_database, schema=schema) for schema in ("left", "right")]
    readers = [app.reader(name="a.reader", start="beginning") for app in apps]
    async with apps[0], apps[1]:
        for app in apps:
            await app.migrate()
        async with apps[0].connect() as conn:
            await apps[0].publish(conn, Placed(order_id="1"))
        counts = []
        for app, reader in zip(apps, readers, strict=True):
            async with app.connect() as conn, conn.transaction():
                counts.append(len((await reader.take(conn)).events))
    assert counts == [1, 0]


async def test_take_outside_a_transaction_is_refused(database: str) -> None:
    app = Outrider(dsn=database)
    reader = app.reader(name="shop.reader", start="beginning")
    async with app:
        await app.migrate()
        async with await AsyncConnection.connect(database, autocommit=True) as conn:
            async with conn.transaction():
                await app.publish(conn, Placed(order_id="1"))
            with pytest.raises(CursorError, match=r"take needs a transaction.*`with conn.transaction\(\):`"):
                await reader.take(conn)
            async with conn.transaction():
                assert len((await reader.take(conn)).events) == 1


async def test_take_advances_with_the_commit_only(database: str) -> None:
    app = Outrider(dsn=database)
    reader = app.reader(PlacedElsewhere, Placed, name="shop.reader", start="beginning")
    heard: list[Signal] = []
    app.signals.listen(lambda signal: heard.append(signal) if isinstance(signal, Taken) else None)
    async with app:
        await app.migrate()
        async with await AsyncConnection.connect(database) as conn:
            written = await app.publish_many(conn, [Placed(order_id=str(n)) for n in range(3)])
            await conn.commit()
            taken = []
            for end in (conn.rollback, conn.commit, conn.commit, conn.commit):
                batch = await reader.take(conn, limit=2)
                taken.append(([envelope.seq for envelope in batch.events], batch.outcome))
                await end()
    one, two, three = (envelope.seq for envelope in written)
    assert taken == [([one, two], "more"), ([one, two], "more"), ([three], "done"), ([], "idle")]
    assert heard[-1] == Taken("shop.reader", None, 0, "idle")


async def test_a_reader_that_was_never_registered(database: str) -> None:
    app = Outrider(dsn=database)
    reader = app.reader(name="shop.reader")
    async with app, app.connect() as conn, conn.transaction():
        with pytest.raises(CursorError, match=r'no cursor for subscription "shop.reader".*app.migrate\(\)'):
            await reader.take(conn)


async def test_a_reader_before_migrate(empty_database: str) -> None:
    app = Outrider(dsn=empty_database)
    reader = app.reader(name="shop.reader")
    async with app, app.connect() as conn, conn.transaction():
        with pytest.raises(SchemaMismatch, match="run outrider migrate"):
            await reader.take(conn)


async def test_take_writes_a_line_at_debug(database: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="outrider")
    app = Outrider(dsn=database)
    reader = app.reader(name="shop.reader")
    async with app:
        await app.migrate()
        async with app.connect() as conn, conn.transaction():
            await reader.take(conn)
    messages = [record.getMessage() for record in caplog.records if record.name == "outrider"]
    assert messages == ["event=taken subscription=shop.reader events=0 outcome=idle"]


async def publish_and_fail(app: Outrider) -> None:
    async with app.connect() as conn:
        await app.publish(conn, Placed(order_id="1"))
        raise ZeroDivisionError


async def test_a_connection_of_the_pool_comes_back_clean(database: str) -> None:
    async with Outrider(dsn=database, pool_size=1) as app:
        with pytest.raises(ZeroDivisionError):
            await publish_and_fail(app)
        async with app.connect() as conn:
            assert await (await conn.execute("select count(*) from outrider.outbox")).fetchone() == (0,)
        await app.migrate()
        async with app.connect() as conn:
            assert not conn.autocommit


async def test_opening_an_open_app_is_refused_and_harmless(database: str) -> None:
    app = Outrider(dsn=database)
    async with app:
        with pytest.raises(ConfigError, match="open already"):
            await app.__aenter__()
        async with app.connect() as conn:
            await conn.execute("select 1")


async def test_opening_on_a_newer_breaking_schema_is_refused(database: str) -> None:
    async with Outrider(dsn=database) as app, app.connect() as conn:
        await conn.execute(
            "insert into outrider.migration (version, name, breaking, applied_by) values (99, 'later', true, 'outrider 9.9')"
        )
    with pytest.raises(SchemaMismatch, match=r"Upgrade outrider .*outrider 9\.9"):
        async with Outrider(dsn=database):
            pass


def test_contexts_is_several_names_not_one() -> None:
    with pytest.raises(ConfigError, match=r"write \['shop'\]"):
        Outrider(contexts="shop")


async def test_a_reader_reads_all_partitions_whatever_the_code_declares(database: str) -> None:
    """Others may have doubled them: the number in the database counts."""
    async with Outrider(context="shop", dsn=database) as wide:
        wide.reader(name="shop.reader", partitions=4)
        await wide.migrate()
    app = Outrider(context="shop", dsn=database)
    reader = app.reader(name="shop.reader")
    async with app:
        await app.migrate()
        async with app.connect() as conn:
            await app.publish_many(conn, [Placed(order_id=str(n)) for n in range(100)])
        seen: list[str | None] = []
        partitions = set()
        while True:
            async with app.connect() as conn, conn.transaction():
                batch = await reader.take(conn, limit=10)
            seen += [envelope.key for envelope in batch.events]
            partitions.add(batch.partition)
            if not batch.more:
                break
    assert sorted(seen, key=lambda key: int(key or 0)) == [str(n) for n in range(100)]
    assert partitions == {0, 1, 2, 3, None}
    assert batch.outcome == "idle"


async def test_taking_from_a_partition_that_is_not_there(database: str) -> None:
    app = Outrider(context="shop", dsn=database)
    reader = app.reader(name="shop.reader", partitions=2)
    async with app:
        await app.migrate()
        async with app.connect() as conn:
            with pytest.raises(CursorError, match="Its partitions are 0 to 1"):
                await reader.take(conn, partition=5)


def test_taking_on_a_blocking_connection(database: str) -> None:
    app = Outrider(context="shop", dsn=database)
    reader = app.reader(Placed, name="shop.reader")
    with Connection.connect(database, autocommit=True) as conn:
        conn.execute("select outrider.register('shop.reader', 'reader', 'shop', null)")
        with conn.transaction():
            app.publish_sync(conn, Placed(order_id="1"))
        with conn.transaction():
            batch = reader.take_sync(conn)
        assert [envelope.decode(Placed).order_id for envelope in batch.events] == ["1"]
        with pytest.raises(CursorError, match="take needs a transaction"):
            reader.take_sync(conn)


async def test_taking_on_the_wrong_kind_of_connection(database: str) -> None:
    reader = Outrider(dsn=database).reader(name="shop.reader")
    with Connection.connect(database) as conn, pytest.raises(TypeError, match=r"use take_sync\(\) with it"):
        await reader.take(conn)
    async with await AsyncConnection.connect(database) as aconn:
        with pytest.raises(TypeError, match=r"use take\(\) with it"):
            reader.take_sync(aconn)


async def test_an_event_that_does_not_fit_is_named(database: str) -> None:
    app = Outrider(context="shop", dsn=database)
    reader = app.reader(name="shop.reader")
    async with app:
        await app.migrate()
        async with app.connect() as conn:
            await conn.execute("select outrider.publish('exercise.placed', '{}', event_version => 3)")
        async with app.connect() as conn:
            [envelope] = (await reader.take(conn)).events
    with pytest.raises(
        Undecodable, match=r"exercise\.placed version 3 \(number 1\) is not a Placed: order_id: Field required"
    ):
        envelope.decode(Placed)
    with pytest.raises(Undecodable, match="is not a Anything"):
        envelope.decode(Anything)


async def test_an_exhausted_pool_says_so(database: str) -> None:
    async with Outrider(dsn=database, pool_size=1) as app:
        app._opened()._pool.timeout = 0.01
        async with app.connect():
            with pytest.raises(DatabaseUnavailable, match="all 1 of the app's connections are in use"):
                async with app.connect():
                    pass


def test_a_reader_takes_classes() -> None:
    with pytest.raises(DeclarationError, match="pass the class, not its type"):
        Outrider().reader("orders.placed", name="shop.reader")  # type: ignore[arg-type]
