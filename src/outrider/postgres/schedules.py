"""The statements of schedules: register, look, fire."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from outrider.errors import SubscriptionRefused
from outrider.postgres.connection import AsyncSession
from outrider.postgres.job_inserts import Request
from outrider.postgres.statement import fetch, fetch_call
from outrider.schedule import AHEAD, Due, Schedule


async def register(conn: AsyncSession, schedule: Schedule, schema: str, context: str) -> None:
    """A new one begins now. Without a change nothing is written: a worker's role needs no right to register."""
    wanted = (context, schedule.job_type, schedule.cron, schedule.time_zone)
    known = await fetch(conn, "jobs/registered_schedule", schema, {"name": schedule.name})
    if known == [wanted]:
        return
    if not known or known[0][0] in (None, context):
        params = {"name": schedule.name} | dict(zip(("context", "job_type", "cron", "time_zone"), wanted, strict=True))
        if await fetch(conn, "jobs/register_schedule", schema, params):
            return
        known = await fetch(conn, "jobs/registered_schedule", schema, {"name": schedule.name})
    raise SubscriptionRefused(
        f"the schedule {schedule.name!r} belongs to the context {known[0][0]!r}, not to {context!r}: give this one another "
        f"name=; to move it here, stop the workers of {known[0][0]!r}, then: "
        f"delete from {schema}.schedule where name = '{schedule.name}'"
    )


class ScheduleState(NamedTuple):
    fired_at: datetime
    """How far it has come."""
    changed_at: datetime
    """Since when it has the times that it has."""
    ahead: datetime | None
    """The time that was fired while the database's clock was ahead."""


async def seen(
    conn: AsyncSession, names: Sequence[str], schema: str, context: str
) -> tuple[datetime, dict[str, ScheduleState]]:
    """What time it is, and how far each schedule has come that is registered for this context."""
    rows = await fetch(conn, "jobs/schedules", schema, {"names": list(names), "context": context})
    return rows[0][0], {row[1]: ScheduleState(*row[2:]) for row in rows if row[1] is not None}


async def rewind(conn: AsyncSession, name: str, last: datetime, schema: str) -> bool:
    """The database's clock went back: go on from now. False: somebody else has done it."""
    return bool(await fetch(conn, "jobs/rewind_schedule", schema, {"name": name, "seen": last, "ahead": AHEAD}))


async def fire(
    conn: AsyncSession, name: str, last: datetime, due: Due, job: Request, schema: str, *, poke: bool
) -> bool:
    """False: somebody else has fired it, or is about to."""
    params = {
        "name": name,
        "seen": last,
        "to": due.to,
        "times": list(due.times),
        "job_type": job.job_type,
        "payload": job.payload_json,
        "queue": job.queue,
        "priority": job.priority,
        "version": job.version,
        "source": job.source,
        "key": job.key,
        "workspace_id": job.workspace_id,
        "generation": job.generation,
        "poke": poke,
    }
    [(won,)] = await fetch_call(conn, "fire", schema, params)
    return bool(won)
