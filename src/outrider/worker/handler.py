"""A declared handler: what it subscribes to, and how to call it whatever its kind."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import MISSING, dataclass, field
from typing import Any, ClassVar, TypedDict

from outrider import names
from outrider.errors import DeclarationError
from outrider.event import Event, spec_of
from outrider.options import Declaration, a_function, option, optional, policy, seconds, text, whole, word
from outrider.outcome import Classifier
from outrider.retry import DEFAULT_RETRY_POLICY, Breaker, Duration, Policy
from outrider.subscription import Order, Start, Subscription
from outrider.worker.annotations import annotation, class_of, refuse_unfit, takes_batch
from outrider.worker.handler_context import HandlerContext, SyncHandlerContext

MARGIN = 5.0
"""Seconds beyond the handler's timeout after which the server ends an idle session in a batch: its worker is stopped or cut
off. Between two events a live worker sends a query every `batch_runner.SILENT` seconds."""

Call = Callable[[Any, Any], Awaitable[None]]
"""(event or events, context)"""


class HandlerOptions(TypedDict, total=False):
    """The keyword arguments of app.subscribe, and with a name those of app.handler. `Handler` explains them."""

    partitions: int
    start: Start
    order: Order
    retry: Policy
    classify: Classifier | None
    timeout: Duration
    limit: int
    breaker: Breaker | None
    role: str | None
    channel_class: str | None


class NamedOptions(HandlerOptions):
    name: str


def _breaker(whose: str, option: str, value: Any) -> Breaker:
    if not isinstance(value, Breaker):
        raise DeclarationError(f"{whose}: {option}={value!r} is not a Breaker: write breaker=Breaker(failures=10)")
    return value


def _role(whose: str, option: str, value: Any) -> str:
    if value == "none":
        raise DeclarationError(f"{whose}: {option} 'none' is Postgres' word for the session's own user: leave it out")
    role: str = text(names.IDENTIFIER_BYTES)(whose, option, value)
    return role


@dataclass(frozen=True, kw_only=True)
class Handler(Declaration):
    kind: ClassVar = "a handler"

    context: str
    events: tuple[type[Event], ...]
    call: Callable[[Any, Any], Any]
    """(event or events, context); blocking when `blocking`, else a coroutine function."""
    batch: bool = False
    """It takes the whole batch at once."""
    blocking: bool = False
    """It runs in a thread, with a SyncHandlerContext."""

    name: str = option(MISSING)
    """The name of its subscription, `context.name`. The database keeps its position and receipts under this name."""
    partitions: int = option(1)
    """How many sessions can handle its events at the same time: a power of two."""
    start: Start = option("now")
    """Where a new subscription starts: "now", "beginning" or a time."""
    order: Order = option("key")
    """What waits for a failed event: "key": later events of its key; "none": nothing; "total": everything."""
    retry: Policy = option(DEFAULT_RETRY_POLICY, policy)
    """When a failed event is tried again, and when it becomes a dead letter."""
    classify: Classifier | None = option(None, optional(a_function))
    """A function that gets an error of the handler and returns what it counts as: Bury("why"), Retry(), Snooze("1m") or
    another exception. None = the error counts as it is."""
    timeout: float = option("30s", seconds)
    """How long one call may take."""
    limit: int = option(1000, whole(1, 10_000))
    """The most events of one transaction; fewer when they take long."""
    breaker: Breaker | None = option(None, optional(_breaker))
    """Stops the handler for a while when everything fails, then probes. None = never."""
    role: str | None = option(None, optional(_role))
    """Statements through `ctx.tx` run with this role; the worker's user must be a member. None = the worker's own."""
    channel_class: str | None = option(None, optional(word))
    """The class of workers that handle its events: those with `--class NAME --only-class`. Workers without `--only-class`
    handle them too."""

    subscription: Subscription = field(init=False)
    models: dict[str, type[Event]] = field(init=False)
    """By event type; empty = it takes envelopes, of every type."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if "." not in self.name:
            raise DeclarationError(
                f"the handler name {self.name!r} has no context: write name={f'{self.context}.{self.name}'!r}. Handlers of "
                "all contexts keep their positions and receipts in one table"
            )
        subscription = Subscription(
            self.name, "handler", self.context, self.events, self.partitions, self.start, self.order
        )
        models: dict[str, type[Event]] = {}
        for model in self.events:
            other = models.setdefault(spec_of(model).type, model)
            if other is not model:
                raise DeclarationError(
                    f"{self.name}: {other.__name__} and {model.__name__} are both {spec_of(model).type}: name the newest one"
                )
        object.__setattr__(self, "subscription", subscription)
        object.__setattr__(self, "models", models)


def declare_handler(
    context: str,
    events: tuple[type[Event], ...],
    function: Callable[..., Any],
    options: Mapping[str, Any],
    *,
    factory: bool = False,
    opened: Callable[[Any], AbstractAsyncContextManager[Any]] | None = None,
) -> Handler:
    """`factory`: the function makes the handler, from the transaction or from the session that `opened` makes of it."""
    name = options["name"]
    if not events:
        raise DeclarationError(f"{name}: a handler needs the event classes that it handles")
    refuse_uncallable(name, "handler", function)
    batch = not factory and takes_batch(function)
    declared = Handler.declare(
        options,
        context=context,
        events=events,
        call=_made(function, opened or _tx) if factory else _with_context(name, function),
        batch=batch,
        blocking=not factory and not is_async(function),
    )
    takes = _made_takes(function) if factory else annotation(function, 0)
    refuse_unfit(name, "handler", takes, declared.models.values(), batch=batch)
    return declared


def refuse_uncallable(name: str, what: str, function: Any) -> None:
    if not callable(function):
        raise DeclarationError(f"{name}: {function!r} is not callable")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise DeclarationError(f"{name}: a {what} with a yield would never run: remove the yield")


def is_async(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


def _with_context(name: str, function: Callable[..., Any]) -> Callable[[Any, Any], Any]:
    """Handlers may leave out the context."""
    match positional(function):
        case 2:
            if (wrong := second_is_no(function, HandlerContext, SyncHandlerContext)) is not None:
                raise DeclarationError(f"{name}: the second parameter of a handler is its context, not {wrong}")
            return function
        case 1:
            return lambda event, _: function(event)
        case _:
            raise DeclarationError(
                f"{name}: a handler takes (event, ctx) or (event), not {inspect.signature(function)}"
            )


def second_is_no(function: Callable[..., Any], *contexts: type) -> inspect.Parameter | None:
    """The second parameter, if it is annotated as a class that is none of these contexts."""
    kind = class_of(annotation(function, 1))
    if kind is None or kind is object or issubclass(kind, contexts):
        return None
    return list(inspect.signature(function).parameters.values())[1]


def positional(function: Callable[..., Any]) -> int | None:
    """How many of (event, ctx) it takes; None if neither fits."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return 2
    for count in (2, 1):
        try:
            signature.bind(*range(count))
        except TypeError:
            continue
        return count
    return None


def _tx(ctx: HandlerContext) -> AbstractAsyncContextManager[Any]:
    return nullcontext(ctx.tx)


def _made(factory: Callable[..., Any], opened: Callable[[Any], AbstractAsyncContextManager[Any]]) -> Call:
    """Calls factory(tx) for every event, then the handler that it returns."""
    counts: dict[object, int | None] = {}

    async def call(event: Any, ctx: HandlerContext) -> None:
        async with opened(ctx) as tx:
            handler = factory(tx)
            shape = getattr(handler, "__code__", None) or getattr(handler, "__func__", None) or type(handler)
            if shape not in counts:
                counts[shape] = positional(handler)
            result = handler(event, ctx) if counts[shape] == 2 else handler(event)
            if inspect.isawaitable(result):
                await result

    return call


def _made_takes(factory: Callable[..., Any]) -> Any:
    """The annotation of the first parameter of a handler that the factory makes. Known only if the factory is a class."""
    return annotation(factory.__call__, 1) if inspect.isclass(factory) else Any


def idles(handlers: Iterable[Handler]) -> dict[str, float]:
    """By handler: the seconds for which its session may be idle in a batch."""
    return {each.name: each.timeout + MARGIN for each in handlers}


def roles_of(handlers: Iterable[Handler]) -> dict[str, str]:
    """By role: a handler that runs with it."""
    return {each.role: each.name for each in handlers if each.role is not None}
