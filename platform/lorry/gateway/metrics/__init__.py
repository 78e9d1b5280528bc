"""Prometheus metrics of a gateway and of the engines behind it. ``catalog`` has them all."""

from lorry.gateway.metrics.billing import CountedUsage
from lorry.gateway.metrics.catalog import ROUTER, SECTIONS, Kind, Metric, Section
from lorry.gateway.metrics.of_engines import Target
from lorry.gateway.metrics.of_gateway import Watched
from lorry.gateway.metrics.pages import MetricPages

__all__ = ["ROUTER", "SECTIONS", "CountedUsage", "Kind", "Metric", "MetricPages", "Section", "Target", "Watched"]
