"""Samples of catalogued metrics in prometheus_client's form."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.utils import floatToGoString

from lorry.gateway.metrics.catalog import Kind, Metric
from lorry.histogram import Spread


class Families:
    """Collects samples of many sources, each metric as one family."""

    def __init__(self) -> None:
        self._made: dict[str, Family] = {}

    def __iter__(self) -> Iterator[Family]:
        return iter(self._made.values())

    def add(self, metric: Metric, value: float, *labels: str) -> None:
        """One sample of a counter or a gauge."""
        family = self._family(metric)
        assert isinstance(family, CounterMetricFamily | GaugeMetricFamily)
        family.add_metric(labels, value)

    def add_all(self, metric: Metric, values: Mapping[str, float], *labels: str) -> None:
        """A sample for each value, whose key is the last label."""
        for key, value in values.items():
            self.add(metric, value, *labels, key)

    def add_spread(self, metric: Metric, spread: Spread, *labels: str) -> None:
        family = self._family(metric)
        assert isinstance(family, HistogramMetricFamily)
        names = [*map(floatToGoString, spread.bounds), "+Inf"]
        family.add_metric(labels, list(zip(names, accumulate(spread.counts), strict=True)), spread.total)

    def _family(self, metric: Metric) -> Family:
        found = self._made.get(metric.name)
        if found is None:
            found = self._made[metric.name] = _KINDS[metric.kind](metric.name, metric.help, labels=metric.labels)
        return found


_KINDS: Mapping[Kind, type[CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily]] = {
    Kind.COUNTER: CounterMetricFamily,
    Kind.GAUGE: GaugeMetricFamily,
    Kind.HISTOGRAM: HistogramMetricFamily,
}

__all__ = ["Families"]
