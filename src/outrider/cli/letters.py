"""How dead letters look on a terminal. What they say comes from anywhere: nothing of it is markup, nothing hidden acts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from outrider.cli.words import one_line, safe, say
from outrider.postgres.deadletters import Group, Letter, WholeLetter
from outrider.postgres.recovery import Done

SHORT = 300
ID = 36
STATUS = {"failed": "dead letter", "discarded": "discarded", "pending": "no dead letter: it waits for its retry"}


def show_groups(found: Sequence[Group]) -> None:
    sample = ID + len("sample ")
    table = Table(show_lines=True)
    table.add_column("letters", justify="right", no_wrap=True)
    table.add_column("subscription\nevent type", overflow="fold", max_width=_room(sample + 19))
    table.add_column("what went wrong", overflow="fold", min_width=sample)
    for each in found:
        table.add_row(
            f"{each.letters:,}",
            _lines(each.subscription, each.event_type),
            _lines(
                _short(each.message),
                f"code {each.code}",
                f"fingerprint {each.fingerprint}",
                f"buried {_time(each.oldest)}",
                each.oldest != each.newest and f"    to {_time(each.newest)}",
                f"sample {each.sample}",
            ),
        )
    Console().print(table)
    letters = sum(each.letters for each in found)
    typer.echo(f"{letters:,} dead letter{'s' * (letters != 1)} in {len(found)} group{'s' * (len(found) != 1)}")


def show_each(found: Sequence[Letter], total: int) -> None:
    table = Table(show_lines=True)
    table.add_column("event", no_wrap=True)
    table.add_column("subscription\nevent type", overflow="fold", max_width=_room(ID + 26))
    table.add_column("error", overflow="fold")
    for each in found:
        table.add_row(
            _lines(
                str(each.event_id), f"buried {_time(each.buried_at)}", f"attempts {each.attempts}, cycle {each.cycle}"
            ),
            _lines(
                each.subscription,
                each.event_type,
                each.key is not None and f"key {_short(each.key)}",
                each.workspace_id is not None and f"workspace {_short(each.workspace_id)}",
            ),
            _lines(f"{each.code}", _short(each.message)),
        )
    Console().print(table)
    typer.echo(
        f"{total:,} dead letter{'s' * (total != 1)}" + f", the first {len(found):,} shown" * (len(found) < total)
    )


def show_whole(each: WholeLetter) -> None:
    """Everything: what it is, what went wrong and when, its payload and what was made of it."""
    for name, said in _facts(each).items():
        if said is not None:
            say(f"{name:<13} {one_line(said)}")
    if each.message:
        say(safe(each.message), indent=2)
    say("\nhistory")
    for entry in each.failure_history:
        say(one_line(_entry(entry)), indent=2)
    if each.edited is None:
        say("\npayload")
        say(safe(each.payload), indent=2)
        return
    table = Table()
    for title in ("payload in the log", "edited: what its handler gets"):
        table.add_column(title, overflow="fold")
    table.add_row(_lines(each.payload), _lines(each.edited))
    say("")
    Console().print(table)


@contextmanager
def progress(verb: str, total: int, *, quiet: bool) -> Iterator[Callable[[Done], None]]:
    """A bar on a terminal; elsewhere a line for each tenth."""
    console = Console()
    if quiet:
        yield lambda _: None
        return
    if not console.is_terminal:
        yield _tenths(total)
        return
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn()
    )  # fmt: skip
    with Progress(*columns, console=console) as bar:
        task = bar.add_task(verb, total=total)
        yield lambda done: bar.update(task, completed=done.letters)


def _tenths(total: int) -> Callable[[Done], None]:
    said = 0

    def tell(done: Done) -> None:
        nonlocal said
        if (tenth := done.letters * 10 // max(total, 1)) > said:
            said = tenth
            typer.echo(f"{done.letters:,} of {total:,}")

    return tell


def _facts(each: WholeLetter) -> dict[str, str | None]:
    return {
        "event": f"{each.event_id}, {each.event_type} version {each.event_version}",
        "published": f"{_time(each.occurred_at)} by {each.source}, number {each.seq}",
        "key": each.key,
        "workspace": each.workspace_id,
        "idempotency": None if each.idempotency_key == str(each.event_id) else each.idempotency_key,
        "subscription": each.subscription,
        "status": f"{STATUS.get(each.status, each.status)}, generation {each.generation}",
        "handled": f"{_time(each.handled_at)}: a replay would be skipped" if each.handled_at else None,
        "first failed": _time(each.first_failed_at) if each.first_failed_at else None,
        "buried": _time(each.buried_at) if each.buried_at else None,
        "attempts": f"{each.attempts} in cycle {each.cycle}",
        "error": each.code and f"{each.code}, fingerprint {each.fingerprint}",
    }


def _entry(entry: dict[str, Any]) -> str:
    """One attempt, or what an operator did."""
    cycle = f"cycle {entry.get('cycle')}"
    for mark, verb in (("replayed_at", "replayed"), ("discarded_at", "discarded")):
        if mark in entry:
            how = [word for word in ("forced", "edited") if entry.get(word)]
            how += [f"to generation {entry['generation']}"] if "generation" in entry else []
            said = f"{cycle}  {verb} {_time(entry[mark])} by {entry.get('by')}" + f" ({', '.join(how)})" * bool(how)
            return said + (f": {entry['reason']}" if entry.get("reason") else "")
    worker = f"  ({entry['worker']})" if entry.get("worker") else ""
    said = f"{cycle}  attempt {entry.get('attempt')}  {_time(entry.get('at'))}  {entry.get('code')}"
    return f"{said}: {entry.get('message')}{worker}"


def _room(others: int) -> int:
    """What is left for names beside columns that must not be broken."""
    return max(16, Console().width - others)


def _lines(*lines: object) -> Text:
    return Text(safe("\n".join(str(line) for line in lines if line)))


def _short(text: str | None) -> str:
    """One line of it."""
    line = " ".join((text or "").split())
    return line if len(line) <= SHORT else f"{line[:SHORT]}…"


def _time(at: object) -> str:
    """Here, whatever the server's zone. History is JSON: its times are texts."""
    try:
        moment = datetime.fromisoformat(at) if isinstance(at, str) else at
    except ValueError:
        moment = at
    return moment.astimezone().isoformat(" ", "seconds") if isinstance(moment, datetime) else str(moment)
