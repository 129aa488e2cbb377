"""`app.event(id)`: the whole life of an event, and why it has come no further."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from psycopg import AsyncConnection
from tests.postgres.test_subscriptions import serve
from tests.worker.shop import Placed, Shop, opened

from outrider import Breaker, Bury, Outrider
from outrider.errors import SchemaMismatch
from outrider.postgres.admin.event_history import Fate, Story, Withdrawal
from outrider.postgres.schema import migrate


def later() -> None:
    raise ValueError("not today")


def never() -> None:
    raise Bury("never")


async def published(shop: Shop, *names: str, **options: Any) -> list[UUID]:
    await shop.publish(*names, **options)
    rows = await shop.rows("select id from outrider.outbox order by seq desc")
    return [row["id"] for row in reversed(rows[: len(names)])]


async def told(shop: Shop, event: UUID) -> Story:
    story = await shop.app.event(event)
    assert story is not None
    return story


async def fate(shop: Shop, event: UUID, name: str = "shop.effect") -> Fate:
    [found] = [each for each in (await told(shop, event)).fates if each.subscription == name]
    return found


def moments(found: Fate) -> list[tuple[Any, ...]]:
    return [(each.what, each.cycle, each.attempt, each.code, each.by, each.reason) for each in found.history]


async def test_what_it_is(database: str) -> None:
    async with opened(database) as shop:
        options = {"idempotency_key": "once", "workspace_id": "w", "target": "shop", "aggregate_kind": "order"}
        [event] = await published(shop, "a1", **options)
        story = await told(shop, event)
    envelope = story.envelope
    assert (envelope.id, envelope.event_type, envelope.event_version, envelope.seq) == (event, "dispatch.placed", 1, 1)
    assert (envelope.source, envelope.key, envelope.idempotency_key, envelope.workspace_id) == (
        "shop",
        "a",
        "once",
        "w",
    )
    assert (envelope.target, envelope.aggregate_kind, envelope.channel) == ("shop", "order", "outbox_default")
    assert story.payload_pretty == '{\n    "n": 1,\n    "customer": "a"\n}'
    assert story.payload_bytes == len(envelope.payload_json) == 25
    assert envelope.occurred_at is not None
    assert timedelta(0) < story.read_at - envelope.occurred_at < timedelta(minutes=1)
    assert (story.withdrawal, story.acts, story.also) == (None, (), ())


async def test_none_without_such_an_event(database: str) -> None:
    async with opened(database) as shop:
        assert await shop.app.event(uuid4()) is None
        async with shop.app.connect() as conn:
            written = await shop.app.publish(conn, Placed(customer="a"))
            assert await shop.app.event(written.id) is None, "its transaction is open"
            await conn.rollback()
        with pytest.raises(TypeError, match="a UUID, not str"):
            await shop.app.event(str(written.id))  # type: ignore[arg-type]


async def test_handled_at_the_third_attempt(database: str) -> None:
    async with opened(database) as shop:
        [event] = await published(shop, "a1")
        shop.wrong["a1"] = later
        for _ in range(2):
            await shop.app.drain()
            await shop.make_due()
        shop.wrong.clear()
        await shop.app.drain()
        found = await fate(shop, event)
    assert (found.status, found.attempts, found.why, found.run_at) == ("delivered", 3, (), None)
    assert found.handled_at is not None
    assert moments(found) == [("failed", 1, attempt, "value_error", None, None) for attempt in (1, 2)]
    assert {each.message for each in found.history} == {"ValueError: not today"}
    assert {each.worker for each in found.history} == {"drain"}
    assert found.history[0].at < found.history[1].at < found.handled_at


async def test_a_dead_letter_that_was_replayed_and_discarded(database: str) -> None:
    async with opened(database) as shop:
        [event] = await published(shop, "a1")
        shop.wrong["a1"] = never
        await shop.app.drain()
        found = await fate(shop, event)
        assert (found.status, found.attempts, found.error_code) == ("failed", 1, "bury")
        assert found.buried_at is not None
        assert found.error == "Bury: never"
        await shop.app.replay(event, by="an operator")
        await shop.app.drain()
        await shop.rows("select outrider.discard(array(select id from outrider.delivery), 'another', 'too old')")
        found = await fate(shop, event)
        replay, act = (await told(shop, event)).acts
    assert found.status == "discarded"
    assert moments(found) == [
        ("failed", 1, 1, "bury", None, None),
        ("replayed", 1, None, None, "an operator", None),
        ("failed", 2, 1, "bury", None, None),
        ("discarded", 2, None, None, "another", "too old"),
    ]
    assert (replay.action, replay.by, replay.details) == ("replay", "an operator", {"replayed": 1})
    assert (act.action, act.by, act.role, act.subscription) == ("discard", "another", "postgres", "shop.effect")


async def test_handled_after_a_replay(database: str) -> None:
    """Attempts are counted anew in each cycle."""
    async with opened(database) as shop:
        [event] = await published(shop, "a1")
        shop.wrong["a1"] = never
        await shop.app.drain()
        await shop.app.replay(event)
        shop.wrong.clear()
        await shop.app.drain()
        found = await fate(shop, event)
    assert (found.status, found.attempts, len(found.history)) == ("delivered", 1, 2)


async def test_handled_as_another_event(database: str) -> None:
    async with opened(database) as shop:
        first, second = await published(shop, "a1", "a2", idempotency_key="same")
        await shop.app.drain()
        found = await fate(shop, second)
    assert (found.status, found.handled_as, found.attempts) == ("delivered", first, None)


async def test_withdrawn_with_the_failures_that_it_had(database: str) -> None:
    async with opened(database) as shop:
        [event] = await published(shop, "a1")
        shop.wrong["a1"] = later
        await shop.app.drain()
        await shop.app.withdraw(event, by="me", reason="wrong price")
        story, found = await told(shop, event), await fate(shop, event)
    assert story.withdrawal == Withdrawal(at=story.withdrawal.at, by="me", reason="wrong price")  # type: ignore[union-attr]
    assert (found.status, found.why) == ("withdrawn", ())
    assert moments(found) == [("failed", 1, 1, "value_error", None, None)]
    assert [(act.action, act.by, act.details["reason"]) for act in story.acts] == [("withdraw", "me", "wrong price")]


async def test_readers(database: str) -> None:
    def declare(shop: Shop) -> None:
        shop.reader = shop.app.reader(name="shop.audit")  # type: ignore[attr-defined]

    async with opened(database, declare) as shop:
        [event] = await published(shop, "a1")
        found = await fate(shop, event, "shop.audit")
        assert (found.kind, found.status, found.why) == ("reader", "pending", ("unread",))
        async with shop.app.connect() as conn, conn.transaction():
            await shop.reader.take(conn)  # type: ignore[attr-defined]
        found = await fate(shop, event, "shop.audit")
    assert (found.status, found.attempts, found.handled_at) == ("delivered", None, None)


async def test_an_envelope_that_was_published_twice(database: str) -> None:
    async with opened(database) as shop:
        async with shop.app.connect() as conn:
            envelope = shop.app.envelope(Placed(customer="a"))
            for _ in range(2):
                await shop.app.publish_many(conn, [envelope])
        story = await told(shop, envelope.id)
    assert (story.envelope.seq, story.also, len(story.fates)) == (1, (2,), 1)


# Why it is pending


async def unread(shop: Shop) -> UUID:
    [event] = await published(shop, "a1")
    return event


async def parked(shop: Shop) -> UUID:
    shop.wrong["a1"] = later
    event = await unread(shop)
    await shop.app.drain()
    return event


async def due(shop: Shop) -> UUID:
    event = await parked(shop)
    await shop.make_due()
    return event


async def unreached(shop: Shop) -> UUID:
    """Its failure was told, and the log has not been read up to it since."""
    event = await due(shop)
    await shop.rows("update outrider.delivery set reached = false")
    return event


async def suspect(shop: Shop) -> UUID:
    event = await due(shop)
    await shop.rows("update outrider.delivery set suspect = true")
    return event


async def behind(shop: Shop) -> UUID:
    await parked(shop)
    [event] = await published(shop, "a2")
    await shop.app.drain()
    return event


async def will_be_behind(shop: Shop) -> UUID:
    await parked(shop)
    [event] = await published(shop, "a2")
    return event


async def paused(shop: Shop) -> UUID:
    await shop.app.pause("shop.effect")
    return await unread(shop)


async def all_paused(shop: Shop) -> UUID:
    await shop.app.pause()
    return await unread(shop)


async def broken(shop: Shop) -> UUID:
    await parked(shop)
    return await unread(shop)


WHY: dict[Callable[[Shop], Any], tuple[str, ...]] = {
    unread: ("unread",),
    parked: ("retry",),
    due: ("due",),
    unreached: ("unread",),
    suspect: ("suspect", "due"),
    behind: ("behind",),
    will_be_behind: ("unread", "behind"),
    paused: ("paused", "unread"),
    all_paused: ("all_paused", "unread"),
    broken: ("breaker", "unread", "behind"),
}


def with_breaker(shop: Shop) -> None:
    options: Any = {"breaker": Breaker(failures=1, probe="1h", longest="2h")}
    shop.app.handler(Placed, name="shop.effect", **options)(shop.effect)


@pytest.mark.parametrize("come_to", WHY, ids=lambda each: each.__name__)
async def test_why_it_is_pending(database: str, come_to: Callable[[Shop], Any]) -> None:
    async with opened(database, with_breaker if come_to is broken else None) as shop:
        event = await come_to(shop)
        found = await fate(shop, event)
        assert (found.status, found.why) == ("pending", (*WHY[come_to], "no_worker"))
        async with await AsyncConnection.connect(database, autocommit=True) as conn:
            await serve(conn, "shop.effect")
            assert (await fate(shop, event)).why == WHY[come_to]
            await conn.execute("update outrider.worker set unable = subscriptions")
            assert (await fate(shop, event)).why == (*WHY[come_to], "unable")
            await conn.execute("update outrider.worker set stopping = true")
            assert (await fate(shop, event)).why == (*WHY[come_to], "no_worker")
        for why, fact in (("retry", found.run_at), ("breaker", found.open_until)):
            assert (why in found.why) <= (fact is not None and fact > (await told(shop, event)).read_at)
        assert ("paused" in found.why or "all_paused" in found.why) == (found.paused_at is not None)
        if "behind" in found.why:
            [first] = await shop.rows("select id, seq from outrider.outbox order by seq limit 1")
            assert (found.behind, found.behind_seq) == (first["id"], first["seq"])


async def test_in_total_order_everything_waits_behind_the_first(database: str) -> None:
    def declare(shop: Shop) -> None:
        shop.app.handler(Placed, name="shop.effect", order="total")(shop.effect)

    async with opened(database, declare) as shop:
        first = await parked(shop)
        [event] = await published(shop, "b1")
        await shop.app.drain()
        found = await fate(shop, event)
    assert (found.why, found.behind) == (("unread", "behind", "no_worker"), first)


async def test_a_schema_that_lacks_the_tables_for_it(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    known = migrate.known()
    async with opened(database) as shop:
        newer = migrate.Migration(known[-1].version + 1, "next", False, "-", "")
        monkeypatch.setattr(migrate, "known", lambda: (*known, newer))
        with pytest.raises(SchemaMismatch, match="run outrider migrate"):
            await shop.app.event(uuid4())
        with pytest.raises(SchemaMismatch, match="run outrider migrate"):
            await shop.app.withdraw(uuid4())


async def test_nothing_installed(empty_database: str) -> None:
    async with Outrider(dsn=empty_database) as app:
        with pytest.raises(SchemaMismatch, match="is not installed here"):
            await app.event(uuid4())
