"""Rollups inside a worker: ticked when they are due, unless pg_cron does it; and the handler that stages events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb
from tests.rollup.archive import NAME, NOTE, Archive, DocumentImported, declared, figures

from outrider import Event, HandlerContext, Outrider
from outrider.errors import RollupRefused
from outrider.postgres import connection
from outrider.rollup import rollup_loop
from outrider.rollup.rollup_loop import LOOK, RollupLoop
from outrider.signals import RolledUp, Signal, Signals, Skipped
from outrider.worker.loop import BUSY_PAUSE
from outrider.worker.worker import Worker

DUE = "update outrider.rollup set ticked_at = null"


class Shelved(Event, type="archive.shelved", key="document"):
    document: str | None
    author: str = "ada"
    secret: str = "a secret"


def app_of(dsn: str, **changes: Any) -> Outrider:
    app = Outrider(context="archive", dsn=dsn, poll=0.2)
    declared(app, **{"every": 10, **changes})
    return app


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker looks without a pause whether something is due."""
    monkeypatch.setattr(rollup_loop, "LOOK", 0.1)


@asynccontextmanager
async def working(app: Outrider) -> AsyncIterator[Worker]:
    async with app:
        await app.migrate()
        async with app.worker() as worker:
            await asyncio.wait_for(worker.ready.wait(), 60)
            yield worker


def heard(app: Outrider | Signals) -> list[Signal]:
    signals: list[Signal] = []
    (app.signals if isinstance(app, Outrider) else app).listen(
        lambda each: signals.append(each) if isinstance(each, RolledUp | Skipped) else None
    )
    return signals


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 (of another session)
            await asyncio.sleep(0.01)


# Ticking


@asynccontextmanager
async def part(dsn: str, app: Outrider) -> AsyncIterator[tuple[Callable[[], Any], list[Signal]]]:
    """The worker's part by itself, one look at a time."""
    signals = Signals()
    rolling = RollupLoop(app.rollups, dsn=dsn, settings=app.settings, signals=signals)
    async with await connection.connect(dsn, autocommit=True) as conn:
        yield lambda: rolling.tick_due(conn), heard(signals)


async def test_it_ticks_what_is_due(bare: Archive, database: str) -> None:
    app = app_of(database, every=60)
    async with part(database, app) as (look, said):
        assert await look() == LOOK
        assert await look() == LOOK
        assert said == [Skipped(NAME, "not installed")], "said once"
        bare.install(app.rollups[0].spec())
        bare.add("a", "a", "b")
        bare.age()
        await look()
        assert said[1:] == [RolledUp(NAME, 1, 1, 0, 0, 0, False, None)]
        bare.add("c")
        bare.age()
        assert 0 < await look() <= LOOK, "it has ticked a moment ago"
        assert bare.staged() == ["c"]
        bare.ask("update outrider.rollup set ticked_at = ticked_at - interval '61 seconds'")
        await look()
        assert (bare.staged(), len(said)) == ([], 3)
        bare.ask(DUE)
        await look()
        assert len(said) == 3, "idle is not worth a word"
        assert bare.column("select result from outrider.rollup_log order by id") == ["processed", "processed", "idle"]
        # Idle, but somebody has entered nonsense.
        bare.ask("update outrider.setting set entered = 'x' where name ~ 'debounce'")
        bare.ask(DUE)
        await look()
        [*_, last] = said
        assert isinstance(last, RolledUp)
        assert (last.groups, last.failed) == (0, False)
        assert "no whole number" in (last.message or "")


async def test_it_leaves_alone_what_it_should(bare: Archive, database: str) -> None:
    app = app_of(database, notify=NOTE)
    bare.install(app.rollups[0].spec())
    bare.add("a", "a")
    bare.age()
    async with part(database, app) as (look, said):
        with psycopg.connect(database) as other:
            other.execute("select outrider.rollup_tick(%s)", [NAME])
            assert await look() == BUSY_PAUSE, "another tick is under way"
            assert said == []
            other.rollback()
        # pg_cron was there when it was installed, and is gone: nobody else can tick.
        bare.ask("update outrider.rollup set scheduler = 'cron', ticked_at = null")
        bare.ask("alter table note rename to gone")
        await look()
        [failed] = said
        assert isinstance(failed, RolledUp)
        assert (failed.failed, failed.pending) == (True, 2)
        assert "42P01" in (failed.message or "")
        bare.ask("alter table gone rename to note")
        bare.ask(DUE)
        # Declared otherwise than installed: said, and it ticks as it is installed.
        bare.install(declared(notify=NOTE, threshold=3, every=10))
        await look()
        assert said[1:] == [Skipped(NAME, "changed"), RolledUp(NAME, 0, 2, 0, 0, 0, False, None)]
        bare.ask(DUE)
        bare.install(app.rollups[0].spec())
        await look()
        bare.install(declared(notify=NOTE, threshold=3, every=10))
        await look()
        assert said[3:] == [Skipped(NAME, "changed")], "said again when it is so again"
        bare.add("b")
        bare.age()
        bare.ask("select outrider.rollup_uninstall(%s)", NAME)
        bare.ask(DUE)
        await look()
        assert said[4:] == [Skipped(NAME, "not installed")]
        assert bare.staged() == ["b"], "whoever wants it flushes it"


async def test_a_whole_worker(bare: Archive, database: str, often: None) -> None:
    """Two of them: each row in one event. Installed and taken off while they run."""
    first, second = app_of(database, debounce=60), app_of(database, debounce=60)
    said = heard(first)
    async with working(first), working(second):
        await until(lambda: Skipped(NAME, "not installed") in said)
        bare.install(first.rollups[0].spec())
        for turn in range(3):
            bare.add("a", "a", f"b{turn}")
            bare.age()
            bare.ask(DUE)
            await until(lambda: bare.staged() == [])
        bare.exact()
        # In a thread: it waits for a tick, which goes on in this event loop.
        await asyncio.to_thread(bare.ask, "select outrider.rollup_uninstall(%s)", NAME)
        bare.add("late")
        bare.install(first.rollups[0].spec())
        bare.add("x", "x")
        bare.age()
        bare.ask(DUE)
        await until(lambda: bare.staged() == [])
    assert sorted(bare.emitted()) == sorted(
        [("document_imported", "a", 2)] * 3 + [("piece_added", f"b{turn}", None) for turn in range(3)]
        + [("document_imported", "x", 2)]
    )  # fmt: skip


# Events


async def test_events_are_staged_and_rolled_up(bare: Archive, database: str, often: None) -> None:
    """From the publish to a handler of the rollup event, by one worker."""
    app = app_of(
        database, table=None, events=[Shelved], key=["document"], carry=["author"], single="archive.one",
        when="new.payload ->> 'document' is distinct from 'ignored'", scheduler="worker",
    )  # fmt: skip
    told: list[Any] = []

    @app.handler(DocumentImported, name="archive.told")
    async def tell(event: DocumentImported, ctx: HandlerContext) -> None:
        told.append(ctx.envelope)

    async with app:
        await app.migrate()
        with pytest.raises(RollupRefused, match=f"not installed: {NAME}: run outrider rollup install {NAME}"):
            async with app.worker():
                pass
    bare.install(app.rollups[0].spec())
    async with working(app):
        async with app.connect() as conn, conn.transaction():
            for document in ("a", "b", "a", None, "ignored"):
                await app.publish(conn, Shelved(document=document), workspace_id="acme")
            await app.publish(conn, Shelved(document="a"))
        await until(lambda: len(bare.staged()) == 5)
        assert bare.staged() == ["a", "b", "a", None, "a"]
        assert bare.column("select workspace_id from outrider.rollup_pending order by id") == ["acme"] * 4 + [None]
        bare.age()
        bare.ask(DUE)
        await until(lambda: told)
    [envelope] = told
    assert (envelope.key, envelope.workspace_id, envelope.payload["piece_count"]) == ("a", "acme", 2)
    assert envelope.payload["author"] == "ada"
    assert (
        bare.one(
            "select count(*) from outrider.outbox where event_type <> 'archive.shelved' and payload::text ~ 'secret'"
        )
        == 0
    )
    assert bare.column("select event_type from outrider.outbox where event_type ~ 'one$|imported$' order by seq") == [
        "archive.document_imported", "archive.one", "archive.one", "archive.one"
    ]  # fmt: skip
    # Taken off while rows wait: a worker that would stage is not started.
    async with app:
        async with app.connect() as conn, conn.transaction():
            await app.publish(conn, Shelved(document="c"))
        await app.drain()
        assert bare.staged() == ["c"]
        bare.ask("select outrider.rollup_uninstall(%s)", NAME)
        with pytest.raises(RollupRefused, match="not installed"):
            async with app.worker():
                pass
        # One that runs parks what it cannot stage, and stages it when it can.
        async with app.connect() as conn, conn.transaction():
            await app.publish(conn, Shelved(document="d"))
        await app.drain()
        assert bare.staged() == ["c"]
        bare.install(app.rollups[0].spec())
        bare.ask("update outrider.delivery set run_at = now()")
        await app.drain()
        assert bare.staged() == ["c", "d"]
    assert figures(bare.tick(flush=True)) == ("processed", 0, 2, 0, 2, 0)


async def test_a_batch_that_is_rolled_back_stages_nothing(bare: Archive, database: str) -> None:
    """Staging is committed with the receipts of the events: once each, whatever fails in between."""
    app = app_of(database, table=None, events=[Shelved], key=["document"], carry=[], single="archive.one")
    bare.install(app.rollups[0].spec())
    bare.ask("""
        create function fail() returns trigger language plpgsql as $$ begin
            if nextval('tries') <= 2 then raise 'not now' using errcode = '40001'; end if; return null; end $$;
        create sequence tries;
        create constraint trigger fail after insert on outrider.rollup_pending deferrable initially deferred
            for each row execute function fail();
    """)
    async with app:
        await app.migrate()
        async with app.connect() as conn, conn.transaction():
            for n in range(5):
                await app.publish(conn, Shelved(document=f"d{n}"))
        async with app.worker():
            await until(lambda: len(bare.staged()) >= 5)
        bare.ask("drop trigger fail on outrider.rollup_pending")
        await app.drain()
    assert bare.one("select last_value from tries") > 2
    assert sorted(each or "" for each in bare.staged()) == [f"d{n}" for n in range(5)]


async def test_the_declaration_as_json(database: str, bare: Archive) -> None:
    """What a worker compares is what was installed, whatever the order of its fields."""
    app = app_of(database)
    spec = dict(reversed(app.rollups[0].spec().items()))
    bare.ask("select outrider.rollup_install(%s)", Jsonb(spec))
    async with part(database, app) as (look, said):
        await look()
    assert said == []
