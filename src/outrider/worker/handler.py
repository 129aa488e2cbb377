"""A declared handler: what it subscribes to, and how to call it whatever its kind."""

from __future__ import annotations

import fnmatch
import inspect
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from outrider import names
from outrider.errors import ConfigError, DeclarationError
from outrider.event import Event, spec_of
from outrider.retry import DEFAULT_RETRY_POLICY, Breaker, Duration, Policy, option_duration
from outrider.subscription import Subscription
from outrider.worker.annotations import annotation, class_of, refuse_unfit, takes_batch
from outrider.worker.handler_context import HandlerContext, SyncHandlerContext

TIMEOUT = 30.0
MARGIN = 5.0
"""The server ends a batch whose session is idle for this many seconds longer than the handler's timeout: its worker is
stopped or cut off. Between two events, one that lives says something after `dispatch.run.SILENT` seconds."""
LIMIT = 1000
BUDGET = 0.25

Call = Callable[[Any, Any], Awaitable[None]]
"""(event or events, context)"""


@dataclass(frozen=True, slots=True)
class Handler:
    subscription: Subscription
    call: Callable[[Any, Any], Any]
    """(event or events, context); blocking when `blocking`, else a coroutine function."""
    batch: bool
    """It takes the whole batch at once."""
    blocking: bool
    """It runs in a thread, with a SyncHandlerContext."""
    policy: Policy
    timeout: float
    limit: int
    budget: float
    """Seconds that handling one batch should take; the batch grows and shrinks towards it."""
    models: dict[str, type[Event]]
    """By event type; empty = it takes envelopes, of every type."""
    breaker: Breaker | None = None
    """Stops it for a while when everything fails."""
    role: str | None = None
    """Its statements run with this role; None = with that of the worker."""

    @property
    def name(self) -> str:
        return self.subscription.name


def declare(
    subscription: Subscription,
    function: Callable[..., Any],
    *,
    factory: bool = False,
    opened: Callable[[Any], AbstractAsyncContextManager[Any]] | None = None,
    retry: Policy | None = None,
    timeout: Duration = TIMEOUT,
    limit: int = LIMIT,
    breaker: Breaker | None = None,
    role: str | None = None,
) -> Handler:
    name = subscription.name
    if not subscription.events:
        raise DeclarationError(f"{name}: a handler needs the event classes that it handles")
    if not callable(function):
        raise DeclarationError(f"{name}: {function!r} is not callable")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise DeclarationError(f"{name}: a handler with a yield would never run: remove the yield")
    if retry is not None and not callable(getattr(retry, "delay", None)):
        raise DeclarationError(
            f"{name}: retry={retry!r} is not a policy: pass RetryPolicy(retries=...) or Backoff.table(...)"
        )
    if breaker is not None and not isinstance(breaker, Breaker):
        raise DeclarationError(f"{name}: breaker={breaker!r} is not a Breaker: write breaker=Breaker(failures=10)")
    if role is not None and (wrong := _wrong_role(role)):
        raise DeclarationError(f"{name}: role {wrong}")
    models: dict[str, type[Event]] = {}
    for model in subscription.events:
        other = models.setdefault(spec_of(model).type, model)
        if other is not model:
            raise DeclarationError(
                f"{name}: {other.__name__} and {model.__name__} are both {spec_of(model).type}: name the newest one"
            )
    if not isinstance(limit, int) or not 1 <= limit <= 10_000:
        raise DeclarationError(f"{name}: limit={limit!r} is not between 1 and 10,000")
    seconds = option_duration("timeout", timeout, name).total_seconds()
    if not seconds:
        raise DeclarationError(f"{name}: timeout is zero")
    blocking = not factory and not is_async(function)
    batch = not factory and takes_batch(function)
    refuse_unfit(
        name, "handler", _made_takes(function) if factory else annotation(function, 0), models.values(), batch=batch
    )
    return Handler(
        subscription=subscription,
        call=_made(function, opened or _tx) if factory else _with_context(name, function),
        batch=batch,
        blocking=blocking,
        policy=retry or DEFAULT_RETRY_POLICY,
        timeout=seconds,
        limit=limit,
        budget=BUDGET,
        models=models,
        breaker=breaker,
        role=role,
    )


def _wrong_role(role: object) -> str | None:
    if role == "none":
        return "'none' is Postgres' word for the session's own user: leave it out"
    return names.wrong_text(role, names.IDENTIFIER_BYTES)


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
    """The second parameter, when it is annotated as a class that is clearly something else."""
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
    """factory(tx) -> handler: made anew for every event, with that event's own transaction, or a session on it."""
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
    """What a handler that the factory makes is called with: known where the factory is a class."""
    return annotation(factory.__call__, 1) if inspect.isclass(factory) else Any


def idles(handlers: Iterable[Handler]) -> dict[str, float]:
    """The seconds for which the session of each may be idle in a batch."""
    return {each.name: each.timeout + MARGIN for each in handlers}


def roles_of(handlers: Iterable[Handler]) -> dict[str, str]:
    """By role: a handler that runs with it."""
    return {each.role: each.name for each in handlers if each.role is not None}


class Named(Protocol):
    @property
    def name(self) -> str: ...


N = TypeVar("N", bound=Named)


def choose(handlers: Iterable[N], wanted: Sequence[str], unwanted: Sequence[str]) -> list[N]:
    """Handlers and jobs by name or pattern; a pattern that fits none is a mistake, and said so."""
    known = {each.name: each for each in handlers}
    for pattern in (*wanted, *unwanted):
        if not fnmatch.filter(known, pattern):
            names = ", ".join(known) or "none"
            raise ConfigError(
                f"no handler, job, relay, inbox or rollup is called {pattern!r}; the app declares: {names}"
            )
    return [
        each
        for name, each in known.items()
        if (not wanted or any(fnmatch.fnmatchcase(name, pattern) for pattern in wanted))
        and not any(fnmatch.fnmatchcase(name, pattern) for pattern in unwanted)
    ]
