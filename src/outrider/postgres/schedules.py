"""The statements of schedules: register, read, fire."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from outrider.errors import SubscriptionRefused
from outrider.postgres.connection import AsyncSession
from outrider.postgres.job_inserts import Request
from outrider.postgres.statement import fetch, fetch_call
from outrider.schedule import AHEAD, Due, Schedule


async def register(conn: AsyncSession, schedule: Schedule, job: Request, schema: str, context: str) -> None:
    """A new schedule starts now. Nothing is written if nothing changed: then a worker's role needs no right to register."""
    options = {
        "version": job.version,
        "source": job.terms.source,
        "queue": job.terms.queue,
        "priority": job.terms.priority,
        "key": job.key,
        "workspace_id": job.terms.workspace_id,
    }
    params = {
        "name": schedule.name,
        "context": context,
        "job_type": schedule.job_type,
        "cron": schedule.cron,
        "time_zone": schedule.time_zone,
        "missed": schedule.missed,
        "options": json.dumps(options),
        "payload": job.payload_json,
    }
    known = await fetch(conn, "jobs/registered_schedule", schema, params)
    if known == [(context, True)]:
        return
    if not known or known[0][0] in (None, context):
        if await fetch(conn, "jobs/register_schedule", schema, params):
            return
        known = await fetch(conn, "jobs/registered_schedule", schema, params)
    raise SubscriptionRefused(
        f"the schedule {schedule.name!r} belongs to the context {known[0][0]!r}, not to {context!r}: give this one another "
        f"name=; to move it here, stop the workers of {known[0][0]!r}, then: "
        f"delete from {schema}.schedule where name = '{schedule.name}'"
    )


class ScheduleState(NamedTuple):
    fired_at: datetime
    """The time up to which it has fired."""
    changed_at: datetime
    """When its cron expression or time zone last changed."""
    ahead: datetime | None
    """The time that was fired while the database's clock was ahead."""
    paused: bool


async def seen(
    conn: AsyncSession, names: Sequence[str], schema: str, context: str
) -> tuple[datetime, dict[str, ScheduleState]]:
    """The database's time, and the state of each schedule that is registered for this context."""
    rows = await fetch(conn, "jobs/schedules", schema, {"names": list(names), "context": context})
    return rows[0][0], {row[1]: ScheduleState(*row[2:]) for row in rows if row[1] is not None}


async def rewind(conn: AsyncSession, name: str, last: datetime, schema: str) -> bool:
    """Continue from now, after the database's clock was set back. False: another session has done it, or holds it."""
    return bool(await fetch(conn, "jobs/rewind_schedule", schema, {"name": name, "seen": last, "ahead": AHEAD}))


async def fire(
    conn: AsyncSession, name: str, last: datetime, due: Due, job: Request, schema: str, *, notify: bool
) -> bool:
    """False: another worker has fired it, or is firing it."""
    params = {
        "name": name,
        "seen": last,
        "to": due.to,
        "times": list(due.times),
        "job_type": job.job_type,
        "payload": job.payload_json,
        "queue": job.terms.queue,
        "priority": job.terms.priority,
        "version": job.version,
        "source": job.terms.source,
        "key": job.key,
        "workspace_id": job.terms.workspace_id,
        "generation": job.terms.generation,
        "poke": notify,
    }
    [(won,)] = await fetch_call(conn, "fire", schema, params)
    return bool(won)
