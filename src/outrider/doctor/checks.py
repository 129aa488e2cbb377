"""What the measurements of a doctor mean, and what to do about each. Decides without I/O; docs/runbook.md says more."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

from outrider.doctor.finding import Finding, critical, note, ok, warning
from outrider.doctor.text import counted, seconds, span
from outrider.postgres.admin.diagnostics import (
    EXPIRING,
    MOST,
    Cron,
    Expiring,
    Holder,
    Keeping,
    Lately,
    Lock,
    Overdue,
    Right,
    Segments,
    Server,
    Setting,
    Settled,
    Sharing,
    Slot,
    Timetable,
    Tuples,
)
from outrider.postgres.dsn import OLDEST
from outrider.schedule import AHEAD as FUTURE
from outrider.schedule import next_time

LONG, TOO_LONG = timedelta(minutes=5), timedelta(hours=1)
XIDS = 10_000_000
DEAD, DEAD_SHARE = 10_000, 0.2
AHEAD = 2
QUEUE, QUEUE_FULL = 0.25, 0.5
CLOCK = 1.0
UNKEPT = timedelta(hours=1)
"""Without upkeep."""
MANY, TOO_MANY = 5_000_000, 20_000_000
ENDLESS = 1_000_000
"""Numbers in the last segment, after which it is late to end it: what is in it is read once."""
SLOW, SLOW_FOR = 0.5, timedelta(minutes=10)
SHOWN, RIGHTS_SHOWN = 5, 20
LETTERS = 5
"""Dead letters within an hour: something is broken, not only unlucky."""
BLOCKED = timedelta(minutes=1)
"""Who has waited longer for a lock stands still."""
IDLE = timedelta(seconds=30)
"""How long a transaction that has published may be idle."""
WAL, TOO_MUCH_WAL = 1 << 30, 10 << 30
WAL_UNREAD = 64 << 20
"""Bytes that a slot which nobody reads may keep: a consumer restarts."""
LATE = timedelta(minutes=2)
"""After its time a schedule has not been fired by anybody."""


def judge_server(server: Server, sent: datetime, received: datetime) -> Iterator[Finding]:
    """`sent` and `received`: by the clock of this machine, before and after the server was asked."""
    if server.version_number < OLDEST * 10_000:
        yield critical("server", f"Postgres {server.version}", f"upgrade it: Outrider needs {OLDEST} or newer")
    else:
        yield ok("server", f"Postgres {server.version}")
    yield _clock(server.now, sent, received)
    share = f"the queue of notifications is {server.queue:.0%} full"
    if server.queue >= QUEUE:
        judge = critical if server.queue >= QUEUE_FULL else warning
        yield judge(
            "notify_queue",
            share,
            "a session that has said LISTEN keeps a transaction open: end it (see transactions). From 90% on Outrider "
            "notifies nobody, and workers poll; at 100% every other transaction that notifies fails",
        )
    else:
        yield ok("notify_queue", share)
    used = f"{server.connections} of {server.most_connections} connections are taken"
    if server.connections > 0.9 * server.most_connections:
        yield warning("connections", used, "put a pooler in between, or raise max_connections")
    else:
        yield ok("connections", used)
    if not server.sees_all:
        yield note(
            "rights",
            "this role does not see the transactions of other roles: long ones may be missing below",
            "grant pg_read_all_stats, or pg_monitor, to it",
        )


def _clock(now: datetime, sent: datetime, received: datetime) -> Finding:
    """Whatever lies between question and answer may be the wire's."""
    behind, ahead = (sent - now).total_seconds(), (now - received).total_seconds()
    if max(behind, ahead) > CLOCK:
        return warning(
            "clock",
            f"the clocks of this machine and of the server differ by {max(behind, ahead):.1f} s",
            "let both keep time with NTP: Outrider counts by the server's clock, your logs and traces do not",
        )
    return ok("clock", f"the clocks differ by less than {CLOCK:.0f} s")


def judge_holders(holders: Sequence[Holder], sees_all: bool) -> Iterator[Finding]:
    """`sees_all`: else those of other roles are not among them."""
    bad = [each for each in holders if (each.since or timedelta()) >= LONG or (each.xids or 0) > XIDS]
    for each in bad[:SHOWN]:
        what = "writes" if each.writes else "holds a snapshot"
        aged = (each.xids or 0) > XIDS
        age = [span(each.since)] if each.since else []
        age += [f"{each.xids:,} transactions"] if aged else []
        match each.kind:
            case "slot":
                advice = f"dead rows cannot be removed meanwhile; if nobody needs it any more: {each.ends}"
            case "prepared":
                advice = f"its events come only when it ends: commit prepared, or {each.ends}"
            case "batch":
                advice = (
                    "a worker's own batch, whose handler hangs or is slow: what it took waits, and nobody else takes it; "
                    f"to end it, so that it is tried again: {each.ends}"
                )
            case _ if each.writes:
                advice = f"its events come only when it ends; to end it: {each.ends}"
            case _:
                advice = f"dead rows cannot be removed meanwhile; to end it: {each.ends}"
        judge = critical if aged or (each.since or timedelta()) >= TOO_LONG else warning
        yield judge("transactions", f"{each.who} {what} for {' and '.join(age)}", advice)
    if len(bad) > SHOWN:
        yield warning("transactions", f"and {len(bad) - SHOWN} more like these", "the same")
    waiting = [
        each
        for each in holders
        if each not in bad and each.kind == "transaction" and each.writes and (each.idle or timedelta()) >= IDLE
    ]
    for each in waiting[:SHOWN]:
        yield warning(
            "transactions",
            f"{each.who} has published or enqueued, and has done nothing for {span(each.idle or timedelta())}",
            f"what it wrote comes only when it commits; to end it: {each.ends}",
        )
    if not bad and not waiting:
        oldest = max((each.since for each in holders if each.since), default=None)
        if oldest is None:
            yield ok("transactions", "none is open" if sees_all else "none of this role's own is open")
        else:
            yield ok(
                "transactions", f"the oldest{'' if sees_all else ' that this role sees'} is open for {span(oldest)}"
            )


def judge_locks(locks: Sequence[Lock]) -> Iterator[Finding]:
    for each in locks[:SHOWN]:
        state = ""
        if each.idle and each.state_since is not None:
            state = f", which has done nothing for {span(each.state_since)}"
        ran = f"; {'it ran' if each.idle else 'it runs'}: {' '.join(each.query.split())}" if each.query else ""
        judge = critical if each.since >= BLOCKED else warning
        yield judge(
            "locks",
            f"{counted(each.waiting, 'session')} ({each.waiters or 'unknown'}) "
            f"{'waits' if each.waiting == 1 else 'wait'} up to {span(each.since)} for {each.who}{state}{ran}",
            f"let it commit or roll back; to end it: {each.ends}",
        )
    if len(locks) > SHOWN:
        yield warning("locks", f"and {len(locks) - SHOWN} more like these", "the same")
    if not locks:
        yield ok("locks", "nobody has waited for a lock for long")


def judge_settings(settings: Sequence[Setting]) -> Iterator[Finding]:
    for each in settings[:SHOWN]:
        if each.name == "default_transaction_read_only":
            judge, advice = critical, "workers cannot write: turn it off for their role, or name the primary in the DSN"
        else:
            judge, advice = (
                warning,
                f"it ends statements of workers, which are tried again: alter … set {each.name} = 0",
            )
        yield judge("settings", f"{each.name} = {each.value}, by {each.place}, reaches our sessions", advice)
    if not settings:
        yield ok("settings", "no timeout of a role, a database or the server reaches our sessions")


def judge_wal(slots: Sequence[Slot]) -> Iterator[Finding]:
    bad = [
        each
        for each in slots
        if each.state in ("unreserved", "lost") or (each.bytes or 0) >= (WAL if each.active else WAL_UNREAD)
    ]
    for each in bad[:SHOWN]:
        read = "" if each.active else ", and nobody reads it"
        if each.state == "lost":
            yield warning(
                "wal", f"the replication slot {each.name} has lost WAL that it needs", f"drop it: {each.ends}"
            )
        else:
            much = each.state == "unreserved" or (each.bytes or 0) >= TOO_MUCH_WAL
            judge = critical if much else warning
            yield judge(
                "wal",
                f"the replication slot {each.name} keeps {each.size} of WAL{read}",
                f"the disk of the server fills up: start its consumer; if nobody needs it any more: {each.ends}",
            )
    if slots and not bad:
        yield ok("wal", f"{counted(len(slots), 'replication slot')}, none keeps much WAL")


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
        number = counted(each.rows, "job" if each.kind == "job" else "event", MOST)
        yield warning(
            "overdue",
            f"{each.subscription}: {number} should have had {'its' if each.rows == 1 else 'their'} turn, the oldest "
            f"since {each.since:%Y-%m-%d %H:%M}",
            "its workers are missing, busy or stuck: outrider status says which; more slots or partitions if they are busy",
        )
    if not overdue:
        yield ok("overdue", "nothing that is owed is past its time")


def judge_settled(pages: Sequence[Settled]) -> Iterator[Finding]:
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
            "faster handlers or more partitions; if it is the database that is busy, relay to a broker (docs/relay.md)",
        )
    else:
        yield ok("latency", f"{told}, not for long" if lately > SLOW else told)


def judge_tuples(tables: Sequence[Tuples]) -> Iterator[Finding]:
    bad = [each for each in tables if each.dead > DEAD and each.dead > DEAD_SHARE * each.live]
    for each in bad[:SHOWN]:
        when = f"last vacuumed {each.vacuumed_at:%Y-%m-%d %H:%M}" if each.vacuumed_at else "never vacuumed"
        yield warning(
            "dead_tuples",
            f"{each.table}: {each.dead:,} dead rows beside {each.live:,} live ones, {when}",
            "look for what holds vacuum back (transactions); else let autovacuum run more often on it",
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
        yield note("growth", told, "nothing, if it is meant; else keep the log for less time (docs/upkeep.md)")
    else:
        yield ok("growth", told)


def judge_upkeep(keeping: Keeping, now: datetime) -> Iterator[Finding]:
    since = keeping.ran_at or keeping.there_since
    if now - since > UNKEPT:
        told = "has not run for" if keeping.ran_at else "has never run, for"
        yield warning(
            "upkeep",
            f"it {told} {span(now - since)}",
            "start a worker without OUTRIDER_UPKEEP=off, or run outrider upkeep from cron; a worker that may not says so in "
            "its log (troubled)",
        )
    elif keeping.ran_at is None:
        yield ok("upkeep", "it has not run yet")
    else:
        yield ok("upkeep", f"ran {span(now - keeping.ran_at)} ago")
    for name, reason in list(zip(keeping.segments, keeping.reasons, strict=True))[:SHOWN]:
        yield warning(
            "retention",
            f"the segment {name} is kept longer than {keeping.days} days: {reason}",
            "let its subscriptions read on, see to its dead letters, retire what nobody serves: then it goes by itself",
        )
    if len(keeping.segments) > SHOWN:
        yield warning("retention", f"and {len(keeping.segments) - SHOWN} more like these", "the same")
    if not keeping.segments:
        yield ok("retention", f"nothing is kept longer than {keeping.days} days because somebody needs it")


def judge_hidden(role: str | None) -> Iterator[Finding]:
    """`role`: the one that asks, if policies hide rows from it."""
    if role is not None:
        yield warning(
            "privileges",
            f"row-level security hides rows from this role, {role}: what is said here may leave out other tenants",
            f"outrider tenants enable --role {role}, as the owner; or ask as a role that sees every tenant",
        )


def judge_rights(rights: Sequence[Right]) -> Iterator[Finding]:
    for each in rights[:RIGHTS_SHOWN]:
        told = f"{each.who} may {each.may}: {each.why}"
        if each.grave:
            yield warning(
                "privileges", told, "revoke it; outrider roles makes roles whose grants suffice (docs/roles.md)"
            )
        else:
            yield note("privileges", told, "nothing, if it is meant; else take it from that role")
    if len(rights) > RIGHTS_SHOWN:
        yield warning("privileges", f"and {len(rights) - RIGHTS_SHOWN} more like these", "revoke them")
    if not rights:
        yield ok("privileges", "nobody but the owner may change what must not change")


def judge_sharing(sharing: Sharing) -> Iterator[Finding]:
    if len(sharing.contexts) > 1 and sharing.roles:
        yield note(
            "sharing",
            f"the contexts {', '.join(sharing.contexts)} share this schema: {', '.join(sharing.roles)} may move the cursors "
            "of all of them",
            "nothing, if they trust each other; else a schema for each, with roles of its own, and relays between them",
        )


def judge_schedules(
    schedules: Sequence[Timetable], now: datetime, context: str, declared: set[str] | None, served: set[str]
) -> Iterator[Finding]:
    """`declared`: the schedules of the app, which speaks for that context; None without an app. `served`: the job types of
    live workers."""
    ahead = [each for each in schedules if each.fired_at - now > FUTURE]
    for each in ahead[:SHOWN]:
        yield warning(
            "schedules",
            f"{each.name} was fired up to {each.fired_at:%Y-%m-%d %H:%M:%S%z}, {span(each.fired_at - now)} from now: the "
            "server's clock was ahead",
            "its workers set it back by themselves; with missed='all' its jobs are there, and it goes on then. For all that "
            "keeps time on this server: let it keep time with NTP",
        )
    late = [(each, at) for each in schedules if (at := _due(each)) is not None and now - at > LATE]
    for each, at in late[:SHOWN]:
        ours = declared is not None and each.context in (None, context)
        wanted = each.name in (declared or ()) if ours else each.job_type in served
        judge = warning if wanted else note
        yield judge(
            "schedules",
            f"{each.name} should have been fired at {at:%Y-%m-%d %H:%M:%S%z}, {span(now - at)} ago",
            "start a worker of its app; one that runs says in its log why it cannot (troubled). If no code has it any more, "
            "remove its row (docs/schedules.md)",
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
                f"should tick {counted(cron.by_cron, 'rollup')}, and is not there ({cron.state}): workers tick meanwhile",
                "create extension pg_cron, then outrider rollup install; or install with workers as the scheduler",
            )
        case state:
            yield ok("pg_cron", f"{state}: workers tick {rollups}")
