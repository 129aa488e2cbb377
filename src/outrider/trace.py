"""The W3C trace context that an event carries on: of the current OpenTelemetry span, else of the event being handled."""

from __future__ import annotations

from contextvars import ContextVar

inherited: ContextVar[dict[str, str] | None] = ContextVar("outrider_trace", default=None)
"""The trace context of the event whose handler is running."""

try:
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError:

    def current_trace() -> dict[str, str] | None:
        return inherited.get()

else:
    _propagator = TraceContextTextMapPropagator()

    def current_trace() -> dict[str, str] | None:
        carrier: dict[str, str] = {}
        _propagator.inject(carrier)
        return carrier or inherited.get()
