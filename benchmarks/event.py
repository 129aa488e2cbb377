"""The event of every benchmark: about 150 bytes of payload, a thousand keys."""

from __future__ import annotations

from outrider import Event


class Measured(Event, type="bench.measured", key="customer"):
    customer: str
    note: str


def event(number: int) -> Measured:
    return Measured(customer=f"customer-{number % 1000}", note="x" * 110)
