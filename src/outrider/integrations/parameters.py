"""Gives a handler the SQLAlchemy Session or AsyncSession that a parameter is annotated as, on its own transaction."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from inspect import Parameter, Signature
from typing import Any

from outrider.errors import DeclarationError
from outrider.worker.annotations import routine

_SESSIONS = {
    "sqlalchemy.orm.session.Session": False,
    "sqlalchemy.ext.asyncio.session.AsyncSession": True,
}
"""By the name of the class: whether it is async."""
_BY_TEXT = {name.rpartition(".")[2]: is_async for name, is_async in _SESSIONS.items()}


@dataclass(frozen=True, slots=True)
class _Asked:
    parameter: Parameter
    is_async: bool
    kind: type | None
    """The class that the annotation names; None where that is a text that cannot be resolved here."""

    def opened(self, ctx: Any) -> AbstractAsyncContextManager[Any]:
        from outrider.integrations.sessions import async_session_on

        return async_session_on(ctx.tx, self.kind)


def bound(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a handler that asks for a session, so that it takes (event, ctx). Other handlers are returned as they are."""
    asked = _session_asked_by(function)
    if asked is None:
        return function
    signature = inspect.signature(function)
    # Parameters with a default keep it.
    others = [
        each
        for each in signature.parameters.values()
        if each.name != asked.parameter.name and (each.default is Parameter.empty or each.name == "ctx")
    ]
    if not 1 <= len(others) <= 2:
        raise DeclarationError(f"{name}: a handler takes (event, session) or (event, ctx, session), not {signature}")
    is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004
    if is_async != asked.is_async:
        wants = "an async handler takes an AsyncSession" if is_async else "a blocking handler takes a Session"
        raise DeclarationError(f"{name}: {wants}, not {asked.parameter}")

    def call(event: Any, ctx: Any, session: Any) -> Any:
        given = dict(zip((each.name for each in others), (event, ctx), strict=False)) | {asked.parameter.name: session}
        arguments = signature.bind_partial()
        arguments.arguments.update({each: given[each] for each in signature.parameters if each in given})
        return function(*arguments.args, **arguments.kwargs)

    async def handle(event: Any, ctx: Any) -> None:
        async with asked.opened(ctx) as session:
            await call(event, ctx, session)

    def handle_blocking(event: Any, ctx: Any) -> Any:
        from outrider.integrations.sessions import session_on

        with session_on(ctx.tx, asked.kind) as session:
            return call(event, ctx, session)

    handler: Any = functools.update_wrapper(handle if is_async else handle_blocking, function, updated=())
    handler.__signature__ = Signature([others[0], Parameter("ctx", others[0].kind)])
    return handler  # type: ignore[no-any-return]


def session_of(factory: Callable[..., Any]) -> Callable[[Any], AbstractAsyncContextManager[Any]] | None:
    """Opens the session of `factory(session: AsyncSession) -> handler`; None for `factory(tx)`."""
    asked = _session_asked_by(factory)
    if asked is None:
        return None
    if not asked.is_async:
        raise DeclarationError(f"{factory!r} takes a Session, but what a factory makes is async: take an AsyncSession")
    return asked.opened


def _session_asked_by(function: Callable[..., Any]) -> _Asked | None:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    hints = _hints(function)
    found = [asked for each in parameters if (asked := _asked(each, hints.get(each.name, each.annotation))) is not None]
    if len(found) > 1:
        raise DeclarationError(f"{function!r} asks for two sessions; there is one transaction: ask for one")
    return found[0] if found else None


def _asked(parameter: Parameter, hint: object) -> _Asked | None:
    if isinstance(hint, str):
        is_async = _BY_TEXT.get(hint.rpartition(".")[2])
        return None if is_async is None else _Asked(parameter, is_async, None)
    for base in hint.__mro__ if isinstance(hint, type) else ():
        if (is_async := _SESSIONS.get(f"{base.__module__}.{base.__qualname__}")) is not None:
            return _Asked(parameter, is_async, hint)  # type: ignore[arg-type]
    if any(_asked(parameter, inner) is not None for inner in typing.get_args(hint)):
        raise DeclarationError(
            f"{parameter}: a handler always gets its session: annotate it as AsyncSession or Session alone"
        )
    return None


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    """The evaluated annotations; empty if one of them cannot be evaluated here."""
    function = function.__init__ if inspect.isclass(function) else routine(function)
    try:
        return typing.get_type_hints(function)
    except Exception:
        return {}
