"""`outrider status --watch`: repeated looks, and the rates between two of them."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterable
from typing import Any, Self

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from outrider.cli.output.text import one_line
from outrider.cli.target import Target
from outrider.errors import OutriderError
from outrider.postgres.admin.status import Status, status
from outrider.postgres.connection import DatabaseError
from outrider.redaction import mask

PATIENCE = 10.0
"""Seconds after which a look counts as unanswered."""


class Rates:
    """Differences between two looks, per second of the database's clock. Unknown after the first look."""

    def __init__(self, before: Status | None, found: Status) -> None:
        self._seconds = 0.0 if before is None else (found.read_at - before.read_at).total_seconds()
        self._drawn = found.seq - before.seq if before else 0
        self._read = _differences(_positions(before), _positions(found))
        self._moved = _differences(_streams(before), _streams(found))

    @property
    def drawn(self) -> str:
        return self._rate(self._drawn)

    def read(self, subscription: str, generation: int) -> str:
        return self._rate(self._read.get((subscription, generation)))

    def moved(self, subscription: str, stream: str) -> str:
        return self._rate(self._moved.get((subscription, stream)))

    def fields(self) -> dict[str, Any] | None:
        if self._seconds <= 0:
            return None
        return {
            "seconds": self._seconds,
            "drawn": self._drawn / self._seconds,
            "read": [
                {"subscription": name, "generation": generation, "rate": number / self._seconds}
                for (name, generation), number in self._read.items()
            ],
            "streams": [
                {"subscription": name, "stream": stream, "rate": number / self._seconds}
                for (name, stream), number in self._moved.items()
            ],
        }

    def _rate(self, number: int | None) -> str:
        if number is None or self._seconds <= 0:
            return "?"
        rate = number / self._seconds
        return f"{rate:.1f}" if rate < 10 else f"{rate:.0f}"


class Screen:
    """Shows looks for people: updated in place on a terminal, else one block each."""

    def __init__(self, view: Callable[[Status, Rates], Iterable[RenderableType]]) -> None:
        self._view = view
        self._live: Live | None = None

    def __enter__(self) -> Self:
        console = Console()
        if console.is_terminal:
            self._live = Live(console=console, screen=True, auto_refresh=False)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, found: Status, rates: Rates) -> None:
        self._put(self._view(found, rates))

    def miss(self, said: str) -> None:
        self._put([Text(f"no answer: {one_line(said)}", style="bold red")])

    def _put(self, shown: Iterable[RenderableType]) -> None:
        if self._live is not None:
            self._live.update(Group(*shown), refresh=True)
            return
        for each in shown:
            Console().print(each, soft_wrap=isinstance(each, Text))
        typer.echo()


class JsonScreen:
    """Shows looks for programs: one JSON object per line."""

    def __init__(self, fields: Callable[[Status], dict[str, Any]]) -> None:
        self._fields = fields

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def show(self, found: Status, rates: Rates) -> None:
        typer.echo(json.dumps(self._fields(found) | {"rates": rates.fields()}, default=str))

    def miss(self, said: str) -> None:
        typer.echo(json.dumps({"error": said}))


async def watch(target: Target, every: float, screen: Screen | JsonScreen) -> None:
    """Runs until it is interrupted. The first look must succeed; later ones may fail and are repeated."""
    before: Status | None = None
    logging.getLogger("psycopg.pool").setLevel(logging.CRITICAL)  # we report a lost session ourselves
    with screen:
        while True:
            try:
                async with target.connect(migrated=False, every_tenant=True) as conn:
                    while True:
                        async with asyncio.timeout(PATIENCE):
                            found = await status(conn, target.schema)
                        screen.show(found, Rates(before, found))
                        before = found
                        await asyncio.sleep(every)
            except (OutriderError, DatabaseError, OSError) as error:
                if before is None:
                    raise
                said = f"none within {PATIENCE:g} s" if isinstance(error, TimeoutError) else mask(str(error).strip())
                screen.miss((said or type(error).__name__).splitlines()[0])
            await asyncio.sleep(every)


def _positions(found: Status | None) -> dict[tuple[str, int], int]:
    subscriptions = found.subscriptions if found else ()
    return {(each.name, position.generation): position.seq for each in subscriptions for position in each.positions}


def _streams(found: Status | None) -> dict[tuple[str, str], int]:
    subscriptions = found.subscriptions if found else ()
    return {(each.name, stream.name): stream.events for each in subscriptions for stream in each.streams}


def _differences(before: dict[Any, int], found: dict[Any, int]) -> dict[Any, int]:
    """Only of what was there before. A number that went back, as after a restore, counts as unchanged."""
    return {key: max(0, number - before[key]) for key, number in found.items() if key in before}
