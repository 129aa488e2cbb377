"""`outrider status`: whether everything is well, and if not, where."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from outrider.cli.options import Commands
from outrider.cli.output.status import fields, view
from outrider.cli.output.text import print_json
from outrider.cli.output.watch import JsonScreen, Screen, watch
from outrider.cli.target import Target
from outrider.postgres.admin.status import status as look

commands = Commands()


@commands.command()
def status(
    target: Target,
    watching: Annotated[bool, typer.Option("--watch", help="Repeat, with rates, until Ctrl-C.")] = False,
    every: Annotated[
        float, typer.Option("--every", metavar="SECONDS", min=0.1, help="With --watch: seconds between two looks.")
    ] = 2.0,
) -> None:
    """Show every subscription, stream, rollup and worker.

    A subscription: its state (running, paused, breaker open, orphaned, nobody serves
    it); its lag in log positions; the age of the oldest event that it has not
    handled; how many events wait for a retry; how many are dead letters; how far each
    generation has read, and its workers. A job: what is pending, running and dead.
    A stream of a relay or an inbox: its position, its events, when it last moved, and
    entries that could not be read. A rollup: who runs it, when it last ran, what
    waits, and what was set aside (outrider rollup status says why).

    Counts end at 10,000. For ages a thousand log positions are searched: "?" means
    that there may be an older event behind those.

    With --watch also rates per second: log positions used, log positions read by each
    generation, events of each stream. On a terminal the display is updated in place;
    else each look prints one block, or one line with --json. It survives an outage
    of the database, and exits with 0 on Ctrl-C.

    Needs: a role that may read the schema. Changes nothing.

    Examples:

      [bold]outrider status --app shop:app[/]
      [bold]outrider status --app shop:app --watch[/]
    """
    if watching:
        with suppress(KeyboardInterrupt):
            screen = (
                JsonScreen(partial(fields, target=target)) if target.as_json else Screen(partial(view, target=target))
            )
            asyncio.run(watch(target, every, screen))
        return
    found = target.run(lambda conn: look(conn, target.schema), migrated=False, every_tenant=True)
    if target.as_json:
        print_json(**fields(found, target))
        return
    for each in view(found, target=target):
        Console().print(each, soft_wrap=isinstance(each, Text))
