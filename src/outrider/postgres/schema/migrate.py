"""Applies migrations, forward only: numbered files, those of a phase in one transaction, under a lock.

All functions are replaced with the last migration of a phase, so a changed function needs a new migration number, and
nobody sees new tables with old functions.
The header of a migration says `breaking: yes` if code that does not know it must not run on it. Other migrations, and the
functions, also work with the previous release: they are the pre phase of an upgrade. Breaking migrations are the post phase.
They are refused while a live worker does not know them. `breaking: stop` is a breaking migration that new code cannot do
without: it belongs to the pre phase too, and the workers must be stopped for it.
"""

from __future__ import annotations

import asyncio
import logging
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

from outrider.errors import MigrationRefused, SchemaMismatch
from outrider.postgres import statement
from outrider.postgres.errors import forbidden, missing_schema
from outrider.postgres.schema.phases import LiveWorker, Numbered, Phase, refuse_unaware, through

APPLIED_BY = f"outrider {version('outrider')}"
PATIENCE = "2s"
"""The lock_timeout of a step. Other sessions queue behind it for at most this long."""
TRIES = 20
PAUSE = 1.0
_log = logging.getLogger("outrider")
_HEADER = re.compile(r"^-- (breaking|functions): *(\S+)$", re.MULTILINE)
_FUNCTION = re.compile(r"create function /\*schema\*/(\w+)")
_DROPPED = re.compile(r"drop function /\*schema\*/(\w+)")


@dataclass(frozen=True, slots=True)
class Migration(Numbered):
    functions: str
    sql: str
    stop: bool = False

    @property
    def needed(self) -> bool:
        return self.stop or not self.breaking


@dataclass(frozen=True, slots=True)
class Applied(Numbered):
    applied_at: datetime
    applied_by: str


@cache
def known() -> tuple[Migration, ...]:
    found = []
    for filename, text in statement.migrations():
        number, _, name = filename.partition("_")
        header = dict(_HEADER.findall(text))
        breaking = header["breaking"]
        found.append(Migration(int(number), name, breaking != "no", header["functions"], text, breaking == "stop"))
    return tuple(found)


def functions_fingerprint() -> str:
    """A hash of all function files. The header of the newest migration must contain it."""
    return sha256("".join(text for _, text in statement.functions()).encode()).hexdigest()[:16]


async def applied(conn: AsyncConnection[Any], schema: str) -> list[Applied]:
    """The applied migrations, oldest first; empty if Outrider is not installed."""
    query = "select version, name, breaking, applied_at, applied_by from /*schema*/migration order by version"
    have = [Applied(*row) for row in await _rows(conn, schema, "migration", statement.render(query, schema).encode())]
    if have and (have[0].version, have[0].name) != (known()[0].version, known()[0].name):
        raise SchemaMismatch(
            f'the schema "{schema}" was made by a checkout from before the first release and cannot be upgraded: use a new '
            f'database, or drop the schema and all its data: drop schema "{schema}" cascade. For an embedded '
            "Postgres: stop what uses it and delete the folder .outrider"
        )
    return have


async def live_workers(conn: AsyncConnection[Any], schema: str) -> list[LiveWorker]:
    """The workers that must know a breaking step. Processes that only publish are not recorded, so they are missing."""
    return [
        LiveWorker(*row)
        for row in await _rows(conn, schema, "worker", statement.statement("schema/live_workers", schema))
    ]


def pending(have: Sequence[Applied], phase: Phase = Phase.post) -> list[Migration]:
    """The migrations that are not applied, up to that phase."""
    versions = {row.version for row in have}
    return through(phase, [migration for migration in known() if migration.version not in versions])


async def migrate(
    conn: AsyncConnection[Any],
    schema: str,
    applied_by: str = APPLIED_BY,
    *,
    phase: Phase = Phase.post,
    force: bool = False,
) -> list[Migration]:
    """Applies all pending migrations and returns them. Safe if several processes do it at once.

    `Phase.pre` leaves out what the previous release cannot work with. `force` breaks live workers that do not know a step.
    """
    if not conn.autocommit:
        raise ValueError("migrate needs an autocommit connection: every phase is a transaction of its own")
    done: list[Migration] = []
    tries = TRIES
    while True:
        try:
            steps = await _apply_next(conn, schema, applied_by, phase, force=force)
        except (errors.LockNotAvailable, errors.DeadlockDetected) as error:
            tries -= 1
            held = error.diag.message_primary if error.diag.message_hint else None  # by another migration
            if not tries:
                raise (
                    await _in_use(conn, schema, error)
                    if held is None
                    else MigrationRefused(f"nothing was changed: {held}. {error.diag.message_hint}")
                ) from error
            if held is not None and tries == TRIES - 1:
                _log.warning("%s. Trying %s more times", held, tries)
            await asyncio.sleep(PAUSE)
            continue
        if not steps:
            return done
        done += steps


async def _apply_next(
    conn: AsyncConnection[Any], schema: str, applied_by: str, phase: Phase, *, force: bool
) -> list[Migration]:
    """Applies the pending migrations up to those that bring the functions."""
    async with conn.transaction():
        await conn.execute(hold(schema, PATIENCE).encode())
        await _refuse_strangers(conn, schema)
        have = await applied(conn, schema)
        refuse_newer(have, schema)
        todo = pending(have, phase)
        if not todo:
            return []
        if not have:
            await _make_ledger(conn, schema)
        elif not force:
            refuse_unaware(todo, await live_workers(conn, schema))
        await conn.execute("select set_config('lock_timeout', %s, true)", [PATIENCE])
        record = "insert into /*schema*/migration (version, name, breaking, applied_by) values (%s, %s, %s, %s)"
        steps = through(Phase.pre, todo) or todo
        for step in steps:
            await conn.execute(_step(todo, step, schema).encode())
            values = [step.version, step.name, step.breaking, applied_by]
            await conn.execute(statement.render(record, schema).encode(), values)
        return steps


def held_block(schema: str, patience: str) -> str:
    """A PL/pgSQL block that lets one session at a time migrate a schema. Its error names the session that holds the lock."""
    text = statement.statement("schema/hold_migrations", schema).decode()
    text = "\n".join(line for line in text.splitlines() if not line.startswith("--"))
    return text.replace("{schema}", schema).replace("{patience}", patience)


def hold(schema: str, patience: str) -> str:
    """`held_block` as a statement."""
    return f"do $hold$\n{held_block(schema, patience)}\n$hold$"


def script(schema: str, applied_by: str = APPLIED_BY, after: int = 0, phase: Phase = Phase.post) -> str:
    """The migrations as SQL for psql."""
    todo = through(phase, [migration for migration in known() if migration.version > after])
    if not todo:
        only = " of the pre phase" if phase is Phase.pre else ""
        return f"-- nothing to do: this Outrider knows no migration{only} after {after}\n"
    parts = ["begin;\n"]
    if after == 0:
        parts.append(
            f'create schema if not exists "{schema}";\n'
            + statement.statement("schema/migration_ledger", schema).decode()
        )
    for migration in todo:
        if after and migration.breaking:
            parts.append(_refuse_unaware_in_sql(migration, schema))
        parts.append(_step(todo, migration, schema))
        parts.append(
            statement.render("insert into /*schema*/migration (version, name, breaking, applied_by)\n", schema)
            + f"values ({migration.version}, '{migration.name}', {migration.breaking}, {sql.quote(applied_by)});\n"
        )
    parts.append("commit;\n")
    return "\n".join(parts)


async def check_newer(conn: AsyncConnection[Any], schema: str) -> None:
    """Refuses a schema with breaking migrations that this code does not know. A missing schema is accepted."""
    try:
        refuse_newer(await applied(conn, schema), schema)
    except errors.InsufficientPrivilege as error:
        raise forbidden(schema, error.diag.message_primary) from error


async def check_needed(conn: AsyncConnection[Any], schema: str) -> None:
    """Refuses a schema without the migrations that this code needs."""
    have = await applied(conn, schema)
    if not have:
        raise missing_schema(schema)
    if lacking := pending(have, Phase.pre):
        stop = any(step.breaking for step in lacking)
        how = "when older workers are stopped" if stop else "with --phase pre while older workers are running"
        raise SchemaMismatch(
            f'the schema "{schema}" is at version {have[-1].version}, and this Outrider needs version '
            f"{lacking[-1].version}: run outrider migrate; {how}"
        )


def refuse_newer(have: Sequence[Applied], schema: str) -> None:
    newest = known()[-1].version
    breaking = [row for row in have if row.version > newest and row.breaking]
    if breaking:
        raise SchemaMismatch(
            f'the schema "{schema}" is at version {have[-1].version}, and this Outrider knows versions up to {newest} '
            f"only: version {breaking[0].version} ({breaking[0].name}) breaks older code. "
            f"Upgrade outrider to the release that migrated it ({breaking[0].applied_by})"
        )


def _refuse_unaware_in_sql(step: Migration, schema: str) -> str:
    text = statement.statement("schema/refuse_unaware", schema).decode()
    live = statement.statement("schema/live_workers", schema).decode()
    return text.replace("{live_workers}", live).replace("{version}", str(step.version))


def _step(todo: Sequence[Migration], step: Migration, schema: str) -> str:
    """The SQL of a step. Functions come with the last step, and with the last step of the pre phase."""
    parts = [step.sql]
    if step in (todo[-1], *through(Phase.pre, todo)[-1:]):
        for subject in statement.SUBJECTS:
            parts += [f"-- Functions: {subject}\n", *(text for _, text in statement.functions_of(subject))]
        parts += [f"revoke all on function /*schema*/{name} from public;" for name in _function_names(step.version)]
        parts.append(statement.statement("schema/inherit_grants", schema).decode())
    return statement.render("\n".join(parts), schema)


def _function_names(upto: int) -> list[str]:
    """The functions that exist after a migration."""
    steps = [step.sql for step in known() if step.version <= upto]
    made = dict.fromkeys(name for sql in steps for name in _FUNCTION.findall(sql))
    dropped = {name for sql in steps for name in _DROPPED.findall(sql)}
    here = dict.fromkeys(name for name, _ in statement.functions())
    return [*(name for name in made if name not in dropped and name not in here), *here]


async def _rows(conn: AsyncConnection[Any], schema: str, table: str, query: bytes) -> list[tuple[Any, ...]]:
    """The rows of a query on one of our tables; none if the table does not exist yet."""
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute("select to_regclass(%s)", [f'"{schema}".{table}'])
        if await cursor.fetchone() == (None,):
            return []
        await cursor.execute(query)
        return await cursor.fetchall()


async def _in_use(conn: AsyncConnection[Any], schema: str, error: errors.Error) -> MigrationRefused:
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(statement.statement("uninstall/blockers", schema), {"schema": schema})
        holding = ", ".join(who for (who,) in await cursor.fetchall())
    return MigrationRefused(
        f"a migration waited {TRIES} times {PATIENCE} for tables that other sessions use: "
        f"{holding or 'a session that has ended now'}: end those transactions, or stop the workers for a moment, and run it "
        f"again ({error.diag.message_primary})"
    )


async def _refuse_strangers(conn: AsyncConnection[Any], schema: str) -> None:
    names = _function_names(known()[-1].version)
    query, params = statement.statement("schema/strangers", schema), {"schema": schema, "functions": names}
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(query, params)
        found = await cursor.fetchone()
    if found is not None:
        kind, name, owner = found
        raise SchemaMismatch(
            f'the {kind} "{name}" belongs to {owner!r}, whose code would run with the rights of {conn.info.user!r}: '
            f'migrate as {owner!r}, or let a superuser run: alter {kind} … owner to "{conn.info.user}"'
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
    await conn.execute(statement.statement("schema/migration_ledger", schema))
