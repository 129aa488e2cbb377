"""Serving what an app declares: in this process, or in several that it keeps running."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module

import typer

from outrider.app import Outrider
from outrider.cli.logs import Level
from outrider.cli.processes import Processes
from outrider.cli.shutdown import HURRY, hearing, leave, leave_after, obeying, until_alone
from outrider.cli.target import Asked
from outrider.errors import ConfigError
from outrider.observe.exposed import exposed, measured
from outrider.observe.metrics import need_client
from outrider.observe.otel_metrics import OtelMetrics, need_provider
from outrider.retry import parse_duration
from outrider.worker.health import HealthServer, Subject, WorkerHealth
from outrider.worker.worker import Worker

CHILD_DSN = "OUTRIDER_CHILD_DSN"
LAST_PORT = 65535
MARGIN = 10.0
"""Seconds after the grace time until a process that has not ended exits at once."""
HURRIED = 3.0
"""Seconds after the second signal until the process is ended, whatever holds it up."""
STUBBORN = 0.5
"""Seconds to wait for tasks that ignore their cancellation. Their work is rolled back, or done again."""


@dataclass(frozen=True, slots=True)
class Options:
    asked: Asked
    handlers: Sequence[str]
    exclude: Sequence[str]
    classes: Sequence[str]
    slots: int
    queues: Sequence[str]
    grace: str
    health_port: int | None
    health_host: str
    metrics_port: int | None
    metrics_host: str
    log_level: Level | None
    log_json: bool | None
    otel_metrics: bool = False

    @property
    def seconds(self) -> float:
        return parse_duration(self.grace).total_seconds()

    def check(self, processes: int = 1) -> None:
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

    def command(self, number: int) -> list[str]:
        """The same worker as a process of its own, one of several. Its health is the parent's to tell."""
        asked, port = self.asked, self.metrics_port
        given = [("--app", asked.app), ("--schema", asked.schema), ("--grace", self.grace)]
        if port is not None:
            own = port + number - 1 if port else 0
            given += [("--metrics-port", str(own)), ("--metrics-host", self.metrics_host)]
        given += [("--handlers", name) for name in self.handlers] + [("--exclude", name) for name in self.exclude]
        given += [("--class", name) for name in self.classes] + [("--queue", name) for name in self.queues]
        given += [("--slots", str(self.slots))]
        given += [("--log-level", self.log_level.value if self.log_level else None)]
        flags = [
            (asked.embedded, "--embedded"),
            (self.otel_metrics, "--otel-metrics"),
            (self.log_json, "--log-json"),
            (self.log_json is False, "--log-console"),
        ]
        command = [sys.executable, "-P", "-m", "outrider.cli", "worker"]
        command += [f"{option}={value}" for option, value in given if value is not None]
        return command + [flag for wanted, flag in flags if wanted]

    def environment(self) -> dict[str, str]:
        """Everybody can read the arguments of a process, and a DSN may hold a password."""
        return {} if self.asked.dsn is None else {CHILD_DSN: self.asked.dsn}


def run_here(app: Outrider, options: Options, parent: int | None = None) -> bool:
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(work(app, options, parent))


def say_unless(clean: bool, grace: str) -> None:
    if not clean:
        typer.echo(
            f"outrider: the grace time of {grace} was not enough; what was not finished is rolled back and comes again",
            err=True,
        )
        raise typer.Exit(1)


class Obedience:
    """What SIGTERM and Ctrl-C do to a worker: the first stops it, the second ends its grace time, the third the process."""

    def __init__(self, grace: float) -> None:
        self.worker: Worker | None = None
        self.stop = asyncio.Event()
        self.hurried: int | None = None
        """The second signal."""
        self._loop = asyncio.get_running_loop()
        self._grace = grace

    def listen(self, *, child: bool) -> ExitStack:
        stack = ExitStack()
        # A child is told by its parent, and perhaps by the system too (systemd signals every process of a service).
        stack.enter_context(obeying(self.stop.set, (lambda _: None) if child else self._again, self.at_once))
        if child:
            stack.enter_context(hearing([HURRY], self._hurry_at_once))
        return stack

    def at_once(self) -> None:
        """In the signal's handler: the event loop may be blocked."""
        leave_after(self._grace + MARGIN)
        if self.worker is not None:
            self.worker.ignore_crashes()
            threading.Thread(target=self.worker.announce, daemon=True).start()

    def orphaned(self) -> None:
        self.at_once()
        self.stop.set()

    def _again(self, number: int) -> None:
        if self.hurried is not None or self.worker is None:
            leave(number)
        self.hurried = number
        leave_after(HURRIED, 128 + number)
        self._loop.call_soon_threadsafe(self._hurry)

    def _hurry_at_once(self, number: int) -> None:
        self.at_once()
        self._again(number)

    def _hurry(self) -> None:
        self.stop.set()
        if self.worker is not None:
            self.worker.hurry()


async def work(app: Outrider, options: Options, parent: int | None) -> bool:
    told = Obedience(options.seconds)
    with told.listen(child=parent is not None):
        async with app:
            worker = told.worker = app.worker(
                handlers=options.handlers,
                exclude=options.exclude,
                classes=options.classes,
                grace=options.seconds,
                slots=options.slots,
                queues=options.queues,
            )
            beside = [asyncio.create_task(_then(told.stop.wait, worker.stop))]
            if parent is not None:
                beside.append(asyncio.create_task(_then(partial(until_alone, parent), told.orphaned)))
            try:
                async with _health(WorkerHealth(worker), options), _metrics(app, options):
                    clean = await worker.run()
                if told.hurried is not None:
                    leave_after(STUBBORN, 128 + told.hurried)
                    raise typer.Exit(128 + told.hurried)
                if not clean:
                    leave_after(STUBBORN)
                return clean
            finally:
                for task in beside:
                    task.cancel()
                await asyncio.gather(*beside, return_exceptions=True)


async def supervise(options: Options, count: int) -> bool:
    processes = Processes(options.command, options.environment(), count, options.seconds)
    async with _health(processes, options):
        clean = await processes.run()
    if processes.hurried is not None:
        raise typer.Exit(128 + processes.hurried)
    return clean


@asynccontextmanager
async def _health(subject: Subject, options: Options) -> AsyncIterator[None]:
    if options.health_port is None:
        yield
        return
    async with HealthServer(subject, options.health_host, options.health_port) as server:
        typer.echo(f"outrider: health at {server.url}", err=True)
        yield


@asynccontextmanager
async def _metrics(app: Outrider, options: Options) -> AsyncIterator[None]:
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
    """uvloop's, where it is installed."""
    try:
        factory: Callable[[], asyncio.AbstractEventLoop] = import_module("uvloop").new_event_loop
    except ImportError:
        return None
    return factory
