"""`outrider worker`: run an app's handlers, jobs, relays and inboxes until told to stop, in one process or in several."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from typing import Annotated

import typer

from outrider import names
from outrider.app import Outrider
from outrider.cli.logs import arrange
from outrider.cli.options import Commands
from outrider.cli.reload import own_traceback
from outrider.cli.serve import CHILD_DSN, ServeOptions, Service, run_here, supervise
from outrider.cli.shutdown import end_with
from outrider.cli.target import Location
from outrider.errors import ConfigError
from outrider.redaction import mask
from outrider.worker.site import SLOTS

commands = Commands()


@commands.command()
def worker(
    location: Location,
    options: ServeOptions,
    named: Annotated[
        str | None, typer.Argument(metavar="[MODULE:NAME]", help="The app, like shop:app; the same as --app.")
    ] = None,
    processes: Annotated[int, typer.Option("--processes", metavar="N", min=1, help="How many worker processes.")] = 1,
    handlers: Annotated[
        list[str] | None,
        typer.Option(
            "--handlers",
            metavar="NAME",
            help="Only these handlers, jobs, relays, inboxes and rollups: a name or a pattern. Repeatable.",
        ),
    ] = None,
    exclude: Annotated[
        list[str] | None, typer.Option("--exclude", metavar="NAME", help="Not these: a name or a pattern. Repeatable.")
    ] = None,
    classes: Annotated[
        list[str] | None,
        typer.Option(
            "--class", metavar="NAME", help="Also wake up for events published with this channel_class. Repeatable."
        ),
    ] = None,
    only_class: Annotated[
        bool,
        typer.Option(
            "--only-class",
            help="Only the handlers of these channel classes; without --class, all that is of no class.",
        ),
    ] = False,
    slots: Annotated[
        int, typer.Option("--slots", metavar="N", min=1, help="How many jobs a process runs at the same time.")
    ] = SLOTS,
    queues: Annotated[
        list[str] | None, typer.Option("--queue", metavar="NAME", help="Only jobs of this queue. Repeatable.")
    ] = None,
    parent: Annotated[int | None, typer.Option("--parent", hidden=True)] = None,
    dev: Annotated[str | None, typer.Option("--dev", hidden=True)] = None,
) -> None:
    """Run an app's handlers, jobs, relays, inboxes and rollups.

    Runs until SIGTERM or Ctrl-C. After the first signal the worker takes no more events
    and jobs, and what runs may finish within the grace time; the log says what it waits
    for. The second signal cancels what still runs and ends the process within 3 s. The
    third ends it at once. Nothing is lost, and no attempt is counted: Postgres rolls
    back unfinished handlers, and their events come again; jobs are released. Exits with
    0, with 1 if the grace time was not enough, or with 128 + the number of the second
    signal.

    Any number of workers may run, on any number of machines. Of each relay and
    each inbox one is active at a time; the others stand by.
    With --processes N, one parent keeps N processes running.

    Needs: a migrated schema ([bold]outrider migrate[/]) and an app that declares something to run.

    Examples:

      [bold]outrider worker --app shop:app[/]
      [bold]outrider worker --app shop:app --processes 4 --health-port 8080[/]
      [bold]outrider worker --app shop:app --handlers 'billing.*' --grace 2m[/]
      [bold]outrider worker --app shop:app --slots 50 --queue mail --queue default[/]
      [bold]outrider worker --app shop:app --class llm --only-class[/]
    """
    if named is not None:
        location = replace(location, app_name=named)
    if parent is not None:
        end_with(parent)
        location = replace(location, dsn=os.environ.pop(CHILD_DSN, None))
    service = Service(location, options, handlers or (), exclude or (), classes or (), slots, queues or (), only_class)
    app = _checked_app(service, processes) if dev is None else _developed_app(service, dev)
    arrange(options.log_level, options.log_json)
    if processes > 1:
        asyncio.run(supervise(service, processes))
    else:
        run_here(app, service, parent)


def _developed_app(service: Service, schema: str) -> Outrider:
    """For `outrider dev`, which has migrated that schema. Shows why the app cannot be imported."""
    try:
        app = _checked_app(service, 1)
    except ConfigError as error:
        if error.__cause__ is not None:
            typer.echo(mask(own_traceback(error.__cause__)), err=True)
            raise typer.Exit(1) from error
        raise
    if app.settings.schema != schema:
        raise ConfigError(
            f"the app's schema is {app.settings.schema}: start again with outrider dev --schema {app.settings.schema}"
        )
    app.relocate(replace(app.settings, listen_dsn=None))  # it belongs to the database of OUTRIDER_DSN
    return app


def _checked_app(service: Service, processes: int) -> Outrider:
    """The app, with everything refused that can be wrong without a database."""
    app = service.location.need_app()
    others = app.relays or app.inboxes or app.rollups
    if not app.handlers and not app.job_handlers and not app.schedules and not others:
        raise ConfigError(
            "the app declares no handler and no job: decorate a function with @app.handler(YourEvent, name=...) or "
            "@app.job(YourJob)"
        )
    chosen = app.chosen(service.handlers, service.exclude)
    if not chosen and not app.schedules:
        raise ConfigError("no handler or job is left: --exclude takes away all that --handlers gives")
    if service.only_class and not chosen.only(service.classes) and not app.schedules:
        raise ConfigError("no handler or job is left: all of them have a channel class, and --only-class names none")
    for option, words in (("--class", service.classes), ("--queue", service.queues)):
        for each in words:
            if wrong := names.wrong_word(each):
                raise ConfigError(f"{option}: {wrong}")
    service.options.check(processes)
    app.relocate(service.location.settings)
    return app
