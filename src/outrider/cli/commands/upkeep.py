"""`outrider upkeep`: run upkeep once, without a worker; show the segments of the log, and put one back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from outrider.cli.options import AuditOptions, Commands, DryRunOption
from outrider.cli.output.text import make_table, one_line, print_json, roughly, say, tell
from outrider.cli.target import Target
from outrider.errors import UpkeepRefused
from outrider.postgres import upkeep
from outrider.postgres.admin.dead_letters import clock
from outrider.postgres.connection import AsyncSession
from outrider.postgres.upkeep import Did, Segment
from outrider.worker.upkeep_loop import keep

commands = Commands(invoke_without_command=True)

DONE = {
    "made": "created {number:,} segments ahead ({detail})",
    "make": "create {number:,} segments ahead",
    "cut": "closed the segment {subject} at {number:,} ({detail})",
    "detached": "detached the segment {subject} ({detail})",
    "dropped": "dropped the segment {subject} ({detail})",
    "attached": "attached the segment {subject} ({detail})",
    "expired": "removed {number:,} {subject}",
    "reaped": "released {number:,} jobs of {subject}",
    "ticked": "ran the rollup {subject}: {number:,} events",
    "kept": "kept {subject}: {detail}",
    "busy": "skipped {subject} this time: {detail}",
}
NOUNS = {"dead_letters": "dead letters"}


@commands.callback()
def run(target: Target, dry_run: DryRunOption = False) -> None:
    """Create and drop log segments, apply retention, release leases.

    The leases are those of dead workers. Workers do the same every five minutes, one
    of them at a time. Run this from cron where no workers run, or with
    OUTRIDER_UPKEEP=off. What a subscription has not read or not finished is kept, and
    the output says for whom. It waits at most 200 ms for a lock, so that publishers do
    not wait behind it; what is in use is skipped this time.

    --dry-run checks each step by itself. It checks only a part of the receipts, so at
    least that many would be removed.

    How long things are kept: outrider setting list, docs/upkeep.md.

    Needs: a role that may call the upkeep functions, as a worker may.

    Examples:

      [bold]outrider upkeep --dry-run[/]
      [bold]outrider upkeep --dsn postgresql://localhost/shop --json[/]
    """

    async def work(conn: AsyncSession) -> list[Did]:
        if not dry_run:
            await upkeep.begin(conn, timedelta(), target.schema)
        return [each async for each in keep(conn, target.schema, dry=dry_run)]

    did = target.run(work)
    if target.as_json:
        print_json(schema=target.schema, dry_run=dry_run, did=[asdict(each) for each in did])
        return
    for each in did:
        tell(_sentence(each, dry_run))
    if not did:
        say("nothing to do")
    elif dry_run:
        say("nothing was changed (dry run)")


@commands.command()
def segments(target: Target) -> None:
    """Show the segments of the log that hold events, and how many are ahead.

    A segment is closed when all its log positions are used. It is detached when it
    was closed long enough ago and nobody needs it, and dropped some days later. The
    numbers of events come from the table statistics. --json also lists the segments
    ahead.

    Needs: a role that may read the schema. Changes nothing.

    Example: [bold]outrider upkeep segments[/]
    """

    async def look_up(conn: AsyncSession) -> tuple[datetime, Sequence[Segment]]:
        return await clock(conn, target.schema), await upkeep.segments(conn, target.schema)

    now, found = target.run(look_up)
    if target.as_json:
        print_json(schema=target.schema, read_at=now, segments=[asdict(each) for each in found])
        return
    table = make_table(
        "name", "positions", "state", "events", "size", "what happens next", title=f"schema {target.schema}",
        unbroken=("name", "state", "events", "size"),
    )  # fmt: skip
    ahead = [each for each in found if each.state == "ahead"]
    for each in found:
        if each.state != "ahead":
            row = (each.name, _range(each), each.state, f"{each.events:,}", _size(each.bytes), _next(each, now))
            table.add_row(*(Text(one_line(cell)) for cell in row), style="yellow" if each.kept else None)
    Console().print(table)
    say(f"{len(ahead)} segments ahead")


@commands.command()
def attach(
    target: Target,
    audit: AuditOptions,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The segment, as outrider upkeep segments shows it.")],
    days: Annotated[int, typer.Option("--days", metavar="N", min=1, max=3650, help="Keep it at least this long.")] = 7,
) -> None:
    """Put a detached segment back into the log, to look something up or to replay.

    No subscription reads it again by itself: every subscription is past it, and the
    receipts of its events still exist. After --days it may leave the log again.
    Recorded in the audit.

    Needs: a role that may call attach_segment: a member of outrider_operator, or the
    owner of the schema.

    Example: [bold]outrider upkeep attach outbox_s3 --days 2 --reason "audit of May"[/]
    """
    if not name.strip():
        raise UpkeepRefused("the name is empty: outrider upkeep segments shows the segments")
    did = target.run(
        lambda conn: upkeep.attach(conn, name, target.schema, days=days, by=audit.who, reason=audit.reason)
    )
    if target.as_json:
        print_json(schema=target.schema, **asdict(did), days=days)
    else:
        tell(f"{_sentence(did)}; it stays for at least {days} days")


def _sentence(did: Did, dry: bool = False) -> str:
    said = DONE[did.action].format(
        number=did.number, subject=NOUNS.get(did.subject, did.subject), detail=did.detail or "no details"
    )
    return f"would have {said}" if dry and did.action not in ("kept", "busy", "make") else said


def _range(segment: Segment) -> str:
    return f"{max(segment.first_seq, 1):,} to {'…' if segment.last_seq is None else f'{segment.last_seq:,}'}"


def _size(size: int) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if size < 10_000:
            return f"{size:,} {unit}"
        size //= 1024
    return f"{size:,} TB"


def _next(segment: Segment, now: datetime) -> str:
    if segment.kept:
        return f"kept: {segment.kept}"
    verb = "dropped" if segment.state == "detached" else "detached"
    if segment.due_at is None:
        return ""
    return f"{verb} in {roughly(segment.due_at - now)}" if segment.due_at > now else f"{verb} next"
