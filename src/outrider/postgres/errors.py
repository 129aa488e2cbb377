"""Turns database errors that a user can act on into errors of Outrider."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from psycopg import AsyncConnection, Connection

from outrider.errors import CursorError, OutriderError, SchemaMismatch, SubscriptionRefused

_DENIED = re.compile(r"\bfunction (\w+)")
_OPERATORS = {
    "attach_segment", "erase", "note_export", "tenant_page", "set_setting", "withdraw", "replay", "outbox_replay", "discard",
    "pause", "pause_all", "resume", "resume_all", "narrow", "rename", "retire", "cancel", "run_now", "move_generation",
    "pause_schedule", "resume_schedule", "run_schedule", "change_jobs",
}  # fmt: skip


@contextmanager
def in_our_words(schema: str) -> Iterator[None]:
    """Raises a missing table, and what `clear_error` knows, as an error of Outrider. Other errors pass unchanged."""
    try:
        yield
    except psycopg.errors.UndefinedTable as error:
        raise missing_schema(schema) from error
    except psycopg.Error as error:
        if (clear := clear_error(error, schema)) is not None:
            raise clear from error
        raise


def clear_error(error: psycopg.Error, schema: str) -> OutriderError | None:
    """An error of Outrider for our own SQLSTATEs, a missing or old schema, or a missing privilege; None for other errors."""
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


def queue_is_full(error: BaseException) -> bool:
    """COMMIT failed because the queue of notifications was full. A deferred trigger may raise the same SQLSTATE, 54000."""
    return isinstance(error, psycopg.errors.ProgramLimitExceeded) and error.diag.source_function == "PreCommit_Notify"


def missing_schema(schema: str) -> SchemaMismatch:
    return SchemaMismatch(f'the schema "{schema}" is not installed here: run outrider migrate, or await app.migrate()')


def older_schema(schema: str) -> SchemaMismatch:
    return SchemaMismatch(
        f'the schema "{schema}" lacks what this Outrider needs: run outrider migrate, or await app.migrate()'
    )


def forbidden(schema: str, why: str | None) -> SchemaMismatch:
    denied = _DENIED.search(why or "")
    function = denied[1] if denied else ""
    if function.startswith("register"):
        return SchemaMismatch(
            f"what this app declares is not registered yet, or has changed, and this user may not register it ({why}): run "
            "outrider migrate --app for it, as the owner of the schema"
        )
    if function == "tenants_plan":
        return SchemaMismatch(f'only the owner of the schema "{schema}" may do this ({why})')
    if function in _OPERATORS:
        return SchemaMismatch(
            f'only an operator may do this ({why}): become a member of "{schema}_operator", the role that outrider roles '
            "creates (docs/roles.md)"
        )
    return SchemaMismatch(
        f'this user may not use the schema "{schema}" ({why}): let its owner grant the rights '
        "that docs/roles.md lists (outrider roles)"
    )


def wrong_connection(conn: object, wanted: str, verb: str) -> str:
    if isinstance(conn, Connection | AsyncConnection):
        other = verb.removesuffix("_sync") if verb.endswith("_sync") else f"{verb}_sync"
        return f"this is a psycopg {type(conn).__name__}: use {other}() with it"
    return f"{verb}() takes your psycopg {wanted}, not {type(conn).__module__}.{type(conn).__qualname__}"
