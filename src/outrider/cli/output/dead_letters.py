"""How dead letters look on a terminal. Their texts come from anywhere, so nothing in them is markup or an escape."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import typer
from rich.console import Console
from rich.table import Table

from outrider.cli.output.text import UNREADABLE, counted, lines, moment, one_line, safe, say, short
from outrider.postgres.admin.dead_letters import Group, Letter, WholeLetter

ID = 36
STATUS = {"failed": "dead letter", "discarded": "discarded", "pending": "no dead letter: it waits for a retry"}


def show_groups(found: Sequence[Group]) -> None:
    sample = ID + len("sample ")
    table = Table(show_lines=True)
    table.add_column("letters", justify="right", no_wrap=True)
    table.add_column("subscription\nevent type", overflow="fold", max_width=_room(sample + 19))
    table.add_column("what went wrong", overflow="fold", min_width=sample)
    for each in found:
        table.add_row(
            f"{each.letters:,}",
            lines(each.subscription, each.event_type),
            lines(
                short(each.message),
                f"code {each.code}",
                f"fingerprint {each.fingerprint}",
                f"dead since {moment(each.oldest)}",
                each.oldest != each.newest and f"        to {moment(each.newest)}",
                f"sample {each.sample}",
            ),
        )
    Console().print(table)
    letters = sum(each.letters for each in found)
    typer.echo(f"{counted(letters, 'dead letter')} in {counted(len(found), 'group')}")


def show_each(found: Sequence[Letter], total: int) -> None:
    table = Table(show_lines=True)
    table.add_column("event", no_wrap=True)
    table.add_column("subscription\nevent type", overflow="fold", max_width=_room(ID + 26))
    table.add_column("error", overflow="fold")
    for each in found:
        table.add_row(
            lines(
                str(each.event_id),
                f"dead since {moment(each.buried_at)}",
                f"attempts {each.attempts}, cycle {each.cycle}",
            ),
            lines(
                each.subscription,
                each.event_type,
                each.key is not None and f"key {short(each.key)}",
                each.workspace_id is not None and f"workspace {short(each.workspace_id)}",
            ),
            lines(f"{each.code}", short(each.message)),
        )
    Console().print(table)
    typer.echo(counted(total, "dead letter") + f", the first {len(found):,} shown" * (len(found) < total))


def show_whole(each: WholeLetter) -> None:
    """Prints what it is, what went wrong and when, its payload, and what an operator made of it."""
    for name, said in _facts(each).items():
        if said is not None:
            say(f"{name:<13} {one_line(said)}")
    if each.message:
        say(safe(each.message), indent=2)
    if each.traceback:
        say("\ntraceback, innermost call last")
        say(safe(each.traceback).rstrip("\n"))
    say("\nhistory")
    for entry in each.failure_history:
        say(one_line(told(entry)), indent=2)
    if each.edited is None:
        say("\npayload")
        say(safe(each.payload) or UNREADABLE, indent=2)
    else:
        table = Table()
        for title in ("payload in the log", "edited, for the handler"):
            table.add_column(title, overflow="fold")
        table.add_row(lines(each.payload or UNREADABLE), lines(each.edited or UNREADABLE))
        say("")
        Console().print(table)
    say("\nnext")
    for command, effect in _next(each):
        say(f"{command}  # {effect}", indent=2)


def _next(each: WholeLetter) -> Iterator[tuple[str, str]]:
    """Commands to paste: the name of a subscription has no characters that are special in a shell."""
    replay = f"outrider dlq replay {each.event_id} --subscription {each.subscription}"
    match each.status:
        case "failed" if each.handled_at:
            yield f"{replay} --force", "its idempotency key was handled: handle it once more"
        case "failed":
            yield replay, "handle it again, when the cause is mended"
            yield f"{replay} --edit", "with another payload"
        case "discarded":
            yield f"{replay} --force", "handle it anyway"
        case _ if each.seq:
            yield f"outrider event show {each.event_id}", "what it waits for, and what became of it elsewhere"
        case _:
            yield f"outrider job show {each.event_id}", "what it waits for"
    if each.status == "failed":
        discard = f"outrider dlq discard {each.event_id} --subscription {each.subscription}"
        yield f"{discard} --reason TEXT", "give it up"


def _facts(each: WholeLetter) -> dict[str, object]:
    """A job that is no event has no log position."""
    return {
        "event" if each.seq else "job": f"{each.event_id}, {each.event_type} version {each.event_version}",
        "published": each.seq and f"{moment(each.occurred_at)} by {each.source}, log position {each.seq}",
        "enqueued": None if each.seq else f"{moment(each.occurred_at)} by {each.source}",
        "key": each.key,
        "workspace": each.workspace_id,
        "idempotency": None if each.idempotency_key == str(each.event_id) else each.idempotency_key,
        "subscription": each.subscription,
        "status": f"{STATUS.get(each.status, each.status)}, generation {each.generation}",
        "handled": f"{moment(each.handled_at)}: a replay would be skipped" if each.handled_at else None,
        "first failed": moment(each.first_failed_at) if each.first_failed_at else None,
        "dead since": moment(each.buried_at) if each.buried_at else None,
        "attempts": f"{each.attempts} in cycle {each.cycle}",
        "error": each.code and f"{each.code}, fingerprint {each.fingerprint}",
    }


def told(entry: dict[str, Any]) -> str:
    """One attempt, or what an operator did."""
    cycle = f"cycle {entry.get('cycle')}"
    for verb in ("replayed", "discarded", "cancelled", "superseded"):
        if (mark := f"{verb}_at") in entry:
            how = [word for word in ("forced", "edited") if entry.get(word)]
            how += [f"to generation {entry['generation']}"] if "generation" in entry else []
            by = f" by {entry['by']}" if "by" in entry else ""
            said = f"{cycle}  {verb} {moment(entry[mark])}{by}" + f" ({', '.join(how)})" * bool(how)
            return said + (f": {entry['reason']}" if entry.get("reason") else "")
    worker = f"  ({entry['worker']})" if entry.get("worker") else ""
    said = f"{cycle}  attempt {entry.get('attempt')}  {moment(entry.get('at'))}  {entry.get('code')}"
    return f"{said}: {entry.get('message')}{worker}"


def _room(others: int) -> int:
    """The width left for names beside columns that must not be broken."""
    return max(16, Console().width - others)
