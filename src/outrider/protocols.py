"""What a domain depends on instead of Outrider: three small types. Their adapters are `app.publisher` and `app.listener`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol, runtime_checkable

from outrider.envelope import Envelope

EventHandler = Callable[[Envelope], Awaitable[None]]
"""Acts on one event."""


@runtime_checkable
class EventPublisher(Protocol):
    """Publishes in one transaction of its caller's."""

    async def publish(self, envelope: Envelope) -> None:
        """With the transaction that this publisher was made for."""


@runtime_checkable
class EventListener(Protocol):
    """Calls handlers with what was published."""

    async def listen(self, *, channel: str, handler_name: str, handler: EventHandler) -> None:
        """Call `handler` for every event of the channel, until cancelled; what it has handled is kept by `handler_name`."""
