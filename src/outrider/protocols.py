"""Three small types that a domain can depend on instead of Outrider. `app.publisher` and `app.listener` implement them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol, runtime_checkable

from outrider.envelope import Envelope

EventHandler = Callable[[Envelope], Awaitable[None]]
"""Handles one event."""


@runtime_checkable
class EventPublisher(Protocol):
    """Publishes in one transaction of the caller."""

    async def publish(self, envelope: Envelope) -> None:
        """Publish in the transaction that this publisher was made for."""


@runtime_checkable
class EventListener(Protocol):
    """Calls handlers with published events."""

    async def listen(self, *, channel: str, handler_name: str, handler: EventHandler) -> None:
        """Call `handler` for every event of the channel, until cancelled. `handler_name` identifies its receipts."""
