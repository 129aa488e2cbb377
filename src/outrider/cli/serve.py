"""Runs a worker in this process, or supervises several worker processes."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Annotated

import typer

from outrider.app import Outrider
from outrider.cli.logs import Level
from outrider.cli.options import OptionGroup
from outrider.cli.processes import WorkerProcesses
from outrider.cli.shutdown import StopSignals, leave_after, until_alone
from outrider.cli.target import Location
from outrider.errors import ConfigError
from outrider.observe.exposed import exposed, measured
from outrider.observe.metrics import need_client
from outrider.observe.otel_metrics import OtelMetrics, need_provider
from outrider.retry import parse_duration
from outrider.worker.health import HealthServer, Subject, WorkerHealth
from outrider.worker.site import SLOTS

CHILD_DSN = "OUTRIDER_CHILD_DSN"
"""The variable that passes --dsn to a worker process: everybody can read the arguments of a process."""
LAST_PORT = 65535
STUBBORN = 0.5
"""Seconds to wait for tasks that ignore their cancellation. Their work is rolled back, or runs again."""


@dataclass(frozen=True)
class ServeOptions(OptionGroup):
    """The options of commands that run until a signal."""

    panel = "Stop, health, metrics and log"

    grace: Annotated[
        str, typer.Option("--grace", metavar="TIME", help="How long running handlers and jobs may take to finish.")
    ] = "30s"
    health_port: Annotated[
        int | None,
        typer.Option(
            "--health-port", metavar="PORT", min=0, max=LAST_PORT, help="Serve /healthz and /readyz here; 0 = any port."
        ),
    ] = None
    health_host: Annotated[
        str, typer.Option("--health-host", metavar="HOST", help="The address for --health-port.")
    ] = "127.0.0.1"
    metrics_port: Annotated[
        int | None,
        typer.Option(
            "--metrics-port",
            metavar="PORT",
            min=0,
            max=LAST_PORT,
            help="Serve /metrics for Prometheus here; 0 = any port. Several processes use this port and the next ones.",
        ),
    ] = None
    metrics_host: Annotated[
        str, typer.Option("--metrics-host", metavar="HOST", help="The address for --metrics-port.")
    ] = "127.0.0.1"
    otel_metrics: Annotated[
        bool, typer.Option("--otel-metrics", help="Export metrics through OpenTelemetry, as the app has configured it.")
    ] = False
    log_level: Annotated[
        Level | None, typer.Option("--log-level", metavar="LEVEL", help="debug, info (the default), warning or error.")
    ] = None
    log_json: Annotated[
        bool | None, typer.Option("--log-json/--log-console", help="Log lines as JSON, or as text (the default).")
    ] = None

    @property
    def seconds(self) -> float:
        return parse_duration(self.grace).total_seconds()

    def check(self, processes: int = 1) -> None:
        """Refuses what is wrong without a database."""
        try:
            parse_duration(self.grace)
        except ConfigError as error:
            raise ConfigError(f"--grace: {error}") from None
        if self.otel_metrics:
            need_provider()
        if self.metrics_port is not None:
            need_client()
        if self.metrics_port and self.metrics_port + processes - 1 > LAST_PORT:
            raise ConfigError(f"--metrics-port: {processes} processes need as many ports from {self.metrics_port} on")
        if self.metrics_port and self.health_port in range(self.metrics_port, self.metrics_port + processes):
            raise ConfigError(f"--health-port: {self.health_port} is a port of --metrics-port, one for each process")


@dataclass(frozen=True, slots=True)
class Service:
    """What a worker process runs, and where."""

    location: Location
    options: ServeOptions
    handlers: Sequence[str] = ()
    exclude: Sequence[str] = ()
    classes: Sequence[str] = ()
    slots: int = SLOTS
    queues: Sequence[str] = ()
    only_class: bool = False

    def command(self, number: int) -> list[str]:
        """The command line of worker process `number`. It has no --health-port: the parent reports the health of all."""
        location, options = self.location, self.options
        values: list[tuple[str, object]] = [
            ("--app", location.app_name),
            ("--schema", location.schema_name),
            ("--grace", options.grace),
            ("--slots", self.slots),
            ("--log-level", options.log_level and options.log_level.value),
            *(("--handlers", name) for name in self.handlers),
            *(("--exclude", name) for name in self.exclude),
            *(("--class", name) for name in self.classes),
            *(("--queue", name) for name in self.queues),
        ]
        if options.metrics_port is not None:
            port = options.metrics_port + number - 1 if options.metrics_port else 0
            values += [("--metrics-port", port), ("--metrics-host", options.metrics_host)]
        flags = {
            "--embedded": location.embedded,
            "--only-class": self.only_class,
            "--otel-metrics": options.otel_metrics,
            "--log-json": options.log_json is True,
            "--log-console": options.log_json is False,
        }
        command = [sys.executable, "-P", "-m", "outrider", "worker"]
        command += [f"{option}={value}" for option, value in values if value is not None]
        return command + [flag for flag, given in flags.items() if given]

    def environment(self) -> dict[str, str]:
        return {} if self.location.dsn is None else {CHILD_DSN: self.location.dsn}


def run_here(app: Outrider, service: Service, parent: int | None = None) -> None:
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        exit_unless_clean(runner.run(work(app, service, parent)), service.options.grace)


def exit_unless_clean(clean: bool, grace: str) -> None:
    if not clean:
        typer.echo(
            f"outrider: the grace time of {grace} was not enough; unfinished work was rolled back and will run again",
            err=True,
        )
        raise typer.Exit(1)


async def work(app: Outrider, service: Service, parent: int | None) -> bool:
    """Runs a worker until a signal. True when everything that it had begun was finished within the grace time."""
    options = service.options
    signals = StopSignals(options.seconds)
    with signals.listen(child=parent is not None):
        async with app:
            worker = signals.worker = app.worker(
                handlers=service.handlers,
                exclude=service.exclude,
                classes=service.classes,
                only_class=service.only_class,
                grace=options.seconds,
                slots=service.slots,
                queues=service.queues,
            )
            beside = [asyncio.create_task(_then(signals.stop.wait, worker.stop))]
            if parent is not None:
                beside.append(asyncio.create_task(_then(partial(until_alone, parent), signals.orphaned)))
            try:
                async with _health(WorkerHealth(worker), options), _metrics(app, options):
                    clean = await worker.run()
                if signals.hurried is not None:
                    leave_after(STUBBORN, 128 + signals.hurried)
                    raise typer.Exit(128 + signals.hurried)
                if not clean:
                    leave_after(STUBBORN)
                return clean
            finally:
                for task in beside:
                    task.cancel()
                await asyncio.gather(*beside, return_exceptions=True)


async def supervise(service: Service, count: int) -> None:
    options = service.options
    processes = WorkerProcesses(service.command, service.environment(), count, options.seconds)
    async with _health(processes, options):
        clean = await processes.run()
    if processes.hurried is not None:
        raise typer.Exit(128 + processes.hurried)
    exit_unless_clean(clean, options.grace)


@asynccontextmanager
async def _health(subject: Subject, options: ServeOptions) -> AsyncIterator[None]:
    if options.health_port is None:
        yield
        return
    async with HealthServer(subject, options.health_host, options.health_port) as server:
        typer.echo(f"outrider: health at {server.url}", err=True)
        yield


@asynccontextmanager
async def _metrics(app: Outrider, options: ServeOptions) -> AsyncIterator[None]:
    schema = app.settings.schema
    async with AsyncExitStack() as stack:
        if options.metrics_port is not None:
            serving = exposed(app, schema, options.metrics_host, options.metrics_port)
            typer.echo(f"outrider: metrics at {await stack.enter_async_context(serving)}", err=True)
        if options.otel_metrics:
            await stack.enter_async_context(measured(app, schema, OtelMetrics(app.signals)))
        yield


async def _then(wait: Callable[[], Awaitable[object]], act: Callable[[], None]) -> None:
    await wait()
    act()


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """The factory of uvloop, if it is installed."""
    try:
        factory: Callable[[], asyncio.AbstractEventLoop] = import_module("uvloop").new_event_loop
    except ImportError:
        return None
    return factory
