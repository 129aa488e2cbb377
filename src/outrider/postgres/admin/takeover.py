"""Takes rows over from an existing outbox or job table: rehearse, cut over, finish.

A row and its event, or its job, change hands in one transaction, so a row belongs to exactly one of the two systems at any
moment. Nothing here is lost or doubled by a kill: whatever was committed stays, and the command can be run again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from time import monotonic
from typing import Any

import psycopg
from psycopg import AsyncConnection, sql
from psycopg.rows import tuple_row

from outrider.errors import TakeoverRefused
from outrider.postgres.admin.takeover_sql import RECENT, TakeoverSql
from outrider.postgres.errors import clear_error
from outrider.signed import Signed
from outrider.takeover import Takeover

BATCH = 500
"""Rows of one transaction."""
LAST = 5_000
"""The most rows that the cut-over itself brings, while writers of the table wait."""
LOCK_WAIT = "200ms"
"""How long writers of the table may queue behind one attempt to lock it."""
PAUSE = 0.2
"""Seconds between two attempts."""


@dataclass(frozen=True, slots=True)
class TakeoverState:
    name: str
    phase: str | None
    """None = not started."""
    owed: int
    leased: int
    """Of the owed rows: a worker of the old system has them now."""
    refused: list[tuple[str, str]]
    """Rows that could not become an event or a job, with the error. They stay owed."""
    brought: int
    made: int
    """Events of it in the log, or its jobs that wait, run or have failed."""
    recent: int
    """Of those: made of rows that producers inserted in the last ten minutes."""
    doubled: int
    """Events with the same idempotency key."""
    states: dict[str, dict[str, int]]
    """By subscription: how many of its events are delivered, pending, failed."""
    cut_at: datetime | None


class TakeoverRun:
    """The verbs of one takeover, on one session with autocommit."""

    def __init__(self, conn: AsyncConnection[Any], takeover: Takeover, schema: str) -> None:
        if not conn.autocommit:
            raise TakeoverRefused("a takeover needs a session with autocommit: each of its steps is a transaction")
        self._conn = conn
        self._name = takeover.name
        self._sql = TakeoverSql(takeover, schema)
        self._jobs = takeover.job is not None
        self._schema = schema

    async def start(self, signed: Signed, wait: float) -> None:
        """Install the trigger, which tries new rows out. Changes nothing for the old dispatcher.

        Again: the rehearsal begins anew, with the app's declaration as it is now.
        """
        if (phase := await self._phase()) not in (None, "rehearsal"):
            raise TakeoverRefused(f"{self._name}: the takeover has started already, its phase is {phase}")

        async def install() -> None:
            async with self._changing("start", signed):
                await self._run(
                    self._sql.compose(
                        "insert into {takeover} (name, source, log_start) "
                        "select {name}, {source}, last_value from {sequence} on conflict do nothing",
                        sequence=sql.Identifier(self._schema, "outbox_seq"),
                    )
                )
                await self._run(self._sql.forget_refusals())
                for command in self._sql.installation():
                    await self._run(command)

        await self._patiently(wait, install)

    async def cut_over(self, signed: Signed, wait: float) -> AsyncIterator[int]:
        """Bring what is owed, in its order, then take every new row. Yields how many rows have been brought so far.

        The last step locks the table: it waits for open transactions that have written to it, so that no row is left to
        nobody. Each attempt waits 200 ms at most, because later writers queue behind it.
        """
        if await self._phase() not in ("rehearsal", "taken"):
            raise TakeoverRefused(f"{self._name}: the takeover has not started: outrider takeover start {self._name}")
        await self._run(self._sql.forget_refusals())
        await self._run(self._sql.take_row())  # the declaration may have changed since start
        for command in self._sql.revocations():
            await self._run(command)
        brought, deadline = 0, monotonic() + wait
        while True:
            full = True
            while full:
                taken = await self._bring(BATCH)
                full = taken == BATCH
                yield (brought := brought + taken)
            try:
                async with self._changing("cutover", signed):
                    await self._run(self._sql.lock())
                    if (last := await self._bring(LAST)) < LAST:
                        await self._run(self._sql.on_insert(take=True))
                        await self._run(
                            self._sql.compose(
                                "update {takeover} set phase = 'taken', cut_at = coalesce(cut_at, now()) where name = {name}"
                            )
                        )
                yield (brought := brought + last)
                if last < LAST:
                    return
            except psycopg.errors.LockNotAvailable:
                if monotonic() > deadline:
                    raise TakeoverRefused(
                        f"{self._name}: not cut over within {wait:g} s: {await self._holders()}. {brought:,} rows were "
                        "brought; the old dispatcher has the others. End those transactions, or run it again"
                    ) from None
                await asyncio.sleep(PAUSE)

    async def finish(self, signed: Signed, wait: float, *, force: bool) -> TakeoverState:
        """Remove the trigger, if nothing is owed any more and producers no longer insert into the table."""
        phase = await self._phase()
        if phase == "finished":
            return await self.state()
        if phase != "taken":
            raise TakeoverRefused(f"{self._name}: nothing to finish, the phase is {phase or 'not started'}")
        while await self._bring(BATCH) > 0:
            pass
        state = await self.state()
        if state.owed:
            raise TakeoverRefused(
                f"{self._name}: {state.owed:,} rows are still owed ({state.leased:,} of them leased by the old workers, "
                f"{len(state.refused):,} refused): outrider takeover status {self._name}"
            )
        if state.recent and not force:
            raise TakeoverRefused(
                f"{self._name}: producers still insert into the table, {state.recent:,} rows in the last {RECENT}. Deploy "
                "the code that publishes with Outrider first, then wait; or use --force"
            )

        async def remove() -> None:
            async with self._changing("finish", signed):
                await self._run(self._sql.lock())
                if refused := await self._run(self._sql.refusals()):
                    raise TakeoverRefused(
                        f"{self._name}: a row was refused meanwhile ({refused[0][0]}): outrider takeover status {self._name}"
                    )
                for command in self._sql.removal():
                    await self._run(command)
                await self._run(
                    self._sql.compose(
                        "update {takeover} set phase = 'finished', finished_at = now() where name = {name}"
                    )
                )

        await self._patiently(wait, remove)
        return replace(state, phase="finished")

    async def abort(self, signed: Signed, wait: float) -> TakeoverState:
        """Give new rows back to the old dispatcher. What became events or jobs stays."""
        state = await self.state()
        if state.phase not in ("rehearsal", "taken"):
            raise TakeoverRefused(f"{self._name}: nothing to abort, the phase is {state.phase or 'not started'}")

        async def remove() -> None:
            async with self._changing("abort", signed):
                for command in self._sql.removal():
                    await self._run(command)
                await self._run(self._sql.compose("delete from {takeover} where name = {name}"))

        await self._patiently(wait, remove)
        return state

    async def state(self) -> TakeoverState:
        [(owed, leased)] = await self._run(self._sql.count())
        known = await self._run(self._sql.known())
        if not known:
            return TakeoverState(self._name, None, owed, leased, [], 0, 0, 0, 0, {}, None)
        [(phase, brought, log_start, cut_at)] = known
        after = () if self._jobs else (log_start,)
        [(made, recent, doubled)] = await self._run(self._sql.made(), after)
        states: dict[str, dict[str, int]] = {}
        for subscription, status, number in [] if self._jobs else await self._run(self._sql.states(), after):
            states.setdefault(subscription, {})[status] = number
        refused = await self._run(self._sql.refusals())
        return TakeoverState(self._name, phase, owed, leased, refused, brought, made, recent, doubled, states, cut_at)

    async def _phase(self) -> str | None:
        rows = await self._run(self._sql.known())
        return str(rows[0][0]) if rows else None

    async def _bring(self, limit: int) -> int:
        """Rows that were looked at. A row that others have locked, or that is refused, is not among them again."""
        async with self._conn.transaction():
            [(seen, taken)] = await self._run(self._sql.bring(limit))
            if taken:
                await self._run(
                    self._sql.compose("update {takeover} set brought = brought + %s where name = {name}"), (taken,)
                )
        return int(seen)

    async def _patiently(self, wait: float, change: Callable[[], Awaitable[None]]) -> None:
        """Tries until the table is free of open transactions that have written to it."""
        deadline = monotonic() + wait
        while True:
            try:
                return await change()
            except psycopg.errors.LockNotAvailable:
                if monotonic() > deadline:
                    raise TakeoverRefused(
                        f"{self._name}: nothing was changed within {wait:g} s: {await self._holders()}. End those "
                        "transactions, or run it again"
                    ) from None
                await asyncio.sleep(PAUSE)

    async def _holders(self) -> str:
        held = [
            f"{application or 'a session'} ({f'pid {pid}, ' if pid else ''}{state}, {age:.0f} s)"
            for pid, application, state, age in await self._run(self._sql.holders())
        ]
        return f"the table is held by {', '.join(held)}" if held else "the table was locked again and again"

    @asynccontextmanager
    async def _changing(self, verb: str, signed: Signed) -> AsyncIterator[None]:
        async with self._conn.transaction():
            await self._run(sql.SQL("set local lock_timeout = {}").format(sql.Literal(LOCK_WAIT)))
            yield
            await self._run(
                sql.SQL("select {}(%s, %s, %s, p_details => jsonb_build_object('table', %s::text))").format(
                    sql.Identifier(self._schema, "note")
                ),
                (f"takeover_{verb}", signed.by, signed.reason, self._name),
            )

    async def _run(self, query: sql.Composed, params: tuple[object, ...] | None = None) -> list[tuple[Any, ...]]:
        try:
            async with self._conn.cursor(row_factory=tuple_row) as cursor:
                await cursor.execute(query, params)
                return await cursor.fetchall() if cursor.description else []
        except psycopg.errors.UndefinedTable as error:
            raise TakeoverRefused(f"{self._name}: {error.diag.message_primary}") from error
        except psycopg.errors.SyntaxErrorOrAccessRuleViolation as error:
            raise clear_error(error, self._schema) or TakeoverRefused(
                f"{self._name}: {error.diag.message_primary}"
            ) from error
