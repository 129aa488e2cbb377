"""The same metrics for OpenTelemetry: `OtelMetrics(app.signals)`, once in a process; where they go, its SDK decides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from outrider.errors import ConfigError
from outrider.observe.measure import Measuring
from outrider.observe.vocabulary import METRICS, SECONDS, Metric
from outrider.signals import Signals

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter


class OtelInstruments:
    def __init__(self, meter: Meter | None = None) -> None:
        need_api()
        api: Any = import_module("opentelemetry.metrics")
        meter = meter or api.get_meter("outrider")
        self._values: dict[Metric, dict[tuple[str, ...], float]] = {}
        self._made: dict[Metric, Any] = {}
        for each in METRICS:
            match each.kind:
                case "counter":
                    self._made[each] = meter.create_counter(each.name, description=each.help)
                case "histogram":
                    self._made[each] = meter.create_histogram(
                        each.name, unit="s", description=each.help, explicit_bucket_boundaries_advisory=SECONDS
                    )
                case "gauge":
                    self._values[each] = {}
                    meter.create_observable_gauge(each.name, [self._reading(each, api)], description=each.help)

    def add(self, metric: Metric, amount: float, *labels: str) -> None:
        self._made[metric].add(amount, dict(zip(metric.labels, labels, strict=True)))

    def set(self, metric: Metric, value: float, *labels: str) -> None:
        self._values[metric][labels] = value

    def observe(self, metric: Metric, values: Sequence[float], *labels: str) -> None:
        record, attributes = self._made[metric].record, dict(zip(metric.labels, labels, strict=True))
        for value in values:
            record(value, attributes)

    def replace(self, metric: Metric, values: Mapping[tuple[str, ...], float]) -> None:
        self._values[metric] = dict(values)

    def _reading(self, metric: Metric, api: Any) -> Any:
        def read(_: Any) -> Any:
            for labels, value in list(self._values[metric].items()):
                yield api.Observation(value, dict(zip(metric.labels, labels, strict=True)))

        return read


class OtelMetrics(Measuring):
    def __init__(self, signals: Signals, meter: Meter | None = None) -> None:
        self.instruments = OtelInstruments(meter)
        super().__init__(signals, self.instruments)


def need_api() -> None:
    if find_spec("opentelemetry") is None:
        raise ConfigError("these metrics need OpenTelemetry: install outrider[otel]")


def need_provider() -> None:
    """Without one they would go nowhere."""
    need_api()
    if type(import_module("opentelemetry.metrics").get_meter_provider()).__name__ == "_ProxyMeterProvider":
        raise ConfigError(
            "--otel-metrics: no meter provider is set: set one in the module of the app, or start the worker with "
            "opentelemetry-instrument"
        )
