"""`outrider audit`: what operators did: who, what, why, how many."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import timedelta
from typing import Annotated

import typer

from outrider.cli.options import Commands, LimitOption
from outrider.cli.output.text import at, one_line, print_json, say, short
from outrider.cli.target import Target
from outrider.errors import ConfigError
from outrider.postgres.admin import audit as record
from outrider.postgres.admin.audit import Entry, Which
from outrider.retry import parse_duration

commands = Commands()


@commands.command()
def audit(
    target: Target,
    subscription: Annotated[
        str | None, typer.Option("--subscription", metavar="NAME", help="Only actions on this subscription.")
    ] = None,
    by: Annotated[
        str | None, typer.Option("--by", metavar="NAME", help="Only actions by this name or database role.")
    ] = None,
    since: Annotated[
        str | None, typer.Option("--since", metavar="SPAN", help="Only actions in this time: 30m, 2h, 7d.")
    ] = None,
    before: Annotated[
        int | None, typer.Option("--before", metavar="N", help="Only entries older than number N.")
    ] = None,
    limit: LimitOption = 50,
) -> None:
    """Show what operators did, when and why.

    The newest comes first. Each line has the name that the operator gave (--by, by
    default the login name), and the database role, which cannot be chosen. Actions on
    one event or job: outrider event show, outrider job show.

    Needs: a role that may read the schema. Changes nothing.

    Examples:

      [bold]outrider audit --since 1d[/]
      [bold]outrider audit --subscription billing.invoice --json[/]
    """
    which = Which(subscription, by, _span(since), before)
    found = target.run(lambda conn: record.entries(conn, which, target.schema, limit=limit))
    if target.as_json:
        print_json(schema=target.schema, entries=[asdict(each) for each in found])
        return
    for each in found:
        say(_line(each))
    if not found:
        say("no entries")
    if len(found) == limit:
        say(f"there may be more: outrider audit --before {found[-1].id}", style="dim")


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
