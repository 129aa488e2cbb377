"""`outrider demo`: the shop of outrider.demo, live."""

from __future__ import annotations

from typing import Annotated

import typer

from outrider.demo.run import run


def demo(
    seconds: Annotated[
        float | None,
        typer.Option("--seconds", min=0.1, help="How long. Else until Ctrl-C, or ten seconds when piped."),
    ] = None,
) -> None:
    """Watch a small shop publish and read events, with every kind of trouble.

    Customers order, change their minds, order in bulk, keep transactions open.
    Clerks read the events back through an exact cursor, and sometimes roll back.
    A live table counts: nothing may be lost, doubled or out of order.
    Exits with 0 if that held, else with 1.

    Needs: [bold]pip install 'outrider\\[embedded]'[/].
    Runs on the embedded Postgres in .outrider/pg, in a database of its own,
    and says how to look into it with psql.

    Example: [bold]outrider demo --seconds 30[/]
    """
    if not run(seconds):
        raise typer.Exit(1)
