"""Prometheus metrics of relays and inboxes: a listener of the signals. `Metrics(app.signals)`, once in a process.

Labels are bounded: event types, names that the app declares, codes of errors. No id and no tenant is one.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from outrider.errors import ConfigError
from outrider.signals import BrokerDown, BrokerUp, EntryRefused, Ingested, Rejection, Relayed, Signal, Signals

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry


class Metrics:
    def __init__(self, signals: Signals, registry: CollectorRegistry | None = None) -> None:
        """`registry`: where they are found; by default that of prometheus_client, which its HTTP servers expose."""
        if find_spec("prometheus_client") is None:
            raise ConfigError("metrics need their client: install outrider[metrics]")
        prometheus: Any = import_module("prometheus_client")
        where = prometheus.REGISTRY if registry is None else registry
        counter, gauge = prometheus.Counter, prometheus.Gauge
        self._relayed = counter(
            "outrider_relayed", "Events that were sent to a stream, and committed.", ["topic"], registry=where
        )
        self._failures = counter(
            "outrider_publish_failures",
            "Rejections of an event by the broker or the codec. Severity: page. What is behind it waits, or it is dead.",
            ["topic", "reason"],
            registry=where,
        )
        self._hwm = gauge(
            "outrider_relay_hwm",
            "Up to where a stream is written: the milliseconds of a Redis id, the sequence of JetStream.",
            ["stream"],
            registry=where,
        )
        self._ingested = counter("outrider_ingested", "Events that came in and were new.", ["inbox"], registry=where)
        self._refused = counter(
            "outrider_ingest_refused",
            "Entries that an inbox could not make events of. Severity: page. They are kept.",
            ["inbox"],
            registry=where,
        )
        self._up = gauge(
            "outrider_broker_up",
            "1 when the broker of a relay or inbox answered last, 0 when it did not.",
            ["subscription"],
            registry=where,
        )
        self.close: Callable[[], None] = signals.listen(self._hear)
        """Hear no more."""

    def _hear(self, signal: Signal) -> None:
        match signal:
            case Relayed(relay, stream, _, position, topics):
                for topic, events in topics.items():
                    self._relayed.labels(topic).inc(events)
                self._up.labels(relay).set(1)
                with suppress(ValueError):
                    self._hwm.labels(stream).set(int(position.partition("-")[0]))
            case Rejection(_, envelope, _, code, _, _):
                self._failures.labels(envelope.event_type, code).inc()
            case Ingested(inbox, _, events, _, _, _):
                self._ingested.labels(inbox).inc(events)
                self._up.labels(inbox).set(1)
            case EntryRefused(inbox, _, _, _):
                self._refused.labels(inbox).inc()
            case BrokerDown(subscription, _, _, _):
                self._up.labels(subscription).set(0)
            case BrokerUp(subscription):
                self._up.labels(subscription).set(1)
            case _:
                pass
