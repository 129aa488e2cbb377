"""`outrider audit`: what operators did: who, what, why, how many."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from datetime import timedelta
from typing import Annotated
from uuid import UUID

import typer

from outrider.cli.bulk_actions import print_json
from outrider.cli.output.text import at, one_line, say, short
from outrider.cli.target import AppOption, Asked, DsnOption, EmbeddedOption, JsonOption, Place, SchemaOption, find_place
from outrider.errors import ConfigError
from outrider.postgres.admin import audit as record
from outrider.postgres.admin.audit import Entry, Which
from outrider.retry import parse_duration


def audit(
    subscription: Annotated[
        str | None, typer.Option("--subscription", metavar="NAME", help="Done to this subscription.")
    ] = None,
    event: Annotated[
        UUID | None, typer.Option("--event", metavar="EVENT_ID", help="Done to this event or job.")
    ] = None,
    action: Annotated[
        str | None, typer.Option("--action", metavar="WORD", help="Like pause, retire, replay, withdraw.")
    ] = None,
    by: Annotated[
        str | None, typer.Option("--by", metavar="NAME", help="Done by them: the name that was given, or the role.")
    ] = None,
    since: Annotated[str | None, typer.Option("--since", metavar="SPAN", help="Not longer ago: 30m, 2h, 7d.")] = None,
    before: Annotated[
        int | None, typer.Option("--before", metavar="N", help="Older than the entry of this number.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, help="At most so many.")] = 50,
    app: AppOption = None,
    dsn: DsnOption = None,
    embedded: EmbeddedOption = False,
    schema: SchemaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what operators did: when, who, what, and why; the newest first.

    Whoever acts names themselves (--by, else the login name of their machine); the
    database role beside it is the one that was logged in, which nobody can choose.

    Needs: a role that may read the schema. Changes nothing.

    Examples:

      [bold]outrider audit --since 1d[/]
      [bold]outrider audit --subscription billing.invoice --json[/]
    """
    place = find_place(Asked(app, dsn, embedded, schema))
    which = Which(subscription, event, action, by, _span(since), before)
    found = asyncio.run(_entries(place, which, limit))
    if as_json:
        print_json(schema=place.schema, entries=[asdict(each) for each in found])
        return
    for each in found:
        say(_line(each))
    if not found:
        say("nothing")
    if len(found) == limit:
        say(f"more, perhaps: outrider audit --before {found[-1].id}", style="dim")


def _line(each: Entry) -> str:
    what = " ".join(str(part) for part in (each.action, each.subscription, each.event_id) if part is not None)
    details = dict(each.details)
    reason = details.pop("reason", None)
    told = short(json.dumps(details, ensure_ascii=False, default=str)) if details else ""
    why = f" ({short(str(reason))})" if reason is not None else ""
    return one_line(f"{each.id:>6}  {at(each.at)}  {each.by} as {each.role}: {what}{why}  {told}".rstrip())


def _span(given: str | None) -> timedelta | None:
    try:
        return None if given is None else parse_duration(given)
    except ConfigError:
        raise typer.BadParameter(f"--since: {given!r} is no duration, like 30m, 2h or 1d") from None


async def _entries(place: Place, which: Which, limit: int) -> list[Entry]:
    async with place.connect() as conn:
        return await record.entries(conn, which, place.schema, limit=limit)
