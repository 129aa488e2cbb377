"""The lease of a relay while it runs. A task renews it at half its time, also while a batch is being sent."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

from outrider.signals import RelayLease, Signals
from outrider.streams.lease import Lease


class HeldLease:
    def __init__(self, relay: str, lease: Lease, signals: Signals) -> None:
        self._relay = relay
        self._lease = lease
        self._signals = signals
        self._renewed: float | None = None
        """Monotonic time at which the last renewal was sent; None = the lease is not ours."""
        self._renewing: asyncio.Task[None] | None = None

    async def held(self) -> bool:
        """Whether the lease is ours; acquires it if it is free. Raises BrokerUnavailable."""
        if self._expired():
            self._lose()  # this process was stopped: nobody knows who had the lease meanwhile
        if self._renewed is None:
            asked = time.monotonic()
            if await self._lease.acquire():
                self._renewed = asked
                self._renewing = asyncio.create_task(self._keep(), name=f"outrider lease of {self._relay}")
                self._signals.emit(RelayLease(self._relay, "acquired"))
        return self._renewed is not None

    async def release(self) -> None:
        self._renewed = None
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.gather(self._renewing, return_exceptions=True)
        with suppress(Exception):  # it expires by itself
            await self._lease.release()

    async def _keep(self) -> None:
        """Until the lease is lost or released."""
        while self._renewed is not None:
            await asyncio.sleep(self._renewed + self._lease.ttl / 2 - time.monotonic())
            asked = time.monotonic()
            try:
                renewed = await self._lease.renew()
            except Exception:  # whatever a lease raises: it is tried again until the lease has expired
                if self._expired():
                    self._lose()
                    return  # who acquires it again starts another task
                await asyncio.sleep(self._lease.ttl / 10)
                continue
            if renewed:
                self._renewed = asked
                self._signals.emit(RelayLease(self._relay, "renewed"))
            else:
                self._lose()

    def _expired(self) -> bool:
        return self._renewed is not None and time.monotonic() >= self._renewed + self._lease.ttl

    def _lose(self) -> None:
        self._renewed = None
        if self._renewing is not None and self._renewing is not asyncio.current_task():
            self._renewing.cancel()
        self._signals.emit(RelayLease(self._relay, "lost"))
