"""`outrider dlq`: dead letters by what went wrong, one by one, in full; replay, edit and discard them."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from functools import partial
from typing import Annotated, Any
from uuid import UUID

import typer

from outrider.cli.audit_options import ByOption, ReasonOption, who
from outrider.cli.bulk_actions import bulk, confirm, print_json, refuse_unknown
from outrider.cli.edit import by_hand, from_file
from outrider.cli.letter_filter import (
    Code,
    EventType,
    Everything,
    Fingerprint,
    Generation,
    Since,
    Subscription,
    Until,
    Workspace,
    filter_of,
    refuse_unclear,
)
from outrider.cli.output import dead_letters as dead_letters_output
from outrider.cli.output.text import tell
from outrider.cli.target import AppOption, Asked, DsnOption, EmbeddedOption, JsonOption, Place, SchemaOption, find_place
from outrider.errors import ReplayRefused
from outrider.postgres.admin import dead_letters, recovery
from outrider.postgres.admin.dead_letters import Count, Filter, Group, Letter, WholeLetter
from outrider.postgres.admin.replay import Replayed
from outrider.postgres.admin.replay import replay as replay_one

commands = typer.Typer(no_args_is_help=True, help="List, show, replay and discard dead letters.")

OUTCOME = {
    "replayed": "replayed",
    "skipped_handled": "skipped: its idempotency key has been handled",
    "not_found": "not found: it is neither a dead letter nor handled there",
    "erased": "erased: its payload is gone, and nobody can handle it again",
    "superseded": "skipped: another job with its unique key is pending",
}

Event = Annotated[UUID, typer.Argument(metavar="EVENT_ID", help="The event.")]
MaybeEvent = Annotated[UUID | None, typer.Argument(metavar="EVENT_ID", help="One event; else a filter.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and change nothing.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]


@commands.command("list")
def show_all(
    subscription: Subscription = None,
    event_type: EventType = None,
    code: Code = None,
    fingerprint: Fingerprint = None,
    since: Since = None,
    until: Until = None,
    workspace: Workspace = None,
    generation: Generation = None,
    each: Annotated[bool, typer.Option("--each", help="One by one instead of by cause.")] = False,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, help="With --each: at most so many.")] = 50,
    app: AppOption = None,
    dsn: DsnOption = None,
    embedded: EmbeddedOption = False,
    schema: SchemaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what was given up on, by what went wrong: how many, since when, a sample.

    Errors with the same fingerprint have the same text but for numbers, ids and
    quoted values: mostly one cause. All filters that are given must fit.

    Needs: a role that may read the schema. Changes nothing.

    Examples:

      [bold]outrider dlq list[/]
      [bold]outrider dlq list --each --subscription shop.invoice --since 2h[/]
    """
    which = filter_of(subscription, event_type, code, fingerprint, since, until, workspace, generation)
    place = find_place(Asked(app, dsn, embedded, schema))
    groups, singles, count = asyncio.run(_look(place, which, limit if each else None))
    if as_json:
        found: list[Any] = [asdict(one) for one in (singles if each else groups)]
        print_json(schema=place.schema, letters=count.letters, **{"each" if each else "groups": found})
    elif not count.letters:
        typer.echo("no dead letters" + (" fit" if which else ""))
    elif each:
        dead_letters_output.show_each(singles, count.letters)
    else:
        dead_letters_output.show_groups(groups)


@commands.command()
def show(
    event: Event,
    subscription: Subscription = None,
    app: AppOption = None,
    dsn: DsnOption = None,
    embedded: EmbeddedOption = False,
    schema: SchemaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show all that is known of one dead letter: error, history, payload.

    The history has every attempt and, between the cycles, who replayed it. A
    payload that was edited stands beside the one in the log.

    Needs: a role that may read the schema. Changes nothing.

    Example: [bold]outrider dlq show 01a1dee3-17b7-74fd-a81d-5bd9edeeaa5a[/]
    """
    place = find_place(Asked(app, dsn, embedded, schema))
    found = asyncio.run(_whole(place, event, subscription))
    if not found:
        at = f" at {subscription}" if subscription else ""
        raise ReplayRefused(f"{event} is not a dead letter{at}, and it does not wait for a retry")
    if as_json:
        print_json(schema=place.schema, letters=[_fields(each) for each in found])
        return
    for number, each in enumerate(found):
        typer.echo("\n" * (number > 0), nl=False)
        dead_letters_output.show_whole(each)


@commands.command()
def replay(
    event: MaybeEvent = None,
    subscription: Subscription = None,
    event_type: EventType = None,
    code: Code = None,
    fingerprint: Fingerprint = None,
    since: Since = None,
    until: Until = None,
    workspace: Workspace = None,
    generation: Generation = None,
    everything: Everything = False,
    dry_run: DryRun = False,
    rate: Annotated[float | None, typer.Option("--rate", metavar="N", help="At most so many letters a second.")] = None,
    force: Annotated[
        bool, typer.Option("--force", help="One event, one --subscription: again although it was handled or discarded.")
    ] = False,
    to_generation: Annotated[
        int | None,
        typer.Option("--to-generation", metavar="N", help="The workers of that generation shall handle them."),
    ] = None,
    payload: Annotated[
        str | None, typer.Option("--payload", metavar="FILE", help="One event: the handler gets this JSON; - is stdin.")
    ] = None,
    edit: Annotated[
        bool, typer.Option("--edit", help="One event: edit its payload in $EDITOR first. Unchanged = nothing is done.")
    ] = False,
    reason: ReasonOption = None,
    by: ByOption = None,
    yes: Yes = False,
    app: AppOption = None,
    dsn: DsnOption = None,
    embedded: EmbeddedOption = False,
    schema: SchemaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Let dead letters be handled again: those of one event, or all that fit a filter.

    Their idempotency keys stay: what was handled is skipped, nothing is done
    twice. They come after what was handled of their keys meanwhile. The history
    stays and is marked. A bulk replay takes those that are dead letters when it
    begins, chunk by chunk; Ctrl-C ends it after a chunk, and it may be run again.

    --payload and --edit leave the log as it is and are audited. With an app, the
    new payload must fit the class that its subscription has for it.
    --force deletes the receipt: what the handler did, it does once more. Audited.

    Needs: a role that may operate.

    Examples:

      [bold]outrider dlq replay 01a1dee3-17b7-74fd-a81d-5bd9edeeaa5a[/]
      [bold]outrider dlq replay --subscription shop.invoice --code timeout --dry-run[/]
      [bold]outrider dlq replay --subscription shop.invoice --code timeout --rate 100[/]
      [bold]outrider dlq replay 01a1dee3-17b7-74fd-a81d-5bd9edeeaa5a --edit[/]
    """
    which = filter_of(subscription, event_type, code, fingerprint, since, until, workspace, generation)
    refuse_unclear(event, which, everything=everything)
    if event is None and (force or edit or payload is not None):
        raise typer.BadParameter("--force, --payload and --edit are for one event: name it")
    if event is not None and rate is not None:
        raise typer.BadParameter("--rate is for many: one event needs none")
    if force and subscription is None:
        raise typer.BadParameter("--force needs --subscription: say who shall do it once more")
    if edit and payload is not None:
        raise typer.BadParameter("--payload and --edit exclude each other: drop one of them")
    place = find_place(Asked(app, dsn, embedded, schema))
    named = who(by)
    if event is None:
        run = partial(
            recovery.replay, schema=place.schema, by=named, reason=reason, generation=to_generation, rate=rate
        )
        asyncio.run(bulk(place, which, "replay", run, dry_run=dry_run, yes=yes, as_json=as_json))
        return
    found = asyncio.run(_whole(place, event, subscription)) if edit or dry_run or payload is not None else []
    text = None if payload is None else from_file(payload, found, place.subscriptions or ())
    if edit and (text := by_hand(found, place.subscriptions or ())) is None:
        typer.echo("unchanged: nothing was replayed")
        return
    if dry_run:
        _foretell(event, found, force=force, as_json=as_json)
        return
    if force:
        confirm(
            f"--force deletes the receipt of {subscription} for {event}, into the audit. What its handler did, it does once "
            "more: once more to your tables, once more outside. Go on?",
            "nothing was replayed",
            yes=yes,
        )
    options = {
        "subscription": subscription,
        "by": named,
        "reason": reason,
        "force": force,
        "generation": to_generation,
        "payload": text,
    }
    _tell(event, asyncio.run(_replay(place, event, options)), as_json=as_json)


@commands.command()
def discard(
    event: MaybeEvent = None,
    subscription: Subscription = None,
    event_type: EventType = None,
    code: Code = None,
    fingerprint: Fingerprint = None,
    since: Since = None,
    until: Until = None,
    workspace: Workspace = None,
    generation: Generation = None,
    everything: Everything = False,
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why, for the record.")] = "",
    dry_run: DryRun = False,
    by: ByOption = None,
    yes: Yes = False,
    app: AppOption = None,
    dsn: DsnOption = None,
    embedded: EmbeddedOption = False,
    schema: SchemaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Give dead letters up for good: those of one event, or all that fit a filter.

    They leave the list and stay in the table, marked with the reason. Audited,
    one by one. To bring one back: outrider dlq replay EVENT_ID --force.

    Needs: a role that may operate; a --reason.

    Example: [bold]outrider dlq discard 01a1dee3-17b7-74fd-a81d-5bd9edeeaa5a --reason "a test order"[/]
    """
    which = filter_of(subscription, event_type, code, fingerprint, since, until, workspace, generation)
    refuse_unclear(event, which, everything=everything)
    if not reason.strip():
        raise typer.BadParameter("--reason says why: whoever finds them later will want to know")
    place = find_place(Asked(app, dsn, embedded, schema))
    named = who(by)
    if event is None:
        run = partial(recovery.discard, schema=place.schema, by=named, reason=reason)
        asyncio.run(bulk(place, which, "discard", run, dry_run=dry_run, yes=yes, as_json=as_json))
        return
    dead = [each.subscription for each in asyncio.run(_whole(place, event, subscription)) if each.status == "failed"]
    if not dead:
        raise ReplayRefused(f"nothing was discarded: {event} is not a dead letter")
    if not dry_run:
        confirm(f"Discard {event} at {', '.join(dead)}?", "nothing was discarded", yes=yes)
    discarded = 0 if dry_run else asyncio.run(_discard(place, event, subscription, named, reason))
    if as_json:
        print_json(event_id=event, dry_run=dry_run, subscriptions=dead, discarded=discarded)
    elif dry_run:
        tell(f"would be discarded at {', '.join(dead)}; nothing was changed (dry run)")
    else:
        typer.echo(f"{discarded} discarded")


def _tell(event: UUID, outcomes: list[Replayed], *, as_json: bool) -> None:
    if as_json:
        print_json(event_id=event, outcomes=[asdict(each) for each in outcomes])
    for each in outcomes if not as_json else ():
        tell(f"{each.subscription or event}: {OUTCOME[each.outcome]}")
    if any(each.outcome == "not_found" for each in outcomes):
        raise typer.Exit(1)


def _foretell(event: UUID, found: list[WholeLetter], *, force: bool, as_json: bool) -> None:
    """What a replay of one event would come to, as far as can be seen now."""
    outcomes = []
    for each in found:
        dead = each.status == "failed" or (force and each.status == "discarded")
        handled = each.handled_at is not None and not force
        outcomes.append((each.subscription, "not_found" if not dead else "skipped_handled" if handled else "replayed"))
    if as_json:
        told = [{"subscription": name, "outcome": outcome} for name, outcome in outcomes]
        print_json(event_id=event, dry_run=True, outcomes=told)
        return
    for name, outcome in outcomes:
        tell(f"{name}: would be {OUTCOME[outcome]}")
    if not outcomes:
        typer.echo(f"{event}: no dead letter")
    typer.echo("nothing was changed (dry run)")


async def _look(place: Place, which: Filter, limit: int | None) -> tuple[list[Group], list[Letter], Count]:
    async with place.connect(every_tenant=True) as conn:
        await refuse_unknown(conn, place, which)
        if limit is None:
            groups = await dead_letters.groups(conn, which, place.schema)
            return groups, [], Count(sum(each.letters for each in groups), 0)
        singles = await dead_letters.letters(conn, which, place.schema, limit=limit)
        return [], singles, await dead_letters.count(conn, which, place.schema)


async def _whole(place: Place, event: UUID, subscription: str | None) -> list[WholeLetter]:
    async with place.connect(every_tenant=True) as conn:
        await refuse_unknown(conn, place, Filter(subscription=subscription))
        return await dead_letters.letter(conn, event, subscription, place.schema)


async def _replay(place: Place, event: UUID, options: dict[str, Any]) -> list[Replayed]:
    async with place.connect(every_tenant=True) as conn:
        await refuse_unknown(conn, place, Filter(subscription=options["subscription"]))
        return await replay_one(conn, event, place.schema, place.subscriptions or (), **options)


async def _discard(place: Place, event: UUID, subscription: str | None, by: str, reason: str) -> int:
    async with place.connect(every_tenant=True) as conn:
        return await recovery.discard_one(conn, event, subscription, place.schema, by=by, reason=reason)


def _fields(each: WholeLetter) -> dict[str, Any]:
    payload, edited = (json.loads(text) if text else None for text in (each.payload, each.edited))
    return asdict(each) | {"payload": payload, "edited": edited}
