"""Dead letters go back into their line: per subscription, in order, marked, and never twice."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from tests.worker.shop import Placed, Shop, opened

from outrider import Bury, OutriderError
from outrider.errors import CursorError
from outrider.postgres.admin.replay import Replayed


def fail() -> None:
    raise Bury("not today")


async def dead(shop: Shop, *names: str) -> dict[str, UUID]:
    """Events of which those in `shop.wrong` are buried; the ids of all."""
    await shop.publish(*names)
    await shop.app.drain()
    rows = await shop.rows("select id, (payload->>'customer') || (payload->>'n') as name from outrider.outbox")
    return {row["name"]: row["id"] for row in rows}


async def test_a_dead_letter_is_handled_after_its_replay(database: str) -> None:
    async with opened(database) as shop:
        shop.wrong["a1"] = fail
        ids = await dead(shop, "a1", "a2")
        assert await shop.effects() == ["a2"]
        shop.wrong.clear()
        assert await shop.app.replay(ids["a1"], by="an operator") == [Replayed("shop.effect", "replayed")]
        (parked,) = (await shop.parked()).values()
        assert (parked["status"], parked["attempts"], parked["cycle"], parked["head"]) == ("pending", 0, 2, True)
        assert [entry.get("by") for entry in parked["failure_history"]] == [None, "an operator"]
        assert (await shop.app.drain()).handled == 1
        assert await shop.effects() == ["a2", "a1"]
        assert await shop.parked() == {}
        assert await shop.app.replay(ids["a1"]) == [Replayed("shop.effect", "skipped_handled")]
        assert await shop.app.replay(ids["a1"], subscription="shop.other") == [Replayed("shop.other", "not_found")]
        with pytest.raises(TypeError, match="a UUID, not str"):
            await shop.app.replay("a1")  # type: ignore[arg-type]


async def test_one_that_fails_again_is_in_its_next_cycle(database: str) -> None:
    async with opened(database) as shop:
        shop.wrong["a1"] = fail
        ids = await dead(shop, "a1")
        await shop.app.replay(ids["a1"])
        await shop.app.drain()
        (parked,) = (await shop.parked()).values()
        assert (parked["status"], parked["cycle"]) == ("failed", 2)
        assert [entry["cycle"] for entry in parked["failure_history"]] == [1, 1, 2]


async def test_a_replayed_one_waits_in_line(database: str) -> None:
    """Its key has a parked event by now: the first of both is the head."""

    def later() -> None:
        raise RuntimeError("later")

    async with opened(database) as shop:
        shop.wrong |= {"a1": fail, "a2": later}
        ids = await dead(shop, "a1", "a2", "a3")
        assert list(await shop.parked()) == ["a1", "a2", "a3"]
        shop.wrong.clear()
        await shop.app.replay(ids["a1"])
        assert {name: row["head"] for name, row in (await shop.parked()).items()} == {
            "a1": True,
            "a2": False,
            "a3": False,
        }
        await shop.make_due()
        await shop.app.drain()
        assert await shop.effects() == ["a1", "a2", "a3"]


async def test_only_the_named_subscription(database: str) -> None:
    def declare(shop: Shop) -> None:
        for name in ("shop.one", "shop.two"):
            shop.app.handler(Placed, name=name)(shop.effect)

    async with opened(database, declare) as shop:
        shop.wrong["a1"] = fail
        ids = await dead(shop, "a1")
        assert await shop.app.replay(ids["a1"], subscription="shop.two") == [Replayed("shop.two", "replayed")]
        assert await shop.app.replay(ids["a1"], subscription="shop.two") == [Replayed("shop.two", "not_found")]
        assert await shop.app.replay(ids["a1"]) == [Replayed("shop.one", "replayed")]


async def test_what_was_handled_meanwhile_is_skipped(database: str) -> None:
    """Another event with its idempotency key came through."""
    async with opened(database) as shop:
        shop.wrong["a1"] = fail
        await shop.publish("a1", idempotency_key="once")
        await shop.app.drain()
        (row,) = await shop.rows("select id from outrider.outbox")
        await shop.publish("a2", idempotency_key="once")
        await shop.app.drain()
        assert await shop.app.replay(row["id"]) == [Replayed("shop.effect", "skipped_handled")]
        assert await shop.effects() == ["a2"]


async def test_two_replays_at_once(database: str) -> None:
    async with opened(database) as shop:
        shop.wrong["a1"] = fail
        ids = await dead(shop, "a1")
        query = "select outcome from outrider.outbox_replay(%s)"
        with psycopg.connect(database) as one, psycopg.connect(database, autocommit=True) as two:
            assert one.execute(query, [ids["a1"]]).fetchall() == [("replayed",)]
            impatient(two)
            with pytest.raises(psycopg.errors.LockNotAvailable):
                two.execute(query, [ids["a1"]])
            one.commit()
            assert two.execute(query, [ids["a1"]]).fetchall() == [("not_found",)]


async def test_it_waits_for_the_batch_that_is_being_handled(database: str) -> None:
    """Nobody may take from a line while it changes."""
    async with opened(database) as shop:
        shop.wrong["a1"] = fail
        ids = await dead(shop, "a1")
        await shop.publish("b1")
        take = "select outcome from outrider.take('shop.effect', p_knows => '{dispatch.placed}')"
        with psycopg.connect(database) as working, psycopg.connect(database, autocommit=True) as replaying:
            working.execute(take)
            impatient(replaying)
            with pytest.raises(psycopg.errors.LockNotAvailable):
                replaying.execute("select outcome from outrider.outbox_replay(%s)", [ids["a1"]])
            working.rollback()
            replayed = replaying.execute("select outcome from outrider.outbox_replay(%s)", [ids["a1"]])
            assert replayed.fetchall() == [("replayed",)]


async def test_unknown_events_and_generations_without_workers(database: str) -> None:
    async with opened(database) as shop:
        assert await shop.app.replay(uuid4()) == [Replayed(None, "not_found")]
        shop.wrong["a1"] = fail
        ids = await dead(shop, "a1")
        with pytest.raises(CursorError, match=r"no worker of generation 7 has started for .shop\.effect"):
            await shop.app.replay(ids["a1"], generation=7)
        assert [row["status"] for row in (await shop.parked()).values()] == ["failed"]


async def test_to_a_generation_that_has_workers(database: str) -> None:
    """Its workers get it; those of the old generation do not see it any more."""
    async with opened(database) as shop:
        shop.wrong |= {"a1": fail, "a2": fail}
        ids = await dead(shop, "a1", "a2")
        shop.wrong.clear()
        await open_generation(shop, 7)
        assert await shop.app.replay(ids["a1"], generation=7) == [Replayed("shop.effect", "replayed")]
        parked = (await shop.parked())["a1"]
        assert (parked["generation"], parked["head"], parked["reached"]) == (7, True, True)
        assert parked["failure_history"][-1]["generation"] == 7
        assert taken(database, 0) == []
        assert taken(database, 7) == [ids["a1"]]
        await shop.app.replay(ids["a2"])
        assert taken(database, 0) == [ids["a2"]]
        assert (await shop.app.drain()).handled == 2


async def test_before_the_log_was_read_up_to_it(database: str) -> None:
    """Buried, and replayed before the next take: it waits until the log has been read up to it, in its line."""
    async with opened(database) as shop:
        await shop.publish("a1", "a2")
        told = bury_first(database)
        assert told == 1
        (row,) = await shop.rows("select event_id, reached from outrider.delivery")
        assert not row["reached"]
        assert await shop.app.replay(row["event_id"]) == [Replayed("shop.effect", "replayed")]
        await shop.app.drain()
        assert await shop.effects() == ["a1", "a2"]


async def test_to_another_generation_before_the_log_was_read_up_to_it(database: str) -> None:
    """The other generation's cursor will never come to it, and need not; the old one passes it over."""
    async with opened(database) as shop:
        await shop.publish("a1", "a2")
        bury_first(database)
        await open_generation(shop, 7)
        ids = {row["n"]: row["id"] for row in await shop.rows("select id, payload->>'n' as n from outrider.outbox")}
        await shop.app.replay(ids["1"], generation=7)
        assert taken(database, 7) == [ids["1"]]
        assert taken(database, 0) == [ids["2"]]
        await shop.app.drain()
        assert sorted(await shop.effects()) == ["a1", "a2"]


async def test_a_failure_that_is_told_twice_around_a_replay_buries_it_once(database: str) -> None:
    """The answer to the first telling was lost; an operator was quicker than the second."""
    async with opened(database) as shop:
        await shop.publish("a1")
        bury_first(database, batch=5)
        (row,) = await shop.rows("select event_id from outrider.delivery")
        await shop.app.replay(row["event_id"])
        with psycopg.connect(database, autocommit=True) as conn:
            assert conn.execute(PARK, told(conn, batch=5)).fetchone() == ([],)
            assert conn.execute("select status, attempts from outrider.delivery").fetchone() == ("pending", 0)
            # Another failure is another batch.
            assert conn.execute(PARK, told(conn, batch=6)).fetchone() == ([1],)
            assert conn.execute("select status, cycle from outrider.delivery").fetchone() == ("failed", 2)


async def test_force_handles_it_once_more(database: str) -> None:
    """Its receipt goes into the audit, and a new one takes its place."""
    async with opened(database) as shop:
        ids = await dead(shop, "a1")
        assert await shop.effects() == ["a1"]
        (before,) = await shop.rows("select * from outrider.event_handled")
        with pytest.raises(CursorError, match="name the subscription"):
            await shop.app.replay(ids["a1"], force=True)
        again = await shop.app.replay(ids["a1"], subscription="shop.effect", force=True, by="an operator")
        assert again == [Replayed("shop.effect", "replayed")]
        (audit,) = await shop.rows("select * from outrider.audit")
        assert (audit["action"], audit["by"], audit["event_id"]) == ("force_replay", "an operator", ids["a1"])
        assert audit["details"]["receipt"]["event_id"] == str(ids["a1"])
        assert datetime.fromisoformat(audit["details"]["receipt"]["handled_at"]) == before["handled_at"]
        await shop.app.drain()
        await shop.app.drain()
        assert await shop.effects() == ["a1", "a1"]
        assert await shop.app.replay(ids["a1"]) == [Replayed("shop.effect", "skipped_handled")]


async def test_force_brings_back_what_was_discarded(database: str) -> None:
    async with opened(database) as shop:
        shop.wrong["a1"] = fail
        ids = await dead(shop, "a1")
        assert (await shop.app.dead_letters.discard(reason="a test order", by="an operator")).discarded == 1
        assert await shop.app.replay(ids["a1"]) == [Replayed(None, "not_found")]
        shop.wrong.clear()
        await shop.app.replay(ids["a1"], subscription="shop.effect", force=True)
        (parked,) = (await shop.parked()).values()
        first, discarded, replayed = parked["failure_history"]
        assert (first["code"], discarded["reason"], replayed["forced"]) == ("bury", "a test order", True)
        await shop.app.drain()
        assert await shop.effects() == ["a1"]
        rows = await shop.rows("select action, details from outrider.audit order by id")
        assert [row["action"] for row in rows] == ["discard", "force_replay"]
        assert rows[1]["details"] == {"discarded": True}


async def test_a_key_that_another_event_has_used_is_skipped_unless_forced(database: str) -> None:
    async with opened(database) as shop:
        shop.wrong["a1"] = fail
        await shop.publish("a1", idempotency_key="once")
        await shop.app.drain()
        (row,) = await shop.rows("select id from outrider.outbox")
        await shop.publish("a2", idempotency_key="once")
        await shop.app.drain()
        done = await shop.app.dead_letters.replay()
        assert (done.replayed, done.skipped_handled, done.not_found) == (0, 1, 0)
        assert (await shop.app.dead_letters.count()).handled == 1
        shop.wrong.clear()
        await shop.app.replay(row["id"], subscription="shop.effect", force=True)
        await shop.app.drain()
        assert await shop.effects() == ["a2", "a1"]


async def test_an_edited_payload_reaches_the_handler_and_not_the_log(database: str) -> None:
    async with opened(database) as shop:
        shop.wrong |= {"a1": fail, "b9": fail}
        ids = await dead(shop, "a1")
        (logged,) = await shop.rows("select * from outrider.outbox")
        done = await shop.app.replay(ids["a1"], payload={"customer": "b", "n": 9}, by="an operator")
        assert done == [Replayed("shop.effect", "replayed")]
        await shop.app.drain()
        # It fails again, and keeps what was made of it.
        (parked,) = (await shop.parked()).values()
        assert (parked["status"], parked["payload"]) == ("failed", {"customer": "b", "n": 9})
        assert parked["failure_history"][1]["edited"] is True
        shop.wrong.clear()
        await shop.app.replay(ids["a1"])
        await shop.app.drain()
        assert await shop.effects() == ["b9"]
        assert await shop.rows("select * from outrider.outbox") == [logged]
        (audit,) = await shop.rows("select * from outrider.audit where action = 'edit'")
        assert (audit["action"], audit["by"], audit["subscription"]) == ("edit", "an operator", "shop.effect")
        assert audit["details"] == {"payload": {"customer": "b", "n": 9}}


async def test_an_event_is_a_payload_too(database: str) -> None:
    async with opened(database) as shop:
        shop.wrong["a1"] = fail
        ids = await dead(shop, "a1")
        await shop.app.replay(ids["a1"], payload=Placed(customer="c", n=3))
        await shop.app.drain()
        assert await shop.effects() == ["c3"]


@pytest.mark.parametrize(
    ("payload", "why"),
    [
        ({"customer": "b", "n": "many"}, "is not a Placed: n: Input should be a valid integer"),
        ({"customer": "b", "n": float("nan")}, "is not JSON"),
        ({"customer": {1, 2}}, "is not JSON"),
        ({"customer": "\ud800"}, "is not JSON"),
        ({"customer": "b\x00"}, "contains \\u0000"),
        ("[1]", "is not a JSON object"),
        ("{'customer': 1}", "is not JSON"),
        ('{"customer": "b", "n": Infinity}', "Infinity is not a number in JSON"),
        ({"customer": "b" * 300_000}, "at most 262144 bytes"),
    ],
    ids=str,
)
async def test_a_payload_that_cannot_work_is_refused(database: str, payload: Any, why: str) -> None:
    async with opened(database) as shop:
        shop.wrong["a1"] = fail
        ids = await dead(shop, "a1")
        with pytest.raises(OutriderError, match=re.escape(why)):
            await shop.app.replay(ids["a1"], payload=payload)
        (parked,) = (await shop.parked()).values()
        assert (parked["status"], parked["payload"]) == ("failed", None)
        assert await shop.rows("select * from outrider.audit") == []


async def test_a_generation_that_is_folded_meanwhile_is_refused(database: str) -> None:
    """The replay waits for the cursors that go away; nobody would ever come for what it moved there."""
    async with opened(database) as shop:
        shop.wrong["a1"] = fail
        ids = await dead(shop, "a1")
        await open_generation(shop, 7)
        with psycopg.connect(database) as folding, psycopg.connect(database) as replaying:
            assert folding.execute("select outrider.fold_generation('shop.effect', 7)").fetchone() == (True,)
            with ThreadPoolExecutor() as pool:
                query = "select outcome from outrider.outbox_replay(%s, 7)"
                answer = pool.submit(lambda: replaying.execute(query, [ids["a1"]]).fetchall())
                waits(database, replaying)
                folding.commit()
                with pytest.raises(psycopg.Error, match="no worker of generation 7"):
                    answer.result(timeout=30)
        assert [(row["status"], row["generation"]) for row in (await shop.parked()).values()] == [("failed", 0)]


async def test_partitions_that_are_doubled_meanwhile_are_held(database: str) -> None:
    """The line has moved to another cursor while the replay waited for the old one: it holds that one too."""
    async with opened(database) as shop:
        names = [f"{chr(97 + n)}1" for n in range(12)]
        shop.wrong |= dict.fromkeys(names, fail)
        ids = await dead(shop, *names)
        with psycopg.connect(database) as doubling, psycopg.connect(database) as replaying:
            doubling.execute(
                "select outrider.register('shop.effect', 'handler', 'shop', '{dispatch.placed}', 2, 'now', 'key')"
            )
            moved = "select event_id from outrider.delivery where partition = 1 order by id limit 1"
            (event_id,) = doubling.execute(moved).fetchone() or (None,)
            assert event_id in ids.values()
            with ThreadPoolExecutor() as pool:
                query = "select outcome from outrider.outbox_replay(%s)"
                answer = pool.submit(lambda: replaying.execute(query, [event_id]).fetchall())
                waits(database, replaying)
                doubling.commit()
                assert answer.result(timeout=30) == [("replayed",)]
            with psycopg.connect(database) as looking:
                free = "select from outrider.cursor where partition = 1 for update skip locked"
                assert looking.execute(free).fetchall() == []


async def test_what_is_handled_while_a_replay_waits_is_skipped(database: str) -> None:
    """Another operator was quicker, and so was the worker."""
    async with opened(database) as shop:
        shop.wrong["a1"] = fail
        ids = await dead(shop, "a1")
        with psycopg.connect(database) as working, psycopg.connect(database, autocommit=True) as replaying:
            working.execute("select from outrider.cursor for update")
            with ThreadPoolExecutor() as pool:
                query = "select subscription, outcome from outrider.outbox_replay(%s)"
                answer = pool.submit(lambda: replaying.execute(query, [ids["a1"]]).fetchall())
                waits(database, replaying)
                working.execute("delete from outrider.delivery")
                working.execute(
                    """insert into outrider.event_handled (
                           handler_name, idempotency_key, event_id, seq, generation, content_class)
                       select 'shop.effect', id::text, id, seq, 0, 'internal' from outrider.outbox"""
                )
                working.commit()
                assert answer.result(timeout=30) == [("shop.effect", "skipped_handled")]


PARK = "select outrider.park('shop.effect', %(cursor)s, %(failed)s::jsonb, null, 'a worker')"


def told(conn: psycopg.Connection[Any], *, batch: int | None) -> dict[str, Any]:
    """That the first event of the log failed for good, at its first attempt."""
    (cursor,) = conn.execute("select id from outrider.cursor where generation = 0").fetchone() or (None,)
    failed = {"seq": 1, "attempt": 1, "delay": 0, "code": "bury", "message": "no", "counted": True, "dead": True}
    return {"cursor": cursor, "failed": json.dumps([failed | {"batch": batch and f"{cursor}.{batch}"}])}


def bury_first(dsn: str, *, batch: int | None = None) -> int:
    """As a worker does it before it takes again: the cursor has not moved."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        (parked,) = conn.execute(PARK, told(conn, batch=batch)).fetchone() or ([],)
        return len(parked)


def taken(dsn: str, generation: int) -> list[UUID]:
    """What the workers of a generation would get now."""
    take = "select id from outrider.take('shop.effect', p_generation => %s, p_knows => '{dispatch.placed}') offset 1"
    with psycopg.connect(dsn) as conn:
        found = [row[0] for row in conn.execute(take, [generation])]
        conn.rollback()
        conn.execute(
            "select outrider.park('shop.effect', id, null) from outrider.cursor where generation = %s", [generation]
        )
        return found


async def open_generation(shop: Shop, generation: int) -> None:
    """As a worker of it does when it starts."""
    await shop.rows(f"select outrider.open_generation('shop.effect', {generation})")


def impatient(conn: psycopg.Connection[Any]) -> None:
    """A replay waits 100 ms for its partition, instead of 10 s."""
    for (function,) in conn.execute("select oid::regprocedure::text from pg_proc where proname = 'replay'").fetchall():
        conn.execute(f"alter function {function} set lock_timeout = '100ms'".encode())


def waits(dsn: str, session: psycopg.Connection[Any]) -> None:
    """Until that session waits for a lock."""
    waiting = "select exists (select from pg_locks where pid = %s and not granted)"
    with psycopg.connect(dsn, autocommit=True) as conn:
        while conn.execute(waiting, [session.info.backend_pid]).fetchone() != (True,):
            pass
