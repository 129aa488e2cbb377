"""The statements of rollups. SQL functions of the same names do the work, and their comments explain it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

import psycopg
from psycopg import AsyncConnection, sql
from psycopg.rows import tuple_row

from outrider.errors import RollupRefused
from outrider.postgres import rollups
from outrider.postgres.connection import AsyncSession
from outrider.postgres.errors import older_schema
from outrider.postgres.statement import Params, call, fetch, statement
from outrider.signals import RolledUp
from outrider.signed import UNSIGNED, Signed

Spec = Mapping[str, Any]
MOST = 100_000
_PARAMETER = re.compile(r"%\((\w+)\)s|%%")

LONGEST = 600.0
"""The longest duration of a tick, in seconds."""
AS_MADE = {"installed", "functions", "schedule"}
"""The topics of verify that installing again repairs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """The result of one tick."""

    result: Literal["skipped", "idle", "processed", "error"]
    """skipped: another tick holds the lock."""
    pending_pre: int = 0
    pending_post: int = 0
    groups_emitted: int = 0
    """Rollup events."""
    pieces_emitted: int = 0
    """Single events."""
    conflicts_skipped: int = 0
    """Rows that the notification table already had."""
    rows_marked: int = 0
    """Staged rows that became part of an event."""
    set_aside: int = 0
    """Staged rows that could not be made into an event."""
    duration_ms: float = 0.0
    error_count: int = 0
    error_text: str | None = None


@dataclass(frozen=True, slots=True)
class RollupFinding:
    """One line of a preflight or a verification."""

    topic: str
    passed: bool
    value: str
    detail: str
    blocks: bool
    """Until this has passed, nothing is installed."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step of an uninstall."""

    step: int
    action: Literal["do", "keep"]
    what: str
    command: str | None
    why: str | None
    """Why it stays."""


@dataclass(frozen=True, slots=True)
class RollupState:
    scheduler: Literal["cron", "worker"]
    installed: bool
    changed: bool
    """The declaration differs from what is installed."""
    due_in: float
    """Seconds until the next tick."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rolling:
    """The state of one rollup."""

    name: str
    context: str
    source: str
    scheduler: Literal["cron", "worker"]
    every: timedelta
    installed_at: datetime
    uninstalled_at: datetime | None
    ticked_at: datetime | None
    pending: int
    oldest_at: datetime | None
    set_aside: int
    debounce: timedelta
    threshold: int
    max_wait: timedelta
    complaints: list[str]
    """Settings that were entered and are not valid."""
    last_run: dict[str, Any] | None
    """The newest run that found something to do."""
    emits: list[str]
    """The types of its events."""


@dataclass(frozen=True, slots=True)
class Aside:
    """A staged row that could not be made into an event."""

    id: int
    workspace_id: str | None
    group_key: str | None
    staged_at: datetime
    set_aside_at: datetime
    error: str | None


@dataclass(frozen=True, slots=True)
class PendingGroup:
    workspace_id: str | None
    group_key: str | None
    """None: each of its rows becomes an event of its own."""
    rows: int
    first_at: datetime
    last_at: datetime


@dataclass(frozen=True, slots=True)
class RollupRun:
    run_at: datetime
    result: str
    pending_pre: int
    pending_post: int
    groups_emitted: int
    pieces_emitted: int
    rows_marked: int
    set_aside: int
    duration_ms: float
    error_text: str | None


async def tick(conn: AsyncSession, name: str, schema: str, *, flush: bool = False) -> Tick:
    return await _tick(conn, "rollup_tick", schema, {"name": name, "flush": flush})


async def _tick(conn: AsyncSession, name: str, schema: str, params: Params) -> Tick:
    async with conn.transaction():
        await conn.execute("set transaction isolation level read committed")
        [(result,)] = await _call(conn, name, schema, params)
    return Tick(**{field: value for field, value in result.items() if field in Tick.__slots__})


async def run(conn: AsyncSession, name: str, schema: str, signed: Signed, *, flush: bool = False) -> Tick:
    """A tick on an operator's request: audited."""
    return await _tick(conn, "rollup_run", schema, {"name": name, "flush": flush} | signed.params())


async def retry(conn: AsyncSession, name: str, schema: str, signed: Signed = UNSIGNED) -> int:
    """Try the rows that were set aside again; returns how many."""
    [(rows,)] = await _call(conn, "rollup_retry", schema, {"name": name} | signed.params())
    return int(rows)


async def preflight(conn: AsyncSession, spec: Spec, schema: str) -> list[RollupFinding]:
    """Runs in a read-only transaction, because the declaration contains SQL of the user."""
    async with conn.transaction():
        await conn.execute("set transaction read only")
        return [
            RollupFinding(*row) for row in await _call(conn, "rollup_preflight", schema, {"spec": json.dumps(spec)})
        ]


async def verify(conn: AsyncSession, name: str, schema: str) -> list[RollupFinding]:
    async with conn.transaction():
        await conn.execute("set transaction read only")
        return [RollupFinding(*row) for row in await _call(conn, "rollup_verify", schema, {"name": name})]


async def commands(conn: AsyncSession, spec: Spec, schema: str) -> list[str]:
    """The commands that an install would run on the user's tables, and the functions that it would create."""
    return [command for (command,) in await _call(conn, "rollup_commands", schema, {"spec": json.dumps(spec)})]


async def install(conn: AsyncSession, spec: Spec, schema: str) -> dict[str, Any]:
    [(result,)] = await _call(conn, "rollup_install", schema, {"spec": json.dumps(spec)})
    return dict(result)


async def plan(conn: AsyncSession, name: str, schema: str, *, force: bool = False) -> list[Step]:
    """The steps of an uninstall. Changes nothing."""
    async with conn.transaction():
        await conn.execute("set transaction read only")
        return [Step(*row) for row in await _call(conn, "rollup_plan", schema, {"name": name, "force": force})]


async def missing(conn: AsyncSession, name: str, schema: str, *, force: bool = False) -> list[str]:
    """The steps of the uninstall whose object does not exist."""
    query = statement("rollups/rollup_missing", schema)
    rows = await _call(conn, "rollup_plan", schema, {"name": name, "force": force}, query)
    return [f"step {step}, {what}" for step, what in rows]


async def uninstall(conn: AsyncSession, name: str, schema: str, *, force: bool = False) -> list[Step]:
    return [Step(*row) for row in await _call(conn, "rollup_uninstall", schema, {"name": name, "force": force})]


async def stage(conn: AsyncSession, slug: str, seqs: Sequence[int], schema: str) -> None:
    """Stage these events, in the transaction of the handler."""
    function = sql.Identifier(schema, f"rollup_stage_{slug}")
    await conn.execute(sql.SQL("select {}(%s)").format(function), [list(seqs)])


async def states(conn: AsyncSession, specs: Mapping[str, Spec], schema: str) -> dict[str, RollupState]:
    """The state of each rollup that is or was installed."""
    params = {"names": list(specs), "specs": [json.dumps(each) for each in specs.values()]}
    rows = await fetch(conn, "rollups/rollup_state", schema, params)
    return {name: RollupState(*rest) for name, *rest in rows}


async def refuse_missing(conn: AsyncSession, names: Sequence[str], schema: str) -> None:
    """A handler would turn every event that it cannot stage into a dead letter."""
    known = await states(conn, {name: {} for name in names}, schema) if names else {}
    if missing := sorted(name for name in names if name not in known or not known[name].installed):
        raise RollupRefused(f"not installed: {', '.join(missing)}: run outrider rollup install {missing[0]}")


async def installed_spec(conn: AsyncSession, name: str, schema: str) -> dict[str, Any] | None:
    rows = await fetch(conn, "rollups/rollup_spec", schema, {"name": name})
    return dict(rows[0][0]) if rows else None


async def standings(conn: AsyncConnection[Any], schema: str) -> list[Rolling]:
    rows = await fetch(conn, "rollups/rollup_standings", schema, {"most": MOST})
    return [Rolling(**dict(zip(Rolling.__slots__, row, strict=True))) for row in rows]


async def groups(
    conn: AsyncConnection[Any], name: str, schema: str, *, limit: int, most: int = 10_000
) -> list[PendingGroup]:
    """The groups of the oldest `most` rows that wait, the oldest first."""
    rows = await fetch(conn, "rollups/rollup_groups", schema, {"name": name, "limit": limit, "most": most})
    return [PendingGroup(*row) for row in rows]


async def runs(conn: AsyncConnection[Any], name: str, schema: str, *, limit: int, most: int = 1000) -> list[RollupRun]:
    """The newest first, of the last `most` runs; without those that found nothing to do."""
    rows = await fetch(conn, "rollups/rollup_runs", schema, {"name": name, "limit": limit, "most": most})
    return [RollupRun(*row) for row in rows]


async def set_aside(conn: AsyncConnection[Any], name: str, schema: str, *, most: int) -> list[Aside]:
    """The last to be staged first."""
    return [Aside(*row) for row in await fetch(conn, "rollups/rollup_set_aside", schema, {"name": name, "most": most})]


def call_in_sql(function: str, argument: str | Spec, schema: str, **more: bool) -> str:
    """The call as SQL text, for psql."""
    given = sql.Literal(argument if isinstance(argument, str) else json.dumps(argument, ensure_ascii=False)).as_string()
    cast = "" if isinstance(argument, str) else "::jsonb"
    flags = "".join(f", p_{name} => true" for name, wanted in more.items() if wanted)
    return f'select * from "{schema}".{function}({given}{cast}{flags});'


def query(name: str, schema: str, params: Mapping[str, Any]) -> str:
    """A statement as SQL text, with its values in it."""
    text = statement(f"rollups/{name}", schema).decode().strip()
    return _PARAMETER.sub(lambda found: sql.Literal(params[found[1]]).as_string() if found[1] else "%", text) + ";"


async def _call(
    conn: AsyncSession, function: str, schema: str, params: Params, query: bytes | None = None
) -> list[tuple[Any, ...]]:
    """Calls the function, or sends `query`, which calls it. Errors of the user's own SQL pass unchanged."""
    try:
        async with conn.cursor(row_factory=tuple_row) as cursor:
            await cursor.execute(query or call(function, schema, tuple(params)), params)
            return await cursor.fetchall()
    except psycopg.errors.LockNotAvailable as error:
        raise RollupRefused(
            "nothing was changed: the table was in use for 5 s: try again when no long transaction writes to it"
        ) from error
    except psycopg.errors.UndefinedFunction as error:
        if f".{function}(" in (error.diag.message_primary or ""):
            raise older_schema(schema) from error
        raise
    except psycopg.Error as error:
        if error.sqlstate != "OR007":
            raise
        hint = f". {error.diag.message_hint}" if error.diag.message_hint else ""
        raise RollupRefused(f"{error.diag.message_primary}{hint}") from error


def signal_of(name: str, ticked: Tick) -> RolledUp:
    return RolledUp(
        name,
        ticked.groups_emitted,
        ticked.pieces_emitted,
        ticked.conflicts_skipped,
        ticked.set_aside,
        ticked.pending_post,
        ticked.result == "error",
        ticked.error_text,
    )


@dataclass(frozen=True, slots=True)
class Installation:
    findings: list[RollupFinding]
    """Of the preflight."""
    commands: list[str] | None = None
    """The commands that were run; None if nothing had to change, or the installation was refused."""
    scheduler: str | None = None
    """Who runs it, "cron" or "worker"; None if the installation was refused."""


async def install_unless_same(conn: AsyncSession, spec: Spec, schema: str) -> Installation:
    found = await rollups.preflight(conn, spec, schema)
    if blocking_topics(found):
        return Installation(found)
    if (scheduler := await _scheduler_if_same(conn, spec, found, schema)) is not None:
        return Installation(found, scheduler=scheduler)
    told = await rollups.install(conn, spec, schema)
    return Installation(found, told["commands"], told["scheduler"])


def blocking_topics(found: Sequence[RollupFinding]) -> str:
    return ", ".join(each.topic for each in found if each.blocks and not each.passed)


async def _scheduler_if_same(conn: AsyncSession, spec: Spec, found: Sequence[RollupFinding], schema: str) -> str | None:
    """The scheduler of the rollup, if installing it again would change nothing; else None."""
    name = spec["name"]
    state = (await rollups.states(conn, {name: spec}, schema)).get(name)
    if state is None or not state.installed or state.changed:
        return None
    cron = any((each.topic, each.value) == ("pg_cron", "INSTALLED") for each in found) and spec["scheduler"] != "worker"
    noted = all((each.topic, each.value) != ("other triggers", "CHANGED") for each in found)
    made = all(each.passed for each in await rollups.verify(conn, name, schema) if each.topic in AS_MADE)
    altered = any(each.startswith(("alter table ", "drop ")) for each in await rollups.commands(conn, spec, schema))
    same = state.scheduler == ("cron" if cron else "worker")
    return state.scheduler if noted and made and same and not altered else None


def compared(name: str, installed: Spec, declared: Mapping[str, Spec]) -> RollupFinding:
    if name not in declared:
        detail = f"the app does not declare it: declare it, or outrider rollup uninstall {name}"
        return RollupFinding("declared", False, "ABSENT", detail, False)
    spec = declared[name]
    differing = [each for each in sorted({*spec, *installed}) if spec.get(each) != installed.get(each)]
    if differing:
        detail = f"declared and installed differ in {', '.join(differing)}: outrider rollup install {name}"
        return RollupFinding("declared", False, "CHANGED", detail, False)
    return RollupFinding("declared", True, "EQUAL", "it is installed as it is declared", False)
