"""Publishing over psycopg: the exported exercise on both kinds of connection, what is special to them, and SQL."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from enum import Enum
from pathlib import Path
from typing import Any, Unpack, cast
from uuid import UUID, uuid4

import psycopg
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, TraceState
from psycopg import AsyncConnection, Connection
from psycopg.rows import dict_row

from outrider import Envelope, Event, Outrider, PublishRefused, Reader
from outrider.errors import NoTransaction, SchemaMismatch
from outrider.postgres.schema import migrate
from outrider.publish import PublishOptions
from outrider.signals import Published, Signal
from outrider.streams.untrusted_json import Members
from outrider.testing import exercise
from outrider.testing.cases import Anything, Placed
from outrider.testing.exercise import CONTEXT, PublishHarness

pytestmark = pytest.mark.also_on(15, 16)


class AsyncHarness:
    def __init__(self, app: Outrider, reader: Reader, conn: AsyncConnection[Any]) -> None:
        self.app, self.reader, self.conn = app, reader, conn

    async def publish(self, event: Event, **options: Unpack[PublishOptions]) -> Envelope:
        return await self.app.publish(self.conn, event, **options)

    async def publish_many(self, events: Sequence[Event | Envelope]) -> list[Envelope]:
        return await self.app.publish_many(self.conn, events)

    async def begin(self) -> None:
        await self.conn.execute("begin")

    async def commit(self) -> None:
        await self.conn.execute("commit")

    async def rollback(self) -> None:
        await self.conn.execute("rollback")

    async def savepoint(self) -> None:
        await self.conn.execute("savepoint here")

    async def rollback_to_savepoint(self) -> None:
        await self.conn.execute("rollback to savepoint here")

    async def answer(self) -> object:
        row = await (await self.conn.execute("select 42")).fetchone()
        return row and row[0]


class SyncHarness:
    def __init__(self, app: Outrider, reader: Reader, conn: Connection[Any]) -> None:
        self.app, self.reader, self.conn = app, reader, conn

    async def publish(self, event: Event, **options: Unpack[PublishOptions]) -> Envelope:
        return self.app.publish_sync(self.conn, event, **options)

    async def publish_many(self, events: Sequence[Event | Envelope]) -> list[Envelope]:
        return self.app.publish_many_sync(self.conn, events)

    async def begin(self) -> None:
        self.conn.execute("begin")

    async def commit(self) -> None:
        self.conn.execute("commit")

    async def rollback(self) -> None:
        self.conn.execute("rollback")

    async def savepoint(self) -> None:
        self.conn.execute("savepoint here")

    async def rollback_to_savepoint(self) -> None:
        self.conn.execute("rollback to savepoint here")

    async def answer(self) -> object:
        row = self.conn.execute("select 42").fetchone()
        return row and row[0]


@asynccontextmanager
async def open_harness(kind: str, dsn: str) -> AsyncIterator[PublishHarness]:
    app = Outrider(context=CONTEXT, dsn=dsn)
    reader = app.reader(name="exercise.everything", start="beginning")
    async with app:
        await app.migrate()
        if kind == "async":
            async with await AsyncConnection.connect(dsn, autocommit=True) as conn:
                yield AsyncHarness(app, reader, conn)
        else:
            with psycopg.connect(dsn, autocommit=True) as blocking:
                yield SyncHarness(app, reader, blocking)


class Paint(Enum):
    RED = "red"


class Painted(Event, type="tests.painted", key="paint"):
    paint: Paint | None


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_exercise(kind: str, database: str) -> None:
    async with open_harness(kind, database) as harness:
        await exercise.run(harness)


async def test_an_error_in_the_exercise_says_where(database: str) -> None:
    async with open_harness("async", database) as harness:
        harness.answer = harness.begin  # type: ignore[method-assign]
        with pytest.raises(AssertionError, match="no longer usable") as wrong:
            await exercise.run(harness)
    assert "in the check writes_none_of_many_when_one_is_refused of the publish exercise" in wrong.value.__notes__


@pytest.fixture
def app() -> Outrider:
    return Outrider(context=CONTEXT)


@asynccontextmanager
async def connected(dsn: str, **options: Any) -> AsyncIterator[AsyncConnection[dict[str, Any]]]:
    async with await AsyncConnection.connect(dsn, row_factory=dict_row, **options) as conn:
        yield conn


async def rows(conn: AsyncConnection[dict[str, Any]]) -> list[dict[str, Any]]:
    return await (await conn.execute("select * from outrider.outbox order by seq")).fetchall()


# The connection


async def test_the_wrong_kind_of_connection_names_the_right_verb(app: Outrider, database: str) -> None:
    event = Placed(order_id="1")
    async with connected(database) as conn:
        with pytest.raises(TypeError, match=r"this is a psycopg AsyncConnection: use publish\(\) with it"):
            app.publish_sync(conn, event)
    with psycopg.connect(database) as blocking:
        with pytest.raises(TypeError, match=r"this is a psycopg Connection: use publish_sync\(\) with it"):
            await app.publish(blocking, event)
        with pytest.raises(TypeError, match=r"this is a psycopg Connection: use publish_sync\(\) with it"):
            await app.publish_many(blocking, [event, event])


@pytest.mark.parametrize("thing", [None, "postgresql://localhost/shop", object()], ids=["None", "dsn", "object"])
async def test_something_that_is_no_connection(app: Outrider, thing: object) -> None:
    said = f"builtins.{type(thing).__qualname__} is nothing to publish on: pass a connection of psycopg"
    with pytest.raises(TypeError, match=said):
        await app.publish(thing, Placed(order_id="1"))
    with pytest.raises(TypeError, match=said):
        app.publish_sync(thing, Placed(order_id="1"))


async def test_on_an_autocommit_connection_there_must_be_a_transaction(app: Outrider, database: str) -> None:
    async with connected(database, autocommit=True) as conn:
        with pytest.raises(NoTransaction, match=r"wrap both in `async with conn.transaction\(\):`"):
            await app.publish(conn, Placed(order_id="1"))
        assert await rows(conn) == []
        async with conn.transaction():
            written = await app.publish(conn, Placed(order_id="1"))
        assert [row["id"] for row in await rows(conn)] == [written.id]
    said = pytest.raises(NoTransaction, match=r"wrap both in `with conn.transaction\(\):`")
    with psycopg.connect(database, autocommit=True) as blocking, said:
        app.publish_sync(blocking, Placed(order_id="1"))


async def test_publish_opens_no_connection_and_needs_no_open_app(app: Outrider, database: str) -> None:
    async with connected(database) as conn:
        await app.publish(conn, Placed(order_id="1"))
        counted = await conn.execute("select count(*) as n from pg_stat_activity where datname = current_database()")
        assert await counted.fetchone() == {"n": 1}


async def test_before_migrate(app: Outrider, empty_database: str) -> None:
    async with connected(empty_database) as conn:
        for many in ([Placed(order_id="1")], [Placed(order_id="1")] * 2):
            with pytest.raises(SchemaMismatch, match='"outrider" is not installed here: run outrider migrate'):
                await app.publish_many(conn, many)
            await conn.rollback()
    with psycopg.connect(empty_database) as blocking, pytest.raises(SchemaMismatch, match="run outrider migrate"):
        app.publish_sync(blocking, Placed(order_id="1"))


async def test_publish_many_of_nothing_sends_nothing(app: Outrider, empty_database: str) -> None:
    async with connected(empty_database) as conn:
        assert await app.publish_many(conn, []) == []
        assert await app.publish_many(conn, iter(())) == []
        assert conn.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
    with psycopg.connect(empty_database) as blocking:
        assert app.publish_many_sync(blocking, []) == []


@pytest.mark.parametrize("many", [1, 50])
async def test_one_publish_is_one_statement_and_one_round_trip(
    app: Outrider, database: str, many: int, tmp_path: Path
) -> None:
    """libpq's own trace of the wire: F is what we sent, and each Sync waits for the server."""
    wire = tmp_path / "wire"
    async with connected(database) as conn:
        await conn.execute("select 1")
        with wire.open("wb") as file:
            conn.pgconn.trace(file.fileno())
            await app.publish_many(conn, [Placed(order_id="1")] * many)
            conn.pgconn.untrace()
        assert len(await rows(conn)) == many
    sent = re.findall(r"^[^\t\n]*\tF\t\d+\t(\w+)", wire.read_text(), re.MULTILINE)
    assert sent.count("Sync") == 1
    assert sent.count("Execute") == 1
    assert set(sent) == {"Parse", "Bind", "Describe", "Execute", "Sync"}


async def test_a_row_factory_and_prepared_statements_change_nothing(app: Outrider, database: str) -> None:
    async with connected(database, prepare_threshold=0) as conn:
        first = [await app.publish(conn, Placed(order_id=str(n))) for n in range(3)]
        second = await app.publish_many(conn, [Placed(order_id="3"), Placed(order_id="4")])
        await conn.commit()
        stored = [(row["id"], row["seq"]) for row in await rows(conn)]
    assert stored == [(e.id, e.seq) for e in first + second]


async def test_a_connection_with_raw_cursors(app: Outrider, database: str) -> None:
    async with connected(database, cursor_factory=psycopg.AsyncRawCursor) as conn:
        await app.publish(conn, Placed(order_id="1"))
        assert len(await rows(conn)) == 1


async def test_in_a_pipeline(app: Outrider, database: str) -> None:
    async with connected(database) as conn, conn.pipeline():
        written = await app.publish(conn, Placed(order_id="1"))
        assert [row["id"] for row in await rows(conn)] == [written.id]


# What is stored


async def test_an_option_that_does_not_exist(app: Outrider, database: str) -> None:
    mistyped = cast(PublishOptions, {"idempotency": "once"})
    with pytest.raises(TypeError, match=r"publish has no option idempotency; it has aggregate_kind, .*idempotency_key"):
        app.envelope(Placed(order_id="1"), **mistyped)


async def test_the_key_of_an_enum_is_its_value_and_none_is_no_key(app: Outrider) -> None:
    assert app.envelope(Painted(paint=Paint.RED)).key == "red"
    assert app.envelope(Painted(paint=None)).key is None
    assert app.envelope(Painted(paint=Paint.RED), key="given").key == "given"


@pytest.mark.parametrize(
    ("generation", "channel_class", "channel"),
    [
        (0, None, "outbox_default"),
        (0, "bulk", "outbox_gen_0_bulk"),
        (7, None, "outbox_gen_7"),
        (2**63 - 1, "b", f"outbox_gen_{2**63 - 1}_b"),
    ],
)
async def test_generation_and_channel(database: str, generation: int, channel_class: str | None, channel: str) -> None:
    app = Outrider(context=CONTEXT, generation=generation)
    async with connected(database) as conn:
        await app.publish(conn, Placed(order_id="1"), channel_class=channel_class)
        await conn.execute("select set_config('outrider.generation', %s, false)", [str(generation)])
        await conn.execute(
            "select outrider.publish('exercise.placed', '{}', channel_class => %s::text)", [channel_class]
        )
        assert [(row["generation"], row["channel"]) for row in await rows(conn)] == [(generation, channel)] * 2


async def test_a_target_outside_the_named_contexts() -> None:
    app = Outrider(context="shop", contexts=["shop", "billing"])
    assert app.envelope(Placed(order_id="1"), target="billing").target == "billing"
    with pytest.raises(PublishRefused, match=r"target: 'biling' is not one of .* \(billing, shop\)") as refused:
        app.envelope(Placed(order_id="1"), target="biling")
    assert (refused.value.event_type, refused.value.field) == ("exercise.placed", "target")


async def test_the_payload_limit_is_a_setting(database: str) -> None:
    app = Outrider(context=CONTEXT, payload_limit=1024)
    overhead = len('{"value":""}')
    async with connected(database) as conn:
        await app.publish(conn, Anything(value="x" * (1024 - overhead)))
        with pytest.raises(PublishRefused, match=r"has 1,025 bytes, the limit is 1,024; .*OUTRIDER_PAYLOAD_LIMIT"):
            await app.publish(conn, Anything(value="x" * (1025 - overhead)))
        with pytest.raises(PublishRefused, match="has 1,025 bytes"):
            await app.publish(conn, Anything(value="x" * (1023 - overhead) + "é"))


async def test_a_time_that_an_inbox_accepts_can_be_published_and_read_in_every_zone(
    app: Outrider, database: str
) -> None:
    """Every session can read what is in the log: a time that one of them cannot read would stop its cursor."""
    written = ("0001-01-02T00:00:00Z", "9999-12-30T23:59:59.999999Z")
    early, late = (Members(json.dumps({"at": each}).encode(), "at").instant("at") for each in written)
    assert early is not None
    assert late is not None
    for zone in ("Etc/GMT+12", "Etc/GMT-14", "UTC"):
        async with connected(database, options=f"-c timezone={zone}") as conn:
            for at in (early, late):
                assert (await app.publish(conn, Placed(order_id="1"), occurred_at=at)).occurred_at == at
            assert {row["occurred_at"] for row in await rows(conn)} == {early, late}


# The trace


@pytest.mark.parametrize("kind", ["one", "many", "sync"])
async def test_the_trace_of_the_current_span_is_stored(app: Outrider, database: str, kind: str) -> None:
    tracer = TracerProvider().get_tracer("tests")
    with tracer.start_as_current_span("request") as span:
        context = span.get_span_context()
        event = Placed(order_id="1")
        async with connected(database) as conn:
            if kind == "one":
                await app.publish(conn, event)
            elif kind == "many":
                await app.publish_many(conn, [event, event])
            else:
                with psycopg.connect(database) as blocking:
                    app.publish_sync(blocking, event)
            stored = [row["trace_context"] for row in await rows(conn)]
    wanted = {"traceparent": f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"}
    assert stored == [wanted] * (2 if kind == "many" else 1)


async def test_a_trace_state_travels_too(app: Outrider) -> None:
    context = SpanContext(1, 2, is_remote=True, trace_flags=TraceFlags(0), trace_state=TraceState([("vendor", "x")]))
    with trace.use_span(NonRecordingSpan(context)):
        envelope = app.envelope(Placed(order_id="1"))
    assert envelope.trace_context == {"traceparent": f"00-{1:032x}-{2:016x}-00", "tracestate": "vendor=x"}


async def test_without_a_span_there_is_no_trace(app: Outrider, database: str) -> None:
    async with connected(database) as conn:
        assert (await app.publish(conn, Placed(order_id="1"))).trace_context is None
        assert [row["trace_context"] for row in await rows(conn)] == [None]


# The log line and the listeners


async def test_one_structured_line_per_event(app: Outrider, database: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="outrider")
    async with connected(database) as conn:
        one = await app.publish(conn, Placed(order_id="1"), target="billing", workspace_id="acme")
        two, three = await app.publish_many(conn, [Placed(order_id="2"), Placed(order_id="3")])
    records = [record for record in caplog.records if vars(record).get("event") == "published"]
    names = ("event_id", "event_type", "source", "target", "workspace_id")
    assert [tuple(getattr(record, name) for name in names) for record in records] == [
        (str(one.id), "exercise.placed", "exercise", "billing", "acme"),
        (str(two.id), "exercise.placed", "exercise", None, None),
        (str(three.id), "exercise.placed", "exercise", None, None),
    ]
    assert records[0].getMessage() == (
        f"event=published event_id={one.id} event_type=exercise.placed source=exercise target=billing workspace_id=acme"
    )
    assert {record.levelno for record in records} == {logging.DEBUG}


async def test_a_value_cannot_forge_a_line(app: Outrider, database: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="outrider")
    async with connected(database) as conn:
        await app.publish(conn, Placed(order_id="1"), workspace_id='%s "a"\nevent=published target=x\r=')
    [record] = [record for record in caplog.records if vars(record).get("event") != "summary"]
    assert "\n" not in record.getMessage()
    assert record.getMessage().startswith("event=published event_id=")


async def test_above_info_nothing_is_written(app: Outrider, database: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, logger="outrider")
    async with connected(database) as conn:
        await app.publish(conn, Placed(order_id="1"))
        await app.publish_many(conn, [Placed(order_id="2"), Placed(order_id="3")])
    assert caplog.records == []


async def test_a_refused_event_is_not_announced(app: Outrider, database: str) -> None:
    heard: list[Signal] = []
    app.signals.listen(heard.append)
    async with connected(database) as conn:
        with pytest.raises(PublishRefused):
            await app.publish(conn, Anything(value=float("nan")))
        assert heard == []
        written = await app.publish(conn, Placed(order_id="1"))
    assert heard == [Published(written)]


async def test_a_listener_that_raises_is_dropped_and_publishing_goes_on(
    app: Outrider, database: str, caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[Signal] = []

    def broken(signal: Signal) -> None:
        calls.append(signal)
        raise RuntimeError("out of paper")

    app.signals.listen(broken)
    async with connected(database) as conn:
        first = await app.publish(conn, Placed(order_id="1"))
        assert "broken was removed: RuntimeError: out of paper" in caplog.text
        second = await app.publish(conn, Placed(order_id="2"))
        await conn.commit()
        assert [row["id"] for row in await rows(conn)] == [first.id, second.id]
    assert calls == [Published(first)]


# From SQL


async def sql_publish(conn: AsyncConnection[dict[str, Any]], arguments: str) -> UUID:
    answer = await (await conn.execute(f"select outrider.publish({arguments}) as id".encode())).fetchone()
    assert answer is not None
    assert isinstance(answer["id"], UUID)
    return answer["id"]


async def test_sql_with_every_argument(database: str) -> None:
    async with connected(database) as conn:
        event_id = await sql_publish(
            conn,
            """event_type => 'orders.placed', payload => '{"a": [1, "é🦊"]}', key => 'k', idempotency_key => 'once',
               event_version => 3, source => 'billing', target => 'shop', content_class => 'public',
               channel_class => 'bulk', workspace_id => 'acme', aggregate_kind => 'Order', entity_version => 9,
               occurred_at => '2024-07-01 09:00+05:45', trace_context => '{"traceparent": "00-1-2-01"}'""",
        )
        [row] = await rows(conn)
    del row["tx"], row["seq"]
    assert row == {
        "id": event_id,
        "event_type": "orders.placed",
        "event_version": 3,
        "occurred_at": datetime(2024, 7, 1, 3, 15, tzinfo=UTC),
        "source": "billing",
        "target": "shop",
        "content_class": "public",
        "channel": "outbox_gen_0_bulk",
        "generation": 0,
        "workspace_id": "acme",
        "aggregate_kind": "Order",
        "aggregate_id": "k",
        "entity_version": 9,
        "payload": {"a": [1, "é🦊"]},
        "idempotency_key": "once",
        "trace_context": {"traceparent": "00-1-2-01"},
        "origin": None,
        "erased_at": None,
        "caused_by": None,
    }


async def test_sql_defaults(database: str) -> None:
    async with connected(database) as conn:
        event_id = await sql_publish(conn, "'orders.placed', '{}'")
        [row] = await rows(conn)
        now = await (await conn.execute("select clock_timestamp() as now")).fetchone()
    assert event_id.version == 7
    assert now is not None
    assert timedelta(0) <= now["now"] - row["occurred_at"] < timedelta(minutes=1)
    assert timedelta(0) <= now["now"] - datetime.fromtimestamp((event_id.int >> 80) / 1000, UTC) < timedelta(minutes=1)
    shown = ("event_version", "source", "target", "content_class", "channel", "generation", "workspace_id")
    assert [row[name] for name in shown] == [1, "sql", None, "internal", "outbox_default", 0, None]
    assert [row[name] for name in ("aggregate_id", "idempotency_key", "trace_context", "origin")] == [None] * 4


async def test_sql_ids_are_uuid7_without_the_servers_own_function(database: str) -> None:
    """Postgres 18 has uuidv7(); the function for older servers is taken from the migration and run here."""
    sql = migrate.known()[0].sql
    body = sql[sql.index("-- 48 bits") :].split("$$")[1]
    async with connected(database) as conn:
        await conn.execute(f"create function pg_temp.old_uuid7() returns uuid language sql as $${body}$$".encode())
        ids = await (await conn.execute("select pg_temp.old_uuid7() as id from generate_series(1, 1000)")).fetchall()
        now = await (await conn.execute("select clock_timestamp() as now")).fetchone()
    assert now is not None
    assert len({row["id"] for row in ids}) == 1000
    for row in ids:
        assert (row["id"].version, row["id"].variant) == (7, "specified in RFC 4122")
        made = datetime.fromtimestamp((row["id"].int >> 80) / 1000, UTC)
        assert abs(now["now"] - made) < timedelta(minutes=1)


async def test_sql_settings_of_the_session(database: str) -> None:
    async with connected(database) as conn:
        await conn.execute("set outrider.generation = '12'")
        await conn.execute("set app.workspace_id = 'acme'")
        await sql_publish(conn, "'a.b', '{}'")
        await sql_publish(conn, "'a.b', '{}', workspace_id => 'given', channel_class => 'bulk'")
        await conn.execute("set outrider.generation = ''")
        await conn.execute("set app.workspace_id = ''")
        await sql_publish(conn, "'a.b', '{}'")
        found = [(row["generation"], row["workspace_id"], row["channel"]) for row in await rows(conn)]
    assert found == [(12, "acme", "outbox_gen_12"), (12, "given", "outbox_gen_12_bulk"), (0, None, "outbox_default")]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("'Orders Placed', '{}'", "event type 'Orders Placed' is not lower-case words joined by dots"),
        ("E'orders.placed\\n', '{}'", "is not lower-case words joined by dots"),
        ("'', '{}'", "event type '' is not lower-case words"),
        ("null, '{}'", "event type NULL is not lower-case words"),
        ("'a.b', null", "a.b was not published: the payload must be a JSON object"),
        ("'a.b', '[]'", "a.b was not published: the payload must be a JSON object"),
        ("'a.b', '3'", "a.b was not published: the payload must be a JSON object"),
        (
            "'a.b', jsonb_build_object('a', repeat('x', 262144))",
            "a.b was not published: its payload has 262153 bytes, the limit is 262144",
        ),
        ("'a.b', '{}', key => ''", "a.b was not published: an empty key or idempotency key"),
        ("'a.b', '{}', idempotency_key => ''", "a.b was not published: an empty key or idempotency key"),
    ],
)
async def test_sql_refuses_clearly_and_a_savepoint_saves_the_transaction(
    database: str, arguments: str, message: str
) -> None:
    async with connected(database) as conn:
        before = await sql_publish(conn, "'a.b', '{}'")
        with pytest.raises(psycopg.Error, match=message) as refused:
            async with conn.transaction():
                await sql_publish(conn, arguments)
        assert refused.value.sqlstate == "OR004"
        after = await sql_publish(conn, "'a.b', '{}'")
        await conn.commit()
        assert [row["id"] for row in await rows(conn)] == [before, after]


@pytest.mark.parametrize(
    "arguments",
    [
        "content_class => 'secret'",
        "key => repeat('k', 513)",
        "idempotency_key => repeat('k', 513)",
        "workspace_id => repeat('w', 256)",
        "target => ''",
        "target => repeat('t', 64)",
        "source => ''",
        "channel_class => repeat('c', 60)",
        "event_version => 0",
        "aggregate_kind => repeat('a', 201)",
    ],
)
async def test_sql_cannot_store_what_python_refuses(database: str, arguments: str) -> None:
    async with connected(database) as conn:
        with pytest.raises(psycopg.Error) as refused:
            async with conn.transaction():
                await sql_publish(conn, f"'a.b', '{{}}', {arguments}")
        assert refused.value.sqlstate in ("OR004", "23514")
        assert await rows(conn) == []


@pytest.mark.parametrize("at", ["infinity", "-infinity", "0044-03-15 BC", "10001-01-01"])
async def test_sql_cannot_stop_the_readers_with_a_time(database: str, at: str) -> None:
    """psycopg cannot hold such a time: every take that meets it fails, and the cursor never passes it."""
    async with open_harness("async", database) as harness:
        async with connected(database) as conn:
            with suppress(psycopg.Error):
                await sql_publish(conn, f"'a.b', '{{}}', occurred_at => '{at}'")
        assert await exercise.read(harness) == []


@pytest.mark.parametrize("argument", ["target => 'Not A Context'", "channel_class => 'Not A Word'"])
async def test_sql_refuses_the_names_that_python_refuses(database: str, argument: str) -> None:
    async with connected(database) as conn:
        with pytest.raises(psycopg.Error) as refused:
            await sql_publish(conn, f"'a.b', '{{}}', {argument}")
        assert refused.value.sqlstate == "OR004"


async def test_sql_from_a_trigger(database: str) -> None:
    async with connected(database) as conn:
        await conn.execute("create table purchase (id int primary key, total numeric)")
        await conn.execute(
            """create function announce() returns trigger language plpgsql as $$
               begin
                   perform outrider.publish('orders.placed', to_jsonb(new), key => new.id::text);
                   return new;
               end $$"""
        )
        await conn.execute("create trigger announce after insert on purchase for each row execute function announce()")
        await conn.commit()
        await conn.execute("insert into purchase values (1, 9.90), (2, 0.10)")
        await conn.commit()
        await conn.execute("insert into purchase values (3, 1)")
        await conn.rollback()
        found = [(row["event_type"], row["aggregate_id"], row["payload"]) for row in await rows(conn)]
    assert found == [
        ("orders.placed", "1", {"id": 1, "total": 9.9}),
        ("orders.placed", "2", {"id": 2, "total": 0.1}),
    ]


async def test_sql_and_python_events_are_read_alike(database: str) -> None:
    async with open_harness("async", database) as harness, connected(database, autocommit=True) as conn:
        await sql_publish(conn, f"'exercise.placed', '{json.dumps({'order_id': '1', 'unknown': True})}'")
        [found] = await exercise.read(harness)
    assert found.decode(Placed) == Placed(order_id="1")
    assert found.idempotency_key == str(found.id)


async def test_many_sessions_publish_at_once(app: Outrider, database: str) -> None:
    async def publish(n: int) -> list[Envelope]:
        async with connected(database) as conn:
            return [await app.publish(conn, Placed(order_id=f"{n}.{m}")) for m in range(20)]

    written = [e for batch in await asyncio.gather(*map(publish, range(8))) for e in batch]
    async with connected(database) as conn:
        stored = {row["seq"]: row["id"] for row in await rows(conn)}
    assert stored == {e.seq: e.id for e in written}
    assert len(stored) == 160


async def test_a_client_encoding_that_cannot_carry_the_text(app: Outrider, database: str) -> None:
    async with connected(database, client_encoding="LATIN1") as conn:
        with pytest.raises(PublishRefused, match="client_encoding"):
            await app.publish(conn, Placed(order_id="ключ"))
        await app.publish(conn, Placed(order_id="1"))
        assert len(await rows(conn)) == 1


@pytest.mark.parametrize("trace", ["[1]", '"x"', "1", '{"a": {"b": 1}}', '{"a":' * 2000 + "1" + "}" * 2000])
async def test_a_trace_context_that_is_none_does_not_stop_a_reader(database: str, trace: str) -> None:
    async with open_harness("async", database) as harness:
        async with connected(database) as conn:
            await conn.execute("select outrider.publish('a.b', '{}', trace_context => %s::jsonb)", [trace])
        assert len(await exercise.read(harness)) == 1


async def test_an_envelope_is_published_once(app: Outrider, database: str) -> None:
    async with connected(database) as conn:
        written = await app.publish(conn, Placed(order_id="1"))
        with pytest.raises(PublishRefused, match=f"is already in a log, at position {written.seq}"):
            await app.publish_many(conn, [written])
        fresh = app.envelope(Placed(order_id="2"))
        with pytest.raises(PublishRefused, match=r"events\[1\]: is the same envelope"):
            await app.publish_many(conn, [fresh, fresh])
        with pytest.raises(PublishRefused, match="publish_many takes envelopes"):
            await app.publish(conn, fresh)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="several events, not one"):
            await app.publish_many(conn, Placed(order_id="3"))  # type: ignore[arg-type]
        assert len(await rows(conn)) == 1


@pytest.mark.parametrize("quiet", ["set local", "off", "after_commit"])
async def test_a_transaction_that_is_to_be_prepared_sends_no_notify(database: str, quiet: str) -> None:
    """Postgres prepares no transaction that has sent one, as a publish does unless it is told not to."""
    options: dict[str, Any] = {} if quiet == "set local" else {"notify": quiet}
    app = Outrider(context=CONTEXT, **options)
    name = uuid4()

    async def publish(conn: AsyncConnection[Any]) -> None:
        await app.publish(conn, Anything(value=1))
        if quiet == "set local":  # also what does not go through the app
            await conn.execute("select outrider.publish('a.happened', '{}'), outrider.enqueue('a.job', '{}')")

    async with connected(database) as conn, connected(database, autocommit=True) as other:
        if quiet == "set local":
            await publish(conn)
            with pytest.raises(psycopg.errors.FeatureNotSupported, match="NOTIFY"):
                await conn.execute(f"prepare transaction '{name}'".encode())
            await conn.rollback()
            await conn.execute("set local outrider.notify = 'off'")
        await publish(conn)
        await conn.execute(f"prepare transaction '{name}'".encode())
        await conn.rollback()  # only tells psycopg that the transaction has ended
        assert await rows(other) == []
        await other.execute(f"commit prepared '{name}'".encode())
        assert len(await rows(other)) == (2 if quiet == "set local" else 1)
