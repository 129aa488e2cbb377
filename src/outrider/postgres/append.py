"""Appending to the log: what to send, in whatever way a driver writes parameters, and how to read the answer.

Deciding and performing are apart: every driver runs the same statement on the caller's own connection. Only text and
numbers go and come back, so what a caller has taught its driver about other types makes no difference.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

from psycopg import AsyncConnection, AsyncCursor, Connection, Cursor
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from outrider.envelope import Envelope
from outrider.errors import NoTransaction, PublishRefused
from outrider.outcome import sqlstate
from outrider.postgres.log import Params, forbidden, missing_schema
from outrider.postgres.statement import statement

Rows = Sequence[Sequence[Any]]

_PLACEHOLDER = re.compile(r"%\((\w+)\)[sb]")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Append:
    """One insert of one or many envelopes."""

    envelopes: Sequence[Envelope]
    schema: str
    query: bytes
    """With psycopg's placeholders; each name occurs once."""
    params: Params

    @classmethod
    def of(cls, envelopes: Sequence[Envelope], schema: str, notify: str) -> Append:
        rows = [_row(envelope) for envelope in envelopes]
        # RETURNING is evaluated before the trigger that pokes, which reads this setting.
        quiet = b"" if notify == "commit" else f", set_config('outrider.notify', '{notify}', true)".encode()
        if len(rows) == 1:
            return cls(envelopes, schema, statement("publish_one", schema) + quiet, rows[0])
        many = {name: [row[name] for row in rows] for name in rows[0]}
        return cls(envelopes, schema, statement("publish_many", schema) + quiet, many)

    def named(self) -> tuple[str, Params]:
        """With the parameters as %(name)s."""
        return _named(self.query), self.params

    def numbered(self) -> tuple[str, tuple[Any, ...]]:
        """With the parameters as $1, $2 and so on."""
        text, names = _numbered(self.query)
        return text, tuple(self.params[name] for name in names)

    def written(self, rows: Rows) -> list[Envelope]:
        """The envelopes with what the database added."""
        drawn = {row[0]: {"seq": row[1], "occurred_at": _EPOCH + timedelta(microseconds=row[2])} for row in rows}
        return [Envelope.of(vars(envelope) | drawn[str(envelope.id)]) for envelope in self.envelopes]

    @contextmanager
    def explaining(self, encoding: str | None = None) -> Iterator[None]:
        """Clear errors for what a publisher can mend; others pass as they are."""
        try:
            yield
        except UnicodeEncodeError as error:
            rule = f"is {encoding or error.encoding}, which cannot carry {error.object[error.start]!r}"
            field = "the connection's client_encoding"
            refused = PublishRefused(self.envelopes[0].event_type, field, f"{rule}: set client_encoding to UTF8")
            raise refused from error
        except Exception as error:
            match sqlstate(error):
                case "42P01" | "3F000":
                    raise missing_schema(self.schema) from error
                case "42501":
                    raise forbidden(self.schema, _said(error)) from error
            raise


@dataclass(frozen=True, slots=True)
class Driver:
    """How the connections of one library run an insert, in the transaction that is open on them."""

    run: Callable[[Any, Append], Awaitable[Rows]] | None = None
    run_sync: Callable[[Any, Append], Rows] | None = None
    after_commit: Callable[[Any, Callable[[], None]], None] | None = None
    """Calls back when the transaction has committed; None where the library cannot tell."""
    under: Callable[[Any], Awaitable[object]] | None = None
    """The driver's own connection below a session; None where there is nothing between."""
    under_sync: Callable[[Any], object] | None = None


async def _run(conn: AsyncConnection[Any], append: Append) -> Rows:
    if conn.autocommit and conn.info.transaction_status == TransactionStatus.IDLE:
        raise NoTransaction("wrap both in `async with conn.transaction():`")
    with append.explaining(conn.info.encoding):
        async with AsyncCursor(conn, row_factory=tuple_row) as cursor:
            await cursor.execute(append.query, append.params)
            return await cursor.fetchall()


def _run_sync(conn: Connection[Any], append: Append) -> Rows:
    if conn.autocommit and conn.info.transaction_status == TransactionStatus.IDLE:
        raise NoTransaction("wrap both in `with conn.transaction():`")
    with append.explaining(conn.info.encoding), Cursor(conn, row_factory=tuple_row) as cursor:
        cursor.execute(append.query, append.params)
        return cursor.fetchall()


PSYCOPG = Driver(_run, _run_sync)


def _row(e: Envelope) -> Params:
    return {
        "id": str(e.id),
        "event_type": e.event_type,
        "event_version": e.event_version,
        "occurred_at": None if e.occurred_at is None else e.occurred_at.isoformat(),
        "source": e.source,
        "target": e.target,
        "content_class": e.content_class,
        "channel": e.channel,
        "generation": e.generation,
        "workspace_id": e.workspace_id,
        "aggregate_kind": e.aggregate_kind,
        "aggregate_id": e.key,
        "entity_version": e.entity_version,
        "payload": e.payload_json,
        "idempotency_key": None if e.idempotency_key == str(e.id) else e.idempotency_key,
        "trace_context": None if e.trace_context is None else json.dumps(e.trace_context),
    }


@cache
def _named(query: bytes) -> str:
    return _PLACEHOLDER.sub(r"%(\1)s", query.decode())


@cache
def _numbered(query: bytes) -> tuple[str, tuple[str, ...]]:
    names: list[str] = []

    def number(found: re.Match[str]) -> str:
        names.append(found[1])
        return f"${len(names)}"

    return _PLACEHOLDER.sub(number, query.decode()), tuple(names)


def _said(error: BaseException) -> str:
    """The server's own words, without what SQLAlchemy adds to them."""
    words: BaseException = getattr(error, "orig", None) or error
    return str(words).strip().partition("\n")[0].split(": ")[-1]
