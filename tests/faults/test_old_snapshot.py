"""Fault 12: a REPEATABLE READ reader stays open while events come, fail and are retried. Nothing that is dead can be cleaned
up; a take reads past it. What that costs is counted in buffers; times only in the long run."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import psycopg
import pytest

pytestmark = pytest.mark.verify

Conn = psycopg.Connection[Any]

NAME = "a.handler"
BATCH = 100
FAILS = 20
"""Every so many events one fails, once."""
APPEND = """insert into outrider.outbox (event_type, source, aggregate_id, payload)
            select 'a.one', 'a', 'k' || n %% 50, '{"name": "x"}' from generate_series(1, %s) as n"""
TAKE = (
    "select outcome, cursor, batch, attempt, seq from outrider.take('a.handler', 0, 1000, 10000, p_knows => '{a.one}')"
)
EXPLAIN = f"explain (analyze, buffers, format json) {TAKE}"
PARK = """select outrider.park(%s, %s, jsonb_build_array(jsonb_build_object('seq', %s::bigint, 'attempt', 1, 'delay', 0,
          'code', 'told', 'message', 'as told', 'counted', true, 'dead', false, 'batch', %s::bigint)), null, 'test')"""


@dataclass
class Cost:
    buffers: list[int] = field(default_factory=list)
    milliseconds: list[float] = field(default_factory=list)

    def p95(self) -> float:
        return statistics.quantiles(self.buffers, n=20)[-1]


@pytest.fixture
def conn(database: str) -> Iterator[Conn]:
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute("select outrider.register(%s, 'handler', 'a', '{a.one}')", [NAME])
        yield conn


def take(conn: Conn, fails: bool) -> None:
    """Until everything is handled; the first event of the first batch is parked when it fails, and retried at once."""
    while True:
        with conn.transaction(force_rollback=True) as undo:
            head, *events = conn.execute(TAKE).fetchall()
            if head[0] != "idle" and not (fails and events):
                conn.execute("select outrider.settle(%s)", [head[2]])
                undo.force_rollback = False
        if head[0] == "idle":
            return
        if fails and events:
            conn.execute(PARK, [NAME, head[1], events[0][4], head[2]])
            fails = False


def work(conn: Conn, events: int, batch: int, measured: int) -> Cost:
    """The last of every so many takes is measured."""
    cost, rounds = Cost(), events // batch
    for number in range(rounds):
        conn.execute(APPEND, [batch])
        if number % max(1, rounds // measured) == 0:
            with conn.transaction(force_rollback=True):
                row = conn.execute(EXPLAIN).fetchone()
                assert row is not None
                plan = row[0][0]["Plan"]
                cost.buffers.append(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])
                cost.milliseconds.append(plan["Actual Total Time"])
                conn.execute("select nextval('outrider.excused_1')")  # rolled back in good order
        take(conn, fails=number % max(1, FAILS // batch) == 0)
    return cost


@pytest.mark.alone
@pytest.mark.parametrize(("batch", "bound"), [(BATCH, 2), (1, 5)], ids=["in batches", "one by one"])
def test_a_take_reads_past_what_an_old_snapshot_keeps(
    conn: Conn, database: str, long: bool, batch: int, bound: int
) -> None:
    """One by one, each take leaves a dead version of the cursor row, a page for every dozen: the bound holds for hundreds of
    takes, not for ever. When the reader is gone, so is the cost."""
    events = (50_000 if long else 4_000) if batch > 1 else (600 if long else 150)
    work(conn, 10 * batch, batch, 10)
    before = work(conn, 20 * batch, batch, 20)
    with psycopg.connect(database) as holder:
        holder.execute("set transaction isolation level repeatable read")
        holder.execute("select count(*) from outrider.event_handled")
        burdened = work(conn, events, batch, 40)
    last = Cost(burdened.buffers[-20:], burdened.milliseconds[-20:])
    conn.execute("vacuum outrider.cursor, outrider.delivery")
    work(conn, batch, batch, 1)  # plans anew
    after = work(conn, 20 * batch, batch, 20)
    found = f"buffers, p95: {before.p95():.0f} before, {last.p95():.0f} with it, {after.p95():.0f} after"
    times = [statistics.median(each.milliseconds) for each in (before, last, after)]
    print(f"{events:,} events, {batch} a take: {found}; ms: {', '.join(f'{each:.2f}' for each in times)}")
    assert last.p95() <= bound * before.p95(), found
    assert after.p95() <= 1.5 * before.p95(), found
    if long:
        assert times[1] <= 5 * times[0], times
