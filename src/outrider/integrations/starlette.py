"""A lifespan for FastAPI and Starlette: the app is open, and its worker runs, as long as the service runs.

    api = FastAPI(lifespan=lifespan(app, worker=True))

Requests find the app as `request.state.outrider`. This module imports neither framework.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from outrider.retry import Duration

if TYPE_CHECKING:
    from outrider.app import Outrider

Lifespan = Callable[[Any], AbstractAsyncContextManager[Mapping[str, Any]]]


class WorkerOptions(TypedDict, total=False):
    """The options of `app.worker()`."""

    handlers: list[str]
    exclude: list[str]
    classes: list[str]
    only_class: bool
    grace: Duration
    slots: int
    queues: list[str]


def lifespan(
    app: Outrider,
    *,
    migrate: bool = False,
    worker: bool = False,
    inside: Callable[[Any], AbstractAsyncContextManager[Any]] | None = None,
    **options: Unpack[WorkerOptions],
) -> Lifespan:
    """What `FastAPI(lifespan=...)` and `Starlette(lifespan=...)` take.

    `migrate`: bring the schema up to date and register the subscriptions first; use a deploy step instead where the
    service's role lacks the rights. `worker`: run the declared handlers in this process; the options are those of
    `app.worker()`. `inside`: a lifespan of your own; it begins when the app is open and ends before it closes.
    """
    if options and not worker:
        raise TypeError(f"{', '.join(options)} is for a worker: pass worker=True")

    @asynccontextmanager
    async def running(service: Any) -> AsyncIterator[Mapping[str, Any]]:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(app)
            if migrate:
                await app.migrate()
            state: dict[str, Any] = {"outrider": app}
            if inside is not None:
                state |= await stack.enter_async_context(inside(service)) or {}
            if worker:
                await stack.enter_async_context(app.worker(**options))
            yield state

    return running
