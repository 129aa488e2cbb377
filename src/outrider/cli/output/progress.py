"""The progress of a bulk action."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


@contextmanager
def progress(verb: str, total: int, *, quiet: bool) -> Iterator[Callable[[int], None]]:
    """Shows a bar on a terminal; elsewhere a line for each tenth. Call it with how many are done."""
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
        yield lambda done: bar.update(task, completed=done)


def _tenths(total: int) -> Callable[[int], None]:
    said = 0

    def tell(done: int) -> None:
        nonlocal said
        if (tenth := done * 10 // max(total, 1)) > said:
            said = tenth
            typer.echo(f"{done:,} of {total:,}")

    return tell
