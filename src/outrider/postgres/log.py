"""The log as rows: take batches. What to send and how to read the answer; psycopg performs it.

Deciding and performing are apart, so that the blocking and the async connection share everything but `await`. Cursors are
made here, not by the connection: the caller may have chosen another kind with other placeholders or rows.
"""

from __future__ import annotations

import json
import re
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
from outrider.errors import CursorError, OutriderError, SchemaMismatch, SubscriptionRefused
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
    return statement("handlers/take", schema), Asked(subscription, partition, limit, scan).params()


def missing_schema(schema: str) -> SchemaMismatch:
    return SchemaMismatch(f'the schema "{schema}" is not installed here: run outrider migrate, or await app.migrate()')


def older_schema(schema: str) -> SchemaMismatch:
    return SchemaMismatch(
        f'the schema "{schema}" lacks what this Outrider needs: run outrider migrate, or await app.migrate()'
    )


_DENIED = re.compile(r"\bfunction (\w+)")
_OPERATORS = {
    "attach_segment", "erase", "note_export", "tenant_page", "set_setting", "withdraw", "replay", "outbox_replay", "discard",
    "pause", "pause_all", "resume", "resume_all", "narrow", "rename", "retire", "cancel", "run_now", "move_generation",
}  # fmt: skip


def forbidden(schema: str, why: str | None) -> SchemaMismatch:
    denied = _DENIED.search(why or "")
    function = denied[1] if denied else ""
    if function.startswith("register"):
        return SchemaMismatch(
            f"what this app declares is not registered yet, or has changed, and this user may not register it ({why}): run "
            "outrider migrate --app with it, as the owner of the schema"
        )
    if function == "tenants_plan":
        return SchemaMismatch(f'this takes the owner of the schema "{schema}" ({why})')
    if function in _OPERATORS:
        return SchemaMismatch(
            f'this takes an operator ({why}): a member of "{schema}_operator", which outrider roles makes (docs/roles.md)'
        )
    return SchemaMismatch(
        f'this user may not use the schema "{schema}" ({why}): let its owner grant the rights '
        "that docs/roles.md lists (outrider roles)"
    )


# The columns of a take: what happened, in its first row; then those of each event.
HEADER = 7
ATTEMPT, SEQ, ID, TYPE, VERSION, OCCURRED, WORKSPACE, PAYLOAD, TRACE = 7, 8, 9, 10, 11, 12, 18, 22, 24
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
_EPOCH_SECONDS = _EPOCH.timestamp()
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
        fields["occurred_at"] = time_of(fields["occurred_at"])
    if fields["trace_context"] is not None:
        fields["trace_context"] = trace_of(fields["trace_context"])
    return Envelope.of(fields)


def time_of(binary: bytes) -> datetime:
    """A timestamptz as the server sends it."""
    return _EPOCH + timedelta(microseconds=int.from_bytes(binary, signed=True))


def occurred(row: tuple[Any, ...]) -> float:
    """When an event of a take occurred, as time.time() counts."""
    at = row[OCCURRED]
    return _EPOCH_SECONDS + int.from_bytes(at, signed=True) / 1e6 if isinstance(at, bytes) else at.timestamp()


def trace_of(text: str) -> dict[str, str] | None:
    """SQL may write anything there; what is no trace context must not stop a reader."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return {str(name): str(value) for name, value in found.items()} if isinstance(found, dict) else None


def clear_error(error: psycopg.Error, schema: str) -> OutriderError | None:
    """Our own SQLSTATEs, and a schema that is not there or too old, as errors of ours; None for everything else."""
    if isinstance(error, psycopg.errors.InvalidSchemaName):
        return missing_schema(schema)
    if isinstance(error, psycopg.errors.UndefinedFunction | psycopg.errors.UndefinedColumn):
        return older_schema(schema)
    if isinstance(error, psycopg.errors.InsufficientPrivilege) and "row-level" not in str(error):
        return forbidden(schema, error.diag.message_primary)
    if error.sqlstate == "OR010":
        return SubscriptionRefused(error.diag.message_primary)
    if error.sqlstate is not None and error.sqlstate.startswith("OR"):
        hint = f" {error.diag.message_hint}" if error.diag.message_hint else ""
        return CursorError(f"{error.diag.message_primary}.{hint}")
    return None


def wrong_connection(conn: object, wanted: str, verb: str) -> str:
    if isinstance(conn, Connection | AsyncConnection):
        other = verb.removesuffix("_sync") if verb.endswith("_sync") else f"{verb}_sync"
        return f"this is a psycopg {type(conn).__name__}: use {other}() with it"
    return f"{verb}() takes your psycopg {wanted}, not {type(conn).__module__}.{type(conn).__qualname__}"
