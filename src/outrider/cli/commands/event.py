"""`outrider event`: lists, the whole history of one event, what waits, and withdrawing an event."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from typing import Annotated, Any
from uuid import UUID, uuid4

import typer

from outrider.cli.dead_letter_options import moment_of
from outrider.cli.options import AuditOptions, Commands, YesOption, confirm
from outrider.cli.output import event_history as event_history_output
from outrider.cli.output.text import one_line, print_json, say
from outrider.cli.target import Target
from outrider.errors import NoSuchEvent
from outrider.postgres.admin import event_history
from outrider.postgres.admin import waiting as waiting_events
from outrider.postgres.admin.event_history import Story
from outrider.postgres.admin.tenants import refuse_hidden
from outrider.postgres.connection import AsyncSession

commands = Commands(no_args_is_help=True)

EventId = Annotated[UUID, typer.Argument(metavar="EVENT_ID", help="The event's id.")]


@commands.command("list")
def show_all(
    target: Target,
    key: Annotated[str | None, typer.Option("--key", metavar="KEY", help="Only events of this ordering key.")] = None,
    event_type: Annotated[str | None, typer.Option("--type", metavar="TYPE", help="Only this event type.")] = None,
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="TIME", help="Occurred then or later: 2026-07-31T09:30, or 2h for 2 h ago."),
    ] = None,
    workspace: Annotated[str | None, typer.Option("--workspace", metavar="ID", help="Only this tenant.")] = None,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, max=10_000, help="Show at most this many.")] = 50,
    before: Annotated[
        int | None, typer.Option("--before", metavar="POSITION", help="Only events before this log position.")
    ] = None,
) -> None:
    """Show the newest events that match, and what became of each.

    Searches the last million events of the log, from the newest on, and says where
    it ended: continue there with --before. An event must match all filters.
    Segments of the log that were closed before --since are not searched.

    Needs: a role that may read the schema. Changes nothing.

    Examples:

      [bold]outrider event list --key 42[/]
      [bold]outrider event list --type orders.placed --since 2h --workspace acme[/]
    """
    when = moment_of("--since", since)
    found = target.run(
        lambda conn: event_history.listed(
            conn,
            target.schema,
            key=key,
            event_type=event_type,
            workspace_id=workspace,
            since=when,
            limit=limit,
            before=before,
        ),
        every_tenant=True,
    )
    if target.as_json:
        print_json(schema=target.schema, **asdict(found))
    else:
        event_history_output.tell_all(found)


@commands.command()
def show(target: Target, event_id: EventId) -> None:
    """Show an event, and what became of it at every subscription.

    For each subscription: pending (and what it waits for), running (a job), delivered,
    failed (a dead letter), discarded or withdrawn, with every failed attempt; then
    what operators did. Long payloads are cut; --json has all.
    Exits with 1 if there is no such event.

    Needs: a role that may read the schema. Changes nothing.

    Example: [bold]outrider event show 01a1dee3-17b7-74fd-a81d-5bd9edeeaa5a[/]
    """
    story = _story(target, event_id)
    if target.as_json:
        typer.echo(_as_json(target.schema, story))
    else:
        event_history_output.tell(story)


@commands.command()
def waiting(
    target: Target,
    event_id: Annotated[
        UUID | None, typer.Argument(metavar="EVENT_ID", help="Show what waits behind this event.")
    ] = None,
    subscription: Annotated[
        str | None, typer.Option("--subscription", metavar="NAME", help="Only at this subscription.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, max=10_000, help="Show at most this many.")] = 50,
    after: Annotated[
        str | None, typer.Option("--after", metavar="PLACE", help="Continue where the last page ended, as it says.")
    ] = None,
) -> None:
    """Show the events that wait for a retry, and how many wait behind each.

    With an id: the events of its key that wait until it is handled or a dead letter.
    In total order all later events wait; most of them are not read yet, and not
    counted. Jobs that wait for a retry: outrider job list --state pending.

    Needs: a role that may read the schema. Changes nothing.

    Examples:

      [bold]outrider event waiting --subscription shop.invoice[/]
      [bold]outrider event waiting 01a1dee3-17b7-74fd-a81d-5bd9edeeaa5a[/]
    """
    if event_id is None:
        _show_waiting(target, subscription, limit, after)
    else:
        _show_behind(target, event_id, subscription, limit, after)


def _show_waiting(target: Target, subscription: str | None, limit: int, after: str | None) -> None:
    found = target.run(
        lambda conn: waiting_events.events(conn, target.schema, subscription=subscription, after=after, limit=limit),
        every_tenant=True,
    )
    if target.as_json:
        print_json(schema=target.schema, events=[asdict(each) for each in found])
    elif not found:
        say("no event waits for a retry")
    else:
        event_history_output.tell_waiting(found)
        if len(found) == limit:
            say(f"the first {limit:,} shown; for more: --after {one_line(found[-1].place)}")


def _show_behind(target: Target, event_id: UUID, subscription: str | None, limit: int, after: str | None) -> None:
    if after is not None and not (after.isascii() and after.isdigit() and len(after) < 19):
        raise typer.BadParameter("--after: with an event, give a log position")
    found = target.run(
        lambda conn: waiting_events.behind(
            conn, event_id, target.schema, subscription=subscription, after=int(after or 0), limit=limit
        ),
        every_tenant=True,
    )
    if target.as_json:
        print_json(schema=target.schema, event_id=event_id, behind=[asdict(each) for each in found])
    elif not found:
        say(f"no event waits behind {event_id}")
    else:
        event_history_output.tell_behind(found)
        if len(found) >= limit:
            say(f"the first {len(found):,} shown; for more: --after {found[-1].seq}")


@commands.command()
def withdraw(target: Target, audit: AuditOptions, event_id: EventId, yes: YesOption = False) -> None:
    """Withdraw an event from every subscription that has not handled it.

    Shows first which ones those are. From then on nobody takes the event, neither
    new subscriptions nor other generations. Its retries and dead letters are deleted,
    and events that waited behind it continue. Where it was handled it is too late,
    and the output says so. The log keeps the event; publish a corrected one.

    Waits up to 10 s for batches in progress, so that the answer is final.
    Without a terminal it requires --yes. It cannot be undone.

    Needs: a role that may operate.

    Examples:

      [bold]outrider event withdraw 01a1dee3-17b7-74fd-a81d-5bd9edeeaa5a --reason typo[/]
    """
    if target.as_json and not yes:
        raise typer.BadParameter("--json is for programs, which cannot be asked: add --yes")
    if not yes:
        _confirm(_story(target, event_id))
    told = target.run(lambda conn: event_history.withdraw(conn, event_id, audit.who, audit.reason, target.schema))
    if target.as_json:
        print_json(schema=target.schema, event_id=event_id, subscriptions=[asdict(each) for each in told])
        return
    for each in told:
        say(f"{one_line(each.subscription)}: {each.outcome}{', too late' if each.outcome == 'delivered' else ''}")
    if not told:
        say("withdrawn; no present subscription wanted it")


def _confirm(story: Story) -> None:
    say(event_history_output.title(story))
    for fate in story.fates:
        say(f"  {one_line(fate.subscription)}: {event_history_output.standing(fate, story.read_at)}")
    owed = [fate for fate in story.fates if fate.status not in ("delivered", "withdrawn")]
    whom = f"{len(owed)} of {len(story.fates)} subscriptions" if owed else "future subscriptions only"
    confirm(f"Withdraw it from {whom}?", "nothing was withdrawn", yes=False)


def _story(target: Target, event_id: UUID) -> Story:
    async def look_up(conn: AsyncSession) -> Story:
        found = await event_history.story(conn, event_id, target.schema)
        if found is None:
            await refuse_hidden(conn, target.schema)
            raise NoSuchEvent(event_id, target.schema)
        return found

    return target.run(look_up)


def _as_json(schema: str, story: Story) -> str:
    """The payload is copied as the database has it, so that its numbers keep every digit."""
    told = asdict(story)
    envelope = told.pop("envelope")
    payload, mark = envelope.pop("payload_json"), uuid4().hex
    del told["payload_pretty"]
    answer: dict[str, Any] = {"schema": schema, "event": envelope | {"payload": mark}, **told}
    text = json.dumps(answer, default=str, indent=2)
    return text.replace(f'"{mark}"', re.sub(r"[^ -~]", _escaped, payload or "null"))


def _escaped(found: re.Match[str]) -> str:
    """As JSON writes it in ASCII, so that a terminal obeys nothing of it."""
    return json.dumps(found.group())[1:-1] if found.group() != "\x7f" else "\\u007f"
