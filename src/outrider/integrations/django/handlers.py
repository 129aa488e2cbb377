"""`@orm`: a blocking handler whose Django queries belong to the handler's transaction."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial, wraps
from typing import Any, TypeVar, overload

from outrider.errors import DeclarationError
from outrider.integrations.django.lent import lent
from outrider.worker.handler_context import SyncHandlerContext

F = TypeVar("F", bound=Callable[..., Any])


@overload
def orm(function: F, /) -> F: ...
@overload
def orm(*, using: str = "default") -> Callable[[F], F]: ...
def orm(function: Any = None, /, *, using: str = "default") -> Any:
    """Below `@app.handler(...)`: while the handler runs, `connections[using]` of its thread is the handler's transaction.

    What the ORM writes commits together with the receipt, or not at all; `atomic()` inside makes savepoints.
    """
    if function is None:
        return partial(_decorated, using=using)
    if isinstance(function, str):
        raise DeclarationError(f"@orm takes the alias by name: write @orm(using={function!r})")
    return _decorated(function, using=using)


def _decorated(function: Callable[..., Any], *, using: str) -> Callable[..., Any]:
    called = function if inspect.isroutine(function) else type(function).__call__.__get__(function)
    name = getattr(function, "__name__", type(function).__name__)
    if hasattr(function, "__outrider_handler__"):
        raise DeclarationError(
            f"{name}: @orm stands above @app.handler, which has already taken the handler: put it below"
        )
    if inspect.iscoroutinefunction(called) or inspect.isasyncgenfunction(called):
        raise DeclarationError(
            f"{name}: @orm is for blocking handlers, since Django's ORM blocks: write `def` instead of `async def`, and it "
            "runs in a thread"
        )
    if inspect.isgeneratorfunction(called):
        raise DeclarationError(f"{name}: a handler with a yield would never run: remove the yield")
    signature = inspect.signature(called)
    takes_ctx = _fits(signature, 2)
    if not takes_ctx and not _fits(signature, 1):
        raise DeclarationError(f"{name}: a handler takes (event, ctx) or (event), not {signature}")

    @wraps(called)
    def call(event: Any, ctx: SyncHandlerContext | None = None) -> Any:
        if ctx is None:  # called by hand, in the caller's own transaction
            return called(event)
        with lent(using, ctx.tx):
            return called(event, ctx) if takes_ctx else called(event)

    # The context is wanted here, whether the handler takes it or not.
    given = list(signature.parameters.values())[: 2 if takes_ctx else 1]
    ctx = inspect.Parameter("ctx", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    call.__signature__ = inspect.Signature([*given, ctx][:2])  # type: ignore[attr-defined]
    call.__name__ = name
    return call


def _fits(signature: inspect.Signature, count: int) -> bool:
    try:
        signature.bind(*range(count))
    except TypeError:
        return False
    return True
