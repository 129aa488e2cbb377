"""Schedules, and which of their times get a job. No I/O: the current time is passed in."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from itertools import islice
from typing import Literal, TypedDict, get_args
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from outrider import names
from outrider.errors import DeclarationError
from outrider.event import spec_of
from outrider.job import Job

Missed = Literal["once", "skip", "all"]
NICKNAMES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
CRON_LENGTH = 200
MOST_AT_ONCE = 1000
"""The most jobs that one transaction enqueues for missed times. The next one goes on."""
ON_TIME = timedelta(minutes=1)
"""A time that is at most this late was not missed."""
AHEAD = timedelta(minutes=1)
"""If a schedule was fired further ahead than this, the clock went back: it continues from now."""


class ScheduleOptions(TypedDict, total=False):
    """The keyword arguments of app.schedule, beside the name. `Schedule` explains them."""

    time_zone: str
    missed: Missed
    queue: str
    priority: int
    key: str | None
    workspace_id: str | None


@dataclass(frozen=True, slots=True)
class Due:
    to: datetime
    """The newest time that is settled."""
    times: tuple[datetime, ...]
    """The times that get a job; none when all of them are skipped."""


@dataclass(frozen=True, slots=True)
class CronTimes:
    """The times of a cron expression in a time zone."""

    cron: str
    zone: tzinfo

    def after(self, after: datetime) -> Iterator[datetime]:
        """In UTC and ascending. cronsim does not promise that within an hour that comes twice."""
        cron = NICKNAMES.get(self.cron, self.cron)
        fields = cron.split()
        if len(fields) != 5 or fields[0].startswith("*") or fields[1].startswith("*"):
            yield from self._every(cron, after)
            return
        for local in CronSim(cron, after.astimezone(self.zone)):
            time = local.astimezone(UTC)
            if time > after:
                after = time
                yield time

    def _every(self, cron: str, after: datetime) -> Iterator[datetime]:
        """Every time that the local clock shows. cronsim steps over a clock change by an hour, which is wrong where clocks
        change by half an hour, or at midnight. So it is asked for each period between two changes."""
        here = after.astimezone(self.zone).replace(tzinfo=None)
        offset = after.astimezone(self.zone).utcoffset()
        while True:
            for local in CronSim(cron, here):
                time = local.replace(tzinfo=timezone(offset or timedelta())).astimezone(UTC)
                if time.astimezone(self.zone).utcoffset() != offset:
                    break
                after = time
                yield time
            else:
                return
            after = self._change(after, time)
            offset = after.astimezone(self.zone).utcoffset()
            here = after.astimezone(self.zone).replace(tzinfo=None) - timedelta(seconds=1)

    def _change(self, before: datetime, after: datetime) -> datetime:
        """The second at which the clocks change, between two times whose offsets differ."""
        offset = before.astimezone(self.zone).utcoffset()
        before = before.replace(microsecond=0)
        while after - before > timedelta(seconds=1):
            middle = before + timedelta(seconds=(after - before) // timedelta(seconds=2))
            if middle.astimezone(self.zone).utcoffset() == offset:
                before = middle
            else:
                after = middle
        return after


@dataclass(frozen=True, slots=True)
class Schedule:
    cron: str
    job: Job
    name: str = ""
    """Its name in the database. Empty = the type of its job."""
    time_zone: str = "UTC"
    """The time zone of the expression, like "Europe/Berlin"."""
    missed: Missed = "once"
    """When no worker was running: "once": one job, for the newest of the times; "skip": none, if it is more than a minute
    ago; "all": one for each of them."""
    queue: str = "default"
    """The queue of the job. A worker can serve some queues only."""
    priority: int = 0
    """-100 to 100, higher runs sooner."""
    key: str | None = None
    """The key that key_concurrency counts. None = the field that the job class names as its key."""
    workspace_id: str | None = None
    """The tenant."""
    _zone: tzinfo = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.job, Job):
            raise DeclarationError(f"{self.job!r:.60} cannot be scheduled: pass a job, like Report(), not its class")
        object.__setattr__(self, "name", self.name or self.job_type)
        if wrong := names.wrong_dotted(self.name, names.TYPE_BYTES):
            raise DeclarationError(f"the name of the schedule {wrong}")
        if self.missed not in get_args(Missed):
            raise DeclarationError(f"{self.name}: missed={self.missed!r} is none of {', '.join(get_args(Missed))}")
        object.__setattr__(self, "_zone", self._known_zone())
        if wrong := self._wrong_cron():
            raise DeclarationError(f"{self.name}: {self.cron!r:.60} is no schedule: {wrong}")

    @property
    def job_type(self) -> str:
        return spec_of(type(self.job)).type

    def next(self, after: datetime) -> datetime | None:
        """The first time after this one; None if there is none in fifty years."""
        return next(self._times(after), None)

    def due(
        self, last: datetime, now: datetime, *, changed: datetime | None = None, ahead: datetime | None = None
    ) -> Due | None:
        """The times that became due since `last`; None if there are none. `changed`: when the expression changed; of the
        times before it, only the newest gets a job. `ahead`: a time that has its job, fired while the clock was ahead."""
        if self.missed == "all":
            if changed is not None and last < changed and (before := self._newest(last, min(changed, now))) is not None:
                return Due(before, (before,))
            times = tuple(islice(self._until(last, now), MOST_AT_ONCE))
            return Due(times[-1], times) if times else None
        newest = self._newest(last, now)
        if newest is None:
            return None
        on_time = self.missed == "once" or now - newest <= ON_TIME
        return Due(newest, (newest,) if on_time and newest != ahead else ())

    def _newest(self, last: datetime, now: datetime) -> datetime | None:
        """Searches backwards in growing steps: since the last time, years and millions of times may have passed."""
        step = timedelta(minutes=1)
        while True:
            start = max(last, now - step)
            found = deque(self._until(start, now), maxlen=1)
            if found or start == last:
                return found[0] if found else None
            step *= 8

    def _until(self, after: datetime, end: datetime) -> Iterator[datetime]:
        for time in self._times(after):
            if time > end:
                return
            yield time

    def _times(self, after: datetime) -> Iterator[datetime]:
        return CronTimes(self.cron, self._zone).after(after)

    def _known_zone(self) -> tzinfo:
        try:
            return zone_of(self.time_zone)
        except (KeyError, ValueError, TypeError, OSError):
            raise DeclarationError(
                f"{self.name}: time_zone={self.time_zone!r:.60} is not known here: write it like 'Europe/Berlin'; a system "
                "without time zone data needs the package tzdata"
            ) from None

    def _wrong_cron(self) -> str | None:
        if not isinstance(self.cron, str) or len(self.cron) > CRON_LENGTH:
            return f"write text of at most {CRON_LENGTH} characters"
        if self.cron.startswith("@") and self.cron not in NICKNAMES:
            return f"the names are {', '.join(NICKNAMES)}"
        try:
            never = self.next(datetime(2024, 1, 1, tzinfo=UTC)) is None
        except CronSimError as error:
            reason = str(error)
            return (
                f"{reason[0].lower()}{reason[1:]}; the five fields are minute, hour, day of the month, month and day of the "
                "week, like '0 3 * * MON'; with six, the first one is the second of the minute"
            )
        return "there is no such day" if never else None


def next_time(cron: str, time_zone: str, after: datetime) -> datetime | None:
    """The first time of an expression after this one; None if there is none, or it cannot be known here."""
    try:
        return next(CronTimes(cron, zone_of(time_zone)).after(after), None)
    except (CronSimError, KeyError, ValueError, TypeError, OSError):
        return None


def zone_of(time_zone: str) -> tzinfo:
    return UTC if time_zone == "UTC" else ZoneInfo(time_zone)  # UTC also where there is no time zone data
