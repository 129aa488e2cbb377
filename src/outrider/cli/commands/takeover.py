"""`outrider takeover`: an existing outbox or job table hands its rows over to Outrider."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from outrider.cli.options import AuditOptions, Commands
from outrider.cli.output.text import counted, make_table, one_line, print_json, safe
from outrider.cli.target import Target
from outrider.errors import ConfigError
from outrider.postgres.admin.takeover import TakeoverRun, TakeoverState
from outrider.postgres.admin.takeover_sql import TakeoverSql
from outrider.takeover import Takeover

commands = Commands(no_args_is_help=True)

Wait = Annotated[
    float,
    typer.Option("--wait", metavar="SECONDS", min=0, help="How long to wait for transactions that hold the table."),
]
Table = Annotated[str, typer.Argument(metavar="TABLE", help="As in app.takeover(), like public.orders_outbox.")]


@commands.command()
def plan(target: Target, table: Table) -> None:
    """Show what is owed, and the SQL of the trigger.

    Needs: a role that may read the table. Changes nothing.

    Example: [bold]outrider takeover plan public.orders_outbox --app shop:app[/]
    """
    declared = _declared(target, table)
    state = target.run(lambda conn: TakeoverRun(conn, declared, target.schema).state())
    script = ";\n\n".join(each.as_string() for each in TakeoverSql(declared, target.schema).installation()) + ";"
    if target.as_json:
        print_json(**asdict(state), sql=script)
        return
    _show(state)
    typer.echo(f"\nstart would run:\n\n{safe(script)}")


@commands.command()
def start(target: Target, audit: AuditOptions, table: Table, wait: Wait = 60) -> None:
    """Install a trigger that tries new rows out; the old dispatcher keeps them.

    Each new row is published or enqueued and rolled back at once. A row that cannot
    become an event or a job is listed by status, and its insert does not fail.
    Run it again when the app declares the takeover differently.

    Needs: the owner of the table, with the rights of a producer and an operator.

    Example: [bold]outrider takeover start public.orders_outbox --app shop:app[/]
    """
    declared = _declared(target, table)
    target.run(lambda conn: TakeoverRun(conn, declared, target.schema).start(audit.signed, wait))
    if target.as_json:
        print_json(table=table, phase="rehearsal")
        return
    typer.echo(f"{table}: new rows are tried out; look at them with outrider takeover status {table}")
    typer.echo(f"When no row is refused: stop the old dispatcher, then outrider takeover cutover {table}")


@commands.command()
def status(target: Target, table: Table) -> None:
    """Show what is owed, refused, taken over and handled.

    Needs: a role that may read the table and the schema. Changes nothing.

    Example: [bold]outrider takeover status public.orders_outbox --app shop:app[/]
    """
    declared = _declared(target, table)
    state = target.run(lambda conn: TakeoverRun(conn, declared, target.schema).state())
    print_json(**asdict(state)) if target.as_json else _show(state)


@commands.command()
def cutover(
    target: Target,
    audit: AuditOptions,
    table: Table,
    wait: Wait = 60,
) -> None:
    """Bring the rows that are owed, then take every new row.

    Stop the old dispatcher first. A row and its event change hands in one
    transaction, in the order of the rows. At the end the table is locked for a
    moment, after open transactions that have written to it have ended. Safe to
    interrupt and to run again.

    Needs: the owner of the table, with the rights of a producer and an operator.

    Example: [bold]outrider takeover cutover public.orders_outbox --app shop:app[/]
    """
    declared = _declared(target, table)

    async def cut() -> int:
        brought = 0
        bar = Progress(
            SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), console=Console(stderr=True)
        )
        async with target.connect() as conn:
            with bar:
                task = bar.add_task("bringing rows")
                async for brought in TakeoverRun(conn, declared, target.schema).cut_over(audit.signed, wait):
                    bar.update(task, description=f"{brought:,} rows brought")
        return brought

    brought = asyncio.run(cut())
    if target.as_json:
        print_json(table=table, phase="taken", brought=brought)
        return
    typer.echo(f"{table}: {counted(brought, 'row')} brought; new rows are taken over as they are inserted")


@commands.command()
def finish(
    target: Target,
    audit: AuditOptions,
    table: Table,
    wait: Wait = 60,
    force: Annotated[bool, typer.Option("--force", help="Even if producers still insert into the table.")] = False,
) -> None:
    """Remove the trigger, and print the reconciliation.

    Refused while rows are owed, and while producers still insert into the table.
    Run again, it only prints the reconciliation.

    Needs: the owner of the table, with the rights of a producer and an operator.

    Example: [bold]outrider takeover finish public.orders_outbox --app shop:app[/]
    """
    declared = _declared(target, table)
    state = target.run(lambda conn: TakeoverRun(conn, declared, target.schema).finish(audit.signed, wait, force=force))
    if target.as_json:
        print_json(**asdict(state))
        return
    _show(state)
    differences = "none" if not (state.owed or state.doubled or state.refused) else "see above"
    typer.echo(f"{table}: finished, the trigger is gone. Differences: {differences}")


@commands.command()
def abort(target: Target, audit: AuditOptions, table: Table, wait: Wait = 60) -> None:
    """Give new rows back to the old dispatcher.

    Rows that became events or jobs stay with Outrider.

    Needs: the owner of the table, with the rights of a producer and an operator.

    Example: [bold]outrider takeover abort public.orders_outbox --app shop:app[/]
    """
    declared = _declared(target, table)
    state = target.run(lambda conn: TakeoverRun(conn, declared, target.schema).abort(audit.signed, wait))
    if target.as_json:
        print_json(table=table, phase=None)
        return
    typer.echo(
        f"{table}: the old dispatcher has new rows again; {counted(state.brought, 'row')} brought before stay here"
    )


def _declared(target: Target, table: str) -> Takeover:
    app = target.need_app()
    for each in app.takeovers:
        if each.name == table:
            return each
    known = ", ".join(each.name for each in app.takeovers) or "none"
    raise ConfigError(
        f"the app declares no takeover of {table!r}; it declares: {known}. Add app.takeover({table!r}, …)"
    )


def _show(state: TakeoverState) -> None:
    phases = {
        None: "not started",
        "rehearsal": "rehearsal: the old dispatcher has new rows",
        "taken": "taken over",
        "finished": "finished",
    }
    table = make_table("", "", title=state.name)
    table.show_header = False
    rows = [
        ("phase", phases.get(state.phase, state.phase or "")),
        ("rows owed", f"{state.owed:,}"),
        ("of them leased by the old workers", f"{state.leased:,}"),
        ("rows refused", f"{len(state.refused):,}"),
        ("rows brought by the cut-over", f"{state.brought:,}"),
        ("events or jobs made of rows", f"{state.made:,}"),
        ("of rows inserted in the last 10 minutes", f"{state.recent:,}"),
        ("doubled", f"{state.doubled:,}"),
    ]
    for subscription, states in state.states.items():
        rows.append(
            (f"at {one_line(subscription)}", ", ".join(f"{number:,} {each}" for each, number in states.items()))
        )
    for row in rows:
        table.add_row(*map(Text, row))
    Console().print(table)
    for row_id, error in state.refused[:10]:
        typer.echo(f"refused: row {one_line(row_id)}: {one_line(error)}", err=True)
