"""`outrider dlq`: dead letters by cause, one by one, in full; replay, edit and discard them."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from functools import partial
from typing import Annotated, Any
from uuid import UUID

import typer

from outrider.cli.bulk_actions import bulk, refuse_unknown
from outrider.cli.dead_letter_options import ChosenDeadLetters, DeadLetterOptions, SubscriptionOption
from outrider.cli.edit import by_hand, from_file
from outrider.cli.options import AuditOptions, Commands, DryRunOption, YesOption, confirm
from outrider.cli.output import dead_letters as dead_letters_output
from outrider.cli.output.text import print_json, tell
from outrider.cli.target import Target
from outrider.errors import ReplayRefused
from outrider.postgres.admin import dead_letters, recovery
from outrider.postgres.admin.dead_letters import Count, Filter, Group, Letter, WholeLetter
from outrider.postgres.admin.replay import Replayed
from outrider.postgres.admin.replay import replay as replay_one
from outrider.postgres.connection import AsyncSession

commands = Commands(no_args_is_help=True)

OUTCOME = {
    "replayed": "replayed",
    "skipped_handled": "skipped: its idempotency key has been handled",
    "not_found": "not found: it is neither a dead letter nor handled there",
    "erased": "erased: its payload is gone, so it cannot be handled again",
    "superseded": "skipped: another job has its unique key",
}

EventId = Annotated[UUID, typer.Argument(metavar="EVENT_ID", help="The event.")]
OptionalEventId = Annotated[UUID | None, typer.Argument(metavar="EVENT_ID", help="One event, instead of a filter.")]


@commands.command("list")
def show_all(
    target: Target,
    letters: DeadLetterOptions,
    each: Annotated[bool, typer.Option("--each", help="One by one instead of by cause.")] = False,
    limit: Annotated[
        int, typer.Option("--limit", metavar="N", min=1, help="With --each: show at most this many.")
    ] = 50,
) -> None:
    """Show the dead letters by cause: how many, since when, and a sample.

    Errors with the same fingerprint have the same text except for numbers, ids and
    quoted values: usually one cause. A dead letter must match all filters.

    Needs: a role that may read the schema. Changes nothing.

    Examples:

      [bold]outrider dlq list[/]
      [bold]outrider dlq list --each --subscription shop.invoice --since 2h[/]
    """
    which = letters.filter

    async def look_up(conn: AsyncSession) -> tuple[list[Group], list[Letter], Count]:
        await refuse_unknown(conn, target, which)
        if not each:
            groups = await dead_letters.groups(conn, which, target.schema)
            return groups, [], Count(sum(group.letters for group in groups), 0)
        singles = await dead_letters.letters(conn, which, target.schema, limit=limit)
        return [], singles, await dead_letters.count(conn, which, target.schema)

    groups, singles, count = target.run(look_up, every_tenant=True)
    if target.as_json:
        found: list[Any] = [asdict(one) for one in (singles if each else groups)]
        print_json(schema=target.schema, letters=count.letters, **{"each" if each else "groups": found})
    elif not count.letters:
        typer.echo(
            "no dead letters match"
            if which
            else "no dead letters; what is tried again: outrider event waiting, outrider job list"
        )
    elif each:
        dead_letters_output.show_each(singles, count.letters)
    else:
        dead_letters_output.show_groups(groups)


@commands.command()
def show(target: Target, event: EventId, subscription: SubscriptionOption = None) -> None:
    """Show everything about one dead letter: error, history, payload.

    The history has every attempt and, between the cycles, who replayed it. An edited
    payload is shown beside the one in the log.

    Needs: a role that may read the schema. Changes nothing.

    Example: [bold]outrider dlq show 01a1dee3-17b7-74fd-a81d-5bd9edeeaa5a[/]
    """
    found = _letters_of(target, event, subscription)
    if not found:
        at = f" at {subscription}" if subscription else ""
        raise ReplayRefused(f"{event} is not a dead letter{at}, and does not wait for a retry")
    if target.as_json:
        print_json(schema=target.schema, letters=[_fields(each) for each in found])
        return
    for number, each in enumerate(found):
        typer.echo("\n" * (number > 0), nl=False)
        dead_letters_output.show_whole(each)


@commands.command()
def replay(
    target: Target,
    letters: ChosenDeadLetters,
    audit: AuditOptions,
    event: OptionalEventId = None,
    dry_run: DryRunOption = False,
    rate: Annotated[
        float | None, typer.Option("--rate", metavar="N", help="Replay at most this many per second.")
    ] = None,
    force: Annotated[
        bool,
        typer.Option("--force", help="One event, one --subscription: replay it even if it was handled or discarded."),
    ] = False,
    to_generation: Annotated[
        int | None,
        typer.Option("--to-generation", metavar="N", help="Let workers of this generation handle them."),
    ] = None,
    payload: Annotated[
        str | None,
        typer.Option("--payload", metavar="FILE", help="One event: give the handler this JSON instead; - is stdin."),
    ] = None,
    edit: Annotated[
        bool,
        typer.Option("--edit", help="One event: edit its payload in $EDITOR first. Unchanged = nothing is replayed."),
    ] = False,
    yes: YesOption = False,
) -> None:
    """Handle dead letters again: one event, or all that match a filter.

    They keep their idempotency keys: what was handled is skipped, nothing is done
    twice. They come after events of their keys that were handled meanwhile. The
    history stays. A bulk replay takes the dead letters that exist when it begins,
    chunk by chunk; Ctrl-C stops it after a chunk, and it may be run again.

    --payload and --edit do not change the log. With an app, the new payload must fit
    the class that its subscription has for it. --force deletes the receipt: the
    handler does its work once more. The audit records all of these.

    Needs: a role that may operate.

    Examples:

      [bold]outrider dlq replay 01a1dee3-17b7-74fd-a81d-5bd9edeeaa5a[/]
      [bold]outrider dlq replay --subscription shop.invoice --code timeout --dry-run[/]
      [bold]outrider dlq replay --subscription shop.invoice --code timeout --rate 100[/]
      [bold]outrider dlq replay 01a1dee3-17b7-74fd-a81d-5bd9edeeaa5a --edit[/]
    """
    which, subscription = letters.check(event), letters.subscription
    if event is None and (force or edit or payload is not None):
        raise typer.BadParameter("--force, --payload and --edit are for one event: name it")
    if event is not None and rate is not None:
        raise typer.BadParameter("--rate is for a filter: one event needs none")
    if force and subscription is None:
        raise typer.BadParameter("--force needs --subscription: say which one handles it again")
    if edit and payload is not None:
        raise typer.BadParameter("--payload and --edit exclude each other: drop one of them")
    by, reason = audit.who, audit.reason
    if event is None:
        act = partial(recovery.replay, schema=target.schema, by=by, reason=reason, generation=to_generation, rate=rate)
        asyncio.run(bulk(target, which, "replay", act, dry_run=dry_run, yes=yes))
        return
    declared = target.subscriptions or ()
    found = _letters_of(target, event, subscription) if edit or dry_run or payload is not None else []
    text = None if payload is None else from_file(payload, found, declared)
    if edit and (text := by_hand(found, declared)) is None:
        typer.echo("unchanged: nothing was replayed")
        return
    if dry_run:
        _show_plan(event, found, force=force, as_json=target.as_json)
        return
    if force:
        confirm(
            f"--force moves the receipt of {subscription} for {event} to the audit. The handler runs once more and repeats "
            "its effects, in your tables and outside. Continue?",
            "nothing was replayed",
            yes=yes,
        )

    async def run(conn: AsyncSession) -> list[Replayed]:
        await refuse_unknown(conn, target, which)
        return await replay_one(
            conn,
            event,
            target.schema,
            declared,
            subscription=subscription,
            by=by,
            reason=reason,
            force=force,
            generation=to_generation,
            payload=text,
        )

    _show_outcomes(event, target.run(run, every_tenant=True), as_json=target.as_json)


@commands.command()
def discard(
    target: Target,
    letters: ChosenDeadLetters,
    audit: AuditOptions,
    event: OptionalEventId = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
) -> None:
    """Give up dead letters: one event, or all that match a filter.

    They leave the list and stay in the table, marked with the reason. The audit
    records each. To bring one back: outrider dlq replay EVENT_ID --force.

    Needs: a role that may operate; a --reason.

    Examples:

      [bold]outrider dlq discard 01a1dee3-17b7-74fd-a81d-5bd9edeeaa5a --reason test[/]
    """
    which, subscription = letters.check(event), letters.subscription
    reason = audit.reason or ""
    if not reason.strip():
        raise typer.BadParameter("--reason is missing: say why, for whoever finds them later")
    if event is None:
        act = partial(recovery.discard, schema=target.schema, by=audit.who, reason=reason)
        asyncio.run(bulk(target, which, "discard", act, dry_run=dry_run, yes=yes))
        return
    dead = [each.subscription for each in _letters_of(target, event, subscription) if each.status == "failed"]
    if not dead:
        raise ReplayRefused(f"nothing was discarded: {event} is not a dead letter")
    discarded = 0
    if not dry_run:
        confirm(f"Discard {event} at {', '.join(dead)}?", "nothing was discarded", yes=yes)
        discarded = target.run(
            lambda conn: recovery.discard_one(conn, event, subscription, target.schema, by=audit.who, reason=reason),
            every_tenant=True,
        )
    if target.as_json:
        print_json(event_id=event, dry_run=dry_run, subscriptions=dead, discarded=discarded)
    elif dry_run:
        tell(f"would be discarded at {', '.join(dead)}; nothing was changed (dry run)")
    else:
        typer.echo(f"{discarded} discarded")


def _show_outcomes(event: UUID, outcomes: list[Replayed], *, as_json: bool) -> None:
    if as_json:
        print_json(event_id=event, outcomes=[asdict(each) for each in outcomes])
    else:
        for each in outcomes:
            tell(f"{each.subscription or event}: {OUTCOME[each.outcome]}")
    if any(each.outcome == "not_found" for each in outcomes):
        raise typer.Exit(1)


def _show_plan(event: UUID, found: list[WholeLetter], *, force: bool, as_json: bool) -> None:
    """What a replay of one event would do, as far as can be seen now."""
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


def _letters_of(target: Target, event: UUID, subscription: str | None) -> list[WholeLetter]:
    async def look_up(conn: AsyncSession) -> list[WholeLetter]:
        await refuse_unknown(conn, target, Filter(subscription=subscription))
        return await dead_letters.letter(conn, event, subscription, target.schema)

    return target.run(look_up, every_tenant=True)


def _fields(each: WholeLetter) -> dict[str, Any]:
    payload, edited = (json.loads(text) if text else None for text in (each.payload, each.edited))
    return asdict(each) | {"payload": payload, "edited": edited}
