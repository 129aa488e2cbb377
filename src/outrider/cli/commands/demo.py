"""`outrider demo`: the shop of outrider.demo, live."""

from __future__ import annotations

from typing import Annotated

import typer

from outrider.cli.options import Commands

commands = Commands()


@commands.command()
def demo(
    seconds: Annotated[
        float | None,
        typer.Option("--seconds", metavar="N", min=0.1, help="How long. Default: until Ctrl-C, or 10 s when piped."),
    ] = None,
) -> None:
    """Watch a small shop handle events while things fail.

    Customers place, change and cancel orders, some in bulk, some in long
    transactions. Two worker processes write an invoice for each order. Some cards
    are declined at first, stolen ones always. Workers are killed, and the
    connections on which they listen are cut. A document of 40 pieces is imported
    and becomes one event (a rollup). A live table counts: nothing may be lost,
    doubled or out of order. Exits with 0 if that held, else with 1.
    At a terminal it also prints the address of its dashboard.

    Needs: [bold]pip install 'outrider\\[embedded]'[/].
    Runs on the embedded Postgres in .outrider/pg, in a database of its own,
    and says how to look into it with psql.

    Example: [bold]outrider demo --seconds 30[/]
    """
    from outrider.demo.main import run  # its events are nobody else's: other commands must not declare them

    if not run(seconds):
        raise typer.Exit(1)
