"""Takes Outrider out of a database, and nothing else: first the locks, then a look at what would be lost, then the drop.

What is ours is read off the migrations. Nothing cascades: what others have made stays, or the whole is refused.
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
"""Publishers wait behind us as long as we wait for the locks."""
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
    parked: int
    dead: int

    def __bool__(self) -> bool:
        return bool(self.unread or self.parked or self.dead)

    def __str__(self) -> str:
        return f"{self.name} ({self.unread} unread, {self.parked} waiting for retry, {self.dead} dead letters)"


@dataclass(frozen=True, slots=True)
class Rolled:
    """A rollup that is in the way."""

    name: str
    held: bool
    """On its table or its events still, or functions of it are left: without our tables, inserts of yours would fail."""
    waiting: int
    """Staged rows that are no event yet; those that were set aside, too."""

    def __str__(self) -> str:
        return f"{self.name} ({self.waiting} rows wait)"


@dataclass(frozen=True, slots=True)
class Survey:
    """What there is, and what stands in the way."""

    version: int
    events: int
    receipts: int
    publishing: int
    """Open transactions that write to the log: what they have published is not counted yet."""
    subscriptions: list[Owed]
    rollups: list[Rolled]
    workers: list[str]
    dependents: list[str]
    """What others have made and what needs something of ours."""
    strangers: list[str]
    """What lies in the schema and is not ours."""
    mentions: list[str]
    """Functions whose text names the schema: they stay, and may fail from then on."""

    def refusals(self, schema: str, *, force: bool, whole: bool) -> list[str]:
        """Why it is not done, each with what to do about it."""
        owed = [str(each) for each in self.subscriptions if each]
        found = []
        if self.workers:
            found.append(
                f"workers were seen within the last 30 s: {_list(self.workers)}: stop them (one that was killed is "
                "forgotten after that time)"
            )
        if held := [each for each in self.rollups if each.held]:
            found.append(
                f"rollups are installed: {_list([str(each) for each in held])}: take each off with "
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
                f'not all in the schema "{schema}" is ours: {_list(self.strangers)}: move it elsewhere, or leave it and the '
                "schema where they are with --keep-schema"
            )
        if owed and not force:
            found.append(
                f"this would be lost: {_list(owed)}: let the workers handle it, or lose it for good with --force"
            )
        return found


async def survey(conn: AsyncConnection[Any], schema: str, *, whole: bool = True) -> Survey | None:
    """None when Outrider is not installed there. Changes nothing; exact while nobody publishes."""
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
    """Drop all that is ours, in one transaction; returns what went with it. `whole`: the schema itself too."""
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
    """The same as one statement for those who speak SQL only. It is part of their transaction, and cannot be forced."""
    parts = {name: _text(name, schema) for name in ("commands", "workers", "owed", "rollups", "foreign")}
    parts["version"] = str(known()[-1].version)
    parts["hold"] = held_block(schema, PATIENCE).replace("%", "%%")
    text = re.sub(r"\{([a-z]+)\}", lambda found: parts[found[1]], _text("script", schema))
    values = _params(schema, whole=True) | {"patience": PATIENCE}
    return _PARAMETER.sub(lambda found: sql.Literal(values[found[1]]).as_string() if found[1] else "%", text)


@cache
def _ours() -> Params:
    """The names of everything that the migrations and functions make."""
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
            f"nothing was dropped: the tables were in use for {PATIENCE} by {_list(holding) or 'somebody who is gone now'}: "
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
    """What waits stays at its uninstall, with what is needed to emit it: so it comes first."""
    return f", after outrider rollup run {rollup.name} --flush (or lose what waits: add --force)" * bool(rollup.waiting)


def _list(texts: list[str]) -> str:
    most = 20
    return "; ".join(texts[:most]) + (f"; and {len(texts) - most} more" if len(texts) > most else "")
