"""The W3C trace context that an event carries on, and the OpenTelemetry spans of those who write and handle it.

Spans are made only if OpenTelemetry is installed and the application has set a tracer provider. What errors say is
masked; payloads are never looked at. Samplers and span processors are the application's: one that raises costs a span,
never the work.
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
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
    _nobody = (api.ProxyTracerProvider, api.NoOpTracerProvider)

_known: tuple[Any, Tracer] | None = None
_told = set[str]()
_PARENT = re.compile(r"[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(?:-[!-~]*)?")
_MEMBER = re.compile(r"[a-z0-9][a-z0-9_*/@-]{0,255}=[ -+\--<>-~]{0,255}[!-+\--<>-~]")
STATE_CHARACTERS = 512
LONGEST_JSON = 16_000
"""Characters; a constraint of the log takes 16 KiB."""


class Message(NamedTuple):
    """What a span says of an event or a job."""

    id: object
    type: str
    carrier: Carrier


def current_trace() -> Carrier:
    """Of the current OpenTelemetry span, else of the event being handled."""
    carrier = None
    if INSTALLED:
        with _going_on():
            carrier = _carrier_of()
    return carrier or inherited.get()


def as_json(carrier: Carrier) -> str | None:
    """As it is stored. One that is too long for that is left out: an event must not fail for its trace."""
    text = None if carrier is None else json.dumps(carrier)
    return None if text is None or len(text) > LONGEST_JSON else text


def trace_id(carrier: Carrier) -> str | None:
    """The id by which a trace is found; None: the event belongs to none."""
    found = _PARENT.fullmatch((carrier or {}).get("traceparent", "")[:STATE_CHARACTERS])
    return None if found is None else found[1]


@contextmanager
def sending(verb: str, written: Iterable[Message]) -> Iterator[list[Carrier] | None]:
    """A producer span for each trace that is carried on, while they are written; yields what they carry from now on.

    None: as they are, nobody collects spans. The transaction may still roll back after the span has ended.
    """
    if (tracer := _tracer()) is None:
        yield None
        return
    messages = list(written)
    traces: dict[tuple[tuple[str, str], ...], list[Message]] = {}
    for each in messages:
        traces.setdefault(_key(each.carrier), []).append(each)
    spans = {key: _producer(tracer, verb, those) for key, those in traces.items()}
    carried: list[Carrier] | None = None
    with _going_on():
        carried = [_carrier_of(spans[_key(each.carrier)]) or each.carrier for each in messages]
    try:
        yield carried
    except BaseException as error:
        for span in spans.values():
            _blame(span, error)
        raise
    finally:
        for span in spans.values():
            with _going_on():
                span.end()


@dataclass(slots=True, eq=False)
class Handled:
    """What is, or was, being handled; its span ends when it is known what became of it."""

    span: Span
    context: Context
    token: Any = None
    ended_at: int | None = None

    def enter(self) -> None:
        with _going_on():
            self.token = contexts.attach(self.context)

    def leave(self) -> None:
        if self.token is not None:
            with _going_on():
                contexts.detach(self.token)
        self.stop()

    def stop(self) -> None:
        self.ended_at = time.time_ns()

    def end(self, outcome: str, error: BaseException | None = None) -> None:
        with _going_on():
            self.span.set_attribute("outrider.outcome", outcome)
        if error is not None:
            _blame(self.span, error)
        with _going_on():
            self.span.end(self.ended_at)


class Handling:
    """The consumer spans of one batch. They end with it: only then is it known whether what was done stays."""

    def __init__(self, tracer: Tracer, subscription: str) -> None:
        self._tracer = tracer
        self._subscription = subscription
        self._begun: list[Handled] = []

    def begin(self, messages: Sequence[Message], attempt: int, *, together: bool = False) -> Handled:
        """A first attempt goes on with the trace of its event; others, and whole batches, have one of their own, with
        links."""
        span: Span = api.INVALID_SPAN
        context = contexts.Context()
        with _going_on():
            span = self._start(messages, attempt, alone=attempt == 1 and not together)
            context = api.set_span_in_context(span, context)
        handled = Handled(span, context)
        self._begun.append(handled)
        return handled

    def _start(self, messages: Sequence[Message], attempt: int, *, alone: bool) -> Span:
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
        """With an error, the last one has failed, and what was done before it in the same batch is undone."""
        begun, self._begun = self._begun, []
        if error is not None and begun:
            begun.pop().end(outcome, error)
            outcome = "rolled_back"
        for each in begun:
            each.end(outcome)


def handling(subscription: str) -> Handling | None:
    """None: nobody collects spans."""
    tracer = _tracer()
    return None if tracer is None else Handling(tracer, subscription)


def _tracer() -> Tracer | None:
    global _known
    if not INSTALLED:
        return None
    with _going_on():
        if isinstance(provider := api.get_tracer_provider(), _nobody):
            return None
        if _known is None or _known[0] is not provider:
            _known = provider, provider.get_tracer("outrider")
        return _known[1]
    return None


@contextmanager
def _going_on() -> Iterator[None]:
    """Whatever the application's part of OpenTelemetry raises: it is told once, and the work goes on without the span."""
    try:
        yield
    except Exception as error:
        if (code := code_of(error)) not in _told:
            _told.add(code)
            logging.getLogger("outrider").warning(
                "a span is missing, and others may be: %s: look at the tracer provider, its sampler and its span processors",
                describe(error),
            )


def _producer(tracer: Tracer, verb: str, messages: Sequence[Message]) -> Span:
    with _going_on():
        carrier = messages[0].carrier
        parent = None if carrier == _carrier_of() else _context_of(carrier)
        attributes = _attributes(verb, "send", messages)
        return tracer.start_span(_name(verb, messages), parent, api.SpanKind.PRODUCER, attributes)
    return api.INVALID_SPAN


def _name(verb: str, messages: Sequence[Message]) -> str:
    types = {each.type for each in messages}
    return f"{verb} {messages[0].type}" if len(types) == 1 else verb


def _attributes(verb: str, kind: str, messages: Sequence[Message]) -> dict[str, Any]:
    """As OpenTelemetry's conventions for messaging name them."""
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
    """By our own words: what the error says may hold a password."""
    said = describe(error)
    with _going_on():
        span.set_attribute("error.type", code_of(error))
        span.add_event("exception", {"exception.type": type(error).__qualname__, "exception.message": said})
        span.set_status(api.Status(api.StatusCode.ERROR, said))


def _key(carrier: Carrier) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((carrier or {}).items()))


def _context_of(carrier: Carrier) -> Context:
    """Nothing of the context in which the worker was started is in it, nor anything that OpenTelemetry would complain of:
    it would quote it."""
    if carrier is None or trace_id(carrier) is None:
        return contexts.Context()
    given, state = {"traceparent": carrier["traceparent"]}, carrier.get("tracestate", "")
    if len(state) <= STATE_CHARACTERS and all(_MEMBER.fullmatch(each.strip(" \t")) for each in state.split(",")):
        given["tracestate"] = state
    return _propagator.extract(given, contexts.Context())


def _carrier_of(span: Span | None = None) -> Carrier:
    """Of the current span by default; None if it is none."""
    carrier: dict[str, str] = {}
    _propagator.inject(carrier, None if span is None else api.set_span_in_context(span, contexts.Context()))
    return carrier or None
