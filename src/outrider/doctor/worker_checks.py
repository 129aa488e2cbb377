"""What the heartbeats of workers report, and what their silence means. Decides without I/O."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta

from outrider.doctor.finding import SHOWN, Finding, counted, critical, more, ok, span, warning
from outrider.postgres.admin.diagnostics import Silent
from outrider.postgres.admin.status import ORDER, Status, Trouble

STANDSTILL = timedelta(minutes=1)
"""Infrastructure failures that last longer are critical."""
HOPELESS = 20
"""This many consecutive failures of a handler or job are critical."""
HELD = timedelta(minutes=20)
"""A blocked event loop is reported at growing intervals. After this long without a report its worker has died."""

NAMES = {
    "(jobs)": ("troubles", "jobs are not claimed, or not settled"),
    "(schedules)": ("schedules", "no schedule is fired"),
    "(rollups)": ("troubles", "rollups are not ticked"),
    "(upkeep)": ("troubles", "upkeep fails"),
    "(heartbeat)": ("troubles", "heartbeats are refused"),
}
ADVICE = {
    "57014": "a statement_timeout ends our statements, or somebody cancels them: see settings",
    "55P03": "it waits for a lock for longer than lock_timeout: see locks and settings",
    "25006": "the session is read-only: the server is a standby, or default_transaction_read_only is on: see settings",
    "42501": "a right was revoked: outrider roles grants what each role needs (docs/roles.md)",
    "53100": "the disk of the server is full: make room, then it continues by itself",
    "54000": "something is too large to be read: the log of the worker names it (troubled)",
}


def judge_troubles(found: Status) -> Iterator[Finding]:
    """As of the last heartbeats: of the same trouble at several workers, the longest."""
    known: dict[tuple[str, str, str], list[tuple[str, Trouble]]] = {}
    for worker in found.workers:
        for each in worker.troubles:
            held = each.kind == "loop"
            recent = found.read_at - each.since - timedelta(seconds=each.seconds) < HELD
            if each.lasting and (worker.live or (held and recent)):
                code = each.message if held else each.code
                known.setdefault((each.kind, each.name, code), []).append((f"{worker.host}:{worker.pid}", each))
    first = sorted(known, key=lambda of: ORDER.index(of[0]) if of[0] in ORDER else len(ORDER))
    for told in [known[each] for each in first[: 2 * SHOWN]]:
        places = [place for place, _ in told]
        where = f"worker {places[0]}" if len(told) == 1 else f"{len(told)} workers, one of them {places[0]}"
        yield _judge(max((each for _, each in told), key=lambda each: each.in_a_row), found, where)
    if len(known) > 2 * SHOWN:
        yield warning("troubles", f"and {len(known) - 2 * SHOWN} more like these", "outrider status has all of them")
    if found.live and not known:
        yield ok("troubles", f"{counted(found.live, 'worker')}: no repeated failures")


def _judge(each: Trouble, found: Status, where: str) -> Finding:
    lasts = found.read_at - each.since
    how = f"{counted(each.in_a_row, 'time')} in a row for {span(lasts)}"
    match each.kind:
        case "broker":
            return critical(
                "brokers",
                f"{each.name}: the broker has not answered {where}, {how}: {each.message}",
                "events wait; it continues by itself once the broker answers",
            )
        case "failing":
            judge = critical if each.in_a_row >= HOPELESS else warning
            return judge(
                "failing",
                f"{each.name} has failed {how}, without a success between, at {where}: {each.code}: {each.message}",
                f"correct the cause; until then outrider subscription pause {each.name} keeps attempts from being used up",
            )
        case "loop":
            return warning(
                "event_loop",
                f"{each.name or 'something'} held the event loop of {where} for {each.seconds:.0f} s, and with it all "
                f"that runs there: {each.message}",
                "declare what blocks with def instead of async def: then it runs in a thread",
            )
        case "unanswered":
            judge = critical if lasts >= STANDSTILL else warning
            return judge(
                "troubles",
                f"{each.name} has waited for the database for {span(lasts)} at {where}: {each.message}",
                "the check locks names who holds one; with synchronous replication, see whether the standby is there",
            )
        case _:
            check, what = NAMES.get(each.name, ("troubles", f"{each.name}: batches are rolled back"))
            judge = critical if lasts >= STANDSTILL else warning
            return judge(
                check,
                f"{what}, {how}, at {where}: {each.code}: {each.message}",
                ADVICE.get(each.code, "nothing is lost, it is retried; the log of the worker says more (troubled)"),
            )


def judge_silent(silent: Sequence[Silent]) -> Iterator[Finding]:
    for each in silent[:SHOWN]:
        told = f"worker {each.worker} has not been seen for {span(each.since)}, and its session {each.backend} is open"
        if each.may:
            yield warning(
                "frozen",
                f"{told}: its process is stopped, suspended, or blocked as a whole; it may hold {_names(each)}",
                f"end that process: others take over what it held. Its session: select pg_terminate_backend({each.backend})",
            )
        else:
            yield critical(
                "frozen",
                f"{told}: its role {each.role} may not write heartbeats any more",
                "a right was revoked: outrider roles grants what each role needs (docs/roles.md)",
            )
    yield from more("frozen", len(silent) - SHOWN)


def _names(each: Silent) -> str:
    return ", ".join(each.subscriptions) or "nothing"
