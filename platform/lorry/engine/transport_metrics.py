"""EngineMetrics as ``lorry.internal.v1`` messages and back."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from lorry.engine.metrics import EngineMetrics
from lorry.histogram import Spread
from lorry.internal.v1 import engine_pb2 as pb

_RENAMED = {"started_at": "started_unix_seconds", "cpu_s": "cpu_seconds"}
_SPREADS = ("steps", "loads")


def metrics_to_proto(metrics: EngineMetrics) -> pb.GetMetricsResponse:
    values: dict[str, Any] = {field.name: getattr(metrics, field.name) for field in fields(metrics)}
    for name in _SPREADS:
        values[name] = {key: _to_proto(spread) for key, spread in values[name].items()}
    values["mix"] = _to_proto(metrics.mix)
    return pb.GetMetricsResponse(**{_RENAMED.get(name, name): value for name, value in values.items()})


def metrics_from_proto(message: pb.GetMetricsResponse) -> EngineMetrics:
    values: dict[str, Any] = {}
    for field in fields(EngineMetrics):
        value = getattr(message, _RENAMED.get(field.name, field.name))
        values[field.name] = value if isinstance(value, str | int | float) else _mapping(field.name, value)
    values["mix"] = _from_proto(message.mix)
    return EngineMetrics(**values)


def _mapping(name: str, value: Any) -> Any:
    if name == "mix":
        return None
    return {key: _from_proto(value[key]) if name in _SPREADS else int(value[key]) for key in value}


def _to_proto(spread: Spread) -> pb.Histogram:
    return pb.Histogram(bounds=spread.bounds, counts=spread.counts, sum=spread.total)


def _from_proto(message: pb.Histogram) -> Spread:
    return Spread(tuple(message.bounds), tuple(message.counts), message.sum)


__all__ = ["metrics_from_proto", "metrics_to_proto"]
