"""Publish on `django.db.connection` or `connections["alias"]`, inside `with transaction.atomic():`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from outrider.errors import NoTransaction
from outrider.postgres.inserts import Driver, Insert, Row

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper


def _run(conn: BaseDatabaseWrapper, insert: Insert) -> Row:
    vendor = getattr(conn, "vendor", None)  # a proxy may also stand for a cache
    if vendor != "postgresql":
        raise TypeError(
            f"this Django connection is to {vendor or 'no database'}, but the log is in Postgres: "
            'publish on connections["alias"] of that database'
        )
    if not conn.in_atomic_block:
        raise NoTransaction("wrap both in `with transaction.atomic():`")
    # Django's own error for a block that is broken already: what broke it says nothing about our schema.
    conn.validate_no_broken_transaction()
    query, params = insert.named()
    try:
        with conn.cursor() as cursor:
            cursor.execute(query, params)
            row: Row = cursor.fetchone()
            return row
    except Exception as error:
        insert.explain(error)
        raise


def _after_commit(conn: BaseDatabaseWrapper, poke: Callable[[], None]) -> None:
    """Inside a handler there is no hook after the commit; workers find the event without a wake-up."""
    if not getattr(conn, "lent_to_handler", False):
        conn.on_commit(poke, robust=True)


def _under(conn: BaseDatabaseWrapper) -> object:
    conn.ensure_connection()
    return conn.connection


DRIVER = Driver(run_sync=_run, after_commit=_after_commit, under_sync=_under)
