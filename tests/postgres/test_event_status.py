"""The view event_status says what a drain then does: `pending` is handled by it, and nothing else runs.

First one scenario per rule, then histories at random, then that it is read by index, however long the log is.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import psycopg
import pytest
from tests.postgres.bench import TYPES, Bench, bench
from tests.postgres.test_plans import SEGMENT, SEGMENTS, nodes

INSTEAD = "select subscription, event_id from outrider.event_status where handled_as is not null"
HANDLED_AS = "select handled_as from outrider.event_status where subscription = %s and event_id = %s"


@pytest.fixture
def log(database: str) -> Iterator[Bench]:
    with bench(database) as log:
        yield log


# One rule each


def test_unread_then_delivered(log: Bench) -> None:
    log.register("a.handler")
    event = log.publish()
    assert log.status(event) == {"a.handler": "pending"}
    assert log.drain() == [("a.handler", event)]
    assert log.status(event) == {"a.handler": "delivered"}


def test_late_from_a_transaction_that_was_open_when_the_cursor_passed(log: Bench) -> None:
    """In the snapshot's list, and above it."""
    log.register("a.handler")
    with log.session() as slow, log.session() as slowest:
        late = log.publish(on=slow)
        quick = log.publish()
        later = log.publish(on=slowest)
        assert log.work("a.handler") == [quick]
        slow.commit()
        slowest.commit()
    assert log.one("select min(seq) from outrider.cursor") == 3, "the cursor has passed both"
    assert (log.status(late), log.status(later)) == ({"a.handler": "pending"},) * 2
    assert log.work("a.handler") == [late, later]
    assert (log.status(late), log.status(later)) == ({"a.handler": "delivered"},) * 2


def test_owing_pages(log: Bench) -> None:
    """While a late transaction is read in pages: those before the page are delivered, those behind are pending."""
    log.register("a.handler")
    with log.session() as slow, log.session() as running:
        late = [log.publish(on=slow) for _ in range(5)]
        last = log.publish(on=running)
        log.publish()
        log.work("a.handler")
        slow.commit()
        log.step("a.handler", limit=2, scan=2)
        assert log.one("select owing is not null from outrider.cursor")
        running.commit()
    states = [log.status(event)["a.handler"] for event in (*late, last)]
    assert states == ["delivered"] * 2 + ["pending"] * 4
    assert log.work("a.handler", limit=2, scan=2) == [*late[2:], last]
    assert {log.status(event)["a.handler"] for event in (*late, last)} == {"delivered"}


def test_late_and_failed_in_total_order(log: Bench) -> None:
    log.register("a.handler", order="total")
    with log.session() as slow:
        late, quick = log.publish(on=slow), log.publish()
        log.work("a.handler")
        slow.commit()
    log.work("a.handler", fails=[late])
    assert [log.status(event)["a.handler"] for event in (late, quick)] == ["pending", "delivered"]
    log.make_due()
    assert log.drain() == [("a.handler", late)]


def test_parked_behind_in_line_dead_and_discarded(log: Bench) -> None:
    log.register("a.handler")
    first, behind, dead, other = log.publish(key="k"), log.publish(key="k"), log.publish(key="d"), log.publish(key="x")
    log.work("a.handler", fails=[first], dies=[dead])
    expected = {first: "pending", behind: "pending", dead: "failed", other: "delivered"}
    assert {event: log.status(event)["a.handler"] for event in expected} == expected
    [(attempts, run_at, code, history)] = log.rows(
        "select attempts, run_at, last_error_code, failure_history from outrider.event_status where event_id = %s",
        [first],
    )
    assert (attempts, code, [entry["message"] for entry in history]) == (1, "told", ["as told"])
    assert run_at is not None
    log.conn.execute("select outrider.discard(array(select id from outrider.delivery where status = 'failed'), 'me')")
    assert log.status(dead) == {"a.handler": "discarded"}
    assert log.drain() == []
    log.make_due()
    assert log.work("a.handler") == [first, behind]
    assert log.status(behind) == {"a.handler": "delivered"}
    [(history,)] = log.rows("select failure_history from outrider.event_status where event_id = %s", [first])
    assert [entry["code"] for entry in history] == ["told"], "handled in the end, its failures are still known"


def test_a_dead_letter_that_the_cursor_has_not_passed(log: Bench) -> None:
    log.register("a.handler")
    dead, next_one = log.publish(), log.publish()
    log.step("a.handler", dies=[dead])
    assert (log.status(dead), log.status(next_one)) == ({"a.handler": "failed"}, {"a.handler": "pending"})
    assert log.drain() == [("a.handler", next_one)]
    assert log.status(dead) == {"a.handler": "failed"}


def test_targeted_events_concern_one_context(log: Bench) -> None:
    log.register("a.handler")
    log.register("b.handler", context="b")
    event = log.publish(target="b")
    assert log.status(event) == {"b.handler": "pending"}
    assert log.drain() == [("b.handler", event)]
    assert log.status(event) == {"b.handler": "delivered"}


def test_the_same_key_for_another_context_is_no_delivery(log: Bench) -> None:
    log.register("a.handler")
    log.register("b.handler", context="b")
    everyone = log.publish(idempotency_key="same")
    log.drain()
    only_b = log.publish(idempotency_key="same", target="b")
    log.drain()
    assert log.status(everyone) == {"a.handler": "delivered", "b.handler": "delivered"}
    assert log.status(only_b) == {"b.handler": "delivered"}
    assert log.one(HANDLED_AS, ["b.handler", only_b]) == everyone


def test_types_that_were_added_later(log: Bench) -> None:
    """Passed before it wanted them: none of its concern. Not passed yet: it will get them."""
    log.register("a.handler", ["a.one"])
    passed = log.publish("a.two")
    log.work("a.handler")
    unread = log.publish("a.two")
    assert log.register("a.handler", ["a.one", "a.two"]) == "extended"
    assert (log.status(passed), log.status(unread)) == ({}, {"a.handler": "pending"})
    assert log.drain() == [("a.handler", unread)]
    assert (log.status(passed), log.status(unread)) == ({}, {"a.handler": "delivered"})


def test_types_that_are_wanted_no_longer(log: Bench) -> None:
    """What was handled or buried of them stays known."""
    log.register("a.handler", ["a.one", "a.two"])
    handled, dead = log.publish("a.two"), log.publish("a.two")
    log.work("a.handler", dies=[dead])
    unread = log.publish("a.two")
    log.conn.execute("update outrider.subscription set event_types = '{a.one}'")
    assert log.status(handled) == {"a.handler": "delivered"}
    assert (log.status(dead), log.status(unread)) == ({"a.handler": "failed"}, {})
    assert log.drain() == []


def test_subscriptions_that_started_later(log: Bench) -> None:
    with log.session() as slow:
        before, open_then = log.publish(), log.publish(on=slow)
        log.register("a.now")
        log.register("a.beginning", start="beginning")
        slow.commit()
    assert log.status(before) == {"a.beginning": "pending"}
    assert log.status(open_then) == {"a.beginning": "pending", "a.now": "pending"}
    assert sorted(log.drain()) == sorted(
        [("a.beginning", before), ("a.beginning", open_then), ("a.now", open_then)],
    )
    assert log.status(before) == {"a.beginning": "delivered"}


def test_readers(log: Bench) -> None:
    """They leave no receipts: what they have passed since they were made counts as delivered."""
    before = log.publish()
    log.register("a.reader", kind="reader")
    event = log.publish()
    assert (log.status(before), log.status(event)) == ({}, {"a.reader": "pending"})
    assert log.drain() == [("a.reader", event)]
    assert (log.status(before), log.status(event)) == ({}, {"a.reader": "delivered"})


def test_partitions(log: Bench) -> None:
    """Each event is judged by the cursor of its own partition, also after the partitions were doubled."""
    log.register("a.handler", partitions=4)
    events = [log.publish(key=f"k{n}" if n % 3 else None) for n in range(24)]
    for _ in range(2):
        log.step("a.handler")
    ran = {event for _, event in log.ran}
    assert 0 < len(ran) < len(events)
    assert {event for event in events if log.status(event)["a.handler"] == "delivered"} == ran
    log.register("a.handler", partitions=8)
    assert {event for event in events if log.status(event)["a.handler"] == "delivered"} == ran
    assert {event for _, event in log.drain()} == set(events) - ran
    assert {log.status(event)["a.handler"] for event in events} == {"delivered"}


def test_generations(log: Bench) -> None:
    """By the cursor of its own generation where there is one, else by that of 0."""
    log.register("a.handler")
    zero, seven, nine = (log.publish(generation=generation) for generation in (0, 7, 9))
    log.conn.execute("select outrider.open_generation('a.handler', 7)")
    expected: dict[UUID, list[str]] = {zero: ["pending"], seven: ["pending"], nine: ["pending"]}

    def states() -> dict[UUID, list[str]]:
        return {event: list(log.status(event).values()) for event in expected}

    assert states() == expected
    assert log.work("a.handler", 0) == [zero, nine]
    assert states() == expected | {zero: ["delivered"], nine: ["delivered"]}
    assert log.work("a.handler", 7) == [seven]
    assert states() == {event: ["delivered"] for event in expected}


def test_duplicates_by_idempotency_key(log: Bench) -> None:
    log.register("a.handler")
    first, second, of_another_type = (
        log.publish(event_type, idempotency_key="same") for event_type in ("a.one", "a.one", "a.two")
    )
    assert log.status(second) == {"a.handler": "pending"}
    assert log.work("a.handler") == [first, of_another_type]
    assert log.status(second) == {"a.handler": "delivered"}
    assert [log.one(HANDLED_AS, ["a.handler", event]) for event in (first, second, of_another_type)] == [
        None, first, None,
    ]  # fmt: skip


def test_a_dead_letter_stays_one_although_its_key_is_handled(log: Bench) -> None:
    log.register("a.handler")
    dead = log.publish(idempotency_key="same")
    log.work("a.handler", dies=[dead])
    corrected = log.publish(idempotency_key="same")
    assert log.work("a.handler") == [corrected]
    assert log.status(dead) == {"a.handler": "failed"}
    assert log.one(HANDLED_AS, ["a.handler", dead]) == corrected


def test_a_parked_event_whose_key_was_handled_meanwhile(log: Bench) -> None:
    log.register("a.handler")
    first, second = log.publish(idempotency_key="same"), log.publish(idempotency_key="same")
    log.work("a.handler", fails=[first])
    assert log.one(HANDLED_AS, ["a.handler", first]) == second
    assert log.status(first) == {"a.handler": "delivered"}, "its retry will concede"
    log.make_due()
    assert log.drain() == []
    assert log.status(first) == {"a.handler": "delivered"}


def test_the_failures_of_the_event_that_was_handled_instead_are_not_its_own(log: Bench) -> None:
    log.register("a.handler")
    first = log.publish(idempotency_key="same")
    log.work("a.handler", fails=[first])
    log.make_due()
    log.work("a.handler")
    second = log.publish(idempotency_key="same")
    log.work("a.handler")
    history = "select failure_history from outrider.event_status where event_id = %s"
    assert [entry["code"] for entry in log.one(history, [first])] == ["told"]
    assert log.one(history, [second]) is None


def test_the_whole_of_it_in_a_restored_log(log: Bench) -> None:
    """A cursor from another cluster reads what its old transactions left; until then it is pending."""
    log.register("a.handler")
    with log.session() as slow:
        late, quick = log.publish(on=slow), log.publish()
        log.work("a.handler")
        slow.commit()
    log.conn.execute("update outrider.cursor set cluster = 1")
    fresh = log.publish()
    assert [log.status(event)["a.handler"] for event in (late, quick, fresh)] == ["pending", "delivered", "pending"]
    assert log.work("a.handler", limit=1, scan=1) == [late, fresh]
    assert {log.status(event)["a.handler"] for event in (late, quick, fresh)} == {"delivered"}


# Histories at random


class History:
    """Random acts of publishers, workers and operators on one log."""

    def __init__(self, log: Bench, seed: int) -> None:
        self.log = log
        self.random = random.Random(seed)
        self.names: list[str] = []
        self.open: list[psycopg.Connection[Any]] = []
        for order, partitions, kind in (("key", 1, "handler"), ("total", 1, "handler"), ("none", 2, "handler")):
            self.add(kind=kind, order=order, partitions=partitions)
        self.add(kind="reader", partitions=2)

    def add(self, **options: Any) -> None:
        name = f"{self.random.choice('ab')}.s{len(self.names)}"
        start = self.random.choice(["now", "beginning"])
        types = self.random.sample(TYPES, self.random.randint(1, 3))
        self.log.register(name, types, start=start, context=name[0], **options)
        self.names.append(name)

    def publish(self) -> None:
        self._publish(None)

    def publish_slowly(self) -> None:
        if self.open:
            self._publish(self.random.choice(self.open))

    def _publish(self, conn: psycopg.Connection[Any] | None) -> None:
        for _ in range(self.random.randint(1, 4)):
            self.log.publish(
                self.random.choice(TYPES),
                key=self.random.choice([None, "k", "l", "m"]),
                idempotency_key=self.random.choice([None, None, None, "i", "j"]),
                target=self.random.choice([None, None, "a", "b"]),
                generation=self.random.choice([0, 0, 1, 2]),
                on=conn,
            )

    def end_slowly(self) -> None:
        conn = self.random.choice(self.open)
        conn.commit() if self.random.random() < 0.8 else conn.rollback()

    def work(self) -> None:
        name, generation = self.random.choice(self.log.cursors())
        limit = self.random.randint(1, 6)
        events = [event for (event,) in self.log.rows("select id from outrider.outbox")]
        bad = self.random.sample(events, len(events) // 3)
        is_handler = self.log.one("select kind from outrider.subscription where name = %s", [name]) == "handler"
        fails, dies = (bad[::2], bad[1::2]) if is_handler else ([], [])
        for _ in range(self.random.randint(1, 3)):
            self.log.step(name, generation, limit=limit, scan=limit * self.random.randint(1, 3), fails=fails, dies=dies)

    def make_due(self) -> None:
        self.log.make_due()

    def withdraw(self) -> None:
        self.log.rows("select outrider.withdraw(id) from outrider.outbox order by random() limit 1")

    def replay(self) -> None:
        self.log.rows("select outrider.outbox_replay(event_id) from outrider.delivery where status = 'failed' limit 1")

    def discard(self) -> None:
        self.log.rows(
            "select outrider.discard(array(select id from outrider.delivery where status = 'failed' limit 1))"
        )

    def subscribe(self) -> None:
        if len(self.names) < 8:
            kind = self.random.choice(["reader", "handler"])
            self.add(kind=kind, partitions=self.random.choice([1, 2]))

    def extend(self) -> None:
        self.log.rows(
            """select outrider.register(name, kind, context, %s, partitions * case ordering when 'total' then 1 else 2 end,
                                        'now', ordering)
               from outrider.subscription where name = %s and partitions < 8""",
            [TYPES, self.random.choice(self.names)],
        )

    def narrow(self) -> None:
        """As the command does it: not while events of that type wait for their retry, or are about to be passed."""
        self.log.conn.execute(
            """update outrider.subscription as s set event_types = s.event_types[2:]
               where s.name = %s and cardinality(s.event_types) > 1 and not exists (
                   select from outrider.delivery as d
                   where d.subscription = s.name and (d.status = 'pending' or not d.reached)
                     and d.event_type = s.event_types[1])""",
            [self.random.choice(self.names)],
        )

    def open_generation(self) -> None:
        self.log.rows("select outrider.open_generation(%s, %s)", [self.random.choice(self.names), 1])

    def fold_generation(self) -> None:
        self.log.rows("select outrider.fold_generation(%s, %s)", [self.random.choice(self.names), 1])

    def acts(self) -> list[Callable[[], None]]:
        often = [self.publish, self.publish_slowly, self.work, self.work]
        return [*often, *often, self.end_slowly, self.end_slowly, self.make_due, self.withdraw, self.replay, self.discard,
                self.subscribe, self.extend, self.narrow, self.open_generation, self.fold_generation]  # fmt: skip

    def verify(self) -> set[str]:
        """Drain, and see that the view knew. Returns the statuses that there were."""
        self.log.make_due()
        before = self.log.statuses()
        handlers = {name for (name,) in self.log.rows("select name from outrider.subscription where kind = 'handler'")}
        ran = self.log.drain()
        after = self.log.statuses()
        pending = {run for run, status in before.items() if status == "pending"}
        instead = {(name, event) for name, event in self.log.rows(INSTEAD)}
        assert len(ran) == len(set(ran)), "nothing runs twice"
        assert set(ran) <= pending, "what runs was pending"
        for run in pending:
            if run[0] in handlers:
                assert after[run] == "delivered"
                assert run in ran or run in instead
            else:
                assert run in ran
                assert after.get(run, "delivered") == "delivered"
        others = before.keys() - pending
        # A withdrawn event is shown to a subscription made later only until it has passed it.
        assert {run: after.get(run, "withdrawn") for run in others} == {run: before[run] for run in others}
        # One that was none of its concern comes in when its idempotency key is handled.
        assert after.keys() - before.keys() <= instead
        by_handlers = {run for run in self.log.ran if run[0] in handlers}
        assert {run for run in by_handlers if after[run] != "delivered"} == set(), "who ran it has it delivered"
        delivered = {run for run, status in after.items() if status == "delivered" and run[0] in handlers}
        assert delivered - instead == by_handlers, "who has it delivered as itself ran it"
        return set(before.values())


@pytest.mark.parametrize("seed", range(12))
def test_a_history_at_random(log: Bench, seed: int, long: bool) -> None:
    statuses: set[str] = set()
    history = History(log, seed)
    for _ in range(20 if long else 1):
        with log.session() as one, log.session() as two:
            history.open = [one, two]
            acts = history.acts()
            for act in history.random.choices(acts, k=60):
                act()
            statuses |= history.verify()
            for conn in history.open:
                conn.commit()
            statuses |= history.verify()
    assert "pending" in statuses


# However long the log is

EVENTS = 30_000
FULL = EVENTS // SEGMENT
"""An empty segment would be scanned, which costs nothing."""
SEED = """
insert into outrider.outbox (event_type, source, aggregate_id, payload)
select 'a.one', 'a', 'k' || n %% 50, '{}' from generate_series(1, %(events)s) as n;
insert into outrider.event_handled (handler_name, idempotency_key, event_id, seq, generation, content_class)
select s.name, o.id::text, o.id, o.seq, 0, 'internal'
from outrider.outbox as o, outrider.subscription as s where o.seq %% 3 = 0 and s.kind = 'handler';
insert into outrider.delivery (subscription, partition, seq, event_id, event_type, status, head, reached, run_at)
select 'a.handler', 0, o.seq, o.id, o.event_type, 'failed', false, true, now()
from outrider.outbox as o where o.seq %% 3 = 1;
insert into outrider.job (subscription, seq, event_id, event_type, status, run_at, queue)
select 'a.job', o.seq, o.id, o.event_type, 'failed', now(), 'default' from outrider.outbox as o where o.seq %% 3 = 1;
insert into outrider.withdrawal (seq, event_id, withdrawn_by)
select o.seq, o.id, 'me' from outrider.outbox as o where o.seq %% 10 = 0;
insert into outrider.audit (by, action, event_id, details)
select 'me', 'withdraw', w.event_id, '{"outcomes": {"a.handler": "withdrawn"}}' from outrider.withdrawal as w;
"""
SMALL = {"subscription", "cursor"}


@pytest.fixture(scope="module")
def long_log(server: str) -> Iterator[str]:
    """Fifteen segments, a dozen subscriptions, jobs, receipts, dead letters and withdrawals by the thousand."""
    name = "test_event_status"
    with psycopg.connect(server, autocommit=True) as admin:
        admin.execute(f"create database {name} template outrider_template".encode())
        dsn = psycopg.conninfo.make_conninfo(server, dbname=name)
        with bench(dsn) as log:
            log.conn.execute(
                SEGMENTS.replace("0..48", f"0..{FULL - 2}")
                .replace(f"{49 * SEGMENT}", f"{(FULL - 1) * SEGMENT}")
                .encode()
            )
            log.register("a.handler", start="beginning")
            for number in range(10):
                log.register(f"a.h{number}", partitions=4, start="beginning")
            log.register("a.job", kind="job", start="beginning")
            log.register("a.reader", kind="reader", partitions=2)
            with psycopg.ClientCursor(log.conn) as cursor:
                cursor.execute(SEED, {"events": EVENTS})
        yield dsn
        admin.execute(f"drop database {name} with (force)".encode())


@pytest.mark.xdist_group("event_status")
@pytest.mark.parametrize("analyzed", [False, True], ids=["no statistics", "analyzed"])
@pytest.mark.parametrize("seq", [3, 10, EVENTS - 2])
@pytest.mark.parametrize("by", ["event_id", "seq"])
def test_it_is_read_by_index(long_log: str, by: str, seq: int, analyzed: bool) -> None:
    with psycopg.connect(long_log, autocommit=True) as conn:
        if analyzed:
            conn.execute("analyze")
        row = conn.execute("select id from outrider.outbox where seq = %s", [seq]).fetchone()
        assert row is not None
        value = row[0] if by == "event_id" else seq
        query = f"explain (analyze, format json) select * from outrider.event_status where {by} = '{value}'"
        found = conn.execute(query.encode()).fetchone()
        assert found is not None
        [(listed,)] = conn.execute("select count(*) from outrider.event_status where seq = %s", [seq]).fetchall()
    used = [node for node in nodes(found[0][0]["Plan"]) if node.get("Relation Name") and node["Actual Loops"] > 0]
    assert listed == 13
    large = [node for node in used if node["Relation Name"] not in SMALL]
    assert {node["Relation Name"].rstrip("0123456789") for node in large} >= {
        "event_handled",
        "delivery",
        "job",
        "withdrawal",
    }
    assert {node["Node Type"] for node in large} <= {"Index Scan", "Index Only Scan", "Bitmap Heap Scan"}
    assert sum(node["Actual Rows"] * node["Actual Loops"] for node in large) <= 5 * listed
    if by == "seq":
        assert sum(node["Relation Name"].startswith("outbox_") for node in used) == 1, "one segment"
