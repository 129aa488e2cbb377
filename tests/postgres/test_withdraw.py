"""A withdrawn event is taken by nobody who has not handled it, now or later; and what withdraw says of each is true."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg.rows import dict_row
from tests.postgres.bench import TAKE, Bench, bench
from tests.worker.shop import opened

from outrider.errors import NoSuchEvent, WithdrawRefused
from outrider.postgres.admin import event_history as events
from outrider.postgres.admin.event_history import Withdrawn

BLOCKED = """select count(*) from pg_stat_activity
             where query like '%%outrider.withdraw%%' and %s = any (pg_blocking_pids(pid))"""


@pytest.fixture
def log(database: str) -> Iterator[Bench]:
    with bench(database) as log:
        yield log


def everywhere(log: Bench, event: UUID, status: str) -> bool:
    return set(log.status(event).values()) == {status}


# Whoever has not handled it does not get it


def test_unread(log: Bench) -> None:
    log.register("a.handler")
    log.register("a.other", partitions=4, order="none")
    log.register("a.reader", kind="reader")
    event, next_one = log.publish(key="k"), log.publish(key="k")
    outcomes = dict.fromkeys(("a.handler", "a.other", "a.reader"), "withdrawn")
    assert log.withdraw(event, "me", "wrong price") == outcomes
    assert log.status(event) == outcomes
    assert sorted(log.drain()) == [(name, next_one) for name in outcomes]
    assert log.status(event) == outcomes


def test_late(log: Bench) -> None:
    """Not to be seen before its transaction commits; then the cursor has passed it already."""
    log.register("a.handler")
    log.register("a.reader", kind="reader")
    with log.session() as slow:
        late, quick = log.publish(on=slow), log.publish()
        log.drain()
        assert log.rows("select * from outrider.withdraw(%s)", [late]) == [(None, "not_found")]
        slow.commit()
    assert log.withdraw(late) == {"a.handler": "withdrawn", "a.reader": "withdrawn"}
    assert log.drain() == []
    assert everywhere(log, quick, "delivered")
    assert everywhere(log, late, "withdrawn")


def test_late_while_it_is_read_in_pages(log: Bench) -> None:
    log.register("a.handler")
    with log.session() as slow:
        late = [log.publish(on=slow) for _ in range(6)]
        log.publish()
        log.drain()
        slow.commit()
    log.step("a.handler", limit=2, scan=2)
    assert log.withdraw(late[3]) == {"a.handler": "withdrawn"}
    assert log.work("a.handler", limit=2, scan=2) == [late[2], late[4], late[5]]


def test_late_in_pages_of_a_restored_log(log: Bench) -> None:
    """The floor is above what is still owed there."""
    log.register("a.handler")
    with log.session() as slow:
        late = [log.publish(on=slow) for _ in range(4)]
        log.publish()
        log.drain()
        slow.commit()
    log.conn.execute("update outrider.cursor set cluster = 1")
    log.step("a.handler", limit=1, scan=1)
    log.conn.execute("update outrider.cursor set floor = seq")
    assert log.one("select owing is not null and owed_after < floor from outrider.cursor")
    assert log.withdraw(late[2]) == {"a.handler": "withdrawn"}
    assert log.work("a.handler", limit=1, scan=1) == [late[1], late[3]]


@pytest.mark.parametrize("order", ["key", "total", "none"])
def test_parked_and_its_line_goes_on(log: Bench, order: str) -> None:
    log.register("a.handler", order=order)
    first, second, third = (log.publish(key="k") for _ in range(3))
    log.work("a.handler", fails=[first])
    with psycopg.connect(log.dsn, autocommit=True) as listening:
        listening.execute("listen outbox_default")
        assert log.withdraw(first) == {"a.handler": "withdrawn"}
        pokes = [poke.payload for poke in listening.notifies(timeout=60, stop_after=1)]
    assert pokes == ["a.one"], "workers may sleep until the retry of the first one"
    assert log.one("select count(*) from outrider.delivery where not head") == (1 if order == "key" else 0)
    if order == "key":
        log.make_due()
    log.work("a.handler")
    assert log.ran == [("a.handler", second), ("a.handler", third)]
    assert everywhere(log, first, "withdrawn")


def test_parked_in_the_middle_of_its_line(log: Bench) -> None:
    log.register("a.handler")
    first, second, third = (log.publish(key="k") for _ in range(3))
    log.work("a.handler", fails=[first])
    assert log.withdraw(second) == {"a.handler": "withdrawn"}
    assert log.drain() == []
    log.make_due()
    assert log.work("a.handler") == [first, third]


def test_a_dead_letter(log: Bench) -> None:
    log.register("a.handler")
    event = log.publish()
    log.work("a.handler", dies=[event])
    assert log.withdraw(event) == {"a.handler": "withdrawn"}
    assert log.rows("select outcome from outrider.outbox_replay(%s)", [event]) == [("not_found",)]
    assert log.one("select count(*) from outrider.delivery") == 0
    assert everywhere(log, event, "withdrawn")


def test_one_that_failed_and_whose_parking_comes_after_the_withdrawal(log: Bench) -> None:
    """Its batch was rolled back, and before the worker could say so it was withdrawn: nothing may wait behind it."""
    log.register("a.handler")
    event, next_one = log.publish(key="k"), log.publish(key="k")
    with psycopg.connect(log.dsn, row_factory=dict_row) as worker:
        head, taken = worker.execute(TAKE, {"name": "a.handler", "limit": 1, "scan": 1, "generation": 0}).fetchall()
        worker.rollback()
    assert log.withdraw(event) == {"a.handler": "withdrawn"}
    log.park("a.handler", head["cursor"], head["batch"], taken)
    assert log.drain() == [("a.handler", next_one)]
    assert everywhere(log, event, "withdrawn")
    assert log.one("select count(*) from outrider.delivery") == 0


def test_subscriptions_that_are_made_later(log: Bench) -> None:
    event, next_one = log.publish(), log.publish()
    assert log.withdraw(event) == {}
    log.register("a.later", start="beginning")
    log.register("a.reader", kind="reader", start="beginning")
    assert everywhere(log, event, "withdrawn")
    assert sorted(log.drain()) == [("a.later", next_one), ("a.reader", next_one)]


def test_a_subscription_that_it_never_concerned_does_not_have_it_withdrawn(log: Bench) -> None:
    log.register("a.handler")
    event = log.publish()
    log.register("a.later")
    assert log.withdraw(event) == {"a.handler": "withdrawn"}
    assert log.status(event) == {"a.handler": "withdrawn"}


@pytest.mark.parametrize("generation", [0, 7, 9])
def test_all_generations(log: Bench, generation: int) -> None:
    """With cursors of its own, without, and with cursors that come later."""
    log.register("a.handler")
    log.conn.execute("select outrider.open_generation('a.handler', 7)")
    event, next_one = log.publish(generation=generation), log.publish(generation=generation)
    assert log.withdraw(event) == {"a.handler": "withdrawn"}
    log.conn.execute("select outrider.open_generation('a.handler', 9)")
    assert log.drain() == [("a.handler", next_one)]


# What it says is true


def test_too_late(log: Bench) -> None:
    """A reader's word counts as well, although it leaves no receipt; and it stays so."""
    log.register("a.handler")
    log.register("a.reader", kind="reader")
    log.register("a.slow")
    log.register("a.slow_reader", kind="reader")
    event = log.publish()
    log.work("a.handler")
    log.work("a.reader")
    expected = {
        "a.handler": "delivered", "a.reader": "delivered", "a.slow": "withdrawn", "a.slow_reader": "withdrawn",
    }  # fmt: skip
    assert log.withdraw(event) == expected
    assert log.drain() == []
    assert log.status(event) == expected


def test_twice(log: Bench) -> None:
    log.register("a.handler")
    log.register("a.reader", kind="reader")
    event = log.publish()
    log.work("a.reader")
    expected = {"a.handler": "withdrawn", "a.reader": "delivered"}
    assert log.withdraw(event, "first", "one reason") == expected
    log.drain()
    assert log.withdraw(event, "second", "another reason") == expected
    assert log.rows("select withdrawn_by, reason from outrider.withdrawal") == [("first", "one reason")]
    assert log.rows("select by, details ->> 'reason' from outrider.audit order by id") == [
        ("first", "one reason"),
        ("second", "another reason"),
    ]


def test_an_unknown_id(log: Bench) -> None:
    assert log.rows("select * from outrider.withdraw(%s)", [uuid4()]) == [(None, "not_found")]
    assert log.one("select count(*) from outrider.audit") == 0


def test_a_corrected_event_with_the_same_idempotency_key_is_handled(log: Bench) -> None:
    log.register("a.handler")
    wrong = log.publish(idempotency_key="order 7")
    assert log.withdraw(wrong) == {"a.handler": "withdrawn"}
    log.drain()
    right = log.publish(idempotency_key="order 7")
    assert log.drain() == [("a.handler", right)]
    assert log.status(wrong) == {"a.handler": "withdrawn"}
    assert log.withdraw(wrong) == {"a.handler": "withdrawn"}
    assert log.one("select handled_as from outrider.event_status where event_id = %s", [wrong]) == right


def test_one_whose_key_was_handled_before_was_too_late(log: Bench) -> None:
    log.register("a.handler")
    first, again = log.publish(idempotency_key="order 7"), log.publish(idempotency_key="order 7")
    log.step("a.handler", limit=1)
    assert log.ran == [("a.handler", first)]
    assert log.withdraw(again) == {"a.handler": "delivered"}
    assert log.drain() == []
    assert log.status(again) == {"a.handler": "delivered"}


def test_the_audit_has_what_was_owed(log: Bench) -> None:
    log.register("a.handler")
    log.register("a.other")
    event = log.publish()
    log.work("a.handler", dies=[event])
    log.withdraw(event, "an operator", "wrong price")
    [(by, role, action, event_id, details)] = log.rows(
        "select by, role, action, event_id, details from outrider.audit where action = 'withdraw'"
    )
    assert (by, role, action, event_id) == ("an operator", log.conn.info.user, "withdraw", event)
    [owed] = details["owed"]
    assert (owed["subscription"], owed["status"], owed["last_error_code"]) == ("a.handler", "failed", "told")
    assert [entry["message"] for entry in owed["failure_history"]] == ["as told"]
    assert details["outcomes"] == {"a.handler": "withdrawn", "a.other": "withdrawn"}


# It waits for those who are at work


@contextmanager
def withdrawing(log: Bench, event: UUID, busy: psycopg.Connection[Any]) -> Iterator[dict[str, str]]:
    """Begun in another thread, and waiting for that session; at the end of the block it must have an answer."""
    answer: dict[str, str] = {}

    def run() -> None:
        with psycopg.connect(log.dsn, autocommit=True) as conn:
            rows = conn.execute("select * from outrider.withdraw(%s)", [event]).fetchall()
            answer.update(dict(rows))

    thread = threading.Thread(target=run)
    thread.start()
    waits_for(log, busy)
    yield answer
    thread.join(60)
    assert not thread.is_alive()


def waits_for(log: Bench, busy: psycopg.Connection[Any]) -> None:
    """Until the withdrawal waits for that session."""
    deadline = time.monotonic() + 60
    while log.one(BLOCKED, [busy.info.backend_pid]) == 0:
        assert time.monotonic() < deadline, "it does not wait"


def taken(conn: psycopg.Connection[Any], name: str, generation: int = 0) -> list[UUID]:
    """A batch in progress, settled but not committed."""
    asked = {"name": name, "limit": 10, "scan": 10, "generation": generation}
    head, *events = conn.execute(TAKE, asked).fetchall()
    if head[2] is not None:
        conn.execute("select outrider.settle(%s)", [head[2]])
    return [event[6] for event in events]


@pytest.mark.parametrize("kind", ["handler", "reader"])
@pytest.mark.parametrize("commits", [True, False], ids=["that commits", "that is rolled back"])
def test_a_batch_in_progress(log: Bench, kind: str, commits: bool) -> None:
    log.register("a.busy", kind=kind)
    event = log.publish()
    with log.session() as worker:
        assert taken(worker, "a.busy") == [event]
        with withdrawing(log, event, worker) as answer:
            worker.commit() if commits else worker.rollback()
    assert answer == {"a.busy": "delivered" if commits else "withdrawn"}
    assert log.status(event) == answer
    assert log.drain() == []


@pytest.mark.verify
def test_a_generation_is_not_opened_meanwhile(log: Bench) -> None:
    """Its cursors would be copies of those that are held: whoever took from them would not be seen."""
    log.register("a.handler")
    event = log.publish(generation=7)
    with log.session() as withdrawer, log.session() as opening:
        withdrawer.execute("select outrider.withdraw(%s)", [event])
        opening.execute("set lock_timeout = '100ms'")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            opening.execute("select outrider.open_generation('a.handler', 7)")


def test_a_generation_that_was_being_opened(log: Bench) -> None:
    """Whether its worker is quicker or the withdrawal, the answer is true."""
    log.register("a.handler")
    event = log.publish(generation=7)
    with log.session() as opening, log.session() as worker:
        opening.execute("select outrider.open_generation('a.handler', 7)")
        with withdrawing(log, event, opening) as answer:
            opening.commit()
            ran = taken(worker, "a.handler", 7)
            worker.commit()
    assert (ran, answer) in (([event], {"a.handler": "delivered"}), ([], {"a.handler": "withdrawn"}))
    assert log.status(event) == answer


def test_a_subscription_that_is_registered_meanwhile(log: Bench) -> None:
    """Its worker has taken the event, too: it is waited for, and among the answers."""
    log.register("a.busy")
    event = log.publish()
    with log.session() as worker, log.session() as new_worker:
        taken(worker, "a.busy")
        with withdrawing(log, event, worker) as answer:
            log.register("a.new", start="beginning")
            assert taken(new_worker, "a.new") == [event]
            worker.rollback()
            waits_for(log, new_worker)
            new_worker.commit()
    assert answer == {"a.busy": "withdrawn", "a.new": "delivered"}
    assert log.status(event) == answer


# In Python


async def test_the_app_withdraws(database: str) -> None:
    async with opened(database) as shop:
        await shop.publish("a1", "a2")
        ids = [row["id"] for row in await shop.rows("select id from outrider.outbox order by seq")]
        assert await shop.app.withdraw(ids[0], by="me\x1b[2J\x00", reason="why") == [
            Withdrawn("shop.effect", "withdrawn")
        ]
        assert (await shop.app.drain()).handled == 1
        assert shop.calls == ["a2"]
        assert await shop.app.withdraw(ids[1]) == [Withdrawn("shop.effect", "delivered")]
        [first, second] = await shop.rows(
            "select by, role, details ->> 'reason' as reason from outrider.audit order by id"
        )
    assert first == {"by": "me\\x1b[2J", "role": "postgres", "reason": "why"}
    assert second == {"by": "postgres", "role": "postgres", "reason": None}


async def test_the_app_refuses_what_is_not_there(database: str) -> None:
    async with opened(database) as shop:
        with pytest.raises(NoSuchEvent, match=r"rolled back or is still open, or the event is in another schema"):
            await shop.app.withdraw(uuid4())
        with pytest.raises(TypeError, match="a UUID, not str"):
            await shop.app.withdraw("a1")  # type: ignore[arg-type]


async def test_a_batch_that_takes_too_long(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "PATIENCE", "100ms")
    async with opened(database) as shop:
        await shop.publish("a1")
        [row] = await shop.rows("select id from outrider.outbox")
        with psycopg.connect(database) as busy:
            await asyncio.to_thread(busy.execute, "select from outrider.cursor for update")
            with pytest.raises(WithdrawRefused, match=r"nothing was withdrawn: .* try again"):
                await shop.app.withdraw(row["id"])
        assert (await shop.app.drain()).handled == 1
