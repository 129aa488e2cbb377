"""`outrider dev`: a Postgres for this project, kept running during development."""

from __future__ import annotations

import asyncio
import shlex
import signal

import typer

from outrider.app import EMBEDDED_DATABASE
from outrider.cli.options import Commands
from outrider.config import Settings
from outrider.postgres.connection import connect
from outrider.postgres.embedded import Embedded
from outrider.postgres.schema.migrate import migrate

ENDING = {signal.SIGINT, signal.SIGTERM}

commands = Commands()


@commands.command()
def dev() -> None:
    """Run a Postgres for this project until Ctrl-C.

    Starts the embedded server in .outrider/pg of the current folder,
    creates and migrates its database, and prints how to connect.
    Apps with embedded=True in the same folder share it. The data stays.

    Needs: [bold]pip install 'outrider\\[embedded]'[/]; no installed Postgres, no root.

    Example: [bold]outrider dev[/]

    Then run the [bold]export OUTRIDER_DSN=...[/] that it prints in another terminal.
    """
    schema = Settings.load(embedded=True).schema
    with Embedded() as server:
        server.ensure_database(EMBEDDED_DATABASE)
        dsn = server.dsn(EMBEDDED_DATABASE)
        asyncio.run(_migrate(dsn, schema))
        typer.echo(server.describe(EMBEDDED_DATABASE))
        typer.echo(f'\nThe database "{EMBEDDED_DATABASE}" is migrated (schema "{schema}"). To use it:\n')
        typer.echo(f"  export OUTRIDER_DSN={shlex.quote(dsn)}\n")
        signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
        typer.echo("Running until Ctrl-C.")
        signal.sigwait(ENDING)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
        typer.echo("Stopping.")


async def _migrate(dsn: str, schema: str) -> None:
    async with await connect(dsn, autocommit=True) as conn:
        await migrate(conn, schema)
