"""The W3C trace context that an event carries, and the OpenTelemetry spans of publishers and handlers.

Spans exist only if OpenTelemetry is installed and the application has set a tracer provider. Error messages are masked;
payloads are never read. A sampler or span processor of the application that raises costs a span, never the work.
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from outrider.error_text import code_of, describe

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, Tracer

Carrier = dict[str, str] | None

inherited: ContextVar[Carrier] = ContextVar("outrider_trace", default=None)
"""The trace context of the event whose handler is running."""

try:
    from opentelemetry import context as contexts
    from opentelemetry import trace as api
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError:
    INSTALLED = False
else:
    INSTALLED = True
    _propagator = TraceContextTextMapPropagator()
    _NO_PROVIDERS = (api.ProxyTracerProvider, api.NoOpTracerProvider)

_known: tuple[Any, Tracer] | None = None
_logged = set[str]()
_PARENT = re.compile(r"[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(?:-[!-~]*)?")
_MEMBER = re.compile(r"[a-z0-9][a-z0-9_*/@-]{0,255}=[ -+\--<>-~]{0,255}[!-+\--<>-~]")
W3C = ("traceparent", "tracestate")
STATE_CHARACTERS = 512
LONGEST_JSON = 16_000
"""The longest trace context that is stored, in characters. A constraint of the log allows 16 KiB."""


class TracedMessage(NamedTuple):
    """What a span tells about an event or a job."""

    id: object
    type: str
    carrier: Carrier


def current_trace() -> Carrier:
    """The trace context of the current OpenTelemetry span, else of the event that is being handled."""
    carrier = None
    if INSTALLED:
        try:
            carrier = _carrier_of()
        except Exception as error:
            _log_once(error)
    parent = inherited.get()
    return parent if carrier is None else carrier if parent is None else telemetry_of(parent) | carrier


def telemetry_of(carrier: Carrier) -> dict[str, str]:
    """What a trace context carries beside the trace itself."""
    return {name: text for name, text in (carrier or {}).items() if name not in W3C}


def as_json(carrier: Carrier) -> str | None:
    """The trace context as it is stored. One that is too long is left out: an event must not fail for its trace."""
    text = None if carrier is None else json.dumps(carrier)
    return None if text is None or len(text) > LONGEST_JSON else text


def trace_id(carrier: Carrier) -> str | None:
    """The id of the trace; None = the event belongs to no trace."""
    found = _PARENT.fullmatch((carrier or {}).get("traceparent", "")[:STATE_CHARACTERS])
    return None if found is None else found[1]


_NO_SPANS = nullcontext(None)


def sending(verb: str, written: Iterable[TracedMessage]) -> AbstractContextManager[list[Carrier] | None]:
    """Makes a producer span for each trace while the messages are written; yields their new trace contexts.

    None = nobody collects spans, and the trace contexts stay. The transaction may still roll back after the span ends.
    """
    tracer = _tracer()
    return _NO_SPANS if tracer is None else _producing(tracer, verb, list(written))


@contextmanager
def _producing(tracer: Tracer, verb: str, messages: list[TracedMessage]) -> Iterator[list[Carrier] | None]:
    traces: dict[tuple[str | None, ...], list[TracedMessage]] = {}
    for each in messages:
        traces.setdefault(_key(each.carrier), []).append(each)
    spans = {key: _producer(tracer, verb, those) for key, those in traces.items()}
    carried: list[Carrier] | None = None
    with _ignored():
        carried = [_carried(spans[_key(each.carrier)], each.carrier) for each in messages]
    try:
        yield carried
    except BaseException as error:
        for span in spans.values():
            _blame(span, error)
        raise
    finally:
        for span in spans.values():
            with _ignored():
                span.end()


@dataclass(slots=True, eq=False)
class EventSpan:
    """The span of one event, or of several that are handled together. It ends when the outcome is known."""

    span: Span
    context: Context
    token: Any = None
    ended_at: int | None = None

    def enter(self) -> None:
        with _ignored():
            self.token = contexts.attach(self.context)

    def leave(self) -> None:
        if self.token is not None:
            with _ignored():
                contexts.detach(self.token)
        self.stop()

    def stop(self) -> None:
        self.ended_at = time.time_ns()

    def end(self, outcome: str, error: BaseException | None = None) -> None:
        with _ignored():
            self.span.set_attribute("outrider.outcome", outcome)
        if error is not None:
            _blame(self.span, error)
        with _ignored():
            self.span.end(self.ended_at)


class BatchSpans:
    """The consumer spans of one batch. They end with the batch: only its commit decides the outcome."""

    def __init__(self, tracer: Tracer, subscription: str) -> None:
        self._tracer = tracer
        self._subscription = subscription
        self._begun: list[EventSpan] = []

    def begin(self, messages: Sequence[TracedMessage], attempt: int, *, together: bool = False) -> EventSpan:
        """A first attempt continues the trace of its event. Retries and whole batches get a new trace with links."""
        span: Span = api.INVALID_SPAN
        context = contexts.Context()
        with _ignored():
            span = self._start(messages, attempt, alone=attempt == 1 and not together)
            context = api.set_span_in_context(span, context)
        handled = EventSpan(span, context)
        self._begun.append(handled)
        return handled

    def _start(self, messages: Sequence[TracedMessage], attempt: int, *, alone: bool) -> Span:
        attributes = _attributes("process", "process", messages)
        attributes |= {"outrider.subscription": self._subscription, "outrider.attempt": attempt}
        origins = {_key(each.carrier): each.carrier for each in messages if each.carrier}
        found = (
            [] if alone else [api.get_current_span(_context_of(each)).get_span_context() for each in origins.values()]
        )
        return self._tracer.start_span(
            _name("process", messages),
            _context_of(messages[0].carrier if alone else None),
            api.SpanKind.CONSUMER,
            attributes,
            [api.Link(each) for each in found if each.is_valid],
        )

    def end(self, outcome: str, error: BaseException | None = None) -> None:
        """With an error: the last span has failed, and the batch before it is rolled back."""
        begun, self._begun = self._begun, []
        if error is not None and begun:
            begun.pop().end(outcome, error)
            outcome = "rolled_back"
        for each in begun:
            each.end(outcome)


def collected() -> bool:
    """Somebody collects spans."""
    return _tracer() is not None


def handling(subscription: str) -> BatchSpans | None:
    """None = nobody collects spans."""
    tracer = _tracer()
    return None if tracer is None else BatchSpans(tracer, subscription)


def _tracer() -> Tracer | None:
    global _known
    if not INSTALLED:
        return None
    try:
        if type(provider := api.get_tracer_provider()) in _NO_PROVIDERS:  # isinstance costs more: they are abstract
            return None
        if _known is None or _known[0] is not provider:
            _known = provider, provider.get_tracer("outrider")
        return _known[1]
    except Exception as error:
        _log_once(error)
        return None


@contextmanager
def _ignored() -> Iterator[None]:
    """Goes on without the span where the application's OpenTelemetry code fails."""
    try:
        yield
    except Exception as error:
        _log_once(error)


def _log_once(error: Exception) -> None:
    """Once for each kind of error."""
    if (code := code_of(error)) not in _logged:
        _logged.add(code)
        logging.getLogger("outrider").warning(
            "a span is missing, and others may be: %s: look at the tracer provider, its sampler and its span processors",
            describe(error),
        )


def _producer(tracer: Tracer, verb: str, messages: Sequence[TracedMessage]) -> Span:
    with _ignored():
        carrier = messages[0].carrier
        parent = None if _key(carrier) == _key(_carrier_of()) else _context_of(carrier)
        attributes = _attributes(verb, "send", messages)
        return tracer.start_span(_name(verb, messages), parent, api.SpanKind.PRODUCER, attributes)
    return api.INVALID_SPAN


def _name(verb: str, messages: Sequence[TracedMessage]) -> str:
    types = {each.type for each in messages}
    return f"{verb} {messages[0].type}" if len(types) == 1 else verb


def _attributes(verb: str, kind: str, messages: Sequence[TracedMessage]) -> dict[str, Any]:
    """Named by OpenTelemetry's conventions for messaging."""
    found: dict[str, Any] = {
        "messaging.system": "outrider",
        "messaging.operation.name": verb,
        "messaging.operation.type": kind,
    }
    if len({each.type for each in messages}) == 1:
        found["messaging.destination.name"] = messages[0].type
    if len(messages) == 1:
        found["messaging.message.id"] = str(messages[0].id)
    else:
        found["messaging.batch.message_count"] = len(messages)
    return found


def _blame(span: Span, error: BaseException) -> None:
    """Records our own description of the error: its message may hold a password."""
    said = describe(error)
    with _ignored():
        span.set_attribute("error.type", code_of(error))
        span.add_event("exception", {"exception.type": type(error).__qualname__, "exception.message": said})
        span.set_status(api.Status(api.StatusCode.ERROR, said))


def _key(carrier: Carrier) -> tuple[str | None, ...]:
    """Of the trace alone."""
    return tuple((carrier or {}).get(name) for name in W3C)


def _carried(span: Span, carrier: Carrier) -> Carrier:
    """The trace context of the span, with the telemetry of the message."""
    found = _carrier_of(span)
    return carrier if found is None else telemetry_of(carrier) | found


def _context_of(carrier: Carrier) -> Context:
    """A context with nothing of the worker's own. An invalid trace context is left out: OpenTelemetry would log it."""
    if carrier is None or trace_id(carrier) is None:
        return contexts.Context()
    given, state = {"traceparent": carrier["traceparent"]}, carrier.get("tracestate", "")
    if len(state) <= STATE_CHARACTERS and all(_MEMBER.fullmatch(each.strip(" \t")) for each in state.split(",")):
        given["tracestate"] = state
    return _propagator.extract(given, contexts.Context())


def _carrier_of(span: Span | None = None) -> Carrier:
    """The trace context of a span, by default of the current one; None if there is none."""
    if span is None and api.get_current_span() is api.INVALID_SPAN:
        return None
    carrier: dict[str, str] = {}
    _propagator.inject(carrier, None if span is None else api.set_span_in_context(span, contexts.Context()))
    return carrier or None
