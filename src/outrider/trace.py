"""The W3C trace context of the current OpenTelemetry span, when OpenTelemetry is installed and there is a span."""

from __future__ import annotations

try:
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError:

    def current_trace() -> dict[str, str] | None:
        return None

else:
    _propagator = TraceContextTextMapPropagator()

    def current_trace() -> dict[str, str] | None:
        carrier: dict[str, str] = {}
        _propagator.inject(carrier)
        return carrier or None
