"""Jobs are enqueued on every kind of connection that publishes, with every option."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import asyncpg
import psycopg
import pytest
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from tests.integrations.harness import asyncpg_options, url

from outrider import Job, Outrider
from outrider.errors import NoTransaction

pytestmark = pytest.mark.verify

THEN = datetime(2040, 1, 1, tzinfo=UTC)


class Mail(Job, type="enqueue.mail", key="to"):
    to: str


def stored(database: str) -> list[Any]:
    query = """select payload ->> 'to', run_at, priority, queue, unique_key, job_key, workspace_id
               from outrider.job order by id"""
    with psycopg.connect(database) as conn:
        return conn.execute(query).fetchall()


EXPECTED = [
    ("a", THEN, 3, "bulk", None, "a", "north"),
    ("b", THEN, 0, "default", "one", "b", None),
    ("c", THEN, 0, "default", None, "c", None),
    ("d", THEN, 0, "default", None, "d", None),
]


async def enqueue_all(conn: object) -> None:
    app = Outrider(context="enqueue")
    await app.enqueue(conn, Mail(to="a"), run_at=THEN, priority=3, queue="bulk", workspace_id="north")
    for outcome in ("created", "debounced"):
        made = await app.enqueue(conn, Mail(to="b"), run_at=THEN, unique_key="one", on_conflict="debounce")
        assert made.outcome == outcome
    assert len(await app.enqueue_many(conn, [Mail(to="c"), Mail(to="d")], run_at=THEN)) == 2


def enqueue_all_sync(conn: object) -> None:
    app = Outrider(context="enqueue")
    app.enqueue_sync(conn, Mail(to="a"), run_at=THEN, priority=3, queue="bulk", workspace_id="north")
    for outcome in ("created", "debounced"):
        made = app.enqueue_sync(conn, Mail(to="b"), run_at=THEN, unique_key="one", on_conflict="debounce")
        assert made.outcome == outcome
    assert len(app.enqueue_many_sync(conn, [Mail(to="c"), Mail(to="d")], run_at=THEN)) == 2


async def test_psycopg(database: str) -> None:
    async with await psycopg.AsyncConnection.connect(database) as conn:
        await enqueue_all(conn)
    assert stored(database) == EXPECTED


def test_psycopg_blocking(database: str) -> None:
    with psycopg.connect(database) as conn:
        enqueue_all_sync(conn)
    assert stored(database) == EXPECTED


async def test_asyncpg_with_codecs_of_its_own(database: str) -> None:
    conn = await asyncpg.connect(**asyncpg_options(database))
    try:
        await conn.set_type_codec("jsonb", schema="pg_catalog", encoder=json.dumps, decoder=json.loads)
        for kind in ("timestamptz", "uuid"):
            await conn.set_type_codec(kind, schema="pg_catalog", encoder=lambda _: "no", decoder=str, format="text")
        with pytest.raises(NoTransaction):
            await enqueue_all(conn)
        async with conn.transaction():
            await enqueue_all(conn)
    finally:
        await conn.close()
    assert stored(database) == EXPECTED


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
async def test_sqlalchemy(database: str, driver: str) -> None:
    engine = create_async_engine(url(driver, database))
    async with AsyncSession(engine) as session, session.begin():
        await enqueue_all(session)
    await engine.dispose()
    assert stored(database) == EXPECTED


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
def test_sqlalchemy_blocking(database: str, driver: str) -> None:
    engine = create_engine(url(driver, database))
    with Session(engine) as session, session.begin():
        enqueue_all_sync(session)
    engine.dispose()
    assert stored(database) == EXPECTED


async def test_the_wrong_colour_is_told_which_is_right(database: str) -> None:
    with psycopg.connect(database) as conn, pytest.raises(TypeError, match=r"use enqueue_sync\(\) with it"):
        await Outrider().enqueue(conn, Mail(to="a"))
