"""The schema, forward only: numbered files, applied one transaction each under a lock, then all functions anew.

A migration's header says `breaking: yes` when code that does not know it must not run on it.
Functions are replaced whenever a migration is applied; a change to one of them therefore comes with a new number.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from hashlib import sha256
from importlib.metadata import version
from typing import Any

from psycopg import AsyncConnection, errors, sql
from psycopg.rows import tuple_row

from outrider.errors import SchemaMismatch
from outrider.postgres import statement
from outrider.postgres.log import forbidden

APPLIED_BY = f"outrider {version('outrider')}"
_IN_MIGRATIONS = ("uuid7", "make_counter", "refuse_unsettled", "poke")
_HEADER = re.compile(r"^-- (breaking|functions): *(\S+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Migration:
    version: int
    name: str
    breaking: bool
    functions: str
    sql: str


@dataclass(frozen=True, slots=True)
class Applied:
    version: int
    name: str
    breaking: bool
    applied_at: datetime
    applied_by: str


@cache
def known() -> tuple[Migration, ...]:
    found = []
    for filename, text in statement.migrations():
        number, _, name = filename.partition("_")
        header = dict(_HEADER.findall(text))
        found.append(Migration(int(number), name, header["breaking"] == "yes", header["functions"], text))
    return tuple(found)


def functions_fingerprint() -> str:
    """Of all function files; the newest migration's header must name it."""
    return sha256("".join(text for _, text in statement.functions()).encode()).hexdigest()[:16]


async def applied(conn: AsyncConnection[Any], schema: str) -> list[Applied]:
    """What the database has, oldest first; empty when Outrider is not installed there."""
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute("select to_regclass(%s)", [f'"{schema}".migration'])
        found = await cursor.fetchone()
        if found is None or found[0] is None:
            return []
        query = "select version, name, breaking, applied_at, applied_by from /*schema*/migration order by version"
        await cursor.execute(statement.render(query, schema).encode())
        return [Applied(*row) for row in await cursor.fetchall()]


def pending(have: Sequence[Applied]) -> list[Migration]:
    versions = {row.version for row in have}
    return [migration for migration in known() if migration.version not in versions]


async def migrate(conn: AsyncConnection[Any], schema: str, applied_by: str = APPLIED_BY) -> list[Migration]:
    """Bring the schema up to what this code knows; returns what was applied. Safe when several do it at once."""
    if not conn.autocommit:
        raise ValueError("migrate needs an autocommit connection: every migration is a transaction of its own")
    done: list[Migration] = []
    while True:
        async with conn.transaction():
            await conn.execute("select pg_advisory_xact_lock(hashtextextended('outrider.migrate.' || %s, 0))", [schema])
            await _refuse_strangers(conn, schema)
            have = await applied(conn, schema)
            refuse_newer(have, schema)
            todo = pending(have)
            if not todo:
                return done
            if not have:
                await _make_ledger(conn, schema)
            await conn.execute(_step(todo[0], schema, last=len(todo) == 1).encode())
            record = "insert into /*schema*/migration (version, name, breaking, applied_by) values (%s, %s, %s, %s)"
            values = [todo[0].version, todo[0].name, todo[0].breaking, applied_by]
            await conn.execute(statement.render(record, schema).encode(), values)
            done.append(todo[0])


def script(schema: str, applied_by: str = APPLIED_BY, after: int = 0) -> str:
    """The same as SQL to read, or to run with psql where a program may not."""
    todo = [migration for migration in known() if migration.version > after]
    if not todo:
        return f"-- nothing to do: this Outrider knows no migration after {after}\n"
    parts = ["begin;\n"]
    if after == 0:
        parts.append(
            f'create schema if not exists "{schema}";\n' + statement.statement("migration_ledger", schema).decode()
        )
    for migration in todo:
        parts.append(_step(migration, schema, last=migration is todo[-1]))
        parts.append(
            statement.render("insert into /*schema*/migration (version, name, breaking, applied_by)\n", schema)
            + f"values ({migration.version}, '{migration.name}', {migration.breaking}, {sql.quote(applied_by)});\n"
        )
    parts.append("commit;\n")
    return "\n".join(parts)


async def check_newer(conn: AsyncConnection[Any], schema: str) -> None:
    """Refuse to work on a schema that is newer in a way that this code cannot know. None at all is fine: it may come."""
    try:
        refuse_newer(await applied(conn, schema), schema)
    except errors.InsufficientPrivilege as error:
        raise forbidden(schema, error.diag.message_primary) from error


def refuse_newer(have: Sequence[Applied], schema: str) -> None:
    newest = known()[-1].version
    breaking = [row for row in have if row.version > newest and row.breaking]
    if breaking:
        raise SchemaMismatch(
            f'the schema "{schema}" is at version {have[-1].version}, and this Outrider knows versions up to {newest} '
            f"only: version {breaking[0].version} ({breaking[0].name}) breaks older code. "
            f"Upgrade outrider to the release that migrated it ({breaking[0].applied_by})"
        )


def _step(migration: Migration, schema: str, *, last: bool) -> str:
    parts = [migration.sql]
    if last:
        parts += [text for _, text in statement.functions()]
        parts += [f"revoke all on function /*schema*/{name} from public;" for name in _function_names()]
    return statement.render("\n".join(parts), schema)


def _function_names() -> list[str]:
    return [*_IN_MIGRATIONS, *(name for name, _ in statement.functions())]


async def _refuse_strangers(conn: AsyncConnection[Any], schema: str) -> None:
    query, params = statement.statement("strangers", schema), {"schema": schema, "functions": _function_names()}
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(query, params)
        found = await cursor.fetchone()
    if found is not None:
        kind, name, owner = found
        raise SchemaMismatch(
            f'the {kind} "{name}" belongs to {owner!r}, whose code would run with the rights of {conn.info.user!r}: '
            f'migrate as {owner!r}, or let a superuser make it yours: alter {kind} … owner to "{conn.info.user}"'
        )


async def _make_ledger(conn: AsyncConnection[Any], schema: str) -> None:
    cursor = await conn.execute("select 1 from pg_namespace where nspname = %s", [schema])
    if await cursor.fetchone() is None:
        try:
            await conn.execute(f'create schema "{schema}"'.encode())
        except errors.InsufficientPrivilege as error:
            raise SchemaMismatch(
                f'user {conn.info.user!r} may not create the schema "{schema}" in {conn.info.dbname!r}: let the owner '
                f'run: create schema "{schema}" authorization "{conn.info.user}"'
            ) from error
    await conn.execute(statement.statement("migration_ledger", schema))
