"""What the state of the log, of jobs and of schedules means. Decides without I/O; docs/runbook.md explains each check."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

from outrider.doctor.finding import SHOWN, Finding, counted, critical, more, note, ok, seconds, span, warning
from outrider.postgres.admin.diagnostics import (
    EXPIRING,
    MOST,
    Cron,
    Expiring,
    Keeping,
    Lately,
    Latency,
    Overdue,
    Segments,
    Timetable,
    Tuples,
)
from outrider.schedule import AHEAD as FUTURE
from outrider.schedule import next_time

DEAD, DEAD_SHARE = 10_000, 0.2
"""A table with more dead rows than this, and more than this part of its live rows, needs vacuum."""
AHEAD = 2
"""Fewer segments ahead than this are a warning."""
ENDLESS = 1_000_000
"""Positions used in the last segment after which it is late to end it: it has to be read once for that."""
MANY, TOO_MANY = 5_000_000, 20_000_000
"""Events in the log: a note, or a warning."""
UNKEPT = timedelta(hours=1)
"""The longest time without upkeep."""
SLOW, SLOW_FOR = 0.5, timedelta(minutes=10)
"""Seconds from publish to receipt (p99) that are slow, if they last for this long."""
LETTERS = 5
"""Dead letters of a subscription within an hour that are a warning."""
LATE = timedelta(minutes=2)
"""How late a schedule may be."""


def judge_buried(buried: Sequence[Lately]) -> Iterator[Finding]:
    for each in [each for each in buried if each.letters >= LETTERS][:SHOWN]:
        yield warning(
            "dead_letters",
            f"{each.subscription} got {counted(each.letters, 'dead letter', MOST)} within the last hour, the newest for "
            f"{each.code}: {each.message}",
            f"outrider dlq list --subscription {each.subscription}; correct the cause, then outrider dlq replay",
        )


def judge_expiring(expiring: Sequence[Expiring]) -> Iterator[Finding]:
    for each in expiring:
        number, when = counted(each.letters, "dead letter", MOST), each.expires_at
        yield warning(
            "dead_letters",
            f"{number} of {each.subscription} will be removed within {EXPIRING.days} days, the oldest at "
            f"{when:%Y-%m-%d %H:%M}",
            f"replay or discard what is there: outrider dlq list --subscription {each.subscription}; to keep it longer, "
            "outrider setting set retention.dead_letter_days",
        )


def judge_overdue(overdue: Sequence[Overdue]) -> Iterator[Finding]:
    for each in overdue:
        if each.kind != "unregistered":
            yield warning(
                "overdue",
                _overdue(each),
                "its workers are missing, busy or stuck (see outrider status); if they are busy, add slots or partitions",
            )
    unknown = [each for each in overdue if each.kind == "unregistered"]
    for each in unknown[:SHOWN]:
        yield warning(
            "overdue",
            f"{_overdue(each)}, and no job type of that name is registered",
            "deploy the app that declares it, or, if the name is wrong: outrider job cancel --type TYPE",
        )
    yield from more("overdue", len(unknown) - SHOWN)
    if not overdue:
        yield ok("overdue", "no event or job is overdue")


def _overdue(each: Overdue) -> str:
    number = counted(each.rows, "job" if each.kind in ("job", "unregistered") else "event", MOST)
    since = f"{each.since:%Y-%m-%d %H:%M}"
    return f"{each.subscription}: {number} {'is' if each.rows == 1 else 'are'} overdue, the oldest since {since}"


def judge_latency(pages: Sequence[Latency]) -> Iterator[Finding]:
    if not pages:
        yield ok("latency", "no receipts of the last day")
        return
    lately = pages[0].lately
    if lately is None:
        before = f"from publish to receipt (p99): {seconds(pages[0].seconds)}"
        yield ok("latency", f"nothing was handled within the last 5 min; before, {before}")
        return
    told = f"from publish to receipt at the slow end (p99), last 5 min: {seconds(lately)}"
    if lately > SLOW and all(each.seconds > SLOW for each in pages) and pages[-1].ago >= SLOW_FOR:
        yield warning(
            "latency",
            f"{told}, and above {seconds(SLOW)} for {span(pages[-1].ago)}",
            "make handlers faster or add partitions; if the database is busy, relay to a broker (docs/relay.md)",
        )
    else:
        yield ok("latency", f"{told}, only for a short time" if lately > SLOW else told)


def judge_tuples(tables: Sequence[Tuples]) -> Iterator[Finding]:
    bad = [each for each in tables if each.dead > DEAD and each.dead > DEAD_SHARE * each.live]
    for each in bad[:SHOWN]:
        when = f"last vacuumed {each.vacuumed_at:%Y-%m-%d %H:%M}" if each.vacuumed_at else "never vacuumed"
        yield warning(
            "dead_tuples",
            f"{each.table}: {each.dead:,} dead rows beside {each.live:,} live ones, {when}",
            "end what holds vacuum back (see transactions); if nothing does, let autovacuum run more often on this table",
        )
    if not bad:
        yield ok("dead_tuples", f"at most {max((each.dead for each in tables), default=0):,} in a table")


def judge_segments(segments: Segments) -> Iterator[Finding]:
    if not segments.segments:
        yield critical(
            "segments",
            "the log has no segments: nothing can be published",
            "attach them again: alter table … attach partition (docs/runbook.md)",
        )
    elif segments.last_begins is not None and (segments.in_last or segments.seq >= segments.last_begins):
        judge = critical if segments.seq - segments.last_begins >= ENDLESS else warning
        yield judge(
            "segments",
            f"events go into the last segment, which has no end: {counted(segments.in_last, 'event', MOST)} "
            f"{'is' if segments.in_last == 1 else 'are'} in it, from {segments.last_begins:,} on",
            "outrider upkeep ends it and makes segments after it, unless it is large: then see docs/runbook.md",
        )
    elif segments.ahead < AHEAD:
        yield warning(
            "segments",
            f"{counted(segments.ahead, 'segment')} ahead",
            "outrider upkeep makes more; if it cannot, it says why (docs/runbook.md)",
        )
    else:
        yield ok("segments", f"{segments.ahead} segments ahead")
    numbers = segments.numbers or 0
    told = f"about {counted(numbers, 'event')} in the log"
    if numbers > TOO_MANY:
        yield warning(
            "growth", told, "relay to a broker (docs/relay.md), or keep the log for less time (docs/upkeep.md)"
        )
    elif numbers > MANY:
        yield note(
            "growth", told, "no action if this is intended; otherwise keep the log for less time (docs/upkeep.md)"
        )
    else:
        yield ok("growth", told)


def judge_upkeep(keeping: Keeping, now: datetime) -> Iterator[Finding]:
    since = keeping.ran_at or keeping.there_since
    if now - since > UNKEPT:
        told = "has not run for" if keeping.ran_at else "has never run in"
        yield warning(
            "upkeep",
            f"it {told} {span(now - since)}",
            "start a worker without OUTRIDER_UPKEEP=off, or run outrider upkeep from cron; a worker that lacks the rights "
            "says so in its log (troubled)",
        )
    elif keeping.ran_at is None:
        yield ok("upkeep", "it has not run yet")
    else:
        yield ok("upkeep", f"ran {span(now - keeping.ran_at)} ago")
    for name, reason in list(zip(keeping.segments, keeping.reasons, strict=True))[:SHOWN]:
        yield warning(
            "retention",
            f"the segment {name} is kept longer than {keeping.days} days: {reason}",
            "it is removed once its events are read and its dead letters are replayed or discarded; retire subscriptions "
            "that nobody serves",
        )
    yield from more("retention", len(keeping.segments) - SHOWN)
    if not keeping.segments:
        yield ok("retention", f"no segment is kept longer than {keeping.days} days")


def judge_schedules(
    schedules: Sequence[Timetable], now: datetime, context: str, declared: set[str] | None, served: set[str]
) -> Iterator[Finding]:
    """`declared`: the schedules of the app, which speaks for that context; None without an app. `served`: the job types of
    live workers."""
    ahead = [each for each in schedules if each.fired_at - now > FUTURE]
    for each in ahead[:SHOWN]:
        yield warning(
            "schedules",
            f"{each.name} was last fired for {each.fired_at:%Y-%m-%d %H:%M:%S%z}, {span(each.fired_at - now)} from now: the "
            "server's clock was ahead",
            "its workers set it back by themselves; with missed='all' its jobs exist already, and it continues then. "
            "Let the server keep time with NTP",
        )
    for each in schedules:
        if each.paused_at is not None:
            yield note(
                "paused",
                f"the schedule {each.name} is paused since {each.paused_at:%Y-%m-%d %H:%M}",
                f"outrider audit says who paused it and why; to let it fire: outrider schedule resume {each.name}",
            )
    firing = [each for each in schedules if each.paused_at is None]
    late = [(each, at) for each in firing if (at := _due(each)) is not None and now - at > LATE]
    for each, at in late[:SHOWN]:
        ours = declared is not None and each.context in (None, context)
        wanted = each.name in (declared or ()) if ours else each.job_type in served
        judge = warning if wanted else note
        yield judge(
            "schedules",
            f"{each.name} should have been fired at {at:%Y-%m-%d %H:%M:%S%z}, {span(now - at)} ago",
            "start a worker of its app; one that runs says in its log why it cannot (troubled). If no code declares it "
            "any more, remove its row (docs/schedules.md)",
        )
    if schedules and not ahead and not late:
        yield ok("schedules", f"{counted(len(schedules), 'schedule')}, none late, none ahead of the server's clock")


def _due(each: Timetable) -> datetime | None:
    return next_time(each.cron, each.time_zone, each.fired_at)


def judge_cron(cron: Cron) -> Iterator[Finding]:
    rollups = counted(cron.by_cron + cron.by_workers, "rollup")
    match cron.state:
        case "INSTALLED" if cron.by_cron:
            yield ok("pg_cron", f"ticks {cron.by_cron} of {rollups}")
        case "INSTALLED":
            yield ok("pg_cron", f"is there, and no rollup uses it: workers tick {rollups}")
        case _ if cron.by_cron:
            yield warning(
                "pg_cron",
                f"should tick {counted(cron.by_cron, 'rollup')}, but is not there ({cron.state}): workers tick meanwhile",
                "create extension pg_cron, then outrider rollup install; or install with workers as the scheduler",
            )
        case state:
            yield ok("pg_cron", f"is not installed ({state}): workers tick {rollups}")
