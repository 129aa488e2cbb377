"""What a relay is: which events go to which sink, and what happens to those that the broker refuses. Values only."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Literal, TypedDict, get_args

from outrider import names
from outrider.errors import ConfigError, DeclarationError
from outrider.event import Event
from outrider.retry import Duration, option_duration
from outrider.streams.lease import Lease
from outrider.streams.stream import Sink
from outrider.subscription import Scope, Start, Subscription

OnRejected = Literal["bury", "halt"]
MOST_BATCH = 10_000
POLL = timedelta(milliseconds=500)
DEADLINE = timedelta(seconds=10)


class RelayOptions(TypedDict, total=False):
    workspace_id: str | None
    """Send only the events of this tenant, under its context. Default: all."""
    start: Start
    """For a new relay: "now" (the default), "beginning" or a time."""
    poll: Duration
    """How often it looks when nothing wakes it. Default 500 ms."""
    batch: int
    """The most events of one append. Default 500."""
    forward: bool
    """Send also what an inbox brought. Default: only what was born here, so that loops cannot form."""
    publish_max_attempts: int
    """How often the broker may reject one event; an outage does not count. Default 8."""
    on_rejected: OnRejected
    """After that: "bury" (the default): it becomes a dead letter, and the stream goes on; "halt": the stream waits."""
    deadline: Duration
    """How long one append may take before the broker counts as down. Default 10 s."""
    lease: Lease | None
    """Another lock, beside that of the cursor: RedisLease. Default: none."""


@dataclass(frozen=True, slots=True)
class Relay:
    subscription: Subscription
    sink: Sink
    poll: float
    batch: int
    publish_max_attempts: int
    on_rejected: OnRejected
    deadline: float
    lease: Lease | None

    @property
    def name(self) -> str:
        return self.subscription.name

    @property
    def workspace_id(self) -> str | None:
        scope = self.subscription.scope
        return None if scope is None else scope.workspace_id


def declare_relay(context: str, name: str, sink: Sink, events: tuple[type[Event], ...], options: RelayOptions) -> Relay:
    if wrong := names.unknown_option("a relay", options, RelayOptions.__annotations__):
        raise TypeError(wrong)
    for verb in ("append", "tail", "end", "stream_of"):
        if not callable(getattr(sink, verb, None)):
            raise DeclarationError(
                f"{name}: {sink!r} is no sink: it has no {verb}(). RedisStreams and JetStream are sinks"
            )
    workspace_id = options.get("workspace_id")
    if workspace_id is not None and (wrong := names.wrong_text(workspace_id, names.WORKSPACE_BYTES)):
        raise DeclarationError(f"{name}: workspace_id {wrong}")
    batch, most = options.get("batch", 500), options.get("publish_max_attempts", 8)
    if type(batch) is not int or not 1 <= batch <= MOST_BATCH:
        raise DeclarationError(f"{name}: batch={batch!r} is not a whole number from 1 to {MOST_BATCH}")
    kept = getattr(sink, "max_len", None)
    if kept is not None and kept < 2 * batch:
        raise DeclarationError(
            f"{name}: max_len={kept} keeps less than two batches of {batch}: after a crash nobody could say what was sent. "
            "Keep more, or send smaller batches"
        )
    if type(most) is not int or most < 1:
        raise DeclarationError(f"{name}: publish_max_attempts={most!r} is not a whole number from 1")
    on_rejected = options.get("on_rejected", "bury")
    if on_rejected not in get_args(OnRejected):
        raise DeclarationError(f"{name}: on_rejected={on_rejected!r} is none of {', '.join(get_args(OnRejected))}")
    poll = _positive(name, "poll", options.get("poll", POLL))
    deadline = _positive(name, "deadline", options.get("deadline", DEADLINE))
    scope = Scope(workspace_id, options.get("forward", False))
    subscription = Subscription(name, "relay", context, events, 1, options.get("start", "now"), "total", scope=scope)
    return Relay(subscription, sink, poll, batch, most, on_rejected, deadline, options.get("lease"))


def only_stream(sink: Sink) -> str | None:
    """Of a sink that writes to one; None for one that spreads over several."""
    try:
        name: str | None = getattr(sink, "stream", None)
    except ConfigError:
        return None
    return name


def _positive(name: str, field: str, value: Duration) -> float:
    seconds = option_duration(field, value, name).total_seconds()
    if seconds <= 0:
        raise DeclarationError(f"{name}: {field}={value!r} is no time at all")
    return seconds
