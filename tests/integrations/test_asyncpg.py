"""What is special to asyncpg's connections; the exercise covers the rest."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import asyncpg
import psycopg
import pytest
from asyncpg import Connection
from tests.integrations.harness import asyncpg_options, count

from outrider import Outrider
from outrider.errors import NoTransaction, SchemaMismatch
from outrider.testing.cases import Placed


@pytest.fixture
async def conn(database: str) -> AsyncIterator[Connection[asyncpg.Record]]:
    opened = await asyncpg.connect(**asyncpg_options(database))
    yield opened
    await opened.close()


async def test_outside_of_a_transaction_nothing_is_published(conn: Connection[asyncpg.Record], database: str) -> None:
    app = Outrider()
    with pytest.raises(NoTransaction, match=r"wrap both in `async with conn.transaction\(\):`"):
        await app.publish(conn, Placed(order_id="1"))
    assert count(database) == 0


async def test_codecs_of_the_caller_do_not_matter(conn: Connection[asyncpg.Record], database: str) -> None:
    """Many set one for jsonb, which would encode the text of the payload once more."""
    await conn.set_type_codec("jsonb", schema="pg_catalog", encoder=json.dumps, decoder=json.loads)
    for kind in ("timestamptz", "uuid"):
        await conn.set_type_codec(kind, schema="pg_catalog", encoder=lambda _: "no", decoder=str, format="text")
    app = Outrider()
    async with conn.transaction():
        one = await app.publish(conn, Placed(order_id="1"), occurred_at=datetime(2026, 1, 1, tzinfo=UTC))
        await app.publish_many(conn, [Placed(order_id="2"), Placed(order_id="3")])
    assert isinstance(one.seq, int)
    assert one.occurred_at == datetime(2026, 1, 1, tzinfo=UTC)
    with psycopg.connect(database) as other:
        found = other.execute("select payload->>'order_id', jsonb_typeof(payload) from outrider.outbox order by seq")
        assert found.fetchall() == [("1", "object"), ("2", "object"), ("3", "object")]


async def test_before_migrate(empty_database: str) -> None:
    conn = await asyncpg.connect(**asyncpg_options(empty_database))
    try:
        await conn.execute("begin")
        with pytest.raises(SchemaMismatch, match="run outrider migrate"):
            await Outrider().publish(conn, Placed(order_id="1"))
    finally:
        await conn.close()


async def test_a_user_without_rights(conn: Connection[asyncpg.Record]) -> None:
    app, transaction = Outrider(), conn.transaction()
    await transaction.start()
    await conn.execute("create role asyncpg_stranger")
    await conn.execute("set local role asyncpg_stranger")
    with pytest.raises(SchemaMismatch, match=r"may not use .* \(permission denied for schema outrider\)"):
        await app.publish(conn, Placed(order_id="1"))
    await transaction.rollback()


async def test_the_wrong_colour_and_a_pool(conn: Connection[asyncpg.Record], database: str) -> None:
    app = Outrider()
    with pytest.raises(TypeError, match=r"this is an asyncpg Connection: use publish\(\) with it"):
        app.publish_sync(conn, Placed(order_id="1"))
    async with asyncpg.create_pool(**asyncpg_options(database), min_size=0) as pool:
        with pytest.raises(TypeError, match=r"asyncpg.pool.Pool opens connections of its own: pass the connection"):
            await app.publish(pool, Placed(order_id="1"))
