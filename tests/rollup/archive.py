"""An archive whose pieces are rolled up by document: its tables, its declaration, and what the database says afterwards.

Nobody waits for a debounce time: what was staged is made older.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import psycopg
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from outrider import Event, Outrider
from outrider.rollup import Notification

NAME = "archive.imports"
TABLES = """
create table piece (id bigint generated always as identity primary key, document text, batch text, author text,
                    body text default 'a secret', kind text not null default 'piece', tenant text);
create table note (id bigint generated always as identity primary key, kind text not null, subject text,
                   pieces integer not null constraint note_pieces_check check (pieces < 1000), about text unique);
"""
NOTE = Notification(
    "note",
    {"kind": "event_type", "subject": "key", "pieces": "piece_count", "about": "idempotency_key"},
)
FIGURES = ("groups_emitted", "pieces_emitted", "conflicts_skipped", "rows_marked", "set_aside")

Row = dict[str, Any]


class PieceAdded(Event, type="archive.piece_added"):
    id: int
    author: str | None = None


class DocumentImported(Event, type="archive.document_imported", key="key"):
    key: str
    piece_count: int
    first_at: datetime
    last_at: datetime
    author: str | None = None


def declared(app: Outrider | None = None, **changes: Any) -> Row:
    """The declaration as the SQL functions take it."""
    app = app or Outrider(context="archive")
    options: Row = {"table": "piece", "key": ["document", "batch"], "carry": ["id", "author"]}
    app.rollup(NAME, **{**options, "single": PieceAdded, "rollup": DocumentImported, **changes})
    return app.rollups[-1].spec()


class Archive:
    """One session in one database."""

    def __init__(self, conn: psycopg.Connection[Row]) -> None:
        self.conn = conn

    def ask(self, query: str, *params: Any) -> list[Row]:
        cursor = self.conn.execute(query.encode(), params or None)
        return cursor.fetchall() if cursor.description else []

    def column(self, query: str, *params: Any) -> list[Any]:
        return [next(iter(row.values())) for row in self.ask(query, *params)]

    def one(self, query: str, *params: Any) -> Any:
        [value] = self.column(query, *params)
        return value

    def install(self, spec: Row | None = None, **changes: Any) -> Row:
        found = self.one("select outrider.rollup_install(%s)", Jsonb(spec or declared(**changes)))
        assert isinstance(found, dict)
        return found

    def findings(self, spec: Row | None = None, **changes: Any) -> dict[str, Row]:
        """Of the preflight, by topic."""
        rows = self.ask("select * from outrider.rollup_preflight(%s)", Jsonb(spec or declared(**changes)))
        return {row["topic"]: row for row in rows}

    def verified(self, name: str = NAME) -> dict[str, Row]:
        return {row["topic"]: row for row in self.ask("select * from outrider.rollup_verify(%s)", name)}

    def add(self, *documents: str | None, **columns: Any) -> list[int]:
        """One piece each; `tick` knows them by these ids."""
        names = ["document", *columns]
        query = f"insert into piece ({', '.join(names)}) values ({', '.join(['%s'] * len(names))}) returning id"
        return [self.one(query, each, *columns.values()) for each in documents]

    def age(self, by: str = "5 minutes", where: str = "true") -> None:
        self.ask(
            "update outrider.rollup_pending set staged_at = staged_at - %s::interval "
            f"where processed_at is null and {where}",
            by,
        )

    def tick(self, name: str = NAME, *, flush: bool = False) -> Row:
        found = self.one("select outrider.rollup_tick(%s, %s)", name, flush)
        assert isinstance(found, dict)
        return found

    def emitted(self) -> list[tuple[str, str | None, int | None]]:
        """Of every event: the end of its type, its key, its piece_count."""
        query = "select event_type, aggregate_id, payload -> 'piece_count' as pieces from outrider.outbox order by seq"
        return [(row["event_type"].split(".")[1], row["aggregate_id"], row["pieces"]) for row in self.ask(query)]

    def staged(self) -> list[str | None]:
        """The keys of what waits."""
        return self.column(
            "select group_key from outrider.rollup_pending where processed_at is null and set_aside_at is null order by id"
        )

    def aside(self) -> list[str]:
        """Why rows were set aside."""
        return self.column("select error from outrider.rollup_pending where set_aside_at is not null order by id")

    def exact(self) -> None:
        """Every staged row waits, is set aside, or is part of exactly one event, and each event counts its rows."""
        wrong = self.ask("""
            select o.id, o.payload, count(p.id) from outrider.outbox as o
            full join (select * from outrider.rollup_pending where processed_at is not null) as p on p.event_id = o.id
            where o.source = 'archive' or o.id is null
            group by o.id, o.payload having o.id is null or count(p.id) <> coalesce((o.payload ->> 'piece_count')::int, 1)
        """)
        assert wrong == []

    def locks(self) -> list[Row]:
        return self.ask("""select l.locktype, l.mode from pg_locks as l join pg_database as d on d.oid = l.database
                           where l.locktype = 'advisory' and d.datname = current_database()""")


@contextmanager
def opened(dsn: str) -> Iterator[Archive]:
    with psycopg.connect(dsn, autocommit=True, row_factory=dict_row) as conn:
        yield Archive(conn)


def figures(tick: Row) -> tuple[Any, ...]:
    """The result, and groups, pieces, conflicts, rows marked, rows set aside."""
    return (tick["result"], *(tick[name] for name in FIGURES))
