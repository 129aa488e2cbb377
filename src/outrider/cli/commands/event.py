"""`outrider event`: the whole life of one event, and keeping it from those that have not handled it."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from dataclasses import asdict
from typing import Annotated, Any
from uuid import UUID, uuid4

import typer

from outrider.cli.audit_options import ByOption, ReasonOption, who
from outrider.cli.letter_filter import moment_of
from outrider.cli.output import event_history as event_history_output
from outrider.cli.output.text import one_line, say
from outrider.cli.target import AppOption, Asked, DsnOption, EmbeddedOption, JsonOption, Place, SchemaOption, find_place
from outrider.errors import NoSuchEvent, WithdrawRefused
from outrider.postgres.admin import event_history
from outrider.postgres.admin.event_history import Listing, Story, Withdrawn
from outrider.postgres.admin.tenants import refuse_hidden

commands = typer.Typer(no_args_is_help=True, help="List events, see the whole life of one, or withdraw it.")

EventId = Annotated[UUID, typer.Argument(metavar="EVENT_ID", help="The event's id.")]


@commands.command("list")
def show_all(
    key: Annotated[str | None, typer.Option("--key", metavar="KEY", help="Their ordering key: order 42.")] = None,
    event_type: Annotated[str | None, typer.Option("--type", metavar="TYPE", help="Their event type.")] = None,
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="TIME", help="Occurred then or later: 2026-07-31T09:30, or 2h ago as 2h."),
    ] = None,
    workspace: Annotated[str | None, typer.Option("--workspace", metavar="ID", help="Their tenant.")] = None,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, max=10_000, help="At most so many.")] = 50,
    before: Annotated[
        int | None, typer.Option("--before", metavar="NUMBER", help="Only older ones: below this number of the log.")
    ] = None,
    app: AppOption = None,
    dsn: DsnOption = None,
    embedded: EmbeddedOption = False,
    schema: SchemaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the newest events that fit, and what became of each: what happened to order 42?

    Looks at the last million events of the log, from the newest on, and says
    where it ended: go on there with --before. All filters that are given must fit.
    A segment of the log that was closed before --since is not looked at.

    Needs: a role that may read the schema. Changes nothing.

    Examples:

      [bold]outrider event list --key 42[/]
      [bold]outrider event list --type orders.placed --since 2h --workspace acme[/]
    """
    place, when = find_place(Asked(app, dsn, embedded, schema)), moment_of("--since", since)
    found = asyncio.run(_listed(place, key, event_type, when, workspace, limit, before))
    if as_json:
        typer.echo(json.dumps({"schema": place.schema, **asdict(found)}, default=str, indent=2))
    else:
        event_history_output.tell_all(found)


@commands.command()
def show(
    event_id: EventId,
    app: AppOption = None,
    dsn: DsnOption = None,
    embedded: EmbeddedOption = False,
    schema: SchemaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what an event is, and what has become of it everywhere.

    For each subscription that it concerns: pending (and what it waits for),
    running (a job), delivered, failed (a dead letter), discarded or withdrawn, with
    every attempt that failed; then what operators did. Long payloads are cut; --json
    has all.
    Exits with 1 if there is no such event.

    Needs: a role that may read the schema. Changes nothing.

    Example: [bold]outrider event show 01a1dee3-17b7-74fd-a81d-5bd9edeeaa5a[/]
    """
    place = find_place(Asked(app, dsn, embedded, schema))
    story = asyncio.run(_story(place, event_id))
    if as_json:
        typer.echo(_as_json(place.schema, story))
    else:
        event_history_output.tell(story)


@commands.command()
def withdraw(
    event_id: EventId,
    reason: ReasonOption = None,
    by: ByOption = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    app: AppOption = None,
    dsn: DsnOption = None,
    embedded: EmbeddedOption = False,
    schema: SchemaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Keep an event from every subscription that has not handled it.

    Shows first whom it still concerns. Nobody takes it from then on, neither new
    subscriptions nor other generations; what waits for a retry or is a dead
    letter goes, and what waited behind it goes on. Where it was handled it is
    too late, and said. The log keeps the event; publish a corrected one.

    Waits for batches in progress, up to 10 s, so that what it says is true.
    Without a terminal it wants --yes. It cannot be undone.

    Needs: a role that may operate.

    Example: [bold]outrider event withdraw 01a1dee3-17b7-74fd-a81d-5bd9edeeaa5a --reason 'wrong price'[/]
    """
    if as_json and not yes:
        raise typer.BadParameter("--json is for programs, which are not asked: it goes with --yes")
    place = find_place(Asked(app, dsn, embedded, schema))
    if not yes:
        _confirm(asyncio.run(_story(place, event_id)))
    told = asyncio.run(_withdraw(place, event_id, who(by), reason))
    if as_json:
        answer = [asdict(each) for each in told]
        typer.echo(json.dumps({"schema": place.schema, "event_id": str(event_id), "subscriptions": answer}, indent=2))
        return
    for each in told:
        say(f"{one_line(each.subscription)}: {each.outcome}{', too late' if each.outcome == 'delivered' else ''}")
    if not told:
        say("withdrawn; it concerned no subscription that there is now")


def _confirm(story: Story) -> None:
    say(event_history_output.title(story))
    for fate in story.fates:
        say(f"  {one_line(fate.subscription)}: {event_history_output.standing(fate, story.read_at)}")
    owed = [fate for fate in story.fates if fate.status not in ("delivered", "withdrawn")]
    whom = f"{len(owed)} of {len(story.fates)} subscriptions" if owed else "none but subscriptions to come"
    if not sys.stdin.isatty():
        raise WithdrawRefused(
            f"nothing was withdrawn: it would be kept from {whom}, and there is no terminal to ask at; "
            "if it is meant, add --yes"
        )
    if not typer.confirm(f"Keep it from {whom}?", err=True):
        raise WithdrawRefused("nothing was withdrawn")


async def _story(place: Place, event_id: UUID) -> Story:
    async with place.connect() as conn:
        found = await event_history.story(conn, event_id, place.schema)
        if found is None:
            await refuse_hidden(conn, place.schema)
    if found is None:
        raise NoSuchEvent(event_id, place.schema)
    return found


async def _listed(
    place: Place,
    key: str | None,
    event_type: str | None,
    since: Any,
    workspace: str | None,
    limit: int,
    before: int | None,
) -> Listing:
    async with place.connect() as conn:
        await refuse_hidden(conn, place.schema)
        return await event_history.listed(
            conn,
            place.schema,
            key=key,
            event_type=event_type,
            workspace_id=workspace,
            since=since,
            limit=limit,
            before=before,
        )


async def _withdraw(place: Place, event_id: UUID, by: str | None, reason: str | None) -> list[Withdrawn]:
    async with place.connect() as conn:
        return await event_history.withdraw(conn, event_id, by, reason, place.schema)


def _as_json(schema: str, story: Story) -> str:
    """The payload goes in as the database has it: whatever numbers it holds, they stay what they are."""
    told = asdict(story)
    envelope = told.pop("envelope")
    payload, mark = envelope.pop("payload_json"), uuid4().hex
    del told["payload_pretty"]
    answer: dict[str, Any] = {"schema": schema, "event": envelope | {"payload": mark}, **told}
    text = json.dumps(answer, default=str, indent=2)
    return text.replace(f'"{mark}"', re.sub(r"[^ -~]", _escaped, payload or "null"))


def _escaped(found: re.Match[str]) -> str:
    """As JSON writes it in ASCII: nothing that a terminal would obey."""
    return json.dumps(found.group())[1:-1] if found.group() != "\x7f" else "\\u007f"
