"""One insert on the caller's connection, for any driver, with clear errors.

All drivers run the same statement. Its parameters and results are text and numbers only, so type adapters that the caller
has registered with the driver do not matter.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from psycopg import AsyncConnection, AsyncCursor, Connection, Cursor
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from outrider.error_text import sqlstate
from outrider.errors import NoTransaction, PublishRefused
from outrider.postgres.errors import forbidden, missing_schema
from outrider.postgres.statement import Params

Row = Sequence[Any]

_PLACEHOLDER = re.compile(r"%\((\w+)\)[sb]")


@dataclass(slots=True)
class Insert:
    """A statement that returns one row. Not frozen: that would triple the time to create it."""

    subject: str
    """The event or job type, for errors."""
    schema: str
    query: bytes
    """With psycopg's placeholders."""
    params: Params

    def named(self) -> tuple[str, Params]:
        """With the parameters as %(name)s."""
        return _named(self.query), self.params

    def numbered(self) -> tuple[str, tuple[Any, ...]]:
        """With the parameters as $1, $2 and so on."""
        text, names = _numbered(self.query)
        return text, tuple(self.params[name] for name in names)

    def explain(self, error: Exception, encoding: Callable[[], str] | None = None) -> None:
        """Raises a clear error for what the caller can fix. Other errors are the caller's to raise again."""
        if isinstance(error, UnicodeEncodeError):
            found = error.encoding if encoding is None else encoding()
            rule = f"is {found}, which cannot carry {error.object[error.start]!r}"
            field = "the connection's client_encoding"
            raise PublishRefused(self.subject, field, f"{rule}: set client_encoding to UTF8") from error
        match sqlstate(error):
            case "42P01" | "3F000":
                raise missing_schema(self.schema) from error
            case "42501" if "row-level security" in str(error):
                rule = "is not that of the setting app.workspace_id, and policies let this role have no other"
                raise PublishRefused(self.subject, "its workspace", rule) from error
            case "42501":
                raise forbidden(self.schema, _said(error)) from error


@dataclass(frozen=True, slots=True)
class Driver:
    """How the connections of one library run an insert, in their open transaction."""

    run: Callable[[Any, Insert], Awaitable[Row]] | None = None
    run_sync: Callable[[Any, Insert], Row] | None = None
    after_commit: Callable[[Any, Callable[[], None]], None] | None = None
    """Registers a callback for after the commit; None if the library has no such hook."""
    under: Callable[[Any], Awaitable[object]] | None = None
    """The driver's connection below an ORM session; None if there is no layer between."""
    under_sync: Callable[[Any], object] | None = None


async def _run(conn: AsyncConnection[Any], insert: Insert) -> Row:
    if conn.autocommit and conn.pgconn.transaction_status == TransactionStatus.IDLE:
        raise NoTransaction("wrap both in `async with conn.transaction():`")
    try:
        cursor = AsyncCursor(conn, row_factory=tuple_row)
        await cursor.execute(insert.query, insert.params)
        return _as_text(await cursor.fetchone())
    except Exception as error:
        insert.explain(error, lambda: conn.info.encoding)
        raise


def _run_sync(conn: Connection[Any], insert: Insert) -> Row:
    if conn.autocommit and conn.pgconn.transaction_status == TransactionStatus.IDLE:
        raise NoTransaction("wrap both in `with conn.transaction():`")
    try:
        cursor = Cursor(conn, row_factory=tuple_row)
        cursor.execute(insert.query, insert.params)
        return _as_text(cursor.fetchone())
    except Exception as error:
        insert.explain(error, lambda: conn.info.encoding)
        raise


def _as_text(row: Row | None) -> Row:
    """With the client encoding SQL_ASCII, psycopg returns text as bytes. Ours is ASCII."""
    assert row is not None
    if not isinstance(row[0], bytes):
        return row
    return [each.decode() if isinstance(each, bytes) else each for each in row]


PSYCOPG = Driver(_run, _run_sync)


@cache
def _named(query: bytes) -> str:
    return _PLACEHOLDER.sub(r"%(\1)s", query.decode())


@cache
def _numbered(query: bytes) -> tuple[str, tuple[str, ...]]:
    numbers: dict[str, int] = {}

    def numbered(found: re.Match[str]) -> str:
        return f"${numbers.setdefault(found[1], len(numbers) + 1)}"

    return _PLACEHOLDER.sub(numbered, query.decode()), tuple(numbers)


def _said(error: BaseException) -> str:
    """The server's message, without what SQLAlchemy adds to it."""
    original: BaseException = getattr(error, "orig", None) or error
    return str(original).strip().partition("\n")[0].split(": ")[-1]
