"""The metrics for Prometheus: `Metrics(app.signals)`, once in a process; `outrider worker --metrics-port` serves them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from itertools import accumulate
from threading import Lock
from typing import TYPE_CHECKING, Any

from outrider.errors import ConfigError
from outrider.observe.measure import Measuring
from outrider.observe.vocabulary import METRICS, SECONDS, Metric
from outrider.signals import Signals

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry


class PrometheusInstruments:
    """Counters are the client's. Its gauges say 0 where nothing is known yet, and are empty while they are replaced; its
    histograms take one value at a time, which costs as much as handling an event."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        need_client()
        prometheus: Any = import_module("prometheus_client")
        self.registry: CollectorRegistry = prometheus.REGISTRY if registry is None else registry
        counters = [each for each in METRICS if each.kind == "counter"]
        self._counters = {
            each: prometheus.Counter(each.name, each.help, each.labels, registry=self.registry) for each in counters
        }
        self._known: dict[tuple[Metric, tuple[str, ...]], Any] = {}
        self._gauges: dict[Metric, Mapping[tuple[str, ...], float]] = {
            each: {} for each in METRICS if each.kind == "gauge"
        }
        self._histograms: dict[Metric, dict[tuple[str, ...], _Histogram]] = {
            each: {} for each in METRICS if each.kind == "histogram"
        }
        self.registry.register(self)

    def add(self, metric: Metric, amount: float, *labels: str) -> None:
        if (known := self._known.get((metric, labels))) is None:
            made = self._counters[metric]
            known = self._known[metric, labels] = made.labels(*labels) if labels else made
        known.inc(amount)

    def set(self, metric: Metric, value: float, *labels: str) -> None:
        self._gauges[metric] = {**self._gauges[metric], labels: value}

    def observe(self, metric: Metric, values: Sequence[float], *labels: str) -> None:
        if (known := self._histograms[metric].get(labels)) is None:
            known = self._histograms[metric].setdefault(labels, _Histogram())
        known.observe(values)

    def replace(self, metric: Metric, values: Mapping[tuple[str, ...], float]) -> None:
        self._gauges[metric] = dict(values)

    def collect(self) -> Iterator[Any]:
        """As the registry asks for it."""
        core: Any = import_module("prometheus_client.core")
        for metric, values in self._gauges.items():
            gauge = core.GaugeMetricFamily(metric.name, metric.help, labels=metric.labels)
            for labels, value in values.items():
                gauge.add_metric(labels, value)
            yield gauge
        for metric, found in self._histograms.items():
            histogram = core.HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
            for labels, each in list(found.items()):
                histogram.add_metric(labels, *each.read())
            yield histogram


class _Histogram:
    __slots__ = ("_counts", "_lock", "_sum")

    def __init__(self) -> None:
        self._counts = [0] * (len(SECONDS) + 1)
        self._sum = 0.0
        self._lock = Lock()

    def observe(self, values: Sequence[float]) -> None:
        with self._lock:
            counts = self._counts
            for value in values:
                counts[bisect_left(SECONDS, value)] += 1
            self._sum += sum(values)

    def read(self) -> tuple[list[tuple[str, float]], float]:
        """How many were at most so long, and the sum."""
        with self._lock:
            counts, total = list(self._counts), self._sum
        return list(zip([*map(str, SECONDS), "+Inf"], map(float, accumulate(counts)), strict=True)), total


class Metrics(Measuring):
    def __init__(self, signals: Signals, registry: CollectorRegistry | None = None) -> None:
        """`registry`: where they are found; by default that of prometheus_client, which its HTTP servers expose."""
        self.instruments = PrometheusInstruments(registry)
        super().__init__(signals, self.instruments)


def need_client() -> None:
    if find_spec("prometheus_client") is None:
        raise ConfigError("metrics need their client: install outrider[metrics]")
