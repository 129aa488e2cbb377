"""Fault 27: hostile text in every surface. Each is refused with a clear error before any SQL, or comes back as it was.
Nothing of it runs; nothing of it reaches a terminal, a log line or a metric as anything but text."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from psycopg import AsyncConnection
from pydantic import Field
from redis.asyncio import Redis
from tests.brokers import RedisServer
from tests.cli import inprocess
from tests.faults.subject import Ear

from outrider import Bury, Event, HandlerContext, Job, JobContext, Outrider
from outrider.cli.logs import Level, arrange
from outrider.errors import OutriderError, PublishRefused
from outrider.observe.exposed import sample
from outrider.observe.metrics import Metrics
from outrider.redaction import without_literals
from outrider.rollup.rollup import declare_rollup
from outrider.schedule import Schedule
from outrider.signals import ListenerUp, Notified, Taken
from outrider.streams import RedisStreams

TEXTS = {
    "quote": "a'b",
    "double quote": 'a"b',
    "statement": "a'; drop table canary; --",
    "dollar quote": "$$; drop table canary; $$",
    "backslash": "a\\'b\\",
    "mixed case": "Orders.Placed",
    "script": "<script>alert(1)</script>",
    "ansi": "\x1b]0;owned\x07\x1b[2J\x9b31m",
    "bidi": "\u202egnp.exe\u2066",
    "invisible": "a\u200bb\ufeff\U000e0041",
    "line breaks": "a\r\nevent=buried level=error\nfake",
    "percent": "%s %(name)s %%",
    "braces": "{} {0.__class__} {name!r} {batch}",
    "markup": "[red]x[/] :bomb: [link=file:///etc/passwd]y[/link]",
    "marker": "/*schema*/",
    "path": "../../etc/passwd",
    "emoji": "👩‍👩‍👧",
    "astral": "\U0010ffff",
}
"""Unusual, and Unicode: Postgres can store all of it."""
UNSTORABLE = {"nul": "a\x00b", "lone surrogate": "a\ud800b"}
RUBBISH = (
    b"", b"\x00", b"\xff\xfe", b"null", b"[]", b"{}", b"7", b'"text"', b'{"event_id": 7}', b"{" * 5000, b"[" * 5000,
    b'{"id": "\x1b[2J", "event_type": "a\'; drop table canary; --", "payload": {}}',
    b'{"id": "01900000-0000-7000-8000-000000000000", "event_type": "hostile.told", "payload": {"text": "\\u0000"}}',
    b'{"id": "01900000-0000-7000-8000-000000000000", "event_type": "hostile.told", "payload": {"text": "\\ud800"}}',
    b'{"id": "01900000-0000-7000-8000-000000000000", "event_type": "hostile.told", "payload": ' + b"9" * 5000 + b"}",
)  # fmt: skip
NOT_UTF8 = "a\udcff"
"""How Python reads such a byte on the command line."""
CONTROLS = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b\u202a-\u202e\u2066-\u2069\ufeff\U000e0000-\U000e007f]")
SINK = RedisStreams("redis://127.0.0.1:1/0", stream="s")


class Told(Event, type="hostile.told", key="text"):
    text: str
    deep: dict[str, list[str]] = Field(default_factory=dict)


class Summed(Event, type="hostile.summed"):
    key: str


class Asked(Job, type="hostile.asked"):
    text: str


def named() -> dict[str, Callable[[Any], object]]:
    """Every place where a program names something that ends up in SQL, a channel, a label or a path."""
    app = Outrider(context="hostile", dsn="host=nowhere")

    async def nothing(_: Any) -> None: ...

    def event(name: Any) -> object:
        return type("Named", (Event,), {"__module__": __name__}, type=name)

    def job(name: Any) -> object:
        return type("Named", (Job,), {"__module__": __name__}, type=name)

    return {
        "context": lambda name: Outrider(context=name, dsn="host=nowhere"),
        "contexts": lambda name: Outrider(context="a", contexts=[name], dsn="host=nowhere"),
        "schema": lambda name: Outrider(context="a", schema=name, dsn="host=nowhere"),
        "event type": event,
        "job type": job,
        "handler": lambda name: app.handler(Told, name=name)(nothing),
        "subscribe": lambda name: app.subscribe(Told, lambda _: nothing, name=name),
        "job of events": lambda name: app.job(on=Told, name=name)(nothing),
        "reader": lambda name: app.reader(Told, name=name),
        "schedule": lambda name: Schedule("* * * * *", Asked(text=""), name=name),
        "relay": lambda name: app.relay(name, SINK, events=[Told]),
        "inbox": lambda name: app.inbox(name, SINK),
        "rollup": lambda name: declare_rollup("a", name, "orders", (), "id", "a.one", "a.many", {}),
        "rollup emits": lambda name: declare_rollup("a", "a.r", "orders", (), "id", name, "a.many", {}),
        "channel class": lambda name: app.envelope(Told(text="a"), channel_class=name),
        "target": lambda name: app.envelope(Told(text="a"), target=name),
        "content class": lambda name: app.envelope(Told(text="a"), content_class=name),
        "queue": lambda name: app._enqueuer.request(Asked(text="a"), queue=name),
    }


LONGEST = dict.fromkeys(("event type", "schedule", "rollup emits"), 200) | {"rollup": 47}
ABSENT = {
    "context",
    "contexts",
    "schema",
    "handler",
    "job of events",
    "target",
    "channel class",
    "event type",
    "job type",
    "schedule",
}
"""Where nothing is also an answer: a default, or a class without a type of its own."""


@pytest.mark.parametrize("place", named())
def test_a_hostile_name_is_refused_in_one_readable_sentence(place: str) -> None:
    name = named()[place]
    wrong: list[Any] = [*TEXTS.values(), *UNSTORABLE.values(), " ", "a b", "é", "a" * (LONGEST.get(place, 63) + 1)]
    for text in [*wrong, 7, b"bytes", ["a"], *([] if place in ABSENT else ["", None])]:
        with pytest.raises((OutriderError, TypeError)) as refused:
            name(text)
        said = str(refused.value)
        assert not CONTROLS.search(said), (text, said)
        assert "\n" not in said, (text, said)
        said.encode()


@pytest.mark.parametrize("kind", UNSTORABLE)
def test_what_cannot_be_stored_is_refused_before_sql(kind: str) -> None:
    """The connection is none: nothing gets that far."""
    app, text = Outrider(context="hostile", dsn="host=nowhere"), UNSTORABLE[kind]
    for options in ({"key": text}, {"idempotency_key": text}, {"workspace_id": text}, {"aggregate_kind": text}):
        with pytest.raises(PublishRefused, match=r"cannot store|not Unicode"):
            app.envelope(Told(text="a"), **options)  # type: ignore[arg-type]
    for payload in ({"text": text}, {"text": "a", "deep": {text: []}}, {"text": "a", "deep": {"a": ["b", text]}}):
        with pytest.raises((PublishRefused, ValueError)):
            app.envelope(Told.model_construct(**payload), key="k")
    for field in ("key", "unique_key", "workspace_id"):
        with pytest.raises(OutriderError, match=r"cannot store|not Unicode"):
            app._enqueuer.request(Asked(text="a"), **{field: text})  # type: ignore[arg-type]


@contextmanager
def lines(*, as_json: bool) -> Iterator[io.StringIO]:
    """What a worker writes to stderr."""
    logger, text = logging.getLogger("outrider"), io.StringIO()
    before = (logger.handlers, logger.level, logger.propagate)
    logger.handlers = []
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("sys.stderr", text)
            arrange(Level.debug, as_json)
            yield text
    finally:
        logger.handlers, logger.level, logger.propagate = before


class Heard:
    """What handlers and jobs were given."""

    def __init__(self, app: Outrider) -> None:
        self.events: dict[str, Any] = {}
        self.jobs: dict[str, Any] = {}

        @app.handler(Told, name="hostile.hears")
        async def hears(event: Told, ctx: HandlerContext) -> None:
            self.events[event.text] = (event, ctx.envelope)
            raise Bury(event.text)

        @app.job(Asked)
        async def does(job: Asked, ctx: JobContext) -> None:
            self.jobs[job.text] = ctx.envelope
            raise Bury(job.text)


async def publish_all(app: Outrider) -> None:
    async with app.connect() as conn:
        await conn.execute("create table public.canary as select 1 as alive")
        for text in TEXTS.values():
            await app.publish(
                conn,
                Told(text=text, deep={text: [text]}),
                idempotency_key=text,
                workspace_id=text,
                aggregate_kind=text,
            )
            await app.enqueue(conn, Asked(text=text), key=text, unique_key=text, workspace_id=text)


@pytest.mark.verify
@pytest.mark.parametrize("as_json", [False, True], ids=["for people", "json"])
def test_text_comes_back_as_it_was(database: str, tmp_path: Path, as_json: bool) -> None:
    """Through publish, enqueue, handlers that fail with it, dead letters, log lines, metrics, and commands that show it."""
    app = Outrider(context="hostile", dsn=database)
    heard, registry = Heard(app), CollectorRegistry()
    metrics = Metrics(app.signals, registry)

    async def go_through() -> None:
        async with app:
            await app.migrate()
            await publish_all(app)
            await app.drain()
            await sample(app, app.settings.schema, metrics.instruments)

    with lines(as_json=as_json) as log:
        asyncio.run(go_through())
    assert set(heard.events) == set(heard.jobs) == set(TEXTS.values())
    for text, (event, envelope) in heard.events.items():
        assert event.deep == {text: [text]}
        assert (envelope.key, envelope.workspace_id, envelope.aggregate_kind) == (text, text, text)
        assert envelope.idempotency_key == text
    for text, envelope in heard.jobs.items():
        assert (envelope.key, envelope.workspace_id) == (text, text)
    check_lines(log.getvalue(), as_json)
    check_metrics(registry)
    check_stored(database)
    if not as_json:
        check_commands(database, tmp_path)


def check_lines(said: str, as_json: bool) -> None:
    assert not CONTROLS.search(said)
    for line in said.splitlines():
        if as_json:
            assert {"event", "level"} <= set(json.loads(line)), line
        else:
            assert not line.startswith(("event=buried", "fake")), line


def check_metrics(registry: CollectorRegistry) -> None:
    families = {family.name: family for family in text_string_to_metric_families(generate_latest(registry).decode())}
    assert any(sample.value for family in families.values() for sample in family.samples)
    labels = {value for family in families.values() for each in family.samples for value in each.labels.values()}
    assert not labels & set(TEXTS.values()), "a label that others write: as many series as they like"


def check_stored(dsn: str) -> None:
    with psycopg.connect(dsn) as conn:
        assert conn.execute("select alive from canary").fetchone() == (1,), "something was executed"
        stored = "select aggregate_id, payload ->> 'text', workspace_id, idempotency_key from outrider.outbox"
        for row in conn.execute(stored):
            assert len(set(row)) == 1
        errors = conn.execute("select last_error from outrider.owed where status = 'failed'").fetchall()
        assert len(errors) == 2 * len(TEXTS)
        assert not [error for (error,) in errors if CONTROLS.search(error)]


def check_commands(dsn: str, folder: Path) -> None:
    with psycopg.connect(dsn) as conn:
        [(event,)] = conn.execute("select id from outrider.outbox where aggregate_id = %s", [TEXTS["ansi"]])
        jobs = "select event_id from outrider.job where subscription = 'hostile.asked' and payload ->> 'text' = %s"
        [(job,)] = conn.execute(jobs, [TEXTS["ansi"]])
    shown = [
        ["status"], ["doctor"], ["dlq", "list"], ["dlq", "list", "--each"], ["dlq", "show", str(event)], ["job", "list"],
        ["job", "show", str(job)], ["event", "show", str(event)], ["subscription", "list"], ["generations"],
    ]  # fmt: skip
    everything = "".join(TEXTS.values())
    asked = [
        ["event", "show", everything], ["dlq", "list", "--workspace", everything], ["dlq", "list", "--code", "a" * 5000],
        ["subscription", "pause", everything], ["job", "list", "--queue", everything],
        ["dlq", "list", "--since", everything],
        ["status", "--schema", everything], ["migrate", "--app", everything], ["dlq", "list", "--code", NOT_UTF8],
        ["event", "show", NOT_UTF8],
    ]  # fmt: skip
    for command in [*shown, *([*each, "--json"] for each in shown[4:8]), *asked]:
        done = inprocess.run(folder, *command, "--dsn", dsn)
        said = done.stdout + done.stderr
        assert not CONTROLS.search(said), (command, CONTROLS.findall(said)[:3], said[:2000])
        assert "Traceback" not in said, (command, said)
        assert not [line for line in said.splitlines() if line.startswith(("fake", "event=buried"))], command
        assert command not in shown or done.returncode == 0 or command == ["doctor"], (command, said)
        if "--json" in command:
            assert isinstance(json.loads(done.stdout or "null"), dict), (command, said)


async def test_forged_pokes_wake_nobody_and_break_nothing(database: str) -> None:
    """Whoever may connect may NOTIFY on any channel. Pokes of types that nobody wants cost no look at the database."""
    app = Outrider(context="hostile", dsn=database, poll=30)
    heard, ear = Heard(app), Ear(app)
    async with app:
        await app.migrate()
        async with app.worker(), await AsyncConnection.connect(database, autocommit=True) as conn:
            forged = [
                *TEXTS.values(),
                "",
                "x" * 7999,
                "é" * 3999,
                '{"event_type": "hostile.told"}',
                "hostile.told ",
                "0",
                "outrider.canary_0.123",
                "outrider.canary_0a1b2c3d",
            ]
            looks: list[int] = []
            await ear.until(lambda: bool(ear.all(ListenerUp)))
            for rounds in (1, 11):
                for payload in forged * (10 if looks else 1):
                    await conn.execute("select pg_notify('outbox_default', %s)", [payload])
                await ear.until(lambda: len(ear.all(Notified)) >= rounds * len(forged))  # noqa: B023
                looks.append(len(ear.all(Taken)))
            assert {each.kind for each in ear.all(Notified)} == set(forged)
            assert looks[0] == looks[1]
            async with conn.transaction():
                await app.publish(conn, Told(text="real"))
            await ear.until(lambda: "real" in heard.events)


async def test_text_travels_through_a_broker(database: str, other_database: str) -> None:
    """Sent by a relay, brought in by an inbox, handled elsewhere; between the events somebody has written rubbish."""
    ours, theirs = Outrider(context="hostile", dsn=database), Outrider(context="other", dsn=other_database)
    heard = Heard(theirs)
    with RedisServer() as broker:
        async with Redis.from_url(broker.url) as redis:
            ours.relay("hostile.out", RedisStreams(broker.url, stream="s"), events=[Told])
            theirs.inbox("other.in", RedisStreams(broker.url, stream="s"))
            async with ours, theirs:
                await ours.migrate()
                await theirs.migrate()
                await publish_all(ours)
                await ours.drain()
                for rubbish in RUBBISH:
                    await redis.xadd("s", {"event": rubbish})
                await redis.xadd("s", {b"\xff\x00": b"\xff", "event'; drop table canary; --": "x"})
                await theirs.drain()
    assert set(heard.events) == set(TEXTS.values())
    for text, (event, envelope) in heard.events.items():
        assert event.deep == {text: [text]}
        assert (envelope.key, envelope.workspace_id, envelope.idempotency_key) == (text, text, text)
    with psycopg.connect(other_database) as conn:
        refused = conn.execute("select message from outrider.stream_refused").fetchall()
    assert len(refused) == len(RUBBISH) + 1
    assert not [said for (said,) in refused if CONTROLS.search(said)]


@pytest.mark.parametrize(
    ("statement", "shown"),
    [
        ("select publish('x', '{\"card\": \"4111\"}', key => $1)", "select publish(…, …, key => $1)"),
        ("update \"or'ders\" set a1 = -4111.5e3 where b = E'it\\'s' or c in (0xff, 7::int)",
         "update \"or'ders\" set a1 = -… where b = … or c in (…, …::int)"),
        ("select 1 -- don't\n, 'secret'", "select … \n, …"),
        ("select /* 'a */ 'secret', U&'secret', date'2020-01-01', $a$ 'secret $a$, $$secret", "select  …, U&…, date…, …, …"),
        ("insert into t values ('cut of", "insert into t values (…"),
        ("lock table outrider.event_handled", "lock table outrider.event_handled"),
    ],
)  # fmt: skip
def test_a_statement_is_shown_without_its_values(statement: str, shown: str) -> None:
    assert without_literals(statement) == shown
