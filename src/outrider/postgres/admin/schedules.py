"""Operations on schedules: list, pause, resume, run now."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from outrider.errors import SubscriptionRefused
from outrider.postgres.admin import diagnostics
from outrider.postgres.admin.diagnostics import Timetable
from outrider.postgres.connection import AsyncSession
from outrider.postgres.statement import fetch_call
from outrider.schedule import next_time
from outrider.signed import UNSIGNED, Signed


@dataclass(frozen=True, slots=True)
class Upcoming:
    """A schedule, and when it fires next."""

    schedule: Timetable
    next_at: datetime | None
    """None: it is paused, or its expression or time zone is not known here."""


async def listing(conn: AsyncSession, schema: str) -> tuple[datetime, list[Upcoming]]:
    """The database's time, and all schedules by name."""
    now, found = await diagnostics.schedules(conn, schema)
    return now, [Upcoming(each, _next(each, now)) for each in sorted(found, key=lambda each: each.name)]


async def pause(conn: AsyncSession, name: str, schema: str, signed: Signed = UNSIGNED) -> datetime:
    """Returns since when it is paused."""
    await _refuse_unknown(conn, name, schema)
    [(since,)] = await fetch_call(conn, "pause_schedule", schema, {"name": name} | signed.params())
    paused_at: datetime = since
    return paused_at


async def resume(conn: AsyncSession, name: str, schema: str, signed: Signed = UNSIGNED) -> bool:
    """Returns whether it was paused."""
    await _refuse_unknown(conn, name, schema)
    [(was,)] = await fetch_call(conn, "resume_schedule", schema, {"name": name} | signed.params())
    return bool(was)


async def run_now(conn: AsyncSession, name: str, schema: str, signed: Signed = UNSIGNED) -> UUID:
    """Returns the id of the job."""
    await _refuse_unknown(conn, name, schema)
    [(job_id,)] = await fetch_call(conn, "run_schedule", schema, {"name": name} | signed.params())
    made: UUID = job_id
    return made


async def _refuse_unknown(conn: AsyncSession, name: str, schema: str) -> None:
    _, found = await diagnostics.schedules(conn, schema)
    known = sorted(each.name for each in found)
    if name not in known:
        raise SubscriptionRefused(
            f'there is no schedule {name!r} in the schema "{schema}"; there are: {", ".join(known) or "none"}'
        )


def _next(each: Timetable, now: datetime) -> datetime | None:
    return None if each.paused_at is not None else next_time(each.cron, each.time_zone, max(each.fired_at, now))
