"""Many dead letters at once: count, ask, do. What was counted is what is done, whatever fails meanwhile."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import Awaitable
from dataclasses import asdict
from typing import Any, Protocol

import typer

from outrider.cli.output import dead_letters as dead_letters_output
from outrider.cli.output.text import one_line
from outrider.cli.shutdown import leave, obeying
from outrider.cli.target import Place
from outrider.errors import ReplayRefused
from outrider.postgres.admin import dead_letters, recovery, subscriptions
from outrider.postgres.admin.dead_letters import Count, Filter, Group
from outrider.postgres.admin.recovery import Done, Progress
from outrider.postgres.connection import AsyncSession

STOPPED = 130


class Run(Protocol):
    def __call__(
        self, conn: AsyncSession, which: Filter, /, *, on_progress: Progress, stop: asyncio.Event
    ) -> Awaitable[Done]: ...


async def bulk(place: Place, which: Filter, verb: str, run: Run, *, dry_run: bool, yes: bool, as_json: bool) -> None:
    nothing = f"nothing was {verb}ed"
    async with place.connect() as conn:
        await refuse_unknown(conn, place, which)
        which = await recovery.until_now(conn, which, place.schema)
        count = await dead_letters.count(conn, which, place.schema)
        if dry_run:
            found = await dead_letters.groups(conn, which, place.schema)
            _foretell_many(verb, count, found, as_json=as_json)
            return
        if not count.letters and not as_json:
            typer.echo(f"no dead letters fit: {nothing}")
            return
        if count.letters:
            confirm(f"{verb.capitalize()} {_count(verb, count)}?", nothing, yes=yes)
        stop = asyncio.Event()
        logging.getLogger("psycopg.pool").setLevel(logging.ERROR)  # that the session was lost, we say ourselves
        with dead_letters_output.progress(verb, count.letters, quiet=as_json) as tell, obeying(stop.set, leave):
            done = await run(conn, which, on_progress=tell, stop=stop)
    _tell_many(verb, done, as_json=as_json)


def _tell_many(verb: str, done: Done, *, as_json: bool) -> None:
    counts = {"replayed": done.replayed, "skipped because handled": done.skipped_handled}
    if done.superseded:
        counts["skipped because another job with the unique key is pending"] = done.superseded
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


def _foretell_many(verb: str, count: Count, found: list[Group], *, as_json: bool) -> None:
    if as_json:
        groups = [asdict(each) for each in found]
        print_json(dry_run=True, letters=count.letters, handled=count.handled, groups=groups)
        return
    if found:
        dead_letters_output.show_groups(found)
    typer.echo(f"would {verb} {_count(verb, count)}; nothing was changed (dry run)")


def _count(verb: str, count: Count) -> str:
    skipped = f", of which {count.handled:,} would be skipped because handled" * bool(count.handled)
    return f"{count.letters:,} dead letter{'s' * (count.letters != 1)}" + skipped * (verb == "replay")


def confirm(question: str, otherwise: str, *, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise ReplayRefused(
            f"{otherwise}: there is no terminal to ask at; if it is meant, add --yes ({one_line(question)})"
        )
    if not typer.confirm(one_line(question), err=True):
        raise ReplayRefused(otherwise)


async def refuse_unknown(conn: AsyncSession, place: Place, which: Filter) -> None:
    """A misspelt name must not look like a clean slate."""
    if which.subscription is not None:
        await subscriptions.find(conn, which.subscription, place.schema)


def print_json(**answer: Any) -> None:
    typer.echo(json.dumps(answer, default=str, indent=2))
