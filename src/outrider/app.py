"""`Outrider`: the composition root. It wires settings, pool, publisher and readers, and does no work of its own."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from types import TracebackType
from typing import Any, Self, TypedDict, TypeVar, Unpack
from uuid import UUID

from outrider import publish
from outrider.config import Notify, Settings
from outrider.dispatch.drain import Drained, drain
from outrider.dispatch.handler import LIMIT, TIMEOUT, Handler, choose, declare
from outrider.dispatch.listening import Listening
from outrider.dispatch.worker import GRACE, Worker
from outrider.envelope import Envelope
from outrider.errors import ConfigError, DeclarationError
from outrider.event import Event
from outrider.integrations.connections import driver_of
from outrider.integrations.parameters import bound, session_of
from outrider.observe.log import write_line
from outrider.postgres import events, generations, migrate, session, subscriptions
from outrider.postgres.embedded import Embedded
from outrider.postgres.events import Story, Withdrawn
from outrider.postgres.lanes import Lanes
from outrider.postgres.orphans import refuse_renamed
from outrider.postgres.poke import Poker
from outrider.postgres.pool import Pool
from outrider.postgres.recovery import DeadLetters
from outrider.postgres.registration import Registered, register
from outrider.postgres.replay import Replayed, ReplayOptions, replay
from outrider.postgres.status import Status, status
from outrider.protocols import EventListener, EventPublisher
from outrider.publish import Publisher, PublisherOn, PublishOptions
from outrider.reader import Reader
from outrider.retry import Breaker, Duration, Policy, parse_duration
from outrider.signals import Signals
from outrider.subscription import Order, Start, Subscription

EMBEDDED_DATABASE = "outrider"
F = TypeVar("F", bound=Callable[..., Any])


class HandlerOptions(TypedDict, total=False):
    partitions: int
    """How many sessions can handle its events at the same time: a power of two. Default 1."""
    start: Start
    """For a new subscription: "now" (the default), "beginning" or a time."""
    order: Order
    """What waits for a failed event: "key" (the default): later events of its key; "none"; "total": everything."""
    retry: Policy
    """When a failed event is tried again, and when it is buried. Default: DEFAULT_RETRY_POLICY."""
    timeout: Duration
    """How long one call may take. Default 30 s."""
    limit: int
    """The most events of one transaction; fewer when they take long. Default 1,000."""
    breaker: Breaker
    """Stop for a while when everything fails, and probe. Default: none."""
    role: str
    """What it sends through `ctx.tx` runs with this role; the worker's user must be a member. Default: the worker's own."""


class Outrider:
    """Events out of your transaction, to every subscriber.

    `async with app:` opens the pool (and the embedded Postgres, if asked for) and closes it. Publishing needs neither:
    it uses the connection that you pass.
    """

    def __init__(
        self,
        *,
        context: str | None = None,
        contexts: Iterable[str] | None = None,
        dsn: str | None = None,
        embedded: bool | None = None,
        schema: str | None = None,
        generation: int | None = None,
        payload_limit: int | None = None,
        pool_size: int | None = None,
        listen_dsn: str | None = None,
        notify: Notify | None = None,
        poll: Duration | None = None,
    ) -> None:
        self.settings = Settings.load(
            context=context,
            contexts=contexts,
            dsn=dsn,
            embedded=embedded,
            schema=schema,
            generation=generation,
            payload_limit=payload_limit,
            pool_size=pool_size,
            listen_dsn=listen_dsn,
            notify=notify,
            poll=poll,
        )
        self.signals = Signals()
        self.signals.listen(write_line)
        self._poker = Poker(lambda: self._dsn or self.settings.dsn)
        self._publisher = Publisher(self.settings, self.signals, driver_of, self._poker)
        self._subscriptions: dict[str, Subscription] = {}
        self._handlers: dict[str, Handler] = {}
        self._readers: list[Reader] = []
        self._dsn: str | None = None
        self._server: Embedded | None = None
        self._pool: Pool | None = None
        self._open: AsyncExitStack | None = None

    # Open and close

    async def __aenter__(self) -> Self:
        if self._open is not None:
            raise ConfigError("the app is open already: one `async with app:` is enough, its connections can be shared")
        async with AsyncExitStack() as stack:
            self._dsn = await self._find_server(stack)
            self._pool = Pool(self._dsn, self.settings.pool_size)
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
            await asyncio.to_thread(self._poker.close)
            await opened.aclose()

    def relocate(self, settings: Settings) -> None:
        """Use other settings than those of the declaration: for commands whose options name another database."""
        if self._open is not None:
            raise ConfigError("the app is open: relocate it before `async with app:`")
        self.settings = settings
        self._publisher = Publisher(settings, self.signals, driver_of, self._poker)
        for reader in self._readers:
            reader.schema = settings.schema

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[session.AsyncSession]:
        """A connection of the app's own pool. For publishing, any connection of yours does."""
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
        return await self._publisher.append(conn, publish.each(self._publisher, events))

    def publish_many_sync(self, conn: object, events: Iterable[Event | Envelope]) -> list[Envelope]:
        """Append many events with one statement on your own blocking connection or session."""
        return self._publisher.append_sync(conn, publish.each(self._publisher, events))

    def envelope(self, event: Event, **options: Unpack[PublishOptions]) -> Envelope:
        """What publish would write, without writing it: for publish_many."""
        return self._publisher.envelope(event, **options)

    def publisher(self, conn: object) -> EventPublisher:
        """An EventPublisher on your own async connection or session: `publish(app.envelope(event))`."""
        return PublisherOn(self._publisher, conn)

    # Subscribe

    def reader(self, *events: type[Event], name: str, partitions: int = 1, start: Start = "now") -> Reader:
        """Declare a subscription that you read yourself, in your own transactions; no events = every type."""
        subscription = Subscription(name, "reader", self.settings.context, events, partitions, start)
        self._declare(subscription)
        reader = Reader(subscription, self.settings, self.signals)
        self._readers.append(reader)
        return reader

    def handler(
        self, *events: type[Event], name: str | None = None, **options: Unpack[HandlerOptions]
    ) -> Callable[[F], F]:
        """Declare a handler: short, database-only work, exactly once per event and handler.

        An async function, a blocking one (it runs in a thread) or one that takes a whole batch (`list[OrderPlaced]`).
        What it writes through `ctx.tx` commits together with its receipt.
        """

        for event in events:
            if not (isinstance(event, type) and issubclass(event, Event)):
                raise DeclarationError(
                    f"{event!r} is not an Event class: write @app.handler(OrderPlaced), with the class"
                )

        def declare_handler(function: F) -> F:
            called = name or f"{self.settings.context}.{getattr(function, '__name__', type(function).__name__)}"
            self._add_handler(events, function, called, options, factory=False)
            with suppress(AttributeError, TypeError):
                function.__outrider_handler__ = called  # type: ignore[attr-defined]
            return function

        return declare_handler

    def subscribe(
        self,
        events: type[Event] | Sequence[type[Event]],
        factory: Callable[[Any], Callable[..., Awaitable[None]]],
        *,
        name: str,
        **options: Unpack[HandlerOptions],
    ) -> None:
        """`app.subscribe(OrderPlaced, factory, name=...)`: `factory(tx)` makes the async handler, anew for every event.

        For teams that wire handlers and repositories in one place, outside both contexts. `tx` is an AsyncSession of
        SQLAlchemy where the factory's parameter is annotated as one.
        """
        wanted = (events,) if isinstance(events, type) else tuple(events)
        self._add_handler(wanted, factory, name, options, factory=True)

    def _add_handler(
        self, events: tuple[type[Event], ...], function: Any, name: str, options: HandlerOptions, *, factory: bool
    ) -> None:
        if unknown := options.keys() - HandlerOptions.__annotations__.keys():
            raise TypeError(f"a handler has no option {', '.join(sorted(unknown))}")
        subscription = Subscription(
            name,
            "handler",
            self.settings.context,
            events,
            options.get("partitions", 1),
            options.get("start", "now"),
            options.get("order", "key"),
        )
        handler = declare(
            subscription,
            function if factory else bound(name, function),
            factory=factory,
            opened=session_of(function) if factory else None,
            retry=options.get("retry"),
            timeout=options.get("timeout", TIMEOUT),
            limit=options.get("limit", LIMIT),
            breaker=options.get("breaker"),
            role=options.get("role"),
        )
        self._declare(subscription)
        self._handlers[name] = handler

    def _declare(self, subscription: Subscription) -> None:
        if subscription.name in self._subscriptions:
            raise DeclarationError(
                f"the subscription {subscription.name!r} is declared twice: give one of them another name"
            )
        self._subscriptions[subscription.name] = subscription

    @property
    def subscriptions(self) -> tuple[Subscription, ...]:
        """What has been declared so far."""
        return tuple(self._subscriptions.values())

    @property
    def handlers(self) -> tuple[Handler, ...]:
        """Those of the subscriptions that a worker serves."""
        return tuple(self._handlers.values())

    async def migrate(self) -> list[Registered]:
        """Bring the schema up to date, then register the declared subscriptions and make their cursors.

        Refuses a migration that would break workers of an older release which are still running (docs/upgrading.md).
        """
        pool = self._opened()
        async with pool.autocommit() as conn:
            await migrate.migrate(conn, self.settings.schema)
        registered = await self._register(self._subscriptions.values())
        async with pool.autocommit() as conn:
            await generations.open_all(conn, self.subscriptions, self.settings.generation, self.settings.schema)
        return registered

    async def pause(self, name: str | None = None) -> None:
        """Let nobody take from this subscription from now on, or from any; what was taken before is finished."""
        async with self._opened().autocommit() as conn:
            await subscriptions.pause(conn, name, self.settings.schema)

    async def resume(self, name: str | None = None) -> None:
        """Take again from where it was paused, and close its breaker; its workers are woken.

        Without a name: undo a pause of everything. What was paused by its name stays so.
        """
        async with self._opened().autocommit() as conn:
            await subscriptions.resume(conn, name, self.settings.schema)

    async def replay(self, event_id: UUID, **options: Unpack[ReplayOptions]) -> list[Replayed]:
        """Let a dead letter be handled again, by one subscription or by every one that buried it.

        Its idempotency key stays, so what was handled meanwhile is skipped.
        """
        async with self._opened().autocommit() as conn:
            return await replay(conn, event_id, self.settings.schema, self._subscriptions.values(), **options)

    @property
    def dead_letters(self) -> DeadLetters:
        """What was given up on: by what went wrong, one by one; to be replayed or discarded, many at once."""
        return DeadLetters(self._opened, self.settings.schema)

    async def event(self, event_id: UUID) -> Story | None:
        """The whole life of an event until now, over all subscriptions; None if no such event is committed."""
        async with self._opened().autocommit() as conn:
            return await events.story(conn, event_id, self.settings.schema)

    async def withdraw(self, event_id: UUID, *, by: str | None = None, reason: str | None = None) -> list[Withdrawn]:
        """Keep an event from whoever has not handled it yet; says where it was too late. Audited."""
        async with self._opened().autocommit() as conn:
            return await events.withdraw(conn, event_id, by, reason, self.settings.schema)

    async def status(self) -> Status:
        """Schema, subscriptions and workers as they are now."""
        async with self._opened().autocommit() as conn:
            return await status(conn, self.settings.schema)

    # Dispatch

    def worker(
        self,
        *,
        handlers: Iterable[str] = (),
        exclude: Iterable[str] = (),
        classes: Iterable[str] = (),
        grace: Duration = GRACE,
    ) -> Worker:
        """A worker for the declared handlers: `await worker.run()`, or `async with app.worker():` inside a service.

        `handlers` and `exclude` are names, or patterns like `billing.*`. `classes`: also woken by events that were
        published with that `channel_class`.
        """
        pool, dsn = self._opened(), self._dsn
        assert dsn is not None
        chosen = self.chosen(handlers, exclude)
        return Worker(
            dsn=dsn,
            pool=pool,
            settings=self.settings,
            handlers=chosen,
            signals=self.signals,
            register=lambda: self._register([each.subscription for each in chosen]),
            classes=tuple(classes),
            grace=parse_duration(grace).total_seconds(),
        )

    def listener(self) -> EventListener:
        """An EventListener: `await app.listener().listen(channel="outbox_default", handler_name="a.b", handler=f)`."""
        return Listening(self.settings.context, self.settings.generation, self._working_for)

    @contextmanager
    def _working_for(self, handler: Handler, channel: str) -> Iterator[Worker]:
        pool, dsn = self._opened(), self._dsn
        assert dsn is not None
        self._declare(handler.subscription)
        try:
            yield Worker(
                dsn=dsn,
                pool=pool,
                settings=self.settings,
                handlers=[handler],
                signals=self.signals,
                register=lambda: self._register([handler.subscription]),
                channel=channel,
            )
        finally:
            del self._subscriptions[handler.name]

    async def drain(
        self, *, handlers: Iterable[str] = (), exclude: Iterable[str] = (), raise_on_failure: bool = False
    ) -> Drained:
        """Handle all that is due now, then return what came of it: for tests and scripts.

        With `raise_on_failure` the first error of a handler is raised; its event is parked or buried all the same.
        """
        self._opened()
        assert self._dsn is not None
        chosen = self.chosen(handlers, exclude)
        lanes = Lanes(self._dsn, 1, max((each.timeout for each in chosen), default=0) + 30)
        try:
            return await drain(
                chosen,
                lanes,
                self.signals,
                schema=self.settings.schema,
                generation=self.settings.generation,
                raise_on_failure=raise_on_failure,
            )
        finally:
            await lanes.close()

    def chosen(self, handlers: Iterable[str], exclude: Iterable[str]) -> list[Handler]:
        """The declared handlers by name or pattern; all but those excluded when none is named."""
        return choose(self._handlers.values(), tuple(handlers), tuple(exclude))

    async def _register(self, declared: Iterable[Subscription]) -> list[Registered]:
        registering, schema = list(declared), self.settings.schema
        async with self._opened().autocommit() as conn:
            await migrate.check_needed(conn, schema)
            if not self.settings.allow_orphans:
                await refuse_renamed(conn, registering, self._subscriptions, schema)
            return [await register(conn, each, schema) for each in registering]

    def _opened(self) -> Pool:
        if self._open is None or self._pool is None:
            raise ConfigError("the app is not open: use it inside `async with app:`")
        return self._pool

    async def _find_server(self, stack: AsyncExitStack) -> str:
        if self.settings.embedded:
            server = Embedded()
            stack.push_async_callback(asyncio.to_thread, server.stop)
            await asyncio.to_thread(server.start)
            await asyncio.to_thread(server.ensure_database, EMBEDDED_DATABASE)
            self._server = server
            logging.getLogger("outrider").info(server.describe(EMBEDDED_DATABASE))
            return server.dsn(EMBEDDED_DATABASE)
        if self.settings.dsn is None:
            raise ConfigError(
                "no database: pass dsn= or set OUTRIDER_DSN; for development, embedded=True or OUTRIDER_EMBEDDED=1 "
                "runs one in .outrider/pg"
            )
        return self.settings.dsn
