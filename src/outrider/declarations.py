"""What an app declares: readers, handlers, jobs, schedules, relays, inboxes, rollups, takeovers. The base of `Outrider`."""

from __future__ import annotations

import fnmatch
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from outrider import names
from outrider.config import Settings
from outrider.enqueue import Enqueuer
from outrider.errors import ConfigError, DeclarationError
from outrider.event import Event, spec_of
from outrider.integrations.parameters import bound, session_of
from outrider.job import Job
from outrider.reader import Reader
from outrider.schedule import Schedule, ScheduleOptions
from outrider.signals import Signals
from outrider.subscription import Start, Subscription
from outrider.worker.handler import Handler, HandlerOptions, NamedOptions, declare_handler
from outrider.worker.job_handler import JobHandler, JobOptions, declare_job
from outrider.worker.schedule_loop import Scheduled

if TYPE_CHECKING:
    from outrider.inbox.inbox import Inbox, InboxOptions
    from outrider.relay.relay import Relay, RelayOptions
    from outrider.rollup.rollup import Rollup, RollupOptions
    from outrider.streams.stream import Sink, Source
    from outrider.takeover import Takeover, TakeoverOptions

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Chosen:
    """The declarations that one worker serves."""

    handlers: list[Handler]
    jobs: list[JobHandler]
    relays: list[Relay]
    inboxes: list[Inbox]
    rollups: list[Rollup]

    def __bool__(self) -> bool:
        return bool(self.subscriptions or self.rollups)

    @property
    def classes(self) -> set[str]:
        """The channel classes of the handlers."""
        return {each.channel_class for each in self.handlers if each.channel_class is not None}

    def only(self, classes: Collection[str]) -> Chosen:
        """Only the handlers of these channel classes. Without classes: all that is of none."""
        if missing := sorted(set(classes) - self.classes):
            known = ", ".join(sorted(self.classes)) or "none"
            raise ConfigError(f"no handler is of the channel class {missing[0]!r}; there are: {known}")
        if classes:
            return Chosen([each for each in self.handlers if each.channel_class in classes], [], [], [], [])
        return replace(self, handlers=[each for each in self.handlers if each.channel_class is None])

    @property
    def subscriptions(self) -> list[Subscription]:
        """A rollup of events has its subscription among the handlers."""
        declared: list[Handler | JobHandler | Relay | Inbox] = [*self.handlers, *self.jobs]
        return [each.subscription for each in [*declared, *self.relays, *self.inboxes]]


class Declarations:
    settings: Settings
    signals: Signals
    _enqueuer: Enqueuer

    def __init__(self) -> None:
        self._takeovers: dict[str, Takeover] = {}
        self._subscriptions: dict[str, Subscription] = {}
        self._handlers: dict[str, Handler] = {}
        self._jobs: dict[str, JobHandler] = {}
        self._schedules: dict[str, Schedule] = {}
        self._relays: dict[str, Relay] = {}
        self._inboxes: dict[str, Inbox] = {}
        self._rollups: dict[str, Rollup] = {}
        self._readers: list[Reader] = []

    def reader(self, *events: type[Event], name: str, partitions: int = 1, start: Start = "now") -> Reader:
        """Declare a subscription that you read yourself, in your own transactions; no events = every type."""
        subscription = Subscription(name, "reader", self.settings.context, events, partitions, start)
        self._declare(subscription)
        reader = Reader(subscription, self.settings, self.signals)
        self._readers.append(reader)
        return reader

    def handler(self, *events: type[Event], **options: Unpack[NamedOptions]) -> Callable[[F], F]:
        """Declare a handler: short, database-only work, exactly once per event and handler.

        `@app.handler(OrderPlaced, name="shop.invoice")`. An async function, a blocking one (it runs in a thread) or one that
        takes a whole batch (`list[OrderPlaced]`). What it writes through `ctx.tx` commits together with its receipt.
        """

        for event in events:
            if not (isinstance(event, type) and issubclass(event, Event)):
                raise DeclarationError(
                    f"{event!r} is not an Event class: write @app.handler(OrderPlaced, name=...), with the class"
                )

        def declare_it(function: F) -> F:
            if not (name := options.get("name")):
                raise self._nameless("handler", function, events)
            self._add_handler(declare_handler(self.settings.context, events, bound(name, function), options))
            with suppress(AttributeError, TypeError):
                function.__outrider_handler__ = name  # type: ignore[attr-defined]
            return function

        return declare_it

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
        given, opened = {**options, "name": name}, session_of(factory)
        self._add_handler(declare_handler(self.settings.context, wanted, factory, given, factory=True, opened=opened))

    def job(
        self,
        job: type[Job] | None = None,
        *,
        on: type[Event] | Sequence[type[Event]] = (),
        name: str | None = None,
        **options: Unpack[JobOptions],
    ) -> Callable[[F], F]:
        """Declare the function of a job: `@app.job(SendReceipt)`. It runs outside of a transaction, at least once.

        Or subscribe a job to events: `@app.job(on=OrderPlaced, name="shop.ship")`. Then it gets the event. An async
        function, or a blocking one, which runs in a thread. A small return value is kept, in a receipt.
        """
        events = (on,) if isinstance(on, type) else tuple(on)
        if (job is None) == (not events):
            raise DeclarationError(
                "a job is for a Job class, @app.job(SendReceipt), or for events: @app.job(on=Event, name=...)"
            )
        for kind, classes in ((Job, (job,) if job is not None else ()), (Event, events)):
            for each in classes:
                if not (isinstance(each, type) and issubclass(each, kind)):
                    raise DeclarationError(f"{each!r} is not a {kind.__name__} class: pass the class itself")
        if job is not None and name is not None:
            raise DeclarationError(
                f"{name}: @app.job takes no name=: a job is named after its type, {spec_of(job).type!r}"
            )

        def declare_it(function: F) -> F:
            called = name if job is None else spec_of(job).type
            if not called:
                raise self._nameless("job", function, events)
            declared = declare_job(self.settings.context, job, events, called, function, options)
            self._declare(declared.subscription)
            self._jobs[called] = declared
            return function

        return declare_it

    def schedule(self, cron: str, job: Job, *, name: str | None = None, **options: Unpack[ScheduleOptions]) -> None:
        """Enqueue a job at certain times: `app.schedule("0 3 * * *", Report(), time_zone="Europe/Berlin")`.

        Any worker of this app enqueues it; each time is enqueued once, however many workers there are. The database
        remembers it by its `name`, by default the job's type.
        """
        if wrong := names.unknown_option("a schedule", options, [*ScheduleOptions.__annotations__, "name"]):
            raise TypeError(wrong)
        declared = Schedule(cron, job, name or "", **options)
        Scheduled.by(self._enqueuer, declared)
        if declared.name in self._schedules:
            raise DeclarationError(f"the schedule {declared.name!r} is declared twice: give one of them another name=")
        self._schedules[declared.name] = declared

    def relay(
        self, name: str, sink: Sink, *, events: Sequence[type[Event]] = (), **options: Unpack[RelayOptions]
    ) -> None:
        """Send events on to the streams of a broker, each once and in order.

        `app.relay("shop.out", RedisStreams("redis://...", stream="orders"), events=[OrderPlaced])`; without `events`: all
        events. A worker of this app or `outrider relay` runs it, one process at a time.
        """
        from outrider.relay.relay import Relay

        context, wanted = self.settings.context, tuple(events)
        declared = Relay.declare(options, name=name, context=context, sink=sink, events=wanted)
        self._declare(declared.subscription)
        self._relays[name] = declared

    def inbox(self, name: str, source: Source, **options: Unpack[InboxOptions]) -> None:
        """Bring the events of another service's stream into this log, each once and in order."""
        from outrider.inbox.inbox import Inbox

        self._add_inbox(Inbox.declare(options, name=name, context=self.settings.context, source=source))

    def replica(self, name: str, source: Source, *, table: str, **options: Unpack[InboxOptions]) -> None:
        """Keep a table up to date with the newest version of each row in a stream of the replica codec."""
        from outrider.inbox.inbox import Inbox

        context = self.settings.context
        self._add_inbox(Inbox.declare(options, name=name, context=context, source=source, table=table))

    def rollup(
        self,
        name: str,
        *,
        key: str | Sequence[str],
        single: type[Event] | str,
        rollup: type[Event] | str,
        table: str | None = None,
        events: Sequence[type[Event]] = (),
        **options: Unpack[RollupOptions],
    ) -> None:
        """Make one event of many small facts: rows that are inserted into a table, or events.

        `app.rollup("hub.imports", table="piece", key=["document"], single=PieceCreated, rollup=DocumentImported)`. Rows
        with the same key that come close together become one event with their count; a lone row becomes its own. Postgres
        groups them, whoever inserts the rows. `outrider rollup install hub.imports` installs it there.
        """
        from outrider.rollup.rollup import declare_rollup, stager

        declared = declare_rollup(self.settings.context, name, table, tuple(events), key, single, rollup, options)
        if name in self._rollups or name in self._subscriptions:
            raise DeclarationError(f"{name!r} is declared twice: give one of them another name")
        if other := next((each.name for each in self._rollups.values() if each.slug == declared.slug), None):
            raise DeclarationError(
                f"{name!r} and {other!r} would share their functions, {declared.slug}: rename one of them"
            )
        if declared.events:
            self._add_handler(stager(declared, lambda: self.settings.schema))
        self._rollups[name] = declared

    def takeover(self, table: str, **options: Unpack[TakeoverOptions]) -> None:
        """Declare how rows of an outbox or job table that is there already become events or jobs.

        `app.takeover("public.orders_outbox", type="event_type", key="order_id")`. `outrider takeover` carries it out
        (docs/takeover.md).
        """
        from outrider.takeover import Takeover

        if table in self._takeovers:
            raise DeclarationError(f"the takeover of {table!r} is declared twice")
        self._takeovers[table] = Takeover.declare(options, name=table)

    @property
    def takeovers(self) -> tuple[Takeover, ...]:
        return tuple(self._takeovers.values())

    def _nameless(self, kind: str, function: object, events: Sequence[type[Event]]) -> DeclarationError:
        suggested = f"{self.settings.context}.{getattr(function, '__name__', type(function).__name__)}".lower()
        if names.wrong_dotted(suggested, names.IDENTIFIER_BYTES):
            last = spec_of(events[0]).type.rpartition(".")[2] if events else "name"
            suggested = f"{self.settings.context}.{last}"
        classes = ", ".join(each.__name__ for each in events)
        given = classes if kind == "handler" else f"on={classes if len(events) == 1 else f'[{classes}]'}"
        return DeclarationError(
            f"a {kind} of events needs a name: write @app.{kind}({given}, name={suggested!r}). The database keeps its "
            "position and its receipts under this name. Keep it when you rename the function: under another name events "
            "are handled twice, or not at all"
        )

    def _add_handler(self, handler: Handler) -> None:
        self._declare(handler.subscription)
        self._handlers[handler.name] = handler

    def _add_inbox(self, inbox: Inbox) -> None:
        self._declare(inbox.subscription)
        self._inboxes[inbox.name] = inbox

    def _declare(self, subscription: Subscription) -> None:
        if subscription.name in self._subscriptions or subscription.name in self._rollups:
            raise DeclarationError(
                f"the subscription {subscription.name!r} is declared twice: give one of them another name"
            )
        self._subscriptions[subscription.name] = subscription

    @property
    def subscriptions(self) -> tuple[Subscription, ...]:
        """All declared subscriptions."""
        return tuple(self._subscriptions.values())

    @property
    def handlers(self) -> tuple[Handler, ...]:
        """The declared handlers, with those of rollups of events."""
        return tuple(self._handlers.values())

    @property
    def job_handlers(self) -> tuple[JobHandler, ...]:
        """The declared jobs."""
        return tuple(self._jobs.values())

    @property
    def schedules(self) -> tuple[Schedule, ...]:
        """The declared schedules."""
        return tuple(self._schedules.values())

    @property
    def scheduled(self) -> tuple[Scheduled, ...]:
        """The declared schedules, each with the job that it enqueues."""
        return tuple(Scheduled.by(self._enqueuer, each) for each in self._schedules.values())

    @property
    def relays(self) -> tuple[Relay, ...]:
        return tuple(self._relays.values())

    @property
    def inboxes(self) -> tuple[Inbox, ...]:
        """The declared inboxes and replicas."""
        return tuple(self._inboxes.values())

    @property
    def rollups(self) -> tuple[Rollup, ...]:
        return tuple(self._rollups.values())

    def chosen(self, wanted: Iterable[str] = (), unwanted: Iterable[str] = ()) -> Chosen:
        """What is declared under these names or patterns, without the unwanted. Nothing wanted: everything."""
        groups = (self._handlers, self._jobs, self._relays, self._inboxes, self._rollups)
        known = dict.fromkeys(name for group in groups for name in group)
        wanted, unwanted = tuple(wanted), tuple(unwanted)
        for pattern in (*wanted, *unwanted):
            if not fnmatch.filter(known, pattern):
                raise ConfigError(
                    f"no handler, job, relay, inbox or rollup is called {pattern!r}; the app declares: "
                    f"{', '.join(known) or 'none'}"
                )
        names = {name for name in known if _matches(name, wanted or ("*",)) and not _matches(name, unwanted)}
        return Chosen(
            [each for each in self.handlers if each.name in names],
            [each for each in self.job_handlers if each.name in names],
            [each for each in self.relays if each.name in names],
            [each for each in self.inboxes if each.name in names],
            [each for each in self.rollups if each.name in names],
        )


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
