"""What the state of the server means: transactions, locks, settings, WAL and privileges. Decides without I/O."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

from outrider.doctor.finding import SHOWN, Finding, counted, critical, more, note, ok, span, warning
from outrider.postgres.admin.diagnostics import Holder, Lock, Right, Server, ServerSetting, Sharing, Slot
from outrider.postgres.dsn import OLDEST
from outrider.redaction import without_literals

LONG, TOO_LONG = timedelta(minutes=5), timedelta(hours=1)
"""A transaction that is open for that long is a warning, or critical."""
XIDS = 10_000_000
"""A transaction that is open while this many others begin is critical: vacuum cannot remove dead rows."""
IDLE = timedelta(seconds=10)
"""How long a transaction that has published may be idle."""
BLOCKED = timedelta(minutes=1)
"""A session that waits longer than this for a lock makes the lock critical."""
QUEUE, QUEUE_FULL = 0.25, 0.5
"""A notification queue that is filled to that part is a warning, or critical."""
CLOCK = 1.0
"""The clocks of this machine and of the server may differ by this many seconds."""
WAL, TOO_MUCH_WAL = 1 << 30, 10 << 30
"""Bytes of WAL that a replication slot keeps: a warning, or critical."""
WAL_UNREAD = 64 << 20
"""Bytes that a slot without a consumer may keep: consumers restart."""
RIGHTS_SHOWN = 20
"""The most privileges that are listed."""


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
            "a session that listens keeps a transaction open: end it (see transactions). From 90% on, Outrider sends no "
            "notifications and workers poll; at 100%, every other transaction that notifies fails",
        )
    else:
        yield ok("notify_queue", share)
    used = f"{server.connections} of {server.most_connections} connections are in use"
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
            "let both keep time with NTP: Outrider uses the server's clock, your logs and traces do not",
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
                advice = f"its events are delivered only after it ends: commit prepared, or {each.ends}"
            case "batch":
                advice = (
                    "it is a batch of a worker, whose handler hangs or is slow; no other worker takes its events. "
                    f"To end it, so that it is retried: {each.ends}"
                )
            case _ if each.writes:
                advice = f"its events are delivered only after it ends; to end it: {each.ends}"
            case _:
                advice = f"dead rows cannot be removed meanwhile; to end it: {each.ends}"
        judge = critical if aged or (each.since or timedelta()) >= TOO_LONG else warning
        yield judge("transactions", f"{each.who} {what} for {' and '.join(age)}", advice)
    yield from more("transactions", len(bad) - SHOWN)
    waiting = [
        each
        for each in holders
        if each not in bad and each.kind == "transaction" and each.writes and (each.idle or timedelta()) >= IDLE
    ]
    for each in waiting[:SHOWN]:
        yield warning(
            "transactions",
            f"{each.who} has published or enqueued, and has done nothing for {span(each.idle or timedelta())}",
            f"what it wrote is delivered only after it commits; to end it: {each.ends}",
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
        query = " ".join(without_literals(each.query or "").split())
        ran = f"; {'it ran' if each.idle else 'it runs'}: {query}" if query else ""
        judge = critical if each.since >= BLOCKED else warning
        yield judge(
            "locks",
            f"{counted(each.waiting, 'session')} ({each.waiters or 'unknown'}) "
            f"{'waits' if each.waiting == 1 else 'wait'} up to {span(each.since)} for {each.who}{state}{ran}",
            f"let it commit or roll back; to end it: {each.ends}",
        )
    yield from more("locks", len(locks) - SHOWN)
    if not locks:
        yield ok("locks", "no session waits long for a lock")


def judge_settings(settings: Sequence[ServerSetting]) -> Iterator[Finding]:
    for each in settings[:SHOWN]:
        if each.name == "default_transaction_read_only":
            judge, advice = critical, "workers cannot write: turn it off for their role, or name the primary in the DSN"
        else:
            judge, advice = (
                warning,
                f"it cancels statements of workers, which are retried: alter … set {each.name} = 0",
            )
        yield judge("settings", f"{each.name} = {each.value}, by {each.place}, applies to Outrider's sessions", advice)
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
            yield note("privileges", told, "no action if this is intended; otherwise revoke it")
    if len(rights) > RIGHTS_SHOWN:
        yield warning("privileges", f"and {len(rights) - RIGHTS_SHOWN} more like these", "revoke them")
    if not rights:
        yield ok("privileges", "no role has rights that only the owner should have")


def judge_owned(context: str, owns: Sequence[str], found: Sequence[Right]) -> Iterator[Finding]:
    """`found`: rights of roles that are none of the context's."""
    for each in found[:RIGHTS_SHOWN]:
        if each.grave:
            advice = f"revoke it; or, if {each.who} is a role of {context}: Outrider(roles=[…, {each.who!r}])"
            yield warning("owns", f"{each.who} may {each.may}: {each.why}", advice)
        else:
            yield note(
                "owns", f"{each.who}: {each.why}", "no action if it is still to be created; otherwise correct owns="
            )
    if len(found) > RIGHTS_SHOWN:
        yield warning("owns", f"and {len(found) - RIGHTS_SHOWN} more like these", "revoke them")
    if not found:
        yield ok("owns", f"only roles of {context} can write in {', '.join(owns)}")


def judge_sharing(sharing: Sharing) -> Iterator[Finding]:
    if len(sharing.contexts) > 1 and sharing.roles:
        yield note(
            "sharing",
            f"the contexts {', '.join(sharing.contexts)} share this schema: {', '.join(sharing.roles)} may move the cursors "
            "of all of them",
            "no action if they trust each other; otherwise give each its own schema and roles, with relays between them",
        )
