"""Telemetry of a publisher travels with the trace context, through handlers and relays, to whoever reads a stream."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from opentelemetry.sdk.trace import TracerProvider
from tests.relay.depot import Depot, Lost, Sent, depot

from outrider import HandlerContext
from outrider.errors import PublishRefused
from outrider.streams import Sink, broker
from outrider.streams.replica import ReplicaCodec
from outrider.trace import LONGEST_JSON

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture(params=["redis", "nats"])
def replica(request: pytest.FixtureRequest, name: str) -> Sink:
    url = request.getfixturevalue(f"{request.param}_server").url
    return broker(url, stream=name, codec=ReplicaCodec(), create=True)


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    provider = TracerProvider()
    monkeypatch.setattr("opentelemetry.trace._TRACER_PROVIDER", provider)
    yield
    provider.shutdown()


async def told(sink: Sink, stream: str) -> list[Any]:
    """The `_telemetry` of every entry."""
    await sink.open()
    try:
        entries = [each async for page in sink.tail(stream, sink.start) for each in page]
    finally:
        await sink.close()
    return [json.loads(each.data)["payload"].get("_telemetry") for each in entries]


async def test_it_arrives_in_the_payload_of_a_replica(database: str, replica: Sink, name: str) -> None:
    async with depot(database) as house:
        house.app.relay("depot.out", replica)
        await house.app.migrate()
        await house.publish("a1")
        await house.publish("a2", telemetry={"request_id": "r-1", "agent": "é"})
        await house.publish("a3", telemetry={"traceparent": PARENT, "request_id": "r-2"})
        async with house.app.connect() as conn, conn.transaction():
            many = [house.app.envelope(Sent(parcel="a"), telemetry={"n": str(n)}) for n in range(2)]
            await house.app.publish_many(conn, many)
        await house.app.drain()
    assert await told(replica, name) == [
        None,
        {"request_id": "r-1", "agent": "é"},
        {"traceparent": PARENT, "request_id": "r-2"},
        {"n": "0"},
        {"n": "1"},
    ]


async def passed_on(house: Depot, **options: Any) -> list[dict[str, str] | None]:
    """The trace contexts of an event and of what its handler publishes: as it is, and with an id of its own."""

    @house.app.handler(Sent, name="depot.pass_on")
    async def pass_on(event: Sent, ctx: HandlerContext) -> None:
        await house.app.publish(ctx.tx, Lost(parcel="b"))
        await house.app.publish(ctx.tx, Lost(parcel="c"), telemetry={"request_id": "own"})

    await house.app.migrate()
    await house.publish("a1", **options)
    await house.app.drain()
    return [row["trace_context"] for row in await house.rows("select trace_context from outrider.outbox order by seq")]


async def test_what_a_handler_publishes_inherits_it(database: str) -> None:
    given = {"request_id": "r-1", "shop": "7", "traceparent": PARENT}
    async with depot(database) as house:
        assert await passed_on(house, telemetry=given) == [given, given, given | {"request_id": "own"}]


@pytest.mark.usefixtures("spans")
async def test_spans_do_not_lose_it(database: str) -> None:
    async with depot(database) as house:
        found = await passed_on(house, telemetry={"request_id": "r-1", "shop": "7"})
    traces = [(each or {}).pop("traceparent").split("-")[1:3] for each in found]
    assert found == [{"request_id": "r-1", "shop": "7"}] * 2 + [{"request_id": "own", "shop": "7"}]
    assert len({trace for trace, _ in traces}) == 1, "one trace"
    assert len({span for _, span in traces}) == 3


@pytest.mark.parametrize(
    ("telemetry", "said"),
    [
        ("r-1", "telemetry: is str, not a dict of texts"),
        ({"n": 1}, "telemetry: has 1, which is int, not str"),
        ({1: "n"}, "telemetry: has 1, which is int, not str"),
        ({"n": {"a": "b"}}, r"telemetry: has \{'a': 'b'\}, which is dict, not str"),
        ({"n": "a\x00"}, "telemetry: contains .u0000 at position 1"),
        ({"traceparent": "00-1-2-3"}, "telemetry: has a traceparent that is not one of W3C Trace Context"),
        (
            {"n": "x" * LONGEST_JSON},
            "telemetry: has 16,009 characters as JSON with the trace context; the limit is 16,000",
        ),
    ],
)
async def test_what_cannot_be_stored_is_refused(database: str, telemetry: Any, said: str) -> None:
    async with depot(database) as house, house.app.connect() as conn:
        with pytest.raises(PublishRefused, match=said):
            await house.app.publish(conn, Sent(parcel="a"), telemetry=telemetry)
        await house.app.publish(conn, Sent(parcel="a"), telemetry={"n": "x" * (LONGEST_JSON - 9)})
        await house.app.publish(conn, Sent(parcel="a"), telemetry={})


async def test_sql_is_bounded_and_read_as_texts(database: str, replica: Sink, name: str) -> None:
    insert = (
        "insert into outrider.outbox (event_type, source, payload, trace_context) values ('depot.sent', 'x', '{}', %s)"
    )
    async with depot(database) as house:
        house.app.relay("depot.out", replica)
        await house.app.migrate()
        await house.execute(insert, [json.dumps({"request_id": "r-1", "sampled": True, "nested": {"a": 1}})])
        await house.execute(insert, [json.dumps([1])])
        await house.execute("""select outrider.publish('depot.sent', '{}', trace_context => '{"request_id": "r-2"}')""")
        with pytest.raises(psycopg.errors.CheckViolation, match="outbox_trace_context_bounded"):
            await house.execute(insert, [json.dumps({"n": "x" * 17_000})])
        await house.app.drain()
    assert await told(replica, name) == [
        {"request_id": "r-1", "sampled": "true", "nested": '{"a": 1}'},
        None,
        {"request_id": "r-2"},
    ]
