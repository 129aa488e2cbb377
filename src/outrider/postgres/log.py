"""The log as rows: append envelopes, take batches. What to send and how to read the answer; psycopg performs it.

Deciding and performing are apart, so that the blocking and the async connection share everything but `await`. Cursors are
made here, not by the connection: the caller may have chosen another kind with other placeholders or rows.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import psycopg
from psycopg import AsyncConnection, AsyncCursor, Connection, Cursor
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from outrider.envelope import Envelope
from outrider.errors import CursorError, OutriderError, PublishRefused, SchemaMismatch
from outrider.postgres.statement import statement

Params = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Batch:
    """What a take returned. `outcome`: idle, busy, more or done, as the SQL function says."""

    events: list[Envelope]
    outcome: str
    partition: int | None
    """The one that was read; None when there was nothing to read, or when others hold it."""

    @property
    def more(self) -> bool:
        """There may be more to read at once: commit, then take again. False when all is read, or held by others."""
        return self.outcome in ("more", "done")


@dataclass(frozen=True, slots=True)
class Asked:
    """The arguments of the SQL function take, which says what they mean."""

    subscription: str
    partition: int | None = None
    limit: int = 500
    scan: int = 10_000
    generation: int = 0
    knows: list[str] | None = None
    armed: int | None = None
    excused: int = 0
    worker: str | None = None
    careful: bool = False
    alone: bool = False

    def params(self) -> Params:
        return {field: getattr(self, field) for field in self.__slots__}


async def append(conn: object, envelopes: Sequence[Envelope], schema: str, notify: str = "commit") -> list[Envelope]:
    if not isinstance(conn, AsyncConnection):
        raise TypeError(wrong_connection(conn, "AsyncConnection", "publish"))
    query, params = _appending(envelopes, schema, notify)
    try:
        async with AsyncCursor(conn, row_factory=tuple_row) as cursor:
            await cursor.execute(query, params)
            return _appended(envelopes, await cursor.fetchall())
    except (psycopg.errors.UndefinedTable, psycopg.errors.InsufficientPrivilege, UnicodeEncodeError) as error:
        raise _clear_append_error(error, envelopes, conn.info.encoding, schema) from error


def append_sync(conn: object, envelopes: Sequence[Envelope], schema: str, notify: str = "commit") -> list[Envelope]:
    if not isinstance(conn, Connection):
        raise TypeError(wrong_connection(conn, "Connection", "publish_sync"))
    query, params = _appending(envelopes, schema, notify)
    try:
        with Cursor(conn, row_factory=tuple_row) as cursor:
            cursor.execute(query, params)
            return _appended(envelopes, cursor.fetchall())
    except (psycopg.errors.UndefinedTable, psycopg.errors.InsufficientPrivilege, UnicodeEncodeError) as error:
        raise _clear_append_error(error, envelopes, conn.info.encoding, schema) from error


async def take(conn: object, subscription: str, partition: int | None, limit: int, scan: int, schema: str) -> Batch:
    if not isinstance(conn, AsyncConnection):
        raise TypeError(wrong_connection(conn, "AsyncConnection", "take"))
    query, params = _taking(conn, subscription, partition, limit, scan, schema)
    try:
        async with AsyncCursor(conn, row_factory=tuple_row) as cursor:
            await cursor.execute(query, params, binary=True)
            return _batch(await cursor.fetchall())
    except psycopg.Error as error:
        if (clear := clear_error(error, schema)) is not None:
            raise clear from error
        raise


def take_sync(conn: object, subscription: str, partition: int | None, limit: int, scan: int, schema: str) -> Batch:
    if not isinstance(conn, Connection):
        raise TypeError(wrong_connection(conn, "Connection", "take_sync"))
    query, params = _taking(conn, subscription, partition, limit, scan, schema)
    try:
        with Cursor(conn, row_factory=tuple_row) as cursor:
            cursor.execute(query, params, binary=True)
            return _batch(cursor.fetchall())
    except psycopg.Error as error:
        if (clear := clear_error(error, schema)) is not None:
            raise clear from error
        raise


def _taking(
    conn: AsyncConnection[Any] | Connection[Any],
    subscription: str,
    partition: int | None,
    limit: int,
    scan: int,
    schema: str,
) -> tuple[bytes, Params]:
    if conn.autocommit and conn.info.transaction_status == TransactionStatus.IDLE:
        raise CursorError(
            "take needs a transaction, or the position would advance before anything is done: "
            "wrap it in `with conn.transaction():`"
        )
    return statement("take", schema), Asked(subscription, partition, limit, scan).params()


def missing_schema(schema: str) -> SchemaMismatch:
    return SchemaMismatch(f'the schema "{schema}" is not installed here: run outrider migrate, or await app.migrate()')


def forbidden(schema: str, error: psycopg.Error) -> SchemaMismatch:
    return SchemaMismatch(
        f'this user may not use the schema "{schema}" ({error.diag.message_primary}): let its owner grant the rights '
        'that the guide lists under "Roles"'
    )


def _appending(envelopes: Sequence[Envelope], schema: str, notify: str) -> tuple[bytes, Params]:
    rows = [_row(envelope) for envelope in envelopes]
    # RETURNING is evaluated before the trigger that pokes, which reads this setting.
    quiet = b"" if notify == "commit" else f", set_config('outrider.notify', '{notify}', true)".encode()
    if len(rows) == 1:
        return statement("publish_one", schema) + quiet, rows[0]
    return statement("publish_many", schema) + quiet, {name: [row[name] for row in rows] for name in rows[0]}


def _row(e: Envelope) -> Params:
    return {
        "id": e.id,
        "event_type": e.event_type,
        "event_version": e.event_version,
        "occurred_at": e.occurred_at,
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


def _appended(envelopes: Sequence[Envelope], rows: Sequence[tuple[Any, ...]]) -> list[Envelope]:
    drawn = {row[0]: {"seq": row[1], "occurred_at": row[2]} for row in rows}
    return [Envelope.of(vars(envelope) | drawn[envelope.id]) for envelope in envelopes]


# The columns of a take: what happened, in its first row; then those of each event.
HEADER = 7
ATTEMPT, SEQ, TYPE, PAYLOAD, TRACE = 7, 8, 10, 22, 24
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
_COLUMNS = (
    "seq", "id", "event_type", "event_version", "occurred_at", "source", "target", "content_class", "channel",
    "generation", "workspace_id", "aggregate_kind", "key", "entity_version", "payload_json", "idempotency_key",
    "trace_context", "origin",
)  # fmt: skip


def _batch(rows: Sequence[tuple[Any, ...]]) -> Batch:
    return Batch([envelope_of(row) for row in rows[1:]], outcome=rows[0][0], partition=rows[0][1])


def envelope_of(row: tuple[Any, ...]) -> Envelope:
    """One event of a take."""
    fields = dict(zip(_COLUMNS, row[SEQ:], strict=True))
    if isinstance(fields["id"], bytes):
        fields["id"] = UUID(bytes=fields["id"])
        fields["occurred_at"] = _EPOCH + timedelta(microseconds=int.from_bytes(fields["occurred_at"], signed=True))
    if fields["trace_context"] is not None:
        fields["trace_context"] = _trace(fields["trace_context"])
    return Envelope.of(fields)


def _trace(text: str) -> dict[str, str] | None:
    """SQL may write anything there; what is no trace context must not stop a reader."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return {str(name): str(value) for name, value in found.items()} if isinstance(found, dict) else None


def _clear_append_error(
    error: Exception, envelopes: Sequence[Envelope], encoding: str, schema: str
) -> SchemaMismatch | PublishRefused:
    if isinstance(error, psycopg.errors.InsufficientPrivilege):
        return forbidden(schema, error)
    if not isinstance(error, UnicodeEncodeError):
        return missing_schema(schema)
    rule = f"is {encoding}, which cannot carry {error.object[error.start]!r}: set client_encoding to UTF8"
    return PublishRefused(envelopes[0].event_type, "the connection's client_encoding", rule)


def clear_error(error: psycopg.Error, schema: str) -> OutriderError | None:
    """Our own SQLSTATEs, and a schema that is not there, as errors of ours; None for everything else."""
    if isinstance(error, psycopg.errors.UndefinedFunction | psycopg.errors.InvalidSchemaName):
        return missing_schema(schema)
    if isinstance(error, psycopg.errors.InsufficientPrivilege) and "row-level" not in str(error):
        return forbidden(schema, error)
    if error.sqlstate is not None and error.sqlstate.startswith("OR"):
        hint = f" {error.diag.message_hint}" if error.diag.message_hint else ""
        return CursorError(f"{error.diag.message_primary}.{hint}")
    return None


def wrong_connection(conn: object, wanted: str, verb: str) -> str:
    if isinstance(conn, Connection | AsyncConnection):
        other = verb.removesuffix("_sync") if verb.endswith("_sync") else f"{verb}_sync"
        return f"this is a psycopg {type(conn).__name__}: use {other}() with it"
    return f"{verb}() takes your psycopg {wanted}, not {type(conn).__module__}.{type(conn).__qualname__}"
