"""Samples of catalogued metrics, and prometheus_client's form of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.utils import floatToGoString

from lorry.gateway.metrics.catalog import Kind, Metric
from lorry.histogram import Spread


class Families:
    """Collects samples of many sources, each metric as one family. To add one is to keep a number: families are made
    when they are iterated, which takes ten times as long and may be another thread's work."""

    def __init__(self) -> None:
        self._samples: list[tuple[Metric, tuple[str, ...], float | Spread]] = []

    def add(self, metric: Metric, value: float, *labels: str) -> None:
        """One sample of a counter or a gauge."""
        self._samples.append((metric, labels, value))

    def add_all(self, metric: Metric, values: Mapping[str, float], *labels: str) -> None:
        """A sample for each value, whose key is the last label."""
        self._samples.extend((metric, (*labels, key), value) for key, value in values.items())

    def add_spread(self, metric: Metric, spread: Spread, *labels: str) -> None:
        """A histogram."""
        self._samples.append((metric, labels, spread))

    def __iter__(self) -> Iterator[Family]:
        made: dict[str, Family] = {}
        for metric, labels, value in self._samples:
            family = made.get(metric.name)
            if family is None:
                family = made[metric.name] = _KINDS[metric.kind](metric.name, metric.help, labels=metric.labels)
            if isinstance(value, Spread):
                assert isinstance(family, HistogramMetricFamily)
                names = [*map(floatToGoString, value.bounds), "+Inf"]
                family.add_metric(labels, list(zip(names, accumulate(value.counts), strict=True)), value.total)
            else:
                assert isinstance(family, CounterMetricFamily | GaugeMetricFamily)
                family.add_metric(labels, value)
        yield from made.values()


_KINDS: Mapping[Kind, type[CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily]] = {
    Kind.COUNTER: CounterMetricFamily,
    Kind.GAUGE: GaugeMetricFamily,
    Kind.HISTOGRAM: HistogramMetricFamily,
}

__all__ = ["Families"]
