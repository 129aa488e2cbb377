"""Replays or discards many dead letters: count, ask, act. Letters that come after the count are left alone."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from dataclasses import asdict
from typing import Protocol

import typer

from outrider.cli.options import confirm
from outrider.cli.output import dead_letters as dead_letters_output
from outrider.cli.output.progress import progress
from outrider.cli.output.text import counted, print_json
from outrider.cli.shutdown import leave, obeying
from outrider.cli.target import Target
from outrider.postgres.admin import dead_letters, recovery, subscriptions
from outrider.postgres.admin.dead_letters import Count, Filter, Group
from outrider.postgres.admin.recovery import Done, Progress
from outrider.postgres.connection import AsyncSession

STOPPED = 130


class BulkAction(Protocol):
    def __call__(
        self, conn: AsyncSession, which: Filter, /, *, on_progress: Progress, stop: asyncio.Event
    ) -> Awaitable[Done]: ...


async def bulk(target: Target, which: Filter, verb: str, act: BulkAction, *, dry_run: bool, yes: bool) -> None:
    nothing = f"nothing was {verb}ed"
    async with target.connect() as conn:
        await refuse_unknown(conn, target, which)
        which = await recovery.until_now(conn, which, target.schema)
        count = await dead_letters.count(conn, which, target.schema)
        if dry_run:
            found = await dead_letters.groups(conn, which, target.schema)
            _show_plan(verb, count, found, as_json=target.as_json)
            return
        if not count.letters and not target.as_json:
            typer.echo(f"no dead letters match: {nothing}")
            return
        if count.letters:
            confirm(f"{verb.capitalize()} {_count(verb, count)}?", nothing, yes=yes)
        stop = asyncio.Event()
        logging.getLogger("psycopg.pool").setLevel(logging.ERROR)  # we report a lost session ourselves
        with progress(verb, count.letters, quiet=target.as_json) as tell, obeying(stop.set, leave):
            done = await act(conn, which, on_progress=lambda so_far: tell(so_far.letters), stop=stop)
    _show_result(verb, done, as_json=target.as_json)


def _show_result(verb: str, done: Done, *, as_json: bool) -> None:
    counts = {"replayed": done.replayed, "skipped because handled": done.skipped_handled}
    if done.superseded:
        counts["skipped because another job has the unique key"] = done.superseded
    if verb == "discard":
        counts = {"discarded": done.discarded}
    if as_json:
        print_json(**asdict(done))
    else:
        typer.echo(", ".join(f"{number:,} {name}" for name, number in (counts | {"not found": done.not_found}).items()))
    if done.stopped:
        if not as_json:
            typer.echo("stopped: run it again for the rest")
        raise typer.Exit(STOPPED)


def _show_plan(verb: str, count: Count, found: list[Group], *, as_json: bool) -> None:
    if as_json:
        groups = [asdict(each) for each in found]
        print_json(dry_run=True, letters=count.letters, handled=count.handled, groups=groups)
        return
    if found:
        dead_letters_output.show_groups(found)
    typer.echo(f"would {verb} {_count(verb, count)}; nothing was changed (dry run)")


def _count(verb: str, count: Count) -> str:
    skipped = f", of which {count.handled:,} would be skipped because handled" * bool(count.handled)
    return counted(count.letters, "dead letter") + skipped * (verb == "replay")


async def refuse_unknown(conn: AsyncSession, target: Target, which: Filter) -> None:
    """A misspelt name must not look like an empty list."""
    if which.subscription is not None:
        await subscriptions.find(conn, which.subscription, target.schema)
