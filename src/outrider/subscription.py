"""A subscription: a name, the events that it wants, and where it starts. No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal, get_args

from outrider import names
from outrider.errors import DeclarationError
from outrider.event import Event, spec_of

Kind = Literal["reader", "handler", "job", "relay", "inbox"]
Order = Literal["key", "none", "total"]
Start = Literal["now", "beginning"] | datetime
MOST_PARTITIONS = 1024


@dataclass(frozen=True, slots=True)
class Limits:
    """The options of a job that the database goes by."""

    lease: timedelta
    timeout: timedelta | None
    concurrency: int | None
    key_concurrency: int | None
    keep: timedelta | None


@dataclass(frozen=True, slots=True)
class Scope:
    """Which of its events a relay sends."""

    workspace_id: str | None = None
    """Only the events of this tenant; None = all."""
    forwards: bool = False
    """Also events that an inbox brought."""


@dataclass(frozen=True, slots=True)
class Subscription:
    name: str
    kind: Kind
    context: str
    events: tuple[type[Event], ...]
    """The classes that it decodes to. Empty: every type, undecoded; a job that is only enqueued; every inbox."""
    partitions: int = 1
    start: Start = "now"
    order: Order = "key"
    """What waits for a failed event: later events of its key, nothing, or everything."""
    limits: Limits | None = None
    """Only for a job."""
    scope: Scope | None = None
    """Only for a relay."""

    def __post_init__(self) -> None:
        if wrong := names.wrong_dotted(self.name, names.IDENTIFIER_BYTES):
            raise DeclarationError(f"the subscription name {wrong}")
        for model in self.events:
            if not isinstance(model, type) or not issubclass(model, Event):
                raise DeclarationError(f"{self.name}: {model!r} is not an Event class: pass the class, not its type")
            spec_of(model)
        n = self.partitions
        if not isinstance(n, int) or not 1 <= n <= MOST_PARTITIONS or n & (n - 1):
            raise DeclarationError(f"{self.name}: partitions={n!r} is not a power of two up to {MOST_PARTITIONS}")
        if self.order not in get_args(Order):
            raise DeclarationError(f"{self.name}: order={self.order!r} is none of {', '.join(get_args(Order))}")
        if self.order == "total" and n > 1:
            raise DeclarationError(f"{self.name}: order='total' needs partitions=1, not {n}")
        if isinstance(self.start, datetime):
            if self.start.utcoffset() is None:
                raise DeclarationError(f"{self.name}: start is a naive datetime: give it a time zone")
        elif self.start not in ("now", "beginning"):
            raise DeclarationError(f"{self.name}: start={self.start!r} is neither 'now', 'beginning' nor a datetime")

    @property
    def event_types(self) -> list[str] | None:
        return sorted({spec_of(model).type for model in self.events}) or ([] if self.kind in ("job", "inbox") else None)

    @property
    def start_text(self) -> str:
        return self.start.isoformat() if isinstance(self.start, datetime) else self.start
