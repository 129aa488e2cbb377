"""A small worker in plain SQL: takes any cursor of any subscription, one batch at a time, and runs nothing but a list."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import psycopg
from psycopg.rows import dict_row

Conn = psycopg.Connection[Any]
Run = tuple[str, UUID]
"""(subscription, event)"""

TYPES = ["a.one", "a.two", "a.three"]
IDLE = ("idle", "waiting", "paused", "open", "busy")
TAKE = """select outcome, partition, batch, cursor, attempt, seq, id
          from outrider.take(%(name)s, null, %(limit)s, %(scan)s, %(generation)s, p_worker => 'bench', p_alone => true)"""


class Bench:
    def __init__(self, dsn: str, conn: Conn, worker: Conn) -> None:
        self.dsn = dsn
        self.conn = conn
        """In autocommit mode."""
        self._worker = worker
        self.ran: list[Run] = []
        """What was run and committed."""

    def one(self, query: str, params: Sequence[Any] = ()) -> Any:
        row = self.conn.execute(query.encode(), params).fetchone()
        assert row is not None
        return row[0]

    def rows(self, query: str, params: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        return self.conn.execute(query.encode(), params).fetchall()

    @contextmanager
    def session(self) -> Iterator[Conn]:
        """One whose transaction stays open until it is committed or rolled back."""
        with psycopg.connect(self.dsn) as conn:
            try:
                yield conn
            finally:
                conn.rollback()

    def register(
        self,
        name: str,
        types: Sequence[str] | None = None,
        *,
        kind: str = "handler",
        partitions: int = 1,
        start: str = "now",
        order: str = "key",
        context: str = "a",
    ) -> str:
        wanted = list(types) if types else TYPES if kind == "handler" else None
        return str(
            self.one(
                "select outcome from outrider.register(%s, %s, %s, %s, %s, %s, %s)",
                [name, kind, context, wanted, partitions, start, order],
            )
        )

    def publish(
        self,
        event_type: str = "a.one",
        *,
        key: str | None = None,
        idempotency_key: str | None = None,
        target: str | None = None,
        generation: int = 0,
        on: Conn | None = None,
    ) -> UUID:
        conn = on or self.conn
        conn.execute("select set_config('outrider.generation', %s, false)", [str(generation)])
        row = conn.execute(
            "select outrider.publish(%s, '{}', key => %s, idempotency_key => %s, target => %s)",
            [event_type, key, idempotency_key, target],
        ).fetchone()
        assert row is not None
        found: UUID = row[0]
        return found

    def step(
        self,
        name: str,
        generation: int = 0,
        *,
        limit: int = 100,
        scan: int | None = None,
        fails: Collection[UUID] = (),
        dies: Collection[UUID] = (),
    ) -> str:
        """One batch. The first of it that is in `fails` is parked for an hour, in `dies` buried."""
        asked = {"name": name, "limit": limit, "scan": scan or 10_000, "generation": generation}
        conn = self._worker
        head, *events = conn.execute(TAKE, asked).fetchall()
        if head["outcome"] in IDLE:
            conn.rollback()
            return str(head["outcome"])
        assert head["outcome"] in ("more", "done", "probe"), head["outcome"]
        for event in events:
            if event["id"] in fails or event["id"] in dies:
                conn.rollback()
                self.park(name, head["cursor"], head["batch"], event, dead=event["id"] in dies)
                return "failed"
        if head["batch"] is not None:
            conn.execute("select outrider.settle(%s)", [head["batch"]])
        conn.commit()
        self.ran += [(name, event["id"]) for event in events]
        return str(head["outcome"])

    def park(self, name: str, cursor: int, batch: int, event: dict[str, Any], *, dead: bool = False) -> None:
        failed = {
            "seq": event["seq"], "attempt": event["attempt"], "delay": 3600, "code": "told", "message": "as told",
            "counted": True, "dead": dead, "batch": batch,
        }  # fmt: skip
        self.conn.execute(
            "select outrider.park(%s, %s, %s::jsonb, null, 'bench')", [name, cursor, json.dumps([failed])]
        )

    def work(self, name: str, generation: int = 0, **options: Any) -> list[UUID]:
        """Until there is nothing to do now; what was run."""
        before = len(self.ran)
        while self.step(name, generation, **options) not in IDLE:
            pass
        return [event for _, event in self.ran[before:]]

    def cursors(self) -> list[tuple[str, int]]:
        return self.rows("select distinct subscription, generation from outrider.cursor order by 1, 2")

    def drain(self) -> list[Run]:
        """Every cursor of every subscription, until none has anything to do; what was run."""
        before = len(self.ran)
        while any(self.work(name, generation) for name, generation in self.cursors()):
            pass
        return self.ran[before:]

    def make_due(self) -> None:
        self.conn.execute("update outrider.delivery set run_at = now() where status = 'pending'")

    def status(self, event: UUID) -> dict[str, str]:
        """By subscription."""
        return dict(self.rows("select subscription, status from outrider.event_status where event_id = %s", [event]))

    def statuses(self) -> dict[Run, str]:
        rows = self.rows("select subscription, event_id, status from outrider.event_status")
        found = {(name, event): status for name, event, status in rows}
        assert len(found) == len(rows), "one row per event and subscription"
        return found

    def withdraw(self, event: UUID, by: str | None = None, reason: str | None = None) -> dict[str, str]:
        return dict(self.rows("select * from outrider.withdraw(%s, %s, %s)", [event, by, reason]))


@contextmanager
def bench(dsn: str) -> Iterator[Bench]:
    with psycopg.connect(dsn, autocommit=True) as conn, psycopg.connect(dsn, row_factory=dict_row) as worker:
        yield Bench(dsn, conn, worker)
