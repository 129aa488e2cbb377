"""What a relay is: which events go to which sink, and what happens to those that the broker refuses. Values only."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal, TypedDict

from outrider import names
from outrider.errors import ConfigError, DeclarationError
from outrider.event import Event
from outrider.options import Declaration, one_of, option, optional, seconds, text, whole
from outrider.retry import Duration
from outrider.streams.lease import Lease
from outrider.streams.stream import Sink
from outrider.subscription import Scope, Start, Subscription

OnRejected = Literal["bury", "halt"]
MOST_BATCH = 10_000


class RelayOptions(TypedDict, total=False):
    """The keyword arguments of app.relay. `Relay` explains them."""

    workspace_id: str | None
    start: Start
    poll: Duration | None
    batch: int
    forward: bool
    publish_max_attempts: int
    on_rejected: OnRejected
    deadline: Duration
    lease: Lease | None


@dataclass(frozen=True, kw_only=True)
class Relay(Declaration):
    kind: ClassVar = "a relay"

    context: str
    sink: Sink
    events: tuple[type[Event], ...]
    workspace_id: str | None = option(None, optional(text(names.WORKSPACE_BYTES)))
    """Send only the events of this tenant, under its context. None = all events."""
    start: Start = option("now")
    """Where a new relay starts: "now", "beginning" or a time."""
    poll: float | None = option(None, optional(seconds))
    """How often it looks when no notification wakes it. None = as often as handlers do."""
    batch: int = option(500, whole(1, MOST_BATCH))
    """The most events of one append."""
    forward: bool = option(False)
    """Send also events that an inbox brought. By default it does not, so that loops cannot form."""
    publish_max_attempts: int = option(8, whole(1, 2**31 - 1))
    """How often the broker may reject one event. An outage does not count."""
    on_rejected: OnRejected = option("bury", one_of(OnRejected))
    """After that: "bury": the event becomes a dead letter, and the stream goes on; "halt": the stream waits."""
    deadline: float = option("10s", seconds)
    """How long one append may take before the broker counts as down."""
    lease: Lease | None = option(None)
    """Another lock beside that of the cursor: RedisLease."""
    subscription: Subscription = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        for verb in ("append", "tail", "end", "stream_of"):
            if not callable(getattr(self.sink, verb, None)):
                raise DeclarationError(
                    f"{self.name}: {self.sink!r} is no sink: it has no {verb}(). RedisStreams and JetStream are sinks"
                )
        kept = getattr(self.sink, "max_len", None)
        if kept is not None and kept < 2 * self.batch:
            raise DeclarationError(
                f"{self.name}: max_len={kept} keeps less than two batches of {self.batch}: after a crash nobody could say "
                "what was sent. Keep more, or send smaller batches"
            )
        scope = Scope(self.workspace_id, self.forward)
        subscription = Subscription(self.name, "relay", self.context, self.events, 1, self.start, "total", scope=scope)
        object.__setattr__(self, "subscription", subscription)


def only_stream(sink: Sink) -> str | None:
    """Of a sink that writes to one; None for one that spreads over several."""
    try:
        name: str | None = getattr(sink, "stream", None)
    except ConfigError:
        return None
    return name
