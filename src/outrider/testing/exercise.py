"""The publish exercise: what every way to publish must do. An adapter implements `PublishHarness` and runs `CHECKS`.

    @pytest.mark.parametrize("check", exercise.CHECKS.values(), ids=exercise.CHECKS)
    async def test_publishing(check, harness):
        await check(harness)

or, on one connection, `await exercise.run(harness)`. Every check starts outside a transaction and leaves none open.
Imports no driver: what was published is read back through the app's own reader.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from functools import partial
from itertools import pairwise
from typing import Any, Protocol, Unpack

from outrider.app import Outrider
from outrider.envelope import Envelope
from outrider.errors import PublishRefused
from outrider.event import Event
from outrider.publish import PublishOptions
from outrider.reader import Reader
from outrider.testing.cases import REFUSED, SURVIVORS, Full, Placed, RefusedCase
from outrider.trace import current_trace

CONTEXT = "exercise"


class PublishHarness(Protocol):
    """One connection of the adapter's kind, and the app that publishes on it. Nothing here may commit but `commit`."""

    app: Outrider
    """Open, in the context "exercise", with the default settings otherwise."""
    reader: Reader
    """Of `app`: every type, one partition, registered before the check begins."""

    async def publish(self, event: Event, **options: Unpack[PublishOptions]) -> Envelope: ...
    async def publish_many(self, events: Sequence[Event | Envelope]) -> list[Envelope]: ...
    async def begin(self) -> None: ...
    async def commit(self) -> None: ...
    async def rollback(self) -> None: ...
    async def savepoint(self) -> None: ...
    async def rollback_to_savepoint(self) -> None: ...
    async def answer(self) -> object:
        """Run `select 42` on the connection and return the value: it fails in an aborted transaction."""


async def read(harness: PublishHarness) -> list[Envelope]:
    """Everything that was committed since the last read."""
    events: list[Envelope] = []
    while True:
        async with harness.app.connect() as conn, conn.transaction():
            batch = await harness.reader.take(conn)
        events += batch.events
        if not batch.more:
            return events


async def commits_with_every_field_intact(harness: PublishHarness) -> None:
    at = datetime(2024, 7, 1, 9, 30, 0, 123456, tzinfo=timezone(timedelta(hours=5, minutes=45)))
    shared: dict[str, Any] = {"key": "order/1 🦊", "idempotency_key": "once", "target": CONTEXT, "workspace_id": "acme"}
    shared |= {"aggregate_kind": "Order", "entity_version": -(2**63), "content_class": "restricted", "occurred_at": at}
    await harness.begin()
    written = await harness.publish(Placed(order_id="1"), channel_class="bulk", **shared)
    assert written.decode(Placed) == Placed(order_id="1"), "the payload changed before it was written"
    await harness.commit()
    same(written, wanted(written, channel="outbox_gen_0_bulk", **shared))
    same_stored(await read(harness), [written])
    assert await read(harness) == [], "an event was read twice"


async def fills_in_the_defaults(harness: PublishHarness) -> None:
    await harness.begin()
    written = await harness.publish(Placed(order_id="1"))
    assert await read(harness) == [], "publish committed"
    await harness.commit()
    assert written.id.version == 7, "ids are UUIDs of version 7"
    assert written.occurred_at is not None, "the database sets occurred_at"
    assert abs(written.occurred_at - datetime.now(UTC)) < timedelta(minutes=10), "occurred_at is not now"
    same(written, wanted(written, key="1", idempotency_key=str(written.id), occurred_at=written.occurred_at))
    same_stored(await read(harness), [written])


async def rolls_back_to_nothing(harness: PublishHarness) -> None:
    await harness.begin()
    await harness.publish(Placed(order_id="1"))
    await harness.publish_many([Placed(order_id="2"), Placed(order_id="3")])
    await harness.rollback()
    assert await read(harness) == [], "an event outlived the rollback of its transaction"


async def rolls_back_with_a_savepoint(harness: PublishHarness) -> None:
    await harness.begin()
    before = await harness.publish(Placed(order_id="before"))
    await harness.savepoint()
    await harness.publish(Placed(order_id="undone"))
    await harness.publish_many([Placed(order_id="undone"), Placed(order_id="undone")])
    await harness.rollback_to_savepoint()
    after = await harness.publish(Placed(order_id="after"))
    await harness.commit()
    same_stored(await read(harness), [before, after])


async def keeps_the_order_of_a_thousand(harness: PublishHarness) -> None:
    events = [Placed(order_id=str(n)) for n in range(1000)]
    await harness.begin()
    written = await harness.publish_many(events)
    await harness.commit()
    assert [envelope.decode(Placed) for envelope in written] == events, "publish_many must answer in the order given"
    numbers = [envelope.seq for envelope in written if envelope.seq is not None]
    assert len(numbers) == 1000, "publish_many must return the numbers that the log gave"
    assert all(a < b for a, b in pairwise(numbers)), "the numbers are not in the order given"
    same_stored(await read(harness), written)


async def gives_each_of_many_its_own_options(harness: PublishHarness) -> None:
    texts = ["NULL", 'a,"b"\\{}', " ", "null"]
    given: list[Event | Envelope] = [
        harness.app.envelope(Placed(order_id=text), key=text, idempotency_key=text, entity_version=n, workspace_id=text)
        for n, text in enumerate(texts)
    ]
    await harness.begin()
    written = await harness.publish_many([*given, Placed(order_id="plain")])
    await harness.commit()
    assert [e.key for e in written] == [*texts, "plain"], "the keys got mixed up"
    assert [e.entity_version for e in written] == [0, 1, 2, 3, None], "the options of many got mixed up"
    same_stored(await read(harness), written)


async def writes_none_of_many_when_one_is_refused(harness: PublishHarness) -> None:
    nul = next(case for case in REFUSED if case.name == "nul")
    await harness.begin()
    refusal = await refused(harness.publish_many([Placed(order_id="0"), nul.event, Placed(order_id="2")]))
    assert refusal.field == f"events[1].{nul.field}", f"the refusal names {refusal.field}"
    await still_usable(harness)


async def brings_back(given: Full, harness: PublishHarness) -> None:
    await harness.begin()
    one = await harness.publish(given)
    two = await harness.publish_many([given, given])
    await harness.commit()
    found = await read(harness)
    same_stored(found, [one, *two], Full)
    for envelope in found:
        decoded = envelope.decode(Full)
        assert decoded == given, f"{decoded!r:.500} was {given!r:.500}"
        assert str(decoded.amount) == str(given.amount), f"the Decimal {given.amount} became {decoded.amount}"


async def refuses(case: RefusedCase, harness: PublishHarness) -> None:
    await harness.begin()
    refusal = await refused(harness.publish(case.event, **case.options))
    assert refusal.field == case.field, f"the refusal names {refusal.field}, not {case.field}"
    assert case.rule in refusal.rule, f"the refusal says {refusal.rule!r}, not {case.rule!r}"
    await still_usable(harness)


async def refused(publishing: Awaitable[object]) -> PublishRefused:
    try:
        await publishing
    except PublishRefused as refusal:
        return refusal
    raise AssertionError("publish took what cannot be stored")


async def still_usable(harness: PublishHarness) -> None:
    """After a refusal the transaction goes on as if nothing had been asked, and nothing was written by it."""
    assert await harness.answer() == 42, "the transaction is no longer usable"
    rest = await harness.publish(Placed(order_id="rest"))
    await harness.commit()
    same_stored(await read(harness), [rest])


def wanted(written: Envelope, **fields: Any) -> Envelope:
    """What an event of `Placed` must look like. The id, the number and the text are the publisher's to choose."""
    assert isinstance(written.seq, int), "publish must return the number that the log gave"
    drawn: dict[str, Any] = {"id": written.id, "seq": written.seq, "payload_json": written.payload_json}
    return Envelope(
        event_type="exercise.placed", event_version=3, source=CONTEXT, trace_context=current_trace(), **drawn, **fields
    )


def same(found: Envelope, wanted: Envelope) -> None:
    for name in Envelope.__dataclass_fields__:
        a, b = getattr(found, name), getattr(wanted, name)
        assert a == b, f"{name} is {a!r:.300}, wanted {b!r:.300}"


def same_stored(found: list[Envelope], written: Sequence[Envelope], model: type[Event] = Placed) -> None:
    """The log returns the payload as jsonb prints it: compare its meaning, and all other fields as they are."""
    assert [e.id for e in found] == [e.id for e in written], f"read {len(found)} events, wanted {len(written)}"
    for stored, given in zip(found, written, strict=True):
        same(replace(stored, payload_json=given.payload_json), given)
        assert stored.decode(model) == given.decode(model), (
            f"{given.payload_json:.300} became {stored.payload_json:.300}"
        )


_PLAIN: tuple[Callable[[PublishHarness], Awaitable[None]], ...] = (
    commits_with_every_field_intact,
    fills_in_the_defaults,
    rolls_back_to_nothing,
    rolls_back_with_a_savepoint,
    keeps_the_order_of_a_thousand,
    gives_each_of_many_its_own_options,
    writes_none_of_many_when_one_is_refused,
)
CHECKS: dict[str, Callable[[PublishHarness], Awaitable[None]]] = {
    **{check.__name__: check for check in _PLAIN},
    **{f"brings_back_{name}": partial(brings_back, event) for name, event in SURVIVORS},
    **{f"refuses_{case.name}": partial(refuses, case) for case in REFUSED},
}


async def run(harness: PublishHarness) -> None:
    """All checks, one after the other, on one connection; an error says in which of them."""
    for name, check in CHECKS.items():
        try:
            await check(harness)
        except BaseException as error:
            error.add_note(f"in the check {name} of the publish exercise")
            raise
