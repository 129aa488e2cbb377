"""`expect`: a test waits for signals of the app instead of sleeping."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import TypeVar

from outrider.app import Outrider
from outrider.signals import Signal

S = TypeVar("S", bound=Signal)


@asynccontextmanager
async def expect(
    app: Outrider,
    kind: type[S],
    predicate: Callable[[S], object] | None = None,
    *,
    times: int = 1,
    timeout: float = 10,  # noqa: ASYNC109 (the block's own time does not count)
) -> AsyncIterator[list[S]]:
    """At the end of the block, wait until `times` signals of this kind, for which the predicate is true, have come.

    `async with expect(app, Settled, lambda s: s.events) as seen:` and publish inside; `seen` holds the signals. A worker or
    app.drain() must do the work in this process. TimeoutError says which signals came instead.
    """
    loop = asyncio.get_running_loop()
    enough = asyncio.Event()
    seen: list[S] = []
    others: Counter[str] = Counter()
    broken: list[Exception] = []

    def hear(signal: Signal) -> None:
        try:
            fits = isinstance(signal, kind) and (predicate is None or bool(predicate(signal)))
        except Exception as error:
            broken.append(error)
            fits = False
        if isinstance(signal, kind) and fits:
            seen.append(signal)
        else:
            others[type(signal).__name__] += 1
        if broken or len(seen) >= times:
            loop.call_soon_threadsafe(enough.set)

    stop = app.signals.listen(hear)
    try:
        yield seen
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await enough.wait()
    finally:
        stop()
    if broken:
        raise broken[0]
    if not enough.is_set():
        fitting = "" if predicate is None else " that fits"
        came = ", ".join(f"{count} {name}" for name, count in others.items()) or "none"
        raise TimeoutError(
            f"{len(seen)} of {times} {kind.__name__}{fitting} within {timeout:g} s; other signals meanwhile: {came}. "
            "Is a worker of this app running, and is the publishing transaction committed?"
        )
