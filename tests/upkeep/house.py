"""A log that can be aged: events by the dozen, segments of a thousand numbers, and time that passes by back-dating rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.rows import namedtuple_row

Conn = psycopg.Connection[Any]
SIZE = 1_000


@dataclass
class House:
    conn: Conn

    def ask(self, query: str, *params: Any) -> list[Any]:
        with self.conn.cursor(row_factory=namedtuple_row) as cursor:
            cursor.execute(query.encode(), params or None)
            return cursor.fetchall() if cursor.description else []

    def value(self, query: str, *params: Any) -> Any:
        [row] = self.ask(query, *params)
        return row[0]

    def publish(self, events: int, of: str = "a.happened") -> None:
        self.ask(
            """insert into outrider.outbox (event_type, source, aggregate_id, payload)
               select %s, 'a', 'k' || n %% 7, '{}' from generate_series(1, %s) as n""",
            of, events,
        )  # fmt: skip

    def register(self, name: str, kind: str = "reader") -> None:
        self.ask("select outrider.register(%s, %s, 'a', null, 1, 'beginning')", name, kind)

    def read_all(self, name: str) -> int:
        """Take until nothing is left, each batch in its own transaction."""
        read = 0
        while True:
            with self.conn.transaction():
                rows = self.ask("select outcome, seq, batch from outrider.take(%s, null, 2000)", name)
                if rows[0].batch is not None:
                    self.ask("select set_config('outrider.settled', %s, true)", str(rows[0].batch))
            read += len(rows) - 1
            if rows[0].outcome in ("idle", "done"):
                return read

    def cut(self) -> str:
        """End the segment that is written to; its name."""
        self.ask("select outrider.note_segments()")
        self.ask("update outrider.segment set begun_at = begun_at - interval '8 days' where closed_at is null")
        [cut] = self.ask("select * from outrider.upkeep_segments()")
        assert cut.action == "cut", cut
        return str(cut.subject)

    def age(self, days: int) -> None:
        """So many days pass."""
        for table, columns in (
            ("segment", ("made_at", "begun_at", "closed_at", "detached_at", "wanted_until")),
            ("event_handled", ("handled_at",)),
            ("delivery", ("created_at", "buried_at", "run_at")),
            ("job", ("created_at", "buried_at", "run_at")),
            ("audit", ("at",)),
            ("upkeep", ("ran_at", "oldest", "next_at")),
        ):
            moved = ", ".join(f"{column} = {column} - make_interval(days => {days})" for column in columns)
            self.ask(f"update outrider.{table} set {moved}")

    def segments(self, where: str = "true") -> list[Any]:
        return self.ask(f"select * from outrider.segment where {where} order by first_seq")

    def tidy(self) -> list[tuple[str, str]]:
        """All of the log's retention that is to be done."""
        told = []
        while True:
            rows = self.ask("select * from outrider.upkeep_log()")
            told += [(row.action, row.subject) for row in rows]
            if not any(row.action == "detached" for row in rows):
                return told


@contextmanager
def opened(dsn: str) -> Iterator[House]:
    with psycopg.connect(dsn, autocommit=True) as conn:
        yield House(conn)
