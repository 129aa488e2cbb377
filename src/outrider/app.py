"""`Outrider`: the composition root. It wires settings, pool, publisher and readers, and does no work of its own."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from types import TracebackType
from typing import Self, Unpack

from outrider import publish
from outrider.config import Settings
from outrider.envelope import Envelope
from outrider.errors import ConfigError, DeclarationError
from outrider.event import Event
from outrider.observe.log import write_line
from outrider.postgres import migrate, session
from outrider.postgres.embedded import Embedded
from outrider.postgres.pool import Pool
from outrider.postgres.registration import Registered, register
from outrider.publish import Publisher, PublishOptions
from outrider.reader import Reader
from outrider.signals import Signals
from outrider.subscription import Start, Subscription

EMBEDDED_DATABASE = "outrider"


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
        )
        self.signals = Signals()
        self.signals.listen(write_line)
        self._publisher = Publisher(self.settings, self.signals)
        self._subscriptions: dict[str, Subscription] = {}
        self._server: Embedded | None = None
        self._pool: Pool | None = None
        self._open: AsyncExitStack | None = None

    # Open and close

    async def __aenter__(self) -> Self:
        if self._open is not None:
            raise ConfigError("the app is open already: one `async with app:` is enough, its connections can be shared")
        async with AsyncExitStack() as stack:
            self._pool = Pool(await self._find_server(stack), self.settings.pool_size)
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
            await opened.aclose()

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
        """Append one event on your psycopg AsyncConnection, in your transaction."""
        return (await self._publisher.append(conn, [self._publisher.envelope(event, **options)]))[0]

    def publish_sync(self, conn: object, event: Event, **options: Unpack[PublishOptions]) -> Envelope:
        """Append one event on your blocking psycopg Connection, in your transaction."""
        return self._publisher.append_sync(conn, [self._publisher.envelope(event, **options)])[0]

    async def publish_many(self, conn: object, events: Iterable[Event | Envelope]) -> list[Envelope]:
        """Append many events with one statement; `app.envelope(event, key=...)` gives one of them options."""
        return await self._publisher.append(conn, publish.each(self._publisher, events))

    def publish_many_sync(self, conn: object, events: Iterable[Event | Envelope]) -> list[Envelope]:
        """Append many events with one statement on your blocking psycopg Connection."""
        return self._publisher.append_sync(conn, publish.each(self._publisher, events))

    def envelope(self, event: Event, **options: Unpack[PublishOptions]) -> Envelope:
        """What publish would write, without writing it: for publish_many."""
        return self._publisher.envelope(event, **options)

    # Subscribe

    def reader(self, *events: type[Event], name: str, partitions: int = 1, start: Start = "now") -> Reader:
        """Declare a subscription that you read yourself, in your own transactions; no events = every type."""
        subscription = Subscription(name, "reader", self.settings.context, events, partitions, start)
        if name in self._subscriptions:
            raise DeclarationError(f"the subscription {name!r} is declared twice: give one of them another name")
        self._subscriptions[name] = subscription
        return Reader(subscription, self.settings, self.signals)

    @property
    def subscriptions(self) -> tuple[Subscription, ...]:
        """What has been declared so far."""
        return tuple(self._subscriptions.values())

    async def migrate(self) -> list[Registered]:
        """Bring the schema up to date, then register the declared subscriptions and make their cursors."""
        pool = self._opened()
        async with pool.autocommit() as conn:
            await migrate.migrate(conn, self.settings.schema)
            return [await register(conn, each, self.settings.schema) for each in self._subscriptions.values()]

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
