"""What runs inside a worker beside its handlers: relays, inboxes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol


class Part(Protocol):
    @property
    def names(self) -> Sequence[str]:
        """Each has looked once for what there is to do before the worker counts as ready."""
        ...

    def start(self, looked: Callable[[str], None]) -> list[asyncio.Task[None]]:
        """The tasks: when one of them ends, something is wrong, or it was told to stop."""
        ...

    def poke(self, kind: str) -> None:
        """`kind` is what a notification said: the type of an event or a job."""
        ...

    def wake_all(self, reason: str) -> None: ...

    def stop(self) -> None:
        """Begin nothing more."""
        ...
