"""The context variables of one call: what a handler or a job sets is its own, and ends with the call."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from contextvars import Context
from types import coroutine
from typing import Any


@coroutine
def run_in(context: Context, running: Any) -> Generator[Any, Any, Any]:
    """Run a coroutine in a context, in the task that awaits it."""
    try:
        awaited = context.run(running.send, None)
    except StopIteration as ended:
        return ended.value
    return (yield from _rest(context, running, awaited))


def begin_in(function: Callable[..., Any], context: Context, *args: Any) -> Awaitable[Any] | None:
    """Call an async function until it waits: returns the rest, or None if it has ended. Most handlers end at once, and this
    is cheaper."""
    running = function(*args)
    try:
        send = running.send
    except AttributeError:  # an awaitable that is no coroutine
        running = _awaiting(running)
        send = running.send
    try:
        awaited = context.run(send, None)
    except StopIteration:
        return None
    return _go_on(context, running, awaited)


def _rest(context: Context, running: Any, awaited: Any) -> Generator[Any, Any, Any]:
    step: Callable[..., Any]
    while True:
        try:
            step, given = running.send, (yield awaited)
        except BaseException as raised:
            step, given = running.throw, raised
        try:
            awaited = context.run(step, given)
        except StopIteration as ended:
            return ended.value


@coroutine
def _go_on(context: Context, running: Any, awaited: Any) -> Generator[Any, Any, Any]:
    return (yield from _rest(context, running, awaited))


async def _awaiting(running: Awaitable[Any]) -> Any:
    return await running


def call_after(context: Context | None, function: Callable[..., Any], *args: Any) -> Any:
    """Call a function with what a call has set. In a copy: a thread that was left behind may still be in the context."""
    return function(*args) if context is None else context.copy().run(function, *args)
