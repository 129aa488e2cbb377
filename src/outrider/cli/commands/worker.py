"""`outrider worker`: run an app's handlers, jobs, relays and inboxes until told to stop, in one process or in several."""

from __future__ import annotations

import asyncio
import os
from typing import Annotated

import typer

from outrider import names
from outrider.app import Outrider
from outrider.cli.find import need_app
from outrider.cli.logs import Level, arrange
from outrider.cli.serve import CHILD_DSN, Options, run_here, say_unless, supervise
from outrider.cli.shutdown import end_with
from outrider.cli.target import AppOption, Asked, DsnOption, EmbeddedOption, SchemaOption, moved
from outrider.errors import ConfigError
from outrider.worker.job_loop import SLOTS


def worker(
    app: AppOption = None,
    processes: Annotated[int, typer.Option("--processes", metavar="N", min=1, help="How many worker processes.")] = 1,
    handlers: Annotated[
        list[str] | None,
        typer.Option(
            "--handlers",
            metavar="NAME",
            help="Only these, whatever they are: a name or a pattern. Repeatable.",
        ),
    ] = None,
    exclude: Annotated[
        list[str] | None, typer.Option("--exclude", metavar="NAME", help="Not these: a name or a pattern. Repeatable.")
    ] = None,
    classes: Annotated[
        list[str] | None,
        typer.Option(
            "--class", metavar="NAME", help="Be woken by events published with this channel_class too. Repeatable."
        ),
    ] = None,
    slots: Annotated[
        int, typer.Option("--slots", metavar="N", min=1, help="How many jobs a process runs at the same time.")
    ] = SLOTS,
    queues: Annotated[
        list[str] | None, typer.Option("--queue", metavar="NAME", help="Only jobs of this queue. Repeatable.")
    ] = None,
    grace: Annotated[
        str, typer.Option("--grace", metavar="TIME", help="How long a stop may wait for what was begun.")
    ] = "30s",
    health_port: Annotated[
        int | None,
        typer.Option(
            "--health-port", metavar="PORT", min=0, max=65535, help="Serve /healthz and /readyz here; 0 = any."
        ),
    ] = None,
    health_host: Annotated[
        str, typer.Option("--health-host", metavar="HOST", help="With --health-port.")
    ] = "127.0.0.1",
    metrics_port: Annotated[
        int | None,
        typer.Option(
            "--metrics-port",
            metavar="PORT",
            min=0,
            max=65535,
            help="Serve /metrics for Prometheus here; 0 = any. With --processes N each process has a port: this one and "
            "those after it.",
        ),
    ] = None,
    metrics_host: Annotated[
        str, typer.Option("--metrics-host", metavar="HOST", help="With --metrics-port.")
    ] = "127.0.0.1",
    otel_metrics: Annotated[
        bool, typer.Option("--otel-metrics", help="Give them to OpenTelemetry too, as the app has set it up.")
    ] = False,
    dsn: DsnOption = None,
    embedded: EmbeddedOption = False,
    schema: SchemaOption = None,
    log_level: Annotated[Level | None, typer.Option("--log-level", help="Default: info.")] = None,
    log_json: Annotated[
        bool | None, typer.Option("--log-json/--log-console", help="Log lines as JSON, or as text (the default).")
    ] = None,
    parent: Annotated[int | None, typer.Option("--parent", hidden=True)] = None,
) -> None:
    """Run the app's handlers, jobs, relays, inboxes and rollups until SIGTERM or Ctrl-C.

    The first signal ends the taking of events and jobs and lets what runs finish
    within the grace time, and the log says what it waits for. The second cancels
    what still runs, and ends the process within 3 s; the third ends it at once.
    Nothing is lost either way, and no attempt or crash is counted: Postgres rolls
    back what handlers did not finish, and it comes again; jobs are handed back.
    Exits with 0, with 1 if the grace time was not enough, or with 128 + the
    number of the second signal.

    Any number of workers may run, on any number of machines. Of each relay and
    each inbox one is active at a time; the others stand by.
    With --processes N, one parent keeps N of them running.

    Needs: a migrated schema ([bold]outrider migrate[/]) and an app that declares something to run.

    Examples:

      [bold]outrider worker --app shop:app[/]
      [bold]outrider worker --app shop:app --processes 4 --health-port 8080[/]
      [bold]outrider worker --app shop:app --handlers 'billing.*' --grace 2m[/]
      [bold]outrider worker --app shop:app --slots 50 --queue mail --queue default[/]
    """
    if parent is not None:
        end_with(parent)
        dsn = os.environ.pop(CHILD_DSN, None)
    options = Options(
        Asked(app, dsn, embedded, schema), handlers or (), exclude or (), classes or (), slots, queues or (), grace,
        health_port, health_host, metrics_port, metrics_host, log_level, log_json, otel_metrics,
    )  # fmt: skip
    found = _find(options, processes)
    arrange(log_level, log_json)
    clean = asyncio.run(supervise(options, processes)) if processes > 1 else run_here(found, options, parent)
    say_unless(clean, grace)


def _find(options: Options, processes: int) -> Outrider:
    """The app, ready to be opened where the options say; all that can be wrong without a database is said here."""
    found = need_app(options.asked.app)
    others = found.relays or found.inboxes or found.rollups
    if not found.handlers and not found.job_handlers and not found.schedules and not others:
        raise ConfigError(
            "the app declares no handler and no job: decorate a function with @app.handler(YourEvent, name=...) or "
            "@app.job(YourJob)"
        )
    if not found.chosen(options.handlers, options.exclude) and not found.schedules:
        raise ConfigError("no handler or job is left: --exclude takes away all that --handlers gives")
    for option, words in (("--class", options.classes), ("--queue", options.queues)):
        for each in words:
            if wrong := names.wrong_word(each):
                raise ConfigError(f"{option}: {wrong}")
    options.check(processes)
    found.relocate(moved(found.settings, options.asked))
    return found
