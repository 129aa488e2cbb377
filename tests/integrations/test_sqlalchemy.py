"""What is special to SQLAlchemy: flushing, its errors, what is no session, and the poke after the commit."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import psycopg
import pytest
from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.exc import ProgrammingError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, scoped_session, sessionmaker
from tests.integrations.harness import count, url

from outrider import Outrider, PublishRefused
from outrider.errors import NoTransaction, SchemaMismatch
from outrider.postgres.notifier import INTERVAL, Notifier
from outrider.testing.cases import Anything, Placed

pytestmark = pytest.mark.verify

Heard = Callable[[], Awaitable[str]]


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    state: Mapped[str] = mapped_column(default="new")


class Nowhere(Base):
    __tablename__ = "nowhere"

    id: Mapped[int] = mapped_column(primary_key=True)


@pytest.fixture
def engine(database: str) -> Iterator[Engine]:
    made = create_engine(url("psycopg", database))
    Base.metadata.create_all(made, tables=[Base.metadata.tables["orders"]])
    yield made
    made.dispose()


@pytest.fixture(params=["psycopg", "asyncpg"])
async def async_engine(request: pytest.FixtureRequest, database: str) -> AsyncIterator[AsyncEngine]:
    made = create_async_engine(url(request.param, database))
    yield made
    await made.dispose()


@pytest.fixture
def statements(engine: Engine) -> list[str]:
    seen: list[str] = []
    event.listen(engine, "before_cursor_execute", lambda *args: seen.append(args[2]))
    return seen


def test_what_is_pending_is_written_before_the_event(engine: Engine, statements: list[str]) -> None:
    """Its row locks put the publishers of one key in order."""
    with Session(engine) as session:
        session.add(Order(id=1))
        Outrider().publish_sync(session, Placed(order_id="1"))
        session.commit()
    assert ["orders" in each for each in statements] == [True, False]


def test_a_session_without_autoflush_is_not_flushed(engine: Engine) -> None:
    with Session(engine, autoflush=False) as session:
        session.add(Order(id=1))
        Outrider().publish_sync(session, Placed(order_id="1"))
        assert len(session.new) == 1


def test_a_refusal_flushes_nothing(engine: Engine, statements: list[str]) -> None:
    with Session(engine) as session:
        session.add(Order(id=1))
        with pytest.raises(PublishRefused):
            Outrider().publish_sync(session, Anything(value=float("nan")))
        assert statements == []


def test_the_callers_own_missing_table_is_not_ours(engine: Engine) -> None:
    with Session(engine) as session:
        session.add(Nowhere(id=1))
        with pytest.raises(ProgrammingError, match='relation "nowhere" does not exist'):
            Outrider().publish_sync(session, Placed(order_id="1"))


def test_before_migrate(empty_database: str) -> None:
    engine = create_engine(url("psycopg", empty_database))
    with Session(engine) as session, pytest.raises(SchemaMismatch, match="run outrider migrate"):
        Outrider().publish_sync(session, Placed(order_id="1"))
    engine.dispose()


def test_scoped_sessions_and_streaming_connections(engine: Engine, database: str) -> None:
    app, scoped = Outrider(), scoped_session(sessionmaker(engine))
    app.publish_sync(scoped, Placed(order_id="1"))
    scoped.commit()
    scoped.remove()
    with engine.connect().execution_options(stream_results=True) as conn:
        app.publish_sync(conn, Placed(order_id="2"))
        conn.commit()
    assert count(database) == 2


async def test_the_wrong_colour(engine: Engine, async_engine: AsyncEngine) -> None:
    app = Outrider()
    with Session(engine) as session, pytest.raises(TypeError, match=r"SQLAlchemy Session: use publish_sync\(\)"):
        await app.publish(session, Placed(order_id="1"))
    async with AsyncSession(async_engine) as session:
        with pytest.raises(TypeError, match=r"SQLAlchemy AsyncSession: use publish\(\)"):
            app.publish_sync(session, Placed(order_id="1"))


async def test_what_opens_connections_is_no_connection(engine: Engine, async_engine: AsyncEngine) -> None:
    for source in (engine, sessionmaker(engine)):
        with pytest.raises(TypeError, match="pass the connection or session on which your transaction is open"):
            Outrider().publish_sync(source, Placed(order_id="1"))
    for other in (async_engine, async_sessionmaker(async_engine)):
        with pytest.raises(TypeError, match="opens connections of its own"):
            await Outrider().publish(other, Placed(order_id="1"))


def test_an_engine_in_autocommit(engine: Engine, database: str) -> None:
    autocommit = engine.execution_options(isolation_level="AUTOCOMMIT")
    with Session(autocommit) as session, pytest.raises(NoTransaction, match="without isolation_level="):
        Outrider().publish_sync(session, Placed(order_id="1"))
    assert count(database) == 0


async def test_an_async_engine_in_autocommit(async_engine: AsyncEngine, database: str) -> None:
    autocommit = async_engine.execution_options(isolation_level="AUTOCOMMIT")
    async with AsyncSession(autocommit) as session:
        with pytest.raises(NoTransaction, match="without isolation_level="):
            await Outrider().publish(session, Placed(order_id="1"))
    assert count(database) == 0


def test_another_database(tmp_path: Any) -> None:
    engine = create_engine(f"sqlite:///{tmp_path}/db")
    with Session(engine) as session, pytest.raises(TypeError, match="is to sqlite, but the log is in Postgres"):
        Outrider().publish_sync(session, Placed(order_id="1"))
    engine.dispose()


# The poke after the commit


@pytest.fixture
def heard(database: str) -> Iterator[Heard]:
    """Listens from the start; a call waits for the next poke."""
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute("listen outbox_default")

        def next_one() -> str:
            for poke in conn.notifies(timeout=60, stop_after=1):
                return f"{poke.channel} {poke.payload}"
            raise TimeoutError("no poke within 10 s")

        yield lambda: asyncio.to_thread(next_one)


async def test_a_session_pokes_after_its_commit(async_engine: AsyncEngine, database: str, heard: Heard) -> None:
    app = Outrider(dsn=database, notify="after_commit")
    async with app, AsyncSession(async_engine) as session:
        await app.publish(session, Placed(order_id="1"))
        async with session.begin_nested():
            await app.publish(session, Placed(order_id="2"))
        assert app._notifier.sent == 0, "the poke came before the commit"
        await session.commit()
        assert await heard() == "outbox_default exercise.placed"
    assert 1 <= app._notifier.sent <= 2, "two publishes, of which the thread may have seen one first"


async def test_a_session_of_two_phases(engine: Engine, database: str, heard: Heard) -> None:
    """Postgres prepares no transaction that has sent a NOTIFY; after the commit the session pokes."""
    app = Outrider(dsn=database, notify="after_commit")
    async with app:
        with Session(engine, twophase=True) as session:
            app.publish_sync(session, Placed(order_id="1"))
            session.commit()
        assert await heard() == "outbox_default exercise.placed"


async def test_no_poke_after_a_rollback(async_engine: AsyncEngine, database: str) -> None:
    app = Outrider(dsn=database, notify="after_commit")
    async with app:
        async with AsyncSession(async_engine) as session:
            await app.publish(session, Placed(order_id="1"))
            await session.rollback()
            await session.execute(text("select 1"))
            await session.commit()
        async with AsyncSession(async_engine) as session:
            await app.publish(session, Placed(order_id="2"))
    assert app._notifier.sent == 0


async def test_a_savepoint_that_is_rolled_back_takes_no_poke_with_it(
    engine: Engine, database: str, heard: Heard
) -> None:
    app = Outrider(dsn=database, notify="after_commit")
    async with app:
        with Session(engine) as session:
            app.publish_sync(session, Placed(order_id="1"))
            session.begin_nested().rollback()
            session.commit()
        await heard()


async def test_a_session_on_anothers_connection_pokes_nobody(engine: Engine, database: str) -> None:
    """Its commit is none."""
    app = Outrider(dsn=database, notify="after_commit")
    async with app:
        with engine.connect() as conn, conn.begin() as outer:
            with Session(conn, join_transaction_mode="rollback_only") as session:
                app.publish_sync(session, Placed(order_id="1"))
                session.commit()
            outer.rollback()
    assert app._notifier.sent == 0


def test_no_thread_for_pokes_is_no_reason_to_fail(
    engine: Engine, database: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Their transaction has committed: an error would make callers publish again."""
    app = Outrider(dsn=database, notify="after_commit")

    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch, Session(engine) as session:
        patch.setattr(threading.Thread, "start", refused)
        app.publish_sync(session, Placed(order_id="1"))
        session.commit()
    assert "no thread to send notifications" in caplog.text
    with Session(engine) as session:
        app.publish_sync(session, Placed(order_id="2"))
        session.commit()
    app._notifier.close()
    assert app._notifier.sent == 1, "the notifier did not recover"


def test_the_poker_ends_although_pokes_go_on(database: str) -> None:
    notifier, stop = Notifier(lambda: database, lambda: "outrider"), threading.Event()

    def poke() -> None:
        while not stop.wait(0.002):
            notifier.notify([("outbox_default", "a.b")])

    poking = threading.Thread(target=poke)
    notifier.notify([("outbox_default", "a.b")])
    ending = notifier._thread
    poking.start()
    notifier.close()
    assert ending is not None
    assert not ending.is_alive()
    stop.set()
    poking.join()
    notifier.close()


def test_closing_in_a_forked_child(database: str) -> None:
    """It has none of its parent's threads, and may have been born while one of them held the lock."""
    notifier = Notifier(lambda: database, lambda: "outrider")
    notifier.notify([("outbox_default", "a.b")])
    with notifier._changed:
        child = os.fork()
        if child == 0:
            notifier.close()
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    notifier.close()


async def test_pokes_are_collected(engine: Engine, database: str, heard: Heard) -> None:
    """However many commits, there is at most one statement per interval; all are heard in the end."""
    app = Outrider(dsn=database, notify="after_commit")
    loop = asyncio.get_running_loop()
    begun = loop.time()
    async with app:
        for number in range(300):
            with Session(engine) as session:
                app.publish_sync(session, Placed(order_id=str(number)))
                session.commit()
        await asyncio.to_thread(app._notifier.close)
        elapsed = loop.time() - begun
        await heard()
    assert 1 <= app._notifier.sent <= elapsed / INTERVAL + 1


async def test_a_poke_that_cannot_be_sent_is_dropped(engine: Engine, database: str) -> None:
    app = Outrider(dsn="host=127.0.0.1 port=1 dbname=none", notify="after_commit")
    with Session(engine) as session:
        app.publish_sync(session, Placed(order_id="1"))
        session.commit()
    await asyncio.to_thread(app._notifier.close)
    assert app._notifier.sent == 0
    assert count(database) == 1


async def test_the_pokers_session_is_replaced(engine: Engine, database: str, heard: Heard) -> None:
    app = Outrider(dsn=database, notify="after_commit")
    for _ in range(2):
        with Session(engine) as session:
            app.publish_sync(session, Placed(order_id="1"))
            session.commit()
        await heard()
        with psycopg.connect(database, autocommit=True) as conn:
            conn.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() "
                "and query like '%notify(channel%' and pid <> pg_backend_pid()"
            )
    await asyncio.to_thread(app._notifier.close)
    assert app._notifier.sent == 2
