"""Removes Outrider from a database: takes the locks, checks what would be lost, drops.

The migrations say what belongs to Outrider. Nothing cascades: if objects of others are in the way, nothing is dropped.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import psycopg
from psycopg import AsyncConnection, sql
from psycopg.rows import tuple_row

from outrider.errors import SchemaMismatch, UninstallRefused
from outrider.postgres import statement
from outrider.postgres.schema.migrate import applied, held_block, hold, known
from outrider.postgres.statement import Params

PATIENCE = "5s"
"""The lock_timeout. Publishers queue behind us for at most this long."""
_CREATED = re.compile(
    r"create (?:or replace )?(?:constraint )?(table|view|function|type|sequence|trigger) (?:if not exists )?"
    r"(?:/\*schema\*/)?(\w+)(%s)?"
)
_PARAMETER = re.compile(r"%\((\w+)\)s|%%")


@dataclass(frozen=True, slots=True)
class Owed:
    """What one subscription would lose."""

    name: str
    unread: int
    waiting: int
    dead: int

    def __bool__(self) -> bool:
        return bool(self.unread or self.waiting or self.dead)

    def __str__(self) -> str:
        return f"{self.name} ({self.unread} unread, {self.waiting} waiting, {self.dead} dead letters)"


@dataclass(frozen=True, slots=True)
class Rolled:
    """A rollup that prevents the uninstall."""

    name: str
    held: bool
    """It is still installed, or functions of it are left: without our tables, inserts into the user's table would fail."""
    waiting: int
    """Staged rows that are not events yet, including those that were set aside."""

    def __str__(self) -> str:
        return f"{self.name} ({self.waiting} rows wait)"


@dataclass(frozen=True, slots=True)
class Survey:
    """What is installed, and what prevents an uninstall."""

    version: int
    events: int
    receipts: int
    publishing: int
    """Open transactions that publish or enqueue. Their events and jobs are not counted."""
    subscriptions: list[Owed]
    rollups: list[Rolled]
    workers: list[str]
    dependents: list[str]
    """Objects of others that depend on ours."""
    strangers: list[str]
    """Objects in the schema that are not ours."""
    mentions: list[str]
    """Functions whose text names the schema. They stay, and may fail afterwards."""

    def refusals(self, schema: str, *, force: bool, whole: bool) -> list[str]:
        """The reasons to refuse, each with what to do about it."""
        owed = [str(each) for each in self.subscriptions if each]
        found = []
        if self.workers:
            found.append(
                f"workers were seen within the last 30 s: {_list(self.workers)}: stop them (a killed worker counts for 30 s)"
            )
        if held := [each for each in self.rollups if each.held]:
            found.append(
                f"rollups are installed: {_list([str(each) for each in held])}: remove each with "
                f"outrider rollup uninstall {held[0].name}{_first_flush(held[0])}"
            )
        if (staged := [each for each in self.rollups if not each.held]) and not force:
            found.append(
                f"rows of rollups would be lost: {_list([str(each) for each in staged])}: emit them with "
                f"outrider rollup run {staged[0].name} --flush, or lose them for good with --force"
            )
        if self.dependents:
            found.append(
                f"others depend on it: {_list(self.dependents)}: drop or change them first, nothing here cascades"
            )
        if self.strangers and whole:
            found.append(
                f'the schema "{schema}" holds objects that are not ours: {_list(self.strangers)}: move them elsewhere, or '
                "keep them and the schema with --keep-schema"
            )
        if owed and not force:
            found.append(
                f"this would be lost: {_list(owed)}: let the workers handle it, or lose it for good with --force"
            )
        return found


async def survey(conn: AsyncConnection[Any], schema: str, *, whole: bool = True) -> Survey | None:
    """None if Outrider is not installed. Changes nothing. Exact while nobody publishes."""
    have = await applied(conn, schema)
    if not have:
        return None
    newest = known()[-1].version
    if have[-1].version != newest:
        instead = "run outrider migrate first" if have[-1].version < newest else "use the release that migrated it"
        raise SchemaMismatch(
            f'the schema "{schema}" is at version {have[-1].version}, and this Outrider can account for version {newest} '
            f"only: {instead}"
        )
    for kind, name, owner, user in await _rows(conn, "others_own", schema, whole):
        raise UninstallRefused(f'the {kind} "{name}" belongs to {owner!r}, and you are {user!r}: connect as its owner')
    [(version, events, receipts, publishing)] = await _rows(conn, "counts", schema, whole)
    foreign = await _rows(conn, "foreign", schema, whole)
    return Survey(
        version, events, receipts, publishing,
        subscriptions=[Owed(*row) for row in await _rows(conn, "owed", schema, whole)],
        rollups=[Rolled(*row) for row in await _rows(conn, "rollups", schema, whole)],
        workers=[worker for (worker,) in await _rows(conn, "workers", schema, whole)],
        dependents=[what for kind, what in foreign if kind == "dependent"],
        strangers=[what for kind, what in foreign if kind == "stranger"],
        mentions=[what for kind, what in foreign if kind == "mention"],
    )  # fmt: skip


async def uninstall(
    conn: AsyncConnection[Any], schema: str, *, force: bool = False, whole: bool = True
) -> Survey | None:
    """Drops all that is ours in one transaction; returns what was dropped. `whole`: also the schema itself."""
    async with _patiently(conn, schema), conn.transaction():
        await conn.execute("set transaction isolation level read committed")  # to see what is committed while we wait
        await conn.execute("select set_config('lock_timeout', %s, true)", [PATIENCE])
        await conn.execute(hold(schema, PATIENCE).encode())
        if not await applied(conn, schema):
            return None
        await _perform(conn, "hold", schema, whole)
        found = await survey(conn, schema, whole=whole)
        if found is not None:
            refuse(found, schema, force=force, whole=whole)
            await _perform(conn, "drop", schema, whole)
        return found


def refuse(found: Survey, schema: str, *, force: bool, whole: bool) -> None:
    if reasons := found.refusals(schema, force=force, whole=whole):
        raise UninstallRefused(f"nothing was dropped: {'; '.join(reasons)}")


def script(schema: str) -> str:
    """The uninstall as one SQL statement for psql. It runs in the caller's transaction and cannot be forced."""
    parts = {name: _text(name, schema) for name in ("commands", "workers", "owed", "rollups", "foreign")}
    parts["version"] = str(known()[-1].version)
    parts["hold"] = held_block(schema, PATIENCE).replace("%", "%%")
    text = re.sub(r"\{([a-z]+)\}", lambda found: parts[found[1]], _text("script", schema))
    values = _params(schema, whole=True) | {"patience": PATIENCE}
    return _PARAMETER.sub(lambda found: sql.Literal(values[found[1]]).as_string() if found[1] else "%", text)


@cache
def _ours() -> Params:
    """The names of everything that the migrations and functions create."""
    sources = [text for _, text in (*statement.migrations(), *statement.functions())]
    sources.append(statement.statement("schema/migration_ledger", "any").decode().replace('"any".', statement.MARKER))
    made = {found.groups() for text in sources for found in _CREATED.finditer(text)}
    plain = {kind: sorted(name for of, name, numbered in made if of == kind and not numbered) for kind, *_ in made}
    numbered = "|".join(sorted(name for kind, name, numbered in made if kind == "sequence" and numbered))
    return {
        "tables": plain["table"] + plain.get("view", []),
        "functions": plain["function"],
        "types": plain["type"],
        "triggers": plain["trigger"],
        "sequences": f"^(({numbered})[0-9]+|{'|'.join(plain['sequence'])})$",
    }


def _params(schema: str, *, whole: bool) -> Params:
    return _ours() | {"schema": schema, "whole": whole}


def _text(name: str, schema: str) -> str:
    lines = statement.statement(f"uninstall/{name}", schema).decode().splitlines()
    return "\n".join(line for line in lines if not line.lstrip().startswith("--"))


async def _rows(conn: AsyncConnection[Any], name: str, schema: str, whole: bool) -> list[tuple[Any, ...]]:
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(statement.statement(f"uninstall/{name}", schema), _params(schema, whole=whole))
        return await cursor.fetchall()


async def _perform(conn: AsyncConnection[Any], wanted: str, schema: str, whole: bool) -> None:
    for step, command in await _rows(conn, "commands", schema, whole):
        if step == wanted:
            await conn.execute(command.encode())


@asynccontextmanager
async def _patiently(conn: AsyncConnection[Any], schema: str) -> AsyncIterator[None]:
    try:
        yield
    except psycopg.errors.LockNotAvailable as error:
        if error.diag.message_hint:
            raise UninstallRefused(
                f"nothing was dropped: {error.diag.message_primary}. {error.diag.message_hint}"
            ) from None
        holding = [who for (who,) in await _rows(conn, "blockers", schema, whole=True)]
        raise UninstallRefused(
            f"nothing was dropped: the tables were in use for {PATIENCE} by {_list(holding) or 'a session that has ended'}: "
            "end those transactions, or try again"
        ) from None
    except psycopg.errors.DeadlockDetected:
        raise UninstallRefused(
            "nothing was dropped: a session that uses the tables was in the way: try again"
        ) from None
    except psycopg.errors.DependentObjectsStillExist as error:
        raise UninstallRefused(
            f"nothing was dropped: {error.diag.message_primary} ({error.diag.message_detail}): drop or move that first"
        ) from None


def _first_flush(rollup: Rolled) -> str:
    """Uninstalling a rollup keeps its staged rows, so they are emitted first."""
    return f", after outrider rollup run {rollup.name} --flush (or lose what waits: add --force)" * bool(rollup.waiting)


def _list(texts: list[str]) -> str:
    most = 20
    return "; ".join(texts[:most]) + (f"; and {len(texts) - most} more" if len(texts) > most else "")
