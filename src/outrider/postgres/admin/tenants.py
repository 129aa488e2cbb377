"""Tenants: row-level security policies, export and erasure.

There is no index by workspace, so export and erase scan the whole log. Each page is its own transaction.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import psycopg
from psycopg import AsyncConnection

from outrider.errors import TenantsRefused
from outrider.postgres.errors import in_our_words
from outrider.postgres.statement import Params, fetch, fetch_call

SEE_ALL = ("worker", "relay", "operator", "dashboard", "cron", "upkeep")
"""Suffixes of the roles that may see every tenant: the role is `<schema>_<suffix>`, if it exists."""
PAGE = 2000
"""Rows scanned in one transaction."""
PATIENCE = "2s"
"""The lock_timeout of one try."""
TRIES = 10
OWED = {"pending", "in_flight", "failed"}


@dataclass(frozen=True, slots=True)
class Whose:
    """A workspace, or a subject (an aggregate's kind and id) in one workspace or in all."""

    workspace_id: str | None = None
    kind: str | None = None
    subject: str | None = None
    jobs: bool = False
    """For a subject: also enqueued jobs whose key is its id."""

    def __post_init__(self) -> None:
        if (self.kind is None) != (self.subject is None) or not (self.workspace_id or self.subject):
            raise TenantsRefused("name a workspace, or the kind and id of a subject, or both")

    def __str__(self) -> str:
        subject = f"{self.kind} {self.subject}" if self.subject is not None else ""
        within = f"workspace {self.workspace_id}" if self.workspace_id is not None else "all workspaces"
        return f"{subject} in {within}" if subject else within

    def params(self) -> dict[str, Any]:
        return {"workspace_id": self.workspace_id, "kind": self.kind, "subject": self.subject, "jobs": self.jobs}


@dataclass(frozen=True, slots=True)
class Guarded:
    """The row-level security of one table."""

    table: str
    enabled: bool
    forced: bool
    policy: bool
    sees_all: tuple[str, ...]
    """Roles of the policy every_tenant, including the owner."""
    open_segments: tuple[str, ...]
    """Segments that another role than the owner may read without policies. Enabling again closes them."""
    above: tuple[str, ...]
    """Roles that policies do not restrict: superusers and roles with BYPASSRLS."""
    held: tuple[str, ...]
    """Roles that may read the table and see only the tenant in app.workspace_id."""

    @property
    def whole(self) -> bool:
        return self.enabled and self.forced and self.policy and bool(self.sees_all) and not self.open_segments


@dataclass(frozen=True, slots=True)
class Rows:
    """Counts of what was found, exported or erased."""

    events: int = 0
    jobs: int = 0
    erased: int = 0
    """How many of them had been erased before."""
    owed: int = 0
    """How many of them are not handled yet, including dead letters."""
    audit: int | None = None


Tell = Callable[[Rows], None]


async def hidden_from(conn: AsyncConnection[Any], schema: str) -> str | None:
    """This session's role, if policies hide the rows of other tenants from it."""
    rows = await fetch(conn, "admin/hidden", schema)
    return rows[0][0] if rows else None


async def refuse_hidden(conn: AsyncConnection[Any], schema: str) -> None:
    """A role that does not see every tenant would get incomplete results without notice."""
    if (role := await hidden_from(conn, schema)) is not None:
        raise TenantsRefused(
            f'row-level security hides rows of the schema "{schema}" from this role, and this needs all of them: let its '
            f"owner run outrider tenants enable --role {role}, or use a role that sees every tenant (docs/tenants.md)"
        )


async def state(conn: AsyncConnection[Any], schema: str) -> list[Guarded]:
    rows = await fetch(conn, "admin/tenants_state", schema)
    return [Guarded(*row[:4], *(tuple(names) for names in row[4:])) for row in rows]


async def plan(
    conn: AsyncConnection[Any], schema: str, *, enable: bool, roles: Iterable[str] = (), keep: bool = False
) -> list[str]:
    """The commands, to be run by the schema's owner in one transaction. `roles` also see every tenant; with `keep`, so do
    the roles that see every tenant now."""
    usual = [f"{schema}_{name}" for name in SEE_ALL]
    named = list(dict.fromkeys(roles))
    if keep:
        usual += [name for each in await state(conn, schema) for name in each.sees_all]
    there = {name for (name,) in await fetch(conn, "admin/tenants_roles", schema, {"roles": [*usual, *named]})}
    if missing := [name for name in named if name not in there]:
        raise TenantsRefused(f"nothing was changed: there is no role {', '.join(map(repr, missing))}")
    wanted = [_quoted(name) for name in dict.fromkeys((*usual, *named)) if name in there]
    return [
        command for (command,) in await fetch_call(conn, "tenants_plan", schema, {"enable": enable, "roles": wanted})
    ]


async def carry_out(conn: AsyncConnection[Any], schema: str, commands: Sequence[str]) -> None:
    """Runs all commands in one transaction. Waits for the lock in short tries, so that publishers do not queue for long."""
    for left in reversed(range(TRIES)):
        try:
            with in_our_words(schema):
                async with conn.transaction():
                    await conn.execute("select set_config('lock_timeout', %s, true)", [PATIENCE])
                    for command in commands:
                        await conn.execute(command.encode())
            return
        except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected) as error:
            if not left:
                raise TenantsRefused(
                    "nothing was changed: the log is in use by long transactions; try again"
                ) from error
            await asyncio.sleep(1)


async def parts(conn: AsyncConnection[Any], schema: str) -> AsyncIterator[str]:
    """The log comes before the detached segments, so that a segment which is detached meanwhile is not missed."""
    yield "events"
    for (name,) in await fetch(conn, "upkeep/detached_segments", schema):
        yield name
    yield "jobs"


async def pages(
    conn: AsyncConnection[Any], whose: Whose, schema: str, *, page: int = PAGE
) -> AsyncIterator[tuple[str, list[tuple[int, bool, str]]]]:
    """Pairs of a part and its rows: position, whether it was erased, JSON. A page may be empty."""
    async for part in parts(conn, schema):
        after: int | None = 0
        while after is not None:
            params: Params = {**whose.params(), "from": part, "after": after, "scan": page}
            (head, *found) = await fetch_call(conn, "tenant_page", schema, params)
            yield part, [(place, erased, line) for place, _, erased, line in found]
            after = head[0]


async def count(conn: AsyncConnection[Any], whose: Whose, schema: str) -> Rows:
    rows = Rows()
    async for part, found in pages(conn, whose, schema, page=5 * PAGE):
        rows = _with(rows, part, found)
        rows = replace(rows, owed=rows.owed + await _owed(conn, part, found, schema))
    return rows


async def _owed(conn: AsyncConnection[Any], part: str, found: Sequence[tuple[int, bool, str]], schema: str) -> int:
    if part == "jobs":
        return sum(json.loads(line)["status"] in OWED for _, _, line in found)
    places = [place for place, erased, _ in found if not erased]
    return int((await fetch(conn, "admin/tenant_owed", schema, {"places": places}))[0][0]) if places else 0


async def export(
    conn: AsyncConnection[Any],
    whose: Whose,
    schema: str,
    *,
    write: Callable[[str], object],
    tell: Tell,
    by: str | None,
    reason: str | None,
) -> Rows:
    """Writes an audit entry before the first row is read, and adds the counts after the last is written."""

    async def note(**more: int | None) -> int:
        params = {**whose.params(), "by": by, "reason": reason, "audit": None, "events": None, "jobs": None, **more}
        return int((await fetch_call(conn, "note_export", schema, params))[0][0])

    rows = Rows(audit=await note())
    async for part, found in pages(conn, whose, schema):
        for _, _, line in found:
            write(line + "\n")
        rows = _with(rows, part, found)
        tell(rows)
    await note(audit=rows.audit, events=rows.events, jobs=rows.jobs)
    return rows


async def erase(
    conn: AsyncConnection[Any],
    whose: Whose,
    schema: str,
    *,
    reason: str,
    by: str | None,
    tell: Tell,
    stop: asyncio.Event | None = None,
    page: int = PAGE,
) -> Rows:
    """Can be stopped and repeated: what was erased stays erased. All pages share one audit entry."""
    rows = Rows()
    async for part in _and_rest(parts(conn, schema)):
        after: int | None = 0
        while after is not None:
            if stop is not None and stop.is_set():
                return rows
            params = {**whose.params(), "from": part, "after": after, "scan": page, "reason": reason, "by": by}
            after, audit, events, jobs = await _erase(conn, schema, {**params, "audit": rows.audit})
            rows = replace(rows, events=rows.events + events, jobs=rows.jobs + jobs, audit=audit)
            tell(rows)
    return rows


async def _and_rest(parts: AsyncIterator[str]) -> AsyncIterator[str]:
    yield "pending"
    async for part in parts:
        yield part
    yield "receipts"
    yield "rest"


async def _erase(conn: AsyncConnection[Any], schema: str, params: Params) -> tuple[int | None, int, int, int]:
    for left in reversed(range(TRIES)):
        try:
            [row] = await fetch_call(conn, "erase", schema, params)
        except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected) as error:
            if not left:
                raise TenantsRefused(
                    "a worker holds a subscription of these events for too long: what was erased so far stays erased; pause "
                    "the subscription (outrider subscription pause) and run this again"
                ) from error
        else:
            return row
    raise AssertionError


def _with(rows: Rows, part: str, found: Sequence[tuple[int, bool, str]]) -> Rows:
    erased = rows.erased + sum(gone for _, gone, _ in found)
    if part == "jobs":
        return replace(rows, jobs=rows.jobs + len(found), erased=erased)
    return replace(rows, events=rows.events + len(found), erased=erased)


def _quoted(role: str) -> str:
    """As regrole reads it."""
    return '"' + role.replace('"', '""') + '"'
