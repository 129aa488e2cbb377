"""`outrider upkeep`: one round of it, for those who run it by themselves; the segments of the log, and one back into it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from outrider.cli.audit_options import ByOption, who
from outrider.cli.bulk_actions import print_json
from outrider.cli.output.text import one_line, roughly, say, tell
from outrider.cli.target import AppOption, Asked, DsnOption, EmbeddedOption, JsonOption, Place, SchemaOption, find_place
from outrider.errors import UpkeepRefused
from outrider.postgres import upkeep
from outrider.postgres.admin.dead_letters import clock
from outrider.postgres.upkeep import Did, Segment
from outrider.worker.upkeep_loop import keep

commands = typer.Typer(invoke_without_command=True)

DONE = {
    "made": "made {number:,} segments ahead ({detail})",
    "make": "make {number:,} segments ahead",
    "cut": "ended the segment {subject} at {number:,} ({detail})",
    "detached": "detached the segment {subject} ({detail})",
    "dropped": "dropped the segment {subject} ({detail})",
    "attached": "attached the segment {subject} ({detail})",
    "expired": "removed {number:,} {subject}",
    "reaped": "gave back {number:,} jobs of {subject}",
    "ticked": "ticked the rollup {subject}: {number:,} events",
    "kept": "kept {subject}: {detail}",
    "busy": "left {subject} for another time: {detail}",
}
NOUNS = {"dead_letters": "dead letters"}


@commands.callback()
def run(
    ctx: typer.Context,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and change nothing.")] = False,
    app: AppOption = None,
    dsn: DsnOption = None,
    embedded: EmbeddedOption = False,
    schema: SchemaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Create log segments ahead, apply retention, release the leases of dead workers.

    Workers do the same every five minutes, one of them at a time; from cron this
    is for those who run without workers, or with OUTRIDER_UPKEEP=off. What a
    cursor has not read, or somebody owes, is kept, and it is said who needs it.
    Waits for nobody longer than 200 ms at a time, so that publishers do not wait
    behind it: what others use is left for another time.

    --dry-run looks at each step by itself, and at a part of the receipts: of these it
    would remove at least so many.

    How long things are kept: outrider setting list, docs/upkeep.md.

    Needs: a role that may call the upkeep functions, as a worker may.

    Examples:

      [bold]outrider upkeep --dry-run[/]
      [bold]outrider upkeep --dsn postgresql://localhost/shop --json[/]
    """
    ctx.obj = Asked(app, dsn, embedded, schema)
    if ctx.invoked_subcommand is not None:
        return
    place = find_place(ctx.obj)
    did = asyncio.run(_run(place, dry_run))
    if as_json:
        print_json(schema=place.schema, dry_run=dry_run, did=[asdict(each) for each in did])
        return
    for each in did:
        tell(_sentence(each, dry_run))
    if not did:
        say("there is nothing to do")
    elif dry_run:
        say("nothing was changed (dry run)")


@commands.command()
def segments(
    ctx: typer.Context,
    app: AppOption = None,
    dsn: DsnOption = None,
    embedded: EmbeddedOption = False,
    schema: SchemaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the segments of the log: those with events, and how many are ahead.

    A segment is closed when all its numbers are drawn; it is detached when it was
    closed long enough ago and nobody needs it, and dropped some days later. The
    counts of events are those of the statistics. --json shows all, also those
    ahead.

    Needs: a role that may read the schema. Changes nothing.

    Example: [bold]outrider upkeep segments[/]
    """
    place = find_place(Asked(app, dsn, embedded, schema).over(ctx.obj))
    now, found = asyncio.run(_segments(place))
    if as_json:
        print_json(schema=place.schema, read_at=now, segments=[asdict(each) for each in found])
        return
    table = Table(title=f"schema {place.schema}", padding=(0, 0), pad_edge=False)
    for column in ("name", "numbers", "state", "events", "size", "what becomes of it"):
        table.add_column(column, overflow="fold", no_wrap=column in ("name", "state", "events", "size"))
    ahead = [each for each in found if each.state == "ahead"]
    for each in found:
        if each.state != "ahead":
            row = (each.name, _range(each), each.state, f"{each.events:,}", _size(each.bytes), _fate(each, now))
            table.add_row(*(Text(one_line(cell)) for cell in row), style="yellow" if each.kept else None)
    Console().print(table)
    say(f"{len(ahead)} segments ahead")


@commands.command()
def attach(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The segment: outrider upkeep segments shows them.")],
    days: Annotated[int, typer.Option("--days", metavar="N", min=1, max=3650, help="So long it stays at least.")] = 7,
    reason: Annotated[str | None, typer.Option("--reason", metavar="TEXT", help="Why, for the record.")] = None,
    by: ByOption = None,
    app: AppOption = None,
    dsn: DsnOption = None,
    embedded: EmbeddedOption = False,
    schema: SchemaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Put a detached segment back into the log: to look something up, or to replay.

    Nobody reads it again by itself: every subscription is past it, and the
    receipts of its events are there still. Nobody waits for it. After --days it
    may leave the log again. Kept in the audit.

    Needs: a role that may call attach_segment: a member of outrider_operator, or the
    owner of the schema.

    Example: [bold]outrider upkeep attach outbox_s3 --days 2 --reason "question of 4 May"[/]
    """
    place = find_place(Asked(app, dsn, embedded, schema).over(ctx.obj))
    did = asyncio.run(_attach(place, name, days, who(by), reason))
    if as_json:
        print_json(schema=place.schema, **asdict(did), days=days)
    else:
        tell(f"{_sentence(did)}; it stays for {days} days at least")


async def _run(place: Place, dry: bool) -> list[Did]:
    async with place.connect() as conn:
        if not dry:
            await upkeep.begin(conn, timedelta(), place.schema)
        return [each async for each in keep(conn, place.schema, dry=dry)]


async def _segments(place: Place) -> tuple[datetime, Sequence[Segment]]:
    async with place.connect() as conn:
        return await clock(conn, place.schema), await upkeep.segments(conn, place.schema)


async def _attach(place: Place, name: str, days: int, by: str, reason: str | None) -> Did:
    async with place.connect() as conn:
        if not name.strip():
            raise UpkeepRefused("a segment has a name: outrider upkeep segments shows them")
        return await upkeep.attach(conn, name, place.schema, days=days, by=by, reason=reason)


def _sentence(did: Did, dry: bool = False) -> str:
    said = DONE[did.action].format(
        number=did.number, subject=NOUNS.get(did.subject, did.subject), detail=did.detail or "no more is known"
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


def _fate(segment: Segment, now: datetime) -> str:
    if segment.kept:
        return f"kept: {segment.kept}"
    verb = "dropped" if segment.state == "detached" else "detached"
    if segment.due_at is None:
        return ""
    return f"{verb} in {roughly(segment.due_at - now)}" if segment.due_at > now else f"{verb} next"
