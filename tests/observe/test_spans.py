"""OpenTelemetry spans, as the SDK's own exporter has them: from publish to handler to what that publishes, over a broker."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import psycopg
import pytest
from opentelemetry import trace as api
from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from tests.brokers import NatsServer, RedisServer
from tests.observe.shop import LATER, Bill, Mail, Paid, Placed, make_due, publish

from outrider import Bury, HandlerContext, JobContext, Outrider, SyncHandlerContext, trace
from outrider.envelope import Envelope, inherited_workspace
from outrider.postgres.log import WORKSPACE
from outrider.streams import broker
from outrider.worker import batch_runner

Spans = list[ReadableSpan]


class Seen:
    def __init__(self, exporter: InMemorySpanExporter, provider: TracerProvider) -> None:
        self._exporter = exporter
        self.tracer = provider.get_tracer("tests")

    def named(self, name: str) -> Spans:
        return [each for each in self._exporter.get_finished_spans() if each.name == name]

    def one(self, name: str) -> ReadableSpan:
        [found] = self.named(name)
        return found

    def names(self) -> list[str]:
        return sorted(each.name for each in self._exporter.get_finished_spans())

    def clear(self) -> None:
        self._exporter.clear()


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Iterator[Seen]:
    """A provider as an application would set it; OpenTelemetry lets it be set only once in a process."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr("opentelemetry.trace._TRACER_PROVIDER", provider)
    yield Seen(exporter, provider)
    provider.shutdown()


def is_child(span: ReadableSpan, parent: ReadableSpan) -> bool:
    assert span.parent is not None
    return (span.parent.trace_id, span.parent.span_id) == ids(parent)


def ids(span: ReadableSpan) -> tuple[int, int]:
    context = span.get_span_context()
    assert context is not None
    return context.trace_id, context.span_id


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


@pytest.mark.parametrize("blocking", [False, True], ids=["async", "blocking"])
async def test_from_the_request_to_what_the_handler_publishes(database: str, seen: Seen, blocking: bool) -> None:
    app = Outrider(context="shop", dsn=database)

    if blocking:

        @app.handler(Placed, name="shop.pay")
        def pay(event: Placed, ctx: SyncHandlerContext) -> None:
            app.publish_sync(ctx.tx, Paid(order=event.order))
    else:

        @app.handler(Placed, name="shop.pay")
        async def pay_async(event: Placed, ctx: HandlerContext) -> None:
            await app.publish(ctx.tx, Paid(order=event.order))

    @app.handler(Paid, name="shop.file")
    async def file(event: Paid) -> None: ...

    async with app:
        await app.migrate()
        with seen.tracer.start_as_current_span("request"):
            async with app.connect() as conn:
                envelope = await app.publish(conn, Placed(order="7"))
        await app.drain()
    request, first, pay_span = seen.one("request"), seen.one("publish seen.placed"), seen.one("process seen.placed")
    second, file_span = seen.one("publish seen.paid"), seen.one("process seen.paid")
    chain = [request, first, pay_span, second, file_span]
    assert all(is_child(child, parent) for parent, child in pairwise(chain))
    assert [each.kind for each in chain[1:]] == [SpanKind.PRODUCER, SpanKind.CONSUMER] * 2
    assert envelope.trace_context is not None
    assert envelope.trace_context["traceparent"].startswith("00-{:032x}-{:016x}-".format(*ids(first)))
    assert attributes(first) == {
        "messaging.system": "outrider",
        "messaging.operation.name": "publish",
        "messaging.operation.type": "send",
        "messaging.destination.name": "seen.placed",
        "messaging.message.id": str(envelope.id),
    }
    assert attributes(pay_span) == {
        "messaging.system": "outrider",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "seen.placed",
        "messaging.message.id": str(envelope.id),
        "outrider.subscription": "shop.pay",
        "outrider.attempt": 1,
        "outrider.outcome": "success",
    }
    assert pay_span.status.status_code is StatusCode.UNSET


async def test_a_retry_has_a_trace_of_its_own_and_a_link(database: str, seen: Seen) -> None:
    app, tries = Outrider(context="shop", dsn=database), iter([ConnectionError("no bank"), Bury("no account")])

    @app.handler(Placed, name="shop.pay", retry=LATER)
    async def pay(event: Placed, ctx: HandlerContext) -> None:
        await app.publish(ctx.tx, Paid(order=event.order))
        raise next(tries)

    async with app:
        await app.migrate()
        await publish(app, Placed(order="7"))
        await app.drain()
        await make_due(app)
        await app.drain()
    produced, (first, second) = seen.one("publish seen.placed"), seen.named("process seen.placed")
    assert is_child(first, produced)
    assert not first.links
    assert (attributes(first)["outrider.outcome"], attributes(first)["error.type"]) == ("failed", "connection_error")
    assert second.parent is None
    [link] = second.links
    assert (link.context.trace_id, link.context.span_id) == ids(produced)
    assert (attributes(second)["outrider.attempt"], attributes(second)["outrider.outcome"]) == (2, "dead")
    assert second.status.status_code is StatusCode.ERROR
    assert second.status.description == "Bury: no account"
    [told] = second.events
    assert dict(told.attributes or {}) == {"exception.type": "Bury", "exception.message": "Bury: no account"}
    assert is_child(seen.named("publish seen.paid")[1], second), "what a retry publishes goes on with the retry"


async def test_what_was_undone_with_its_batch_says_so(database: str, seen: Seen) -> None:
    app = Outrider(context="shop", dsn=database)

    @app.handler(Placed, name="shop.pay", retry=LATER)
    async def pay(event: Placed) -> None:
        if event.n == 2:
            raise ValueError(event.n)

    async with app:
        await app.migrate()
        await publish(app, *(Placed(order=f"{n}", n=n) for n in (1, 2, 3)))
        await app.drain()
    outcomes = [attributes(each)["outrider.outcome"] for each in seen.named("process seen.placed")]
    assert sorted(outcomes) == ["failed", "rolled_back", "success", "success"]


async def test_a_batch_is_one_span_with_a_link_to_each_trace(database: str, seen: Seen) -> None:
    app = Outrider(context="shop", dsn=database)

    @app.handler(Placed, name="shop.count")
    async def count(events: list[Placed], ctx: HandlerContext) -> None:
        await app.publish(ctx.tx, Paid(order="all"))

    async with app:
        await app.migrate()
        await publish(app, Placed(order="1"), Placed(order="2"))
        await publish(app, Placed(order="3"))
        await app.drain()
    both, third = seen.named("publish seen.placed")
    assert attributes(both)["messaging.batch.message_count"] == 2
    handled = seen.one("process seen.placed")
    assert attributes(handled)["messaging.batch.message_count"] == 3
    assert handled.parent is None
    assert {(each.context.trace_id, each.context.span_id) for each in handled.links} == {ids(both), ids(third)}
    assert is_child(seen.one("publish seen.paid"), handled)


async def test_envelopes_that_carry_other_traces_go_on_with_those(database: str, seen: Seen) -> None:
    app = Outrider(context="shop", dsn=database)
    async with app:
        await app.migrate()
        own = app.envelope(Placed(order="1"))
        foreign = {"traceparent": f"00-{7:032x}-{9:016x}-01"}
        other = Envelope.of(vars(app.envelope(Placed(order="2"))) | {"trace_context": foreign})
        async with app.connect() as conn:
            await app.publish_many(conn, [own, other])
    root, child = sorted(seen.named("publish seen.placed"), key=lambda each: each.parent is not None)
    assert root.parent is None
    assert child.parent is not None
    assert (child.parent.trace_id, child.parent.span_id) == (7, 9)


async def test_a_publish_that_fails_says_so(database: str, seen: Seen) -> None:
    app = Outrider(context="shop", dsn=database)
    async with await psycopg.AsyncConnection.connect(database) as conn:
        await conn.execute("set transaction read only")
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
            await app.publish(conn, Placed(order="7"))
    span = seen.one("publish seen.placed")
    assert span.status.status_code is StatusCode.ERROR
    assert attributes(span)["error.type"] == "25006"


def in_a_process(job: Bill) -> dict[str, str] | None:
    return trace.current_trace()


@pytest.mark.verify
async def test_jobs(database: str, seen: Seen) -> None:
    app, bad = Outrider(context="shop", dsn=database), [OSError("no post")]

    @app.handler(Placed, name="shop.mail")
    async def mail_them(event: Placed, ctx: HandlerContext) -> None:
        await app.enqueue(ctx.tx, Mail(to=event.order))

    @app.job(Mail, retry=LATER)
    async def mail(job: Mail, ctx: JobContext) -> None:
        if bad:
            raise bad.pop()
        async with ctx.connect() as conn:
            await app.publish(conn, Paid(order="7"))

    app.job(Bill, executor="process")(in_a_process)

    async with app:
        await app.migrate()
        await publish(app, Placed(order="7"))
        await app.drain()
        await make_due(app)
        await app.drain()
        async with app.connect() as conn:
            await app.enqueue(conn, Bill())
        await app.drain()
        async with app.connect() as conn:
            found = await conn.execute(
                "select result->>'traceparent' from outrider.event_handled where result is not null"
            )
            [(carried,)] = await found.fetchall()
    asked, (first, second) = seen.one("enqueue seen.mail"), seen.named("process seen.mail")
    assert is_child(asked, seen.one("process seen.placed"))
    assert is_child(first, asked)
    assert attributes(first)["outrider.outcome"] == "failed"
    assert first.status.status_code is StatusCode.ERROR
    [link] = second.links
    assert (link.context.trace_id, link.context.span_id) == ids(asked)
    assert (attributes(second)["outrider.subscription"], attributes(second)["outrider.outcome"]) == (
        "seen.mail",
        "success",
    )
    assert is_child(seen.one("publish seen.paid"), second)
    billed = seen.one("process seen.bill")
    assert carried.startswith("00-{:032x}-{:016x}-".format(*ids(billed)))


@pytest.mark.parametrize("kind", ["redis_server", "nats_server"])
async def test_across_a_broker(
    database: str, other_database: str, request: pytest.FixtureRequest, seen: Seen, name: str, kind: str
) -> None:
    server: RedisServer | NatsServer = request.getfixturevalue(kind)
    depot, shop = Outrider(context="depot", dsn=database), Outrider(context="shop", dsn=other_database)
    depot.relay("depot.out", broker(server.url, stream=name, create=True))
    shop.inbox("shop.in", broker(server.url, stream=name))

    @shop.handler(Placed, name="shop.pay")
    async def pay(event: Placed) -> None: ...

    async with depot, shop:
        await depot.migrate()
        await shop.migrate()
        await publish(depot, Placed(order="7"))
        await depot.drain()
        await shop.drain()
    assert is_child(seen.one("process seen.placed"), seen.one("publish seen.placed"))


class Raising(SpanProcessor):
    """Of an application, and broken."""

    def __init__(self, when: str) -> None:
        self.when = when

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:  # noqa: ARG002
        if self.when == "start":
            raise RuntimeError("no disk at postgresql://u:hunter2@h/d")

    def on_end(self, span: ReadableSpan) -> None:  # noqa: ARG002
        if self.when == "end":
            raise RuntimeError("no disk at postgresql://u:hunter2@h/d")


@pytest.mark.parametrize("when", ["start", "end"])
async def test_a_processor_that_raises_stops_nobody(
    database: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, when: str
) -> None:
    provider = TracerProvider()
    provider.add_span_processor(Raising(when))
    monkeypatch.setattr("opentelemetry.trace._TRACER_PROVIDER", provider)
    monkeypatch.setattr(trace, "_logged", set())
    app, done = Outrider(context="shop", dsn=database), list[object]()

    @app.handler(Placed, name="shop.pay", retry=LATER)
    async def pay(event: Placed) -> None:
        done.append(trace.inherited.get())
        if event.n == 2:
            raise ValueError("no")

    @app.handler(Placed, name="shop.count")
    async def count(events: list[Placed]) -> None:
        done.append(len(events))

    @app.job(Mail)
    async def mail(job: Mail) -> None:
        done.append(job.to)

    carried = {"traceparent": f"00-{7:032x}-{9:016x}-01"}
    async with app:
        await app.migrate()
        async with app.connect() as conn:
            [first] = await app.publish_many(
                conn, [Envelope.of(vars(app.envelope(Placed(order="1"))) | {"trace_context": carried})]
            )
            await app.publish(conn, Placed(order="2", n=2))
            await app.enqueue(conn, Mail(to="ada"))
        await app.drain()
    provider.shutdown()
    assert first.trace_context in done, "it goes on with the trace of its event"
    assert {2, "ada"} <= {each for each in done if not isinstance(each, dict)}
    if when == "start":
        assert first.trace_context == carried
    [told] = [each.getMessage() for each in caplog.records if "a span" in each.getMessage()]
    assert told == (
        "a span is missing, and others may be: RuntimeError: no disk at postgresql://u:***@h/d: "
        "look at the tracer provider, its sampler and its span processors"
    )


async def test_what_cannot_be_begun_leaves_nothing_to_the_next(
    database: str, monkeypatch: pytest.MonkeyPatch, seen: Seen
) -> None:
    app, left = Outrider(context="shop", dsn=database), list[object]()

    @app.handler(Placed, name="shop.pay", retry=LATER)
    async def pay(event: Placed, ctx: HandlerContext) -> None:
        left.append((event.n, trace.inherited.get(), inherited_workspace.get()))

    begin = batch_runner._begin_span

    def failing(spans: trace.BatchSpans, rows: Any, **options: Any) -> trace.EventSpan:
        if rows[0][WORKSPACE] is not None:
            raise RuntimeError("out of memory")
        return begin(spans, rows, **options)

    monkeypatch.setattr(batch_runner, "_begin_span", failing)
    async with app:
        await app.migrate()
        async with app.connect() as conn:
            await app.publish(conn, Placed(order="1", n=1), workspace_id="acme")
            await conn.execute(
                "select outrider.publish('seen.placed', '{\"order\": \"2\", \"n\": 2}'::jsonb, key => '2')"
            )
        await app.drain()
    assert left == [(2, None, None)]


@pytest.mark.parametrize(
    "carrier",
    [
        {"traceparent": "00-" + "\x1b[31m" * 3 + "A" * 100 + "-x-y"},
        {"traceparent": "00-" + "a" * 100_000 + "-x-y"},
        {"traceparent": f"00-{0:032x}-{9:016x}-01"},
        {"traceparent": f"00-{7:032x}-{9:016x}-01\n"},
        {"tracestate": "a=1"},
        None,
    ],
)
def test_what_is_no_trace_has_no_id(carrier: dict[str, str] | None, caplog: pytest.LogCaptureFixture) -> None:
    assert trace.trace_id(carrier) is None
    assert not api.get_current_span(trace._context_of(carrier)).get_span_context().is_valid
    assert not caplog.records


@pytest.mark.parametrize("state", ["a=\x1b]0;PWN\x07 FORGED\nevent=buried", "a=b," * 1000, "password=x y=z"])
def test_a_hostile_tracestate_is_dropped(state: str, caplog: pytest.LogCaptureFixture) -> None:
    carrier = {"traceparent": f"00-{7:032x}-{9:016x}-01"}
    found = api.get_current_span(trace._context_of(carrier | {"tracestate": state})).get_span_context()
    assert (found.trace_id, dict(found.trace_state)) == (7, {})
    kept = api.get_current_span(trace._context_of(carrier | {"tracestate": "a=b, c@d=e f"})).get_span_context()
    assert dict(kept.trace_state) == {"a": "b", "c@d": "e f"}
    assert not caplog.records


async def test_without_a_provider_there_are_no_spans(database: str) -> None:
    assert isinstance(api.get_tracer_provider(), api.ProxyTracerProvider)
    assert trace.handling("shop.pay") is None
    with trace.sending("publish", iter(())) as carried:
        assert carried is None


def test_without_opentelemetry_nothing_is_missed() -> None:
    program = """
import sys
sys.modules["opentelemetry"] = None
from outrider import trace
assert not trace.INSTALLED
assert trace.current_trace() is None
trace.inherited.set({"traceparent": "x"})
assert trace.current_trace() == {"traceparent": "x"}
assert trace.handling("a.b") is None
with trace.sending("publish", ()) as carried:
    assert carried is None
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=200)
