"""Small types that a domain can depend on instead of Outrider. `app.publisher` and `app.listener` implement them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol, runtime_checkable

from outrider.envelope import Envelope

EventHandler = Callable[[Envelope], Awaitable[None]]
"""Handles one event."""
TransactionHandler = Callable[[Envelope, Any], Awaitable[None]]
"""Handles one event in a transaction, a psycopg AsyncConnection that commits together with the receipt of the event."""


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


@runtime_checkable
class TransactionListener(EventListener, Protocol):
    """An EventListener whose handlers may take the transaction."""

    async def listen(self, *, channel: str, handler_name: str, handler: EventHandler | TransactionHandler) -> None:
        """The same. A handler with two parameters gets the transaction as the second."""
