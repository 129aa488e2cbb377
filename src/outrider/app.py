"""`Outrider`, the application object: it wires settings, pool, publisher and workers, and does no work of its own.

Processes that only publish do not need the worker, the log and the embedded server: methods import those when called.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Self, Unpack

from outrider.config import Notify, Serves, Settings
from outrider.declarations import Declarations
from outrider.enqueue import EnqueueOptions, Enqueuer
from outrider.envelope import Envelope
from outrider.errors import ConfigError
from outrider.event import Event
from outrider.integrations.connections import driver_of
from outrider.job import Job
from outrider.operations import Operations
from outrider.postgres import connection
from outrider.postgres.job_inserts import Enqueued
from outrider.postgres.notifier import Notifier
from outrider.postgres.pool import Pool
from outrider.postgres.worker_sessions import WorkerSessions
from outrider.protocols import EventPublisher, TransactionListener
from outrider.publish import Publisher, PublisherOn, PublishOptions
from outrider.retry import Duration, option_duration
from outrider.signals import Signals
from outrider.subscription import Subscription
from outrider.worker.handler import Handler, idles
from outrider.worker.schedule_loop import Scheduled, ScheduleLoop
from outrider.worker.site import GRACE, SLOTS, Site, WorkerTimes

if TYPE_CHECKING:
    from outrider.inbox.inbox import Inbox
    from outrider.inbox.inbox_loop import InboxLoop
    from outrider.postgres.embedded import Embedded
    from outrider.postgres.schema.registration import Registered
    from outrider.relay.relay import Relay
    from outrider.relay.relay_loop import RelayLoop
    from outrider.rollup.rollup import Rollup
    from outrider.rollup.rollup_loop import RollupLoop
    from outrider.worker.drain import Drained
    from outrider.worker.job_loop import JobLoop
    from outrider.worker.upkeep_loop import UpkeepLoop
    from outrider.worker.wakeups import Wakeups
    from outrider.worker.worker import Worker

EMBEDDED_DATABASE = "outrider"


class Outrider(Declarations, Operations):
    """Events out of your transaction, to every subscriber.

    `async with app:` opens a pool of connections (and the embedded Postgres, if asked for) and closes it at the end.
    Publishing does not need it: it uses the connection that you pass.
    """

    def __init__(
        self,
        *,
        context: str | None = None,
        contexts: Iterable[str] | None = None,
        owns: Iterable[str] = (),
        roles: Iterable[str] = (),
        content_classes: Iterable[str] = (),
        dsn: str | None = None,
        embedded: bool | None = None,
        schema: str | None = None,
        generation: int | None = None,
        generations: Serves | None = None,
        payload_limit: int | None = None,
        pool_size: int | None = None,
        listen_dsn: str | None = None,
        notify: Notify | None = None,
        poll: Duration | None = None,
    ) -> None:
        from outrider.observe.log import LogListener

        super().__init__()
        self.settings = Settings.load(
            context=context,
            contexts=contexts,
            owns=owns,
            roles=roles,
            content_classes=content_classes,
            dsn=dsn,
            embedded=embedded,
            schema=schema,
            generation=generation,
            generations=generations,
            payload_limit=payload_limit,
            pool_size=pool_size,
            listen_dsn=listen_dsn,
            notify=notify,
            poll=poll,
        )
        self.signals = Signals()
        self._lines = LogListener()
        self.signals.listen(self._lines)
        self._notifier = Notifier(
            lambda: self._dsn or (None if self._refusal(self.settings) else self.settings.dsn),
            lambda: self.settings.schema,
        )
        self._use(self.settings)
        self._dsn: str | None = None
        self._server: Embedded | None = None
        self._pool: Pool | None = None
        self._open: AsyncExitStack | None = None

    # Open and close

    async def __aenter__(self) -> Self:
        if self._open is not None:
            raise ConfigError("the app is open already: one `async with app:` is enough, its connections can be shared")
        from outrider.postgres.schema import migrate

        async with AsyncExitStack() as stack:
            self._dsn = await self._find_server(stack)
            self._pool = Pool(self._dsn, self.settings.pool_size, self.settings.notify)
            await stack.enter_async_context(self._pool)
            async with self._pool.connection() as conn:
                await migrate.check_newer(conn, self.settings.schema)
            self._open = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._open is not None:
            opened, self._open, self._pool, self._server = self._open, None, None, None
            await asyncio.to_thread(self._notifier.close)
            await opened.aclose()
        self._lines.close()

    def relocate(self, settings: Settings) -> None:
        """Replace the settings that the app was declared with: for tests and commands that use another database."""
        if self._open is not None:
            raise ConfigError("the app is open: relocate it before `async with app:`")
        self.settings = settings
        self._use(settings)
        for reader in self._readers:
            reader.schema = settings.schema

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[connection.AsyncSession]:
        """A connection of the app's own pool, in a transaction that commits at the end of the block.

        To publish, you may use any connection of yours instead.
        """
        async with self._opened().connection() as conn:
            yield conn

    @property
    def server(self) -> Embedded | None:
        """The embedded Postgres while the app is open on it."""
        return self._server

    # Publish

    async def publish(self, conn: object, event: Event, **options: Unpack[PublishOptions]) -> Envelope:
        """Append one event on your own async connection or session, in your transaction."""
        return (await self._publisher.append(conn, [self._publisher.envelope(event, **options)]))[0]

    def publish_sync(self, conn: object, event: Event, **options: Unpack[PublishOptions]) -> Envelope:
        """Append one event on your own blocking connection or session, in your transaction."""
        return self._publisher.append_sync(conn, [self._publisher.envelope(event, **options)])[0]

    async def publish_many(self, conn: object, events: Iterable[Event | Envelope]) -> list[Envelope]:
        """Append many events with one statement; `app.envelope(event, key=...)` gives one of them options."""
        return await self._publisher.append(conn, self._publisher.envelopes(events))

    def publish_many_sync(self, conn: object, events: Iterable[Event | Envelope]) -> list[Envelope]:
        """Append many events with one statement on your own blocking connection or session."""
        return self._publisher.append_sync(conn, self._publisher.envelopes(events))

    def envelope(self, event: Event, **options: Unpack[PublishOptions]) -> Envelope:
        """The envelope that publish would write, not yet written: for publish_many."""
        return self._publisher.envelope(event, **options)

    def publisher(self, conn: object) -> EventPublisher:
        """An EventPublisher on your own async connection or session: `publish(app.envelope(event))`."""
        return PublisherOn(self._publisher, conn)

    async def enqueue(self, conn: object, job: Job, **options: Unpack[EnqueueOptions]) -> Enqueued:
        """Enqueue a job on your own async connection or session, in your transaction."""
        return (await self._enqueuer.insert(conn, [self._enqueuer.request(job, **options)]))[0]

    def enqueue_sync(self, conn: object, job: Job, **options: Unpack[EnqueueOptions]) -> Enqueued:
        """Enqueue a job on your own blocking connection or session, in your transaction."""
        return self._enqueuer.insert_sync(conn, [self._enqueuer.request(job, **options)])[0]

    async def enqueue_many(
        self, conn: object, jobs: Iterable[Job], **options: Unpack[EnqueueOptions]
    ) -> list[Enqueued]:
        """Enqueue many jobs with one statement; the options apply to all of them."""
        return await self._enqueuer.insert(conn, self._enqueuer.requests(jobs, options))

    def enqueue_many_sync(self, conn: object, jobs: Iterable[Job], **options: Unpack[EnqueueOptions]) -> list[Enqueued]:
        """Enqueue many jobs with one statement on your own blocking connection or session."""
        return self._enqueuer.insert_sync(conn, self._enqueuer.requests(jobs, options))

    def _use(self, settings: Settings) -> None:
        self._publisher = Publisher(settings, self.signals, driver_of, self._notifier)
        self._enqueuer = Enqueuer(settings, self.signals, driver_of, self._notifier)

    # Register

    async def migrate(self) -> list[Registered]:
        """Bring the schema up to date, then register the declared subscriptions and create their cursors.

        Refuses a migration that would break workers of an older release that are still running (docs/upgrading.md).
        """
        from outrider.postgres import generations
        from outrider.postgres.schema import migrate

        pool = self._opened()
        async with pool.autocommit() as conn:
            await migrate.migrate(conn, self.settings.schema)
        registered = await self._register(self._subscriptions.values(), self.scheduled)
        async with pool.autocommit() as conn:
            await generations.open_all(conn, self.subscriptions, self.settings.generation, self.settings.schema)
        return registered

    # Work

    def worker(
        self,
        *,
        handlers: Iterable[str] = (),
        exclude: Iterable[str] = (),
        classes: Iterable[str] = (),
        only_class: bool = False,
        grace: Duration = GRACE,
        slots: int = SLOTS,
        queues: Iterable[str] = (),
    ) -> Worker:
        """A worker for what the app declares: `await worker.run()`, or `async with app.worker():` inside a service.

        `handlers` and `exclude` are names, or patterns like `billing.*`. `classes`: events published with such a
        `channel_class` wake it too, as those of its handlers' own classes do. `only_class`: it serves only the handlers of
        these classes; with none, everything that is of no class. `grace`: how long running work may take at shutdown.
        `slots`: how many jobs it runs at the same time. `queues`: it runs jobs of these queues only; none = of all.
        """
        from outrider.worker.duties import Duties
        from outrider.worker.worker import Worker

        wanted, classes = tuple(handlers), tuple(classes)
        site, chosen = self._site(), self.chosen(wanted, exclude)
        if only_class:
            chosen = chosen.only(classes)
        scheduled = self.scheduled if chosen.handlers or chosen.jobs or not wanted else ()
        duties = Duties(
            handlers=chosen.handlers,
            jobs=chosen.jobs,
            schedules=scheduled,
            others=lambda worker, wakeups: [
                *self._relay_loops(chosen.relays, worker, wakeups),
                *self._inbox_loops(chosen.inboxes),
                *self._rollup_loops(chosen.rollups),
                *self._upkeep_loops(),
            ],
            classes=sorted({*classes, *chosen.classes}),
            every_class=bool(chosen.relays),
            slots=slots,
            queues=tuple(queues),
        )
        times = WorkerTimes(grace=option_duration("grace", grace).total_seconds())
        return Worker(site, duties, lambda: self._register(chosen.subscriptions, scheduled, chosen.rollups), times)

    def _site(self) -> Site:
        pool = self._opened()
        assert self._dsn is not None
        return Site(self._dsn, pool, self.settings, self.signals)

    def _relay_loops(self, relays: Sequence[Relay], worker: str, wakeups: Wakeups | None = None) -> list[RelayLoop]:
        from outrider.relay.relay_loop import RelayLoop

        dsn, schema, signals = self._site().dsn, self.settings.schema, self.signals
        return [
            RelayLoop(each, dsn=dsn, schema=schema, signals=signals, worker=worker, wakeups=wakeups) for each in relays
        ]

    def _inbox_loops(self, inboxes: Sequence[Inbox]) -> list[InboxLoop]:
        from outrider.inbox.inbox_loop import InboxLoop

        site = self._site()
        return [InboxLoop(each, dsn=site.dsn, settings=site.settings, signals=site.signals) for each in inboxes]

    def _rollup_loops(self, declared: Sequence[Rollup]) -> list[RollupLoop]:
        from outrider.rollup.rollup_loop import RollupLoop

        site = self._site()
        return [RollupLoop(declared, dsn=site.dsn, settings=site.settings, signals=site.signals)] if declared else []

    def _upkeep_loops(self) -> list[UpkeepLoop]:
        from outrider.worker.upkeep_loop import UpkeepLoop

        dsn = self._site().dsn
        return [UpkeepLoop(dsn=dsn, settings=self.settings, signals=self.signals)] if self.settings.upkeep else []

    def listener(self) -> TransactionListener:
        """An EventListener: `await app.listener().listen(channel="outbox_default", handler_name="a.b", handler=f)`.

        f takes (envelope), or (envelope, tx) to write in the transaction of its receipt.
        """
        from outrider.worker.event_listener import Listening

        return Listening(self.settings.context, self.settings.generation, self._working_for)

    @contextmanager
    def _working_for(self, handler: Handler, channel: str) -> Iterator[Worker]:
        from outrider.worker.duties import Duties
        from outrider.worker.worker import Worker

        site, duties = self._site(), Duties(handlers=[handler], channel=channel)
        self._declare(handler.subscription)
        try:
            yield Worker(site, duties, lambda: self._register([handler.subscription]))
        finally:
            del self._subscriptions[handler.name]

    async def drain(
        self, *, handlers: Iterable[str] = (), exclude: Iterable[str] = (), raise_on_failure: bool = False
    ) -> Drained:
        """Handle all events and jobs that are due now, and return the counts: for tests and scripts.

        Before that, inboxes read what is there; after it, relays send. With `raise_on_failure` the first error is
        raised; even so, its event or job waits for a retry or becomes a dead letter.
        """
        from outrider.postgres.heartbeat import Identity
        from outrider.worker.drain import drain
        from outrider.worker.job_loop import JobLoop

        site, chosen = self._site(), self.chosen(handlers, exclude)
        inboxes = self._inbox_loops(chosen.inboxes)
        ingested = sum([await each.drain() for each in inboxes])

        def job_loop() -> JobLoop:
            identity = Identity(self.settings.generation, sorted(each.name for each in chosen.jobs))
            return JobLoop(site, identity, chosen.jobs)

        scheduled = self.scheduled
        sessions = WorkerSessions(site.dsn, 1, notify=self.settings.notify, idles=idles(chosen.handlers))
        loop = ScheduleLoop(scheduled, self.settings, self.signals, sessions=sessions) if scheduled else None
        try:
            drained = await drain(
                chosen.handlers,
                sessions,
                self.signals,
                schema=self.settings.schema,
                generation=self.settings.generation,
                strict=self.settings.generations == "strict",
                jobs=chosen.jobs,
                job_loop=job_loop,
                schedules=loop,
                raise_on_failure=raise_on_failure,
            )
        finally:
            await sessions.close()
        relays = self._relay_loops(chosen.relays, "drain")
        return replace(drained, ingested=ingested, relayed=sum([await each.drain() for each in relays]))

    async def _register(
        self, declared: Iterable[Subscription], scheduled: Iterable[Scheduled] = (), rolled: Iterable[Rollup] = ()
    ) -> list[Registered]:
        from outrider.postgres import rollups, schedules
        from outrider.postgres.schema import migrate
        from outrider.postgres.schema.registration import refuse_renamed, register

        registering, schema = list(declared), self.settings.schema
        async with self._opened().autocommit() as conn:
            await migrate.check_needed(conn, schema)
            if not self.settings.allow_orphans:
                await refuse_renamed(conn, registering, self._subscriptions, schema)
            await rollups.refuse_missing(conn, [each.name for each in rolled if each.events], schema)
            registered = [await register(conn, each, schema) for each in registering]
            for each in scheduled:
                await schedules.register(conn, each.schedule, each.request, schema, self.settings.context)
            return registered

    def _opened(self) -> Pool:
        if self._open is None or self._pool is None:
            raise ConfigError("the app is not open: use it inside `async with app:`")
        return self._pool

    @staticmethod
    def _refusal(settings: Settings) -> str | None:  # noqa: ARG004
        """Why the database must not be opened. The pytest plugin replaces this, so that tests use their own databases."""
        return None

    async def _find_server(self, stack: AsyncExitStack) -> str:
        if why := self._refusal(self.settings):
            raise ConfigError(why)
        if self.settings.embedded:
            from outrider.postgres.embedded import Embedded

            self._server = server = Embedded()
            stack.push_async_callback(asyncio.to_thread, server.stop)
            await asyncio.to_thread(server.open, EMBEDDED_DATABASE)
            return server.dsn(EMBEDDED_DATABASE)
        if self.settings.dsn is None:
            raise ConfigError(
                "no database: pass dsn= or set OUTRIDER_DSN; embedded=True or OUTRIDER_EMBEDDED=1 runs one for development"
            )
        return self.settings.dsn
