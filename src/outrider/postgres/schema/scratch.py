"""Databases for one test each, copied from a template that is migrated once. Dropping one ends its sessions."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

from psycopg import errors, sql
from psycopg.conninfo import make_conninfo

from outrider.errors import ConfigError, DatabaseUnavailable
from outrider.postgres import connection
from outrider.postgres.dsn import database_of
from outrider.postgres.schema import migrate

PATIENCE = 3.0
"""Seconds to wait for closed sessions to disappear from the server."""
PAUSE = 0.01

_made: set[str] = set()
"""The databases that this process has created and not dropped."""

_SESSIONS = """
select format('process %%s (%%s), %%s: %%s', pid, coalesce(nullif(application_name, ''), 'no application_name'), state,
              left(regexp_replace(query, '\\s+', ' ', 'g'), 200))
from pg_stat_activity where datname = %s and backend_type = 'client backend' order by backend_start
"""


def make_template(server: str, schema: str, prepare: Callable[[str], object]) -> str:
    """Creates a database with the migrated schema and what `prepare(dsn)` adds; returns its name."""
    name = create(server, kind="template")
    try:
        run(_migrate(dsn(server, name), schema))
        if inspect.iscoroutine(result := prepare(dsn(server, name))):
            run(result)
        with connection.connect_sync(server, autocommit=True) as conn:
            if left := _sessions(conn, name, PATIENCE):
                raise ConfigError(
                    "outrider_prepare left sessions open, and a database in use cannot be copied: close them before it "
                    "returns\n  " + "\n  ".join(left)
                )
            conn.execute(sql.SQL("alter database {} allow_connections false").format(sql.Identifier(name)))
    except BaseException:
        drop(server, name, patience=0)
        raise
    return name


def dsn(server: str, name: str) -> str:
    return make_conninfo(server, dbname=name)


async def _migrate(where: str, schema: str) -> None:
    async with await connection.connect(where, autocommit=True) as conn:
        await migrate.migrate(conn, schema)


def run(work: Coroutine[Any, Any, object]) -> None:
    """Runs in a new thread, because an event loop may be running in this one."""
    with ThreadPoolExecutor(1, "outrider-template") as apart:
        apart.submit(asyncio.run, work).result()


def create(server: str, *, template: str = "template1", kind: str = "test") -> str:
    name = f"outrider_{kind}_{uuid4().hex[:12]}"
    with connection.connect_sync(server, autocommit=True) as conn:
        try:
            conn.execute(
                sql.SQL("create database {} template {}").format(sql.Identifier(name), sql.Identifier(template))
            )
        except errors.InsufficientPrivilege as error:
            raise DatabaseUnavailable(
                f"user {conn.info.user!r} may not create databases for tests: let a superuser run: "
                f'alter role "{conn.info.user}" createdb; or unset OUTRIDER_TEST_DSN to use an embedded Postgres'
            ) from error
    _made.add(name)
    return name


def is_scratch(where: str) -> bool:
    """Whether a DSN leads to a database that this process created."""
    return database_of(where) in _made


def drop(server: str, name: str, *, patience: float = PATIENCE) -> list[str]:
    """Drops a database; returns the sessions that had to be ended."""
    with connection.connect_sync(server, autocommit=True) as conn:
        left = _sessions(conn, name, patience)
        conn.execute(sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(name)))
    _made.discard(name)
    return left


def _sessions(conn: connection.Session, name: str, patience: float) -> list[str]:
    deadline = time.monotonic() + patience
    while (found := conn.execute(_SESSIONS, [name]).fetchall()) and time.monotonic() < deadline:
        time.sleep(PAUSE)
    return [text for (text,) in found]
